"""Lives of streams: batches that outlive them, consumers that fail, threads and processes that share one."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import keys, value

pytest.importorskip("numpy")


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


def test_the_interpreter_ends_with_a_stream_under_way(data: Path, script: Callable[..., Any]) -> None:
    source = """
        import sys, forebay
        forebay.kept = forebay.stream(sys.argv[1], batch_size=10, epochs=None)
        forebay.batch = next(forebay.kept)
    """
    for _ in range(3):
        script(source, str(data))
