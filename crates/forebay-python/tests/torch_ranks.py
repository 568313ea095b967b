"""Processes that are ranks of torch.distributed, for the tests of several modules."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


def begin(rank: int, world: int, meeting: str) -> Any:
    """Become a rank: the mesh of all of them."""
    from torch.distributed.device_mesh import init_device_mesh

    # One thread each: there are as many processes as cores, or more.
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ["FOREBAY_BUFFER_MEMORY"] = "64MiB"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    return init_device_mesh("cpu", (world,))


def spawn(function: Any, world: int, folder: Path, *args: Any) -> None:
    """Run `function(rank, world, meeting, *args)` as so many processes, which meet in a file of `folder`."""
    meeting = folder / f"meeting-{function.__name__}-{world}"
    meeting.unlink(missing_ok=True)
    torch.multiprocessing.spawn(function, (world, f"file://{meeting}", *args), nprocs=world)
