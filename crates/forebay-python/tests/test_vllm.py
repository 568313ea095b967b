"""The loader for vLLM, against its interface as documented (vLLM itself is not installed here)."""

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


def test_unknown_options_are_refused(loaders: dict[str, Any], tmp_path: Path) -> None:
    plugin.register()
    with pytest.raises(ValueError, match="unknown options of the forebay loader: gdx"):
        loaders["forebay"](config(gdx="off"))
    with pytest.raises(FileNotFoundError, match=r"no \*\.safetensors"):
        loaders["forebay"](config()).load_weights(Model(), SimpleNamespace(model=str(tmp_path)))
