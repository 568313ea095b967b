"""The verbs of a store, on a directory and in memory."""

from __future__ import annotations

import pickle
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forebay
import pytest


@pytest.fixture(params=["file", "mem", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> forebay.Store:
    if request.param == "file":
        return forebay.Store(tmp_path / "store")
    if request.param == "mem":
        return forebay.Store(f"mem://{uuid.uuid4().hex}")
    prefix = request.getfixturevalue("s3_prefix")
    return forebay.Store(f"s3://{prefix}/{uuid.uuid4().hex}")


def pattern(size: int, seed: int = 1) -> bytes:
    return bytes((i * 31 + seed * 17 + (i >> 8)) & 255 for i in range(min(size, 65536))) * (size // 65536 + 1)


def test_what_is_written_is_read(store: forebay.Store) -> None:
    content = pattern(100_000)[:100_000]
    done = store.write("a/b", content)
    assert done.size == 100_000
    assert done.ledger.bytes == 100_000
    assert done.ledger.copied_bytes >= 100_000, "bytes objects are copied once, and the ledger says so"
    whole = store.read("a/b")
    assert whole == content
    assert len(whole) == whole.nbytes == 100_000
    assert whole.ledger.bytes == 100_000
    assert store.read("a/b", 10, 20) == content[10:30]
    assert store.read("a/b", offset=99_990) == content[99_990:]
    assert store.read("a/b", 100_000) == b""
    assert store.read("a/b", 5, 0) == b""


def test_empty_objects(store: forebay.Store) -> None:
    store.write("empty", b"")
    assert store.head("empty").size == 0
    assert store.read("empty") == b""
    assert bytes(store.read("empty")) == b""


def test_ranges_beyond_the_object_are_refused(store: forebay.Store) -> None:
    store.write("k", b"0123456789")
    for offset, length in [(0, 11), (10, 1), (11, None), (11, 0)]:
        with pytest.raises(forebay.InvalidInputError):
            store.read("k", offset, length)


def test_read_into_any_writable_buffer(store: forebay.Store) -> None:
    store.write("k", b"0123456789")
    foreign = bytearray(4)
    copied = store.read_into("k", foreign, 3).copied_bytes
    assert foreign == b"3456"
    ours = forebay.alloc(10)
    address = ours.address
    store.read_into("k", ours)
    assert ours.tobytes() == b"0123456789"
    assert ours.address == address
    # A store may have to copy on its own; the border to Python adds a copy for memory of others only.
    assert copied == store.read_into("k", ours, 3, 4).copied_bytes + 4
    store.read_into("k", ours)
    with memoryview(ours) as view:
        view[:] = b"-" * 10
    store.read_into("k", ours, 2, 3)
    assert ours.tobytes() == b"234-------", "only the front is touched"
    with pytest.raises(BufferError):
        store.read_into("k", b"immutable!")
    with pytest.raises(forebay.InvalidInputError):
        store.read_into("k", bytearray(3), 0, 4)
    with pytest.raises(TypeError):
        store.read_into("k", 7)  # type: ignore[arg-type]


def test_a_buffer_survives_a_failed_read(store: forebay.Store) -> None:
    store.write("k", b"0123456789")
    buffer = forebay.alloc(10)
    for _ in range(3):
        with pytest.raises(forebay.NotFoundError):
            store.read_into("missing", buffer)
    store.read_into("k", buffer)
    assert buffer.tobytes() == b"0123456789"


def test_buffers_are_written_without_a_copy(store: forebay.Store) -> None:
    source = forebay.alloc(1 << 20)
    with memoryview(source) as view:
        view[:] = pattern(1 << 20)[: 1 << 20]
    mutable = store.write("m", source)
    frozen = store.write("f", source.freeze())
    for done in (mutable, frozen):
        assert done.ledger.copied_bytes == 0, str(done.ledger)
    assert store.read("m") == store.read("f") == pattern(1 << 20)[: 1 << 20]


def test_if_absent(store: forebay.Store) -> None:
    store.write("k", b"first", if_absent=True)
    with pytest.raises(forebay.AlreadyExistsError):
        store.write("k", b"second", if_absent=True)
    assert store.read("k") == b"first"
    store.write("k", b"third")
    assert store.read("k") == b"third"


def test_read_many_keeps_the_order(store: forebay.Store) -> None:
    for i in range(40):
        store.write(f"k{i}", b"%04d" % i)
    results = store.read_many(f"k{i}" for i in reversed(range(40)))
    assert [bytes(result) for result in results] == [b"%04d" % i for i in reversed(range(40))]
    parts = store.read_many([("k1", 2, 2), ("k2", 3, None), "k3"])
    assert [bytes(part) for part in parts] == [b"01", b"2", b"0003"]
    assert store.read_many([]) == []
    with pytest.raises(forebay.NotFoundError):
        store.read_many(["k1", "missing"])
    with pytest.raises(TypeError):
        store.read_many([7])  # type: ignore[list-item]


def test_head_and_delete(store: forebay.Store) -> None:
    store.write("k", b"abc")
    meta = store.head("k")
    assert (meta.key, meta.size) == ("k", 3)
    assert meta.modified is not None
    assert meta.modified > 1_500_000_000
    assert store.read("k", version=meta.version) == b"abc"
    store.write("k", b"defg")
    with pytest.raises(forebay.PreconditionError):
        store.read("k", version=meta.version)
    store.delete("k")
    store.delete("k")
    with pytest.raises(forebay.NotFoundError):
        store.head("k")


def test_listing_streams_in_order(store: forebay.Store) -> None:
    keys = [f"d{i % 3}/k{i:04}" for i in range(300)]
    for key in keys:
        store.write(key, b"x")
    assert [row.key for row in store.list()] == sorted(keys)
    assert [row.key for row in store.list("d1/")] == sorted(key for key in keys if key.startswith("d1/"))
    level = list(store.list(recursive=False))
    assert [type(row) for row in level] == [forebay.Prefix] * 3
    assert [row.key for row in level] == ["d0", "d1", "d2"]
    assert list(store.list("nothing")) == []
    rows = store.list()
    assert next(rows).key == "d0/k0000"
    del rows


def test_uploads_appear_when_complete(store: forebay.Store) -> None:
    upload = store.upload("big")
    part = upload.part_bytes
    content = pattern(2 * part + 5)[: 2 * part + 5]
    with ThreadPoolExecutor(3) as pool:
        pieces = [content[:part], content[part : 2 * part], content[2 * part :]]
        ledgers = list(pool.map(upload.put_part, range(3), pieces))
    assert sum(ledger.bytes for ledger in ledgers) == len(content)
    with pytest.raises(forebay.NotFoundError):
        store.head("big")
    assert upload.complete().size == len(content)
    assert store.read("big") == content
    with pytest.raises(RuntimeError, match="stop"), store.upload("other") as other:
        other.put_part(0, b"half")
        raise RuntimeError("stop")
    with pytest.raises(forebay.NotFoundError):
        store.head("other")
    with store.upload("third") as third:
        third.put_part(0, b"whole")
    assert store.read("third") == b"whole"


def test_capabilities_are_proofs(store: forebay.Store) -> None:
    store.write("k", b"x")
    found = store.capabilities()
    assert found["range"]
    assert found["range"].state == "shown"
    assert set(found) == {
        "range",
        "version_match",
        "put_if_absent",
        "upload_if_absent",
        "checksum",
        "upload_checksum",
        "multipart",
    }


def test_large_reads_from_many_threads(store: forebay.Store) -> None:
    size = 20 << 20
    content = pattern(size)[:size]
    store.write("big", content)
    gate = threading.Barrier(8)

    def read(i: int) -> bool:
        gate.wait()
        return bool(store.read("big", i, size - i) == memoryview(content)[i:])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_results_may_be_kept_beyond_the_pool(tmp_path: Path, script: object) -> None:
    # Memory of results is the caller's: keeping more of it than the pool has must neither wait nor fail.
    source = """
        import sys, forebay
        forebay.configure(buffer_memory="4MiB")
        store = forebay.Store(sys.argv[1])
        store.write("k", b"y" * (1 << 20))
        kept = [store.read("k") for _ in range(16)]
        assert all(buffer == b"y" * (1 << 20) for buffer in kept)
        store.write("huge", b"z" * (6 << 20))
        assert store.read("huge") == b"z" * (6 << 20)
    """
    script(source, str(tmp_path / "s"))  # type: ignore[operator]


def test_the_url_may_name_the_object(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"hello")
    for url in (path, str(path), f"file://{path}"):
        store = forebay.Store(url)
        assert store.read() == b"hello"
        assert store.read(offset=1, length=3) == b"ell"
        assert store.head().size == 5


def test_context_manager_and_repr(tmp_path: Path) -> None:
    with forebay.Store(tmp_path) as store:
        store.write("k", b"x")
        kept = store.read("k")
        assert str(tmp_path) in repr(store)
        assert store.url == str(tmp_path)
    assert kept == b"x"
    with pytest.raises(forebay.InvalidInputError, match="closed"):
        store.read("k")


def test_stores_are_pickled_by_their_url(tmp_path: Path) -> None:
    store = forebay.Store(tmp_path, service="latency")
    store.write("k", b"x")
    again = pickle.loads(pickle.dumps(store))
    assert again.read("k") == b"x"
    assert again.url == store.url


def test_bad_arguments(tmp_path: Path) -> None:
    for url in ["", "s4://bucket", "s3://", "ftp://host/x"]:
        with pytest.raises(forebay.InvalidInputError):
            forebay.Store(url)
    with pytest.raises(forebay.InvalidInputError, match="class of service"):
        forebay.Store(tmp_path, service="fast")  # type: ignore[arg-type]
    with pytest.raises(forebay.InvalidInputError, match="data path"):
        forebay.Store(tmp_path, require="teleport")  # type: ignore[arg-type]
    store = forebay.Store(tmp_path)
    for key in ["/etc/passwd", "a/../b", "a//b", "\0"]:
        with pytest.raises(forebay.InvalidInputError):
            store.read(key)
    for key in ["missing", "missing/deeper"]:
        with pytest.raises(FileNotFoundError):
            store.read(key)
    with pytest.raises((ValueError, OverflowError)):
        store.read("k", -1)


def test_a_required_path_is_taken_or_refused(tmp_path: Path) -> None:
    store = forebay.Store(tmp_path, require="gds")
    with pytest.raises(forebay.UnsupportedError, match="gds"):
        store.write("k", b"x" * (1 << 20))
    buffered = forebay.Store(tmp_path, require="buffered")
    buffered.write("k", b"x" * (1 << 20))
    assert set(buffered.read("k").ledger.paths) == {"buffered"}


def test_configure_comes_before_the_first_use(tmp_path: Path, script: object) -> None:
    source = """
        import sys, forebay
        forebay.configure(buffer_memory=8 << 20, engine="psync", concurrency=4, part_size="1MiB")
        for bad in [{"engine": "warp"}, {"buffer_memory": "much"}]:
            try:
                forebay.configure(**bad)
            except forebay.InvalidInputError:
                pass
            else:
                raise SystemExit(f"{bad} was accepted")
        store = forebay.Store(sys.argv[1])
        assert forebay.engine()["kind"] == "psync", forebay.engine()
        try:
            forebay.configure(engine="auto")
        except forebay.InvalidInputError as error:
            assert "already" in str(error)
        else:
            raise SystemExit("too late, but accepted")
    """
    script(source, str(tmp_path))  # type: ignore[operator]
    script(
        """
        import sys, forebay
        try:
            forebay.Store(sys.argv[1])
        except forebay.InvalidInputError as error:
            assert "FOREBAY_BUFFER_MEMORY" in str(error) and error.hint, error
        else:
            raise SystemExit("nonsense was accepted")
        """,
        str(tmp_path),
        FOREBAY_BUFFER_MEMORY="lots",
    )  # type: ignore[operator]
