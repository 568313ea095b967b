"""What batches are made of: arrays, values of different sizes, values that are decoded, names.

All of it can be pickled, as a worker process does to hand a batch over, and each sequence can be made of a
list, as torch and Lightning do when they go through a batch and put something else in place of its values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from forebay._forebay import InvalidInputError, NativeBatch

if TYPE_CHECKING:
    import numpy

# The classes below have methods of that name.
_Values: TypeAlias = list[Any]
_Names: TypeAlias = list[str]


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ImportError("batches are numpy arrays: pip install 'forebay[numpy]'") from error
    return numpy


# Bits of bfloat16 without the sign.
_BFLOAT16_INFINITY = 0x7F80
_BFLOAT16_NAN = 0x7FC0


def _dtype(name: str) -> Any:
    # numpy has no bfloat16: the bits are there, as 16-bit integers.
    return _numpy().dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")


def _is_within(value: float, kind: Any) -> bool:
    """Say whether a float of a kind can be about that number, and does not become infinite."""
    try:
        with _numpy().errstate(over="ignore"):
            return bool(_numpy().isinf(kind(float(value))) == _numpy().isinf(float(value)))
    except OverflowError:
        return False


def _bfloat16(value: float) -> int | None:
    """Give the bits of the nearest ``bfloat16``; None where it is beyond all of them."""
    if not _is_within(value, _numpy().float32):
        return None
    if value != value:
        return _BFLOAT16_NAN
    bits = int(_numpy().float32(value).view("uint32"))
    # To the nearest, and to the even one of two that are as near.
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    is_infinite = rounded & 0x7FFF == _BFLOAT16_INFINITY
    return None if is_infinite and abs(value) != float("inf") else rounded


def _place(index: int, count: int) -> int:
    """Where a value is, counted from the beginning."""
    if not -count <= index < count:
        raise IndexError(f"sample {index} of {count}")
    return index % count


def sendable(value: Any) -> Any:
    """Give a value as it can be pickled; views of memory cannot."""
    return bytes(value) if isinstance(value, memoryview) else value


class Ragged:
    """A field whose values have different sizes: ``offsets[i]`` to ``offsets[i + 1]`` is sample ``i``.

    ``ragged[i]`` is a ``memoryview``, or an array of ``dtype`` where the data set says what the values are.
    """

    def __init__(self, data: Any, offsets: Any, dtype: str | None = None) -> None:
        """Around two buffers; made by streams."""
        self._data = memoryview(data)
        self._offsets = memoryview(offsets).cast("q")
        self.dtype = dtype

    @property
    def offsets(self) -> numpy.ndarray[Any, Any]:
        """Where values begin and end in ``bytes``: 64-bit integers, one more than there are samples."""
        return _numpy().frombuffer(self._offsets, dtype="<i8")  # type: ignore[no-any-return]

    @property
    def bytes(self) -> numpy.ndarray[Any, Any]:
        """The bytes of all values, one after the other."""
        return _numpy().frombuffer(self._data, dtype="uint8")  # type: ignore[no-any-return]

    @property
    def lengths(self) -> numpy.ndarray[Any, Any]:
        """How many values each sample has: bytes, where the data set does not say what they are."""
        return self._lengths()

    def _lengths(self) -> numpy.ndarray[Any, Any]:
        return _numpy().diff(self.offsets) // self._number().itemsize  # type: ignore[no-any-return]

    def _number(self) -> Any:
        """Give the dtype of one value."""
        return _dtype(self.dtype or "uint8")

    def _numbers(self) -> numpy.ndarray[Any, Any]:
        """Give the values of all samples, one after the other."""
        return _numpy().frombuffer(self._data, dtype=self._number())  # type: ignore[no-any-return]

    def _buffers(self) -> tuple[memoryview, memoryview]:
        """Give the two buffers that one like this can be made around."""
        return self._data, self._offsets.cast("B")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def view(self, index: int) -> memoryview:
        """Give the bytes of one value."""
        index = _place(index, len(self))
        return self._data[self._offsets[index] : self._offsets[index + 1]]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> _Values: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        view = self.view(index)
        return view if self.dtype is None else _numpy().frombuffer(view, dtype=_dtype(self.dtype))

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def list(self) -> _Values:
        """Every value, as ``ragged[i]`` gives it."""
        return self[:]

    def padded(self, fill: float = 0, length: int | None = None) -> numpy.ndarray[Any, Any]:
        """Give one array ``[B, length]``, with ``fill`` behind values that are shorter.

        By default it is as long as the longest value. Of longer ones than ``length``, the end is cut off.
        Of ``bfloat16``, which comes as its bits, ``fill`` becomes the bits, too.
        """
        numpy = _numpy()
        numbers, width = self._numbers(), self._width(length)
        array = numpy.full((len(self), width), self._filling(fill), dtype=numbers.dtype)
        # Row by row: places of all values in one array would take many times the memory of what is made.
        splits = (self.offsets // numbers.itemsize).tolist()
        for row, (begin, end) in zip(array, pairwise(splits), strict=True):
            kept = numbers[begin : min(end, begin + width)]
            row[: len(kept)] = kept
        return array  # type: ignore[no-any-return]

    def _width(self, length: int | None) -> int:
        """Tell how long rows are: as the longest value, unless somebody says it."""
        if length is None:
            return int(self._lengths().max(initial=0))
        width = operator.index(length)
        if width < 0:
            raise InvalidInputError(f"length cannot be {width}")
        return width

    def _filling(self, fill: float) -> float:
        """Give a number as it lies in memory, and refuse what would become another one there."""
        fill = fill.item() if hasattr(fill, "item") else fill
        dtype = self._number()
        name = self.dtype or dtype.name
        made: float | None = None
        if name == "bool":
            made = bool(fill) if fill in (0, 1) else None
        elif name == "bfloat16":
            made = _bfloat16(fill)
        elif dtype.kind == "f":
            made = float(fill) if _is_within(fill, dtype.type) else None
        else:
            bounds = _numpy().iinfo(dtype)
            made = int(fill) if bounds.min <= fill <= bounds.max and fill % 1 == 0 else None
        if made is None:
            raise InvalidInputError(f"fill: {fill} is no {name}, which the values are")
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged, (self._data.tobytes(), self._offsets.tobytes(), self.dtype)

    def __repr__(self) -> str:
        return f"<forebay.Ragged of {len(self)} values, {len(self._data)} bytes>"


class Decoded(Sequence[Any]):
    """A field that is decoded when it is looked at, value by value, and only once.

    Pickled, or converted by a ``DataLoader``, it has its values decoded, and ``ragged`` is None.
    """

    def __init__(
        self, values: Ragged | Iterable[Any], decode: Callable[[memoryview], Any] | None = None
    ) -> None:
        """Around a field, or of values that are decoded already; made by streams."""
        self.ragged = values if isinstance(values, Ragged) else None
        self._decode = decode
        self._values: dict[int, Any] = {} if isinstance(values, Ragged) else dict(enumerate(values))
        self._count = len(values if isinstance(values, Ragged) else self._values)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> _Values: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        index = _place(index, len(self))
        if index not in self._values and self.ragged is not None:
            view = self.ragged.view(index)
            self._values[index] = view if self._decode is None else self._decode(view)
        return self._values[index]

    def list(self) -> _Values:
        """Every value."""
        return self[:]

    def __reduce__(self) -> tuple[Any, ...]:
        # Decoded here: that is what worker processes are for, and functions often cannot be pickled.
        return Decoded, ([sendable(value) for value in self],)

    def __repr__(self) -> str:
        return f"<forebay.Decoded of {len(self)} values>"


class Keys(Sequence[str]):
    """The names of the samples of a batch; made when they are looked at."""

    def __init__(self, names: NativeBatch | Iterable[str]) -> None:
        """Of a batch, or of names that are known; made by streams."""
        self._native = names if isinstance(names, NativeBatch) else None
        self._names: _Names | None = None if isinstance(names, NativeBatch) else list(names)

    def list(self) -> _Names:
        """All of them."""
        if self._names is None:
            self._names = [] if self._native is None else self._native.keys()
        return self._names

    def __len__(self) -> int:
        return len(self.list() if self._native is None else self._native)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> _Names: ...
    def __getitem__(self, index: int | slice) -> str | _Names:
        return self.list()[index]

    def __eq__(self, other: object) -> bool:
        return self.list() == (other.list() if isinstance(other, Keys) else other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Keys, (self.list(),)

    def __repr__(self) -> str:
        return repr(self.list())


class Batch(dict[str, Any]):
    """The samples of one step: a dict from the names of fields to their values.

    Fields of one size are arrays ``[B, ...]``, the others ``Ragged`` or ``Decoded``; ``"__key__"`` has the
    names of the samples. ``epoch`` and ``index`` say which batch of which epoch it is, ``size`` how many
    samples it has.
    """

    epoch: int
    index: int
    size: int
