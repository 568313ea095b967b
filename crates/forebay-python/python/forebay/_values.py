"""Values that say themselves what they are: arrays with their shape, raw images, lists of files, decimals."""

from __future__ import annotations

import decimal
import io
import math
import zipfile
from collections.abc import Callable
from typing import IO, Any, NamedTuple

from forebay._batches import _dtype, _numpy
from forebay._forebay import (
    CorruptDataError,
    ForebayError,
    LimitExceededError,
    UnsupportedError,
    stream_value,
)

# What comes out of one value that is compressed is at most that large, beyond the second at most so many
# times the value: it is opened where somebody looks at it, and a small one could take all memory.
_INFLATED_BYTES_MAX = 1 << 30
_INFLATED_BYTES_FREE = 16 << 20
_INFLATED_RATIO_MAX = 4096

# What numpy writes. Others give more at once than a member is said to have.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class RawImage(NamedTuple):
    """An image without compression, as Pillow keeps it.

    ``PIL.Image.frombytes(image.mode, (image.width, image.height), image.pixels)`` makes one of it.
    """

    width: int
    height: int
    mode: str
    pixels: bytes


# Encodings that are taken apart in Rust: these, and those of lists and arrays that name what they hold.
_OPENED = (
    "mds:ndarray",
    "mds:pil",
    "mds:jpeg_array",
    "mds:list[",
    "litdata:tensor",
    "litdata:numpy",
    "litdata:pil",
    "litdata:jpeg_array",
    "tf:bytes_list",
)


def opener(encoding: str) -> Callable[[memoryview], Any] | None:
    """Give what opens values of an encoding; None where they are bytes to us, too.

    A value of no bytes, as that of a sample without it, is None.
    """
    how = _opener(encoding)
    return None if how is None else lambda value: how(value) if len(value) else None


def _opener(encoding: str) -> Callable[[memoryview], Any] | None:
    if encoding in ("npy", "npz"):
        return lambda value: _load(encoding, value)
    if encoding.startswith(("decimal128:", "decimal256:")):
        scale = int(encoding.rpartition(",")[2])
        return lambda value: _decimal(value, scale)
    if encoding.startswith(_OPENED):
        return lambda value: _open(encoding, bytes(value))
    return None


def _load(encoding: str, value: memoryview) -> Any:
    numpy, file = _numpy(), io.BytesIO(value)
    try:
        # Whatever it is called, numpy goes by how it begins.
        if bytes(value[:2]) == b"PK":
            _check_members(encoding, file, len(value))
        else:
            _check_header(file, len(value))
        file.seek(0)
        loaded = numpy.load(file, allow_pickle=False)
        return loaded if not hasattr(loaded, "files") else {name: loaded[name] for name in loaded.files}
    except (ForebayError, MemoryError):
        raise
    except Exception as error:
        # By a dozen classes, numpy and zipfile say one thing: these bytes are not what they should be.
        kind = UnsupportedError if "Object arrays cannot be loaded" in str(error) else CorruptDataError
        raise kind(f"{encoding}: a value cannot be opened: {error}") from error


def _check_members(encoding: str, file: io.BytesIO, nbytes: int) -> None:
    """Refuse a zip that would become too large; of each member, no more is read than is said here."""
    archive = zipfile.ZipFile(file)
    members = archive.infolist()
    inflated = sum(member.file_size for member in members)
    most = min(_INFLATED_BYTES_MAX, max(_INFLATED_BYTES_FREE, _INFLATED_RATIO_MAX * nbytes))
    if inflated > most:
        raise LimitExceededError(
            f"{encoding}: a value of {nbytes} bytes would become {inflated}, and at most {most} are made "
            'of it; decoded as "bytes", it stays what it is'
        )
    for member in members:
        if member.compress_type not in _METHODS:
            raise UnsupportedError(
                f"{encoding}: '{member.filename}' is compressed in a way numpy does not use"
            )
    if len({member.filename.removesuffix(".npy") for member in members}) < len(members):
        # Each would be read as often as there are.
        raise CorruptDataError(f"{encoding}: a value has two members of one name")
    for member in members:
        with archive.open(member) as content:
            _check_header(content, member.file_size)


def _check_header(file: IO[bytes], nbytes: int) -> None:
    """Refuse an array whose header speaks of more than is there: numpy takes the memory before it reads."""
    form = _numpy().lib.format
    magic = file.read(form.MAGIC_LEN)
    if not magic.startswith(form.MAGIC_PREFIX):
        return
    # Headers of later versions are as long and differ in how names are written, which nobody asks for here.
    read = form.read_array_header_1_0 if magic.endswith(b"\1\0") else form.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        # A pickle, of any length: numpy refuses it.
        return
    count, there = math.prod(shape), nbytes - file.tell()
    if min(shape, default=0) < 0 or count * dtype.itemsize > there or (count and not dtype.itemsize):
        raise ValueError(f"its header speaks of {count} x {dtype.itemsize} bytes, and {there} are there")


def _decimal(value: memoryview, scale: int) -> decimal.Decimal:
    number = int.from_bytes(value, "little", signed=True)
    digits = tuple(int(digit) for digit in str(abs(number)))
    # Of digits: arithmetic would round to the precision of the context.
    return decimal.Decimal((int(number < 0), digits, -scale))


def _open(encoding: str, value: bytes) -> Any:
    what, name, shape, parts = stream_value(encoding, value)
    cut = [value[start:stop] for start, stop in parts]
    if what == "array":
        return _numpy().frombuffer(cut[0], dtype=_dtype(name)).reshape(shape)
    if what == "image":
        return RawImage(shape[0], shape[1], name, cut[0])
    return cut
