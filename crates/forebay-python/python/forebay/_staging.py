"""The staging area: memory that is kept between saves and holds a copy of the state while it is written.

Tensors of the host are copied by threads in Rust, without the interpreter lock. What is on devices is copied
by torch on a stream of its own into the same memory, which is pinned for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from forebay._forebay import (
    LimitExceededError,
    MutableBuffer,
    alloc,
    buffer_pin,
    buffer_unpin,
    ckpt_copy,
)
from forebay._state import Slice, is_array

# What torch copies bits of that width as: dtypes that it cannot compute with can be moved all the same.
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}

# Sizes are rounded up to this, so that a state that grows a little does not need new memory.
_ROUND = 2 << 20


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
        if self.limit is not None and nbytes > self.limit:
            raise LimitExceededError(
                f"tensors on devices or with strides need {nbytes} bytes of staging, "
                f"and staging_bytes allows {self.limit}"
            )
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

    def copy(self, buffer: MutableBuffer, slices: Sequence[Slice], places: Sequence[int]) -> None:
        """Copy slices to their places; when this returns, the sources may be changed."""
        rows: list[tuple[int, int, int]] = []
        others: list[tuple[Slice, int]] = []
        for part, place in zip(slices, places, strict=True):
            if part.nbytes == 0:
                continue
            address = address_of(part.source)
            if address is None:
                others.append((part, place))
            else:
                rows.append((address, place, part.nbytes))
        streams = self._copy_others(buffer, others)
        ckpt_copy(buffer, rows)
        for stream in streams:
            stream.synchronize()

    def _copy_others(self, buffer: MutableBuffer, others: list[tuple[Slice, int]]) -> list[Any]:
        """Have torch and numpy copy what is no plain memory; gives the streams that are still at it."""
        waiting: dict[Any, Any] = {}
        for part, place in others:
            source = part.source
            if is_array(source):
                numpy = sys.modules["numpy"]
                view = numpy.frombuffer(buffer, dtype=numpy.uint8, count=part.nbytes, offset=place)
                little = source.dtype.newbyteorder("<")
                view.view(little).reshape(source.shape)[...] = source
                continue
            torch = sys.modules["torch"]
            bits = getattr(torch, _BITS[source.element_size()])
            view = torch.frombuffer(buffer, dtype=torch.uint8, count=part.nbytes, offset=place)
            view = view.view(bits).view(source.shape)
            if source.device.type != "cuda":
                view.copy_(source.view(bits))
                continue
            stream = waiting.get(source.device)
            if stream is None:
                stream = self._stream(torch, source.device)
                # What computes the tensors now goes first.
                stream.wait_stream(torch.cuda.current_stream(source.device))
                waiting[source.device] = stream
            with torch.cuda.stream(stream):
                view.copy_(source.view(bits), non_blocking=True)
        return list(waiting.values())

    def _stream(self, torch: Any, device: Any) -> Any:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


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
