"""Checkpoints: training stops only for a copy, what is visible is whole, what is damaged is refused.

>>> ckpt = forebay.Checkpointer("/nvme/run1", keep_last=3)
>>> job = ckpt.save(step, {"model": model, "optim": optim, "loss": 2.31})  # returns once the state is copied
>>> job.wait()                                                              # durable and visible
>>> state = ckpt.load()                                                     # the newest, every byte verified
>>> ckpt.load_into({"model": model, "optim": optim}, step=1200)             # in place

A state is any nesting of dicts, lists and tuples with tensors, arrays, numbers and texts in it. Tensors of
torch that are spread over ranks (DTensor, ShardedTensor) are saved in parts and loaded in others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from forebay import _loading
from forebay._forebay import (
    CorruptDataError,
    InvalidInputError,
    Ledger,
    NativeCheckpoint,
    NativeCheckpoints,
    NativeSave,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    StoreTimeoutError,
    ckpt_encode,
)
from forebay._ranks import Agreement, Coordinate, Ranks, Taken
from forebay._staging import Staged, Staging, nbytes_of
from forebay._state import STRUCTURE, Flat, flatten
from forebay._structures import shared_name, without

if TYPE_CHECKING:
    from typing_extensions import Self

Url: TypeAlias = str | os.PathLike[str]
Busy = Literal["wait", "refuse"]
Hash = Literal["crc32c", "xxh3", "blake3", "sha256"]

# Seconds that ranks wait for each other: as long as collectives of torch do.
TIMEOUT = 1800.0


class SaveJob:
    """A save in the background.

    Attributes:
        step: which step.
        stall_seconds: how long ``save`` took, which is how long the training stood still.
        bytes_total: bytes of tensors that this rank saves.

    """

    def __init__(self, native: NativeSave, step: int, bytes_total: int, notes: list[str]) -> None:
        """Around a save; made by ``Checkpointer.save``."""
        self._native = native
        self._is_seen = False
        self._is_warned = False
        self.step = step
        self.bytes_total = bytes_total
        self.notes = notes
        self.stall_seconds = 0.0

    @property
    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._native.done

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the checkpoint is durable and visible; raises what went wrong.

        ``StoreTimeoutError`` says that it is not over after so many seconds; it goes on.
        """
        self.result(timeout)

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Give what was saved in numbers, once it is; raises what went wrong."""
        if not self._native.wait(timeout):
            raise StoreTimeoutError(f"the save of step {self.step} is not over after {timeout} seconds")
        self._is_seen = True
        report = self._report()[0]
        if report["later_step"] is not None and not self._is_warned:
            self._is_warned = True
            warnings.warn(
                f"step {report['later_step']} is there from before, and above step {self.step}: load() "
                "without a step gives that one. Remove it by delete(), or name the step",
                stacklevel=3,
            )
        return report

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Give what went wrong, once it is over; None when nothing did."""
        try:
            self.result(timeout)
        except Exception as error:
            if not self.done:
                raise
            return error
        return None

    def _report(self) -> tuple[dict[str, Any], Ledger]:
        found = self._native.result()
        if found is None:
            raise PreconditionError(f"the save of step {self.step} is not over")
        return json.loads(found[0]), found[1]

    @property
    def ledger(self) -> Ledger:
        """Which way the bytes went; once it is over."""
        return self._report()[1]

    @property
    def bytes_written(self) -> int:
        """Bytes that this rank wrote; fewer than all where others have them or an earlier checkpoint does."""
        return int(self._report()[0]["bytes_written"])

    @property
    def seconds(self) -> float:
        """How long it took in the background."""
        return float(self._report()[0]["seconds"])

    def __repr__(self) -> str:
        state = "done" if self.done else "running"
        return f"<forebay.SaveJob of step {self.step}, {self.bytes_total} bytes, {state}>"


_LEFT = "old checkpoints were not removed, or new ones not copied"
"""What trouble means that comes after a save."""


def _warn_of_passed_over(ledger: Ledger) -> None:
    """Say that a nearer place is damaged: its bytes came from another one, and it should be looked after."""
    for step in ledger.downgrades:
        reason = step["reason"]
        if reason.startswith("not from ") and ": corrupt data" in reason:
            warnings.warn(f"{reason}; it was taken from another place", stacklevel=3)


class _Flight:
    """What a checkpointer has under way; apart from it, so that it can be finished when that goes."""

    def __init__(self) -> None:
        self.job: SaveJob | None = None
        self.staging: Staging | None = None

    def finish(self) -> None:
        if self.job is not None:
            self.job._native.wait(None, "settled")
        if self.staging is not None:
            self.staging.release()


def _finish(flight: _Flight, pid: int) -> None:
    # Not in a forked child, where the save is somebody else's.
    if os.getpid() == pid:
        with contextlib.suppress(Exception):
            flight.finish()
        job = flight.job
        error = None if job is None or job._is_seen else job.exception()
        if job is not None and error is not None:
            # Nobody is left who could raise it.
            said = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"forebay: the save of step {job.step} failed: {said}\n")
        trouble = None if job is None else job._native.trouble()
        if trouble is not None:
            sys.stderr.write(f"forebay: {_LEFT}: {trouble}\n")


class Checkpointer:
    """Saves and loads the checkpoints of one place.

    Args:
        url: a directory or URL, one for each training run.
        mirror: another place, or several, that checkpoints are copied to in the background.
        keep_last: so many of those saved last are kept; all, unless said otherwise, and those that are not
            copied to the mirror yet.
        keep_every: beside them, those whose step is a multiple of this.
        mirror_keep_last: what mirrors keep; everything, unless said otherwise.
        mirror_keep_every: beside them, those whose step is a multiple of this.
        mirror_compress: how what was saved raw is compressed on its way to mirrors, as `compress` says it;
            not at all, unless said. What is signed or sealed takes `compress` instead.
        key: seal everything for those who have this key, or one of several: ``file:PATH``, ``env``,
            ``aws-kms:KEY``, ``command:PROGRAM ARGUMENTS``, or a path. The same to load it.
        sign: file with a private key to sign checkpoints by; takes ``blake3`` or ``sha256`` for `hash`.
        trust: files with public keys: only what one of them has signed is loaded.
        access_log: a file in which is noted who saves, loads and removes checkpoints, before it is done;
            see ``forebay ckpt log``.
        compress: ``off``, ``lz4``, ``zstd``, ``zstd:LEVEL``, or ``auto``: what pays for weights.
        hash: of every chunk: ``xxh3`` against accidents; ``blake3`` or ``sha256`` against tampering, too.
        incremental: reference chunks that the checkpoint before has instead of writing them.
        full_every: with `incremental`, write everything after so many saves.
        on_busy: what ``save`` does while the one before is still being written: ``wait``, or ``refuse``.
        allow_pickle: save objects that have no type of their own as pickles; loading them needs the same.
        rank: number of this process among those that save together; of torch.distributed, unless said.
        world: how many they are.
        coordinate: how ranks agree: ``torch`` by its process group, ``store`` by nothing but the store,
            ``auto`` by the group where there is one.
        run_id: for ``store``: a text that all ranks have and that is new for each start of the job.
        staging_bytes: most memory for copies of the state; as much as it has, unless said otherwise. Of a
            larger one, ``save`` waits while it is written, and copies what must be copied in rounds.
        per_rank: keys at the top whose content is each rank's own, not the same on all of them.
        overwrite: replace the checkpoint that a step may have.
        single_writer: for stores that cannot put an object only if it is absent: nobody else saves here.
        timeout: seconds that ranks wait for each other.
        chunk_bytes: bytes that are hashed as one; a power of two.
        endpoint: of an S3 store.
        region: of an S3 store.
        addressing: of an S3 store, ``path`` or ``virtual``.

    """

    def __init__(
        self,
        url: Url,
        mirror: Url | Sequence[Url] | None = None,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        mirror_keep_last: int | None = None,
        mirror_keep_every: int | None = None,
        mirror_compress: str | None = None,
        compress: str = "off",
        key: str | Sequence[str] | None = None,
        sign: Url | None = None,
        trust: Url | Sequence[Url] | None = None,
        access_log: Url | None = None,
        hash: Hash = "xxh3",  # noqa: A002
        incremental: bool = False,
        full_every: int = 20,
        on_busy: Busy = "wait",
        allow_pickle: bool = False,
        rank: int | None = None,
        world: int | None = None,
        coordinate: Coordinate = "auto",
        run_id: str | None = None,
        staging_bytes: int | None = None,
        per_rank: Sequence[str] = ("rng",),
        overwrite: bool = False,
        single_writer: bool = False,
        timeout: float = TIMEOUT,
        chunk_bytes: int | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        addressing: str | None = None,
    ) -> None:
        """Open the place; nothing is read or written yet."""
        if on_busy not in {"wait", "refuse"}:
            raise InvalidInputError(f"on_busy cannot be '{on_busy}'; one of: wait, refuse")
        for last, every in ((keep_last, keep_every), (mirror_keep_last, mirror_keep_every)):
            if every is not None and last is None:
                raise InvalidInputError("keep_every says what is kept beside the newest: give keep_last, too")
            if last is not None and last < 1:
                raise InvalidInputError("keep_last counts from 1 on")
        if full_every < 1:
            raise InvalidInputError("full_every counts from 1 on")
        if overwrite and single_writer:
            raise InvalidInputError("overwrite and single_writer are two ways to publish: one of them")
        if mirror_compress not in {None, "off"} and compress == "off" and (key or sign):
            why = "a signature does not outlast it" if sign else "what is sealed does not shrink"
            raise InvalidInputError(f"mirror_compress: {why}; give compress, which mirrors keep")
        self._ranks = Ranks(rank, world, coordinate, run_id)
        self._native = NativeCheckpoints(
            os.fspath(url),
            {
                "rank": self._ranks.rank,
                "world": self._ranks.world,
                "mirrors": [os.fspath(one) for one in _listed(mirror)],
                "keep_last": keep_last,
                "keep_every": keep_every,
                "mirror_keep_last": mirror_keep_last,
                "mirror_keep_every": mirror_keep_every,
                "mirror_compress": mirror_compress,
                "keys": [key] if isinstance(key, str) else list(key or ()),
                "sign": None if sign is None else os.fspath(sign),
                "trust": [os.fspath(one) for one in _listed(trust)],
                "access_log": None if access_log is None else os.fspath(access_log),
                "endpoint": endpoint,
                "region": region,
                "addressing": addressing,
            },
        )
        self._staging = Staging(staging_bytes)
        self._on_busy = on_busy
        self._allow_pickle = allow_pickle
        self._per_rank = tuple(per_rank)
        self._incremental = incremental
        self._full_every = full_every
        # The newest step and how many incremental saves it is from a full one; asked of the store at first.
        self._newest: tuple[int, int] | None = None
        self._options: dict[str, Any] = {
            "hash": hash,
            "chunk_bytes": chunk_bytes,
            "publish": "replace" if overwrite else "single_writer" if single_writer else "if_absent",
            "timeout": timeout,
            "compress": compress,
            "rank": self._ranks.rank,
            "world": self._ranks.world,
        }
        self._loaded_step: int | None = None
        self._ledger: Ledger | None = None
        self._is_closed = False
        self._flight = _Flight()
        self._flight.staging = self._staging
        # A save that is under way when the program ends, or when nobody has this any more, is waited for.
        self._finalizer = weakref.finalize(self, _finish, self._flight, os.getpid())

    @property
    def url(self) -> str:
        """Where it is."""
        return self._native.url

    @property
    def rank(self) -> int:
        """Number of this process among those that save together."""
        return self._ranks.rank

    @property
    def world(self) -> int:
        """How many they are."""
        return self._ranks.world

    @property
    def loaded_step(self) -> int | None:
        """Which step was loaded last."""
        return self._loaded_step

    @property
    def ledger(self) -> Ledger | None:
        """Which way the bytes of the last load came."""
        return self._ledger

    def __repr__(self) -> str:
        return f"<forebay.Checkpointer of {self.url}, rank {self.rank} of {self.world}>"

    def save(self, step: int, state: Any, metadata: Mapping[str, Any] | None = None) -> SaveJob:
        """Save a state: returns once it is copied, and writes it in the background.

        With several ranks, all of them call it with the same step; where one of them cannot save, none does.
        An error of the save before that nobody has asked for is raised here.

        Args:
            step: which step.
            state: any nesting of containers with tensors, arrays and values; objects with ``state_dict()``.
            metadata: texts and numbers to be listed with it, beside those at the top of the state.

        """
        begun = time.perf_counter()

        def take() -> Taken:
            if type(step) is not int or step < 0:
                raise InvalidInputError(f"a step is a number from 0 on, and not {step!r}")
            self._settle(step)
            own = self._own_keys()
            flat = flatten(state, allow_pickle=self._allow_pickle, rank=self.rank, per_rank=own)
            if not self._ranks.by_torch:
                return Taken(flat, b"", b"")
            return Taken(flat, _digest(flat.structure), _digest(without(flat.structure, own)))

        def fail(attempt: str, error: BaseException) -> None:
            if self.world > 1:
                which = (step, attempt, self.rank)
                with contextlib.suppress(Exception):
                    self._native.fail(which, type(error).__name__, str(error) or type(error).__name__)

        flat, agreed = self._ranks.agree(
            step, take, self._native.draw, self._base_step, NativeCheckpoints.derive, fail
        )
        try:
            job = self._begin(step, state, metadata or {}, flat, agreed)
        except BaseException as error:
            # From here on the others wait at the store.
            fail(agreed.attempt, error)
            raise
        job.stall_seconds = time.perf_counter() - begun
        return job

    def _begin(
        self, step: int, state: Any, metadata: Mapping[str, Any], flat: Flat, agreed: Agreement
    ) -> SaveJob:
        """Copy what this rank writes, and begin to."""
        slices = [part for part, is_owned in zip(flat.slices, agreed.is_owned, strict=True) if is_owned]
        staged = self._staging.stage(slices)
        others: list[tuple[str, str, Any]] = [(name, "opaque", data) for name, data in flat.opaques.items()]
        if self.rank == 0 or agreed.is_different:
            others.append((STRUCTURE, "value", flat.structure))
            others.extend((name, "alias", alias) for name, alias in flat.aliases.items())
        if self.rank != 0 and agreed.is_first:
            shared = without(flat.structure, self._own_keys())
            others.append((shared_name(shared), "value", shared))
        options = {
            **self._options,
            "step": step,
            "attempt": agreed.attempt,
            "base_step": agreed.base_step,
            "keep": staged.lent,
            "metadata": {**_scalars(state), **metadata},
        }
        native = self._native.save(staged.area, staged.rows, others, options)
        job = SaveJob(native, step, nbytes_of(slices), list(self._staging.notes))
        self._flight.job = job
        self._finish_copy(job, staged)
        return job

    def _finish_copy(self, job: SaveJob, staged: Staged) -> None:
        """Wait until a save needs the tensors no more, where they were not copied as a whole."""
        try:
            if staged.later:
                rounds = self._staging.copy_rounds(staged, job._native)
                job.notes.append(f"larger than staging_bytes: copied in {rounds} rounds while save waited")
            if staged.lent:
                job.notes.append("larger than staging_bytes: written from where it is while save waited")
                job._native.wait(None, "written")
        except BaseException:
            # What is to be written would be changed by whoever goes on.
            job._native.cancel()
            job._is_seen = True
            job._native.wait(None, "written")
            raise

    def _own_keys(self) -> tuple[str, ...]:
        return self._per_rank if self.world > 1 else ()

    def _settle(self, step: int) -> None:
        """Deal with the save before: one at a time, and none of its errors is lost."""
        if self._is_closed:
            raise InvalidInputError("the checkpointer is closed")
        job = self._flight.job
        if job is None:
            return
        if not job.done and self._on_busy == "refuse":
            raise PreconditionError(f"step {job.step} is still being saved, so step {step} is not")
        job._native.wait()
        self._flight.job = None
        was_seen = job._is_seen
        error = job.exception()
        if error is None:
            self._newest = (job.step, job.result()["chain"])
        elif not was_seen:
            raise error
        trouble = job._native.trouble()
        if trouble is not None:
            warnings.warn(f"after step {job.step}, {_LEFT}: {trouble}", stacklevel=5)

    def _base_step(self) -> int | None:
        """Which checkpoint to compare with; None for a full save."""
        if not self._incremental:
            return None
        if self._newest is None:
            try:
                found, _ = self._native.open(None)
            except (CorruptDataError, PermissionDeniedError):
                # What cannot be trusted is no base: everything is written.
                return None
            if found is None:
                return None
            info = found.info()
            self._newest = (info["step"], info["chain"])
        step, chain = self._newest
        return None if chain + 1 >= self._full_every else step

    def _choose(self, step: int | None) -> NativeCheckpoint:
        """Open the checkpoint that all ranks load."""

        def find(step: int | None) -> tuple[NativeCheckpoint, tuple[int, str]]:
            found = self._open(step)
            return found, (found.step, str(found.info()["attempt"]))

        return self._ranks.choose(step, find)

    def _open(self, step: int | None) -> NativeCheckpoint:
        if self._is_closed:
            raise InvalidInputError("the checkpointer is closed")
        found, damaged = self._native.open(step)
        for other, error in damaged:
            what = "another place" if other is None else f"step {other} is newer or nearer, and"
            warnings.warn(f"{what} cannot be read: {error}", stacklevel=3)
        if found is None:
            kind = CorruptDataError if damaged else NotFoundError
            raise kind(f"there is no checkpoint that can be read at {self.url}")
        return found

    def load(
        self,
        step: int | None = None,
        *,
        select: str | Sequence[str] | None = None,
        allow_pickle: bool = False,
        device: Any = None,
        framework: Literal["auto", "torch", "numpy"] = "auto",
    ) -> Any:
        """Load a state as it was saved, whole tensors, every byte verified.

        As many ranks as saved it get what each of them had; others get what all of them had. Under
        torch.distributed, all ranks call this, and rank 0 chooses the checkpoint; ranks that share nothing
        but the store name the step, since a newer one may appear between one's look and another's. (One rank
        alone looks at a checkpoint by a ``Checkpointer`` with ``rank=0, world=1``.)

        Args:
            step: which; the newest, unless said otherwise.
            select: only what has a dotted name that matches one of these patterns, as a flat dict.
            allow_pickle: load objects that were saved as pickles, which can run any code.
            device: where tensors of torch go.
            framework: what tensors are; torch where it is installed. Arrays that were of numpy are so again.

        """
        patterns = [select] if isinstance(select, str) else select
        found = self._choose(step)
        reader = (self.rank, self.world)
        error: BaseException | None = None
        try:
            state, self._ledger = _loading.load(found, reader, patterns, allow_pickle, device, framework)
        except BaseException as raised:
            # Told to the others first: they would go on without this rank.
            error = raised
        self._ranks.together(error, "load")
        assert self._ledger is not None
        _warn_of_passed_over(self._ledger)
        self._loaded_step = found.step
        return state

    def load_into(
        self,
        state: Any,
        step: int | None = None,
        *,
        strict: bool = True,
        allow_pickle: bool = False,
        broadcast: bool = False,
    ) -> Ledger:
        """Load into the tensors of a state, in place; of those that are spread over ranks, what this one has.

        Values in dicts and lists are replaced. Objects with ``load_state_dict`` get theirs. After an error,
        nothing is known of the content of the tensors. What is missing in what this rank has saved is looked
        for in what others have. Which ranks call it, and who chooses the checkpoint, is as with ``load``.

        Args:
            state: of the same shape as what was saved, or a part of it.
            step: which; the newest, unless said otherwise.
            strict: an error where one has something that the other has not.
            allow_pickle: load objects that were saved as pickles, which can run any code.
            broadcast: tensors that all ranks have whole are read by one of them, which tells the others.

        """
        found = self._choose(step)
        reader = (self.rank, self.world)
        self._ledger = _loading.load_into(found, reader, state, strict, allow_pickle, self._ranks, broadcast)
        _warn_of_passed_over(self._ledger)
        self._loaded_step = found.step
        return self._ledger

    def steps(self) -> list[int]:
        """Give the steps with a checkpoint that can be read, ascending."""
        return [row["step"] for row in self.checkpoints() if "error" not in row]

    def checkpoints(self) -> list[dict[str, Any]]:
        """Say what checkpoints there are, as dicts; with ``error`` where one cannot be read."""
        return self._native.list()

    def latest(self) -> int | None:
        """Give the newest step with a checkpoint; None where there is none."""
        found, _ = self._native.open(None)
        return None if found is None else found.step

    def verify(self, step: int | None = None) -> dict[str, Any]:
        """Compare every byte of a checkpoint with its hashes.

        Returns:
            The report: ``damages`` names objects, tensors and bytes; ``is_whole`` says that there is none.

        """
        report: dict[str, Any] = json.loads(self._open(step).verify())
        return {**report, "is_whole": not report["damages"]}

    def drain(self) -> None:
        """Wait until everything is copied to the mirror, and what is not to be kept is removed."""
        if self.rank == 0:
            self._native.settle()

    def delete(self, step: int) -> dict[str, Any]:
        """Remove a checkpoint; mirrors keep theirs, and what others reference of it stays."""
        if step not in self.steps():
            raise NotFoundError(f"there is no checkpoint of step {step} at {self.url}")
        if self._newest is not None and self._newest[0] == step:
            self._newest = None
        report: dict[str, Any] = json.loads(self._native.gc({"remove": [step]}))
        return report

    @property
    def staging_nbytes(self) -> int:
        """How much memory the staging area holds."""
        return self._staging.nbytes

    @property
    def staging_allocations(self) -> int:
        """How often memory was allocated for it: once, while the state does not grow."""
        return self._staging.allocations

    def close(self) -> None:
        """End the save that is under way, and give the memory back; raises what nobody has asked for yet."""
        if self._is_closed:
            return
        self._is_closed = True
        job = self._flight.job
        self._flight.finish()
        self._flight.job = None
        self._finalizer.detach()
        if job is not None and not job._is_seen:
            job.result()
        trouble = None if job is None else job._native.trouble()
        if trouble is not None:
            warnings.warn(f"{_LEFT}: {trouble}", stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            # The error that is under way says more than one of the save.
            with contextlib.suppress(Exception):
                self.close()


def _digest(structure: Any) -> bytes:
    return hashlib.blake2b(ckpt_encode(structure), digest_size=16).digest()


def _listed(given: Url | Sequence[Url] | None) -> list[Url]:
    return [given] if isinstance(given, (str, os.PathLike)) else list(given or ())


def _scalars(state: Any) -> dict[str, Any]:
    """Numbers and texts at the top of a state, which listings show."""
    if not isinstance(state, Mapping):
        return {}
    kinds = (bool, int, float, str)
    return {key: value for key, value in state.items() if type(key) is str and type(value) in kinds}
