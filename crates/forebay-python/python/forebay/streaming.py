"""Streaming data sets: batches of samples, in an order that depends on nothing but the seed.

>>> with forebay.stream("s3://bucket/train/", batch_size=256, shuffle=True) as batches:
...     for batch in batches:
...         step(batch["jpg"], batch["cls"])

Threads in Rust read ahead, compare every sample with its checksum and put batches together; no worker
processes are needed. Arrays show the memory of the batch without a copy, keep it alive, and are read-only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from forebay._batches import Batch, Decoded, Keys, Ragged, _dtype, _numpy
from forebay._forebay import InvalidInputError, NativeBatch, NativeStream, UnsupportedError
from forebay._values import opener

if TYPE_CHECKING:
    from typing_extensions import Self

Decoder: TypeAlias = str | Callable[[memoryview], Any]

# Where the names of the samples are in a batch, as in WebDataset.
KEY = "__key__"

_DECODERS: dict[str, Callable[[memoryview], Any]] = {
    "bytes": bytes,
    "text": lambda value: str(value, "utf-8"),
    # A value that a sample does not have is one of no bytes, which are no JSON.
    "json": lambda value: json.loads(bytes(value)) if len(value) else None,
}

# Share of the samples that may be left out of an epoch without a word.
_LEFT_OUT_TOLD = 0.01

# Arguments that are whole numbers, and the bits that they have.
_NUMBERS = {
    "batch_size": 64,
    "seed": 64,
    "epochs": 64,
    "rank": 32,
    "world": 32,
    "lanes": 32,
    "threads": 64,
    "limit": 64,
}
_SIZES = ("window", "block_size", "memory")

# What becomes of samples that do not fill a batch.
Last: TypeAlias = Literal["drop", "short", "wrap"]
_LASTS = ("drop", "short", "wrap")


def _number(name: str, value: Any, bits: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, and cannot be {value!r}") from None
    if not 0 <= number < 1 << bits:
        raise InvalidInputError(f"{name} cannot be {number}: it is between 0 and {(1 << bits) - 1}")
    return number


def _path(name: str, value: Any) -> str:
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str):
        raise TypeError(f"{name} is a path or a URL, and cannot be {value!r}")
    return path


def _listed(name: str, value: Any) -> list[Any]:
    """Give a list of what may be one of its items alone, a path or a name."""
    if isinstance(value, str | bytes | os.PathLike):
        return [value]
    try:
        return list(value)
    except TypeError:
        raise TypeError(f"{name} cannot be {value!r}") from None


def _last(drop_last: bool | None, last: str | None) -> str:
    """Give what becomes of the last samples, which both arguments say."""
    if last is None:
        return "drop" if drop_last is None or drop_last else "short"
    if last not in _LASTS:
        raise InvalidInputError(f"last cannot be {last!r}; one of: {', '.join(_LASTS)}")
    if drop_last is not None and bool(drop_last) != (last == "drop"):
        raise InvalidInputError(
            f"last is '{last}' and drop_last {drop_last}, which is not the same: give one of them"
        )
    return last


def _by_threads(decode: Mapping[str, Decoder] | None) -> list[tuple[str, str]]:
    """Give what is decoded by the threads that make the batches: what is no function and none of ours."""
    return [
        (name, how) for name, how in (decode or {}).items() if isinstance(how, str) and how not in _DECODERS
    ]


def checked(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Give the arguments of ``stream`` as they are used, or say which of them cannot be."""
    given = dict(arguments)
    url = given["url"]
    given["url"] = [_path("url", one) for one in _listed("url", url)]
    if not given["url"]:
        raise InvalidInputError("url: there is no data set in the list")
    manifest = given["manifest"]
    if manifest is not None:
        manifests = _listed("manifest", manifest)
        given["manifest"] = [None if one is None else _path("manifest", one) for one in manifests]
    for name, bits in _NUMBERS.items():
        # What has no default cannot be left to it.
        if given[name] is not None or name == "batch_size":
            given[name] = _number(name, given[name], bits)
    for name in _SIZES:
        if given[name] is not None and not isinstance(given[name], str):
            given[name] = _number(name, given[name], 64)
    for name in ("fields", "weights"):
        given[name] = None if given[name] is None else _listed(name, given[name])
    given["last"] = _last(given["drop_last"], given["last"])
    if isinstance(given["format"], Mapping):
        try:
            given["format"] = json.dumps(dict(given["format"]))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"format: {error}") from error
    given["trace"] = None if given["trace"] is None else _path("trace", given["trace"])
    decode = given["decode"]
    if not isinstance(decode, Mapping | None):
        raise InvalidInputError(f"decode: a dict says how each field is decoded, not {decode!r}")
    for name, how in (decode or {}).items():
        if not (isinstance(how, str) or callable(how)):
            raise InvalidInputError(f"decode: a name or a function says how '{name}' is decoded, not {how!r}")
    return given


def look_through(options: Mapping[str, Any]) -> None:
    """Refuse arguments, as ``checked`` gives them, that a stream would refuse whatever it is of."""
    NativeStream.check(options["url"], {**options, "decode": _by_threads(options["decode"])})


_SHARED = (
    "another thread is using the stream, which is for one thread at a time: give each its own, "
    "or put a lock around it"
)


def _alone(method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of the stream in Rust, which refuses two threads at a time with words of its own."""
    try:
        return method(*arguments)
    except RuntimeError as error:
        if type(error) is RuntimeError and str(error) in ("Already borrowed", "Already mutably borrowed"):
            raise InvalidInputError(_SHARED) from None
        raise


def _fingerprint(position: Mapping[str, Any]) -> str:
    """Name what a position says but for where it stands: the data, the global batch, the settings."""
    common = {name: value for name, value in position.items() if name not in ("epoch", "samples")}
    return hashlib.blake2b(json.dumps(common, sort_keys=True).encode(), digest_size=8).hexdigest()


class Ahead(NamedTuple):
    """A batch that is made and not given yet."""

    # Its number in its epoch, and whether it is the last one there.
    number: int
    is_last: bool
    # Batches of the epoch that the one behind it is in.
    batches: int
    # The batch, or what ``transform`` made of it.
    value: Any


class Stream(Iterator[Batch]):
    """Batches of a data set; made by ``forebay.stream``. For one thread at a time."""

    def __init__(
        self,
        urls: list[str],
        options: dict[str, Any],
        *,
        transform: Callable[[Batch], Any] | None = None,
        decode: Mapping[str, Decoder] | None = None,
    ) -> None:
        """Open the data set; reading ahead begins with the first batch."""
        self._transform = transform
        # Number in its epoch of the last batch that was given, and how many were.
        self.index = -1
        self._given = 0
        # Seconds in `transform`. When the last batch was taken, which may come again: how
        # many were given before it, and the seconds until then that the threads in Rust have seen.
        self._transform_s = self._transform_s_before = 0.0
        # What they have not: after the last batch before each `load_state_dict`.
        self._transform_s_unseen = 0.0
        self._given_before: int | None = None
        # Whether a batch is being made.
        self._is_busy = False
        self._native = NativeStream(urls, {**options, "decode": _by_threads(decode)})
        self._schema = self._native.schema()
        self._samples = self._native.samples
        # Of the epoch that the next batch is in.
        self._batches = self._native.batches
        # Position and report that it was closed with.
        self._left: tuple[str, str] | None = None
        self._decode = {
            name: how if callable(how) else _DECODERS[how]
            for name, how in (decode or {}).items()
            if callable(how) or how in _DECODERS
        }
        self._fields: dict[str, dict[str, Any]] = {field["name"]: field for field in self.schema}
        position = json.loads(self._native.position(0))
        self._fingerprint = _fingerprint(position)
        batch = position["batch"]
        left_out = self._samples - self._batches * batch
        is_whole = options.get("limit") is None and len(urls) == 1
        is_much = left_out > max(self._samples * _LEFT_OUT_TOLD, batch)
        if is_whole and options["last"] == "drop" and is_much:
            warnings.warn(
                f"{left_out} of {self._samples} samples are left out of every epoch, others each time: lanes "
                "are cut to one length, and batches that are not full dropped; fewer lanes or "
                "last='short' or 'wrap' leave out less",
                stacklevel=3,
            )
        # What says itself what it is needs not be asked for.
        encoded = {name: field["encoding"] for name, field in self._fields.items() if "encoding" in field}
        openers = {name: opener(encoding) for name, encoding in encoded.items()}
        self._opened = {name: how for name, how in openers.items() if how is not None}
        for name in self._decode:
            if name not in self._fields:
                raise InvalidInputError(
                    f"decode: there is no field '{name}'; there are: {', '.join(self._fields)}"
                )
            if self._fields[name]["kind"] == "array":
                raise InvalidInputError(
                    f"decode: field '{name}' is one array of the batch already; change it in `transform`"
                )

    @property
    def schema(self) -> list[dict[str, Any]]:
        """The fields by name and kind; arrays and lists have a ``dtype``, arrays a ``shape``."""
        return json.loads(self._schema)  # type: ignore[no-any-return]

    @property
    def samples(self) -> int:
        """Samples of the data set that the filter keeps, over all ranks."""
        return self._samples

    @property
    def fingerprint(self) -> str:
        """Name of the data set as it is seen here, of what is kept of it, and of the settings of the order.

        Ranks that share an epoch have the same one; where one differs, samples come twice or not at all.
        """
        return self._fingerprint

    def __len__(self) -> int:
        """Batches of the epoch that the next batch is in, the same on every rank.

        All epochs have as many, but for one that was begun by another number of ranks, or in other batches.
        """
        return self._batches

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._is_busy:
            raise InvalidInputError(_SHARED)
        try:
            self._is_busy = True
            ahead = self._look()
            if ahead is None:
                raise StopIteration
            # From here to the caller nothing is called, so no interruption comes between: whatever ends this
            # earlier, the batch comes again, and the state is the one before it.
            self.index, self._batches = ahead.number, ahead.batches
            self._given += 1
        finally:
            self._is_busy = False
        return ahead.value

    def skip(self) -> None:
        """Leave out a batch that ``transform`` raised for, which would come again."""
        if _alone(getattr, self._native, "taken") > self._given:
            self._given += 1

    def _look(self) -> Ahead | None:
        """Make the next batch; None after the last.

        It counts as given once ``_given`` is raised, and until then it is the next one. Whoever does that
        calls nothing between raising it and keeping the batch: Python looks for Ctrl-C at calls. Until then
        ``_is_busy`` keeps other threads away, which would get the same batch.
        """
        _numpy()
        native = _alone(self._native.next, self._given)
        if native is None:
            return None
        if self._given != self._given_before:
            self._given_before = self._given
            self._transform_s_before = self._transform_s - self._transform_s_unseen
        batch = self._batch(native)
        value = batch if self._transform is None else self._transformed(batch)
        return Ahead(batch.index, native.is_last, native.batches_ahead, value)

    def _position_after(self) -> str:
        """Tell, as JSON, where it will stand once the batch that ``_look`` made is given."""
        return str(_alone(self._native.position, self._given + 1))

    def _transformed(self, batch: Batch) -> Any:
        assert self._transform is not None
        begun = perf_counter()
        try:
            return self._transform(batch)
        finally:
            self._transform_s += perf_counter() - begun

    def _batch(self, native: NativeBatch) -> Batch:
        batch = Batch()
        batch.epoch, batch.index, batch.size = native.epoch, native.index, len(native)
        for name, data, offsets in native.parts():
            field = self._fields[name]
            if offsets is None:
                array = _numpy().frombuffer(data, dtype=_dtype(field["dtype"]))
                batch[name] = array.reshape(batch.size, *field["shape"])
                continue
            ragged = Ragged(data, offsets, field["dtype"] if field["kind"] == "list" else None)
            decode = self._decode.get(name) or self._opened.get(name)
            batch[name] = ragged if decode is None else Decoded(ragged, decode)
        # A field of that name is the key where it is text; numbers, and what a function makes of it,
        # stay what they are.
        kind = self._fields.get(KEY, {}).get("kind", "text")
        if kind in ("text", "bytes") and KEY not in self._decode:
            batch[KEY] = Keys(native)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Tell where the stream stands after the last batch it gave: below 1 KiB, and good for every rank.

        A stream that is closed tells where it stood.
        """
        position = _alone(self._native.position, self._given) if self._left is None else self._left[0]
        return json.loads(position)  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, also one of another world size; a stream under way is stopped first."""
        if not isinstance(state, Mapping):
            raise InvalidInputError(f"a state is a dict as state_dict() gives it, and cannot be {state!r}")
        try:
            text = json.dumps(dict(state), separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"a state is a dict as state_dict() gives it: {error}") from error
        _alone(self._native.restart, text, self._given)
        self._given_before = None
        self._transform_s_unseen = self._transform_s - self._transform_s_before
        self._batches = _alone(getattr, self._native, "batches")

    def report(self) -> dict[str, Any]:
        """Tell samples, bytes, waits and whose fault they were, bad samples, the ledger; empty at first."""
        told = _alone(self._native.report) if self._left is None else self._left[1]
        report: dict[str, Any] = json.loads(told) or {}
        if report:
            self._tell_transform(report["stalls"])
        return report

    def _tell_transform(self, stalls: dict[str, Any]) -> None:
        """Take the time in ``transform`` from the consumer's, as which it counts for the threads in Rust."""
        stalls["transform_s"] = self._transform_s
        # Theirs ends where the last batch was asked for.
        stalls["consumer_s"] = max(stalls["consumer_s"] - self._transform_s_before, 0.0)
        whole = stalls["waited_s"] + stalls["consumer_s"] + stalls["transform_s"]
        stalls["waited_share"] = stalls["waited_s"] / whole if whole else 0.0

    def close(self) -> None:
        """Stop reading; batches stay valid, and state and report can still be asked for."""
        if self._left is None:
            # In another process than the one it was opened in, there is nothing to tell.
            with contextlib.suppress(UnsupportedError):
                position = _alone(self._native.position, self._given)
                self._left = position, _alone(self._native.report)
        _alone(self._native.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def stream(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    batch_size: int,
    weights: Sequence[float] | None = None,
    shuffle: bool = False,
    seed: int = 0,
    epochs: int | None = 1,
    rank: int | None = None,
    world: int | None = None,
    lanes: int = 64,
    window: int | str = "256MiB",
    block_size: int | str = "2MiB",
    memory: int | str = "384MiB",
    threads: int | None = None,
    fields: Iterable[str] | None = None,
    cache: str | None = None,
    bad: str = "stop",
    limit: int | None = None,
    filter: str | None = None,  # noqa: A002
    drop_last: bool | None = None,
    last: Last | None = None,
    format: str | Mapping[str, Any] | None = None,  # noqa: A002
    save_index: bool = False,
    manifest: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | None] | None = None,
    trace: str | os.PathLike[str] | None = None,
    pin: tuple[Callable[[int, int], Any], Callable[[int, int], Any]] | None = None,
    transform: Callable[[Batch], Any] | None = None,
    decode: Mapping[str, Decoder] | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    addressing: str | None = None,
) -> Stream:
    """Stream the batches of a data set.

    Epochs follow each other in one iteration, each shuffled in its own way: there is no ``set_epoch``.

    Args:
        url: directory or prefix with shards, one shard, or a pattern such as ``train-{000000..000123}.tar``;
            a list of shards of one folder is one data set, a list of data sets is mixed
        batch_size: samples of a batch of one rank
        weights: shares of the data sets that are mixed; by default each has as much as it has samples
        shuffle: in an order that follows from ``seed`` and the number of the epoch, and from nothing else
        seed: of the order
        epochs: passes over the data set; None for ever
        rank: this process among ``world``; by default ``RANK`` and ``WORLD_SIZE`` say it, else it is alone
        world: how many there are
        lanes: parts of the data set that go to one rank each; the world size must divide it
        window: about how much is shuffled together, over all lanes
        block_size: about how much is read at once
        memory: bound of what is read ahead
        threads: that check and collate; one per core, at most 16, by default
        fields: only these
        cache: as in ``forebay.Store``: keeps what is read from remote stores on a local disk
        bad: what becomes of damaged samples: ``"stop"``, ``"skip:100"`` for at most 100 of them, whose places
            others of the batch take, or ``"quarantine:100:FOLDER"`` to keep them there as well
        limit: samples of all ranks after which an epoch ends
        filter: only samples for which it holds, such as ``"json.width >= 256 and cls != 7"``
        drop_last: what ``last`` says, in words of torch: True for ``"drop"``, False for ``"short"``
        last: what becomes of samples that do not fill a batch: ``"drop"``, the default, leaves them out,
            ``"short"`` makes one that is shorter, and may be empty on some ranks, ``"wrap"`` fills it from
            the beginning of the epoch: all samples at least once and only full batches, as of a
            ``DistributedSampler``
        format: of the shards, where it is not to be found out: its name, or with parameters
            ``{"name": "tokens", "tokens": 2048, "dtype": "uint16"}``
        save_index: keep the index that is made where there is none: beside the shards, or where ``manifest``
            says
        manifest: where the index is, where it is not ``_forebay.fbi`` beside the shards, such as
            ``forebay index -o`` writes it; of several data sets a list of one for each, None for one that has
            its own beside its shards
        trace: file for a trace of the pipeline, for Chrome or Perfetto: ``NAME.json``, of rank 3 of several
            ``NAME-00003.json``, and of the second stream that this process opens under the name
            ``NAME.2.json``
        pin: functions that pin and unpin the memory of batches, each called with an address and a size;
            ``StreamLoader`` with a CUDA ``device`` gives those of CUDA. Its ``pin_memory`` without a device
            does not: it copies each batch to pinned memory of torch's own
        transform: called with each batch; what it returns is what the stream gives
        decode: how fields are decoded, such as
            ``{"jpg": "image:rrc:224,flip,normalize", "cls": "int", "json": "json", "txt": "text"}``.
            ``"int"``, ``"float"``, ``"array:DTYPE:SHAPE"`` and ``"image:PLAN"`` become one array of the
            batch, made by threads; ``"json"``, ``"text"``, ``"bytes"`` and functions are applied to each
            value when it is looked at
        endpoint: of an S3 store
        region: of an S3 store
        addressing: of an S3 store, ``path`` or ``virtual``

    """
    options = checked(
        {
            "url": url,
            "batch_size": batch_size,
            "weights": weights,
            "shuffle": shuffle,
            "seed": seed,
            "epochs": epochs,
            "rank": rank,
            "world": world,
            "lanes": lanes,
            "window": window,
            "block_size": block_size,
            "memory": memory,
            "threads": threads,
            "fields": fields,
            "cache": cache,
            "bad": bad,
            "limit": limit,
            "filter": filter,
            "drop_last": drop_last,
            "last": last,
            "format": format,
            "save_index": save_index,
            "manifest": manifest,
            "trace": trace,
            "pin": pin,
            "decode": decode,
            "endpoint": endpoint,
            "region": region,
            "addressing": addressing,
        }
    )
    return Stream(options.pop("url"), options, transform=transform, decode=options.pop("decode"))
