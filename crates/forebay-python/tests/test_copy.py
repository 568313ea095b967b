"""Copies between stores, and the cache."""

from __future__ import annotations

import http.server
import os
import threading
import uuid
from pathlib import Path

import forebay
import pytest


def test_an_object_is_copied_and_checked(tmp_path: Path) -> None:
    source = forebay.Store(tmp_path / "a")
    source.write("k", b"x" * 100_000)
    done = forebay.copy(tmp_path / "a" / "k", tmp_path / "b" / "other")
    assert (done.objects, done.bytes) == (1, 100_000)
    assert done.checked_by_store + done.checked_by_read_back == 1
    assert done.ledger.bytes >= 200_000
    assert (tmp_path / "b" / "other").read_bytes() == b"x" * 100_000
    with pytest.raises(forebay.AlreadyExistsError):
        forebay.copy(tmp_path / "a" / "k", tmp_path / "b" / "other", if_absent=True)
    with pytest.raises(FileNotFoundError):
        forebay.copy(tmp_path / "a" / "missing", tmp_path / "b" / "missing")
    with pytest.raises(forebay.InvalidInputError, match="verify"):
        forebay.copy(tmp_path / "a" / "k", tmp_path / "c", verify="maybe")  # type: ignore[arg-type]


def test_a_tree_is_copied(tmp_path: Path) -> None:
    source = forebay.Store(tmp_path / "a")
    for i in range(30):
        source.write(f"d{i % 2}/k{i}", b"%d" % i)
    url = f"mem://{uuid.uuid4().hex}/below"
    done = forebay.copy(tmp_path / "a", url, recursive=True, verify="read_back")
    assert done.objects == done.checked_by_read_back == 30
    target = forebay.Store(url)
    assert [row.key for row in target.list()] == [row.key for row in source.list()]
    assert target.read("d1/k29") == b"29"
    with pytest.raises(FileNotFoundError):
        forebay.copy(tmp_path / "missing", url, recursive=True)


def test_destinations_are_those_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_bytes(b"x")
    forebay.copy("f", "new/")
    assert (tmp_path / "new" / "f").read_bytes() == b"x"
    (tmp_path / "there").mkdir()
    forebay.copy("f", "there")
    assert (tmp_path / "there" / "f").read_bytes() == b"x"
    forebay.copy("f", "g", verify="read-back")
    assert (tmp_path / "g").read_bytes() == b"x"
    bucket = f"mem://{uuid.uuid4().hex}"
    forebay.copy("f", bucket)
    forebay.copy("f", f"{bucket}/d/")
    forebay.copy("f", f"{bucket}/e")
    assert [row.key for row in forebay.Store(bucket).list()] == ["d/f", "e", "f"]
    # Trees: a new name, and then into what is there by now.
    forebay.copy("new", "tree", recursive=True)
    assert (tmp_path / "tree" / "f").exists()
    forebay.copy("new", "tree", recursive=True)
    assert (tmp_path / "tree" / "new" / "f").exists()
    forebay.copy("new/", "slash/", recursive=True)
    assert (tmp_path / "slash" / "new" / "f").exists()
    forebay.copy("f", "single", recursive=True)
    assert (tmp_path / "single").read_bytes() == b"x"
    with pytest.raises(forebay.InvalidInputError, match="recursive"):
        forebay.copy("new", "other")
    with pytest.raises(forebay.InvalidInputError, match="slash"):
        forebay.copy("f/", "other")
    assert not (tmp_path / "other").exists()


def test_progress_is_told_by_the_waiting_thread(tmp_path: Path) -> None:
    source = forebay.Store(tmp_path / "a")
    for i in range(20):
        source.write(f"k{i}", b"x" * 10_000)
    told: list[tuple[int, int, int]] = []
    threads = set()

    def progress(bytes_done: int, bytes_total: int, objects_done: int) -> None:
        threads.add(threading.get_ident())
        told.append((bytes_done, bytes_total, objects_done))

    forebay.copy(tmp_path / "a", tmp_path / "b", recursive=True, progress=progress)
    assert told[-1] == (200_000, 200_000, 20)
    assert told == sorted(told)
    assert threads == {threading.get_ident()}


def test_what_progress_raises_stops_the_copy(tmp_path: Path) -> None:
    # The server gives one object and never ends the second, so the copy cannot be over before it is stopped.
    with Trickling() as url:
        calls = 0

        def progress(bytes_done: int, bytes_total: int, objects_done: int) -> None:
            nonlocal calls
            calls += 1
            assert (bytes_total, objects_done) in [(0, 0), (1 << 20, 0)]
            if calls == 3:
                raise RuntimeError("enough")

        with pytest.raises(RuntimeError, match="enough"):
            forebay.copy(f"{url}/never", tmp_path / "b", progress=progress)
    assert calls == 3
    assert os.listdir(tmp_path) == []


class Trickling:
    """A web server whose objects are announced and never come."""

    def __enter__(self) -> str:
        self.done = done = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(1 << 20))
                self.send_header("ETag", '"x"')
                self.send_header("Accept-Ranges", "bytes")
                self.end_headers()

            def do_GET(self) -> None:
                self.do_HEAD()
                done.wait()

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *args: object) -> None:
        self.done.set()
        self.server.shutdown()
        self.server.server_close()


def test_a_cache_keeps_what_was_read(tmp_path: Path) -> None:
    origin = forebay.Store(tmp_path / "origin")
    content = bytes(range(256)) * 40_000
    origin.write("k", content)
    cache = f"{tmp_path / 'cache'}:1GiB"
    store = forebay.Store(tmp_path / "origin", cache=cache, immutable=True)
    assert store.read("k") == content
    # Once everything is in, the origin is not needed any more. Blocks on their way in are copied to readers,
    # hits are not.
    again = store.read("k")
    while again.ledger.copied_bytes > 0:
        again = store.read("k")
    (tmp_path / "origin" / "k").unlink()
    other = forebay.Store(tmp_path / "origin", cache=cache, immutable=True)
    assert store.read("k") == content
    assert other.url == store.url
    assert any((tmp_path / "cache").rglob("*"))
    for bad in ["/nowhere", ":1GiB", "/x:lots", "/x:1", f"{tmp_path / 'origin'}:1GiB"]:
        with pytest.raises(forebay.InvalidInputError):
            forebay.Store(tmp_path / "origin", cache=bad)


def test_the_environment_puts_a_cache_before_remotes(s3_prefix: str, tmp_path: Path, script: object) -> None:
    source = """
        import pickle, sys, time, forebay
        url, local, cache = sys.argv[1:]
        content = b"x" * 100_000
        def is_cached(**options):
            store = pickle.loads(pickle.dumps(forebay.Store(url, **options)))
            store.write("k", content)
            # What is read goes into the cache behind the reader's back.
            for turn in range(50):
                buffer = store.read("k")
                assert buffer == content
                if "http" not in buffer.ledger.paths:
                    return True
                time.sleep(0.01)
            return False
        assert is_cached()
        assert not is_cached(cache="")
        assert is_cached(cache=cache)
        forebay.Store(local).write("k", content)
        assert repr(forebay.Store(local).__getnewargs_ex__()).count("'cache': ''") == 1
    """
    script(  # type: ignore[operator]
        source,
        f"s3://{s3_prefix}/cached",
        str(tmp_path / "local"),
        f"{tmp_path / 'named'}:1GiB",
        FOREBAY_CACHE=f"{tmp_path / 'cache'}:1GiB",
        FOREBAY_CACHE_IMMUTABLE="on",
    )
    assert any((tmp_path / "cache").rglob("*"))
    assert any((tmp_path / "named").rglob("*"))


def test_a_wrong_cache_variable_is_named(script: object) -> None:
    source = """
        import sys, forebay
        forebay.Store("mem://x")
        try:
            forebay.Store("http://127.0.0.1:9/")
        except forebay.InvalidInputError as error:
            assert sys.argv[1] in str(error), error
        else:
            raise SystemExit("accepted")
        forebay.Store("http://127.0.0.1:9/", cache="")
    """
    script(source, "lots", FOREBAY_CACHE="/nvme:lots")  # type: ignore[operator]
    perhaps = {"FOREBAY_CACHE": "cache:1GiB", "FOREBAY_CACHE_IMMUTABLE": "perhaps"}
    script(source, "perhaps", **perhaps)  # type: ignore[operator]
