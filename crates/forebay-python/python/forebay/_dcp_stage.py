"""The stager: a copy of a state in memory that is kept from save to save.

Torch throws away what it copies a state to unless it is given a stager that is kept; memory that is touched
for the first time costs several times the copy. A copy that somebody may still read is never overwritten:
the next one gets other memory then.
"""

from __future__ import annotations

import copy
import os
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor

from forebay._forebay import InvalidInputError, OutOfSpaceError
from forebay._staging import Staging, is_on_gpu
from forebay._state import Slice

# Tensors begin at such multiples: at pages, where they are large enough for direct writes.
_ALIGN, _ALIGN_LARGE = 64, 4096

# Areas that are kept: one is written from while the next is filled.
_AREAS_MAX = 2

# Where torch makes memory that processes share.
_SHARED_FOLDER = "/dev/shm"


class _Staged(dict[str, Any]):
    """What a stager gives: when it is gone, so is the last reader of its memory."""


@dataclass
class _Area:
    """Memory of one copy."""

    staging: Staging = field(default_factory=lambda: Staging(None))
    # With memory that processes share, these and not the staging: one for each tensor.
    shared: list[Any] = field(default_factory=list)
    reader: weakref.ref[_Staged] | None = None

    @property
    def is_free(self) -> bool:
        return self.reader is None or self.reader() is None


class ForebayStager(AsyncStager):
    """Copies a state for ``dcp.async_save``, into memory that is kept.

    >>> stager = ForebayStager()
    >>> dcp.async_save(state, storage_writer=writer, async_stager=stager)

    ``stage`` returns once everything is copied: the tensors may be changed then. Copies from GPUs go to
    pinned memory, on a stream of their own.

    Args:
        shared: memory that processes share, for ``AsyncCheckpointerType.PROCESS``; without it, torch copies
            once more to reach the other process. It is taken from /dev/shm, which must be large enough.

    """

    _synchronize_after_execute = True

    def __init__(self, shared: bool = False) -> None:
        """Without memory yet."""
        self._is_shared = shared
        self._areas: list[_Area] = []
        self._is_closed = False
        self.allocations = 0

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Nothing is left to be waited for."""
        return True

    def synchronize_staging(self) -> None:
        """Return at once: ``stage`` has copied everything."""

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Give a copy of a state that does not change with it."""
        if self._is_closed:
            raise InvalidInputError("the stager is closed")
        walk = _Walk()
        walk.visit(state_dict)
        area = next((one for one in self._areas if one.is_free), None)
        if area is None:
            area = _Area()
            self._areas = [*self._areas, area][-_AREAS_MAX:]
        walk.fill(self._base(area, walk), area)
        staged = _Staged(walk.rebuild(state_dict))
        area.reader = weakref.ref(staged)
        return staged

    def _base(self, area: _Area, walk: _Walk) -> Any:
        """Give memory for everything: one buffer, or shared bytes for each tensor."""
        if not self._is_shared:
            before = area.staging.allocations
            is_pinned = any(is_on_gpu(part.source) for part in walk.parts)
            buffer = area.staging.fit(walk.nbytes, is_pinned=is_pinned)
            self.allocations += area.staging.allocations - before
            return buffer
        sizes = [part.nbytes for part in walk.parts]
        kept = area.shared + [None] * (len(sizes) - len(area.shared))
        new = [size for size, one in zip(sizes, kept, strict=False) if one is None or one.numel() < size]
        if new:
            free = os.statvfs(_SHARED_FOLDER)
            if sum(new) > free.f_bavail * free.f_frsize:
                raise OutOfSpaceError(
                    f"{sum(new)} bytes are to be staged, and {_SHARED_FOLDER} has room for "
                    f"{free.f_bavail * free.f_frsize}"
                )
            # One for each: torch cannot send a DTensor that begins in the middle of shared memory.
            area.shared = [
                _shared(size) if one is None or one.numel() < size else one
                for size, one in zip(sizes, kept, strict=False)
            ]
            self.allocations += 1
        return area.shared

    @property
    def nbytes(self) -> int:
        """How much memory is kept."""
        return sum(one.staging.nbytes + sum(int(flat.numel()) for flat in one.shared) for one in self._areas)

    def close(self) -> None:
        """Give the memory back, once nobody reads it any more."""
        self._is_closed = True
        for area in self._areas:
            if area.is_free:
                area.staging.release()
        self._areas = []


class _Walk:
    """Finds the tensors of a state, and makes another state around their copies."""

    def __init__(self) -> None:
        self.parts: list[Slice] = []
        self.places: list[int] = []
        self.nbytes = 0
        # By the identity of the tensor: its number; and by where it lies, since tied tensors share a copy.
        self.numbers: dict[int, int] = {}
        self.homes: dict[Any, int] = {}
        self.copies: list[Any] = []

    def visit(self, value: Any) -> None:
        if isinstance(value, dict):
            for item in value.values():
                self.visit(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.visit(item)
        elif isinstance(value, DTensor):
            self.add(value._local_tensor)
        elif _is_plain(value):
            self.add(value)

    def add(self, tensor: Any) -> None:
        if id(tensor) in self.numbers or not _is_plain(tensor):
            return
        plain = tensor.detach()
        nbytes = plain.numel() * plain.element_size()
        if nbytes > 0:
            self.numbers[id(tensor)] = self.homes.setdefault(_home(plain), len(self.parts))
            if self.numbers[id(tensor)] < len(self.parts):
                return
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        align = _ALIGN_LARGE if nbytes >= _ALIGN_LARGE else _ALIGN
        place = -(-self.nbytes // align) * align
        self.numbers[id(tensor)] = len(self.parts)
        shape = tuple(plain.shape)
        self.parts.append(Slice("", "", shape, (0,) * len(shape), shape, plain, nbytes))
        self.places.append(place)
        self.nbytes = place + nbytes

    def fill(self, base: Any, area: _Area) -> None:
        if isinstance(base, list):
            for part, flat in zip(self.parts, base, strict=False):
                self.copies.append(_view(flat[: part.nbytes], part))
                self.copies[-1].copy_(part.source)
            return
        area.staging.copy(base, self.parts, self.places)
        for part, place in zip(self.parts, self.places, strict=True):
            if part.nbytes == 0:
                self.copies.append(torch.empty(part.shape, dtype=part.source.dtype))
                continue
            flat = torch.frombuffer(base, dtype=torch.uint8, count=part.nbytes, offset=place)
            self.copies.append(_view(flat, part))

    def copy_of(self, tensor: Any) -> Any:
        number = self.numbers.get(id(tensor))
        return tensor.detach().cpu().clone() if number is None else self.copies[number]

    def rebuild(self, value: Any) -> Any:
        if isinstance(value, DTensor):
            # By the constructor: from_local would bring the copy back to the device of the mesh.
            return DTensor(self.copy_of(value._local_tensor), value._spec, requires_grad=False)
        if isinstance(value, ShardedTensor):
            is_here = all(shard.tensor.device.type == "cpu" for shard in value.local_shards())
            return copy.deepcopy(value) if is_here else value.to(device="cpu")
        if isinstance(value, torch.Tensor):
            return self.copy_of(value)
        if isinstance(value, dict):
            made = {key: self.rebuild(item) for key, item in value.items()}
            return made if type(value) is dict else _like(value, made)
        if isinstance(value, list):
            return [self.rebuild(item) for item in value]
        if isinstance(value, tuple):
            items = [self.rebuild(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return copy.deepcopy(value)


def _is_plain(value: Any) -> bool:
    """Say whether it is a tensor whose elements lie in memory that can be copied as it is."""
    if not isinstance(value, torch.Tensor) or isinstance(value, (DTensor, ShardedTensor)):
        return False
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    is_strided = value.layout == torch.strided and not value.is_quantized and value.device.type != "meta"
    return is_strided and not is_traceable_wrapper_subclass(value)


def _home(plain: Any) -> tuple[Any, ...]:
    """Say where a tensor lies, and how it is read from there."""
    where = (str(plain.device), plain.untyped_storage().data_ptr(), plain.storage_offset())
    how = (plain.dtype, tuple(plain.shape), plain.stride(), plain.is_conj(), plain.is_neg())
    return (*where, *how)


def _shared(nbytes: int) -> Any:
    storage = torch.UntypedStorage._new_shared(max(nbytes, 1), device="cpu")
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _view(flat: Any, part: Slice) -> Any:
    return flat.view(part.source.dtype).view(part.shape)


def _like(value: Any, made: dict[Any, Any]) -> Any:
    """Give a dict of the same kind, where that can be made from items."""
    empty = copy.copy(value)
    empty.clear()
    empty.update(made)
    return empty
