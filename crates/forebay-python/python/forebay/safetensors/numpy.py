"""Files of arrays of numpy, in the interface of ``safetensors.numpy``."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal

from forebay._arrays import needs_ml_dtypes, to_numpy
from forebay.safetensors._file import SafetensorError, safe_open
from forebay.safetensors._write import TensorSpec, deserialize, serialize, serialize_file


def _specs(tensors: dict[str, Any], alive: list[Any]) -> dict[str, TensorSpec]:
    import numpy

    specs = {}
    for name, tensor in tensors.items():
        order = tensor.dtype.byteorder
        if order == ">" or (order == "=" and sys.byteorder == "big"):
            tensor = tensor.byteswap()
        tensor = numpy.ascontiguousarray(tensor).reshape(tensor.shape)
        alive.append(tensor)
        specs[name] = TensorSpec(
            dtype=tensor.dtype.name,
            shape=tensor.shape,
            data_ptr=tensor.ctypes.data,
            data_len=tensor.nbytes,
        )
    return specs


def save(tensor_dict: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    """Arrays to the bytes of a file."""
    alive: list[Any] = []
    return serialize(_specs(tensor_dict, alive), metadata)


def save_file(
    tensor_dict: dict[str, Any],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    *,
    align: int = 8,
    hashes: bool | Literal["header", "beside"] = False,
) -> None:
    """Arrays to a file, durable and as one; see ``serialize_file`` for `align` and `hashes`."""
    alive: list[Any] = []
    serialize_file(_specs(tensor_dict, alive), filename, metadata, align=align, hashes=hashes)


def load(data: bytes) -> dict[str, Any]:
    """Arrays from the bytes of a file."""
    views = deserialize(data)
    for name, view in views:
        if needs_ml_dtypes(view["dtype"]):
            message = f"numpy has no {view['dtype']} without the package ml_dtypes"
            raise SafetensorError(f"tensor {name}: {message}")
    return {name: to_numpy(name, view["dtype"], view["shape"], view["data"]) for name, view in views}


def load_file(filename: str | os.PathLike[str], *, backend: str = "mmap") -> dict[str, Any]:
    """Arrays of a file."""
    with safe_open(filename, framework="np", backend=backend) as file:
        return file.get_tensors()
