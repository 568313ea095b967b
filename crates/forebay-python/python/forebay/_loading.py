"""From an open checkpoint to states: put together anew, or filled in place."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from forebay._arrays import TORCH_NAMES, has, numpy_dtype, torch_shape
from forebay._forebay import (
    CorruptDataError,
    InvalidInputError,
    Ledger,
    NativeCheckpoint,
    NotFoundError,
    Typed,
    UnsupportedError,
)
from forebay._ranks import Ranks, share_out
from forebay._staging import address_of
from forebay._state import (
    PER_RANK,
    _is_dtensor,
    _is_sharded,
    _known,
    entry_of,
    is_array,
    is_stateful,
    is_tensor,
    leaves,
    local_box,
    refuse,
    unflatten,
)
from forebay._structures import Structures

# Bytes of tensors on devices that are loaded to the host at a time.
_DEVICE_BATCH_BYTES = 512 << 20

_TORCH = {**TORCH_NAMES, "C128": "complex128"}
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "C64": 8, "C128": 16, "F32": 4, "I32": 4, "U32": 4}
_BYTES |= {"F16": 2, "BF16": 2, "I16": 2, "U16": 2}


@dataclass
class Entry:
    """What is under a name."""

    kind: str
    dtype: str
    shape: list[int]
    # Of another name: the tensor, the first element and the strides.
    alias: tuple[str, int, list[int]] | None

    def nbytes(self, lengths: Sequence[int]) -> int:
        """Give the bytes of a box."""
        count = 1
        for length in lengths:
            count *= length
        if self.dtype == "F4":
            return count // 2
        if self.dtype.startswith("F6_"):
            return count * 6 // 8
        return count * _BYTES.get(self.dtype, 1)


Entries = dict[str, Entry]


def entries_of(native: NativeCheckpoint) -> Entries:
    """Give all entries by name."""
    return {name: Entry(kind, dtype, shape, alias) for name, kind, dtype, shape, alias in native.entries()}


def _torch_tensor(name: str, dtype: str, shape: Sequence[int], data: Any) -> Any:
    import torch

    own = getattr(torch, _TORCH.get(dtype, ""), None)
    if own is None:
        raise UnsupportedError(
            f"tensor '{name}' is of dtype {dtype}, which torch {torch.__version__} has not"
        )
    shape = torch_shape(dtype, shape)
    if len(data) == 0:
        return torch.empty(shape, dtype=own)
    return torch.frombuffer(data, dtype=torch.uint8).view(own).reshape(shape)


def _numpy_array(name: str, dtype: str, shape: Sequence[int], data: Any) -> Any:
    import numpy

    own = numpy.dtype("<c16") if dtype == "C128" else numpy_dtype(name, dtype)
    if len(data) == 0:
        return numpy.empty(shape, dtype=own)
    return numpy.frombuffer(data, dtype=own).reshape(shape)


class _Loaded:
    """Tensors that were loaded whole, by name."""

    def __init__(
        self,
        native: NativeCheckpoint,
        entries: Entries,
        allow_pickle: bool,
        device: Any,
        framework: str,
        rank: int | None = None,
    ) -> None:
        if framework not in {"auto", "torch", "numpy"}:
            raise InvalidInputError(f"there is no framework '{framework}'; one of: auto, torch, numpy")
        self.native = native
        self.entries = entries
        # Whose objects are taken where ranks have saved different ones; anybody's, without.
        self.rank = rank
        self.allow_pickle = allow_pickle
        self.device = device
        self.by_torch = framework == "torch" or (framework == "auto" and has("torch"))
        self.data: dict[str, Any] = {}
        self.made: dict[tuple[str, bool], Any] = {}
        # Values that are being put together.
        self.within: list[str] = []
        self.ledger = Ledger()

    def fetch(self, names: Iterable[str]) -> None:
        """Read what these names need, all at once."""
        wanted: dict[str, Entry] = {}
        for name in names:
            entry = self.entry(name)
            if entry.alias is not None:
                name = entry.alias[0]
                entry = self.entry(name)
            if entry.kind == "tensor" and name not in self.data:
                wanted[name] = entry
            elif entry.kind == "opaque" and not self.allow_pickle:
                raise UnsupportedError(
                    f"{name} was saved as a pickle, which can run any code: allow_pickle=True loads it"
                )
        rows = [
            (name, [0] * len(entry.shape), list(entry.shape), entry.nbytes(entry.shape))
            for name, entry in wanted.items()
        ]
        buffers, ledger = self.native.load(rows)
        self.data.update(zip(wanted, buffers, strict=True))
        self.ledger = self.ledger + ledger

    def entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise CorruptDataError(f"the state has a place for {name}, and there is nothing of that name")
        return self.entries[name]

    def get(self, name: str, is_numpy: bool) -> Any:
        """Give the tensor, array or object of a name, the same each time."""
        key = (name, is_numpy)
        if key not in self.made:
            self.made[key] = self._make(name, is_numpy)
        return self.made[key]

    def _make(self, name: str, is_numpy: bool) -> Any:
        entry = self.entry(name)
        if entry.kind in {"opaque", "tensor"} and name not in self.data:
            # Named by a value, which is not looked into before; pickles are refused here, too.
            self.fetch([name])
        if entry.kind == "opaque":
            data = None if self.rank is None else self.native.opaque(name, self.rank)
            if data is None:
                data = self.native.opaque(name)
            assert data is not None
            return pickle.loads(data)
        if entry.kind == "value":
            if name in self.within:
                raise CorruptDataError(f"the value {name} contains itself")
            self.within.append(name)
            made = unflatten(self.native.value(name), self.get)
            self.within.pop()
            return made
        by_numpy = is_numpy or not self.by_torch
        if entry.alias is not None:
            target, first, strides = entry.alias
            base = self.get(target, is_numpy)
            if self.entry(target).shape == entry.shape and first == 0 and _is_dense(entry.shape, strides):
                return base
            return _view(base, entry.shape, first, strides, by_numpy)
        data = self.data[name]
        if by_numpy:
            return _numpy_array(name, entry.dtype, entry.shape, data)
        tensor = _torch_tensor(name, entry.dtype, entry.shape, data)
        return tensor if self.device is None else tensor.to(self.device)


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _view(base: Any, shape: Sequence[int], first: int, strides: Sequence[int], by_numpy: bool) -> Any:
    last = first + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if last >= (base.size if by_numpy else base.numel()) and 0 not in shape:
        raise CorruptDataError("another name of a tensor has elements that the tensor has not")
    if not by_numpy:
        return base.as_strided(tuple(shape), tuple(strides), first)
    from numpy.lib.stride_tricks import as_strided

    flat = base.reshape(-1)[first:]
    return as_strided(flat, tuple(shape), tuple(stride * base.itemsize for stride in strides))


def load(
    native: NativeCheckpoint,
    reader: tuple[int, int],
    patterns: Sequence[str] | None,
    allow_pickle: bool,
    device: Any,
    framework: str,
) -> tuple[Any, Ledger]:
    """Give the state of a checkpoint, of what matches patterns a flat dict; and the way of its bytes.

    `reader` is which rank of how many loads it.
    """
    entries = entries_of(native)
    structure = Structures(native, entries, *reader).whole()
    found = [(path, leaf) for path, leaf in leaves(structure)]
    if patterns is not None:
        found = [row for row in found if any(fnmatchcase(row[0], pattern) for pattern in patterns)]
    names = [name for _, leaf in found if (name := entry_of(leaf)) is not None]
    loaded = _Loaded(native, entries, allow_pickle, device, framework, own_rank(native, reader[0]))
    loaded.fetch(names)
    if patterns is None:
        return unflatten(structure, loaded.get), loaded.ledger
    return {path: unflatten(leaf, loaded.get) for path, leaf in found}, loaded.ledger


def own_rank(native: NativeCheckpoint, rank: int) -> int | None:
    """Give the rank whose objects this one takes: that of its own number, where there was one."""
    return rank if rank < native.info()["world"] else None


@dataclass
class Target:
    """Memory that a box of a tensor goes to."""

    path: str
    name: str
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    tensor: Any
    nbytes: int
    # All of a tensor that is no part of a larger one: other ranks may have the same.
    is_whole: bool


class _Into:
    """A state that is filled: first everything is compared, then read, then values are set."""

    def __init__(
        self,
        native: NativeCheckpoint,
        entries: Entries,
        strict: bool,
        allow_pickle: bool,
        rank: int | None = None,
        partial: Collection[str] = (),
    ) -> None:
        self.native = native
        # Paths of what only some ranks have saved: it may be another one's.
        self.partial = partial
        self.entries = entries
        self.strict = strict
        self.targets: list[Target] = []
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.fresh = _Loaded(native, entries, allow_pickle, None, "auto", rank)
        self.names: list[str] = []
        # Objects, and what is made for them.
        self.stateful: list[tuple[Any, Any]] = []

    def visit(self, target: Any, saved: Any, path: str) -> Any:
        """Compare; gives a structure of what is to stand there, in which tensors stay."""
        saved = _inside(saved)
        if is_array(target) and isinstance(saved, Typed) and saved.kind == "array":
            return _Fresh(saved)
        if is_tensor(target) or is_array(target):
            return self.leaf(target, saved, path)
        if is_stateful(target) and not isinstance(target, (dict, list, tuple)):
            return self.object(target, saved, path)
        if isinstance(target, Mapping) and isinstance(saved, dict):
            return self.mapping(target, saved, path)
        if isinstance(target, (list, tuple)) and isinstance(saved, (list, tuple)):
            return self.sequence(target, saved, path)
        return self.fresh_of(saved)

    def fresh_of(self, saved: Any) -> _Fresh:
        """Have it loaded to memory of its own."""
        self.names.extend(name for _, leaf in leaves(saved) if (name := entry_of(leaf)) is not None)
        return _Fresh(saved)

    def left_over(self, here: Collection[Any], saved: dict[Any, Any], path: str) -> None:
        """Note what the checkpoint has and the target has not."""
        for key in saved:
            below = f"{path}.{key}" if path else str(key)
            if key not in here and below not in self.partial:
                self.unexpected.append(below)

    def mapping(self, target: Any, saved: dict[Any, Any], path: str) -> Any:
        made: dict[Any, Any] = {}
        for key, value in target.items():
            below = f"{path}.{key}" if path else str(key)
            if key in saved:
                made[key] = self.visit(value, saved[key], below)
            else:
                self.missing.append(below)
        self.left_over(set(target), saved, path)
        return _Filled(target, made)

    def sequence(self, target: Any, saved: Sequence[Any], path: str) -> Any:
        if len(target) != len(saved):
            if not target and isinstance(target, list):
                return self.fresh_of(saved)
            raise refuse(path, f"it has {len(target)} elements here and {len(saved)} in the checkpoint")
        pairs = zip(target, saved, strict=True)
        return _Filled(target, [self.visit(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(pairs)])

    def object(self, target: Any, saved: Any, path: str) -> Any:
        """Objects with a state of their own: modules are filled in place, others are given theirs."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(target, torch.nn.Module) and isinstance(saved, dict):
            return self.module(target, saved, path)
        if not callable(getattr(target, "load_state_dict", None)):
            raise refuse(path, "it has state_dict, but no load_state_dict")
        if torch is not None and isinstance(target, torch.optim.Optimizer) and isinstance(saved, dict):
            parameters = (one for group in target.param_groups for one in group["params"])
            if any(_is_dtensor(one) for one in parameters):
                return self.optimizer(target, saved, path)
        self.stateful.append((target, self.fresh_of(saved)))
        return _Kept(target)

    def module(self, target: Any, saved: dict[Any, Any], path: str) -> Any:
        """Fill what is memory of the module itself; copies that its state_dict has made are given to it."""
        own = target.state_dict()
        homes = {home for one in (*target.parameters(), *target.buffers()) for home in _homes(one)}
        made: dict[Any, Any] = {}
        is_given = False
        for key, value in own.items():
            below = f"{path}.{key}" if path else str(key)
            if key not in saved:
                self.missing.append(below)
            elif is_tensor(value) and all(home in homes for home in _homes(value)):
                self.leaf(value, saved[key], below)
                made[key] = _Kept(value)
            else:
                made[key] = self.fresh_of(saved[key])
                is_given = True
        self.left_over(own, saved, path)
        if is_given:
            self.stateful.append((target, _Filled(own, made)))
        return _Kept(target)

    def optimizer(self, target: Any, saved: dict[Any, Any], path: str) -> Any:
        """Fill the moments of tensors that are spread over ranks: whole ones would fit no rank."""
        own = target.state_dict()
        has_moments = set(own["state"]) >= set(_inside(saved.get("state", {})))
        if not has_moments:
            raise refuse(
                path,
                "its parameters are spread over ranks, and it has no moments yet that could be filled: "
                "get_state_dict of torch.distributed.checkpoint.state_dict gives a state that has",
            )
        self.stateful.append((target, self.mapping(own, saved, path)))
        return _Kept(target)

    def leaf(self, target: Any, saved: Any, path: str) -> Any:
        name = entry_of(saved)
        if name is None:
            raise refuse(path, "it is a tensor here and something else in the checkpoint")
        if name not in self.entries:
            raise CorruptDataError(f"the state has a place for {name}, and there is nothing of that name")
        entry = self.entries[name]
        if is_array(target) and not target.flags.writeable:
            raise refuse(path, "the array cannot be written to")
        for shape, offsets, local in boxes_of(target, path):
            self.box(target, entry, name, path, shape, offsets, local)
        return _Kept(target)

    def box(
        self,
        target: Any,
        entry: Entry,
        name: str,
        path: str,
        shape: tuple[int, ...],
        offsets: tuple[int, ...],
        local: Any,
    ) -> None:
        lengths = tuple(local.shape)
        if is_array(local):
            dtype = next((key for key, own in _TORCH.items() if own == local.dtype.name), "")
        else:
            if local.device.type == "meta":
                raise refuse(path, "a tensor on the device meta has no memory to load into")
            local, dtype, _ = _known(sys.modules["torch"], local, path)
        if dtype == "F4":
            shape, offsets, lengths = ((*side[:-1], side[-1] * 2) for side in (shape, offsets, lengths))
        if entry.dtype != dtype:
            raise refuse(path, f"its dtype is {dtype} here and {entry.dtype} in the checkpoint")
        if list(shape) != entry.shape:
            raise refuse(path, f"its shape is {list(shape)} here and {entry.shape} in the checkpoint")
        nbytes = entry.nbytes(lengths)
        if nbytes > 0:
            is_whole = lengths == tuple(shape) and not _is_dtensor(target) and not _is_sharded(target)
            self.targets.append(Target(path, name, offsets, lengths, local, nbytes, is_whole))

    def check(self) -> None:
        """Refuse what does not fit, before anything is read."""
        if not self.strict:
            return
        for what, paths in (
            ("not in the checkpoint", self.missing),
            ("in the checkpoint, but not here", self.unexpected),
        ):
            if paths:
                shown = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
                raise NotFoundError(f"{shown}: {what} (strict=False leaves them alone)")

    def read(self, targets: list[Target]) -> Ledger:
        """Fill these."""
        rows, others = [], []
        for target in targets:
            address = address_of(target.tensor)
            if address is None:
                others.append(target)
            else:
                row = (target.name, list(target.offsets), list(target.lengths), address, target.nbytes)
                rows.append(row)
        ledger = self.native.load_into(rows, [target.tensor for target in targets])
        batch: list[Target] = []
        for target in others:
            if batch and sum(one.nbytes for one in batch) + target.nbytes > _DEVICE_BATCH_BYTES:
                ledger = ledger + self._through_host(batch)
                batch = []
            batch.append(target)
        return ledger + self._through_host(batch) if batch else ledger

    def _through_host(self, batch: list[Target]) -> Ledger:
        """Load to the host, and have torch or numpy bring it to its place."""
        rows = [(one.name, list(one.offsets), list(one.lengths), one.nbytes) for one in batch]
        buffers, ledger = self.native.load(rows)
        for one, data in zip(batch, buffers, strict=True):
            dtype = self.entries[one.name].dtype
            if is_array(one.tensor):
                one.tensor[...] = _numpy_array(one.name, dtype, one.lengths, data)
                continue
            torch = sys.modules["torch"]
            with torch.no_grad():
                one.tensor.copy_(_torch_tensor(one.name, dtype, one.lengths, data))
        return ledger


@dataclass
class _Kept:
    value: Any


@dataclass
class _Fresh:
    saved: Any


@dataclass
class _Filled:
    target: Any
    items: Any


def boxes_of(target: Any, path: str) -> list[tuple[tuple[int, ...], tuple[int, ...], Any]]:
    """Give shape of the whole, first element and local tensor of each part that is here."""
    if is_array(target):
        shape = tuple(target.shape)
        return [(shape, (0,) * len(shape), target)]
    if _is_sharded(target):
        shape = tuple(target.metadata().size)
        shards = target.local_shards()
        return [(shape, tuple(shard.metadata.shard_offsets), shard.tensor.detach()) for shard in shards]
    shape = tuple(target.shape)
    if _is_dtensor(target):
        offsets, local = local_box(target, path)
        return [(shape, offsets, local.detach())] if local.numel() > 0 else []
    return [(shape, (0,) * len(shape), target.detach())]


def _homes(tensor: Any) -> list[tuple[str, int] | None]:
    """Say where the memory of a tensor is that is here; None for what has none that could be filled."""
    if _is_sharded(tensor):
        parts = [shard.tensor for shard in tensor.local_shards()]
    else:
        parts = [tensor.to_local() if _is_dtensor(tensor) else tensor]
    homes: list[tuple[str, int] | None] = []
    for part in parts:
        try:
            address = part.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):
            homes.append(None)
            continue
        if part.numel() > 0:
            is_there = address != 0 or part.device.type == "meta"
            homes.append((str(part.device), address) if is_there else None)
    return homes


def _inside(saved: Any) -> Any:
    """Look into dicts of other kinds."""
    if isinstance(saved, Typed) and saved.kind in {"OrderedDict", "defaultdict"}:
        return saved.value if saved.kind == "OrderedDict" else saved.value[1]
    return saved


def _is_lost(made: Any, now: Any) -> bool:
    """Say whether something is to be set that no container takes up, since tuples cannot be changed."""
    if isinstance(made, _Fresh):
        return not (type(made.saved) is type(now) and made.saved == now)
    if isinstance(made, _Filled) and isinstance(made.target, tuple):
        return any(_is_lost(item, old) for item, old in zip(made.items, made.target, strict=True))
    return False


def _settle(made: Any, loaded: _Loaded) -> Any:
    """Set values in the containers of the caller; gives what is to stand in the place of the whole."""
    if isinstance(made, _Kept):
        return made.value
    if isinstance(made, _Fresh):
        return unflatten(made.saved, loaded.get)
    target, items = made.target, made.items
    if isinstance(target, Mapping):
        for key, item in items.items():
            value = _settle(item, loaded)
            if value is not target[key]:
                target[key] = value  # type: ignore[index]
        return target
    values = [_settle(item, loaded) for item in items]
    if isinstance(target, list):
        target[:] = values
        return target
    if all(new is old for new, old in zip(values, target, strict=True)):
        return target
    return type(target)(*values) if hasattr(target, "_fields") else type(target)(values)


def _compare(
    native: NativeCheckpoint, reader: tuple[int, int], state: Any, strict: bool, allow_pickle: bool
) -> tuple[_Into, Any]:
    """Find out what of a state is filled from where; refuses what does not fit."""
    entries = entries_of(native)
    structures = Structures(native, entries, *reader)
    rank = own_rank(native, reader[0])
    into = _Into(native, entries, strict, allow_pickle, rank)
    made = None
    if structures.is_as_saved or not structures.is_many:
        made = into.visit(state, structures.own, "")
    if structures.is_many and (made is None or into.missing):
        # Ranks have other parts now than when it was saved.
        merged, partial = structures.together()
        into = _Into(native, entries, strict, allow_pickle, rank, partial)
        made = into.visit(state, merged, "")
    into.check()
    if isinstance(made, _Fresh):
        raise InvalidInputError(
            "nothing can be loaded in place: the state is neither a container nor a tensor"
        )
    if _is_lost(made, state):
        raise InvalidInputError("values of a tuple cannot be set in place: load into a list or a dict")
    into.fresh.fetch(into.names)
    return into, made


def load_into(
    native: NativeCheckpoint,
    reader: tuple[int, int],
    state: Any,
    strict: bool,
    allow_pickle: bool,
    ranks: Ranks,
    broadcast: bool,
) -> Ledger:
    """Fill the tensors of a state, and set its values; with `broadcast`, ranks read for each other."""
    error: BaseException | None = None
    try:
        into, made = _compare(native, reader, state, strict, allow_pickle)
    except BaseException as raised:
        # Told to the others first: they would wait for this rank.
        error = raised
    ranks.together(error, "load")
    if broadcast and ranks.by_torch:
        ledger = _read_once(into, ranks)
    else:
        try:
            ledger = into.read(into.targets)
        except BaseException as raised:
            error = raised
        ranks.together(error, "load")
    _settle(made, into.fresh)
    for target, given in into.stateful:
        target.load_state_dict(_settle(given, into.fresh))
    return ledger + into.fresh.ledger


def _devices_of_group() -> set[str] | None:
    """Give the kinds of devices whose tensors the process group can send; None where it does not say."""
    import torch

    try:
        config = torch.distributed.get_backend_config()
    except (AttributeError, RuntimeError, ValueError):
        return None
    pairs = [pair.split(":") for pair in config.split(",")]
    return {pair[0] for pair in pairs} if all(len(pair) == 2 for pair in pairs) else None


def _read_once(into: _Into, ranks: Ranks) -> Ledger:
    """Each tensor that all ranks have whole is read by one of them, which sends it to the others.

    What the group cannot send, every rank reads.
    """
    import torch

    devices = _devices_of_group()
    sent = [
        one
        for one in into.targets
        if one.is_whole
        and is_tensor(one.tensor)
        and not one.name.startswith(PER_RANK)
        and (devices is None or one.tensor.device.type in devices)
    ]
    sent.sort(key=lambda one: one.path)
    rows = [((one.path, one.offsets, one.lengths), one.nbytes) for one in sent]
    digest = hashlib.blake2b(repr(rows).encode()).digest()
    if any(other != digest for other in ranks.gather(digest)):
        raise InvalidInputError("ranks have other tensors than each other: none can be read for all of them")
    owners = share_out([rows] * ranks.world)
    owner_of = {one.path: owners[one.path, one.offsets, one.lengths] for one in sent}
    mine = [one for one in into.targets if owner_of.get(one.path, ranks.rank) == ranks.rank]
    ledger, error = Ledger(), None
    try:
        ledger = into.read(mine)
    except BaseException as raised:
        error = raised
    ranks.together(error, "load")
    for one in sent:
        dense = one.tensor if one.tensor.is_contiguous() else one.tensor.contiguous()
        torch.distributed.broadcast(dense.view(torch.uint8) if dense.dim() else dense, owner_of[one.path])
        if dense is not one.tensor:
            with torch.no_grad():
                one.tensor.copy_(dense)
    return ledger
