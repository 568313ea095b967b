"""Loading the tensors of checkpoints as weights: plain, compressed, sealed ones, parts; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay.safetensors import numpy as files

numpy = pytest.importorskip("numpy")


def state(seed: int = 5) -> dict[str, Any]:
    values = numpy.random.default_rng(seed)
    return {
        "model": {
            "weight": values.standard_normal((300, 700)).astype("float32"),
            "bias": values.standard_normal(700),
            "rest": values.integers(0, 9, (64, 4096), dtype="uint8"),
        },
        "empty": numpy.zeros((0, 3), dtype="float64"),
        "loss": 2.31,
        "epoch": 3,
    }


def flat(given: dict[str, Any]) -> dict[str, Any]:
    model = {f"model.{name}": value for name, value in given["model"].items()}
    return {**model, "empty": given["empty"]}


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        numpy.testing.assert_array_equal(found[name], value)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    made = []
    for name in ("one", "other"):
        key = tmp_path / name
        key.write_bytes(bytes(range(32)) if name == "one" else bytes(32))
        key.chmod(0o600)
        made.append(str(key))
    return made


def save(place: Path | str, **options: Any) -> None:
    with forebay.Checkpointer(place, chunk_bytes=65_536, **options) as ckpt:
        for step in (1, 2):
            ckpt.save(step, state(step)).wait()


@pytest.mark.parametrize("compress", ["off", "auto"])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_what_is_saved_is_loaded(place: Path, keys: list[str], compress: str, is_sealed: bool) -> None:
    key = keys[0] if is_sealed else None
    save(place, compress=compress, key=key)
    weights = forebay.load(place, framework="numpy", verify="require", key=key)
    assert_equal(weights, flat(state(2)))
    assert weights.report["tensors"] == 4
    assert "left_out" not in weights.report
    assert weights.ledger.verified_bytes > 0
    if compress == "off" and not is_sealed:
        assert weights.ledger.verified_bytes == weights.report["tensor_bytes"]
    older = forebay.load(place, framework="numpy", step=1, key=key)
    assert_equal(older, flat(state(1)))
    weights["model.bias"][0] = 3.0
    assert weights["model.bias"][0] == 3.0


@pytest.mark.parametrize("compress", ["off", "auto"])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_checkpoints_come_from_a_real_store_and_then_from_the_cache(
    s3_prefix: str, tmp_path: Path, keys: list[str], compress: str, is_sealed: bool
) -> None:
    place = f"s3://{s3_prefix}/run-{compress}-{is_sealed}"
    key = keys[0] if is_sealed else None
    save(place, compress=compress, key=key)
    cache = f"{tmp_path}/cache:64MiB"
    options: dict[str, Any] = {"framework": "numpy", "verify": "require", "key": key}
    weights = forebay.load(place, cache=cache, **options)
    assert_equal(weights, flat(state(2)))
    assert weights.ledger.paths["http"]["bytes"] > 0
    again = forebay.load(place, cache=cache, **options)
    assert_equal(again, flat(state(2)))
    assert again.ledger.verified_bytes == weights.ledger.verified_bytes
    # Which checkpoints there are is asked anew, and no payload comes a second time.
    far = again.ledger.paths.get("http", {"bytes": 0})["bytes"]
    assert far < weights.ledger.paths["http"]["bytes"] / 10
    part = forebay.load(place, select="model.weight", shard=(1, 4, {"*": 0}), **options)
    numpy.testing.assert_array_equal(part["model.weight"], state(2)["model"]["weight"][75:150])
    store = forebay.Store(place)
    for entry in list(store.list()):
        if entry.key.endswith((".safetensors", ".chunks")):
            store.delete(entry.key)
    with pytest.raises(forebay.CorruptDataError, match="what is stored cannot be read: not found"):
        forebay.load(place, **options)


def test_parts_are_what_they_are_of_weights(place: Path) -> None:
    save(place)
    expected = flat(state(2))
    some = forebay.load(place, framework="numpy", select="model.b*")
    assert_equal(some, {"model.bias": expected["model.bias"]})
    for dim in (0, 1):
        shard = (1, 4, {"model.w*": dim, "model.bias": 0})
        part = forebay.load(place, framework="numpy", select="model.*", shard=shard)
        step = expected["model.weight"].shape[dim] // 4
        index = (slice(None),) * dim + (slice(step, 2 * step),)
        numpy.testing.assert_array_equal(part["model.weight"], expected["model.weight"][index])
        numpy.testing.assert_array_equal(part["model.bias"], expected["model.bias"][175:350])
        numpy.testing.assert_array_equal(part["model.rest"], expected["model.rest"])


def test_shared_arrays_come_each_for_itself(place: Path) -> None:
    shared = numpy.arange(50_000, dtype="float64").reshape(500, 100)
    given = {"a": shared, "b": shared, "front": shared[:10], "turned": shared.T}
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, given).wait()
    weights = forebay.load(place, framework="numpy")
    assert_equal(weights, given)
    weights["a"][0, 0] = 5.0
    assert weights["b"][0, 0] == 0.0


def test_what_cannot_be_loaded_is_said(place: Path, keys: list[str], tmp_path: Path) -> None:
    save(place, key=keys[0])
    for key in (None, keys[1]):
        with pytest.raises(forebay.PermissionDeniedError, match="key"):
            forebay.load(place, framework="numpy", key=key)
    with pytest.raises(forebay.NotFoundError, match="step 7"):
        forebay.load(place, framework="numpy", step=7, key=keys[0])
    (tmp_path / "empty").mkdir()
    with pytest.raises(forebay.NotFoundError, match=r"\*\.safetensors"):
        forebay.load(tmp_path / "empty")
    with pytest.raises(forebay.NotFoundError):
        forebay.load(tmp_path / "empty", step=1)
    with pytest.raises(forebay.NotFoundError, match="nothing"):
        forebay.load(place, framework="numpy", select="nothing.*", key=keys[0])


def test_damage_is_an_error_that_names_the_tensor(place: Path) -> None:
    save(place)
    manifests = sorted((place / "manifests").glob("*.fbm"))
    manifests[1].write_bytes(b"torn")
    with pytest.warns(UserWarning, match="step 2"):
        weights = forebay.load(place, framework="numpy")
    assert_equal(weights, flat(state(1)))
    (payload,) = (place / "steps" / f"{1:020}").rglob("*.safetensors")
    data = bytearray(payload.read_bytes())
    data[-9] ^= 1
    payload.write_bytes(data)
    with pytest.warns(UserWarning, match="step 2"), pytest.raises(forebay.CorruptDataError, match="model"):
        forebay.load(place, framework="numpy")


def test_dtypes_that_files_have_not_are_named(place: Path) -> None:
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, {"wide": numpy.ones(9, dtype="complex128"), "w": numpy.ones(9)}).wait()
    with pytest.warns(UserWarning, match="can hold 1 tensors of this checkpoint: wide"):
        weights = forebay.load(place, framework="numpy")
    assert list(weights) == ["w"]
    assert weights.report["left_out"] == ["wide"]


def test_weights_beside_checkpoints_are_what_is_meant(place: Path) -> None:
    save(place)
    files.save_file({"other": numpy.ones(5)}, place / "m.safetensors")
    assert list(forebay.load(place, framework="numpy")) == ["other"]
    assert_equal(forebay.load(place, framework="numpy", step=2), flat(state(2)))
