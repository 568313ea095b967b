"""Batches as tensors: arrays share their memory, and so do lists of numbers, as one tensor of all values.

Arrays become plain tensors, lists of numbers ``RaggedTensor``; names, text and bytes stay what they are.
Worker processes hand ragged values over in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from forebay._batches import Ragged, _dtype, _numpy
from forebay._forebay import UnsupportedError


def tensors(batch: Any) -> Any:
    """Turn the arrays of a batch into tensors that share their memory; do not write to them.

    Dicts, lists and tuples are gone through. Fields of type ``bfloat16`` stay 16-bit integers;
    ``tensor.view(torch.bfloat16)`` shows what they are. Arrays of text, objects and times, for which torch
    has no tensors, stay as they are.
    """
    return apply(batch, _tensor)


class _Writable:
    """An array as one that can be written to: torch has no read-only tensors, and warns of what will be one.

    Nobody writes to a batch. To keep the warning back would be to change the filters of all threads, while
    threads of a ``DataLoader`` take batches apart and put them together.
    """

    def __init__(self, array: Any) -> None:
        shown = array.__array_interface__
        self.__array_interface__ = {**shown, "data": (shown["data"][0], False)}
        # Its memory is there as long as this is.
        self.array = array


# Kinds of arrays that torch has tensors for: numbers and truth values. Of long doubles it has none.
_KINDS = "biufc"


def _tensor(value: Any) -> Any:
    if isinstance(value, _numpy().ndarray):
        is_number = value.dtype.kind in _KINDS and hasattr(torch, value.dtype.name)
        return _of_array(value) if is_number else value
    if type(value) is Ragged and value.dtype is not None:
        return RaggedTensor(*value._buffers(), value.dtype)
    return value


def _of_array(array: Any) -> torch.Tensor:
    """Show the memory of an array; of one that lies as no tensor can, a copy."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array if array.flags.writeable else _numpy().asarray(_Writable(array)))


def apply(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to all that is in dicts, lists and tuples; a batch stays the batch it is."""
    if isinstance(value, dict):
        for name, item in value.items():
            value[name] = apply(item, function)
        return value
    if isinstance(value, list):
        return [apply(item, function) for item in value]
    if isinstance(value, tuple):
        items = [apply(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return function(value)


# What lists can be converted to: types that numpy has, too, since all but the tensors is on the host.
_CONVERTED = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)


class RaggedTensor(Ragged):
    """Lists of numbers: ``values[splits[i] : splits[i + 1]]`` are those of sample ``i``.

    ``values`` and ``splits`` are on the device of the batch, and so is what ``padded`` and ``nested`` give,
    without a wait of the host. It is a ``Ragged``, too: ``ragged[i]`` and all else that those have are arrays
    on the host, of the memory that the batch was made in. Of one that comes out of a file or from another
    process they are copies of what is on the device, made when they are looked at.
    """

    # The numbers of all samples, one after the other.
    values: torch.Tensor
    # Where each sample begins in bytes, as it lies in the memory of the batch, which is pinned as a whole.
    _places: torch.Tensor
    dtype: str

    def __init__(self, data: Any, offsets: Any, dtype: str) -> None:
        """Around two buffers; made by ``forebay.torch``."""
        super().__init__(data, offsets, dtype)
        self.values, self._places = tensors([self._numbers(), self.offsets])

    @property
    def splits(self) -> torch.Tensor:
        """Where samples begin and end in ``values``: 64-bit integers, one more than there are samples."""
        return self._places if self.values.element_size() == 1 else self._places // self.values.element_size()

    @property
    def lengths(self) -> torch.Tensor:  # type: ignore[override, unused-ignore]
        """How many values each sample has."""
        return self.splits.diff()

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.values.device

    def __len__(self) -> int:
        return len(self._places) - 1

    def __getattr__(self, name: str) -> Any:
        """Give what is on the host of one that was made of its tensors, once that is looked at."""
        if name == "_data":
            self._data = _on_host(self.values)
        elif name == "_offsets":
            self._offsets = _on_host(self._places).cast("q")
        else:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return vars(self)[name]

    def _plain(self) -> torch.Tensor:
        """Give the values as integers of their size: with unsigned ones, torch can do little."""
        size = self.values.element_size()
        return self.values.view(torch.uint8 if size == 1 else getattr(torch, f"int{8 * size}"))

    def _moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> RaggedTensor:
        """Give the same with both tensors moved."""
        made = _again(move(self.values), move(self._places), self.dtype)
        if self.device.type == "cpu" or "_data" in vars(self):
            if _goes_along(made.values, self.values):
                made._data = self._data
            if _goes_along(made._places, self._places):
                made._offsets = self._offsets
        return made

    def _converted(self, dtype: torch.dtype) -> RaggedTensor:
        """Give the same numbers as another type, where they are."""
        name = str(dtype).removeprefix("torch.")
        if name not in _CONVERTED:
            raise UnsupportedError(
                f"lists of numbers cannot become {dtype}; convert their `values`, or what `padded` gives"
            )
        values = self._typed().to(dtype)
        made = _again(values, self.splits * values.element_size(), name)
        if self.device.type != "cpu" and "_offsets" in vars(self):
            # What pads on a device asks the host where samples begin, and should not have to wait for it.
            offsets = self.offsets // self._number().itemsize * values.element_size()
            made._offsets = memoryview(offsets).cast("B").cast("q")
        return made

    def _typed(self) -> torch.Tensor:
        """Give the values as what they are, also those of which ``values`` are the bits."""
        return self.values.view(torch.bfloat16) if self.dtype == "bfloat16" else self.values

    def to(self, *target: Any, **options: Any) -> RaggedTensor:
        """Give it on another device, as another type, or both, as ``Tensor.to`` does.

        ``ragged.to("cuda")``, ``ragged.to(torch.int64)``, ``ragged.to("cuda", torch.int64)``,
        ``ragged.to(tensor)``, all with ``non_blocking`` and ``copy``. Of ``bfloat16``, numbers are converted,
        and not the bits that ``values`` has.
        """
        flags = [one for one in target if isinstance(one, bool)]
        how: dict[str, Any] = dict(zip(("non_blocking", "copy"), flags, strict=False))
        how |= {name: options.pop(name) for name in ("non_blocking", "copy") if name in options}
        # Torch knows best what it is asked for, and of no values it costs nothing to ask.
        wanted = self._typed()[:0].to(*(one for one in target if not isinstance(one, bool)), **options)
        # There first: what is converted is often larger.
        there = self._moved(lambda part: part.to(wanted.device, **how))
        return there if wanted.dtype == self._typed().dtype else there._converted(wanted.dtype)

    def pin_memory(self) -> RaggedTensor:
        """Give it in pinned memory, as ``Tensor.pin_memory`` does."""
        return self._moved(lambda part: part.pin_memory())

    def record_stream(self, stream: Any) -> None:
        """Tell that a stream of the device uses it, as ``Tensor.record_stream`` does."""
        self.values.record_stream(stream)
        self._places.record_stream(stream)

    def padded(self, fill: float = 0, length: int | None = None) -> torch.Tensor:  # type: ignore[override, unused-ignore]
        """Give a tensor ``[B, length]`` on the device; see ``Ragged.padded``."""
        if self.device.type == "cpu":
            return torch.from_numpy(super().padded(fill, length))
        return self._scattered(self._filling(fill), self._width(length))

    def _scattered(self, filling: float, width: int) -> torch.Tensor:
        """Give the rows, made on the device: all values at once, and nothing that is larger than they are."""
        rows = self.values.new_full((len(self), width), filling)
        # How many there are is known on the host: asked for it, the device would have to be waited for.
        kept = int(_numpy().minimum(self._lengths(), width).sum())
        if kept == 0:
            return rows
        plain = self._plain()
        splits = self.splits
        begin, counts = splits[:-1], splits.diff().clamp(max=width)
        order, line = (torch.arange(count, device=self.device) for count in (kept, len(self)))
        # For each value that is kept, where it is and where it goes.
        first = counts.cumsum(0) - counts
        found = order + torch.repeat_interleave(begin - first, counts, output_size=kept)
        place = order + torch.repeat_interleave(line * width - first, counts, output_size=kept)
        rows.view(plain.dtype).view(-1).scatter_(0, place, plain[found])
        return rows

    def nested(self) -> torch.Tensor:
        """Give a nested tensor of layout ``jagged``, which shows ``values``."""
        make = getattr(torch.nested, "nested_tensor_from_jagged", None)
        if make is None:
            raise UnsupportedError(f"torch {torch.__version__} makes no nested tensors of layout jagged")
        return make(self.values, self.splits)  # type: ignore[no-any-return, unused-ignore]

    def __reduce__(self) -> tuple[Any, ...]:
        # Of the tensors, which torch hands over, and loads where somebody wants them.
        return _again, (self._plain(), self._places, self.dtype)

    def __repr__(self) -> str:
        return (
            f"<forebay.RaggedTensor of {len(self)} samples, {self.values.numel()} values, on {self.device}>"
        )


def _again(values: torch.Tensor, places: torch.Tensor, dtype: str) -> RaggedTensor:
    made = RaggedTensor.__new__(RaggedTensor)
    made.values, made._places, made.dtype = values.view(getattr(torch, _dtype(dtype).name)), places, dtype
    return made


# Since torch 2.6, `torch.load` opens what somebody vouches for. This takes two tensors and a name.
if hasattr(torch.serialization, "add_safe_globals"):
    torch.serialization.add_safe_globals([_again])


def _goes_along(made: torch.Tensor, source: torch.Tensor) -> bool:
    """Say whether what is on the host of a tensor is that of what was made of it.

    It goes along to devices. A copy on the host has memory of its own: that may be written to, and is what
    everything shows then, while the memory of the batch can go.
    """
    return bool(made.device.type != "cpu" or made.data_ptr() == source.data_ptr())


def _on_host(tensor: torch.Tensor) -> memoryview:
    """Show the bytes of a tensor, which are copied where it is on a device."""
    return tensor.cpu().view(torch.uint8).numpy().data.toreadonly()  # type: ignore[no-any-return, unused-ignore]


def _share(ragged: Ragged) -> tuple[Any, ...]:
    """Hand values of a worker process over in shared memory, as tensors are, and not through its pipe."""
    data, offsets = tensors([ragged.bytes, ragged.offsets.view("uint8")])
    return _shared, (data, offsets, ragged.dtype)


def _shared(data: torch.Tensor, offsets: torch.Tensor, dtype: str | None) -> Ragged:
    return Ragged(_on_host(data), _on_host(offsets), dtype)


ForkingPickler.register(Ragged, _share)
