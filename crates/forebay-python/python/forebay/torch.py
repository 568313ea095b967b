"""Streams for PyTorch: tensors that share the memory of the batch, and a side stream to the device.

>>> loader = forebay.torch.StreamLoader("s3://bucket/train/", batch_size=256, shuffle=True, device="cuda")
>>> for batch in loader:
...     step(batch["image"], batch["label"])

``StreamLoader`` needs no ``DataLoader`` around it: threads in Rust do what its worker processes do. Where
there is one already, ``StreamDataset`` fits into it, with ``batch_size=None`` and any number of workers.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from forebay._batches import Batch, sendable
from forebay._forebay import InvalidInputError, NotFoundError, PreconditionError, UnsupportedError
from forebay._places import Place, told
from forebay._ranks import Ranks, launcher
from forebay._tensors import RaggedTensor, apply, tensors
from forebay.streaming import _SHARED, Ahead, Stream, _number, checked, look_through, stream

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
_Url: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_ARGUMENTS = inspect.signature(stream)

# What ranks do together, as one that cannot says it.
_OPEN = "open the data set"

# Epochs are kept in a tensor, whose numbers have a sign.
_EPOCH_BITS = 63

# So many ranks that are missing are named; a message with thousands helps nobody.
_MISSING_NAMED = 16


def _ranks(options: dict[str, Any]) -> dict[str, Any]:
    """Rank and world size of the process group or the launcher, where no others are given."""
    if (options.get("rank") is None) != (options.get("world") is None):
        raise InvalidInputError("rank and world belong together: give both or none")
    if options.get("rank") is None and options.get("world") is None:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            return {**options, "rank": group.get_rank(), "world": group.get_world_size()}
        launched = launcher()
        if launched is not None:
            return {**options, "rank": launched[0], "world": launched[1]}
    return options


# cudaErrorHostMemoryAlreadyRegistered.
_ALREADY_REGISTERED = 712


def _check(status: Any) -> None:
    if int(status) != 0:
        raise RuntimeError(f"CUDA error {int(status)}")


def _pin(address: int, size: int) -> None:
    # 1 is cudaHostRegisterPortable: pinned for every device of the process.
    status = torch.cuda.cudart().cudaHostRegister(address, size, 1)  # type: ignore[no-untyped-call, unused-ignore]
    if int(status) == _ALREADY_REGISTERED:
        # Of whoever had this address before, or has it still: who unpins it, and when, nobody knows.
        raise PreconditionError(f"{size} bytes of memory are pinned by somebody else already")
    _check(status)


def _unpin(address: int, size: int) -> None:
    _check(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call, unused-ignore]


def _check_pinning() -> None:
    """Refuse to pin where torch cannot: it would say so at the first batch, and each time."""
    try:
        torch.empty(1, device="cpu").pin_memory()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UnsupportedError(f"pin_memory: torch cannot pin memory here: {reason}") from error


def _device(device: str | torch.device) -> torch.device:
    """Name a device that is there."""
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise InvalidInputError(f"device: '{device}' is none that torch knows") from error
    if named.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (named.index or 0) >= count:
            raise UnsupportedError(f"device: there is no '{device}' here: torch sees {count} GPUs")
        if named.index is None:
            # The one that is current now, whichever is so later: the side stream is one of its own.
            return torch.device("cuda", torch.cuda.current_device())
    return named


class StreamLoader:
    """Batches with tensors, on a device where one is given; takes the arguments of ``forebay.stream``.

    As with a ``DataLoader``, every ``for`` over it is one whole epoch, each in an order of its own. After a
    ``break`` in the middle, the next ``for`` begins the next epoch; who wants the rest keeps the iterator, or
    loads the loader's own state. Only the first ``for`` after ``load_state_dict`` gives the rest of an epoch.
    ``epochs`` bounds them, those that were left early included; by default there is no end. ``next(loader)``
    goes on with the epoch under way.

    Arrays become tensors and lists of numbers ``RaggedTensor``; names, text and bytes stay as they are.

    With a CUDA ``device``, the next batch is copied on a side stream while the one before it is in use,
    straight from the memory it was made in. ``pin_memory`` without a device gives tensors in pinned memory
    of torch's own.

    Under ``torch.distributed`` all ranks make it together, and compare what they see. With
    ``check_ranks=False`` this one asks nobody, as where it is the only one that evaluates: with ``rank=0,
    world=1`` then, for it would give its share alone.
    """

    def __init__(
        self,
        url: _Url,
        *,
        device: str | torch.device | None = None,
        pin_memory: bool = False,
        check_ranks: bool = True,
        **options: Any,
    ) -> None:
        """Open the data set; reading ahead begins with the first batch."""
        self.device: torch.device | None = None
        self.pin_memory = pin_memory
        self._side: Any = None

        def prepare() -> tuple[list[str], dict[str, Any]]:
            if device is not None:
                self.device = _device(device)
            if pin_memory and not self._is_cuda():
                _check_pinning()
            options.setdefault("epochs", None)
            if self._is_cuda():
                options.setdefault("pin", (_pin, _unpin))
                self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call, unused-ignore]
            return _given(url, options)

        self.stream: Stream = (
            _open_together(prepare, on=lambda: self.device) if check_ranks else _open(prepare())
        )
        # The batch that is given next, with where the stream stood before it; and the one behind it, on its
        # way to the device.
        self._next: tuple[Ahead, dict[str, Any]] | None = None
        self._after: tuple[Ahead, dict[str, Any]] | None = None
        # Batches of the epoch that is given next, or is under way.
        self._batches = len(self.stream)
        # Where it stood when it was closed, if not where the stream did.
        self._left: dict[str, Any] | None = None
        # Whether the last batch that was given ends its epoch, and whether one was given since it began, or
        # since a state was loaded.
        self._epoch_over = False
        self._epoch_begun = False
        # How often an iteration was begun: only the last one goes on.
        self._iterations = 0
        # What the device may still be reading, with the event that tells when it is done.
        self._copying: deque[tuple[Any, list[torch.Tensor]]] = deque()
        self._unpinned = 0

    def _is_cuda(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def __len__(self) -> int:
        """Batches of the epoch that the next batch is in, the same on every rank.

        All epochs have as many, but for one that was begun by another number of ranks, or in other batches.
        """
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        return _Epoch(self)

    def __getitem__(self, index: object) -> NoReturn:
        """Tell who puts it into a ``DataLoader``, or asks for one batch, what to do instead."""
        raise UnsupportedError(
            "a StreamLoader gives its batches in order and is no data set for a DataLoader: iterate over it "
            "in the place of the DataLoader, or put a StreamDataset of the same arguments into one"
        )

    def _begin(self) -> int:
        """Begin an iteration: where the last one left off at the end of an epoch, else with the next one."""
        if self._epoch_begun and not self._epoch_over:
            state = self.state_dict()
            self.load_state_dict(_at_epoch(state, _epoch_of(state, len(self)) + 1, len(self)))
        self._epoch_begun = self._epoch_over = False
        self._iterations += 1
        return self._iterations

    def __next__(self) -> Any:
        ready = self._ready()
        if ready is None:
            self._epoch_begun = self._epoch_over = False
            raise StopIteration
        # From here to the caller nothing is called, so no interruption comes between: whatever ends this
        # earlier, the batch comes again, and the state is the one before it.
        self._next, self._after = self._after, None
        self._epoch_begun, self._epoch_over, self._batches = True, ready.is_last, ready.batches
        return ready.value

    def _ready(self) -> Ahead | None:
        """Have the next batch at hand, as ``_next``, and with a device the one behind it on its way.

        None at the end of an epoch, and of all of them. Whoever gives the batch to the caller moves
        ``_after`` up himself: a call that did it would be one more at which Python looks for Ctrl-C, with the
        batch in nobody's hands.
        """
        if self._epoch_over:
            return None
        if self._next is None:
            self._fetch()
        if self._next is None:
            return None
        ready = self._next[0]
        if self._side is None:
            return ready
        # By its number: torch takes longer to find it in a device than to copy a small batch.
        current = torch.cuda.current_stream(self.device.index)  # type: ignore[union-attr]
        current.wait_stream(self._side)
        apply(ready.value, lambda value: _record(value, current))
        if self._after is None:
            self._fetch()
        return ready

    def _fetch(self) -> None:
        """Take a batch from the stream, and keep it for whoever is next."""
        stream = self.stream
        if stream._is_busy:
            raise InvalidInputError(_SHARED)
        try:
            stream._is_busy = True
            state = stream.state_dict()
            ahead = stream._look()
            if ahead is None:
                return
            moved = self._move(ahead.value) if self._side is None else self._send(ahead.value)
            taken = (ahead._replace(value=moved), state)
            # From here on nothing is called: the stream has given the batch once the loader has it, not
            # before.
            if self._next is None:
                self._next = taken
            else:
                self._after = taken
            stream.index, stream._batches = ahead.number, ahead.batches
            stream._given += 1
        finally:
            stream._is_busy = False

    def _send(self, batch: Any) -> Any:
        """Begin to copy a batch to the device."""
        with torch.cuda.stream(self._side):
            sources: list[torch.Tensor] = []
            moved = self._move(batch, sources)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call, unused-ignore]
            done.record(self._side)
        # The memory of a batch is used again once nobody holds it, so it is held until the copies are done.
        self._copying.append((done, sources))
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
        return moved

    def _move(self, batch: Any, sources: list[torch.Tensor] | None = None) -> Any:
        def move(value: Any) -> Any:
            if isinstance(value, RaggedTensor):
                return value._moved(move)
            if not isinstance(value, torch.Tensor):
                return value
            if (self.pin_memory or self._side is not None) and _can_be_pinned(value):
                # On the way to a device, that is: more batches are in use than there is pinned memory for.
                self._unpinned += self._side is not None
                value = value.pin_memory()
            if self.device is None:
                return value
            if sources is not None:
                sources.append(value)
            return value.to(self.device, non_blocking=True)

        return apply(tensors(batch), move)

    def state_dict(self) -> dict[str, Any]:
        """Tell where the loader stands after the last batch it gave, or stood when it was closed."""
        if self._next is not None:
            return self._next[1]
        return self.stream.state_dict() if self._left is None else self._left

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, also one of another world size."""
        self.stream.load_state_dict(state)
        self._next = self._after = None
        self._epoch_begun = self._epoch_over = False
        self._batches = len(self.stream)

    def report(self) -> dict[str, Any]:
        """Tell what the stream did; see ``forebay.Stream``.

        ``unpinned_tensors`` counts those that had to be copied into pinned memory first.
        """
        return {**self.stream.report(), "unpinned_tensors": self._unpinned}

    def close(self) -> None:
        """Stop reading; state and report can still be asked for."""
        if self._next is not None:
            # It was not given: the stream is further than the loader.
            self._left = self._next[1]
            self._next = self._after = None
        for done, _ in self._copying:
            done.synchronize()
        self._copying.clear()
        self.stream.close()

    def __del__(self) -> None:
        for done, _ in getattr(self, "_copying", ()):
            done.synchronize()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_END = object()


class _Epoch(Iterator[Any]):
    """One iteration over a loader, which begins with its first batch and ends with the epoch."""

    def __init__(self, loader: StreamLoader) -> None:
        self._loader = loader
        self._number: int | None = None
        self._is_over = False

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        if self._number is None:
            self._number = self._loader._begin()
        elif self._number != self._loader._iterations:
            raise PreconditionError("another iteration over this loader has begun since: go on with that one")
        loader = self._loader
        ready = loader._ready()
        if ready is None:
            loader._epoch_begun = loader._epoch_over = False
            self._is_over = True
            raise StopIteration
        # As in the loader's own, once more: the way through it would be a call with the batch in hand.
        loader._next, loader._after = loader._after, None
        loader._epoch_begun, loader._epoch_over, loader._batches = True, ready.is_last, ready.batches
        return ready.value

    def __len__(self) -> int:
        """Batches of the epoch."""
        return len(self._loader)


def _epoch_of(state: Mapping[str, Any], batches: int) -> int:
    """Tell the epoch that a state is in; in a mixture, which knows none, so many batches are one."""
    if state.get("sources") is None:
        return int(state["epoch"])
    return int(state["samples"] // max(batches * state["batch"], 1))


def _at_epoch(state: Mapping[str, Any], epoch: int, batches: int) -> dict[str, Any]:
    """Give the state at the beginning of an epoch."""
    if state.get("sources") is None:
        return {**state, "epoch": epoch, "samples": 0}
    return {**state, "samples": epoch * batches * state["batch"]}


def _can_be_pinned(value: torch.Tensor) -> bool:
    """Say whether it is not pinned and can be, dense and on the host: a transform may give others."""
    is_dense = value.device.type == "cpu" and value.layout == torch.strided
    return is_dense and value.numel() > 0 and not value.is_pinned()


def _record(value: Any, stream: Any) -> Any:
    if isinstance(value, torch.Tensor | RaggedTensor):
        value.record_stream(stream)
    return value


def _attempt(make: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Give what is made, or why it cannot be: what a rank raises, the others are told first."""
    try:
        return make(), None
    except BaseException as error:
        return None, error


def _open(given: tuple[list[str], dict[str, Any]]) -> Stream:
    urls, options = given
    return stream(urls, **options)


def _open_together(
    prepare: Callable[[], tuple[list[str], dict[str, Any]]],
    *,
    must_compare: bool = False,
    on: Callable[[], torch.device | None] = lambda: None,
) -> Stream:
    """Open a stream as all ranks do: where one of them cannot, none goes on, nor waits for it.

    Whatever can fail without opening it is done by ``prepare``, which gives the arguments, and told first: a
    rank that makes an index of the data set is long in opening it. ``on`` names the device of this rank, once
    that is known.
    """
    ranks = Ranks(None, None, "auto", None)

    def tell(row: Any, error: BaseException | None) -> list[Any]:
        with _current(on()):
            return ranks.tell(row, error, _OPEN)

    def looked() -> tuple[list[str], dict[str, Any]]:
        urls, options = prepare()
        if ranks.by_torch:
            _look_at(urls, options)
        elif must_compare and (options.get("world") or 1) > 1:
            raise InvalidInputError(
                f"check_ranks: there is no process group to compare {options['world']} ranks in: call "
                "torch.distributed.init_process_group before, or leave out check_ranks"
            )
        return urls, options

    given, error = _attempt(looked)
    rows = tell(None if given is None else (given[1].get("rank"), given[1].get("world")), error)
    if ranks.by_torch:
        _check_shares(rows)
    assert given is not None
    arguments = given
    opened, error = _attempt(lambda: _open(arguments))
    try:
        _agree(tell(None if opened is None else opened.state_dict(), error))
    except BaseException:
        if opened is not None:
            opened.close()
        raise
    assert opened is not None
    return opened


def _current(device: torch.device | None) -> contextlib.AbstractContextManager[Any]:
    """Have a GPU be the current one, through which ranks tell each other where their group has NCCL only.

    Whoever names the device of each rank need not have set it; of ranks that share one, NCCL waits for ever.
    """
    if device is None or device.type != "cuda":
        return contextlib.nullcontext()
    current: contextlib.AbstractContextManager[Any] = torch.cuda.device(device)
    return current


def _check_shares(shares: list[tuple[int, int]]) -> None:
    """Refuse ranks that leave shares of an epoch to nobody.

    Several may have the same one, as in tensor parallelism.
    """
    world = shares[0][1]
    for number, (_, other) in enumerate(shares):
        if other != world:
            raise InvalidInputError(
                f"world: process {number} streams as one of {other} ranks, and process 0 as one of {world}"
            )
    given = {rank for rank, _ in shares}
    missing = list(itertools.islice((rank for rank in range(world) if rank not in given), _MISSING_NAMED + 1))
    if missing:
        names = ", ".join(map(str, missing[:_MISSING_NAMED]))
        more = " and others" if len(missing) > _MISSING_NAMED else ""
        raise InvalidInputError(
            f"rank: no process streams as rank {names}{more} of {world}, so "
            "their samples would be missing; each needs its number among all processes that share the epoch "
            "(RANK, which is another one than LOCAL_RANK on all but the first node)"
        )


def _agree(states: list[dict[str, Any]]) -> None:
    """Refuse to begin where ranks see another data set or have other settings: they would miss samples."""
    differing = [rank for rank, other in enumerate(states) if other != states[0]]
    if differing:
        other = states[differing[0]]
        keys = sorted(key for key in {*states[0], *other} if other.get(key) != states[0].get(key))
        raise InvalidInputError(
            f"ranks {', '.join(map(str, differing))} stream something else than rank 0 does: "
            f"{', '.join(keys)} differ; do they all see the same shards and the same _forebay.fbi?"
        )


def _given(url: _Url, options: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Give the arguments of a stream as they are used, or say which of them cannot be."""
    bound = _ARGUMENTS.bind(url, **options)
    bound.apply_defaults()
    arguments = checked(bound.arguments)
    given = _ranks({name: arguments[name] for name in options})
    look_through({**arguments, **given})
    return arguments["url"], given


def _look_at(urls: Sequence[str], options: Mapping[str, Any]) -> None:
    """Refuse paths of this machine that are not there."""
    for url in urls:
        _look(url)
    for manifest in options.get("manifest") or ():
        if manifest is not None and not options.get("save_index"):
            _look(manifest, "manifest")


def _look(url: str, name: str = "url") -> None:
    """Refuse a path of this machine that is not there; to look for others takes the network."""
    # What becomes of patterns, whoever opens it knows, and what to write in their place.
    is_path = ":" not in url.partition("/")[0] and not any(mark in url for mark in "{*?")
    if is_path and not os.path.exists(url):
        raise NotFoundError(f"{name}: there is no '{url}'")


def _refuse(batches: list[Batch], **_: Any) -> Any:
    raise InvalidInputError(
        "a StreamDataset makes the batches, and a DataLoader puts them into others: give it batch_size=None"
    )


# Of types that are not in this table, torch makes batches; a Batch is one already.
default_collate_fn_map[Batch] = _refuse


class StreamDataset(IterableDataset[Any]):
    """A data set for ``DataLoader(dataset, batch_size=None, num_workers=...)``: it makes the batches itself.

    Each worker streams its own share: with ``n`` workers on each of ``world`` ranks, worker ``w`` of rank
    ``r`` is number ``r * n + w`` of ``world * n``, which must divide ``lanes``. Streams are opened in the
    workers, so any way to start them works. Every iteration is the epoch that ``set_epoch`` chose, as with
    samplers; without a call it is the same one every time, which is warned of where it is shuffled. There is
    no ``len``: it depends on the number of workers, and is known once the data set is open.

    Without workers it goes on from its own states. With workers each has a state of its own, which the
    ``StatefulDataLoader`` of torchdata keeps: a state of that goes on with as many workers and ranks. To go
    on with others, or with another ``DataLoader`` that has workers, use ``StreamLoader``.

    With ``check_ranks`` each rank of ``torch.distributed`` opens the data set once when this is made, and
    ranks that see something else than the others are refused. All must make it then: one alone would wait.
    """

    def __init__(
        self,
        url: _Url,
        *,
        check_ranks: bool = False,
        **options: Any,
    ) -> None:
        """Remember what to open; what can be seen to be wrong without opening it is refused here."""

        def prepare() -> tuple[list[str], dict[str, Any]]:
            if options.pop("epochs", 1) != 1:
                raise InvalidInputError(
                    "epochs: every iteration over a StreamDataset is one epoch, the one that set_epoch chose"
                )
            urls, self.options = _given(url, options)
            self.url = url if isinstance(url, str | os.PathLike) else urls
            return urls, self.options

        # Of the last iteration that was begun here, and of a state that the next one goes on from.
        self._place = Place()
        self._loaded: Place | None = None
        # Shared with workers that live on from one epoch to the next, and by those that do not: the epoch,
        # whether an iteration has given something, whether there is nothing more to say about that, whether
        # the last one was begun by workers, and the epoch of which a loaded state was the end.
        self._share(torch.tensor([0, 0, 0, 0, -1], dtype=torch.int64, device="cpu"))
        if check_ranks:
            # Workers cannot ask each other.
            _open_together(prepare, must_compare=True).close()
        else:
            _look_at(*prepare())

    def _share(self, said: torch.Tensor) -> None:
        if not said.is_shared():  # type: ignore[no-untyped-call, unused-ignore]
            said.share_memory_()  # type: ignore[no-untyped-call, unused-ignore]
        self._said = said
        parts = said.split(1)  # type: ignore[no-untyped-call, unused-ignore]
        self._epoch, self._has_given, self._is_settled, self._has_workers, self._ended = parts

    def __copy__(self) -> Self:
        """Give one with an epoch of its own: what it is used for is not told of this one."""
        copied = type(self).__new__(type(self))
        copied.__dict__.update(vars(self))
        copied._share(self._said.clone())
        return copied

    def __getstate__(self) -> dict[str, Any]:
        shared = dict.fromkeys(("_epoch", "_has_given", "_is_settled", "_has_workers", "_ended"))
        return {**vars(self), **shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # What is copied or pickled by others than torch is in memory of its own.
        self.__dict__.update(state)
        self._share(state["_said"])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives."""
        self._epoch[0] = _number("epoch", epoch, _EPOCH_BITS)
        self._is_settled[0] = 1

    def _tell_of_repetition(self, epoch: int) -> None:
        """Warn once of an epoch that is given again: nobody has chosen it, or a state was of its end."""
        if self._ended[0] == epoch:
            self._ended[0] = -1
            warnings.warn(
                f"the state that was loaded is the end of epoch {epoch}, which is given again now: call "
                f"set_epoch({epoch + 1}) for the next one",
                RuntimeWarning,
                stacklevel=3,
            )
        if self.options.get("shuffle") and self._has_given[0] and not self._is_settled[0]:
            self._is_settled[0] = 1
            warnings.warn(
                f"a StreamDataset gives epoch {int(self._epoch[0])} again, in the same order: call "
                "set_epoch(epoch) before every iteration, or once where that is what you want",
                RuntimeWarning,
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """Tell where the last iteration stands after the last batch it gave, in a worker that of its share.

        ``epoch`` is the epoch it is in. Without workers, it is the same on every rank. A batch that was
        asked for is given, also where somebody asks ahead of the training step, as Lightning does of loaders
        without a length: its states are one batch further than its steps are.
        """
        if get_worker_info() is None and self._loaded is None and self._has_workers[0]:
            raise UnsupportedError(
                "workers stream this StreamDataset, and each of them knows its own place only: take the "
                "state of a torchdata.stateful_dataloader.StatefulDataLoader around it, or use a "
                "forebay.torch.StreamLoader, which needs no workers"
            )
        place = self._place if self._loaded is None else self._loaded
        return {
            "epoch": int(self._epoch[0]) if place.epoch is None else place.epoch,
            "position": None if place.position is None else json.loads(place.position),
            "is_over": place.is_over,
            "worker": place.worker,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration give the rest of the epoch that a state is in.

        The same epoch is to be chosen by ``set_epoch`` before that iteration is made, and another is refused.
        Of a state after the last batch of its epoch nothing is left, and another epoch is given as a whole.
        """
        self._loaded = Place.of(state)

    def __iter__(self) -> Iterator[Any]:
        worker = _worker(self.options)
        self._has_workers[0] = worker is not None
        loaded = self._loaded
        # Of its own: what was loaded may be that of a copy of this data set, too, or be tried once more.
        place = Place(worker=worker) if loaded is None else copy.copy(loaded)
        if place.worker != worker:
            raise PreconditionError(
                f"the state that was loaded is of {told(place.worker)}, and this is {told(worker)}: a "
                "StreamDataset goes on with as many workers and ranks, the state of workers being loaded by "
                "their torchdata.stateful_dataloader.StatefulDataLoader; forebay.torch.StreamLoader goes on "
                "with other numbers"
            )
        # Here, not with the first batch: the loaders of torchdata have what was loaded until all their
        # workers have made their iterators, and no longer. So what is loaded is opened here as well: where
        # that fails in one of them, the next attempt goes on from the state.
        epoch = int(self._epoch[0])
        place.enter(epoch)
        if loaded is not None and place.is_over and self._speaks(worker):
            self._ended[0] = epoch
        opened = None if loaded is None or place.is_over else self._open(place, epoch)
        self._place, self._loaded = place, None
        return self._batches(place, epoch, opened, is_loaded=loaded is not None)

    def _speaks(self, worker: dict[str, int] | None) -> bool:
        """Say whether this is the one that speaks for all workers of all ranks."""
        return not self.options.get("rank") and (worker is None or worker["id"] == 0)

    def _batches(self, place: Place, epoch: int, opened: Stream | None, *, is_loaded: bool) -> Iterator[Any]:
        worker = place.worker
        is_first = self._speaks(worker)
        if is_first and not is_loaded:
            self._tell_of_repetition(epoch)
        if place.is_over:
            return
        # One that is opened and has nothing left is no true value.
        with self._open(place, epoch) if opened is None else opened as batches:
            while (ahead := batches._look()) is not None:
                # Views of memory, which a transform may give, cannot be pickled: torch would wait for ever.
                value = tensors(ahead.value)
                ready = value if worker is None else apply(value, sendable)
                position = batches._position_after()
                if is_first:
                    # By this one alone: others may give their first batch before it has begun.
                    self._has_given[0] = 1
                # From here to the caller nothing is called, so no interruption comes between: whatever ends
                # this earlier, the state is the one before the batch.
                batches.index, batches._batches = ahead.number, ahead.batches
                batches._given += 1
                place.position, place.is_over = position, ahead.is_last
                yield ready
            self._tell_of_bad(batches, epoch)

    def _tell_of_bad(self, batches: Stream, epoch: int) -> None:
        """Warn of samples that were left out: nobody else has the report of a stream of a worker."""
        bad = batches.report().get("bad_samples", 0)
        if bad:
            warnings.warn(
                f"{bad} bad samples were left out of epoch {epoch}; forebay verify names them",
                RuntimeWarning,
                stacklevel=3,
            )

    def _open(self, place: Place, epoch: int) -> Stream:
        """Open the stream of an iteration where it begins, with what it has left."""
        options = dict(self.options)
        if place.worker is not None:
            workers = place.worker["workers"]
            options["rank"] = (options.get("rank") or 0) * workers + place.worker["id"]
            options["world"] = place.worker["world"] * workers
        options["epochs"] = epoch + 1
        batches = stream(self.url, **options)
        try:
            begin = batches.state_dict()
            if place.position is None:
                begin = _at_epoch(begin, epoch, len(batches))
            else:
                begin = self._fitting(json.loads(place.position), begin, place.worker)
            batches.load_state_dict(begin)
        except BaseException:
            batches.close()
            raise
        return batches

    def _fitting(
        self, position: dict[str, Any], own: Mapping[str, Any], worker: dict[str, int] | None
    ) -> dict[str, Any]:
        """Refuse the place of a worker among others whose batches have another size, which cut the samples.

        Workers do not stand at the same place. In a shuffled order each has lanes of its own, whatever its
        batches are; in the order of the shards they take turns, batch by batch.
        """
        if (
            worker is not None
            and not self.options.get("shuffle")
            and position.get("batch", own["batch"]) != own["batch"]
        ):
            ranks = worker["workers"] * worker["world"]
            raise PreconditionError(
                f"batch_size was {position['batch'] // ranks} and is {own['batch'] // ranks}: workers of a "
                "StreamDataset that does not shuffle go on with the batches that they had; "
                "forebay.torch.StreamLoader goes on with others"
            )
        return position


def _worker(options: Mapping[str, Any]) -> dict[str, int] | None:
    """Tell which worker of a ``DataLoader`` this is, of how many, on each of how many ranks."""
    worker = get_worker_info()
    if worker is None:
        return None
    return {"id": worker.id, "workers": worker.num_workers, "world": options.get("world") or 1}


__all__ = ["RaggedTensor", "StreamDataset", "StreamLoader", "tensors"]
