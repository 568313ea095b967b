"""Streams that begin slowly: other threads go on meanwhile, and processes that are forked work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import write_shard

pytest.importorskip("numpy")


def test_threads_go_on_while_a_stream_begins(tmp_path: Path, script: Callable[..., Any]) -> None:
    write_shard(tmp_path / "train-000.tar", 0)
    # A trace that somebody must read before it can be opened, as of a folder that is far away.
    os.mkfifo(tmp_path / "slow.json")
    script(
        """
        import os, signal, sys, threading, time
        import forebay
        # Also where nobody gives the interpreter lock away.
        signal.alarm(40)
        folder = sys.argv[1]

        def stream(trace):
            with forebay.stream(folder + "/train-000.tar", batch_size=10, trace=trace) as batches:
                taken.append(sum(batch.size for batch in batches))

        def read():
            # Once a child has been asked for, which has to wait for the stream to begin.
            asked.wait()
            time.sleep(0.5)
            with open(folder + "/slow.json", "rb") as pipe:
                while pipe.read(1 << 16):
                    pass

        taken, asked = [], threading.Event()
        slow = threading.Thread(target=stream, args=(folder + "/slow.json",))
        threads = [slow, threading.Thread(target=read)]
        for thread in threads:
            thread.start()
        # Until it is there: nothing says so but that it has not gone on.
        time.sleep(1)
        assert not taken
        asked.set()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            stream(folder + "/other.json")
            os._exit(0 if taken[-1:] == [30] else 1)
        assert os.waitpid(child, 0)[1] == 0, "the child waited for a lock of its parent"
        for thread in threads:
            thread.join()
        assert taken == [30], taken
        """,
        str(tmp_path),
    )


def test_what_pins_memory_may_fork(tmp_path: Path, script: Callable[..., Any]) -> None:
    write_shard(tmp_path / "train-000.tar", 0)
    script(
        """
        import os, signal, sys
        import forebay
        # Also where nobody gives the interpreter lock away.
        signal.alarm(40)
        forked = []

        def pin(address, size):
            child = os.fork()
            if child == 0:
                os._exit(0)
            forked.append(os.waitpid(child, 0)[1])

        hooks = (pin, lambda *_: None)
        with forebay.stream(sys.argv[1] + "/train-000.tar", batch_size=10, pin=hooks) as batches:
            assert sum(batch.size for batch in batches) == 30
        assert set(forked) == {0}
        """,
        str(tmp_path),
    )
