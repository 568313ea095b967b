"""What streams tell of themselves: reports, traces, whose time it was."""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import SHARDS, keys, write_images

pytest.importorskip("numpy")


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
