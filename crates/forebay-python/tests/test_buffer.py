"""Buffers: alignment, sharing without copies, lifetime, immutability."""

from __future__ import annotations

import ctypes
import gc
import pickle
import sys
import weakref
from pathlib import Path

import forebay
import pytest

PAGE = 4096


@pytest.fixture
def store(tmp_path: Path) -> forebay.Store:
    store = forebay.Store(tmp_path)
    store.write("k", bytes(range(256)) * 1024)
    return store


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_memory_is_page_aligned_and_shared(store: forebay.Store) -> None:
    buffer = store.read("k")
    assert buffer.address % PAGE == 0
    view = memoryview(buffer)
    assert view.readonly
    assert view.format == "B"
    assert view.nbytes == len(buffer) == 256 * 1024
    assert forebay.alloc(10_000).address % PAGE == 0


def test_numpy_shares_the_memory(store: forebay.Store) -> None:
    np = pytest.importorskip("numpy")
    buffer = store.read("k")
    array = np.frombuffer(buffer, dtype=np.uint8)
    assert array.ctypes.data == buffer.address
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    assert array[255] == 255
    part = np.frombuffer(buffer[4:8], dtype="<u4")
    assert part.ctypes.data == buffer.address + 4
    assert part[0] == 0x07060504
    mutable = forebay.alloc(16)
    writable = np.frombuffer(mutable, dtype=np.uint8)
    writable[:] = 9
    assert mutable.tobytes() == b"\x09" * 16
    # An array is writable memory of somebody else: one copy.
    target = np.zeros(100, dtype=np.uint8)
    assert store.read_into("k", target).copied_bytes == 100
    assert target[99] == 99
    store.write("array", np.arange(10, dtype="<u2"))
    assert store.read("array") == np.arange(10, dtype="<u2").tobytes()


def test_torch_shares_the_memory(store: forebay.Store) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    mutable = forebay.alloc(256)
    store.read_into("k", mutable)
    tensor = torch.frombuffer(mutable, dtype=torch.uint8)
    assert tensor.data_ptr() == mutable.address
    assert int(tensor[200]) == 200
    tensor[0] = 77
    assert mutable.tobytes()[0] == 77


def test_views_keep_the_memory(store: forebay.Store) -> None:
    view = memoryview(store.read("k"))
    part = memoryview(store.read("k")[1000:1256])
    gc.collect()
    for _ in range(50):
        store.read("k")
    assert bytes(view[:256]) == bytes(range(256))
    assert bytes(part[:24]) == bytes(range(232, 256))


def test_slices_and_bytes(store: forebay.Store) -> None:
    buffer = store.read("k", 0, 256)
    assert buffer[0] == 0
    assert buffer[-1] == 255
    assert buffer[10:20] == bytes(range(10, 20))
    assert buffer[10:20].address == buffer.address + 10
    assert buffer[10:20][2:4] == b"\x0c\x0d"
    assert buffer[300:] == b""
    assert buffer[-6:] == bytes(range(250, 256))
    assert buffer[10:20].ledger == buffer.ledger
    for bad in (256, -257):
        with pytest.raises(IndexError):
            buffer[bad]
    with pytest.raises(ValueError, match="step"):
        buffer[::2]
    with pytest.raises(TypeError):
        buffer["a"]  # type: ignore[call-overload]
    assert bytes(buffer) == buffer.tobytes() == bytes(range(256))
    assert buffer == bytearray(range(256))
    assert buffer != b"other"
    assert buffer != "text"
    assert "256 bytes" in repr(buffer)


def test_buffers_cannot_be_changed_or_made(store: forebay.Store) -> None:
    buffer = store.read("k")
    view = memoryview(buffer)
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(TypeError):
        (ctypes.c_char * 4).from_buffer(buffer)
    with pytest.raises(TypeError):
        buffer[0] = 1  # type: ignore[index]
    for kind in (forebay.Buffer, forebay.MutableBuffer):
        with pytest.raises(TypeError):
            kind()
        with pytest.raises(TypeError):
            type("Sub", (kind,), {})
        with pytest.raises(TypeError):
            kind.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        hash(buffer)
    with pytest.raises(TypeError):
        pickle.dumps(buffer)
    with pytest.raises(AttributeError):
        buffer.ledger = None  # type: ignore[misc, assignment]


def test_freeze_hands_the_memory_over() -> None:
    mutable = forebay.alloc(5)
    view = memoryview(mutable)
    view[:] = b"hello"
    with pytest.raises(BufferError, match="views"):
        mutable.freeze()
    view.release()
    address = mutable.address
    frozen = mutable.freeze()
    assert frozen == b"hello"
    assert frozen.address == address
    with pytest.raises(forebay.InvalidInputError, match="frozen"):
        mutable.freeze()
    with pytest.raises(TypeError):
        memoryview(mutable)[0] = 1
    assert mutable.tobytes() == b"hello"
    del mutable
    assert frozen == b"hello"


def test_a_buffer_is_used_again_and_again(tmp_path: Path) -> None:
    store = forebay.Store(tmp_path)
    store.write("k", b"0123456789")
    mutable = forebay.alloc(10)
    for _ in range(100):
        store.read_into("k", mutable)
        store.write("copy", mutable)
    assert store.read("copy") == b"0123456789"


def test_types_have_references_counted(store: forebay.Store) -> None:
    # Counted outside of assertions, whose rewriting keeps references of its own.
    before = sys.getrefcount(forebay.Buffer)
    buffers = [store.read("k", 0, 10) for _ in range(100)]
    during = sys.getrefcount(forebay.Buffer)
    del buffers
    after = sys.getrefcount(forebay.Buffer)
    assert (during - before, after - before) == (100, 0)


def test_views_do_not_leak_their_buffer(store: forebay.Store) -> None:
    np = pytest.importorskip("numpy")
    gone = []
    for _ in range(10):
        array = np.frombuffer(store.read("k"), dtype=np.uint8)
        gone.append(weakref.ref(array))
        del array
    gc.collect()
    assert all(ref() is None for ref in gone)


def test_memory_stays_bounded(tmp_path: Path) -> None:
    store = forebay.Store(tmp_path)
    store.write("big", b"q" * (8 << 20))
    for _ in range(20):
        memoryview(store.read("big"))[5]
    before = resident_bytes()
    for i in range(1000):
        buffer = store.read("big", i, 1 << 20)
        assert buffer[0] == ord("q")
        part = memoryview(buffer[10:20])
        assert part[0] == ord("q")
    assert resident_bytes() - before < 64 << 20
