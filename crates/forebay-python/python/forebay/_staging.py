"""The staging area: memory that is kept between saves and holds a copy of the state while it is written.

Tensors of the host are copied by threads in Rust, without the interpreter lock. What is on devices is copied
by torch on a stream of its own into the same memory, which is pinned for it.

A state that is larger than the area may be is not copied as a whole: what lies in plain memory of this
machine is written from there, and what else does not fit is copied in rounds, piece by piece, while the round
before is written. The caller waits for as long.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from forebay._forebay import (
    MutableBuffer,
    NativeSave,
    alloc,
    buffer_pin,
    buffer_unpin,
    ckpt_copy,
    ckpt_layout,
)
from forebay._state import Slice, is_array

# What torch copies bits of that width as: dtypes that it cannot compute with can be moved all the same.
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}

# Sizes are rounded up to this, so that a state that grows a little does not need new memory.
_ROUND = 2 << 20

# A slice as the extension module takes it, and where its bytes are: at an offset of the staging area, at an
# address, or nowhere yet, but known by a number.
SliceRow: TypeAlias = tuple[
    str, str, list[int], list[int], list[int], int, Literal["staged", "lent", "later"]
]


@dataclass
class Staged:
    """A state to be saved: what is copied, and what is not."""

    area: MutableBuffer
    rows: list[SliceRow]
    # Written from where it is, before ``save`` returns.
    lent: list[Any] = field(default_factory=list)
    # Copied in rounds, before ``save`` returns.
    later: list[Slice] = field(default_factory=list)


class Staging:
    """One area, allocated when it is needed first, and again only for a larger state."""

    def __init__(self, limit: int | None) -> None:
        """Without memory yet."""
        self.limit = limit
        self.allocations = 0
        self.notes: list[str] = []
        self._buffer: MutableBuffer | None = None
        self._is_pinned = False
        self._streams: dict[Any, Any] = {}

    @property
    def nbytes(self) -> int:
        """How much memory it holds."""
        return 0 if self._buffer is None else self._buffer.nbytes

    def fit(self, nbytes: int, *, is_pinned: bool) -> MutableBuffer:
        """Give memory for so many bytes: the same as before where that is enough."""
        if self._buffer is None or self._buffer.nbytes < nbytes:
            self.release()
            room = -(-max(nbytes, 1) // _ROUND) * _ROUND
            self._buffer = alloc(room if self.limit is None else min(room, max(self.limit, 1)))
            self.allocations += 1
        if is_pinned and not self._is_pinned:
            self._pin(self._buffer)
        return self._buffer

    def _pin(self, buffer: MutableBuffer) -> None:
        from forebay.torch import _pin, _unpin

        try:
            # It is unpinned before it is unmapped, whoever has it last.
            buffer_pin(buffer, _pin, _unpin)
        except RuntimeError as error:
            # Copies from the device are slower then, and say so.
            self.notes.append(f"the staging area cannot be pinned: {error}")
        else:
            self._is_pinned = True

    def release(self) -> None:
        """Give the memory back."""
        if self._buffer is not None:
            buffer_unpin(self._buffer)
        self._buffer, self._is_pinned = None, False

    def stage(self, slices: Sequence[Slice]) -> Staged:
        """Copy slices, or say how they are saved without a copy of all of them."""
        _, total = ckpt_layout([part.row() for part in slices])
        if self.limit is None or total <= self.limit:
            return self._stage_whole(slices)
        addresses = [address_of(part.source) if part.nbytes > 0 else None for part in slices]
        rest = [part for part, address in zip(slices, addresses, strict=True) if address is None]
        staged = self._stage_later(rest) if nbytes_of(rest) > self.limit else self._stage_whole(rest)
        for part, address in zip(slices, addresses, strict=True):
            if address is not None:
                staged.rows.append((*part.row(), address, "lent"))
                staged.lent.append(part.source)
        return staged

    def _stage_whole(self, slices: Sequence[Slice]) -> Staged:
        places, total = ckpt_layout([part.row() for part in slices])
        area = self.fit(total, is_pinned=any(is_on_gpu(part.source) for part in slices))
        self.copy(area, slices, places)
        return Staged(
            area, [(*part.row(), place, "staged") for part, place in zip(slices, places, strict=True)]
        )

    def _stage_later(self, slices: Sequence[Slice]) -> Staged:
        area = self.fit(self.limit or 0, is_pinned=any(is_on_gpu(part.source) for part in slices))
        rows: list[SliceRow] = [(*part.row(), number, "later") for number, part in enumerate(slices)]
        return Staged(area, rows, later=list(slices))

    def copy_rounds(self, staged: Staged, save: NativeSave) -> int:
        """Copy what a save asks for until that is all; gives in how many rounds."""
        rounds = 0
        while (pieces := save.next_round()) is not None:
            others: list[_Piece] = []
            for number, first, nbytes, place in pieces:
                others.extend(_cut(staged.later[number].source, first, nbytes, place))
            self._copy_others(staged.area, others)
            rounds += 1
        return rounds

    def copy(self, buffer: MutableBuffer, slices: Sequence[Slice], places: Sequence[int]) -> None:
        """Copy slices to their places; when this returns, the sources may be changed."""
        rows: list[tuple[int, int, int]] = []
        others: list[_Piece] = []
        for part, place in zip(slices, places, strict=True):
            if part.nbytes == 0:
                continue
            address = address_of(part.source)
            if address is None:
                others.append((part.source, part.nbytes, place))
            else:
                rows.append((address, place, part.nbytes))
        self._copy_others(buffer, others, rows)

    def _copy_others(
        self,
        buffer: MutableBuffer,
        others: Sequence[_Piece],
        rows: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        """Have torch and numpy copy what is no plain memory, and threads what is, meanwhile."""
        streams: dict[Any, Any] = {}
        try:
            for source, nbytes, place in others:
                self._copy_one(buffer, source, nbytes, place, streams)
            if rows:
                ckpt_copy(buffer, list(rows))
        finally:
            # Also after an error: a device must not write to memory that is somebody else's next.
            for stream in streams.values():
                stream.synchronize()

    def _copy_one(
        self, buffer: MutableBuffer, source: Any, nbytes: int, place: int, streams: dict[Any, Any]
    ) -> None:
        """Copy a tensor or array; on a stream, which is noted, where it is on a device."""
        if is_array(source):
            numpy = sys.modules["numpy"]
            view = numpy.frombuffer(buffer, dtype=numpy.uint8, count=nbytes, offset=place)
            little = source.dtype.newbyteorder("<")
            view.view(little).reshape(source.shape)[...] = source
            return
        torch = sys.modules["torch"]
        bits = getattr(torch, _BITS[source.element_size()])
        view = torch.frombuffer(buffer, dtype=torch.uint8, count=nbytes, offset=place)
        view = view.view(bits).view(source.shape)
        if source.device.type != "cuda":
            view.copy_(source.view(bits))
            return
        stream = streams.get(source.device)
        if stream is None:
            stream = self._stream(torch, source.device)
            # What computes the tensors now goes first.
            stream.wait_stream(torch.cuda.current_stream(source.device))
            streams[source.device] = stream
        with torch.cuda.stream(stream):
            view.copy_(source.view(bits), non_blocking=True)

    def _stream(self, torch: Any, device: Any) -> Any:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


# A tensor or array, its bytes, and where they go in the staging area.
_Piece: TypeAlias = tuple[Any, int, int]


def _cut(source: Any, first: int, nbytes: int, place: int) -> Iterator[_Piece]:
    """Give the views whose elements, one after the other, are a run of bytes of a tensor or array."""
    width = int(source.itemsize if is_array(source) else source.element_size())
    shape = tuple(source.shape)
    if nbytes == math.prod(shape) * width:
        yield source, nbytes, place
        return
    for box in boxes(shape, first // width, nbytes // width):
        part = source[box]
        length = math.prod(part.shape) * width
        yield part, length, place
        place += length


def boxes(shape: Sequence[int], first: int, count: int) -> Iterator[tuple[slice, ...]]:
    """Cut a run of elements, as they are in row-major order, into boxes, each a slice per dimension.

    They are few: a row that begins in the middle, rows that are whole, and one that ends in the middle, for
    each dimension at most.
    """
    inner = math.prod(shape[1:])
    end = first + count
    while first < end:
        row, skipped = divmod(first, inner)
        if skipped == 0 and end - first >= inner:
            rows = (end - first) // inner
            yield (slice(row, row + rows), *(slice(None) for _ in shape[1:]))
            first += rows * inner
        else:
            here = min(inner - skipped, end - first)
            for box in boxes(shape[1:], skipped, here):
                yield (slice(row, row + 1), *box)
            first += here


def nbytes_of(slices: Sequence[Slice]) -> int:
    """Give the bytes of all of them."""
    return sum(part.nbytes for part in slices)


def is_on_gpu(source: Any) -> bool:
    """Say whether pinned memory is of use for it."""
    return not is_array(source) and source.device.type == "cuda"


def address_of(source: Any) -> int | None:
    """Give the address of memory of this machine that has its elements in their order; None of any other."""
    if is_array(source):
        is_plain = source.flags.c_contiguous and source.dtype.newbyteorder("<") == source.dtype
        return int(source.__array_interface__["data"][0]) if is_plain else None
    is_plain = source.device.type == "cpu" and source.is_contiguous()
    return int(source.data_ptr()) if is_plain else None
