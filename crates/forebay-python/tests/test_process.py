"""Forks, signals, threads and the end of the interpreter: nothing hangs, nothing crashes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import forebay
import pytest


def test_a_forked_child_works(tmp_path: Path, script: object) -> None:
    source = """
        import gc, os, sys, forebay
        store = forebay.Store(sys.argv[1])
        store.write("k", b"parent" * 100_000)
        kept = store.read("k")
        mutable = forebay.alloc(6)
        pid = os.fork()
        if pid == 0:
            # Old handles, old buffers, new stores: everything goes on.
            assert store.read("k") == b"parent" * 100_000
            store.write("child", kept)
            part = kept[6:12]
            assert part == b"parent"
            assert forebay.Store(sys.argv[1]).read("child") == kept
            assert [row.key for row in store.list()] == ["child", "k"]
            try:
                store.read_into("k", mutable)
            except forebay.UnsupportedError as error:
                assert "another process" in str(error)
            else:
                raise AssertionError("a buffer of the parent was read into")
            del kept, part, mutable
            gc.collect()
            grandchild = os.fork()
            if grandchild == 0:
                assert store.read("child", 0, 6) == b"parent"
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 0
            sys.stdout.flush()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert kept == b"parent" * 100_000
        assert store.read("child") == kept
        store.read_into("k", mutable)
        assert mutable.tobytes() == b"parent"
    """
    script(source, str(tmp_path))  # type: ignore[operator]


def test_a_forked_child_works_with_a_server(s3_prefix: str, script: object) -> None:
    # Connections of the parent are open when it forks; neither side may write on the other's.
    source = """
        import os, sys, threading, forebay
        store = forebay.Store(sys.argv[1])
        content = bytes(range(256)) * (40 << 12)
        store.write("k", content)
        stop = threading.Event()
        def work():
            while not stop.is_set():
                assert store.read("k") == content
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for turn in range(3):
            pid = os.fork()
            if pid == 0:
                try:
                    assert store.read("k") == content
                    store.write(f"child-{turn}", content)
                    target = bytearray(len(content))
                    store.read_into(f"child-{turn}", target)
                    assert target == content
                    assert f"child-{turn}" in [row.key for row in store.list()]
                    forebay.copy(f"{sys.argv[1]}/k", f"{sys.argv[1]}/copy-{turn}")
                    store.delete(f"child-{turn}")
                    os._exit(0)
                finally:
                    os._exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        stop.set()
        for thread in threads:
            thread.join()
        assert [row.key for row in store.list()] == ["copy-0", "copy-1", "copy-2", "k"]
    """
    script(source, f"s3://{s3_prefix}/fork")  # type: ignore[operator]


def test_forks_in_the_middle_of_reads(tmp_path: Path, script: object) -> None:
    # Threads hold every lock there is at some moment; children are forked at arbitrary ones.
    source = """
        import os, sys, threading, forebay
        store = forebay.Store(sys.argv[1])
        store.write("k", b"z" * (4 << 20))
        stop = threading.Event()
        def work():
            kept = []
            while not stop.is_set():
                kept.append(store.read("k"))
                kept = kept[-3:]
                store.write(threading.current_thread().name, kept[0][:100])
                list(store.list())
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        kept = [store.read("k", 0, 4096) for _ in range(10)]
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                try:
                    kept.clear()
                    assert store.read("k", 1, 100) == b"z" * 100
                    assert len(store.read_many(["k"] * 3)) == 3
                    store.write("child", b"x")
                    os._exit(0)
                finally:
                    os._exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        stop.set()
        for thread in threads:
            thread.join()
    """
    script(source, str(tmp_path))  # type: ignore[operator]


def test_multiprocessing_by_fork_and_spawn(tmp_path: Path, script: object) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys, forebay

            def work(job):
                store, key = job
                return store.read(key).tobytes()

            if __name__ == "__main__":
                store = forebay.Store(sys.argv[1])
                for i in range(8):
                    store.write(f"k{i}", b"%d" % i)
                for method in ("fork", "spawn"):
                    with multiprocessing.get_context(method).Pool(3) as pool:
                        got = pool.map(work, [(store, f"k{i}") for i in range(8)])
                    assert got == [b"%d" % i for i in range(8)], got
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "s")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_memory_stores_do_not_cross_forks(script: object) -> None:
    source = """
        import os, forebay
        store = forebay.Store("mem://here")
        store.write("k", b"x")
        pid = os.fork()
        if pid == 0:
            for attempt in (lambda: store.read("k"), lambda: forebay.Store("mem://here")):
                try:
                    attempt()
                except forebay.UnsupportedError as error:
                    assert "fork" in str(error)
                else:
                    os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert store.read("k") == b"x"
    """
    script(source)  # type: ignore[operator]


def test_listings_and_uploads_stay_with_their_process(tmp_path: Path, script: object) -> None:
    source = """
        import os, sys, forebay
        store = forebay.Store(sys.argv[1])
        store.write("a", b"x"); store.write("b", b"x")
        rows, upload = store.list(), store.upload("c")
        next(rows)
        pid = os.fork()
        if pid == 0:
            put_part = lambda: upload.put_part(0, b"x")
            for attempt in (lambda: next(rows), put_part, upload.complete, upload.abort):
                try:
                    attempt()
                except forebay.UnsupportedError:
                    continue
                os._exit(1)
            del rows, upload, put_part, attempt
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert next(rows).key == "b"
        upload.put_part(0, b"whole")
        upload.complete()
        assert store.read("c") == b"whole"
    """
    script(source, str(tmp_path))  # type: ignore[operator]


STALLING = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
def serve():
    while True:
        connection, _ = server.accept()
        held.append(connection)
        print("connected", flush=True)
held = []
threading.Thread(target=serve, daemon=True).start()
port = server.getsockname()[1]
"""


def test_ctrl_c_ends_a_read_that_stalls(tmp_path: Path) -> None:
    # The server takes connections and never answers; the read by itself would sit out its time limits.
    source = STALLING + textwrap.dedent(
        """
        import sys, forebay
        store = forebay.Store(f"http://127.0.0.1:{port}/")
        try:
            store.read("k", 0, 100)
        except KeyboardInterrupt:
            local = forebay.Store(sys.argv[1])
            local.write("k", b"still working")
            assert local.read("k") == b"still working"
            print("interrupted", flush=True)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "connected\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.splitlines()[-1] == "interrupted", out


def test_ctrl_c_in_a_loop_leaves_nothing_half_made(tmp_path: Path) -> None:
    source = textwrap.dedent(
        """
        import sys, forebay
        store = forebay.Store(sys.argv[1])
        data = forebay.alloc(32 << 20).freeze()
        print("ready", flush=True)
        try:
            while True:
                store.write("k", data)
        except KeyboardInterrupt:
            assert store.read("k") == data
            print("interrupted", flush=True)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", source, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    while not (tmp_path / "k").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "interrupted\n"), err
    assert os.listdir(tmp_path) == ["k"]


def test_the_interpreter_ends_with_work_under_way(tmp_path: Path, script: object) -> None:
    source = """
        import sys, threading, forebay
        store = forebay.Store(sys.argv[1])
        store.write("k", b"z" * (8 << 20))
        def work():
            while True:
                store.read("k")
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        kept = [store.read("k") for _ in range(5)]
        view = memoryview(kept[0])
        rows = store.list()
        forebay.kept = (kept, view, rows, store.upload("u"))
    """
    for _ in range(3):
        script(source, str(tmp_path))  # type: ignore[operator]


def test_no_optional_package_is_needed(tmp_path: Path, script: object) -> None:
    source = """
        import sys
        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {"numpy", "torch", "fsspec", "typing_extensions"}:
                    raise ImportError(f"{name} is blocked")
        sys.meta_path.insert(0, Block())
        import forebay
        store = forebay.Store(sys.argv[1])
        store.write("k", b"x")
        assert memoryview(store.read("k"))[0] == ord("x")
        try:
            import forebay.fsspec
        except ImportError as error:
            assert "fsspec is blocked" in str(error)
        else:
            raise SystemExit("fsspec was not blocked")
    """
    script(source, str(tmp_path))  # type: ignore[operator]


@pytest.mark.parametrize("call", ["read", "read_into", "write", "list", "copy"])
def test_other_threads_run_during(call: str, tmp_path: Path) -> None:
    store = forebay.Store(tmp_path / "store")
    content = b"x" * (1 << 20)
    store.write("k", content)
    target = bytearray(len(content))
    work = {
        "read": lambda: store.read("k"),
        "read_into": lambda: store.read_into("k", target),
        "write": lambda: store.write("w", content),
        "list": lambda: list(store.list()),
        "copy": lambda: forebay.copy(tmp_path / "store" / "k", tmp_path / "copy"),
    }[call]
    stop = threading.Event()
    turns = 0

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    switch = sys.getswitchinterval()
    # Nobody is made to yield any more: the other thread runs only when the call releases the lock.
    sys.setswitchinterval(1000)
    try:
        thread.start()
        before = turns
        calls = 0
        while turns == before and calls < 10_000:
            work()
            calls += 1
        assert turns > before
    finally:
        sys.setswitchinterval(switch)
        stop.set()
        thread.join()


@pytest.mark.parametrize("name", ["forebay", "forebay._forebay"])
def test_imports_cost_no_threads(name: str, script: object) -> None:
    done = script(f"import os, {name}; print(len(os.listdir('/proc/self/task')))")  # type: ignore[operator]
    assert done.stdout.strip() == "1"
