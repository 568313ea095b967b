"""torch.distributed.checkpoint by its own storage and by ours, side by side: `python dcp_suite.py`.

Each scenario is what torch's own tests do with a writer and a reader: tensors cut in one way are saved and
loaded into tensors that are cut in another, with planners, optimizers and state dicts of torch's. It is run
with torch's file system storage, with `forebay.dcp`, and with that in the background; every rank must come
out with the same bits, and where torch refuses, so must we.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from forebay.dcp import ForebayReader, ForebayWriter
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WORLD = 4

State = dict[str, Any]
Io = tuple[Callable[..., None], Callable[..., None]]


def filled(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def placements() -> Iterator[tuple[str, Any]]:
    line = init_device_mesh("cpu", (WORLD,))
    square = init_device_mesh("cpu", (2, 2))
    yield "rows", (line, [Shard(0)])
    yield "columns", (line, [Shard(1)])
    yield "whole", (line, [Replicate()])
    yield "blocks", (square, [Shard(0), Shard(1)])
    yield "twice", (square, [Shard(0), Shard(0)])
    yield "copies", (square, [Replicate(), Shard(1)])


def dtensors(io: Io) -> Any:
    """Every placement into every other, of shapes that do not divide."""
    save, load = io
    ways = dict(placements())
    full = filled(11, 7)
    save({name: distribute_tensor(full, *way) for name, way in ways.items()})
    out = []
    for name in ways:
        for way in ways.values():
            state = {name: distribute_tensor(torch.zeros(11, 7), *way)}
            load(state)
            out.append(state[name].full_tensor())
            assert torch.equal(out[-1], full), name
    plain = {"rows": torch.zeros(11, 7)}
    load(plain)
    return [*out, plain["rows"]]


def sharded(rows: list[int]) -> Any:
    """A ShardedTensor of 12 rows, cut at these."""
    cuts = [0, *rows, 12]
    shards = [
        ShardMetadata([begin, 0], [end - begin, 5], f"rank:{rank}/cpu")
        for rank, (begin, end) in enumerate(itertools.pairwise(cuts))
    ]
    made = sharded_tensor.zeros(EnumerableShardingSpec(shards), 12, 5)
    for shard in made.local_shards():
        begin, _ = shard.metadata.shard_offsets
        shard.tensor.copy_(filled(12, 5)[begin : begin + shard.metadata.shard_sizes[0]])
    return made


def sharded_tensors(io: Io) -> Any:
    save, load = io
    save({"a": sharded([3, 6, 9]), "b": sharded([1, 2, 11])})
    out = []
    for name in ("a", "b"):
        for rows in ([3, 6, 9], [1, 2, 11], [5, 6, 7]):
            state = {name: sharded(rows)}
            for shard in state[name].local_shards():
                shard.tensor.zero_()
            load(state)
            out.extend(shard.tensor for shard in state[name].local_shards())
        spec = ChunkShardingSpec(dim=1, placements=[f"rank:{rank}/cpu" for rank in range(WORLD)])
        state = {name: sharded_tensor.zeros(spec, 12, 5)}
        load(state)
        out.extend(shard.tensor for shard in state[name].local_shards())
    return out


def fsdp_model(mesh: Any, seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(9, 13), torch.nn.ReLU(), torch.nn.Linear(13, 3, bias=False))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.full((2, 9), float(seed))).sum().backward()
    optim.step()
    optim.zero_grad()
    return model, optim


def fsdp2(io: Io) -> Any:
    """FSDP2 and HSDP, weights and moments, one into the other."""
    save, load = io
    line = init_device_mesh("cpu", (WORLD,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    out = []
    for first, second in ((line, square), (square, line)):
        save(dict(zip("mo", get_state_dict(*fsdp_model(first, 1)), strict=True)))
        model, optim = fsdp_model(second, 2)
        state = dict(zip("mo", get_state_dict(model, optim), strict=True))
        load(state)
        set_state_dict(model, optim, model_state_dict=state["m"], optim_state_dict=state["o"])
        out.extend(parameter.full_tensor() for parameter in model.parameters())
        options = StateDictOptions(full_state_dict=True)
        _, moments = get_state_dict(model, optim, options=options)
        out.append(moments["state"])
    return out


def tensor_parallel(io: Io) -> Any:
    save, load = io
    mesh = init_device_mesh("cpu", (WORLD,))

    def made(seed: int) -> Any:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Linear(12, 4))
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})

    save({"model": made(1).state_dict()})
    model = made(2)
    load({"model": model})
    return [gathered(value) for value in model.state_dict().values()]


def nested(io: Io) -> Any:
    """Containers in containers, values of all kinds, and objects that are asked for their states."""
    save, load = io
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 4)
    optim = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optim.step()
    schedule = torch.optim.lr_scheduler.StepLR(optim, 3)
    given = {
        "model": model,
        "optim": optim.state_dict(),
        "schedule": schedule.state_dict(),
        "list": [filled(2), [filled(3), {"x": 1, 5: filled(1)}], "text", 3],
        "empty": {"a": [], "b": filled(0, 3), "c": ()},
        "tuple": (1, "b", filled(2)),
        "bytes": b"\x00\x01",
        "none": None,
        "scalar": torch.tensor(5),
    }
    save(given)
    torch.manual_seed(2)
    other = torch.nn.Linear(3, 4)
    state = {
        "model": other,
        "optim": optim.state_dict(),
        "schedule": dict.fromkeys(schedule.state_dict(), 0),
        "list": [torch.zeros(2), [torch.zeros(3), {"x": 0, 5: torch.zeros(1)}], "", 0],
        "empty": {"a": None, "b": torch.zeros(0, 3), "c": None},
        "tuple": None,
        "bytes": None,
        "none": 1,
        "scalar": torch.tensor(0),
    }
    load(state)
    state["model"] = dict(other.state_dict())
    return state


def planners(io: Io) -> Any:
    """Planners that are told otherwise, and what is refused."""
    save, load = io
    mesh = init_device_mesh("cpu", (WORLD,))
    state = {"deep": {"w": distribute_tensor(filled(8, 2), mesh, [Shard(0)])}, "x": filled(3), "n": 4}
    save(state, planner=DefaultSavePlanner(dedup_save_to_lowest_rank=True))
    partial = {"deep": {"w": distribute_tensor(torch.zeros(8, 2), mesh, [Shard(0)])}, "new": torch.zeros(2)}
    refused = []
    for bad in (partial, {"x": torch.zeros(4)}, {"deep": {"w": torch.zeros(2, 8)}}):
        try:
            load(bad)
        except dcp.CheckpointException:
            refused.append(True)
        else:
            refused.append(False)
    load(partial, planner=DefaultLoadPlanner(allow_partial_load=True))
    half = {"x": torch.zeros(3, dtype=torch.bfloat16), "deep": {"w": torch.zeros(8, 2, dtype=torch.float64)}}
    load(half)
    return [refused, partial, half]


def gathered(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def digest(value: Any, into: Any = None) -> str:
    """Bits and types of everything that came out."""
    into = hashlib.sha256() if into is None else into
    value = gathered(value)
    if isinstance(value, torch.Tensor):
        into.update(f"{value.dtype}{tuple(value.shape)}".encode())
        into.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in value:
            into.update(repr(key).encode())
            digest(value[key], into)
    elif isinstance(value, (list, tuple)):
        into.update(type(value).__name__.encode())
        for item in value:
            digest(item, into)
    else:
        into.update(repr(value).encode())
    return into.hexdigest()


SCENARIOS = (dtensors, sharded_tensors, fsdp2, tensor_parallel, nested, planners)


def stock(folder: str) -> Io:
    return (
        lambda state, **options: dcp.save(state, checkpoint_id=folder, **options),
        lambda state, **options: dcp.load(state, checkpoint_id=folder, **options),
    )


def ours(folder: str) -> Io:
    writer, reader = ForebayWriter(folder), ForebayReader(folder)
    return (
        lambda state, **options: dcp.save(state, storage_writer=writer, **options),
        lambda state, **options: dcp.load(state, storage_reader=reader, **options),
    )


def in_background(folder: str) -> Io:
    writer, reader = ForebayWriter(folder), ForebayReader(folder)
    return (
        lambda state, **options: dcp.async_save(state, storage_writer=writer, **options).result(),
        lambda state, **options: dcp.load(state, storage_reader=reader, **options),
    )


def rank_main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ.setdefault("FOREBAY_BUFFER_MEMORY", "64MiB")
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD)
    failed = 0
    for scenario in SCENARIOS:
        found = {}
        for make in (stock, ours, in_background):
            try:
                found[make.__name__] = digest(scenario(make(f"{folder}/{scenario.__name__}-{make.__name__}")))
            except Exception:
                traceback.print_exc()
                found[make.__name__] = f"failed on rank {rank}"
        is_same = len(set(found.values())) == 1 and "failed" not in found["stock"]
        failed += not is_same
        if rank == 0 or not is_same:
            print(f"{scenario.__name__}: {'same' if is_same else found}", flush=True)
        dist.barrier()
    dist.destroy_process_group()
    if failed:
        sys.exit(1)


def main() -> None:
    """Run all scenarios on all ranks; the exit status says how it went."""
    with tempfile.TemporaryDirectory(prefix="forebay-dcp-") as folder:
        torch.multiprocessing.spawn(rank_main, (folder,), nprocs=WORLD)
    print(f"{len(SCENARIOS)} scenarios on {WORLD} ranks")


if __name__ == "__main__":
    main()
