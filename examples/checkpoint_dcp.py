"""FSDP2 through torch.distributed.checkpoint: its state dicts and planners, saved by Forebay.

    python checkpoint_dcp.py runs/c --world 4 --steps 6
    python checkpoint_dcp.py runs/c --world 2 --steps 12

Runs on CPUs (gloo). On GPUs, the backend is "cpu:gloo,cuda:nccl", and the device of the mesh another.
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from forebay import Checkpointer
from forebay.dcp import ForebayReader, ForebayWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def train(rank: int, world: int, meeting: str, url: str, steps: int) -> None:
    """Train on one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    # Saves in the background talk to each other beside the training, which must not hear them.
    saving = dist.new_group(backend="gloo")
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).double()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # Kept from save to save, and with it the memory that states are copied to.
    writer = ForebayWriter(url, keep_last=2)
    begun, saved = 0, None
    if Checkpointer(url, rank=0, world=1).latest() is not None:
        weights, moments = get_state_dict(model, optim)
        state = {"model": weights, "optim": moments, "step": 0}
        dcp.load(state, storage_reader=ForebayReader(url))
        set_state_dict(model, optim, model_state_dict=state["model"], optim_state_dict=state["optim"])
        begun = state["step"]
    for step in range(begun + 1, steps + 1):
        # The same batch whatever the number of ranks: each takes its part.
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(64, 64, generator=generator, dtype=torch.float64).chunk(world)[rank]
        model(batch).square().mean().backward()
        optim.step()
        optim.zero_grad()
        if step % 3 == 0 or step == steps:
            if saved is not None:
                # One save at a time; raises what went wrong with it.
                saved.result()
            weights, moments = get_state_dict(model, optim)
            state = {"model": weights, "optim": moments, "step": step}
            saved = dcp.async_save(state, checkpoint_id=step, storage_writer=writer, process_group=saving)
    if saved is not None:
        saved.result()
    writer.close()
    total = sum(parameter.full_tensor().sum().item() for parameter in model.parameters())
    if rank == 0:
        print(f"sum of weights after step {steps}: {total:.6f}")
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (options.world, f"{folder}/meeting", options.url, options.steps)
        torch.multiprocessing.spawn(train, arguments, nprocs=options.world)


if __name__ == "__main__":
    main()
