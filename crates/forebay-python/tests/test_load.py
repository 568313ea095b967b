"""Loading weights: what comes back, what is refused, and where memory goes."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay.safetensors import SafetensorError, TensorSpec, safe_open, serialize
from forebay.safetensors import numpy as files

numpy = pytest.importorskip("numpy")

Script = Any


def arrays() -> dict[str, Any]:
    random = numpy.random.default_rng(5)
    return {
        "a.weight": random.standard_normal((300, 700)).astype("float32"),
        "a.bias": random.standard_normal(700).astype("float16"),
        "b.weight": random.integers(0, 255, (64, 4096), dtype="uint8"),
        "empty": numpy.zeros((0, 3), dtype="float64"),
        "scalar": numpy.array(7, dtype="int64"),
    }


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        numpy.testing.assert_array_equal(found[name], value)


def raw(path: Path, header: dict[str, Any], data: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    files.save_file(arrays(), path, metadata={"format": "np"})
    return path


def test_what_is_saved_is_loaded(file: Path) -> None:
    weights = forebay.load(file, framework="numpy")
    assert_equal(weights, arrays())
    assert weights.report["tensors"] == 5
    assert weights.ledger.bytes >= weights.report["tensor_bytes"]
    assert_equal(files.load(file.read_bytes()), arrays())
    assert_equal(files.load_file(file), arrays())
    assert files.save(arrays(), {"format": "np"}) == file.read_bytes()


def test_tensors_can_be_written_to_and_do_not_touch_each_other(file: Path) -> None:
    weights = forebay.load(file, framework="numpy")
    weights["a.weight"][:] = 0
    assert (weights["a.bias"] == arrays()["a.bias"]).all()
    assert (weights["b.weight"] == arrays()["b.weight"]).all()
    assert_equal(forebay.load(file, framework="numpy"), arrays())


def test_tensors_outlive_what_they_came_with(file: Path) -> None:
    bias = forebay.load(file, framework="numpy")["a.bias"]
    gc.collect()
    assert (bias == arrays()["a.bias"]).all()


def test_folders_patterns_and_shards(tmp_path: Path) -> None:
    one, two = {"x": arrays()["a.weight"]}, {"y.w": arrays()["b.weight"]}
    files.save_file(one, tmp_path / "m-1.safetensors")
    files.save_file(two, tmp_path / "m-2.safetensors")
    assert_equal(forebay.load(tmp_path, framework="numpy"), {**one, **two})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "m-1.safetensors", "y.w": "m-2.safetensors"}}))
    assert_equal(forebay.load(index, framework="numpy"), {**one, **two})
    assert_equal(forebay.load(tmp_path, select="y.*", framework="numpy"), two)
    for rank in range(3):
        part = forebay.load(tmp_path, shard=(rank, 3, {"y.*": 1, "x": 0}), framework="numpy")
        expected = numpy.array_split(one["x"], 3, axis=0)[rank]
        numpy.testing.assert_array_equal(part["x"], expected)
        columns = [two["y.w"][:, start : start + 1366] for start in (0, 1366, 2732)]
        numpy.testing.assert_array_equal(part["y.w"], columns[rank])
    index.write_text(json.dumps({"weight_map": {"x": "m-3.safetensors"}}))
    with pytest.raises(forebay.NotFoundError, match="the index names this file"):
        forebay.load(tmp_path)


def test_parts_read_only_what_they_need(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    whole = {"w": numpy.arange(1 << 20, dtype="float32").reshape(1024, 1024)}
    files.save_file(whole, path)
    part = forebay.load(path, shard=(1, 4, {"w": 0}), framework="numpy")
    numpy.testing.assert_array_equal(part["w"], whole["w"][256:512])
    assert part.report["read_bytes"] <= (1 << 20) + 8192


@pytest.mark.parametrize("hashes", [True, "beside"])
def test_checksums_name_a_flipped_bit(tmp_path: Path, hashes: Any) -> None:
    path = tmp_path / "m.safetensors"
    files.save_file(arrays(), path, hashes=hashes, align=4096)
    weights = forebay.load(path, verify="require", framework="numpy")
    assert_equal(weights, arrays())
    assert weights.ledger.verified_bytes >= weights.report["tensor_bytes"]
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(forebay.CorruptDataError, match=r"b\.weight"):
        forebay.load(path, framework="numpy")
    forebay.load(path, verify="off", framework="numpy")


def test_required_checksums_must_be_there(file: Path) -> None:
    with pytest.raises(forebay.UnsupportedError, match="no checksums"):
        forebay.load(file, verify="require")


def test_what_cannot_be_is_said_before_anything_is_read(file: Path, tmp_path: Path) -> None:
    with pytest.raises(forebay.LimitExceededError, match="of memory"):
        forebay.load(file, memory="64KiB", framework="numpy")
    odd = raw(tmp_path / "odd.safetensors", {"t": tensor("F6_E2M3", [4], 0, 3)}, bytes(3))
    with pytest.raises(forebay.UnsupportedError, match="'t' is of dtype F6_E2M3"):
        forebay.load(odd, framework="numpy")
    with pytest.raises(forebay.InvalidInputError, match="device 'tpu'"):
        forebay.load(file, "tpu")
    with pytest.raises(forebay.NotFoundError, match="no tensor matches"):
        forebay.load(file, select="nothing.*")
    with pytest.raises(ValueError, match="no framework"):
        forebay.load(file, framework="jax")  # type: ignore[arg-type]


def test_what_only_gpus_can_do_is_not_passed_over(file: Path) -> None:
    for gds, words in (("require", "is for GPUs"), ("demand", "unknown policy gds='demand'")):
        with pytest.raises(forebay.InvalidInputError, match=words):
            forebay.load(file, framework="numpy", gds=gds)  # type: ignore[arg-type]
    assert_equal(forebay.load(file, framework="numpy", gds="prefer"), arrays())


def test_types_that_numpy_has_not_come_as_bits(tmp_path: Path) -> None:
    header = {"b": tensor("BF16", [2], 0, 4), "f": tensor("F8_E4M3", [2], 4, 6)}
    path = raw(tmp_path / "m.safetensors", header, bytes(range(6)))
    weights = forebay.load(path, framework="numpy")
    assert weights["b"].tobytes() == bytes(range(4))
    assert weights["f"].tobytes() == bytes([4, 5])


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ({"t": tensor("U8", [4], 0, 4)}, b"123", "'t'"),
        ({"t": tensor("U8", [4], 0, 4)}, b"12345", "the tensors end at"),
        ({"t": tensor("F3", [4], 0, 4)}, b"1234", "unknown dtype 'F3'"),
        ({"a": tensor("U8", [3], 0, 3), "b": tensor("U8", [2], 2, 4)}, b"1234", "overlaps"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, header: dict[str, Any], data: bytes, words: str) -> None:
    path = raw(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(forebay.ForebayError, match=words) as raised:
        forebay.load(path, framework="numpy")
    assert "bad.safetensors" in str(raised.value)
    with pytest.raises(SafetensorError, match=words):
        safe_open(path, "np")
    with pytest.raises(SafetensorError, match=words):
        files.load(path.read_bytes())


def test_names_that_come_twice_are_refused(tmp_path: Path) -> None:
    one = json.dumps({"t": tensor("U8", [1], 0, 1)})[1:-1]
    text = f"{{{one},{one}}}".encode()
    path = tmp_path / "twice.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"1")
    with pytest.raises(forebay.CorruptDataError, match="comes twice"):
        forebay.load(path)


def test_open_files_read_what_is_asked_for(file: Path) -> None:
    with safe_open(file, "np") as opened:
        assert opened.keys() == sorted(arrays())
        assert opened.metadata() == {"format": "np"}
        numpy.testing.assert_array_equal(opened.get_tensor("a.bias"), arrays()["a.bias"])
        part = opened.get_slice("b.weight")
        assert (part.get_shape(), part.get_dtype()) == ([64, 4096], "U8")
        numpy.testing.assert_array_equal(part[3:9, 5:70], arrays()["b.weight"][3:9, 5:70])
        numpy.testing.assert_array_equal(part[..., ::8], arrays()["b.weight"][..., ::8])
        numpy.testing.assert_array_equal(part[-1], arrays()["b.weight"][-1])
        with pytest.raises(SafetensorError, match="does not contain tensor x"):
            opened.get_tensor("x")
    with pytest.raises(SafetensorError, match="closed"):
        opened.get_tensor("a.bias")
    with pytest.raises(FileNotFoundError):
        safe_open(file.with_name("missing"), "np")


def test_a_file_that_changed_since_it_was_opened_is_noticed(file: Path) -> None:
    with safe_open(file, "np") as opened:
        files.save_file({"other": numpy.zeros(5)}, file)
        with pytest.raises(SafetensorError, match="precondition failed"):
            opened.get_tensor("a.weight")


def test_addresses_are_checked_against_shapes() -> None:
    spec = TensorSpec(dtype="float32", shape=[2], data_ptr=0, data_len=4)
    with pytest.raises(forebay.InvalidInputError, match="4 bytes"):
        serialize({"t": spec})


def test_weights_in_memory_of_the_process_and_files_of_stores(tmp_path: Path) -> None:
    data = files.save(arrays())
    store = forebay.Store("mem://weights-test")
    store.write("m.safetensors", data)
    assert_equal(forebay.load("mem://weights-test/m.safetensors", framework="numpy"), arrays())
    files.save_file(arrays(), "mem://weights-test/n.safetensors", hashes=True)
    found = forebay.load("mem://weights-test/n.safetensors", verify="require", framework="numpy")
    assert_equal(found, arrays())


def test_weights_come_from_a_real_store_and_then_from_the_cache(s3_prefix: str, tmp_path: Path) -> None:
    folder = f"s3://{s3_prefix}/model"
    parts = [dict(list(arrays().items())[:2]), dict(list(arrays().items())[2:])]
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        files.save_file(part, f"{folder}/{name}", hashes=True)
    found = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    index = json.dumps({"metadata": {}, "weight_map": found}).encode()
    forebay.Store(folder).write("model.safetensors.index.json", index)
    cache = f"{tmp_path}/cache:64MiB"
    weights = forebay.load(folder, verify="require", framework="numpy", cache=cache)
    assert_equal(weights, arrays())
    # Reading the headers brings whole blocks into the cache; the tensors in them may come from there already.
    assert weights.ledger.paths["http"]["bytes"] > 0
    assert weights.ledger.bytes >= weights.report["tensor_bytes"]
    again = forebay.load(folder, verify="require", framework="numpy", cache=cache)
    assert_equal(again, arrays())
    assert "http" not in again.ledger.paths
    part = forebay.load(folder, select="a.*", shard=(1, 4, {"a.weight": 0}), framework="numpy")
    numpy.testing.assert_array_equal(part["a.weight"], arrays()["a.weight"][75:150])
    forebay.Store(folder).delete(names[1])
    with pytest.raises(forebay.NotFoundError, match=names[1]):
        forebay.load(folder, framework="numpy")


def test_files_that_are_open_go_on_in_workers_that_are_forked(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    files.save_file(arrays(), path)
    done = script(
        """
        import os, sys
        from forebay.safetensors import SafetensorError, safe_open, numpy as files
        import numpy
        file = safe_open(sys.argv[1], "np")
        before = file.get_tensor("a.weight")
        def child(work):
            pid = os.fork()
            if not pid:
                os._exit(work())
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        def reads():
            rows = file.get_slice("a.weight")[2:4]
            return int(len(rows) != 2 or (file.get_tensor("a.weight") != before).any())
        print(child(reads), child(lambda: child(reads)), reads())
        files.save_file({"other": numpy.zeros(5)}, sys.argv[1])
        def refuses():
            try:
                file.get_tensor("a.weight")
            except SafetensorError as error:
                return 0 if "has changed since" in str(error) else 2
        print(child(refuses))
        """,
        str(path),
    )
    assert done.stdout == "0 0 0\n0\n"


def test_weights_are_dicts_that_go_elsewhere(file: Path) -> None:
    weights = forebay.load(file, framework="numpy")
    for found in (pickle.loads(pickle.dumps(weights)), copy.deepcopy(weights)):
        assert type(found) is dict
        assert_equal(found, dict(weights))
    assert weights.report["ledger"]["paths"].keys() == weights.ledger.paths.keys()
    with pytest.raises(forebay.InvalidInputError, match="names no pattern"):
        forebay.load(file, select=[])


@pytest.mark.parametrize("shard", [(0, 2), (2, 2, {}), (-1, 2, {}), (0, 2, "a"), ("0", 2, {}), 5])
def test_shards_that_are_none_are_named(file: Path, shard: Any) -> None:
    with pytest.raises(forebay.InvalidInputError, match="shard="):
        forebay.load(file, shard=shard)
    assert forebay.load(file, "cpu:0", framework="numpy").keys() == forebay.load(file).keys()


def test_types_that_numpy_has_not_are_no_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(4)
    (tmp_path / "m.safetensors").write_bytes(data)
    monkeypatch.setattr("forebay._arrays.has", lambda _: False)
    for load, given in ((files.load_file, tmp_path / "m.safetensors"), (files.load, data)):
        with pytest.raises(SafetensorError, match="numpy has no BF16 without the package ml_dtypes"):
            load(given)  # type: ignore[operator]
    # Asked for as it is, it is shown as its bits.
    assert forebay.load(tmp_path / "m.safetensors", framework="numpy")["x"].dtype == "uint16"


def test_errors_are_of_one_tree() -> None:
    assert issubclass(SafetensorError, forebay.ForebayError)


def test_loads_are_interrupted_by_signals(script: Script, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    files.save_file({"w": numpy.zeros(64 << 20, dtype="uint8")}, path)
    done = script(
        """
        import _thread, sys, threading, forebay
        def stop():
            _thread.interrupt_main()
        threading.Timer(0.3, stop).start()
        try:
            while True:
                forebay.load(sys.argv[1], framework="numpy")
        except KeyboardInterrupt:
            print("stopped")
        """,
        str(path),
    )
    assert done.stdout == "stopped\n"
