"""Files of tensors of torch, in the interface of ``safetensors.torch``."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal

import torch

from forebay._arrays import to_torch
from forebay.safetensors._file import safe_open
from forebay.safetensors._write import TensorSpec, deserialize, serialize, serialize_file


def storage_ptr(tensor: torch.Tensor) -> int:
    """Address of the memory that a tensor is a view of; 0 where there is none."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):
        return 0


def storage_size(tensor: torch.Tensor) -> int:
    """Bytes of that memory."""
    try:
        return int(tensor.untyped_storage().nbytes())
    except (NotImplementedError, RuntimeError):
        return int(tensor.nelement() * tensor.element_size())


def _end_ptr(tensor: torch.Tensor) -> int:
    """Address behind the last value of a contiguous tensor."""
    if not tensor.nelement():
        return int(tensor.data_ptr())
    return int(tensor.view(-1)[-1].data_ptr() + tensor.element_size())


def _is_complete(tensor: torch.Tensor) -> bool:
    """Say whether a tensor shows all of its memory."""
    bytes_shown = tensor.nelement() * tensor.element_size()
    return bool(tensor.data_ptr() == storage_ptr(tensor) and bytes_shown == storage_size(tensor))


def _apart(shared: set[str], state_dict: dict[str, torch.Tensor]) -> list[set[str]]:
    """Group views of one memory by overlap."""
    if len(shared) < 2:
        return [shared]
    areas = sorted((state_dict[name].data_ptr(), _end_ptr(state_dict[name]), name) for name in shared)
    groups: list[set[str]] = []
    last_stop = -1
    for start, stop, name in areas:
        if groups and start < last_stop:
            groups[-1].add(name)
        else:
            groups.append({name})
        last_stop = stop
    return groups


def _find_shared_tensors(state_dict: dict[str, torch.Tensor]) -> list[set[str]]:
    """Names of tensors in groups that share memory."""
    by_memory: dict[tuple[torch.device, int, int], set[str]] = defaultdict(set)
    for name, tensor in state_dict.items():
        memory = (tensor.device, storage_ptr(tensor), storage_size(tensor))
        if tensor.device.type != "meta" and memory[1] and memory[2]:
            by_memory[memory].add(name)
    return [part for group in by_memory.values() for part in _apart(group, state_dict)]


def _remove_duplicate_names(
    state_dict: dict[str, torch.Tensor],
    *,
    preferred_names: Iterable[str] | None = None,
    discard_names: Iterable[str] | None = None,
) -> dict[str, list[str]]:
    """Of tensors that share memory, choose the name that is kept: ``{kept: [left out, ...]}``."""
    preferred_set, discarded = set(preferred_names or ()), set(discard_names or ())
    removed: dict[str, list[str]] = defaultdict(list)
    for shared in _find_shared_tensors(state_dict):
        complete = {name for name in shared if _is_complete(state_dict[name])}
        if not complete:
            raise RuntimeError(
                "Error while trying to find names to remove to save state dict, but found no suitable name "
                f"to keep for saving amongst: {shared}. None is covering the entire storage. Refusing to "
                "save/load the model since you could be storing much more memory than needed."
            )
        choices = complete & preferred_set or complete - discarded or complete
        kept = min(choices)
        removed[kept] += [name for name in sorted(shared) if name != kept]
    return {kept: names for kept, names in removed.items() if names}


def save_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
) -> None:
    """Save a model; of parameters that share memory one is saved, and the metadata names the others."""
    state_dict = model.state_dict()
    for kept, names in _remove_duplicate_names(state_dict).items():
        metadata = {} if metadata is None else metadata
        for name in names:
            metadata.setdefault(name, kept)
            del state_dict[name]
    if force_contiguous:
        state_dict = {name: tensor.contiguous() for name, tensor in state_dict.items()}
    try:
        save_file(state_dict, filename, metadata=metadata)
    except ValueError as error:
        message = f"{error} Or use save_model(..., force_contiguous=True), read the docs for caveats."
        raise ValueError(message) from error


def load_model(
    model: torch.nn.Module,
    filename: str | os.PathLike[str],
    strict: bool = True,
    device: str | int = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[list[str] | set[str], list[str]]:
    """Load a file into a model; gives what the model has and the file has not, and the other way round."""
    loaded = load_file(filename, device=device, backend=backend)
    duplicates = _remove_duplicate_names(model.state_dict(), preferred_names=loaded.keys())
    missing_names, unexpected = model.load_state_dict(loaded, strict=False)
    missing = set(missing_names)
    for names in duplicates.values():
        for name in names:
            if name in missing:
                missing.remove(name)
            else:
                unexpected.append(name)
    if strict and (missing or unexpected):
        error = f"Error(s) in loading state_dict for {model.__class__.__name__}:"
        for what, keys in (("Missing", missing), ("Unexpected", set(unexpected))):
            if keys:
                listed = ", ".join(f'"{name}"' for name in sorted(keys))
                error += f"\n    {what} key(s) in state_dict: {listed}"
        raise RuntimeError(error)
    return missing, unexpected


def save(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors to the bytes of a file."""
    alive: list[torch.Tensor] = []
    return serialize(_specs(tensors, alive), metadata)


def save_file(
    tensors: dict[str, torch.Tensor],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    *,
    align: int = 8,
    hashes: bool | Literal["header", "beside"] = False,
) -> None:
    """Tensors to a file, durable and as one; see ``serialize_file`` for `align` and `hashes`."""
    alive: list[torch.Tensor] = []
    serialize_file(_specs(tensors, alive), filename, metadata, align=align, hashes=hashes)


def load_file(
    filename: str | os.PathLike[str], device: str | int = "cpu", *, backend: str = "mmap"
) -> dict[str, torch.Tensor]:
    """Tensors of a file."""
    with safe_open(filename, framework="pt", device=device, backend=backend) as file:
        return file.get_tensors()


def load(data: bytes) -> dict[str, torch.Tensor]:
    """Tensors from the bytes of a file."""
    return {
        name: to_torch(name, view["dtype"], view["shape"], view["data"]) for name, view in deserialize(data)
    }


def _check(tensors: Any) -> None:
    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support."
            " You can make it a dense tensor before saving with `.to_dense()` but be aware this might"
            " make a much larger file than needed."
        )
    shared = [names for names in _find_shared_tensors(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(
            "Some tensors share memory, this will lead to duplicate memory on disk and potential differences "
            f"when loading them again: {shared}. A way to correctly save your model is to use `save_model`."
        )


def _specs(tensors: dict[str, torch.Tensor], alive: list[torch.Tensor]) -> dict[str, TensorSpec]:
    _check(tensors)
    specs = {}
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. It either "
                "means you are trying to save tensors which are reference of each other in which case it's "
                "recommended to save only the full tensors, and reslice at load time, or simply call "
                "`.contiguous()` on your tensor to pack it before saving."
            )
        # Views that are conjugate or negative say so beside their bytes.
        here = tensor.resolve_conj().resolve_neg().to("cpu")
        alive.append(here)
        specs[name] = TensorSpec(
            dtype=str(here.dtype).removeprefix("torch."),
            shape=here.shape,
            data_ptr=here.data_ptr(),
            data_len=here.nelement() * here.element_size(),
        )
    return specs
