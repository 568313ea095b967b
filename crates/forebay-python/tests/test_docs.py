"""The guide and the reference name what is there."""

from __future__ import annotations

import inspect
import io
import re
import tarfile
from pathlib import Path

import forebay
import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
GUIDE = DOCS / "guides" / "python.md"
REFERENCE = DOCS / "reference" / "python.md"

pytestmark = pytest.mark.skipif(not GUIDE.exists(), reason="not in a checkout")


def test_examples_use_what_exists() -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) >= 8
    for block in blocks:
        compile(block, str(GUIDE), "exec")
        for name in re.findall(r"\bforebay\.(\w+)", block):
            assert name in forebay.__all__, name
        for name in re.findall(r"\bstore\.(\w+)\(", block):
            assert hasattr(forebay.Store, name), name


def test_the_reference_is_complete() -> None:
    text = REFERENCE.read_text()
    for name in forebay.__all__:
        if name not in {"__version__", "Listing"}:
            assert re.search(rf"`{name}\b|## {name}\b", text), name
    for kind in (forebay.Store, forebay.Buffer, forebay.MutableBuffer, forebay.Ledger, forebay.Upload):
        for name in (name for name in vars(kind) if not name.startswith("_")):
            assert re.search(rf"`{name}\b", text), f"{kind.__name__}.{name}"
    for function in (forebay.configure, forebay.copy):
        for parameter in inspect.signature(function).parameters:
            assert parameter in text, f"{function.__name__}({parameter})"


STREAMS = DOCS / "guides" / "stream.md"


def test_examples_of_streams_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numpy")
    from conftest import write_shard

    (tmp_path / "data").mkdir()
    for number in range(4):
        write_shard(tmp_path / "data" / f"train-{number:03}.tar", number)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python( not run)?\n(.*?)```", STREAMS.read_text(), re.DOTALL)
    assert sum(not skipped for skipped, _ in blocks) >= 4
    shared: dict[str, object] = {"forebay": forebay}
    for skipped, block in blocks:
        code = compile(block, str(STREAMS), "exec")
        if not skipped:
            exec(code, shared)


def test_the_reference_has_every_argument_of_streams() -> None:
    text = REFERENCE.read_text()
    for parameter in inspect.signature(forebay.stream).parameters:
        assert f"`{parameter}`" in text, parameter
    for name in (name for name in vars(forebay.Stream) if not name.startswith("_")):
        assert re.search(rf"`{name}\b", text), name


def test_the_reference_has_every_parameter_of_formats() -> None:
    text = REFERENCE.read_text()
    for name in ("layout", "tokens", "dtype", "records", "lists", "columns", "partitions", "pickle"):
        assert f"\n| `{name}` | `" in text, name


def test_reports_name_as_many_bad_samples_as_the_guide_says(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    # One of ten is an integer, and takes the places of the others.
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for number in range(1200):
            member = tarfile.TarInfo(f"{number:04}.cls")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x" if number % 10 else b"1"))
    with forebay.stream(tmp_path, batch_size=10, decode={"cls": "int"}, bad="skip:2000") as batches:
        assert sum(int(batch["cls"].sum()) for batch in batches) == 1200
        report = batches.report()
    assert (report["bad_samples"], len(report["bad"])) == (1080, 1000)
    assert "up to the first 1,000" in STREAMS.read_text()


LOADS = DOCS / "guides" / "load.md"


def test_examples_of_loads_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    from forebay.safetensors.numpy import save_file

    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    tensors = {
        f"layer.{number}.{name}": numpy.ones((8, 8)) for number in (0, 1) for name in ("weight", "bias")
    }
    save_file(tensors, folder / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", LOADS.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    shared: dict[str, object] = {"forebay": forebay}
    for block in blocks:
        exec(compile(block, str(LOADS), "exec"), shared)
    assert len(shared["some"]) == 2  # type: ignore[arg-type]
    assert shared["part"]["layer.1.weight"].shape == (4, 8)  # type: ignore[index]
    reference = REFERENCE.read_text()
    for parameter in inspect.signature(forebay.load).parameters:
        assert f"`{parameter}`" in reference, parameter


def test_the_reference_has_every_argument_of_checkpoints() -> None:
    text = REFERENCE.read_text()
    methods = (forebay.Checkpointer, forebay.Checkpointer.save, forebay.Checkpointer.load)
    for function in (*methods, forebay.Checkpointer.load_into):
        for parameter in inspect.signature(function).parameters:
            assert parameter == "self" or parameter in text, parameter
    for kind in (forebay.Checkpointer, forebay.SaveJob):
        for name in (name for name in vars(kind) if not name.startswith("_")):
            assert re.search(rf"`{name}\b", text), name


CHECKPOINTS = DOCS / "guides" / "checkpoint.md"


def test_examples_of_checkpoints_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", CHECKPOINTS.read_text(), re.DOTALL)
    assert blocks
    shared: dict[str, object] = {"model": {"w": numpy.ones(9)}, "optim": {"m": numpy.zeros(9), "lr": 0.1}}
    for block in blocks:
        exec(compile(block, str(CHECKPOINTS), "exec"), shared)
    assert list(shared["weights"]) == ["model.w"]  # type: ignore[call-overload]
    assert shared["state"]["loss"] == 2.31  # type: ignore[index]
