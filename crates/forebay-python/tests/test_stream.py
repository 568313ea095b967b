"""Streams: every sample once, as it is in the shards, on every rank, resumed or not."""

from __future__ import annotations

import copy
import gc
import io
import json
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest

np = pytest.importorskip("numpy")

FIXTURES = Path(__file__).parents[3] / "fixtures"
SHARDS = 4
SAMPLES = 30


def value(key: str) -> bytes:
    return (key * (1 + int(key[3:]) % 7)).encode()


def write_shard(path: Path, number: int, samples: int = SAMPLES) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(samples):
            key = f"{number:02}-{index:04}"
            label = {"cls": index, "shard": number}
            for suffix, content in [
                ("bin", value(key)),
                ("cls", str(index).encode()),
                ("json", json.dumps(label).encode()),
                ("txt", f"caption {key}".encode()),
            ]:
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def keys() -> list[str]:
    return [f"{number:02}-{index:04}" for number in range(SHARDS) for index in range(SAMPLES)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(SHARDS):
        write_shard(folder / f"train-{number:03}.tar", number)
    return folder


def names(stream: forebay.Stream) -> list[str]:
    return [key for batch in stream for key in batch["__key__"]]


def contents(batch: forebay.Batch) -> dict[str, list[Any]]:
    """Give the values of a batch as they compare."""
    return {name: [bytes(v) if isinstance(v, memoryview) else v for v in batch[name]] for name in batch}


def test_batches_have_what_the_shards_have(data: Path) -> None:
    with forebay.stream(data, batch_size=16, drop_last=False) as stream:
        assert len(stream) == 8
        assert stream.samples == SHARDS * SAMPLES
        assert [field["name"] for field in stream.schema] == ["bin", "cls", "json", "txt"]
        seen: list[str] = []
        for index, batch in enumerate(stream):
            assert isinstance(batch, dict)
            assert (batch.epoch, batch.index) == (0, index)
            assert set(batch) == {"bin", "cls", "json", "txt", "__key__"}
            for place, key in enumerate(batch["__key__"]):
                assert bytes(batch["bin"][place]) == value(key)
            seen += batch["__key__"]
        assert seen == keys()
        assert list(stream) == []


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


def write_images(folder: Path) -> None:
    folder.mkdir()
    image = (FIXTURES / "image" / "rgb.jpg").read_bytes()
    with tarfile.open(folder / "images.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(12):
            for suffix, content in [("jpg", image[: None if index != 7 else 50]), ("cls", b"%d" % index)]:
                member = tarfile.TarInfo(f"{index:04}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


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


def test_reports_are_of_the_whole_stream(tmp_path: Path) -> None:
    write_images(tmp_path / "data")
    options: dict[str, Any] = {"batch_size": 6, "decode": {"jpg": "image:rrc:16", "cls": "int"}, "epochs": 9}
    with forebay.stream(tmp_path / "data", bad="skip:1", **options) as stream:
        start = stream.state_dict()
        for _ in range(2):
            assert [len(next(stream)["cls"]) for _ in range(2)] == [6, 6]
            stream.load_state_dict(start)
        report = stream.report()
    assert report["samples"] == 24
    (bad,) = report["bad"]
    # Behind two headers of tars, and those of the files before.
    assert (bad["shard"], bad["key"], bad["index"]) == ("images.tar", "0007", 7)
    with tarfile.open(tmp_path / "data" / "images.tar") as tar:
        assert bad["offset"] == tar.getmember("0007.jpg").offset


def test_traces_say_what_was_done_when(data: Path, tmp_path: Path) -> None:
    with forebay.stream(data, batch_size=16, trace=tmp_path / "trace.json") as stream:
        waits = sum(1 for _ in stream)
    events = json.loads((tmp_path / "trace.json").read_text())
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    assert set(rows.values()) == {"read", "check", "queue", "collate", "consumer waits"}
    assert sum(1 for event in spans if rows[event["tid"]] == "consumer waits") == waits
    assert {event["args"]["shard"] for event in spans if rows[event["tid"]] == "read"} == set(range(SHARDS))
    assert all(event["dur"] >= 0 for event in spans)


def test_traces_of_ranks_and_of_later_streams_are_files_of_their_own(data: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 10, "shuffle": True, "lanes": 4}
    options["trace"] = tmp_path / "trace.json"
    for rank in range(2):
        with forebay.stream(data, rank=rank, world=2, **options) as stream:
            sum(1 for _ in stream)
    with forebay.stream(data, **options) as stream:
        next(stream)
        state = stream.state_dict()
        stream.load_state_dict(state)
        assert sum(1 for _ in stream) == 11
    with forebay.stream(data, **options) as stream:
        stream.load_state_dict(state)
        assert sum(1 for _ in stream) == 11
    found = sorted(path.name for path in tmp_path.glob("trace*"))
    assert found == ["trace-00000.json", "trace-00001.json", "trace.2.json", "trace.json"]
    waits = {
        name: sum(event.get("cat") == "consumer waits" for event in json.loads((tmp_path / name).read_text()))
        for name in found
    }
    assert waits == {"trace-00000.json": 6, "trace-00001.json": 6, "trace.2.json": 11, "trace.json": 12}


def test_filters_keep_some_samples(data: Path) -> None:
    options: dict[str, Any] = {"batch_size": 5, "filter": "cls < 10 and json.shard != 2"}
    with forebay.stream(data, **options) as stream:
        assert stream.samples == 30
        kept = names(stream)
    assert kept == [key for key in keys() if int(key[3:]) < 10 and key[:2] != "02"]
    with forebay.stream(data, **options) as stream:
        next(stream)
        state = stream.state_dict()
    with forebay.stream(data, **options) as stream:
        stream.load_state_dict(state)
        assert names(stream) == kept[5:]
    with pytest.raises(forebay.ForebayError), forebay.stream(data, batch_size=5) as stream:
        stream.load_state_dict(state)
    with pytest.raises(forebay.InvalidInputError):
        forebay.stream(data, batch_size=5, filter="cls <")


def test_several_data_sets_are_mixed_by_weight(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        write_shard(tmp_path / str(number) / "train.tar", number, 200)
    urls = [tmp_path / "0", tmp_path / "1"]
    options: dict[str, Any] = {"batch_size": 20, "weights": [3, 1], "shuffle": True, "lanes": 4, "epochs": 2}
    with forebay.stream(urls, **options) as stream:
        mixed = [batch["__key__"].list() for batch in stream]
    assert len(mixed) == 40
    shares = [sum(key.startswith("00-") for key in batch) for batch in mixed]
    assert all(14 <= share <= 16 for share in shares)
    with forebay.stream(urls, **options) as stream:
        for _ in range(5):
            next(stream)
        state = stream.state_dict()
    with forebay.stream(urls, **options) as stream:
        stream.load_state_dict(state)
        assert [batch["__key__"].list() for batch in stream] == mixed[5:]
    with pytest.raises(forebay.InvalidInputError, match="weights"):
        forebay.stream(urls, **{**options, "weights": [1]})


def test_results_that_are_kept_hold_up_no_stream(data: Path) -> None:
    (data / "large.tmp").write_bytes(bytes(8 << 20))
    program = f"""
        import forebay
        forebay.configure(buffer_memory="32MiB", part_size="1MiB")
        store = forebay.Store({str(data)!r})
        kept = [store.read("large.tmp") for _ in range(16)]
        with forebay.stream({str(data)!r} + "/train-{{000..003}}.tar", batch_size=10) as batches:
            print(sum(batch.size for batch in batches))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "120"


def test_an_index_can_be_kept(data: Path) -> None:
    forebay.stream(data, batch_size=16).close()
    assert not (data / "_forebay.fbi").exists()
    forebay.stream(data, batch_size=16, save_index=True).close()
    assert (data / "_forebay.fbi").exists()
    assert names(forebay.stream(data, batch_size=10, save_index=True)) == keys()


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


def test_transforms_and_fields(data: Path) -> None:
    stream = forebay.stream(data, batch_size=10, fields=["cls"], transform=lambda batch: sorted(batch))
    assert next(stream) == ["__key__", "cls"]
    with pytest.raises(forebay.InvalidInputError, match="jpg"):
        next(forebay.stream(data, batch_size=10, fields=["jpg"]))


def test_time_in_a_transform_is_not_the_consumers(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock that stands still but for transforms, and one that real waits do not come near.
    passed = 0.0
    monkeypatch.setattr("forebay.streaming.perf_counter", lambda: passed)
    failing = False

    def transform(batch: Any) -> Any:
        nonlocal passed
        passed += 1000.0
        if failing:
            raise KeyboardInterrupt
        return batch

    def stalls() -> dict[str, Any]:
        return stream.report()["stalls"]  # type: ignore[no-any-return]

    with forebay.stream(data, batch_size=10, transform=transform) as stream:
        assert stream.report() == {}
        next(stream)
        assert stalls()["transform_s"] == 1000
        assert 0 < stalls()["waited_share"] < 0.1
        failing = True
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        failing = False
        next(stream)
        assert stalls()["transform_s"] == 3000
        # More than the threads in Rust have seen: there is no time below zero.
        assert stalls()["consumer_s"] == 0
        stream.load_state_dict(stream.state_dict())
        assert stalls()["transform_s"] == 3000
        assert len(list(stream)) == 10
    assert stalls()["transform_s"] == 13_000
    with forebay.stream(data, batch_size=10) as stream:
        assert len(list(stream)) == 12
        told = stalls()
    assert told["transform_s"] == 0
    assert told["consumer_s"] > 0
    assert told["waited_share"] == pytest.approx(told["waited_s"] / (told["waited_s"] + told["consumer_s"]))


def test_the_consumer_has_its_time_but_for_transforms(data: Path) -> None:
    spent: dict[str, list[float]] = {"transform": [], "consumer": []}

    def spend(seconds: float, who: str) -> None:
        begun = time.perf_counter()
        while (now := time.perf_counter()) < begun + seconds:
            pass
        spent[who].append(now - begun)

    def transform(batch: Any) -> Any:
        spend(0.02, "transform")
        return batch

    with forebay.stream(data, batch_size=10, transform=transform) as stream:
        for _ in stream:
            stalls = stream.report()["stalls"]
            assert stalls["transform_s"] >= sum(spent["transform"])
            # What comes after a batch counts when the next is asked for; transforms before do not.
            whole = json.loads(stream._native.report())["stalls"]["consumer_s"]
            assert sum(spent["consumer"]) <= stalls["consumer_s"] <= whole - sum(spent["transform"][:-1])
            spend(0.01, "consumer")


def test_what_lies_before_a_state_that_is_loaded_is_nobodys_time(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0.0
    monkeypatch.setattr("forebay.streaming.perf_counter", lambda: passed)

    def transform(batch: Any) -> Any:
        nonlocal passed
        passed += 1000.0
        return batch

    with forebay.stream(data, batch_size=10, transform=transform) as stream:
        for turn in range(1, 4):
            next(stream)
            # Waited for by nobody, and no part of what the threads in Rust take for the consumer's.
            assert stream._transform_s_before == 0
            before = json.loads(stream._native.report())["stalls"]["consumer_s"]
            assert before == 0
            stream.load_state_dict(stream.state_dict())
            assert stream.report()["stalls"]["transform_s"] == 1000 * turn
        next(stream)
        next(stream)
        assert stream._transform_s_before == 1000
        assert json.loads(stream._native.report())["stalls"]["consumer_s"] > 0


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_every_epoch(data: Path, world: int) -> None:
    epochs: list[list[str]] = [[], []]
    for rank in range(world):
        options = {"batch_size": 5, "shuffle": True, "seed": 3, "lanes": 8, "epochs": 2}
        for batch in forebay.stream(data, rank=rank, world=world, **options):  # type: ignore[arg-type]
            epochs[batch.epoch] += batch["__key__"]
    assert [sorted(epoch) for epoch in epochs] == [keys(), keys()]
    assert epochs[0] != epochs[1]


def test_the_launcher_says_which_rank(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"batch_size": 5, "shuffle": True, "lanes": 4}
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(forebay.InvalidInputError, match="WORLD_SIZE"):
        forebay.stream(data, **options)  # type: ignore[arg-type]
    monkeypatch.setenv("WORLD_SIZE", "2")
    launched = names(forebay.stream(data, **options))  # type: ignore[arg-type]
    assert launched == names(forebay.stream(data, rank=1, world=2, **options))  # type: ignore[arg-type]
    assert len(launched) == len(keys()) // 2
    with pytest.raises(forebay.InvalidInputError, match="go together"):
        forebay.stream(data, rank=1, **options)  # type: ignore[arg-type]


def test_a_state_goes_on_where_it_was(data: Path) -> None:
    options: dict[str, Any] = {"batch_size": 12, "shuffle": True, "seed": 9, "lanes": 4}
    whole = names(forebay.stream(data, **options))
    first = forebay.stream(data, **options)
    assert first.report() == {}
    begun = [key for _ in range(4) for key in next(first)["__key__"]]
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1024
    second = forebay.stream(data, **options)
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert begun + names(second) == whole
    # One that is under way goes back.
    next(first)
    first.load_state_dict(state)
    assert begun + names(first) == whole
    # On two ranks, with the same samples per step.
    rest: list[str] = []
    for rank in range(2):
        part = forebay.stream(data, **{**options, "batch_size": 6}, rank=rank, world=2)
        part.load_state_dict(state)
        rest += names(part)
    assert sorted(begun + rest) == sorted(whole)
    with pytest.raises(forebay.PreconditionError, match="seed was 9 and is 8"):
        forebay.stream(data, **{**options, "seed": 8}).load_state_dict(state)
    with pytest.raises(forebay.CorruptDataError):
        first.load_state_dict({"version": "x"})


def test_fingerprints_name_what_ranks_have_in_common(data: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 6, "shuffle": True, "lanes": 4}

    def fingerprint(url: Any = data, **others: Any) -> str:
        return forebay.stream(url, **{**options, **others}).fingerprint

    own = fingerprint()
    assert len(bytes.fromhex(own)) == 8
    ranks = [fingerprint(rank=rank, world=2, batch_size=3) for rank in range(2)]
    assert ranks == [own, own]
    # What each rank may choose for itself.
    assert fingerprint(fields=["cls"], threads=1, decode={"cls": "int"}, epochs=2) == own
    with forebay.stream(data, **options) as stream:
        next(stream)
        assert stream.fingerprint == own
    assert stream.fingerprint == own
    # Elsewhere, and with an index.
    copied = shutil.copytree(data, tmp_path / "copied")
    assert fingerprint(copied, save_index=True) == fingerprint(copied) == own
    write_shard(copied / "train-003.tar", 3, SAMPLES - 1)
    (copied / "_forebay.fbi").unlink()
    others = [
        fingerprint(copied),
        fingerprint(seed=1),
        fingerprint(batch_size=5),
        fingerprint(filter="cls < 10"),
        fingerprint([data, data], weights=[1, 1]),
        fingerprint([data, data], weights=[2, 1]),
    ]
    assert len({own, *others}) == len(others) + 1


def test_closed_streams_tell_where_they_stood(data: Path) -> None:
    options: dict[str, Any] = {"batch_size": 12, "shuffle": True, "lanes": 4}
    whole = names(forebay.stream(data, **options))
    begun: list[str] = []
    with pytest.raises(KeyboardInterrupt), forebay.stream(data, **options) as stream:
        for batch in stream:
            begun += batch["__key__"]
            if batch.index == 3:
                raise KeyboardInterrupt
    state = stream.state_dict()
    assert state["samples"] == len(begun) == 48
    assert stream.report()["samples"] == 48
    assert (len(stream), stream.samples) == (10, len(keys()))
    assert [field["name"] for field in stream.schema] == ["bin", "cls", "json", "txt"]
    stream.close()
    assert stream.state_dict() == state
    with forebay.stream(data, **options) as again:
        again.load_state_dict(state)
        assert begun + names(again) == whole
    for use in (lambda: next(stream), lambda: stream.load_state_dict(state)):
        with pytest.raises(forebay.InvalidInputError, match="closed"):
            use()
    unused = forebay.stream(data, **options)
    unused.close()
    assert (unused.state_dict()["samples"], unused.report()) == (0, {})


def test_reports_tell_what_was_done(data: Path) -> None:
    stream = forebay.stream(data, batch_size=10)
    for _batch in stream:
        pass
    report = stream.report()
    assert report["samples"] == len(keys())
    assert report["bad_samples"] == 0
    assert report["stalls"]["batches"] == 12
    assert report["stalls"]["waited_s"] >= report["stalls"]["first_batch_s"] > 0
    assert set(report["stalls"]["blame"]) >= {"store_s", "cache_s", "disk_s", "parse_s", "collate_s"}
    assert report["ledger"]["paths"]


def test_the_second_run_reads_from_the_cache(s3_prefix: str, data: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 3, "drop_last": False}
    # Made beside the files: what is compared is how they are streamed, not how they are indexed.
    with forebay.stream(data, save_index=True, **options) as stream:
        local = [contents(batch) for batch in stream]
    url = f"s3://{s3_prefix}/stream"
    store = forebay.Store(url)
    for path in data.iterdir():
        store.write(path.name, path.read_bytes())
    cache = f"{tmp_path}/cache:64MiB"

    def run() -> tuple[list[Any], dict[str, Any]]:
        with forebay.stream(url, cache=cache, **options) as stream:
            return [contents(batch) for batch in stream], stream.report()

    def bytes_by_http(report: dict[str, Any]) -> int:
        return sum(path["bytes"] for name, path in report["ledger"]["paths"].items() if "http" in name)

    batches, first = run()
    assert batches == local
    assert bytes_by_http(first) > 0
    batches, second = run()
    assert batches == local
    assert bytes_by_http(second) == 0
    assert sum(path["bytes"] for path in second["ledger"]["paths"].values()) > 0
    assert second["stalls"]["blame"]["store_s"] == 0
    with forebay.stream(url, **options) as stream:
        assert [contents(batch) for batch in stream] == local
        assert bytes_by_http(stream.report()) > 0


def test_batches_outlive_their_stream(data: Path) -> None:
    with forebay.stream(data, batch_size=10, epochs=None) as stream:
        batches = [next(stream) for _ in range(3)]
    with pytest.raises(forebay.InvalidInputError, match="closed"):
        next(stream)
    del stream
    gc.collect()
    for batch in batches:
        assert [bytes(view) for view in batch["bin"]] == [value(key) for key in batch["__key__"]]


def test_consumers_may_fail_or_go_away(data: Path) -> None:
    stream = forebay.stream(data, batch_size=10)
    with pytest.raises(ZeroDivisionError):
        for batch in stream:
            batch.size / 0
    assert next(stream)["__key__"][0] == "00-0010"
    stream._transform = lambda batch: {}["x"]
    with pytest.raises(KeyError):
        next(stream)
    stream._transform = None
    assert next(stream)["__key__"][0] == "00-0020"
    del stream
    gc.collect()
    for _ in range(20):
        next(forebay.stream(data, batch_size=10, epochs=None, shuffle=True))


def test_what_does_not_fit_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(forebay.InvalidInputError, match="63 or 66"):
        forebay.stream(data, batch_size=5, shuffle=True, rank=0, world=3)
    with pytest.raises(forebay.NotFoundError):
        forebay.stream(tmp_path / "nothing", batch_size=5)
    with pytest.raises(forebay.InvalidInputError, match="skip"):
        forebay.stream(data, batch_size=5, bad="ignore")
    with pytest.raises(forebay.InvalidInputError):
        forebay.stream(data, batch_size=5, window="much")
    with pytest.raises(TypeError):
        forebay.stream(data, batch_size="5")  # type: ignore[arg-type]
    with pytest.raises(forebay.InvalidInputError, match="batch_size"):
        forebay.stream(data, batch_size=0)


def test_arguments_that_cannot_be_are_named(data: Path) -> None:
    for name in (
        "batch_size",
        "seed",
        "epochs",
        "lanes",
        "threads",
        "limit",
        "window",
        "block_size",
        "memory",
    ):
        for number in (-1, 1 << 64, 2.5):
            given: dict[str, Any] = {"batch_size": 5, name: number}
            kind = TypeError if number == 2.5 else forebay.InvalidInputError
            with pytest.raises(kind, match=rf"^{name} .*cannot be {number}"):
                forebay.stream(data, **given)
    with pytest.raises(forebay.InvalidInputError, match="rank cannot be -1"):
        forebay.stream(data, batch_size=5, rank=-1, world=2)
    assert len(forebay.stream(data, batch_size=np.int64(5), memory=np.int64(1 << 27))) == 24
    with pytest.raises(forebay.InvalidInputError, match="no data set in the list"):
        forebay.stream([], batch_size=5)
    for decode, words in [("int", "a dict says how"), ({"cls": 5}, "how 'cls' is decoded, not 5")]:
        with pytest.raises(forebay.InvalidInputError, match=words):
            forebay.stream(data, batch_size=5, decode=decode)  # type: ignore[arg-type]


def test_one_field_needs_no_list(data: Path) -> None:
    assert set(next(forebay.stream(data, batch_size=5, fields="cls"))) == {"cls", "__key__"}
    with pytest.raises(forebay.InvalidInputError, match="'jpg'"):
        forebay.stream(data, batch_size=5, fields="jpg")


def test_states_that_are_none_are_refused(data: Path) -> None:
    stream = forebay.stream(data, batch_size=5)
    for state in ("x", None, [("epoch", 1)], {"epoch": object()}):
        with pytest.raises(forebay.InvalidInputError, match="a state is a dict as"):
            stream.load_state_dict(state)  # type: ignore[arg-type]
    assert len(names(stream)) == len(keys())


def test_threads_that_share_a_stream_are_told(data: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def pin(address: int, size: int) -> None:
        inside.set()
        go_on.wait(30)

    with forebay.stream(data, batch_size=5, pin=(pin, lambda address, size: None)) as stream:
        taken: list[Any] = []
        thread = threading.Thread(target=lambda: taken.append(next(stream)))
        thread.start()
        try:
            assert inside.wait(30)
            state = {"version": 1}
            uses = (stream.__next__, stream.skip, stream.state_dict, stream.report, stream.close)
            for use in (*uses, lambda: stream.load_state_dict(state)):
                with pytest.raises(forebay.InvalidInputError, match="one thread at a time"):
                    use()
            assert len(stream) == 24
        finally:
            go_on.set()
            thread.join()
        assert taken[0]["__key__"].list() == keys()[:5]
        assert next(stream)["__key__"].list() == keys()[5:10]


def test_a_transform_of_one_thread_keeps_others_out(data: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def transform(batch: Any) -> Any:
        inside.set()
        go_on.wait(30)
        return batch["__key__"].list()

    with forebay.stream(data, batch_size=5, transform=transform) as stream:
        taken: list[Any] = []
        thread = threading.Thread(target=lambda: taken.append(next(stream)))
        thread.start()
        try:
            assert inside.wait(30)
            with pytest.raises(forebay.InvalidInputError, match="one thread at a time"):
                next(stream)
        finally:
            go_on.set()
            thread.join()
        assert [*taken, next(stream)] == [keys()[:5], keys()[5:10]]


def test_a_batch_that_always_fails_can_be_left_out(data: Path) -> None:
    def transform(batch: Any) -> Any:
        if batch.index == 1:
            raise ValueError("this one")
        return batch["__key__"].list()

    with forebay.stream(data, batch_size=5, transform=transform) as stream:
        first = next(stream)
        stream.skip()
        for _ in range(2):
            with pytest.raises(ValueError, match="this one"):
                next(stream)
        stream.skip()
        assert [first, next(stream)] == [keys()[:5], keys()[10:15]]


def test_samples_that_lanes_leave_out_are_told(data: Path) -> None:
    count = len(keys())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        forebay.stream(data, batch_size=1, shuffle=True, lanes=count - 1, rank=0, world=1)
        forebay.stream(data, batch_size=1, shuffle=True, lanes=1, rank=0, world=1)
    assert not [note for note in told if "left out of every epoch" in str(note.message)]
    lanes = count // 2 + 1
    with pytest.warns(UserWarning, match=f"{count - lanes} of {count} samples are left out of every epoch"):
        forebay.stream(data, batch_size=1, shuffle=True, lanes=lanes, rank=0, world=1)


def test_damage_is_named(tmp_path: Path) -> None:
    # Changed behind the index that was made when the stream was opened.
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "a.tar"
    write_shard(path, 0)
    stream = forebay.stream(folder, batch_size=10)
    content = bytearray(path.read_bytes())
    at = content.index(value("00-0013") + b"\0")
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises((forebay.CorruptDataError, forebay.PreconditionError), match=r"a\.tar"):
        names(stream)


def test_a_forked_child_is_told(data: Path, script: Callable[..., Any]) -> None:
    source = """
        import os, sys, forebay
        stream = forebay.stream(sys.argv[1], batch_size=10)
        batch = next(stream)
        pid = os.fork()
        if pid == 0:
            try:
                next(stream)
            except forebay.UnsupportedError as error:
                assert "another process" in str(error)
            else:
                os._exit(1)
            assert batch["__key__"][0] == "00-0000"
            assert len(forebay.stream(sys.argv[1], batch_size=10).__next__()["__key__"]) == 10
            del stream, batch
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert next(stream)["__key__"][0] == "00-0010"
    """
    script(source, str(data))


def test_ctrl_c_loses_no_batch(data: Path) -> None:
    source = textwrap.dedent(
        """
        import sys, forebay
        stream = forebay.stream(sys.argv[1], batch_size=10, epochs=None)
        count = 0
        try:
            while True:
                batch = next(stream)
                count += 1
                if count == 1:
                    print("ready", flush=True)
        except KeyboardInterrupt:
            pass
        state = stream.state_dict()
        done = 12 * state["epoch"] + state["samples"] // 10
        # The last one may have been on its way to the variable.
        assert done - count in (0, 1), (done, count)
        batch = next(stream)
        assert 12 * batch.epoch + batch.index == done, (batch.epoch, batch.index, done)
        stream.close()
        print("interrupted", flush=True)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "interrupted\n"), err


def test_the_interpreter_ends_with_a_stream_under_way(data: Path, script: Callable[..., Any]) -> None:
    source = """
        import sys, forebay
        forebay.kept = forebay.stream(sys.argv[1], batch_size=10, epochs=None)
        forebay.batch = next(forebay.kept)
    """
    for _ in range(3):
        script(source, str(data))


def test_numpy_is_asked_for_in_words(data: Path, script: Callable[..., Any]) -> None:
    source = """
        import sys
        sys.modules["numpy"] = None
        import forebay
        stream = forebay.stream(sys.argv[1], batch_size=10)
        assert len(stream) == 12
        try:
            next(stream)
        except ImportError as error:
            assert "forebay[numpy]" in str(error)
        else:
            raise SystemExit("numpy was not missed")
    """
    script(source, str(data))


def test_what_was_not_given_comes_again(data: Path) -> None:
    failing = True

    def transform(batch: Any) -> Any:
        if batch.index == 1 and failing:
            raise KeyboardInterrupt
        return batch

    with forebay.stream(data, batch_size=5, shuffle=True, transform=transform) as stream:
        first = next(stream)
        state = stream.state_dict()
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                next(stream)
            assert stream.state_dict() == state
        with forebay.stream(data, batch_size=5, shuffle=True) as other:
            other.load_state_dict(state)
            expected = next(other)
        failing = False
        second = next(stream)
        assert (first.index, second.index) == (0, 1)
        assert list(second["__key__"]) == list(expected["__key__"])
        assert stream.state_dict() != state
        stream.load_state_dict(state)
        assert next(stream).index == 1


def test_an_interruption_at_any_time_loses_no_batch(data: Path) -> None:
    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for attempt in range(30):
            stream = forebay.stream(data, batch_size=1, shuffle=True, epochs=None)
            given = 0
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.005 + 0.0007 * attempt)
                for _ in stream:
                    given += 1
            except KeyboardInterrupt:
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            state = stream.state_dict()
            done = state["epoch"] * len(stream) + state["samples"]
            # The loop may have been given a batch that it had not counted yet.
            assert done - given in (0, 1), (done, given, state)
            assert done == stream._given
            stream.close()
    finally:
        signal.signal(signal.SIGALRM, before)
