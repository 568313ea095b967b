"""Ranks that save one checkpoint together: which attempt it is, and who writes what.

Under torch.distributed they tell each other; without it they share nothing but the store, and derive the
attempt from what each of them knows.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from forebay import _forebay
from forebay._forebay import InternalError, InvalidInputError, PreconditionError
from forebay._state import Flat

Coordinate = Literal["auto", "store", "torch"]
Box = tuple[str, tuple[int, ...], tuple[int, ...]]
T = TypeVar("T")

_log = logging.getLogger("forebay")


@dataclass
class Agreement:
    """What ranks have agreed on for one save."""

    attempt: str
    base_step: int | None
    # Which of its slices a rank writes.
    is_owned: list[bool]
    # Whether what it has beside tensors is another thing than what rank 0 has.
    is_different: bool
    # Whether no rank before it is known to have the same structure, apart from what is each rank's own.
    is_first: bool


@dataclass
class Taken:
    """A state that was taken apart, with digests by which ranks find out what they have alike."""

    flat: Flat
    # Of the structure, and of what of it is not this rank's own.
    digest: bytes
    shared: bytes


# What a rank tells of an error: the class, the text, and the attributes of ours.
Told = tuple[str, str, dict[str, Any]] | None

_ATTRIBUTES = ("op", "location", "hint")


def _told(error: BaseException | None) -> Told:
    if error is None:
        return None
    is_ours = isinstance(error, _forebay.ForebayError)
    attributes = {name: getattr(error, name) for name in _ATTRIBUTES} if is_ours else {}
    return type(error).__name__, str(error), attributes


def _heard(rank: int, told: tuple[str, str, dict[str, Any]], what: str) -> Exception:
    """Give the error of another rank: of the same class, where it is one of ours."""
    name, text, attributes = told
    kind = getattr(_forebay, name, None)
    if not (isinstance(kind, type) and issubclass(kind, _forebay.ForebayError)):
        # A panic of Rust is a fault of ours.
        kind = InternalError if name == "PanicException" else PreconditionError
        text = f"{name}: {text}"
    error: Exception = kind(f"rank {rank} cannot {what}: {text}")
    for attribute, value in attributes.items():
        setattr(error, attribute, value)
    return error


def _group() -> Any:
    """Give torch.distributed, where it is at work."""
    torch = sys.modules.get("torch")
    group = None if torch is None else getattr(torch, "distributed", None)
    if group is not None and group.is_available() and group.is_initialized():
        return group
    return None


class Ranks:
    """One rank among the others."""

    def __init__(
        self, rank: int | None, world: int | None, coordinate: Coordinate, run_id: str | None
    ) -> None:
        """From arguments, else from torch.distributed, else alone; the launcher's variables with `store`."""
        if coordinate not in {"auto", "store", "torch"}:
            raise InvalidInputError(f"ranks cannot coordinate by '{coordinate}'; one of: auto, store, torch")
        group = _group()
        if (rank is None) != (world is None):
            raise InvalidInputError("rank and world belong together: give both or none")
        if rank is None or world is None:
            rank, world = _found(group, coordinate)
        if not 0 <= rank < world:
            raise InvalidInputError(f"rank {rank} of {world}: ranks count from 0")
        self.rank, self.world = rank, world
        is_whole_group = group is not None and group.get_world_size() == world
        if coordinate == "torch" and not is_whole_group:
            raise InvalidInputError("torch.distributed is not initialized with as many ranks")
        self.by_torch = world > 1 and is_whole_group and coordinate != "store"
        self.run_id = None if self.by_torch or world == 1 else run_id or _run_id()
        self._tries: dict[int, int] = {}
        self._owners: tuple[Any, list[bool]] | None = None

    def gather(self, row: Any) -> list[Any]:
        """Give what every rank has given."""
        if not self.by_torch:
            return [row]
        rows: list[Any] = [None] * self.world
        _group().all_gather_object(rows, row)
        return rows

    def tell(self, row: Any, error: BaseException | None, what: str) -> list[Any]:
        """Give what every rank has given, where none has an error; raises the own, or the first of another.

        An own one is said at once, and raised also where the others cannot be told: they may be long in
        coming, and their group may end the process before.
        """
        if error is not None and self.by_torch:
            _log.error("rank %d cannot %s: %s: %s", self.rank, what, type(error).__name__, error)
        try:
            rows = self.gather((row, _told(error)))
        except Exception as failed:
            if error is None:
                raise
            raise error from failed
        if error is not None:
            raise error
        for rank, (_, told) in enumerate(rows):
            if told is not None:
                raise _heard(rank, told, what)
        return [row for row, _ in rows]

    def together(self, error: BaseException | None, what: str) -> None:
        """Go on only where no rank has an error; raises the own one, or the first of another rank."""
        self.tell(None, error, what)

    def choose(self, step: int | None, find: Callable[[int | None], tuple[T, tuple[int, str]]]) -> T:
        """Have rank 0 choose the checkpoint that all ranks load; `find` opens one and says which it is."""
        if not self.by_torch:
            return find(step)[0]
        found: T | None = None
        which: tuple[int, str] | None = None
        error: BaseException | None = None
        if self.rank == 0:
            try:
                found, which = find(step)
            except BaseException as raised:
                error = raised
        rows = self.tell((step, which), error, "load")
        for rank, row in enumerate(rows):
            if row[0] != rows[0][0]:
                raise InvalidInputError(f"rank {rank} loads step {row[0]}, and rank 0 step {rows[0][0]}")
        if self.rank != 0:
            try:
                found, which = find(rows[0][1][0])
                # The last half of an attempt is the same where a mirror has it compressed.
                if (which[0], which[1][16:]) != (rows[0][1][0], rows[0][1][1][16:]):
                    raise PreconditionError(
                        f"rank 0 has found attempt {rows[0][1][1]} at step {which[0]}, and rank {self.rank} "
                        f"attempt {which[1]}: they look at different places, or it was just replaced"
                    )
            except BaseException as raised:
                error = raised
        self.together(error, "load")
        assert found is not None
        return found

    def agree(
        self,
        step: int,
        take: Callable[[], Taken],
        draw: Callable[[], str],
        base_step: Callable[[], int | None],
        derive: Callable[[str, int, int], str],
        fail: Callable[[str, BaseException], None],
    ) -> tuple[Flat, Agreement]:
        """Take the state apart and agree on how it is saved; where one rank cannot, none does.

        Where ranks share nothing but the store, `fail` tells the others of an attempt that this one cannot
        be in.
        """
        if not self.by_torch:
            return self._alone(step, take, draw, base_step, derive, fail)
        taken: Taken | None = None
        error: BaseException | None = None
        digest = shared = boxes = b""
        first: tuple[str, int | None] | None = None
        try:
            taken = take()
            digest, shared = taken.digest, taken.shared
            boxes = _digest([(part.box(), part.dtype, part.shape) for part in taken.flat.slices])
            if self.rank == 0:
                first = (draw(), base_step())
        except BaseException as raised:
            # Told to the others first: they would wait for this rank.
            error = raised
        rows = self.tell((step, first, digest, boxes, shared), error, "save")
        for rank, row in enumerate(rows):
            if row[0] != step:
                raise InvalidInputError(f"rank {rank} saves step {row[0]}, and rank {self.rank} step {step}")
        assert taken is not None
        attempt, base = rows[0][1]
        owned = self._owned(taken.flat, tuple(row[3] for row in rows))
        is_first = all(row[4] != shared for row in rows[: self.rank])
        return taken.flat, Agreement(attempt, base, owned, digest != rows[0][2], is_first)

    def _alone(
        self,
        step: int,
        take: Callable[[], Taken],
        draw: Callable[[], str],
        base_step: Callable[[], int | None],
        derive: Callable[[str, int, int], str],
        fail: Callable[[str, BaseException], None],
    ) -> tuple[Flat, Agreement]:
        """Without a word to the others: each writes all it has, since it does not know what they have."""
        if self.run_id is None:
            flat = take().flat
            return flat, Agreement(draw(), base_step(), [True] * len(flat.slices), self.rank != 0, True)
        if type(step) is not int or step < 0:
            # There is no attempt at such a step that anybody could wait for.
            take()
        # Counted before anything can fail, as the others count.
        tries = self._tries.get(step, 0)
        self._tries = {step: tries + 1}
        attempt = derive(self.run_id, step, tries)
        try:
            flat, base = take().flat, base_step()
        except BaseException as error:
            fail(attempt, error)
            raise
        return flat, Agreement(attempt, base, [True] * len(flat.slices), self.rank != 0, True)

    def _owned(self, flat: Flat, signature: tuple[bytes, ...]) -> list[bool]:
        """Which slices this rank writes: of those that several have, one of them, the same as last time."""
        if self._owners is None or self._owners[0] != signature:
            rows = self.gather([(part.box(), part.nbytes, part.dtype, part.shape) for part in flat.slices])
            _check_alike(rows)
            owners = share_out([[(box, nbytes) for box, nbytes, _, _ in row] for row in rows])
            owned = [owners[part.box()] == self.rank for part in flat.slices]
            self._owners = (signature, owned)
        return self._owners[1]


def _check_alike(rows: Sequence[Sequence[tuple[Box, int, str, tuple[int, ...]]]]) -> None:
    """Refuse tensors that ranks have under one name and that are not one: of these, one would be kept."""
    seen: dict[str, tuple[int, str, tuple[int, ...]]] = {}
    for rank, row in enumerate(rows):
        for (name, *_), _, dtype, shape in row:
            first, *kind = seen.setdefault(name, (rank, dtype, shape))
            if kind != [dtype, shape]:
                one, other = f"{kind[0]} {list(kind[1])}", f"{dtype} {list(shape)}"
                raise InvalidInputError(
                    f"{name}: rank {first} has {one} under this name, and rank {rank} {other}; give them "
                    "names of their own, or put what each rank has for itself under a key of per_rank"
                )


def share_out(lists: Sequence[Sequence[tuple[Box, int]]]) -> dict[Box, int]:
    """Give each box to one of the ranks that have it, so that they write about as many bytes.

    The same for the same lists, whoever asks.
    """
    holders: dict[Box, list[int]] = {}
    sizes: dict[Box, int] = {}
    for rank, boxes in enumerate(lists):
        for box, nbytes in boxes:
            holders.setdefault(box, []).append(rank)
            sizes[box] = nbytes
    loads = [0] * len(lists)
    owners: dict[Box, int] = {}
    shared = []
    for box, ranks in holders.items():
        if len(ranks) == 1:
            owners[box] = ranks[0]
            loads[ranks[0]] += sizes[box]
        else:
            shared.append(box)
    for box in sorted(shared, key=lambda box: (-sizes[box], box)):
        owner = min(holders[box], key=lambda rank: (loads[rank], rank))
        owners[box] = owner
        loads[owner] += sizes[box]
    return owners


def _digest(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=16).digest()


def _found(group: Any, coordinate: Coordinate) -> tuple[int, int]:
    if group is not None:
        return group.get_rank(), group.get_world_size()
    launched = launcher() if coordinate == "store" else None
    return launched or (0, 1)


def launcher() -> tuple[int, int] | None:
    """Give rank and world size as a launcher has set them; one that is empty is not there, as in Rust."""
    rank, world = (_variable(name) for name in ("RANK", "WORLD_SIZE"))
    if (rank is None) != (world is None):
        raise InvalidInputError("RANK and WORLD_SIZE go together, and only one of them is set")
    return None if rank is None or world is None else (rank, world)


def _variable(name: str) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text) < 1 << 32):
        raise InvalidInputError(f"{name} cannot be {text!r}: it is a number that launchers set")
    return int(text)


def _run_id() -> str:
    """Give a name of this start of the job, which all ranks have and no other start has."""
    for job, restart in (
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ):
        if os.environ.get(job, "none") != "none":
            return f"{os.environ[job]}-{os.environ.get(restart, '0')}"
    raise InvalidInputError(
        "ranks that share nothing but the store need a run_id: a text that all have, new for each start"
    )
