"""FSDP2 on processes of one machine: every rank saves its shards, any other number of ranks goes on.

    python checkpoint_fsdp2.py runs/b --world 4 --steps 6
    python checkpoint_fsdp2.py runs/b --world 2 --steps 12

Runs on CPUs (gloo). On GPUs, only the backend and the device of the mesh are others.
"""

import argparse
import tempfile

import forebay
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def train(rank: int, world: int, meeting: str, url: str, steps: int) -> None:
    """Train on one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with forebay.Checkpointer(url, keep_last=2) as ckpt:
        begun = 0
        if ckpt.latest() is not None:
            # Asking for the state of the optimizer makes it; then each rank reads its part of everything.
            weights, moments = get_state_dict(model, optim)
            state = {"model": weights, "optim": moments, "step": 0}
            ckpt.load_into(state)
            set_state_dict(model, optim, model_state_dict=weights, optim_state_dict=moments)
            begun = state["step"]
        for step in range(begun + 1, steps + 1):
            # The same batch whatever the number of ranks: each takes its part.
            generator = torch.Generator().manual_seed(step)
            batch = torch.randn(64, 64, generator=generator).chunk(world)[rank]
            loss = model(batch).square().mean()
            loss.backward()
            optim.step()
            optim.zero_grad()
            if step % 3 == 0 or step == steps:
                weights, moments = get_state_dict(model, optim)
                job = ckpt.save(step, {"model": weights, "optim": moments, "step": step})
                if rank == 0:
                    print(f"step {step}: stall {job.stall_seconds * 1e3:.1f} ms", flush=True)
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
