"""Streams for PyTorch: tensors that share the memory of the batch, and a side stream to the device.

>>> loader = forebay.torch.StreamLoader("s3://bucket/train/", batch_size=256, shuffle=True, device="cuda")
>>> for batch in loader:
...     step(batch["image"], batch["label"])

``StreamLoader`` needs no ``DataLoader`` around it: threads in Rust do what its worker processes do. Where
there is one already, ``StreamDataset`` fits into it, with ``batch_size=None`` and any number of workers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from forebay.streaming import Batch, Stream, stream

if TYPE_CHECKING:
    from typing_extensions import Self


def _ranks(options: dict[str, Any]) -> dict[str, Any]:
    """Rank and world size of the process group or the launcher, where no others are given."""
    if options.get("rank") is None and options.get("world") is None:
        group = torch.distributed
        if group.is_available() and group.is_initialized():
            return {**options, "rank": group.get_rank(), "world": group.get_world_size()}
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            return {**options, "rank": int(os.environ["RANK"]), "world": int(os.environ["WORLD_SIZE"])}
    return options


def tensors(batch: Batch) -> Batch:
    """Turn the arrays of a batch into tensors that share their memory; do not write to them.

    Fields of type ``bfloat16`` stay 16-bit integers; ``tensor.view(torch.bfloat16)`` shows what they are.
    """
    import numpy

    with warnings.catch_warnings():
        # Nobody else writes to a batch either, and torch has no read-only tensors.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        for name, value in batch.items():
            if isinstance(value, numpy.ndarray):
                batch[name] = torch.from_numpy(value)
    return batch


def _check(status: Any) -> None:
    if int(status) != 0:
        raise RuntimeError(f"CUDA error {int(status)}")


def _pin(address: int, size: int) -> None:
    # 1 is cudaHostRegisterPortable: pinned for every device of the process.
    _check(torch.cuda.cudart().cudaHostRegister(address, size, 1))  # type: ignore[no-untyped-call, unused-ignore]


def _unpin(address: int, size: int) -> None:
    _check(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call, unused-ignore]


class StreamLoader:
    """Batches with tensors, on a device where one is given; takes the arguments of ``forebay.stream``.

    With a CUDA ``device``, the next batch is copied on a side stream while the one before it is in use.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        device: str | torch.device | None = None,
        pin_memory: bool = False,
        **options: Any,
    ) -> None:
        """Open the data set; reading ahead begins with the first batch."""
        self.device = None if device is None else torch.device(device)
        self.pin_memory = pin_memory
        if (pin_memory or self._is_cuda()) and torch.cuda.is_available():
            options.setdefault("pin", (_pin, _unpin))
        self.stream: Stream = stream(url, **_ranks(options))
        # The batch on its way, and where the stream stood before it.
        self._next: tuple[Any, dict[str, Any]] | None = None
        self._side: Any = None
        if self._is_cuda():
            self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call, unused-ignore]

    def _is_cuda(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def __len__(self) -> int:
        """Batches of one epoch, the same on every rank."""
        return len(self.stream)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._side is None:
            return self._move(next(self.stream))
        if self._next is None:
            self._fetch()
        if self._next is None:
            raise StopIteration
        batch, _ = self._next
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._side)
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(current)
        self._next = None
        self._fetch()
        return batch

    def _fetch(self) -> None:
        state = self.stream.state_dict()
        batch = next(self.stream, None)
        if batch is not None:
            with torch.cuda.stream(self._side):
                self._next = (self._move(batch), state)

    def _move(self, batch: Any) -> Any:
        if not isinstance(batch, Batch):
            return batch
        batch = tensors(batch)
        for name, value in batch.items():
            if isinstance(value, torch.Tensor):
                # Pinned already, unless more batches are in use than the pinned memory has room for.
                if (self.pin_memory or self._side is not None) and not value.is_pinned():
                    value = value.pin_memory()
                batch[name] = value if self.device is None else value.to(self.device, non_blocking=True)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Tell where the loader stands after the last batch it gave."""
        return self.stream.state_dict() if self._next is None else self._next[1]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, also one of another world size."""
        self._next = None
        self.stream.load_state_dict(state)

    def report(self) -> dict[str, Any]:
        """Tell what the stream did; see ``forebay.Stream``."""
        return self.stream.report()

    def close(self) -> None:
        """Stop reading."""
        self._next = None
        self.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StreamDataset(IterableDataset[Any]):
    """A data set for ``DataLoader(dataset, batch_size=None, num_workers=...)``: it makes the batches itself.

    Each worker streams its own share: with ``n`` workers on each of ``world`` ranks, worker ``w`` of rank
    ``r`` is number ``r * n + w`` of ``world * n``, which must divide ``lanes``. Streams are opened in the
    workers, so any way to start them works. Every iteration begins anew; for states use ``StreamLoader``.
    """

    def __init__(self, url: str | os.PathLike[str], **options: Any) -> None:
        """Remember what to open."""
        self.url = url
        self.options = _ranks(options)

    def __iter__(self) -> Iterator[Any]:
        options = dict(self.options)
        worker = get_worker_info()
        if worker is not None:
            rank, world = options.get("rank") or 0, options.get("world") or 1
            options["rank"] = rank * worker.num_workers + worker.id
            options["world"] = world * worker.num_workers
        with stream(self.url, **options) as batches:
            for batch in batches:
                yield tensors(batch) if isinstance(batch, Batch) else batch
