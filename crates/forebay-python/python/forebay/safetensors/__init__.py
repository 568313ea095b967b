"""The interface of the ``safetensors`` library, over Forebay's reads and writes.

>>> from forebay.safetensors import safe_open
>>> from forebay.safetensors.torch import load_file, save_file

``load_file`` and ``save_file`` of this module take and give tensors of torch where it is installed, else
arrays of numpy. Files are read around the page cache unless they are in it, written durably, and replaced as
one. Names may be URLs. What goes wrong is a ``SafetensorError`` where the file is at fault, and one of
Forebay's exceptions otherwise.
"""

from __future__ import annotations

import os
from typing import Any

from forebay._arrays import has
from forebay.safetensors._file import SafetensorError, _safe_open_handle, safe_open
from forebay.safetensors._write import TensorSpec, deserialize, serialize, serialize_file

__all__ = [
    "SafetensorError",
    "TensorSpec",
    "_safe_open_handle",
    "deserialize",
    "load",
    "load_file",
    "safe_open",
    "save",
    "save_file",
    "serialize",
    "serialize_file",
]


def _framework() -> Any:
    if has("torch"):
        import forebay.safetensors.torch

        return forebay.safetensors.torch
    import forebay.safetensors.numpy

    return forebay.safetensors.numpy


def load_file(filename: str | os.PathLike[str], *args: Any, **options: Any) -> dict[str, Any]:
    """Load a file; see ``load_file`` of the framework's module."""
    return _framework().load_file(filename, *args, **options)  # type: ignore[no-any-return]


def save_file(
    tensors: dict[str, Any],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    **options: Any,
) -> None:
    """Save a file; see ``save_file`` of the framework's module."""
    _framework().save_file(tensors, filename, metadata, **options)


def load(data: bytes) -> dict[str, Any]:
    """Tensors from the bytes of a file."""
    return _framework().load(data)  # type: ignore[no-any-return]


def save(tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors to the bytes of a file."""
    return _framework().save(tensors, metadata)  # type: ignore[no-any-return]
