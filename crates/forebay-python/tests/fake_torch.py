"""As much of torch as ``forebay.torch`` needs, made of numpy: for tests of what it does, not of tensors.

``install`` puts it in torch's place, in an interpreter that has not imported it: devices are "cuda" then, and
all that a device does is done at once.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np

T = TypeVar("T")


# Types of tensors, by the names that torch and numpy have for them.
DTYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


class Tensor:
    # Whether the memory of batches is, as where the hook of a loader pins it.
    is_batch_pinned = True
    layout = "strided"

    def __init__(self, array: Any, device: str = "cpu") -> None:
        self.array = array
        self.device = Device(device)
        self.recorded = 0

    def is_pinned(self) -> bool:
        return self.is_batch_pinned

    def pin_memory(self) -> Tensor:
        if self.device.type != "cpu":
            raise RuntimeError("only dense CPU tensors can be pinned")
        return Tensor(self.array.copy())

    def numel(self) -> int:
        return int(self.array.size)

    def to(self, device: Any, non_blocking: bool = False) -> Tensor:
        return self if self.device.type == device.type else Tensor(self.array.copy(), device.type)

    def record_stream(self, _stream: Any) -> None:
        self.recorded += 1

    def tolist(self) -> Any:
        return self.array.tolist()


class Device:
    def __init__(self, name: Any, number: int | None = None) -> None:
        self.type, _, index = str(name).partition(":")
        self.index = int(index) if index else number


class Stream:
    def __init__(self, _device: Any = None) -> None:
        self.waits = 0

    def wait_stream(self, _other: Any) -> None:
        self.waits += 1


class Event:
    def record(self, _stream: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class IterableDataset(Generic[T]):
    pass


@contextlib.contextmanager
def _on(_stream: Any) -> Iterator[None]:
    yield


def install() -> None:
    """Be torch in this interpreter."""
    cudart = types.SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0)
    modules: dict[str, dict[str, Any]] = {
        "torch": {
            **{name: name for name in (*DTYPES, "strided")},
            "Tensor": Tensor,
            "device": Device,
            "from_numpy": Tensor,
            "ndarray": np.ndarray,
        },
        "torch.serialization": {},
        "torch.cuda": {
            "Stream": Stream,
            "Event": Event,
            "stream": _on,
            "device": _on,
            "current_stream": Stream,
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "cudart": lambda: cudart,
        },
        "torch.distributed": {"is_available": lambda: False},
        "torch.utils": {},
        "torch.utils.data": {"IterableDataset": IterableDataset, "get_worker_info": lambda: None},
        "torch.utils.data._utils": {},
        "torch.utils.data._utils.collate": {"default_collate_fn_map": {}},
    }
    for name, contents in modules.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
