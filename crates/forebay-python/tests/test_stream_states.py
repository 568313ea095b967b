"""States of streams: going on where a run stood, and nothing lost to whoever interrupts it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import SAMPLES, damage, keys, names, out_of_reach, write_shard

pytest.importorskip("numpy")


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


def test_a_stream_that_failed_tries_once_more(data: Path) -> None:
    forebay.stream(data, batch_size=10, save_index=True).close()
    stream = forebay.stream(data, batch_size=10, epochs=2)
    with out_of_reach(data):
        for _ in range(2):
            with pytest.raises(forebay.NotFoundError):
                next(stream)
    assert names(stream) == keys() * 2
    assert stream.report()["samples"] == 2 * len(keys())
    damage(data, "01-0015")
    stream = forebay.stream(data, batch_size=10)
    assert names(next(stream) for _ in range(4)) == keys()[:40]
    state = stream.state_dict()
    for _ in range(2):
        with pytest.raises(forebay.CorruptDataError, match="01-0015"):
            next(stream)
        assert stream.state_dict() == state
    assert stream.report()["bad_samples"] == 1


def test_epochs_behind_one_that_other_ranks_began_are_whole(data: Path) -> None:
    options: dict[str, Any] = {"epochs": 3, "seed": 4, "shuffle": True, "lanes": 4}
    first = forebay.stream(data, batch_size=8, **options)
    for _ in range(3):
        next(first)
    # 96 samples are left of 120: two batches of 40, where whole epochs have three.
    second = forebay.stream(data, batch_size=40, **options)
    assert len(second) == 3
    second.load_state_dict(first.state_dict())
    assert len(second) == 2
    # Behind the last batch of an epoch, it is that of the next one.
    seen = [(batch.epoch, len(second)) for batch in second]
    assert seen == [(0, 2), (0, 3)] + [(1, 3)] * 3 + [(2, 3)] * 3
    # Of 8 samples that are left, none is full: the next epoch comes.
    for _ in range(11):
        next(first)
    second.load_state_dict(first.state_dict())
    assert len(second) == 3
    assert [batch.epoch for batch in second] == [1, 1, 1, 2, 2, 2]


def test_states_that_are_none_are_refused(data: Path) -> None:
    stream = forebay.stream(data, batch_size=5)
    for state in ("x", None, [("epoch", 1)], {"epoch": object()}):
        with pytest.raises(forebay.InvalidInputError, match="a state is a dict as"):
            stream.load_state_dict(state)  # type: ignore[arg-type]
    assert len(names(stream)) == len(keys())


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
