"""The loader for vLLM, against its interface as documented, and against vLLM itself where that is there."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from forebay import vllm as plugin
from forebay.safetensors import numpy as files

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


class BaseModelLoader(ABC):
    """What vLLM documents of its base class."""

    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config

    @abstractmethod
    def download_model(self, model_config: Any) -> None: ...

    @abstractmethod
    def load_weights(self, model: Any, model_config: Any) -> None: ...


class Told(SimpleNamespace):
    """A model that tells what it has taken, and what it has."""

    def load_weights(self, tensors: Any) -> set[str]:
        return {name for name, _ in tensors}

    def named_parameters(self) -> Any:
        return ((name, None) for name in self.names)


def test_parameters_that_no_file_has_are_an_error(loaders: dict[str, Any], tmp_path: Path) -> None:
    plugin.register()
    files.save_file({"a": numpy.zeros(3)}, tmp_path / "model-1.safetensors")
    loader = loaders["forebay"](config(device="cpu"))
    whole = SimpleNamespace(model=str(tmp_path), quantization=None)
    loader.load_weights(Told(names=["a"]), whole)
    with pytest.raises(ValueError, match=r"1 parameters are in no file of .*: b"):
        loader.load_weights(Told(names=["a", "b"]), whole)
    # Some of these are made of others.
    loader.load_weights(Told(names=["a", "b"]), SimpleNamespace(model=str(tmp_path), quantization="fp8"))


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    known: dict[str, Any] = {}

    def register_model_loader(name: str) -> Any:
        def keep(loader: Any) -> Any:
            known[name] = loader
            return loader

        return keep

    names = ["vllm", "vllm.model_executor", "vllm.model_executor.model_loader"]
    modules = {name: ModuleType(name) for name in [*names, f"{names[-1]}.base_loader"]}
    modules[names[-1]].register_model_loader = register_model_loader  # type: ignore[attr-defined]
    modules[f"{names[-1]}.base_loader"].BaseModelLoader = BaseModelLoader  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return known


class Model:
    def load_weights(self, tensors: Any) -> None:
        self.tensors = {name: tensor.clone() for name, tensor in tensors}


def config(**extra: Any) -> SimpleNamespace:
    return SimpleNamespace(model_loader_extra_config=extra, download_dir=None)


def test_the_entry_point_registers_a_loader_that_loads(loaders: dict[str, Any], tmp_path: Path) -> None:
    (entry,) = [entry for entry in entry_points(group="vllm.general_plugins") if entry.name == "forebay"]
    entry.load()()
    arrays = {f"layer.{index}": numpy.full((3, 4), index, dtype="float32") for index in range(4)}
    names = list(arrays)
    files.save_file({name: arrays[name] for name in names[:2]}, tmp_path / "a.safetensors")
    files.save_file({name: arrays[name] for name in names[2:]}, tmp_path / "b.safetensors")
    model, loader = Model(), loaders["forebay"](config(device="cpu", verify="off"))
    loader.download_model(SimpleNamespace(model=str(tmp_path)))
    loader.load_weights(model, SimpleNamespace(model=str(tmp_path)))
    assert set(model.tensors) == set(names)
    for name, array in arrays.items():
        numpy.testing.assert_array_equal(model.tensors[name].numpy(), array)
    # With an index, only the files that it names.
    index = {"weight_map": dict.fromkeys(names[:2], "a.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    loader.load_weights(model, SimpleNamespace(model=str(tmp_path)))
    assert set(model.tensors) == set(names[:2])


def save(folder: str, files_of: dict[str, list[str]]) -> None:
    """Save files of small tensors that tell their names."""
    for file, names in files_of.items():
        arrays = {name: numpy.full(4, index, dtype="float32") for index, name in enumerate(names)}
        files.save_file(arrays, f"{folder}/{file}")


def loads_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[set[str], dict[str, Any]]]:
    """Note what each load of a source brings, and with which options."""
    noted: list[tuple[set[str], dict[str, Any]]] = []
    load_from = plugin.load_from

    def note(source: Any, names: list[str], framework: str, options: dict[str, Any]) -> Any:
        (weights,) = load_from(source, names, framework, options)
        noted.append((set(weights), {**options, "ledger": weights.ledger.to_dict()}))
        return [weights]

    monkeypatch.setattr(plugin, "load_from", note)
    return noted


@pytest.mark.parametrize("place", ["folder", "url"])
def test_one_file_at_a_time_is_loaded_wherever_the_model_is(
    loaders: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    plugin.register()
    noted = loads_of(monkeypatch)
    folder = str(tmp_path) if place == "folder" else f"mem://vllm-{tmp_path.name}"
    save(folder, {"a.safetensors": ["x", "y"], "b.safetensors": ["z"], "c.safetensors": ["u"]})
    model, loader = Model(), loaders["forebay"](config(device="cpu"))
    loader.load_weights(model, SimpleNamespace(model=folder))
    assert set(model.tensors) == {"x", "y", "z", "u"}
    assert [names for names, _ in noted] == [{"x", "y"}, {"z"}, {"u"}]


def test_ranks_of_a_machine_read_its_disk_once(
    loaders: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.register()
    noted = loads_of(monkeypatch)
    save(str(tmp_path), {"a.safetensors": ["x"]})

    def load(**extra: Any) -> dict[str, Any]:
        loader = loaders["forebay"](config(device="cpu", **extra))
        loader.load_weights(Model(), SimpleNamespace(model=str(tmp_path)))
        return noted[-1][1]

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    options = load()
    # Through the page cache, which they share, and not by ways around it.
    assert (options["require_path"], options["gds"]) == ("buffered", "off")
    assert options["ledger"]["paths"]["buffered"]["bytes"] > 0
    assert load(shared=False)["require_path"] is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert (load()["require_path"], load()["gds"]) == (None, "prefer")
    assert load(shared=True)["require_path"] == "buffered"
    # Nobody shares what is not on a disk, or is not to pass through host memory.
    shared = {**plugin.OPTIONS, "shared": True}
    assert plugin.reading_of({**shared, "gds": "require"}, "/models") == ("require", None)
    assert plugin.reading_of(shared, "s3://bucket/models") == ("prefer", None)


def test_unknown_options_are_refused(loaders: dict[str, Any], tmp_path: Path) -> None:
    plugin.register()
    with pytest.raises(ValueError, match="unknown options of the forebay loader: gdx"):
        loaders["forebay"](config(gdx="off"))
    with pytest.raises(FileNotFoundError, match=r"no \*\.safetensors"):
        loaders["forebay"](config()).load_weights(Model(), SimpleNamespace(model=str(tmp_path)))


def test_vllm_itself_finds_the_loader_and_loads_by_it(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    options = {"device": "cpu", "verify": "off"}
    loader = get_model_loader(LoadConfig(load_format="forebay", model_loader_extra_config=options))
    assert isinstance(loader, BaseModelLoader)
    assert type(loader).__name__ == "ForebayModelLoader"
    save(str(tmp_path), {"a.safetensors": ["x", "y"], "b.safetensors": ["z"]})
    model = Model()
    loader.download_model(SimpleNamespace(model=str(tmp_path)))
    loader.load_weights(model, SimpleNamespace(model=str(tmp_path)))
    assert set(model.tensors) == {"x", "y", "z"}
    with pytest.raises(ValueError, match="unknown options of the forebay loader"):
        get_model_loader(LoadConfig(load_format="forebay", model_loader_extra_config={"gdx": "off"}))
