"""``safe_open``: a file whose tensors are read when they are asked for, whole or in part."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from forebay._arrays import framework_of, needs_ml_dtypes, to_torch_device
from forebay._forebay import (
    CorruptDataError,
    ForebayError,
    LimitExceededError,
    NativeWeights,
    NotFoundError,
    UnsupportedError,
    weights_load_device,
)
from forebay.loading import _device as device_name


def _their_error() -> type[Exception]:
    """Give the exception of the library where it is installed: clauses that name it go on catching."""
    try:
        from safetensors import SafetensorError as Theirs
    except ImportError:
        return Exception
    return Theirs  # type: ignore[no-any-return]


class SafetensorError(ForebayError, _their_error()):  # type: ignore[misc]
    """The file, or what is wanted of it, is wrong."""


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise what is wrong with headers under the name that callers of the library expect."""
    try:
        yield
    except (CorruptDataError, LimitExceededError, UnsupportedError) as error:
        raise SafetensorError(f"Error while deserializing header: {error}") from error


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Raise what goes wrong with tensors under that name, too."""
    try:
        yield
    except ForebayError as error:
        raise SafetensorError(str(error)) from error


_FRAMEWORKS = {
    "pt": "torch",
    "torch": "torch",
    "pytorch": "torch",
    "np": "numpy",
    "numpy": "numpy",
}
_BACKENDS = {"mmap", "pread"}


class safe_open:  # noqa: N801
    """A file of tensors, open.

    Args:
        filename: a path or URL.
        framework: ``pt`` or ``np``.
        device: where tensors go; for ``pt`` any that torch knows.
        backend: taken for compatibility; how bytes are read is decided by where they are.

    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str,
        device: str | int | Any = "cpu",
        *,
        backend: str = "mmap",
    ) -> None:
        """Open, and check the header."""
        if framework not in _FRAMEWORKS:
            raise SafetensorError(f"framework {framework} is invalid")
        if backend not in _BACKENDS:
            raise SafetensorError(f"backend {backend} is invalid, one of: mmap, pread")
        self._framework = _FRAMEWORKS[framework]
        self._convert, self._known = framework_of(self._framework)
        self._device = _device(device)
        if self._device != "cpu" and self._framework != "torch":
            raise SafetensorError(f"device {device} is invalid for {framework}")
        self._name = os.fspath(filename)
        try:
            with _translated():
                self._source: NativeWeights | None = self._opened()
        except NotFoundError as error:
            raise FileNotFoundError(f"No such file or directory: {self._name}") from error
        rows = self._source.tensors({})
        self._rows = {name: (dtype, shape) for name, dtype, shape, _ in rows}

    def _opened(self) -> NativeWeights:
        self._process = os.getpid()
        return NativeWeights([self._name], {"verify": "prefer"})

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._source = None

    def _open(self) -> NativeWeights:
        if self._source is None:
            raise SafetensorError("File is closed")
        if self._process != os.getpid():
            # Workers that were forked have the handle of their parent, and open the file for themselves.
            self._source = self._opened_again(self._source)
        return self._source

    def _opened_again(self, before: NativeWeights) -> NativeWeights:
        with _translated():
            source = self._opened()
        if {row[0]: (row[1], row[2]) for row in source.tensors({})} != self._rows:
            raise SafetensorError(f"{self._name} has changed since it was opened")
        # Not let go: its threads are those of the parent.
        self._parents = [*getattr(self, "_parents", []), before]
        return source

    def _row(self, name: str) -> tuple[str, list[int]]:
        self._open()
        if name not in self._rows:
            raise SafetensorError(f"File does not contain tensor {name}")
        return self._rows[name]

    def keys(self) -> list[str]:
        """Names of the tensors, sorted."""
        self._open()
        return sorted(self._rows)

    def offset_keys(self) -> list[str]:
        """Names of the tensors, in the order of their bytes."""
        self._open()
        return list(self._rows)

    def metadata(self) -> dict[str, str] | None:
        """Give what the file says of itself."""
        return self._open().files()[0][2]

    def get_tensor(self, name: str) -> Any:
        """Read a tensor."""
        self._row(name)
        return self._load([(name, None)])[name]

    def get_tensors(self) -> dict[str, Any]:
        """Read all tensors, in few large reads; to a GPU through pinned memory, or by GPUDirect Storage."""
        if self._framework == "torch" and _is_cuda(self._device):
            return self._load_device()
        return self._load(None)

    def get_slice(self, name: str) -> SafeSlice:
        """Give what can be sliced like a tensor, and reads only what is asked for."""
        dtype, shape = self._row(name)
        return SafeSlice(self, name, dtype, shape)

    def _load(self, exact: list[tuple[str, tuple[int, int, int] | None]] | None) -> dict[str, Any]:
        source = self._open()
        self._check([name for name, _ in exact] if exact is not None else self._rows)
        with _named():
            tensors, _, _ = source.load({} if exact is None else {"exact": exact})
            made = {name: self._convert(name, dtype, shape, data) for name, dtype, shape, data in tensors}
        if self._device == "cpu":
            return made
        return {name: tensor.to(self._device) for name, tensor in made.items()}

    def _load_device(self) -> dict[str, Any]:
        source = self._open()
        self._check(self._rows)
        with _named():
            lists, _, _ = weights_load_device(source, [device_name(self._device)], {"gds": "prefer"})
        return {name: to_torch_device(name, dtype, shape, data) for name, dtype, shape, data in lists[0]}

    def _check(self, names: Iterable[str]) -> None:
        """Before anything is read: a tensor that cannot be shown is an error that names it."""
        for name in names:
            dtype, shape = self._rows[name]
            with _named():
                self._known(name, dtype, shape)
            if self._framework == "numpy" and needs_ml_dtypes(dtype):
                raise SafetensorError(f"tensor {name}: numpy has no {dtype} without the package ml_dtypes")


def _is_cuda(device: Any) -> bool:
    """Say whether it is a GPU of NVIDIA; others have the name `cuda` in torch, too."""
    import torch

    return torch.device(device).type == "cuda" and torch.version.cuda is not None


def _device(device: Any) -> Any:
    if isinstance(device, int):
        return f"cuda:{device}"
    return "cpu" if str(device) == "cpu" else device


class SafeSlice:
    """A tensor that is read when it is sliced: rows, or strips of rows, and no more where that pays."""

    def __init__(self, file: safe_open, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Around a tensor of an open file; made by ``get_slice``."""
        self._file = file
        self._name = name
        self._dtype = dtype
        self._shape = list(shape)

    def get_shape(self) -> list[int]:
        """Give the number of values along each side."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """Give the name of the type in files."""
        return self._dtype

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            if index:
                raise SafetensorError("Non empty lists are not implemented")
            return self._read((0, 0, 0))
        steps = [_plain(step) for step in (index if isinstance(index, tuple) else (index,))]
        ellipses = [at for at, step in enumerate(steps) if step is Ellipsis]
        if ellipses:
            at = ellipses[0]
            missing = len(self._shape) - len(steps) + 1
            steps[at : at + 1] = [slice(None)] * missing
        if len(steps) > len(self._shape):
            raise SafetensorError(f"{self._said(steps)}: too many indices")
        ranges = [self._range(steps, dim) for dim in range(len(steps))]
        narrowed = [dim for dim, one in enumerate(ranges) if (one.start, one.stop) != (0, self._shape[dim])]
        rest = list(steps)
        if self._dtype == "F4" and len(steps) == len(self._shape):
            rest[-1] = self._pairs(steps, ranges[-1])
        if not narrowed:
            return self._read(None)[tuple(rest)]
        # One side is narrowed by reading less, the others by indexing what was read.
        dim = narrowed[0]
        tensor = self._read((dim, ranges[dim].start, len(ranges[dim])))
        rest[dim] = 0 if isinstance(steps[dim], int) else slice(None, None, steps[dim].step)
        return tensor[tuple(rest)]

    def _pairs(self, steps: Sequence[Any], wanted: range) -> slice:
        """Give indices of the last side in bytes, each of which two values share."""
        step = steps[-1]
        if not isinstance(step, slice) or step.step not in (None, 1) or wanted.start % 2 or len(wanted) % 2:
            raise SafetensorError(f"{self._said(steps)}: values of F4 come in pairs, from an even index")
        return slice(wanted.start // 2, wanted.stop // 2)

    def _read(self, part: tuple[int, int, int] | None) -> Any:
        return self._file._load([(self._name, part)])[self._name]

    def _said(self, steps: Sequence[Any]) -> str:
        def said(step: Any) -> str:
            if not isinstance(step, slice):
                return str(step)
            ends = ["" if end is None else str(end) for end in (step.start, step.stop)]
            return ":".join(ends)

        inside = ", ".join(said(step) for step in steps)
        return f"Error during slicing [{inside}] with shape {self._shape}"

    def _range(self, steps: Sequence[Any], dim: int) -> range:
        """Which indices of a side are wanted, as one run."""
        step, size = steps[dim], self._shape[dim]
        if isinstance(step, slice):
            if step.step is not None and step.step < 1:
                raise SafetensorError(f"{self._said(steps)}: steps go forward")
            for end in (step.start, step.stop):
                # Torch takes what there is, and the library for numpy does not.
                if isinstance(end, int) and end > size and self._file._framework != "torch":
                    raise self._beyond(steps, end - 1, dim)
            start, stop, _ = step.indices(size)
            return range(start, max(start, stop))
        if not isinstance(step, int) or isinstance(step, bool):
            raise SafetensorError(f"{self._said(steps)}: an index is an int or a slice")
        if not -size <= step < size and self._file._framework == "torch":
            raise IndexError(f"index {step} is out of bounds for dimension {dim} with size {size}")
        if step < -size:
            raise SafetensorError(f"Invalid index {step} for dimension {dim} of size {size}")
        if step >= size:
            raise self._beyond(steps, step, dim)
        at = step % size
        return range(at, at + 1)

    def _beyond(self, steps: Sequence[Any], index: int, dim: int) -> SafetensorError:
        return SafetensorError(
            f"{self._said(steps)}: index {index} out of bounds for tensor dimension #{dim} of size "
            f"{self._shape[dim]}"
        )


def _plain(step: Any) -> Any:
    """Give an index as an int, whatever kind of number it is."""
    if isinstance(step, (int, slice)) or not hasattr(step, "__index__"):
        return step
    try:
        return operator.index(step)
    except TypeError:
        return step


def _safe_open_handle(handle: Any, framework: str, device: str | int = "cpu") -> safe_open:
    """Open the file behind an open one, by its name."""
    name = getattr(handle, "name", None) or getattr(handle, "path", None)
    if not isinstance(name, (str, os.PathLike)):
        raise SafetensorError("the file has no name that it could be opened by")
    return safe_open(name, framework, device)
