"""Memory of others is filled and written in steps: right at every edge, never with a second copy of all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import forebay
import pytest

PART = 8 << 20
CONTENT = os.urandom(1 << 20) * 30 + b"tail"


@pytest.fixture(params=["file", "mem", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> forebay.Store:
    if request.param == "s3":
        prefix = request.getfixturevalue("s3_prefix")
        return forebay.Store(f"s3://{prefix}/{uuid.uuid4().hex}")
    return forebay.Store(tmp_path / "s" if request.param == "file" else f"mem://{uuid.uuid4().hex}")


def test_large_objects_go_and_come_in_steps(store: forebay.Store) -> None:
    done = store.write("k", CONTENT)
    assert done.size == len(CONTENT)
    assert done.ledger.copied_bytes >= len(CONTENT)
    assert store.read("k") == CONTENT
    version = store.head("k").version
    spans = [
        (0, len(CONTENT)),
        (1, PART),
        (PART - 1, 2),
        (PART, PART),
        (PART + 1, 2 * PART),
        (len(CONTENT) - 3, 3),
    ]
    for offset, length in spans:
        for chosen in (None, version):
            target = bytearray(b"\xff") * (length + 2)
            ledger = store.read_into("k", target, offset, length, version=chosen)
            assert target == CONTENT[offset : offset + length] + b"\xff\xff"
            assert ledger.bytes >= length
            assert ledger.copied_bytes >= length
    with pytest.raises(forebay.InvalidInputError):
        store.read_into("k", bytearray(len(CONTENT)), 1)
    with pytest.raises(FileNotFoundError):
        store.read_into("missing", bytearray(3 * PART))
    with pytest.raises(forebay.PreconditionError):
        store.write("k", b"other")
        store.read_into("k", bytearray(3 * PART), version=version)


def test_large_writes_keep_their_conditions(store: forebay.Store) -> None:
    view = memoryview(bytearray(CONTENT)).cast("B")
    if store.capabilities()["upload_if_absent"].state == "refuted":
        with pytest.raises(forebay.UnsupportedError):
            store.write("k", view, if_absent=True)
        return
    store.write("k", view, if_absent=True)
    with pytest.raises(forebay.AlreadyExistsError):
        store.write("k", bytearray(len(CONTENT)), if_absent=True)
    assert store.read("k") == CONTENT
    assert [row.key for row in store.list()] == ["k"]


def test_a_pool_that_is_held_is_not_waited_for(tmp_path: Path, script: object) -> None:
    source = """
        import sys, forebay
        forebay.configure(buffer_memory="4MiB", part_size="1MiB")
        store = forebay.Store(sys.argv[1])
        content = bytes(range(256)) * (40 << 10)
        store.write("k", content)
        held = [store.read("k", 0, 1 << 20) for _ in range(8)]
        store.write("other", content)
        target = bytearray(len(content))
        store.read_into("other", target)
        assert target == content
    """
    script(source, str(tmp_path))  # type: ignore[operator]


@pytest.mark.parametrize("call", ["read_into", "write"])
def test_a_tensor_is_not_held_twice(call: str, tmp_path: Path, script: object) -> None:
    source = """
        import sys, forebay
        call, path = sys.argv[1:]
        MIB = 1 << 20
        forebay.configure(buffer_memory="32MiB", part_size="1MiB")
        def peak():
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
        store = forebay.Store(path)
        tensor = bytearray(b"x" * MIB)
        store.write("small", tensor)
        store.read_into("small", tensor)
        if call == "read_into":
            with open(f"{path}/k", "wb") as file:
                for _ in range(256):
                    file.write(tensor)
        tensor = tensor * 256
        before = peak()
        getattr(store, call)("k", tensor)
        grown = peak() - before
        assert grown < 80 * MIB, f"{grown / MIB} MiB more than the tensor itself"
    """
    script(source, call, str(tmp_path))  # type: ignore[operator]
