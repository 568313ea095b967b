"""What batches of streams hold: arrays, ragged values, what is decoded and by whom."""

from __future__ import annotations

import copy
import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import FIXTURES, keys, value, write_images

np = pytest.importorskip("numpy")


def test_ragged_fields_show_the_memory_of_the_batch(data: Path) -> None:
    batch = next(forebay.stream(data, batch_size=8))
    ragged = batch["bin"]
    assert isinstance(ragged, forebay.Ragged)
    assert len(ragged) == 8
    assert ragged.offsets.dtype == np.int64
    assert ragged.offsets[0] == 0
    assert ragged.offsets[-1] == len(ragged.bytes)
    assert ragged.bytes.dtype == np.uint8
    assert not ragged.bytes.flags.writeable
    assert [bytes(view) for view in ragged.list()] == [value(key) for key in batch["__key__"]]
    assert [bytes(view) for view in ragged] == [bytes(view) for view in ragged.list()]
    assert bytes(ragged[-1]) == value(batch["__key__"][-1])
    assert [bytes(view) for view in ragged[5:1:-2]] == [value(key) for key in batch["__key__"][5:1:-2]]
    shared = np.frombuffer(ragged[3], dtype=np.uint8)
    assert np.shares_memory(shared, ragged.bytes)
    for place in (8, -9):
        with pytest.raises(IndexError):
            ragged[place]


def test_fixed_and_list_fields_are_typed_arrays(tmp_path: Path) -> None:
    tokens = np.arange(1 << 12, dtype=np.uint16)
    (tmp_path / "tokens").mkdir()
    tokens.tofile(tmp_path / "tokens" / "shard.bin")
    ragged = forebay.Ragged(tokens.tobytes()[:12], np.array([0, 4, 4, 12]).tobytes(), "uint16")
    assert [list(values) for values in ragged] == [[0, 1], [], [2, 3, 4, 5]]
    assert ragged[0].dtype == np.uint16


def test_fields_are_decoded_when_looked_at(data: Path) -> None:
    decode: dict[str, Any] = {"json": "json", "cls": "int", "txt": "text", "bin": len}
    batch = next(forebay.stream(data, batch_size=8, decode=decode))
    assert batch["cls"].dtype == np.int64
    assert batch["cls"].tolist() == list(range(8))
    assert batch["txt"][2:4] == ["caption 00-0002", "caption 00-0003"]
    assert batch["json"][5] == {"cls": 5, "shard": 0}
    assert batch["json"][5] is batch["json"][-3]
    assert batch["txt"][1] == "caption 00-0001"
    assert batch["bin"][1] == len(value("00-0001"))
    with pytest.raises(forebay.InvalidInputError, match="no field 'jpg'"):
        forebay.stream(data, batch_size=8, decode={"jpg": "text"})
    with pytest.raises(forebay.InvalidInputError, match="no way to decode"):
        forebay.stream(data, batch_size=8, decode={"txt": "yaml"})


def fixture(tmp_path: Path, name: str) -> Path:
    """Give a data set of one shard that another library wrote."""
    folder = tmp_path / Path(name).stem
    folder.mkdir()
    (folder / Path(name).name).write_bytes((FIXTURES / name).read_bytes())
    return folder


def test_values_that_say_what_they_are_are_opened(tmp_path: Path) -> None:
    tar = tmp_path / "npy"
    tar.mkdir()
    arrays = [np.arange(number * 2, dtype="f4").reshape(number, 2) for number in range(3)]
    with tarfile.open(tar / "a.tar", "w") as file:
        for number, array in enumerate(arrays):
            npy = io.BytesIO()
            np.save(npy, array)
            for name, content in (("x.npy", npy.getvalue()), ("txt", b"t")):
                if number != 2 or name == "txt":
                    info = tarfile.TarInfo(f"{number}.{name}")
                    info.size = len(content)
                    file.addfile(info, io.BytesIO(content))
    batch = next(forebay.stream(tar, batch_size=3))
    assert np.array_equal(batch["x.npy"][0], arrays[0])
    assert np.array_equal(batch["x.npy"][1], arrays[1])
    assert batch["x.npy"][2] is None
    assert bytes(batch["x.npy"].ragged[1]).startswith(b"\x93NUMPY")
    raw = next(forebay.stream(tar, batch_size=3, decode={"x.npy": "bytes"}))
    assert raw["x.npy"][1].startswith(b"\x93NUMPY")
    assert raw["x.npy"][2] == b""
    one = next(forebay.stream(tar, batch_size=3, decode={"x.npy": "array:float32:1,2"}, bad="skip:9"))
    assert one["x.npy"].tolist() == [[[0.0, 1.0]]] * 3
    decimals = fixture(tmp_path, "parquet/decimals.parquet")
    decimals = next(forebay.stream(decimals, batch_size=4, fields=["wide"]))
    assert str(decimals["wide"][0]) == f"{'9' * 28}.{'9' * 10}"
    assert decimals["wide"][1] is None


def test_nested_columns_are_json(tmp_path: Path) -> None:
    nested = fixture(tmp_path, "parquet/json.parquet")
    batch = next(forebay.stream(nested, batch_size=4, decode={"chat": "json"}, fields=["chat", "texts"]))
    assert batch["chat"][0] == [{"role": "user", "content": "hi", "score": 0.5}, None]
    assert batch["chat"][3] is None
    assert bytes(batch["texts"][3]) == b'["a","a","a"]'


@pytest.mark.parametrize("name", ["plain", "unpacked", "varying"])
def test_numbers_of_tfrecord_are_numbers(tmp_path: Path, name: str) -> None:
    expected = json.loads((FIXTURES / "tfrecord/expected.json").read_text())[name]
    stream = forebay.stream(fixture(tmp_path, f"tfrecord/{name}.tfrecord"), batch_size=len(expected))
    batch = next(stream)
    kinds = {field["name"]: field["kind"] for field in stream.schema}
    seen = 0
    for row, features in enumerate(expected):
        for field, feature in features.items():
            if feature is None:
                continue
            numbers = feature.get("int64_list", feature.get("float_list"))
            if numbers:
                assert kinds[field] == "list", field
                assert batch[field][row].tolist() == numbers
                seen += 1
            elif len(feature.get("bytes_list", [])) > 1:
                assert [value.hex() for value in batch[field][row]] == feature["bytes_list"]
    assert seen > 0


def test_numbers_of_tfrecord_become_one_array(tmp_path: Path) -> None:
    records = fixture(tmp_path, "tfrecord/plain.tfrecord")
    expected = json.loads((FIXTURES / "tfrecord/expected.json").read_text())["plain"]
    labels = [row["label"]["int64_list"][0] for row in expected]
    batch = next(forebay.stream(records, batch_size=len(labels), decode={"label": "int"}))
    assert batch["label"].tolist() == labels
    kept = forebay.stream(records, batch_size=1, filter="label = 7")
    assert kept.samples == labels.count(7) > 0
    # Where some lists are not packed; the first sample has several, and is left out.
    records = fixture(tmp_path, "tfrecord/unpacked.tfrecord")
    batch = next(forebay.stream(records, batch_size=2, decode={"i": "int"}, bad="skip:1"))
    assert batch["i"].tolist() == [9, 9]


def test_batches_are_pickled(data: Path) -> None:
    decode: dict[str, Any] = {"cls": "int", "json": lambda view: json.loads(bytes(view))}
    batch = next(forebay.stream(data, batch_size=8, decode=decode))
    for again in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
        assert (again.epoch, again.index, again.size) == (0, 0, 8)
        assert again["__key__"] == batch["__key__"]
        assert again["__key__"].list() == keys()[:8]
        assert again["cls"].tolist() == list(range(8))
        assert [bytes(view) for view in again["bin"]] == [value(key) for key in keys()[:8]]
        assert again["json"][-1] == {"cls": 7, "shard": 0}
        assert again["json"].ragged is None
        with pytest.raises(IndexError):
            again["json"][8]
    typed = forebay.Ragged(np.arange(6, dtype="<u2").tobytes(), np.array([0, 4, 12]).tobytes(), "uint16")
    assert [list(values) for values in pickle.loads(pickle.dumps(typed))] == [[0, 1], [2, 3, 4, 5]]


def test_images_are_decoded_into_one_array(tmp_path: Path) -> None:
    write_images(tmp_path / "data")
    decode = {"jpg": "image:rrc:32,flip", "cls": "int"}
    options: dict[str, Any] = {"batch_size": 6, "decode": decode, "epochs": 2}
    with pytest.raises(forebay.CorruptDataError, match="field 'jpg'"):
        list(forebay.stream(tmp_path / "data", **options))
    options["bad"] = f"quarantine:9:{tmp_path / 'bad'}"
    first, second, third, fourth = forebay.stream(tmp_path / "data", **options)
    assert first["jpg"].shape == (6, 3, 32, 32)
    assert first["jpg"].dtype == np.uint8
    assert first["jpg"].std() > 10
    assert not np.array_equal(first["jpg"], third["jpg"])
    assert second["cls"].tolist() == [6, 8, 8, 9, 10, 11] == fourth["cls"].tolist()
    assert np.array_equal(second["jpg"][1], second["jpg"][2])
    lines = (tmp_path / "bad" / "bad-00000.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["0007"]
    with forebay.stream(tmp_path / "data", **options) as again:
        next(again)
        state = again.state_dict()
    with forebay.stream(tmp_path / "data", **options) as resumed:
        resumed.load_state_dict(state)
        next(resumed)
        assert np.array_equal(next(resumed)["jpg"], third["jpg"])
    with pytest.raises(forebay.InvalidInputError, match="rrc"):
        forebay.stream(tmp_path / "data", batch_size=6, decode={"jpg": "image:rcc:32"})


def test_tokens_need_to_be_told_apart(tmp_path: Path) -> None:
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "train.bin")
    told = {"name": "tokens", "tokens": 100, "dtype": "uint16"}
    batch = next(forebay.stream(tmp_path, batch_size=4, format=told))
    (field,) = set(batch) - {"__key__"}
    assert batch[field].shape == (4, 100)
    assert batch[field].reshape(-1).tolist() == list(range(400))
    for how in ("int", len):
        with pytest.raises(forebay.InvalidInputError, match="already"):
            forebay.stream(tmp_path, batch_size=4, format=told, decode={field: how})
    with pytest.raises(forebay.InvalidInputError, match="name"):
        forebay.stream(tmp_path, batch_size=4, format={"tokens": 100})
