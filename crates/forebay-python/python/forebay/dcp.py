"""torch.distributed.checkpoint over Forebay: its planners and state dicts, our checkpoints.

>>> import torch.distributed.checkpoint as dcp
>>> from forebay.dcp import ForebayReader, ForebayWriter
>>> writer = ForebayWriter("/nvme/run1")
>>> dcp.save(state, checkpoint_id=1200, storage_writer=writer)
>>> dcp.async_save(state, checkpoint_id=1300, storage_writer=writer)
>>> dcp.load(state, storage_reader=ForebayReader("/nvme/run1"))  # the newest, every byte verified

All ranks write their parts; the coordinator's ``finish`` publishes the manifest, which is the commit: a save
that fails anywhere leaves the checkpoint before as the newest. What torch needs to know is rebuilt from
manifest and parts when it loads, without a pickle; so ``forebay.Checkpointer`` loads what was saved here, and
the other way round.

A ``checkpoint_id`` names a step: a number, or a text or path that ends with one (``step-1200``,
``/nvme/run1/step-1200``). Without any, a save takes the step after the newest, and a load the newest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import uuid
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from forebay._dcp_items import Parts, Reading
from forebay._dcp_plan import (
    VERSION,
    CheckpointId,
    Contents,
    alike_of,
    contents_of,
    step_of,
    structure_for,
)
from forebay._dcp_stage import ForebayStager
from forebay._forebay import (
    CorruptDataError,
    ForebayError,
    InvalidInputError,
    Ledger,
    NativeAttempt,
    NativeCheckpoints,
    NotFoundError,
    PreconditionError,
    ckpt_layout,
)
from forebay._ranks import _run_id
from forebay._staging import SliceRow, Staging, address_of, is_on_gpu
from forebay._state import STRUCTURE, Slice
from forebay._structures import shared_name
from forebay.checkpoint import TIMEOUT, Hash, _listed

__all__ = ["ForebayReader", "ForebayStager", "ForebayWriter"]

# Seconds that a rank looks for the attempt it was told of. It is there before anybody is told, unless the
# coordinator has failed since and given it up; then nobody is to wait for long.
_JOIN_SECONDS = 10.0

# Kinds of values at the top of a state that listings show.
_SHOWN = (bool, int, float, str)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What a rank sends with its plan."""

    step: int | None
    nonce: str


@dataclasses.dataclass(frozen=True)
class _Told:
    """What the coordinator sends with the plan of a rank."""

    nonce: str
    run_id: str
    step: int
    number: int
    base_step: int | None
    rank: int
    world: int
    # Of each item of the plan: equal numbers where all ranks have the same boxes of two tensors.
    alike: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Stored:
    """What a rank says of an item that it has written."""

    rank: int
    # The tensor whose memory it shares, and under whose name it was written.
    same_as: str | None = None


class _Process:
    """What all writers of this process share: planners may keep plans beyond the life of a writer."""

    pid = 0
    run_id = ""
    numbers: dict[tuple[str, int | None], int] = {}  # noqa: RUF012

    @classmethod
    def enter(cls) -> None:
        if cls.pid != os.getpid():
            cls.pid, cls.run_id, cls.numbers = os.getpid(), uuid.uuid4().hex, {}

    @classmethod
    def count(cls, url: str, step: int | None) -> int:
        """How often this process has tried to save a step before."""
        cls.enter()
        number = cls.numbers.get((url, step), 0)
        cls.numbers[url, step] = number + 1
        return number


def _url_of(url: str | os.PathLike[str]) -> str:
    text = os.fspath(url)
    return text if "://" in text else os.path.abspath(text)


def _rank() -> int:
    group = torch.distributed
    return int(group.get_rank()) if group.is_available() and group.is_initialized() else 0


def _world() -> int:
    group = torch.distributed
    return int(group.get_world_size()) if group.is_available() and group.is_initialized() else 1


class ForebayWriter(StorageWriter):
    """Saves for ``torch.distributed.checkpoint``; see there for what is called when.

    It is a stager, too: ``async_save`` with it copies the state into memory that the writer keeps. Keep the
    writer from save to save, and ``close`` it at the end.

    Args:
        url: a directory or URL, one for each training run.
        step: which step is saved where no checkpoint id says so; the one after the newest, unless given.
        overwrite: replace the checkpoint that a step may have.
        single_writer: for stores that cannot put an object only if it is absent: nobody else saves here.
        allow_pickle: save objects that have no type of their own as pickles; loading them needs the same.
        keep_last: so many of the newest are kept; all, unless said otherwise.
        keep_every: beside them, those whose step is a multiple of this.
        compress: ``off``, ``lz4``, ``zstd``, ``zstd:LEVEL``, or ``auto``: what pays for weights.
        key: as of ``forebay.Checkpointer``: seals what is saved.
        sign: as of ``forebay.Checkpointer``: signs what is saved.
        access_log: as of ``forebay.Checkpointer``: a file in which is noted who saves and removes.
        hash: of every chunk: ``xxh3`` against accidents; ``blake3`` or ``sha256`` against tampering, too.
        incremental: reference chunks that the newest checkpoint has instead of writing them.
        full_every: with `incremental`, write everything after so many saves.
        metadata: texts and numbers to be listed with it, beside those at the top of the state; may be changed
            between saves.
        run_id: for ``use_collectives=False``: a text that all ranks have and that is new for each start.
        timeout: seconds that ranks wait for each other at the store.
        chunk_bytes: bytes that are hashed as one; a power of two.
        shared: stage to memory that processes share; see ``ForebayStager``.
        endpoint: of an S3 store.
        region: of an S3 store.
        addressing: of an S3 store, ``path`` or ``virtual``.

    Attributes:
        report: what this rank has written at last, and on the coordinator what all have, in numbers.
        ledger: which way the bytes went.
        save_id: which attempt the last save was; a reader finds it in ``storage_meta``.

    """

    _synchronize_after_execute = True

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        step: int | None = None,
        overwrite: bool = False,
        single_writer: bool = False,
        allow_pickle: bool = False,
        keep_last: int | None = None,
        keep_every: int | None = None,
        compress: str = "off",
        key: str | Sequence[str] | None = None,
        sign: str | os.PathLike[str] | None = None,
        access_log: str | os.PathLike[str] | None = None,
        hash: Hash = "xxh3",  # noqa: A002
        incremental: bool = False,
        full_every: int = 20,
        metadata: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        timeout: float = TIMEOUT,
        chunk_bytes: int | None = None,
        shared: bool = False,
        endpoint: str | None = None,
        region: str | None = None,
        addressing: Literal["path", "virtual"] | None = None,
    ) -> None:
        """Remember where; nothing is read or written yet."""
        super().__init__()
        if overwrite and single_writer:
            raise InvalidInputError("overwrite and single_writer are two ways to publish: one of them")
        if full_every < 1:
            raise InvalidInputError("full_every counts from 1 on")
        if keep_every is not None and keep_last is None:
            raise InvalidInputError("keep_every says what is kept beside the newest: give keep_last, too")
        if keep_last is not None and keep_last < 1:
            raise InvalidInputError("keep_last counts from 1 on")
        self.url = _url_of(url)
        self.step = step
        self.metadata = dict(metadata or {})
        self.report: dict[str, Any] = {}
        self.ledger = Ledger()
        self._allow_pickle = allow_pickle
        self._incremental = incremental
        self._full_every = full_every
        self._own_run_id = run_id
        self._is_shared = shared
        self._place_options: dict[str, Any] = {
            "keep_last": keep_last,
            "keep_every": keep_every,
            "keys": [key] if isinstance(key, str) else list(key or ()),
            "sign": None if sign is None else os.fspath(sign),
            "access_log": None if access_log is None else os.fspath(access_log),
            "endpoint": endpoint,
            "region": region,
            "addressing": addressing,
        }
        self._options: dict[str, Any] = {
            "hash": hash,
            "chunk_bytes": chunk_bytes,
            "publish": "replace" if overwrite else "single_writer" if single_writer else "if_absent",
            "timeout": timeout,
            "compress": compress,
        }
        self._given: int | None = None
        self._forget()

    def _forget(self) -> None:
        """Begin anew: what belongs to this process, and to one save."""
        self._native: NativeCheckpoints | None = None
        self._staging = Staging(None)
        self._stager: ForebayStager | None = None
        self._attempt: NativeAttempt | None = None
        self._asked = _Asked(None, "")
        self._number = 0
        self._rank = 0
        self._is_coordinator = True
        self._use_collectives = True
        # Names and paths of everything, for planners that do not keep them.
        self._all = Metadata({})
        self.save_id: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        # For async_save in another process: memory and connections stay here.
        own = ("_native", "_staging", "_stager", "_attempt", "ledger")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._forget()
        self.ledger = Ledger()
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"<forebay.dcp.ForebayWriter of {self.url}>"

    def _place(self) -> NativeCheckpoints:
        if self._native is None:
            self._native = NativeCheckpoints(self.url, self._place_options)
        return self._native

    # What a writer is.

    def reset(self, checkpoint_id: CheckpointId | None = None) -> None:
        """Take the step of the next save; called by torch when it is given an id."""
        self._given = None if checkpoint_id is None else step_of(checkpoint_id, self.url)

    @property
    def checkpoint_id(self) -> str:
        """The place, with the step where that is known."""
        step = self._given if self._given is not None else self.step
        return self.url if step is None else f"{self.url}/{step}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointId) -> bool:
        """Say whether an id is a number, or a text that may be a place or a step of one."""
        return isinstance(checkpoint_id, int) or bool(os.fspath(checkpoint_id))

    def storage_meta(self) -> StorageMeta:
        """Say where it goes, for planners; which attempt it is will be known when all have planned."""
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin a save on this rank."""
        if self._attempt is not None:
            # The save before failed on another rank, of which nobody has told this one.
            attempt, self._attempt = self._attempt, None
            attempt.abandon()
        self._is_coordinator = is_coordinator
        self._rank = kwargs.get("rank") or 0
        self._use_collectives = kwargs.get("use_collectives", True)
        step = self._given if self._given is not None else self.step
        # An id is for one save.
        self._given = None
        if step is not None and (type(step) is not int or step < 0):
            raise InvalidInputError(f"a step is a number from 0 on, and not {step!r}")
        self._asked = _Asked(step, uuid.uuid4().hex)
        self._number = _Process.count(self.url, step)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Send the step along."""
        return dataclasses.replace(plan, storage_data=self._asked)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Begin the attempt as the coordinator, and tell every rank of it."""
        self._all = _all_of(plans)
        if not self._use_collectives:
            return [dataclasses.replace(plans[0], storage_data=self._alone())]
        for rank, plan in enumerate(plans):
            asked = plan.storage_data
            is_fresh = isinstance(asked, _Asked) and plan.usable
            if is_fresh and len(plans) > 1 and asked.step != self._asked.step and not self._is_kept(plan):
                raise InvalidInputError(
                    f"rank {rank} saves step {asked.step}, and the coordinator step {self._asked.step}"
                )
        _Process.enter()
        step = self._asked.step if self._asked.step is not None else self._next_step()
        base = self._base_step()
        told = _Told("", _Process.run_id, step, self._number, base, self._rank, len(plans))
        self._begin(told)
        made = []
        for rank, (plan, alike) in enumerate(zip(plans, self._alike(plans), strict=True)):
            nonce = plan.storage_data.nonce if isinstance(plan.storage_data, _Asked) else ""
            own = dataclasses.replace(told, rank=rank, nonce=nonce, alike=alike)
            made.append(dataclasses.replace(plan, storage_data=own))
        return made

    def _is_kept(self, plan: SavePlan) -> bool:
        """Say whether a planner may have kept this plan from an earlier save, with what was asked then."""
        return any(
            plan.storage_data is kept.storage_data
            for plans in SavePlanner._cached_all_plans.values()
            for kept in plans
        )

    def _alike(self, plans: list[SavePlan]) -> list[tuple[int, ...]]:
        """Say which tensors may be tied; none where planners keep plans: not all plans are known then."""
        is_known = all(plan.usable and not self._is_kept(plan) for plan in plans)
        return alike_of(plans) if is_known else [()] * len(plans)

    def _alone(self) -> _Told:
        """Without a word to the others: each knows what all know."""
        group = torch.distributed
        is_many = group.is_available() and group.is_initialized()
        world = int(group.get_world_size()) if is_many else 1
        _Process.enter()
        run_id = _Process.run_id if world == 1 else self._own_run_id or _run_id()
        step = self._asked.step
        if step is None:
            if world > 1:
                raise InvalidInputError("ranks that do not talk need a step, or a checkpoint id with one")
            step = self._next_step()
        told = _Told(self._asked.nonce, run_id, step, self._number, self._base_step(), self._rank, world)
        if self._is_coordinator:
            self._begin(told)
        return told

    def _next_step(self) -> int:
        found, damaged = self._place().open(None)
        steps = [step for step, _ in damaged if step is not None]
        return max([*steps, -1 if found is None else found.step]) + 1

    def _base_step(self) -> int | None:
        """Which checkpoint to compare with; None for a full save."""
        if not self._incremental:
            return None
        found, _ = self._place().open(None)
        if found is None:
            return None
        info = found.info()
        return None if info["chain"] + 1 >= self._full_every else int(info["step"])

    def _begin(self, told: _Told) -> NativeAttempt:
        attempt = NativeCheckpoints.derive(told.run_id, told.step, told.number)
        options = {
            **self._options,
            "step": told.step,
            "attempt": attempt,
            "base_step": told.base_step,
            "rank": told.rank,
            "world": told.world,
            "is_coordinator": self._is_coordinator,
            "join_timeout": _JOIN_SECONDS if self._use_collectives else self._options["timeout"],
        }
        self._attempt = NativeAttempt(self._place(), options)
        self.save_id = attempt
        return self._attempt

    def _heard(self, plan: SavePlan) -> _Told:
        """Give what the coordinator has told this rank for this save."""
        told = plan.storage_data
        if not isinstance(told, _Told):
            raise InvalidInputError("the planner has lost what the storage put into its plan (storage_data)")
        if told.nonce == self._asked.nonce:
            return told
        # A plan that the planner has kept from an earlier save: of this one, both sides know the rest.
        if self._asked.step is None:
            raise InvalidInputError(
                "a planner that keeps its plans needs a step for each save, or a checkpoint id with one"
            )
        return dataclasses.replace(told, step=self._asked.step, number=self._number, base_step=None)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write what this rank has: durable when it returns, visible to nobody."""
        try:
            results = self._write(plan, planner)
        except BaseException as error:
            attempt, self._attempt = self._attempt, None
            if attempt is not None:
                with contextlib.suppress(ForebayError):
                    attempt.fail(type(error).__name__, str(error))
            raise
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        told = self._heard(plan)
        parts = Parts(planner, self._allow_pickle)
        sizes = [parts.add(item) for item in plan.items]
        parts.tie(dict(zip((item.index.fqn for item in plan.items), told.alike, strict=False)))
        results = [
            WriteResult(item.index, nbytes, _Stored(told.rank, parts.tied.get(item.index.fqn)))
            for item, nbytes in zip(plan.items, sizes, strict=True)
        ]
        if self._is_coordinator or not self._use_collectives:
            whole = getattr(planner, "metadata", None)
            known = whole if self._use_collectives and isinstance(whole, Metadata) else self._all
            structure = structure_for(known)
            parts.others.append((STRUCTURE, "value", structure))
            if not self._is_coordinator:
                # Nobody knows what the others have: this is how it is found with another number of ranks.
                parts.others.append((shared_name(structure), "value", structure))
            self._shown = _shown(planner, known)
        attempt = self._attempt or self._begin(told)
        # What lies in plain memory is written from there: nobody changes it before this returns.
        lent = [(part, address) for part in parts.slices if (address := _plain_address(part)) is not None]
        kept = {id(part) for part, _ in lent}
        rest = [part for part in parts.slices if id(part) not in kept]
        places, total = ckpt_layout([part.row() for part in rest])
        area = self._staging.fit(total, is_pinned=any(is_on_gpu(part.source) for part in rest))
        self._staging.copy(area, rest, places)
        rows: list[SliceRow] = [
            (*part.row(), place, "staged") for part, place in zip(rest, places, strict=True)
        ]
        rows.extend((*part.row(), address, "lent") for part, address in lent)
        report, self.ledger = attempt.write(area, rows, parts.others, [part.source for part, _ in lent])
        self.report = {**json.loads(report), "step": told.step}
        if not self._is_coordinator and self._use_collectives:
            # Nothing more is to be done here, and nobody will say when it is committed.
            self._attempt = None
        return results

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publish the checkpoint: this is the commit."""
        metadata.storage_data = {one.index: one.storage_data for rows in results for one in rows}
        if VERSION is not None:
            metadata.version = VERSION
        metadata.storage_meta = StorageMeta(
            checkpoint_id=f"{self.url}/{self.report.get('step')}", save_id=self.save_id
        )
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            raise PreconditionError("there is nothing to publish: no data was written through this writer")
        try:
            _check_tied(results)
        except InvalidInputError:
            attempt.abandon()
            raise
        if not self._is_coordinator:
            self.report.update(json.loads(attempt.published()))
            return
        report, ledger = attempt.commit({**self._shown, **self.metadata})
        self.ledger = self.ledger + ledger
        self.report.update(json.loads(report))
        try:
            # Old checkpoints go by the rules. The next save tries again.
            self._place().settle()
        except ForebayError as error:
            warnings.warn(f"old checkpoints were not removed: {error}", stacklevel=2)

    # What a stager is.

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Nothing is left to be waited for once a state is staged."""
        return True

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copy a state into memory that is kept; see ``ForebayStager``."""
        if self._stager is None:
            self._stager = ForebayStager(self._is_shared)
        return self._stager.stage(state_dict)  # type: ignore[no-any-return]

    def synchronize_staging(self) -> None:
        """Return at once: ``stage`` has copied everything."""

    def close(self) -> None:
        """Give up what was begun and not finished, and give memory back."""
        if self._attempt is not None:
            self._attempt.abandon()
        if self._stager is not None:
            self._stager.close()
        self._staging.release()
        self._forget()


def _check_tied(results: list[list[WriteResult]]) -> None:
    """Refuse tensors that share their memory with another on some ranks, and not on all that have them."""
    found: dict[str, _Stored] = {}
    for one in (one for rows in results for one in rows):
        name, stored = one.index.fqn, one.storage_data
        # A rank that has none of its elements does not know.
        if isinstance(stored, _Stored) and one.size_in_bytes > 0:
            other = found.setdefault(name, stored)
            if other.same_as != stored.same_as:
                tied, free = (other, stored) if other.same_as else (stored, other)
                raise InvalidInputError(
                    f"{name} shares its memory with {tied.same_as} on rank {tied.rank}, and not on rank "
                    f"{free.rank}: ranks must agree on which tensors are tied"
                )


def _plain_address(part: Slice) -> int | None:
    return address_of(part.source) if part.nbytes > 0 else None


def _all_of(plans: list[SavePlan]) -> Metadata:
    """Give names and paths of all plans."""
    kinds: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for plan in plans:
        if isinstance(plan.planner_data, Mapping):
            paths.update(plan.planner_data)
        for item in plan.items:
            data = item.tensor_data
            kinds[item.index.fqn] = (
                BytesStorageMetadata()
                if data is None
                else TensorStorageMetadata(properties=data.properties, size=data.size, chunks=[])
            )
    return Metadata(kinds, planner_data=paths)


def _shown(planner: SavePlanner, known: Metadata) -> dict[str, Any]:
    """Give numbers and texts at the top of a state, which listings show."""
    state = getattr(planner, "state_dict", None)
    if not isinstance(state, Mapping):
        return {}
    paths = known.planner_data if isinstance(known.planner_data, Mapping) else {}
    return {
        name: value
        for name, value in state.items()
        if type(value) in _SHOWN and len(paths.get(name, (name,))) == 1
    }


class ForebayReader(StorageReader):
    """Loads for ``torch.distributed.checkpoint``: what any number of ranks has saved, however it was cut.

    Every byte is compared with its hash; a rank reads no more than the chunks of what it has.

    Args:
        url: a directory or URL, one for each training run.
        step: which step is loaded where no checkpoint id says so; the newest, unless given.
        allow_pickle: load objects that were saved as pickles, which can run any code.
        key: as of ``forebay.Checkpointer``: of what was sealed.
        trust: as of ``forebay.Checkpointer``: nothing is loaded but what one of these has signed.
        access_log: as of ``forebay.Checkpointer``: a file in which is noted who loads.
        endpoint: of an S3 store.
        region: of an S3 store.
        addressing: of an S3 store, ``path`` or ``virtual``.

    Attributes:
        ledger: which way the bytes of the last load came.
        load_id: another one for each time that a checkpoint was opened.

    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        step: int | None = None,
        allow_pickle: bool = False,
        key: str | Sequence[str] | None = None,
        trust: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        access_log: str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        addressing: Literal["path", "virtual"] | None = None,
    ) -> None:
        """Remember where; nothing is read yet."""
        super().__init__()
        self.url = _url_of(url)
        self.step = step
        self.ledger = Ledger()
        self._allow_pickle = allow_pickle
        self._place_options: dict[str, Any] = {
            "keys": [key] if isinstance(key, str) else list(key or ()),
            "trust": [os.fspath(one) for one in _listed(trust)],
            "access_log": None if access_log is None else os.fspath(access_log),
            "endpoint": endpoint,
            "region": region,
            "addressing": addressing,
        }
        self._native: NativeCheckpoints | None = None
        self._given: int | None = None
        self._contents: Contents | None = None
        self.load_id: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        own = ("_native", "_contents", "ledger")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._native, self._contents, self.ledger = None, None, Ledger()

    def __repr__(self) -> str:
        return f"<forebay.dcp.ForebayReader of {self.url}>"

    def reset(self, checkpoint_id: CheckpointId | None = None) -> None:
        """Take the step of the next load; called by torch when it is given an id."""
        self._given = None if checkpoint_id is None else step_of(checkpoint_id, self.url)
        self._contents = None

    @property
    def checkpoint_id(self) -> str:
        """The place, with the step where that is known."""
        step = self._given if self._given is not None else self.step
        return self.url if step is None else f"{self.url}/{step}"

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointId) -> bool:
        """Say whether an id is a number, or a text that may be a place or a step of one."""
        return isinstance(checkpoint_id, int) or bool(os.fspath(checkpoint_id))

    # Not called `kwargs`: torch would take that for a sign of metadata of each rank, and ask twice.
    def read_metadata(self, *args: Any, **_options: Any) -> Metadata:
        """Open the checkpoint, and say what is in it."""
        if self._native is None:
            self._native = NativeCheckpoints(
                self.url, {**self._place_options, "rank": _rank(), "world": _world()}
            )
        step = self._given if self._given is not None else self.step
        found, damaged = self._native.open(step)
        for other, error in damaged:
            what = "another place" if other is None else f"step {other} is newer, and"
            warnings.warn(f"{what} cannot be read: {error}", stacklevel=2)
        if found is None:
            kind = CorruptDataError if damaged else NotFoundError
            raise kind(f"there is no checkpoint that can be read at {self.url}")
        self._contents = contents_of(found, _rank(), _world())
        self.load_id = uuid.uuid4().hex
        metadata = self._contents.metadata
        metadata.storage_meta = StorageMeta(
            checkpoint_id=f"{self.url}/{found.step}", save_id=found.info()["attempt"], load_id=self.load_id
        )
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Make sure that there is an open checkpoint."""
        if self._contents is None:
            self.read_metadata()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Say which checkpoint this rank has found."""
        info = self._open().native.info()
        return dataclasses.replace(plan, storage_data=(info["step"], info["attempt"]))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Refuse to load parts of two checkpoints."""
        found = {plan.storage_data for plan in plans}
        if len(found) > 1:
            steps = ", ".join(str(step) for step, _ in sorted(found))
            raise PreconditionError(
                f"ranks have found different checkpoints (steps {steps}): name the step to be loaded"
            )
        return plans

    def _open(self) -> Contents:
        if self._contents is None:
            raise PreconditionError("no checkpoint is open: read_metadata comes first")
        return self._contents

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill what the plan names, every byte verified."""
        contents = self._open()
        reading = Reading(contents, self._allow_pickle)
        tensors = [item for item in plan.items if item.type != LoadItemType.BYTE_IO]
        values = [item for item in plan.items if item.type == LoadItemType.BYTE_IO]
        # What is refused is refused before anything is overwritten.
        data = reading.values(values)
        filled = [(item, reading.target(item, planner)) for item in tensors]
        reading.fill()
        for item, target in filled:
            planner.commit_tensor(item, target)
        for item, value in zip(values, data, strict=True):
            planner.load_bytes(item, value)
        self.ledger = reading.ledger + reading.loaded.ledger
        future: Future[None] = Future()
        future.set_result(None)
        return future
