"""Values that say themselves what they are, where they are damaged or meant to do harm."""

from __future__ import annotations

import io
import pickle
import random
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay import _values

np = pytest.importorskip("numpy")


def npz(compressed: bool = True, **arrays: Any) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(method: int, *names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in names:
            archive.writestr(name, npy(np.arange(9)))
    return file.getvalue()


def open_npz(value: bytes) -> Any:
    opened = _values.opener("npz")
    assert opened is not None
    return opened(memoryview(value))


def claim(value: bytes, size: int) -> bytes:
    """Have the directory of a zip say that its first member is larger than it is."""
    at = value.index(b"PK\x01\x02") + 24
    return value[:at] + struct.pack("<I", size) + value[at + 4 :]


def batch_of(folder: Path, *values: bytes) -> Any:
    with tarfile.open(folder / "0.tar", "w") as tar:
        for number, content in enumerate(values):
            member = tarfile.TarInfo(f"{number}.x.npz")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return next(forebay.stream(folder, batch_size=len(values)))["x.npz"]


def test_archives_are_opened_as_numpy_writes_them(tmp_path: Path) -> None:
    arrays = {"image": np.arange(12.0).reshape(3, 4), "none": np.zeros((0, 3), "int8")}
    other = io.BytesIO(npz(**arrays))
    with zipfile.ZipFile(other, "a") as archive:
        archive.writestr("README", b"what this is")
    values = batch_of(tmp_path, npz(**arrays), npz(False, **arrays), other.getvalue(), b"")
    for value in values[:3]:
        assert all(np.array_equal(value[name], array) for name, array in arrays.items())
    assert [len(value) for value in values[:3]] == [2, 2, 3]
    assert values[2]["README"] == b"what this is"
    assert values[3] is None


def test_archives_that_would_become_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = npz(a=np.arange(9))
    for size, most in [((1 << 30) + 1, 1 << 24), (20 << 20, 1 << 24)]:
        with pytest.raises(
            forebay.LimitExceededError,
            match=f"npz: a value of {len(good)} bytes would become {size}, and at most {most} are",
        ):
            open_npz(claim(good, size))
    # Not to be inflated 4096 times, and not beyond 1 GiB.
    large = npz(False, a=np.zeros(1 << 20))
    assert open_npz(claim(large, 1 << 30))["a"].shape == (1 << 20,)
    with pytest.raises(
        forebay.LimitExceededError, match=f"become {(1 << 30) + 1}, and at most {1 << 30} are"
    ):
        open_npz(claim(large, (1 << 30) + 1))
    # One that is what it says.
    monkeypatch.setattr(_values, "_INFLATED_BYTES_MAX", 1 << 20)
    values = batch_of(tmp_path, npz(a=np.zeros(4 << 20, "uint8")), good)
    tracemalloc.start()
    try:
        for look in (lambda: values[0], lambda: pickle.dumps(values)):
            with pytest.raises(forebay.LimitExceededError, match=r'decoded as "bytes"'):
                look()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert values[1]["a"].tolist() == list(range(9))


def test_archives_that_numpy_does_not_write_are_refused() -> None:
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(forebay.UnsupportedError, match="compressed in a way numpy does not"):
            open_npz(zipped(method, "a.npy"))
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zipped(zipfile.ZIP_DEFLATED, "a.npy", "a.npy")
    for value in (twice, zipped(zipfile.ZIP_DEFLATED, "a", "a.npy")):
        with pytest.raises(forebay.CorruptDataError, match="two members of one name"):
            open_npz(value)
    objects = io.BytesIO()
    np.save(objects, np.array([{}]), allow_pickle=True)
    with pytest.raises(forebay.UnsupportedError, match="npz: a value cannot be opened: Object arrays"):
        open_npz(objects.getvalue())


def header(shape: tuple[int, ...], dtype: str, version: bytes = b"\1\0") -> bytes:
    """Give an array of which there is nothing but what its header says."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == b"\1\0" else "<I", len(text))
    return b"\x93NUMPY" + version + length + text


def archive(method: int, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        made.writestr("a.npy", content)
    return file.getvalue()


@pytest.mark.parametrize("version", [b"\1\0", b"\2\0", b"\3\0"])
def test_headers_that_claim_too_much_take_no_memory(version: bytes) -> None:
    claims = [
        ((10**15,), "<f8"),
        ((1 << 40,), "|u1"),
        ((1 << 32, 1 << 32), "<f8"),
        ((3,), "|u1"),
        ((10**15,), "|V0"),
        ((1,), "|S0"),
        ((-1, 4), "|u1"),
    ]
    tracemalloc.start()
    try:
        for shape, dtype in claims:
            bare = header(shape, dtype, version) + b"xy"
            for value in (bare, archive(zipfile.ZIP_STORED, bare), archive(zipfile.ZIP_DEFLATED, bare)):
                with pytest.raises(
                    forebay.CorruptDataError, match=r"its header speaks of .*, and 2 are there"
                ):
                    open_npz(value)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert open_npz(header((2,), "|u1", version) + b"xy").tobytes() == b"xy"
    assert open_npz(header((0, 5), "<f8", version)).shape == (0, 5)
    assert open_npz(header((), "<i2", version) + b"xy").shape == ()


def test_damaged_values_are_said_to_be_damaged() -> None:
    with pytest.raises(
        forebay.CorruptDataError,
        match="npz: a value cannot be opened: its header speaks of 9 x 8 bytes, and 71 are there",
    ):
        open_npz(npy(np.arange(9))[:-1])
    chance = random.Random(7)
    arrays = {"a": np.arange(40.0), "b": np.arange(7, dtype="uint8")}
    refused = 0
    for good in (npy(arrays["a"]), npz(False, **arrays), npz(**arrays)):
        for _ in range(1000):
            bad = bytearray(good)
            for _ in range(chance.choice((1, 2, 4))):
                bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
            try:
                open_npz(bytes(bad[: chance.choice((len(bad), chance.randrange(1, len(bad))))]))
            except forebay.ForebayError:
                refused += 1
    assert refused > 2000
