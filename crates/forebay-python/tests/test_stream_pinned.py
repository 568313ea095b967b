"""Memory of batches that is pinned, by whoever has a device, and unpinned again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest

pytest.importorskip("numpy")


def test_the_memory_of_batches_can_be_pinned(data: Path) -> None:
    pinned: dict[int, int] = {}

    def pin(address: int, size: int) -> None:
        pinned[address] = size

    with forebay.stream(data, batch_size=8, pin=(pin, lambda address, _size: pinned.pop(address))) as stream:
        batch = next(stream)
        ((start, size),) = pinned.items()
        address = batch["bin"].bytes.__array_interface__["data"][0]
        assert start <= address < start + size
    assert pinned, "the batch is still there"
    del batch, stream
    gc.collect()
    assert not pinned

    def refuse(address: int, size: int) -> None:
        raise OSError("no device")

    with pytest.raises(forebay.UnsupportedError, match="no device"):
        next(forebay.stream(data, batch_size=8, pin=(refuse, refuse)))


def test_programs_end_while_memory_is_unpinned(data: Path, script: Callable[..., Any]) -> None:
    # Threads that want the interpreter lock when Python ends are taken away in the middle of what they do.
    source = """
        import sys, threading, time, forebay
        threads = set()
        def unpin(*_):
            threads.add(threading.get_ident())
            time.sleep(0.3 if threading.get_ident() != threading.main_thread().ident else 0)
        # Whoever has the last piece of the memory unpins it: a thread of ours, now and then.
        for _ in range(100):
            stream = forebay.stream(sys.argv[1], batch_size=8, pin=(lambda *_: None, unpin))
            next(stream)
            stream.close()
            del stream
            if threads - {threading.main_thread().ident}:
                break
        assert threads - {threading.main_thread().ident}
    """
    for _ in range(3):
        assert "terminate" not in script(source, str(data)).stderr
    # In a child, the call that its parent is in is nobody's.
    forked = """
        import os, signal, sys, threading, forebay
        begun, over = threading.Event(), threading.Event()
        def unpin(*_):
            if threading.get_ident() != threading.main_thread().ident:
                begun.set()
                over.wait(60)
        for _ in range(100):
            stream = forebay.stream(sys.argv[1], batch_size=8, pin=(lambda *_: None, unpin))
            next(stream)
            stream.close()
            del stream
            if begun.is_set():
                break
        assert begun.is_set()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0, "the child waited for a call of its parent"
        over.set()
    """
    script(forked, str(data))
