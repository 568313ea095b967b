"""Between the plans of torch.distributed.checkpoint and checkpoints: names, structures, metadata.

Torch names what it saves by dotted paths, and remembers the path of each name. A checkpoint has a structure
with names in it. Here one becomes the other, by torch's own rules of flattening, so that what one has saved
the other can load.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan

from forebay._arrays import torch_shape
from forebay._forebay import EntryName, InvalidInputError, NativeCheckpoint, Typed, UnsupportedError
from forebay._loading import _TORCH, Entries, Entry, entries_of, own_rank
from forebay._state import _NAMES, STRUCTURE, Slice, _check_plain, _known, refuse
from forebay._structures import Structures

CheckpointId = int | str | os.PathLike[str]

# Of metadata, as torch's own storage notes it; older ones note none.
VERSION = getattr(filesystem, "CURRENT_DCP_VERSION", None)

# The number that the last part of a path ends with.
_NUMBER = re.compile(r"([0-9]+)$")


def _place_of(text: str) -> str:
    """Give one text for one place, however it was written."""
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return text.rstrip("/") if "://" in text else os.path.abspath(text)


def step_of(checkpoint_id: CheckpointId, url: str) -> int | None:
    """Give the step that a checkpoint id names: the number it ends with; None of the place itself."""
    if isinstance(checkpoint_id, int):
        return checkpoint_id
    text = os.fspath(checkpoint_id)
    if _place_of(text) == _place_of(url):
        return None
    folder, _, last = text.rstrip("/").rpartition("/")
    if folder and _place_of(folder) != _place_of(url):
        raise InvalidInputError(f"checkpoint_id '{text}' is not in {url}, where this one reads and writes")
    number = _NUMBER.search(last)
    if number is None:
        raise InvalidInputError(f"checkpoint_id '{text}' does not end with a number, which is its step")
    return int(number[1])


def slice_of(name: str, shape: Sequence[int], offsets: Sequence[int], tensor: Any) -> Slice | None:
    """Describe what is saved of a tensor; None where that is nothing and others have the rest of it."""
    _check_plain(torch, tensor, name)
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    plain, dtype, _ = _known(torch, plain, name)
    sides = [tuple(shape), tuple(offsets), tuple(plain.shape)]
    if plain.numel() == 0:
        if 0 not in sides[0]:
            return None
        # Of a tensor without elements, somebody must say that it is there.
        sides = [sides[0], (0,) * len(sides[0]), sides[0]]
    if dtype == "F4":
        if not sides[0]:
            raise refuse(name, "a tensor of float4 needs a dimension")
        # The format counts values, torch bytes of two.
        sides = [(*side[:-1], side[-1] * 2) for side in sides]
    nbytes = plain.numel() * plain.element_size()
    return Slice(name, dtype, sides[0], sides[1], sides[2], plain, nbytes)


def structure_for(metadata: Metadata) -> Any:
    """Give the structure of a state that is saved under names, for those who load it without planners."""
    paths = metadata.planner_data if isinstance(metadata.planner_data, Mapping) else {}
    nested: dict[str, Any] = {}
    for name, kind in metadata.state_dict_metadata.items():
        leaf: Any = EntryName(name)
        if isinstance(kind, TensorStorageMetadata):
            own = str(kind.properties.dtype).removeprefix("torch.")
            if own not in _NAMES:
                leaf = Typed("torch.dtype", (own, leaf))
        set_element(nested, tuple(paths.get(name, (name,))), leaf)
    return nested


def alike_of(plans: Sequence[SavePlan]) -> list[tuple[int, ...]]:
    """Give each item of each plan a number: the same for tensors of which all ranks have the same boxes.

    Whatever else is known of two of them on one rank, such as that they share their memory, goes for all of
    both where it is known on every rank.
    """
    boxes: dict[str, list[Any]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            data = item.tensor_data
            kind: Any = None
            if data is not None and data.chunk is not None:
                chunk = data.chunk
                kind = (str(data.properties.dtype), *map(tuple, (data.size, chunk.offsets, chunk.sizes)))
            boxes.setdefault(item.index.fqn, []).append((rank, kind))
    numbers: dict[Any, int] = {}
    own = {
        name: numbers.setdefault(tuple(sorted(found, key=repr)), len(numbers))
        for name, found in boxes.items()
    }
    return [tuple(own[item.index.fqn] for item in plan.items) for plan in plans]


@dataclass
class Named:
    """What is under a name of torch's in a checkpoint."""

    # The entry of a tensor; None of values.
    entry: str | None
    # As it is in the structure.
    leaf: Any
    # A dtype that the format has no name for.
    dtype: Any = None


@dataclass
class Contents:
    """A checkpoint as torch sees it."""

    native: NativeCheckpoint
    entries: Entries
    # The one that saved what this rank takes of objects that are each rank's own.
    rank: int | None
    named: dict[str, Named] = field(default_factory=dict)
    metadata: Metadata = field(default_factory=lambda: Metadata({}))


class _Value:
    """In a skeleton: something that is no tensor, and no container for torch either."""


def contents_of(native: NativeCheckpoint, rank: int, world: int) -> Contents:
    """Look at everything a checkpoint has, but for the bytes of tensors."""
    found = Contents(native, entries_of(native), own_rank(native, rank))
    structure = Structures(native, found.entries, rank, world).everything()
    if isinstance(structure, Typed) and structure.kind in {"OrderedDict", "defaultdict"}:
        structure = structure.value if structure.kind == "OrderedDict" else structure.value[1]
    if not isinstance(structure, dict):
        raise UnsupportedError(
            "torch.distributed.checkpoint loads dicts, and the state of this checkpoint is none"
        )
    skeleton = _Skeleton(found.entries)
    try:
        flat, paths = flatten_state_dict({key: skeleton.make(item) for key, item in structure.items()})
    except ValueError as error:
        raise UnsupportedError(f"torch cannot name what is in this checkpoint: {error}") from error
    kinds: dict[str, Any] = {}
    for name, value in flat.items():
        leaf = _follow(structure, paths[name])
        tensor = skeleton.tensors.get(id(value))
        if tensor is None:
            found.named[name] = Named(None, leaf)
            kinds[name] = BytesStorageMetadata()
            continue
        entry, dtype = tensor
        found.named[name] = Named(entry, leaf, dtype)
        kinds[name] = TensorStorageMetadata(
            properties=TensorProperties(dtype=value.dtype),
            size=value.size(),
            # Whatever the parts it was saved in: any box of it can be read.
            chunks=[ChunkStorageMetadata(offsets=torch.Size([0] * value.dim()), sizes=value.size())],
        )
    found.metadata = Metadata(kinds, planner_data=paths, storage_data={})
    if VERSION is not None:
        found.metadata.version = VERSION
    return found


class _Skeleton:
    """A state without its bytes: containers as torch sees them, tensors without memory."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        # By the identity of the tensor that stands for it.
        self.tensors: dict[int, tuple[str, Any]] = {}
        self.kept: list[Any] = []

    def make(self, value: Any) -> Any:
        if isinstance(value, EntryName):
            entry = self.entries.get(value.name)
            if entry is not None and entry.kind in {"tensor", "alias"}:
                return self.tensor(value.name, entry, None)
            return _Value()
        if isinstance(value, Typed):
            if value.kind == "OrderedDict":
                return self.make(value.value)
            if value.kind == "defaultdict":
                return self.make(value.value[1])
            if value.kind == "torch.dtype" and isinstance(value.value, tuple):
                own, name = value.value
                return self.tensor(name.name, self.entries[name.name], getattr(torch, own))
            return _Value()
        if isinstance(value, dict):
            return {key: self.make(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.make(item) for item in value]
        return _Value()

    def tensor(self, name: str, entry: Entry, dtype: Any) -> Any:
        own = dtype if dtype is not None else getattr(torch, _TORCH.get(entry.dtype, ""), None)
        if own is None:
            # Others can be loaded; this one is refused when somebody asks for it.
            return _Value()
        made = torch.empty(torch_shape(entry.dtype, entry.shape), dtype=own, device="meta")
        self.tensors[id(made)] = (name, dtype)
        self.kept.append(made)
        return made


def _follow(structure: Any, path: Iterable[Any]) -> Any:
    """Go down a structure; torch has keys as texts."""
    for step in path:
        if isinstance(structure, Typed):
            structure = structure.value if structure.kind == "OrderedDict" else structure.value[1]
        if isinstance(structure, dict) and step not in structure:
            step = next(key for key in structure if str(key) == step)
        structure = structure[step]
    return structure


__all__ = [
    "STRUCTURE",
    "VERSION",
    "CheckpointId",
    "Contents",
    "Named",
    "alike_of",
    "contents_of",
    "slice_of",
    "step_of",
    "structure_for",
]
