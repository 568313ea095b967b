"""Loading weights: safetensors files into memory at the rate of the disk, with an account of their way.

>>> weights = forebay.load("models/llama-8b/")
>>> model.load_state_dict(weights)
>>> print(weights.ledger)

Tensors show the memory that was read into, without a copy; each may be written to, and the memory of a file
goes with the last of its tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from forebay._arrays import framework_of
from forebay._forebay import InvalidInputError, Ledger, NativeWeights, UnsupportedError

Url: TypeAlias = str | os.PathLike[str]
Verify: TypeAlias = Literal["off", "prefer", "require"]
Shard: TypeAlias = tuple[int, int, Mapping[str, int]]


class Weights(dict[str, Any]):
    """Tensors by name, as ``forebay.load`` gives them: a ``dict`` with the account of the load."""

    def __init__(self, tensors: Iterable[tuple[str, Any]], report: dict[str, Any], ledger: Ledger) -> None:
        """Around what was loaded; made by ``forebay.load``."""
        super().__init__(tensors)
        self.report = report
        self.ledger = ledger


def _urls(url: Url | Sequence[Url]) -> list[str]:
    given = [url] if isinstance(url, (str, os.PathLike)) else list(url)
    if not given:
        raise InvalidInputError("nothing is named to be loaded")
    return [os.fspath(one) for one in given]


def _shard(shard: Shard | None) -> tuple[int, int, list[tuple[str, int]]] | None:
    if shard is None:
        return None
    rank, world, dims = shard
    return rank, world, list(dims.items())


def load(
    url: Url | Sequence[Url],
    device: str = "cpu",
    *,
    select: str | Sequence[str] | None = None,
    shard: Shard | None = None,
    verify: Verify = "prefer",
    framework: Literal["auto", "torch", "numpy"] = "auto",
    cache: str | None = None,
    memory: int | str | None = None,
    require_path: str | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    addressing: str | None = None,
) -> Weights:
    """Load tensors of safetensors files.

    Args:
        url: a file, a folder with or without an index, an index, or several of these; paths or URLs.
        device: where tensors go; ``cpu`` is the memory of the machine.
        select: only tensors whose names match one of these patterns, such as ``model.layers.[0-7].*``.
        shard: ``(rank, world, {pattern: dimension})``: of matching tensors only the part of that rank, as
            ``torch.chunk`` divides them. The first pattern that matches counts; other tensors come whole.
        verify: compare with checksums beside the files or in their headers: never, where there are some
            (``prefer``), or an error where there are none (``require``).
        framework: what tensors are; torch where it is installed, unless said otherwise.
        cache: keep what comes from remote stores on a local disk, such as ``/nvme/cache:200GiB``.
        memory: an error when tensors need more than that, before anything is read.
        require_path: an error when bytes cannot take that path, such as ``direct_uring``.
        endpoint: of an S3 store.
        region: of an S3 store.
        addressing: of an S3 store, ``path`` or ``virtual``.

    Returns:
        A dict of tensors with ``ledger``, the account of every byte, and ``report``, the load in numbers.

    """
    if device not in {"cpu", "host"}:
        raise UnsupportedError(f"there is no way to device '{device}' yet; load to 'cpu'")
    convert, known = framework_of(framework)
    options: dict[str, Any] = {
        "select": [select] if isinstance(select, str) else list(select or ()),
        "shard": _shard(shard),
        "memory": memory,
        "require_path": require_path,
    }
    source = NativeWeights(
        _urls(url),
        {
            "verify": verify,
            "cache": cache,
            "endpoint": endpoint,
            "region": region,
            "addressing": addressing,
        },
    )
    # Before anything is read: a tensor that cannot be shown is an error that names it.
    for name, dtype, _, _ in source.tensors(options):
        known(name, dtype)
    tensors, report, ledger = source.load(options)
    made = ((name, convert(name, dtype, shape, data)) for name, dtype, shape, data in tensors)
    return Weights(made, json.loads(report), ledger)
