"""What plans of torch.distributed.checkpoint name, one by one: what a rank writes, and what it reads.

Tensors go as slices, from where they are; what is no tensor goes as a typed value, and comes back to planners
as they expect it: a pickle that was made here and now, of values that were read without one.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem, SavePlanner, WriteItem, WriteItemType

from forebay._dcp_plan import Contents, Named, slice_of
from forebay._forebay import Ledger, NotFoundError
from forebay._loading import Target, _Into, _Loaded, _torch_tensor
from forebay._state import STRUCTURE, Slice, _known, _Walk, entry_of, leaves, refuse, unflatten


class PlannerBytes(bytes):
    """In a checkpoint: bytes that a planner of the user's own has made, and that one has to read."""


class Parts:
    """What a rank writes, as plans name it."""

    def __init__(self, planner: SavePlanner, allow_pickle: bool) -> None:
        self.planner = planner
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


class Reading:
    """One load on one rank."""

    def __init__(self, contents: Contents, allow_pickle: bool) -> None:
        self.contents = contents
        self.ledger = Ledger()
        self.loaded = _Loaded(contents.native, contents.entries, allow_pickle, None, "torch", contents.rank)
        self.into = _Into(contents.native, contents.entries, True, allow_pickle)
        # Those that are filled where they are, and those that are copied: of other dtypes, or other names.
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
        if is_same and entry.alias is None:
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
        if entry.alias is not None:
            self.loaded.fetch([target.name])
            whole = self.loaded.get(target.name, False)
            for side, (offset, length) in enumerate(zip(target.offsets, target.lengths, strict=True)):
                whole = whole.narrow(side, offset, length)
            return whole if named.dtype is None else whole.view(named.dtype)
        row = (target.name, list(target.offsets), list(target.lengths), target.nbytes)
        (data,), ledger = self.contents.native.load([row])
        self.ledger = self.ledger + ledger
        tensor = _torch_tensor(target.name, entry.dtype, target.lengths, data)
        return tensor if named.dtype is None else tensor.view(named.dtype)
