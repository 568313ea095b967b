"""Loading weights: safetensors files and checkpoints into memory at the rate of the disk, with an account.

>>> weights = forebay.load("models/llama-8b/")
>>> model.load_state_dict(weights)
>>> print(weights.ledger)

Tensors show the memory that was read into, without a copy; each may be written to, and the memory of a file
goes with the last of its tensors.
"""

from __future__ import annotations

import json
import operator
import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from forebay._arrays import device_framework_of, framework_of
from forebay._forebay import (
    InvalidInputError,
    Ledger,
    NativeWeights,
    gds_probe,
    weights_load_device,
    weights_warm,
)

Url: TypeAlias = str | os.PathLike[str]
Verify: TypeAlias = Literal["off", "prefer", "require"]
Gds: TypeAlias = Literal["off", "prefer", "require"]
Framework: TypeAlias = Literal["auto", "torch", "numpy", "dlpack"]
Shard: TypeAlias = tuple[int, int, Mapping[str, int]]


class Weights(dict[str, Any]):
    """Tensors by name, as ``forebay.load`` gives them: a ``dict`` with the account of the load."""

    def __init__(self, tensors: Iterable[tuple[str, Any]], report: dict[str, Any], ledger: Ledger) -> None:
        """Around what was loaded; made by ``forebay.load``."""
        super().__init__(tensors)
        self.report = report
        self.ledger = ledger

    def __reduce__(self) -> tuple[Any, ...]:
        """Go elsewhere as a plain dict of the tensors: the account is of the load in this process."""
        return dict, (dict(self),)


def _urls(url: Url | Sequence[Url]) -> list[str]:
    given = [url] if isinstance(url, (str, os.PathLike)) else list(url)
    if not given:
        raise InvalidInputError("nothing is named to be loaded")
    return [os.fspath(one) for one in given]


def _shard(shard: Shard | None) -> tuple[int, int, list[tuple[str, int]]] | None:
    if shard is None:
        return None
    try:
        rank, world, dims = shard
        row = operator.index(rank), operator.index(world), [(name, dim) for name, dim in dims.items()]
    except (TypeError, ValueError, AttributeError) as error:
        message = f"shard={shard!r} is not (rank, world, {{pattern: dimension}})"
        raise InvalidInputError(message) from error
    if not 0 <= row[0] < row[1]:
        raise InvalidInputError(
            f"shard={shard!r}: ranks count from 0, and there is no rank {rank} of {world}"
        )
    return row


def _texts(one: str | Sequence[str] | None) -> list[str]:
    return [one] if isinstance(one, str) else list(one or ())


def _selection(select: str | Sequence[str] | None) -> list[str]:
    patterns = _texts(select)
    if select is not None and not patterns:
        raise InvalidInputError("select names no pattern; leave it out to load everything")
    return patterns


def _paths(one: Url | Sequence[Url] | None) -> list[str]:
    return [] if one is None else [os.fspath(path) for path in _urls(one)]


def _device(device: object) -> str:
    """Give the name of a device of torch or in words; ``cuda`` alone is the one that torch uses now."""
    name = f"cuda:{device}" if type(device) is int else str(device)
    if name == "cpu:0":
        return "cpu"
    torch = sys.modules.get("torch")
    if name == "cuda" and torch is not None and torch.cuda.is_initialized():
        return f"cuda:{torch.cuda.current_device()}"
    return name


def warm(device: object = "cuda", *, pinned: int | None = None) -> dict[str, float]:
    """Open a GPU and pin the memory of loads now, so that the first load finds them ready.

    Args:
        device: which one, such as ``cuda:0``.
        pinned: bytes to pin, 256 MiB unless said otherwise; counts once per process.

    Returns:
        Bytes that are pinned, and the seconds that pinning took in this process.

    """
    pinned_bytes, seconds = weights_warm(_device(device), pinned)
    return {"pinned_bytes": pinned_bytes, "pin_seconds": seconds}


def gds(path: str | os.PathLike[str] | None = None, device: object = "cuda") -> dict[str, Any]:
    """Say whether a file can reach a GPU without passing through host memory; if not, why, and the remedy.

    Args:
        path: the file; without one, only the machine is looked at.
        device: which GPU, such as ``cuda:0``.

    Returns:
        ``is_possible``, and ``rows``: the preconditions with ``name``, ``state``, ``found`` and ``remedy``.

    """
    found: dict[str, Any] = json.loads(gds_probe(None if path is None else os.fspath(path), _device(device)))
    return found


def load(
    url: Url | Sequence[Url],
    device: object = "cpu",
    *,
    gds: Gds = "prefer",
    select: str | Sequence[str] | None = None,
    shard: Shard | None = None,
    verify: Verify = "prefer",
    framework: Framework = "auto",
    cache: str | None = None,
    memory: int | str | None = None,
    pinned: int | str | None = None,
    require_path: str | None = None,
    step: int | None = None,
    key: str | Sequence[str] | None = None,
    trust: Url | Sequence[Url] | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    addressing: str | None = None,
) -> Weights:
    """Load tensors of safetensors files, or of a checkpoint.

    Args:
        url: a file, a folder with or without an index, an index, a folder that ``Checkpointer`` saves to, or
            several of these; paths or URLs. A folder with weights and checkpoints stands for the weights.
        device: where tensors go: ``cpu`` is the memory of the machine, ``cuda:0`` a GPU.
        gds: by GPUDirect Storage: never, where it is shown to work (``prefer``), or an error that says why
            not every byte can go that way (``require``). For GPUs only.
        select: only tensors whose names match one of these patterns, such as ``model.layers.[0-7].*``.
        shard: ``(rank, world, {pattern: dimension})``: of matching tensors only the part of that rank, as
            ``torch.chunk`` divides them. The first pattern that matches counts; other tensors come whole.
        verify: compare with checksums beside the files or in their headers: never, where there are some
            (``prefer``), or an error where there are none (``require``). Checkpoints are always compared with
            their hashes.
        framework: what tensors are; torch where it is installed, unless said otherwise. On GPUs torch, or
            ``dlpack``: objects that cupy, jax and others take.
        cache: keep what comes from remote stores on a local disk, such as ``/nvme/cache:200GiB``.
        memory: an error when tensors need more than that where they go, before anything is read.
        pinned: pinned memory for GPUs, ``256MiB`` unless said otherwise; the first load of a process decides.
        require_path: an error when bytes cannot take that path, such as ``direct_uring``.
        step: which checkpoint, the newest unless said otherwise.
        key: keys that open a sealed checkpoint, as for ``Checkpointer``.
        trust: files with public keys: only a checkpoint that one of them has signed is loaded. With a step, a
            key or this, ``url`` must be a folder of checkpoints.
        endpoint: of an S3 store.
        region: of an S3 store.
        addressing: of an S3 store, ``path`` or ``virtual``.

    Returns:
        A dict of tensors with ``ledger``, the account of every byte, and ``report``, the load in numbers. Of
        a checkpoint, ``report["left_out"]`` names tensors that no safetensors file can hold.

    """
    return _load(
        _urls(url),
        [_device(device)],
        framework,
        {
            "select": _selection(select),
            "shard": _shard(shard),
            "memory": memory,
            "require_path": require_path,
            "gds": gds,
            "pinned": pinned,
        },
        {
            "verify": verify,
            "cache": cache,
            "step": step,
            "keys": _texts(key),
            "trust": _paths(trust),
            "endpoint": endpoint,
            "region": region,
            "addressing": addressing,
        },
    )[0]


def load_each(
    url: Url | Sequence[Url],
    devices: Sequence[object],
    *,
    select: str | Sequence[str] | None = None,
    verify: Verify = "prefer",
    framework: Framework = "auto",
    cache: str | None = None,
    pinned: int | str | None = None,
    step: int | None = None,
    key: str | Sequence[str] | None = None,
    trust: Url | Sequence[Url] | None = None,
) -> list[Weights]:
    """Load the same tensors to several GPUs from one read, through pinned memory.

    Args:
        url: as for ``load``.
        devices: such as ``["cuda:0", "cuda:1"]``.
        select: as for ``load``.
        verify: as for ``load``.
        framework: as for ``load``.
        cache: as for ``load``.
        pinned: as for ``load``.
        step: as for ``load``.
        key: as for ``load``.
        trust: as for ``load``.

    Returns:
        For each GPU a dict of its tensors; they share report and ledger.

    """
    options = {
        "select": _selection(select),
        "gds": "off",
        "pinned": pinned,
    }
    names = [_device(device) for device in devices]
    opening = {
        "verify": verify,
        "cache": cache,
        "step": step,
        "keys": _texts(key),
        "trust": _paths(trust),
    }
    return _load(_urls(url), names, framework, options, opening)


def _load(
    urls: list[str], names: list[str], framework: str, options: dict[str, Any], opening: dict[str, Any]
) -> list[Weights]:
    return load_from(NativeWeights(urls, opening), names, framework, options)


def load_from(
    source: NativeWeights, names: list[str], framework: str, options: dict[str, Any]
) -> list[Weights]:
    """Load what is wanted of an open source to each of the devices named."""
    is_host = names in (["cpu"], ["host"])
    gds = options.get("gds") or "off"
    if gds not in {"off", "prefer", "require"}:
        raise InvalidInputError(f"unknown policy gds='{gds}'; one of: require, prefer, off")
    if is_host and gds == "require":
        raise InvalidInputError("gds='require' is for GPUs, and these tensors go to the memory of the host")
    convert, known = (framework_of if is_host else device_framework_of)(framework)
    left_out, damaged = source.missing()
    for newer, error in damaged:
        warnings.warn(f"step {newer} is newer, and cannot be read: {error}", stacklevel=4)
    # Before anything is read: a tensor that cannot be shown is an error that names it.
    for name, dtype, shape, _ in source.tensors(options):
        known(name, dtype, shape)
    lists: Sequence[Sequence[tuple[str, str, list[int], Any]]]
    if is_host:
        tensors, report, ledger = source.load(options)
        lists = [tensors]
    else:
        lists, report, ledger = weights_load_device(source, names, options)
    numbers = json.loads(report)
    if left_out:
        numbers["left_out"] = left_out
        some = ", ".join(left_out[:3]) + (", ..." if len(left_out) > 3 else "")
        message = f"no safetensors file can hold {len(left_out)} tensors of this checkpoint: {some}"
        warnings.warn(f"{message}; forebay.Checkpointer loads them", stacklevel=4)
    made = (
        ((name, convert(name, dtype, shape, data)) for name, dtype, shape, data in rows) for rows in lists
    )
    return [Weights(rows, numbers, ledger) for rows in made]
