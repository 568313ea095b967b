"""States taken apart and put together again: from nested containers to named tensors and a typed structure.

What is saved is the structure (containers, numbers, texts: values that need no pickle) with a name wherever a
tensor belongs, and the tensors under these names. Neither torch nor numpy is imported here: who has objects
of theirs has imported them.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from forebay._arrays import DTYPE_NAMES
from forebay._forebay import EntryName, InvalidInputError, Typed

# The entry that has the structure of a rank.
STRUCTURE = "forebay.state"

# What names of tensors begin with that are each rank's own; the number of the rank follows.
PER_RANK = "ranks."

# Containers below each other; the format takes 64 levels, and typed values take two of them.
DEPTH_MAX = 30

# Bytes of an object that is pickled: what the format takes.
PICKLE_BYTES_MAX = 64 << 20

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_KEYS = (type(None), bool, int, float, str, bytes)
_NAMES = {**DTYPE_NAMES, "complex128": "C128"}
# Types of defaults that a defaultdict may have: those that mean the same everywhere.
_FACTORIES = {kind.__name__: kind for kind in (int, float, bool, str, list, dict, set, tuple)}
# As what torch shows bits of dtypes that have no name in the format.
_BITS = {1: ("uint8", "U8"), 2: ("int16", "I16"), 4: ("int32", "I32"), 8: ("int64", "I64")}


@dataclass
class Slice:
    """A box of a tensor that this rank has."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    source: Any
    nbytes: int

    @property
    def is_whole(self) -> bool:
        """All of its tensor."""
        return self.lengths == self.shape

    def row(self) -> tuple[str, str, list[int], list[int], list[int]]:
        """As the extension module takes it."""
        return self.name, self.dtype, list(self.shape), list(self.offsets), list(self.lengths)

    def box(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """Say what it is, whoever has it."""
        return self.name, self.offsets, self.lengths


# Target, dtype, first element, shape and strides.
Alias = tuple[str, str, int, list[int], list[int]]


@dataclass
class Flat:
    """A state, taken apart."""

    structure: Any = None
    slices: list[Slice] = field(default_factory=list)
    aliases: dict[str, Alias] = field(default_factory=dict)
    opaques: dict[str, bytes] = field(default_factory=dict)


def refuse(path: str, why: str) -> InvalidInputError:
    """Give the error about a place in a state."""
    return InvalidInputError(f"{path or 'the state'}: {why}")


def said(value: Any) -> str:
    """Say what an object is."""
    kinds = {
        types.FunctionType: "a function",
        types.LambdaType: "a function",
        types.BuiltinFunctionType: "a function",
        types.MethodType: "a method",
        types.ModuleType: "a module",
        type: "a class",
    }
    if type(value) in kinds:
        return kinds[type(value)]
    kind = type(value)
    where = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"an object of type {where}{kind.__qualname__}"


def is_stateful(value: Any) -> bool:
    """Say whether an object has a state of its own: modules, optimizers, schedulers, loaders."""
    return not isinstance(value, type) and callable(getattr(value, "state_dict", None))


def is_tensor(value: Any) -> bool:
    """Say whether it is a tensor of torch, of whatever kind."""
    torch = sys.modules.get("torch")
    return torch is not None and (isinstance(value, torch.Tensor) or _is_sharded(value))


def is_array(value: Any) -> bool:
    """Say whether it is an array of numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_sharded(value: Any) -> bool:
    module = sys.modules.get("torch.distributed._shard.sharded_tensor")
    return module is not None and isinstance(value, module.ShardedTensor)


def _is_dtensor(value: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def flatten(state: Any, *, allow_pickle: bool = False, rank: int = 0, per_rank: tuple[str, ...] = ()) -> Flat:
    """Take a state apart.

    Below the keys of `per_rank` at the top, tensors get names of this rank's own.
    """
    walk = _Walk(allow_pickle, rank, per_rank)
    walk.flat.structure = walk.visit(state, (), "", 0)
    walk.share()
    return walk.flat


class _Walk:
    def __init__(self, allow_pickle: bool, rank: int, per_rank: tuple[str, ...]) -> None:
        self.flat = Flat()
        self.allow_pickle = allow_pickle
        self.rank = rank
        self.per_rank = per_rank
        self.taken = {STRUCTURE}
        self.above: list[int] = []

    def name(self, parts: tuple[str, ...]) -> str:
        if parts and parts[0] in self.per_rank:
            parts = (f"{PER_RANK}{self.rank}", *parts)
        name = ".".join(parts) or "value"
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name

    def visit(self, value: Any, parts: tuple[str, ...], path: str, depth: int) -> Any:
        if type(value) in _PLAIN:
            return value
        if depth > DEPTH_MAX:
            raise refuse(path, f"it is nested more than {DEPTH_MAX} levels deep")
        if isinstance(value, (dict, list, tuple, set, frozenset)):
            return self.container(value, parts, path, depth)
        if is_tensor(value):
            return self.tensor(value, parts, path)
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if is_array(value):
            if numpy is not None and isinstance(value, numpy.ma.MaskedArray):
                raise refuse(path, "a masked array would come back without its mask: save data and mask")
            return self.array(value, parts, path)
        if numpy is not None and isinstance(value, numpy.generic):
            return Typed("numpy.scalar", _inline(value, path))
        if torch is not None and isinstance(value, torch.dtype):
            return Typed("torch.dtype", str(value).removeprefix("torch."))
        if torch is not None and isinstance(value, torch.device):
            return Typed("torch.device", str(value))
        if is_stateful(value):
            return self.visit(value.state_dict(), parts, path, depth + 1)
        return self.other(value, parts, path)

    def container(self, value: Any, parts: tuple[str, ...], path: str, depth: int) -> Any:
        if id(value) in self.above:
            raise refuse(path, "it contains itself")
        self.above.append(id(value))
        try:
            return self.container_of(value, parts, path, depth)
        finally:
            self.above.pop()

    def container_of(self, value: Any, parts: tuple[str, ...], path: str, depth: int) -> Any:
        kind = type(value)
        if kind in (dict, OrderedDict, defaultdict):
            made = {
                _key(key, path): self.visit(item, (*parts, _text(key)), _below(path, key), depth + 1)
                for key, item in value.items()
            }
            if kind is dict:
                return made
            if kind is OrderedDict:
                return Typed("OrderedDict", made)
            factory = value.default_factory
            if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
                raise refuse(path, f"a defaultdict that makes {said(factory)} cannot be saved")
            return Typed("defaultdict", (factory and factory.__name__, made))
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Size:
            return Typed("torch.Size", tuple(value))
        if kind in (list, tuple):
            items = (
                self.visit(item, (*parts, str(index)), f"{path}[{index}]", depth + 1)
                for index, item in enumerate(value)
            )
            return kind(items)
        if kind in (set, frozenset):
            for item in value:
                _key(item, path)
            # One state has one encoding.
            return Typed(kind.__name__, sorted(value, key=lambda item: (type(item).__name__, repr(item))))
        if is_stateful(value):
            return self.visit(value.state_dict(), parts, path, depth + 1)
        return self.other(value, parts, path)

    def other(self, value: Any, parts: tuple[str, ...], path: str) -> Any:
        if not self.allow_pickle:
            raise refuse(
                path, f"{said(value)} cannot be saved without pickle (allow_pickle=True, here and at loading)"
            )
        try:
            data = pickle.dumps(value, protocol=5)
        except Exception as error:
            raise refuse(path, f"{said(value)} cannot be pickled: {error}") from error
        if len(data) > PICKLE_BYTES_MAX:
            raise refuse(path, f"{said(value)} takes more than 64 MiB as a pickle")
        name = self.name(parts)
        self.flat.opaques[name] = data
        return EntryName(name)

    def array(self, value: Any, parts: tuple[str, ...], path: str) -> Any:
        dtype = _NAMES.get(value.dtype.name)
        if dtype is None or value.dtype.hasobject or value.dtype.fields:
            return _inline(value, path)
        name = self.name(parts)
        shape = tuple(value.shape)
        whole = Slice(name, dtype, shape, (0,) * len(shape), shape, value, value.nbytes)
        self.flat.slices.append(whole)
        return Typed("numpy.ndarray", EntryName(name))

    def tensor(self, value: Any, parts: tuple[str, ...], path: str) -> Any:
        torch = sys.modules["torch"]
        if _is_sharded(value):
            shape = tuple(value.metadata().size)
            boxes = [
                (tuple(shard.metadata.shard_offsets), tuple(shard.metadata.shard_sizes), shard.tensor)
                for shard in value.local_shards()
            ]
        elif _is_dtensor(value):
            shape = tuple(value.shape)
            offsets, local = local_box(value, path)
            boxes = [(offsets, tuple(local.shape), local)]
        else:
            _check_plain(torch, value, path)
            shape = tuple(value.shape)
            boxes = [((0,) * len(shape), shape, value)]
        name = self.name(parts)
        exotic = None
        for offsets, lengths, local in boxes:
            plain = local.detach()
            if plain.is_conj() or plain.is_neg():
                plain = plain.resolve_conj().resolve_neg()
            plain, dtype, exotic = _known(torch, plain, path)
            if plain.numel() == 0 and lengths != shape:
                continue
            sides = [shape, offsets, lengths]
            if dtype == "F4":
                if not shape:
                    raise refuse(path, "a tensor of float4 needs a dimension")
                # The format counts values, torch bytes of two.
                sides = [(*side[:-1], side[-1] * 2) for side in sides]
            nbytes = plain.numel() * plain.element_size()
            self.flat.slices.append(Slice(name, dtype, sides[0], sides[1], sides[2], plain, nbytes))
        if exotic is not None:
            return Typed("torch.dtype", (exotic, EntryName(name)))
        return EntryName(name)

    def share(self) -> None:
        """Leave out what another tensor has in its memory: it becomes another name of that one."""
        groups: dict[Any, list[Slice]] = {}
        for part in self.flat.slices:
            if part.nbytes > 0:
                groups.setdefault((_storage(part.source), part.dtype), []).append(part)
        gone: set[int] = set()
        for members in groups.values():
            if len(members) > 1:
                for part, alias in _aliases(members):
                    self.flat.aliases[part.name] = alias
                    gone.add(id(part))
        if gone:
            self.flat.slices = [part for part in self.flat.slices if id(part) not in gone]


def _aliases(members: list[Slice]) -> Iterator[tuple[Slice, Alias]]:
    """Find those of one storage and dtype that another of them has in its memory.

    Whatever has all of a tensor begins where that does, or before. So in the order of their first elements,
    of those that others can lie in the one that reaches furthest is enough to ask.
    """
    same: dict[Any, Slice] = {}
    furthest: Slice | None = None
    end = -1
    for part in sorted(members, key=_order):
        first, strides = _strides(part.source)
        key = (first, strides, tuple(part.source.shape), part.shape, part.offsets, part.lengths)
        bases = [base for base in (same.get(key), furthest) if base is not None]
        found = next((alias for base in bases if (alias := _alias(part, base)) is not None), None)
        if found is not None:
            yield part, found
            continue
        same[key] = part
        if _is_base(part) and first + _count(part.source) > end:
            furthest, end = part, first + _count(part.source)


def _order(part: Slice) -> tuple[int, bool, int]:
    """Those that others can lie in before those that cannot, the largest of them first."""
    return _strides(part.source)[0], not _is_base(part), -part.nbytes


def _is_base(part: Slice) -> bool:
    """Say whether all of its memory is its elements in their order, so that others can lie in it."""
    return part.is_whole and part.dtype != "F4" and list(_strides(part.source)[1]) == _dense(part.shape)


def _count(source: Any) -> int:
    return int(source.size if is_array(source) else source.numel())


def local_box(value: Any, path: str) -> tuple[tuple[int, ...], Any]:
    """Give the first element and the local part of a DTensor."""
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:
        from torch.distributed._tensor._utils import compute_local_shape_and_global_offset
    if any(placement.is_partial() for placement in value.placements):
        raise refuse(path, "a DTensor with sums that are not made yet cannot be saved or loaded into")
    _, offsets = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    local = value.to_local()
    if local.numel() == 0:
        offsets = (0,) * value.dim()
    return tuple(int(offset) for offset in offsets), local


def _check_plain(torch: Any, value: Any, path: str) -> None:
    if value.layout != torch.strided:
        raise refuse(
            path, f"a tensor of layout {value.layout} cannot be saved; to_dense() makes one that can"
        )
    if value.is_quantized:
        raise refuse(path, "a quantized tensor cannot be saved; int_repr() and its scales can")
    if value.device.type == "meta":
        raise refuse(path, "a tensor on the device meta has no bytes")
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if is_traceable_wrapper_subclass(value):
        raise refuse(path, f"{said(value)} is made of other tensors; save those")


def _known(torch: Any, value: Any, path: str) -> tuple[Any, str, str | None]:
    """Give the tensor under a dtype that the format has, with the name of its own where that is another."""
    own = str(value.dtype).removeprefix("torch.")
    dtype = _NAMES.get(own)
    if dtype is not None:
        return value, dtype, None
    bits = _BITS.get(value.element_size())
    if bits is None:
        raise refuse(path, f"a tensor of dtype {own} cannot be saved")
    try:
        return value.view(getattr(torch, bits[0])), bits[1], own
    except RuntimeError as error:
        raise refuse(path, f"a tensor of dtype {own} cannot be saved: {error}") from error


def _storage(source: Any) -> Any:
    if is_array(source):
        return source.__array_interface__["data"][0]
    return str(source.device), source.untyped_storage().data_ptr()


def _strides(source: Any) -> tuple[int, tuple[int, ...]]:
    """Give the first element in the storage, and strides, both in elements."""
    if is_array(source):
        return 0, tuple(stride // max(source.itemsize, 1) for stride in source.strides)
    return source.storage_offset(), tuple(source.stride())


def _alias(part: Slice, base: Slice) -> Alias | None:
    """How `part` is seen in the memory of `base`, if it is."""
    first, strides = _strides(part.source)
    of, base_strides = _strides(base.source)
    shape = tuple(part.source.shape)
    is_same = (first, shape, strides) == (of, tuple(base.source.shape), base_strides)
    if is_same and (part.shape, part.offsets, part.lengths) == (base.shape, base.offsets, base.lengths):
        return base.name, part.dtype, 0, list(part.shape), _dense(part.shape)
    if part.dtype == "F4" or not part.is_whole or not _is_base(base):
        return None
    if first < of or any(stride < 0 for stride in strides):
        return None
    last = first - of + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if last >= _count(base.source):
        return None
    return base.name, part.dtype, first - of, list(shape), list(strides)


def _dense(shape: tuple[int, ...]) -> list[int]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def _inline(value: Any, path: str) -> Typed:
    """Give a small array or a scalar of numpy as a value."""
    numpy = sys.modules["numpy"]
    array = numpy.asarray(value)
    dtype = array.dtype
    if (
        dtype.hasobject
        or dtype.fields
        or dtype.kind not in "biufcSV"
        or (dtype.name in _NAMES and dtype.kind == "V")
    ):
        raise refuse(path, f"an array of dtype {dtype} cannot be saved")
    little = array.astype(dtype.newbyteorder("<")) if dtype.byteorder == ">" else array
    return Typed("array", (little.dtype.newbyteorder("<").str, list(array.shape), little.tobytes()))


def _key(key: Any, path: str) -> Any:
    if type(key) in _KEYS:
        return key
    if type(key) is tuple:
        return tuple(_key(item, path) for item in key)
    raise refuse(path, f"{said(key)} cannot be a key")


def _text(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


def _below(path: str, key: Any) -> str:
    if isinstance(key, str):
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"


# From the name of an entry, and whether it was an array of numpy, to what is there.
Resolve = Callable[[str, bool], Any]


def unflatten(value: Any, resolve: Resolve) -> Any:
    """Put a structure together again."""
    if isinstance(value, EntryName):
        return resolve(value.name, False)
    if isinstance(value, Typed):
        return _typed(value.kind, value.value, resolve)
    if isinstance(value, dict):
        return {key: unflatten(item, resolve) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(unflatten(item, resolve) for item in value)
    return value


def _typed(kind: str, value: Any, resolve: Resolve) -> Any:
    if kind == "OrderedDict":
        return OrderedDict(unflatten(value, resolve))
    if kind == "defaultdict":
        factory, items = value
        return defaultdict(factory and _FACTORIES[factory], unflatten(items, resolve))
    if kind in {"set", "frozenset"}:
        return set(value) if kind == "set" else frozenset(value)
    if kind == "numpy.ndarray":
        return resolve(value.name, True)
    if kind in {"array", "numpy.scalar"}:
        import numpy

        if kind == "numpy.scalar":
            return _typed("array", value.value, resolve)[()]
        dtype, shape, data = value
        return numpy.frombuffer(bytearray(data), dtype=numpy.dtype(dtype)).reshape(shape)
    if kind.startswith("torch."):
        import torch

        if kind == "torch.Size":
            return torch.Size(value)
        if kind == "torch.device":
            return torch.device(value)
        if isinstance(value, tuple):
            dtype, entry = value
            return resolve(entry.name, False).view(getattr(torch, dtype))
        return getattr(torch, value)
    # Values that other programs have named.
    return unflatten(value, resolve)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Go through what is in the containers of a structure, with dotted paths."""
    if isinstance(value, Typed) and value.kind in {"OrderedDict", "defaultdict"}:
        value = value.value if value.kind == "OrderedDict" else value.value[1]
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{_text(key)}" if path else _text(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{index}" if path else str(index))
    else:
        yield path, value


def entry_of(leaf: Any) -> str | None:
    """Give the name of the entry that a leaf of a structure stands for."""
    if isinstance(leaf, Typed) and leaf.kind == "numpy.ndarray":
        leaf = leaf.value
    if isinstance(leaf, Typed) and leaf.kind == "torch.dtype" and isinstance(leaf.value, tuple):
        leaf = leaf.value[1]
    return leaf.name if isinstance(leaf, EntryName) else None
