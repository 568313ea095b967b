"""Values that say themselves what they are: arrays with their shape, raw images, lists of files, decimals."""

from __future__ import annotations

import decimal
import io
from collections.abc import Callable
from typing import Any, NamedTuple

from forebay._batches import _dtype, _numpy
from forebay._forebay import stream_value


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
        return _load
    if encoding.startswith(("decimal128:", "decimal256:")):
        scale = int(encoding.rpartition(",")[2])
        return lambda value: _decimal(value, scale)
    if encoding.startswith(_OPENED):
        return lambda value: _open(encoding, bytes(value))
    return None


def _load(value: memoryview) -> Any:
    loaded = _numpy().load(io.BytesIO(value), allow_pickle=False)
    return loaded if not hasattr(loaded, "files") else {name: loaded[name] for name in loaded.files}


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
