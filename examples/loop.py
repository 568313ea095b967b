"""A training loop that can be stopped anywhere and resumed by another number of processes.

The losses are then the same bit for bit. Three things make that possible: the stream gives the same global
batches at every world size, its state is saved beside the weights, and gradients are summed in one fixed
order: micro-batch by micro-batch as they stand in the global batch, whoever computed them.
"""

import argparse
import importlib
import itertools
import json
import os
import tempfile
from pathlib import Path

import torch
from forebay.torch import StreamLoader
from torch import distributed, multiprocessing, nn


def main(name: str) -> None:
    """Make the data of the task in module `name`, start the processes, wait for them."""
    task = importlib.import_module(name)
    options = arguments(task.__doc__)
    task.make_data(options.folder / "data")
    with tempfile.TemporaryDirectory() as folder:
        started = (name, options, f"file://{folder}/meeting")
        multiprocessing.spawn(rank_main, args=started, nprocs=options.world)


def arguments(text: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, help="for the data set, which is made there, and for the checkpoint"
    )
    parser.add_argument("--steps", type=int, default=40, help="the run ends after this step")
    parser.add_argument("--world", type=int, default=1, help="processes")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    parser.add_argument("--losses", type=Path, help="write the loss of every step to this file")
    return parser.parse_args()


def rank_main(rank: int, name: str, options: argparse.Namespace, meeting: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=options.world)
    try:
        run(importlib.import_module(name), options)
    finally:
        distributed.destroy_process_group()


def run(task, options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = task.Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.LEARNING_RATE)
    # Rank and world size come from torch.distributed.
    loader = StreamLoader(
        options.folder / "data",
        batch_size=task.GLOBAL_BATCH // options.world,
        shuffle=True,
        seed=7,
        lanes=8,
        **task.STREAM,
    )
    step, losses = 0, []
    checkpoint = options.folder / "checkpoint.pt"
    if options.resume:
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(json.loads(saved["stream"]))
        step = saved["step"]
    # Every pass over the loader is an epoch.
    batches = (batch for _ in itertools.count() for batch in loader)
    with loader:
        while step < options.steps:
            losses.append(train_step(task, model, optimizer, next(batches)))
            step += 1
            if distributed.get_rank() == 0 and (step % 10 == 0 or step == options.steps):
                print(f"step {step:4}  loss {losses[-1]:.6f}", flush=True)
        state = loader.state_dict()
    if distributed.get_rank() == 0:
        saved = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "stream": json.dumps(state),
            "step": step,
        }
        torch.save(saved, checkpoint)
        if options.losses:
            options.losses.write_text(json.dumps(losses))


def train_step(task, model: nn.Module, optimizer: torch.optim.Optimizer, batch) -> float:
    micros = []
    inputs, targets = task.tensors(batch)
    for part, wanted in zip(inputs.split(task.MICRO_BATCH), targets.split(task.MICRO_BATCH), strict=True):
        loss = task.loss(model, part, wanted)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        micros.append(
            torch.cat([loss.detach().reshape(1), *(gradient.reshape(-1) for gradient in gradients)])
        )
    own = torch.stack(micros)
    everyone = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(everyone, own)
    # Row after row, in the order of the global batch: the same additions at every world size.
    total = torch.zeros_like(own[0])
    for micro in torch.cat(everyone):
        total += micro
    total /= task.GLOBAL_BATCH // task.MICRO_BATCH
    at = 1
    for parameter in model.parameters():
        parameter.grad = total[at : at + parameter.numel()].view_as(parameter).clone()
        at += parameter.numel()
    optimizer.step()
    return total[0].item()
