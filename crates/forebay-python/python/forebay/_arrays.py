"""From bytes and a safetensors dtype to arrays of numpy and tensors of torch, without a copy."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any

from forebay._forebay import UnsupportedError

# What torch and ml_dtypes call them; F4 is two values in a byte, for which only torch has a type.
TORCH_NAMES = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
DTYPE_NAMES = {name: dtype for dtype, name in TORCH_NAMES.items()}

# What numpy itself has, and as what the rest is shown where ml_dtypes is not installed: the bits are there.
_NUMPY_OWN = {"BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"}
_NUMPY_RAW = {"BF16": "uint16"}

Convert = Callable[[str, str, Sequence[int], Any], Any]
# Gives the dtype for a tensor's name, dtype and shape, or an error that names the tensor.
Known = Callable[[str, str, Sequence[int]], Any]


def has(module: str) -> bool:
    """Say whether a module is there, without importing it."""
    return module in sys.modules or importlib.util.find_spec(module) is not None


def _unknown(name: str, dtype: str, what: str) -> UnsupportedError:
    return UnsupportedError(f"tensor '{name}' is of dtype {dtype}, which {what} does not have")


def torch_dtype(name: str, dtype: str, shape: Sequence[int]) -> Any:
    """Give the dtype of torch for a tensor; an error names it where there is none, or none for its shape."""
    import torch

    found = getattr(torch, TORCH_NAMES.get(dtype, ""), None)
    if found is None:
        raise _unknown(name, dtype, f"torch {torch.__version__}")
    if dtype == "F4" and shape and shape[-1] % 2:
        message = f"tensor '{name}' of dtype F4 has {shape[-1]} values in a row: torch has them in pairs only"
        raise UnsupportedError(message)
    return found


def torch_shape(dtype: str, shape: Sequence[int]) -> list[int]:
    """Shapes of files count values; torch counts bytes where two values share one."""
    shape = list(shape)
    return [*shape[:-1], shape[-1] // 2] if dtype == "F4" and shape else shape


def to_torch(name: str, dtype: str, shape: Sequence[int], data: Any) -> Any:
    """Make a tensor that shows `data`."""
    import torch

    own, shape = torch_dtype(name, dtype, shape), torch_shape(dtype, shape)
    if len(data) == 0:
        return torch.empty(shape, dtype=own, device="cpu")
    # By way of bytes, since not every type can be made from a buffer.
    return torch.frombuffer(data, dtype=torch.uint8).view(own).reshape(shape)


def numpy_dtype(name: str, dtype: str, _shape: Sequence[int] = ()) -> Any:
    """Give the dtype of numpy or ml_dtypes, else one as wide; an error names what has none."""
    import numpy

    if dtype in _NUMPY_OWN:
        return numpy.dtype(TORCH_NAMES[dtype]).newbyteorder("<")
    if dtype in {"F4", "F6_E2M3", "F6_E3M2"}:
        raise _unknown(name, dtype, "numpy")
    if has("ml_dtypes"):
        import ml_dtypes

        own = getattr(ml_dtypes, TORCH_NAMES[dtype], None)
        if own is not None:
            return numpy.dtype(own)
    return numpy.dtype(_NUMPY_RAW.get(dtype, "uint8"))


def needs_ml_dtypes(dtype: str) -> bool:
    """Say whether arrays of it would be shown as integers, since that package is not there."""
    return dtype not in _NUMPY_OWN and not has("ml_dtypes")


def to_numpy(name: str, dtype: str, shape: Sequence[int], data: Any) -> Any:
    """Make an array that shows `data`."""
    import numpy

    own = numpy_dtype(name, dtype)
    if len(data) == 0:
        return numpy.empty(shape, dtype=own)
    return numpy.frombuffer(data, dtype=own).reshape(shape)


def to_torch_device(name: str, dtype: str, shape: Sequence[int], data: Any) -> Any:
    """Make a tensor that shows device memory."""
    import torch

    own, shape = torch_dtype(name, dtype, shape), torch_shape(dtype, shape)
    if data.nbytes == 0:
        return torch.empty(shape, dtype=own, device=f"cuda:{data.__dlpack_device__()[1]}")
    made = torch.from_dlpack(data)
    # Types that not every version of DLPack has come as bytes.
    return made if made.dtype == own else made.view(own).reshape(shape)


def _as_it_is(_name: str, _dtype: str, _shape: Sequence[int], data: Any) -> Any:
    return data


def device_framework_of(name: str) -> tuple[Convert, Known]:
    """Give the functions that make arrays over device memory and that know their dtypes."""
    if name in {"auto", "torch", "pt"} and (name != "auto" or has("torch")):
        return to_torch_device, torch_dtype
    if name in {"auto", "dlpack"}:
        return _as_it_is, lambda _name, _dtype, _shape: None
    raise ValueError(f"there is no framework '{name}' on devices; one of: auto, torch, dlpack")


def framework_of(name: str) -> tuple[Convert, Known]:
    """Give the functions that make arrays of a framework and that know its dtypes."""
    if name in {"auto", "torch", "pt"} and (name != "auto" or has("torch")):
        return to_torch, torch_dtype
    if name in {"auto", "numpy", "np"}:
        if name == "auto" and not has("numpy"):
            raise ImportError("weights are tensors of torch or arrays of numpy, and neither is installed")
        return to_numpy, numpy_dtype
    raise ValueError(f"there is no framework '{name}'; one of: auto, torch, numpy")
