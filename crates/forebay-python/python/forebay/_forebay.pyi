# Types of the extension module. `stubtest` compares them with what it really has.

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, SupportsIndex, TypeAlias, TypedDict, final, overload

from typing_extensions import Buffer as _BytesLike
from typing_extensions import Self

_Path: TypeAlias = Literal[
    "gds", "direct_uring", "direct_psync", "buffered", "mmap", "nvme_tcp", "http", "memory"
]
_Service: TypeAlias = Literal["latency", "data", "checkpoint", "background"]
_Damaged: TypeAlias = list[tuple[int, str]]
_ReadRequest: TypeAlias = str | tuple[str, int, int | None]

class _PathTotals(TypedDict):
    bytes: int
    requests: int
    copied_bytes: int
    retries: int

class _Downgrade(TypedDict):
    wanted: str
    taken: str
    reason: str

class _LedgerDict(TypedDict):
    paths: dict[str, _PathTotals]
    verified_bytes: int
    cpu_ns: int
    downgrades: list[_Downgrade]
    downgrades_dropped: int

class _EngineDict(TypedDict):
    kind: str
    notes: list[str]
    fallback_reason: str | None

__all__ = [
    "AlreadyExistsError",
    "AuthenticationError",
    "Buffer",
    "CancelledError",
    "CopyResult",
    "CorruptDataError",
    "DeviceTensor",
    "EntryName",
    "ForebayError",
    "ForebayIOError",
    "InternalError",
    "InvalidInputError",
    "Ledger",
    "LimitExceededError",
    "Listing",
    "MutableBuffer",
    "NativeBatch",
    "NativeCheckpoint",
    "NativeCheckpoints",
    "NativeSave",
    "NativeStream",
    "NativeWeights",
    "NotFoundError",
    "ObjectMeta",
    "OutOfSpaceError",
    "PermissionDeniedError",
    "PreconditionError",
    "Prefix",
    "Proof",
    "ReadOnlyError",
    "Store",
    "StoreTimeoutError",
    "ThrottledError",
    "Typed",
    "UnavailableError",
    "UnsupportedError",
    "Upload",
    "WriteResult",
    "__version__",
    "alloc",
    "ckpt_copy",
    "ckpt_encode",
    "ckpt_layout",
    "configure",
    "copy",
    "engine",
    "gds_probe",
    "weights_header",
    "weights_load_device",
    "weights_save",
    "weights_serialize",
    "weights_warm",
]

__version__: str

class ForebayError(Exception):
    kind: str | None
    op: str | None
    location: str | None
    hint: str | None

class NotFoundError(ForebayError, FileNotFoundError):
    kind: str

class AlreadyExistsError(ForebayError, FileExistsError):
    kind: str

class PreconditionError(ForebayError):
    kind: str

class PermissionDeniedError(ForebayError, PermissionError):
    kind: str

class AuthenticationError(ForebayError, PermissionError):
    kind: str

class InvalidInputError(ForebayError, ValueError):
    kind: str

class CorruptDataError(ForebayError):
    kind: str

class UnsupportedError(ForebayError, NotImplementedError):
    kind: str

class OutOfSpaceError(ForebayError, OSError):
    kind: str

class ReadOnlyError(ForebayError, OSError):
    kind: str

class LimitExceededError(ForebayError):
    kind: str

class StoreTimeoutError(ForebayError, TimeoutError):
    kind: str

class UnavailableError(ForebayError, ConnectionError):
    kind: str

class ThrottledError(ForebayError):
    kind: str

class CancelledError(ForebayError):
    kind: str

class ForebayIOError(ForebayError, OSError):
    kind: str

class InternalError(ForebayError):
    kind: str

@final
class Buffer:
    @property
    def ledger(self) -> Ledger: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    def tobytes(self) -> bytes: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, key: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, key: slice, /) -> Buffer: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class MutableBuffer:
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    def tobytes(self) -> bytes: ...
    def freeze(self) -> Buffer: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class Ledger:
    def __new__(cls) -> Self: ...
    @property
    def bytes(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def copied_bytes(self) -> int: ...
    @property
    def retries(self) -> int: ...
    @property
    def verified_bytes(self) -> int: ...
    @property
    def cpu_ns(self) -> int: ...
    @property
    def paths(self) -> dict[str, _PathTotals]: ...
    @property
    def downgrades(self) -> list[_Downgrade]: ...
    @property
    def downgrades_dropped(self) -> int: ...
    def to_dict(self) -> _LedgerDict: ...
    def merge(self, other: Ledger) -> Ledger: ...
    def __add__(self, value: Ledger, /) -> Ledger: ...
    def __radd__(self, value: Ledger, /) -> Ledger: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class ObjectMeta:
    @property
    def key(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def version(self) -> str | None: ...
    @property
    def modified(self) -> float | None: ...
    @property
    def checksum(self) -> str | None: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class Prefix:
    @property
    def key(self) -> str: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class Proof:
    @property
    def state(self) -> Literal["shown", "refuted", "untried"]: ...
    @property
    def reason(self) -> str | None: ...
    def __bool__(self) -> bool: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class WriteResult:
    @property
    def version(self) -> str | None: ...
    @property
    def size(self) -> int: ...
    @property
    def crc64nvme(self) -> int: ...
    @property
    def check(self) -> Literal["by_store", "durable", "unchecked"]: ...
    @property
    def ledger(self) -> Ledger: ...

@final
class CopyResult:
    @property
    def objects(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def objects_skipped(self) -> int: ...
    @property
    def bytes_resumed(self) -> int: ...
    @property
    def source_matched(self) -> int: ...
    @property
    def checked_by_store(self) -> int: ...
    @property
    def checked_by_read_back(self) -> int: ...
    @property
    def ledger(self) -> Ledger: ...

@final
class Listing:
    def __iter__(self) -> Self: ...
    def __next__(self) -> ObjectMeta | Prefix: ...

@final
class Upload:
    @property
    def part_bytes(self) -> int: ...
    def put_part(self, index: int, data: _BytesLike) -> Ledger: ...
    def complete(self) -> WriteResult: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

@final
class Store:
    # Without `cache`, FOREBAY_CACHE says it for stores that are not on this machine; "" is no cache at all.
    def __new__(
        cls,
        url: str | os.PathLike[str],
        *,
        cache: str | None = None,
        immutable: bool = False,
        require: _Path | None = None,
        service: _Service = "data",
        endpoint: str | None = None,
        region: str | None = None,
        addressing: Literal["path", "virtual"] | None = None,
    ) -> Self: ...
    @property
    def url(self) -> str: ...
    def read(
        self, key: str = "", offset: int = 0, length: int | None = None, *, version: str | None = None
    ) -> Buffer: ...
    def read_into(
        self,
        key: str,
        buffer: _BytesLike,
        offset: int = 0,
        length: int | None = None,
        *,
        version: str | None = None,
    ) -> Ledger: ...
    def read_many(self, requests: Iterable[_ReadRequest]) -> list[Buffer]: ...
    def write(self, key: str, data: _BytesLike, if_absent: bool = False) -> WriteResult: ...
    def upload(self, key: str, if_absent: bool = False, size_hint: int | None = None) -> Upload: ...
    def head(self, key: str = "") -> ObjectMeta: ...
    def list(self, prefix: str = "", recursive: bool = True) -> Listing: ...
    def delete(self, key: str) -> None: ...
    def capabilities(self) -> dict[str, Proof]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]: ...

@final
class NativeBatch:
    @property
    def epoch(self) -> int: ...
    @property
    def index(self) -> int: ...
    def __len__(self) -> int: ...
    def keys(self) -> list[str]: ...
    def parts(self) -> list[tuple[str, Buffer, Buffer | None]]: ...

@final
class NativeStream:
    def __new__(cls, urls: list[str], options: dict[str, Any]) -> Self: ...
    def next(self) -> NativeBatch | None: ...
    def position(self) -> str: ...
    def restart(self, position: str) -> None: ...
    @property
    def batches(self) -> int: ...
    @property
    def samples(self) -> int: ...
    def schema(self) -> str: ...
    def report(self) -> str: ...
    def close(self) -> None: ...

@final
class NativeWeights:
    def __new__(cls, urls: list[str], options: dict[str, Any]) -> Self: ...
    def tensors(self, options: dict[str, Any]) -> list[tuple[str, str, list[int], int]]: ...
    def files(self) -> list[tuple[str, int, dict[str, str] | None, bool]]: ...
    def load(
        self, options: dict[str, Any]
    ) -> tuple[list[tuple[str, str, list[int], MutableBuffer]], str, Ledger]: ...

@final
class EntryName:
    def __new__(cls, name: str) -> Self: ...
    @property
    def name(self) -> str: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class Typed:
    def __new__(cls, kind: str, value: Any) -> Self: ...
    @property
    def kind(self) -> str: ...
    @property
    def value(self) -> Any: ...

@final
class NativeSave:
    @property
    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None, settled: bool = False) -> bool: ...
    def result(self) -> tuple[str, Ledger] | None: ...

@final
class NativeCheckpoint:
    @property
    def step(self) -> int: ...
    def info(self) -> dict[str, Any]: ...
    def entries(self) -> list[tuple[str, str, str, list[int], tuple[str, int, list[int]] | None]]: ...
    def value(self, name: str, rank: int | None = None) -> Any: ...
    def opaque(self, name: str) -> bytes | None: ...
    def load(
        self, wants: list[tuple[str, list[int], list[int], int]]
    ) -> tuple[list[MutableBuffer], Ledger]: ...
    def load_into(self, rows: list[tuple[str, list[int], list[int], int, int]]) -> Ledger: ...
    def verify(self) -> str: ...

@final
class NativeCheckpoints:
    def __new__(cls, url: str, options: dict[str, Any]) -> Self: ...
    @property
    def url(self) -> str: ...
    def draw(self) -> str: ...
    @staticmethod
    def derive(run_id: str, step: int, number: int) -> str: ...
    def save(
        self,
        staging: MutableBuffer | None,
        slices: list[tuple[str, str, list[int], list[int], list[int], int]],
        others: list[tuple[str, str, Any]],
        options: dict[str, Any],
    ) -> NativeSave: ...
    def list(self) -> list[dict[str, Any]]: ...
    def open(self, step: int | None) -> tuple[NativeCheckpoint | None, _Damaged]: ...
    def gc(self, options: dict[str, Any]) -> str: ...

@final
class DeviceTensor:
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def tobytes(self) -> bytes: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

def weights_load_device(
    source: NativeWeights, devices: list[str], options: dict[str, Any]
) -> tuple[list[list[tuple[str, str, list[int], DeviceTensor]]], str, Ledger]: ...
def gds_probe(file: str | os.PathLike[str] | None, device: str) -> str: ...
def weights_warm(device: str, pinned: int | None = None) -> tuple[int, float]: ...
def weights_header(data: bytes) -> list[tuple[str, str, list[int], int, int]]: ...
def weights_save(
    url: str,
    tensors: list[tuple[str, str, list[int], int, int]],
    metadata: dict[str, str] | None = None,
    *,
    align: int = 8,
    hashes: str = "no",
) -> Ledger: ...
def weights_serialize(
    tensors: list[tuple[str, str, list[int], int, int]], metadata: dict[str, str] | None = None
) -> bytes: ...
def ckpt_copy(staging: MutableBuffer, rows: list[tuple[int, int, int]]) -> None: ...
def ckpt_encode(value: Any) -> bytes: ...
def ckpt_layout(
    slices: list[tuple[str, str, list[int], list[int], list[int]]],
) -> tuple[list[int], int]: ...
def alloc(size: int) -> MutableBuffer: ...
def configure(
    *,
    buffer_memory: int | str | None = None,
    engine: Literal["auto", "uring", "psync"] | None = None,
    huge_pages: bool | None = None,
    concurrency: int | None = None,
    part_size: int | str | None = None,
) -> None: ...
def copy(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    recursive: bool = False,
    verify: Literal["auto", "read_back", "read-back", "none"] = "auto",
    if_absent: bool = False,
    progress: Callable[[int, int, int], object] | None = None,
) -> CopyResult: ...
def engine() -> _EngineDict: ...
