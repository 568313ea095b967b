"""What plans of torch.distributed.checkpoint name, one by one: what a rank writes, and what it reads.

Tensors go as slices, from where they are; what is no tensor goes as a typed value, and comes back to planners
as they expect it: a pickle that was made here and now, of values that were read without one.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem, SavePlanner, WriteItem, WriteItemType

from forebay._dcp_plan import Contents, Named, slice_of
from forebay._forebay import Ledger, NotFoundError
from forebay._loading import Target, _Into, _Loaded, _torch_tensor
from forebay._state import (
    STRUCTURE,
    Slice,
    _dense,
    _known,
    _storage,
    _strides,
    _Walk,
    entry_of,
    leaves,
    refuse,
    unflatten,
)


class PlannerBytes(bytes):
    """In a checkpoint: bytes that a planner of the user's own has made, and that one has to read."""


class Parts:
    """What a rank writes, as plans name it."""

    def __init__(self, planner: SavePlanner, allow_pickle: bool) -> None:
        self.planner = planner
        # Names of tensors whose memory another name has, with that name.
        self.tied: dict[str, str] = {}
        self.allow_pickle = allow_pickle
        self.slices: list[Slice] = []
        self.others: list[tuple[str, str, Any]] = []
        self._boxes: set[Any] = set()
        kind = type(planner)
        # Objects can be had as they are of planners that do nothing with them but pickle.
        self.has_objects = isinstance(planner, DefaultSavePlanner) and (
            kind.resolve_data is DefaultSavePlanner.resolve_data
            and kind.transform_object is DefaultSavePlanner.transform_object
        )

    def add(self, item: WriteItem) -> int:
        """Take an item up; gives its bytes."""
        name = item.index.fqn
        if name == STRUCTURE:
            raise refuse(name, "that name is taken")
        if item.type == WriteItemType.BYTE_IO:
            return self.value(name, item)
        data = item.tensor_data
        if data is None or data.chunk is None:
            raise refuse(name, "the plan does not say which part of the tensor it is")
        tensor = self.planner.resolve_data(item)
        if tuple(tensor.shape) != tuple(data.chunk.sizes):
            raise refuse(
                name, f"the plan says {list(data.chunk.sizes)}, and the tensor is {list(tensor.shape)}"
            )
        part = slice_of(name, data.size, data.chunk.offsets, tensor)
        if part is None or part.box() in self._boxes:
            return 0
        self._boxes.add(part.box())
        self.slices.append(part)
        return part.nbytes

    def tie(self, alike: Mapping[str, int]) -> None:
        """Leave out what is in memory that another name has, too: it becomes another name of that one.

        Only where all ranks have the same boxes of both, which is what equal numbers in `alike` say: a tensor
        is written by all of them or by none.
        """
        homes: dict[str, list[Any]] = {}
        for part in self.slices:
            if part.name in alike:
                homes.setdefault(part.name, []).append(_home(part))
        first: dict[Any, str] = {}
        for name, boxes in homes.items():
            # In one order: no two boxes of a tensor have the same offsets and lengths.
            key = (alike[name], tuple(sorted(boxes, key=lambda home: home[:2])))
            base = first.setdefault(key, name)
            if base != name:
                self.tied[name] = base
        whole = {part.name: part for part in self.slices if part.name in self.tied}
        self.slices = [part for part in self.slices if part.name not in self.tied]
        for name, part in whole.items():
            alias = (self.tied[name], part.dtype, 0, list(part.shape), _dense(part.shape))
            self.others.append((name, "alias", alias))

    def value(self, name: str, item: WriteItem) -> int:
        """Take up what is no tensor: as a typed value, with the tensors in it beside it."""
        value: Any = None
        if self.has_objects:
            value = self.planner.lookup_object(item.index)
        else:
            data = self.planner.resolve_data(item)
            data.seek(0)
            try:
                value = torch.load(data, map_location="cpu", weights_only=True)
            except Exception:
                value = PlannerBytes(data.getvalue())
                if not self.allow_pickle:
                    raise refuse(
                        name,
                        "what the planner makes of it cannot be saved without pickle "
                        "(allow_pickle=True, here and at loading)",
                    ) from None
        if isinstance(value, PlannerBytes):
            pickled = pickle.dumps(value, protocol=5)
            self.others.append((name, "opaque", pickled))
            return len(pickled)
        walk = _Walk(self.allow_pickle, 0, ())
        structure = walk.visit(value, (f"{name}/value",), name, 0)
        walk.share()
        self.slices.extend(walk.flat.slices)
        self.others.append((name, "value", structure))
        self.others.extend((inner, "opaque", data) for inner, data in walk.flat.opaques.items())
        self.others.extend((inner, "alias", alias) for inner, alias in walk.flat.aliases.items())
        return sum(part.nbytes for part in walk.flat.slices)


def _home(part: Slice) -> tuple[Any, ...]:
    """Say what a box is and where it lies; tensors without elements lie nowhere, each for itself."""
    where = (_storage(part.source), *_strides(part.source)) if part.nbytes > 0 else (part.name,)
    return part.offsets, part.lengths, part.dtype, part.shape, tuple(part.source.shape), where


class Reading:
    """One load on one rank."""

    def __init__(self, contents: Contents, allow_pickle: bool) -> None:
        self.contents = contents
        self.ledger = Ledger()
        self.loaded = _Loaded(contents.native, contents.entries, allow_pickle, None, "torch", contents.rank)
        self.into = _Into(contents.native, contents.entries, True, allow_pickle)
        # Those that are filled where they are, and those of other dtypes, which are copied.
        self.same: list[Target] = []
        self.other: list[tuple[Target, Named]] = []

    def named(self, item: ReadItem) -> Named:
        name = item.storage_index.fqn
        if name not in self.contents.named:
            raise NotFoundError(f"there is nothing of the name {name} in the checkpoint")
        return self.contents.named[name]

    def values(self, items: list[ReadItem]) -> list[io.BytesIO]:
        """Read values, as planners take them: pickled here and now, from typed values."""
        found = [self.named(item).leaf for item in items]
        self.loaded.fetch(name for leaf in found for _, one in leaves(leaf) if (name := entry_of(one)))
        return [self.value(leaf) for leaf in found]

    def value(self, leaf: Any) -> io.BytesIO:
        value = unflatten(leaf, self.loaded.get)
        if isinstance(value, PlannerBytes):
            return io.BytesIO(value)
        data = io.BytesIO()
        torch.save(value, data)
        data.seek(0)
        return data

    def target(self, item: ReadItem, planner: LoadPlanner) -> Any:
        """Note where a box goes to; gives the tensor."""
        named = self.named(item)
        name = named.entry
        if name is None:
            raise refuse(item.storage_index.fqn, "it is a tensor here and something else in the checkpoint")
        tensor = planner.resolve_tensor(item)
        plain = tensor.detach()
        lengths = tuple(item.lengths)
        if tuple(plain.shape) != lengths:
            raise refuse(name, f"the plan says {list(lengths)}, and the tensor is {list(plain.shape)}")
        entry = self.contents.entries[name]
        offsets = tuple(item.storage_offsets)
        bits, dtype, own = _known(torch, plain, name)
        is_same = dtype == entry.dtype and (None if own is None else plain.dtype) == named.dtype
        if entry.dtype == "F4":
            offsets, lengths = ((*side[:-1], side[-1] * 2) for side in (offsets, lengths))
        nbytes = entry.nbytes(lengths)
        made = Target(name, name, offsets, lengths, bits if is_same else plain, nbytes, False)
        if nbytes == 0:
            return tensor
        if is_same:
            self.same.append(made)
        else:
            self.other.append((made, named))
        return tensor

    def fill(self) -> None:
        """Read everything."""
        self.ledger = self.into.read(self.same)
        for target, named in self.other:
            found = self._through(target, named)
            with torch.no_grad():
                target.tensor.copy_(found)

    def _through(self, target: Target, named: Named) -> Any:
        """Give a box as a tensor of its own."""
        entry = self.contents.entries[target.name]
        row = (target.name, list(target.offsets), list(target.lengths), target.nbytes)
        (data,), ledger = self.contents.native.load([row])
        self.ledger = self.ledger + ledger
        tensor = _torch_tensor(target.name, entry.dtype, target.lengths, data)
        return tensor if named.dtype is None else tensor.view(named.dtype)
