"""Serializing from addresses, as the ``safetensors`` library has it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from forebay._arrays import DTYPE_NAMES
from forebay._forebay import ForebayError, weights_header, weights_save, weights_serialize
from forebay.safetensors._file import SafetensorError, _translated

Row = tuple[str, str, list[int], int, int]


class TensorSpec:
    """A tensor in memory: its dtype as torch or numpy calls it, its shape, and where its bytes are.

    The caller keeps the memory alive as long as the spec is used.
    """

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        """Check and take what describes a tensor; where two values share a byte, values are counted."""
        known = DTYPE_NAMES.get(dtype)
        if known is None:
            raise SafetensorError(f"dtype {dtype} is not covered")
        self._dtype = known
        self._shape = [int(side) for side in shape]
        if known == "F4" and self._shape:
            self._shape[-1] *= 2
        self._data_ptr = int(data_ptr)
        self._data_len = int(data_len)

    @property
    def dtype(self) -> str:
        """The name in files, such as ``BF16``."""
        return self._dtype

    @property
    def shape(self) -> list[int]:
        """Number of values along each side."""
        return list(self._shape)

    @property
    def data_ptr(self) -> int:
        """Address of the first byte."""
        return self._data_ptr

    @property
    def data_len(self) -> int:
        """Number of bytes."""
        return self._data_len


def _rows(tensors: Mapping[str, TensorSpec]) -> list[Row]:
    rows: list[Row] = []
    for name, spec in tensors.items():
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"'{name}' is a {type(spec).__name__}, not a TensorSpec")
        rows.append((name, spec.dtype, spec.shape, spec.data_ptr, spec.data_len))
    return rows


def serialize(tensor_dict: Mapping[str, TensorSpec], metadata: dict[str, str] | None = None) -> bytes:
    """Give the bytes of a file with these tensors."""
    with _translated():
        return weights_serialize(_rows(tensor_dict), metadata)


def serialize_file(
    tensor_dict: Mapping[str, TensorSpec],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    *,
    align: int = 8,
    hashes: bool | Literal["header", "beside"] = False,
) -> None:
    """Write a file with these tensors: durable when this returns, and never half there under its name.

    Args:
        tensor_dict: tensors by name.
        filename: a path or URL.
        metadata: what the file says of itself.
        align: the data begins at a multiple of this; at 4096, direct reads waste nothing.
        hashes: keep checksums, in the header (``True``) or in a file beside it.

    """
    keep = {False: "no", True: "header"}.get(hashes, str(hashes)) if isinstance(hashes, bool) else hashes
    with _translated():
        weights_save(os.fspath(filename), _rows(tensor_dict), metadata, align=align, hashes=keep)


def deserialize(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Take the bytes of a file apart: ``[(name, {"shape": ..., "dtype": ..., "data": ...}), ...]``."""
    data = bytes(data)
    try:
        rows = weights_header(data)
    except ForebayError as error:
        raise SafetensorError(f"Error while deserializing: {error}") from error
    return [
        (name, {"shape": shape, "dtype": dtype, "data": bytearray(data[begin:end])})
        for name, dtype, shape, begin, end in rows
    ]
