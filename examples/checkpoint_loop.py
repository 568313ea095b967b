"""A plain training loop that saves in the background, and goes on bit for bit after it was preempted.

    python checkpoint_loop.py runs/a --steps 200 --every 20

Send it SIGTERM, as schedulers do some seconds before they take a machine away: it saves once more and ends.
Started again, it goes on where it was.
"""

import argparse
import json
import signal
import threading
from pathlib import Path

import forebay
import torch


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--losses", type=Path, help="write the losses there, as JSON")
    options = parser.parse_args()

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optim, options.steps)
    rng = torch.get_rng_state()
    state = {"model": model, "optim": optim, "schedule": schedule, "rng": rng, "step": 0, "loss": 0.0}

    preempted = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: preempted.set())

    losses = []
    with forebay.Checkpointer(options.url, keep_last=2) as ckpt:
        if ckpt.latest() is not None:
            ckpt.load_into(state)
            torch.set_rng_state(rng)
            print(f"going on after step {state['step']}", flush=True)
        for step in range(state["step"] + 1, options.steps + 1):
            batch = torch.randn(32, 64)
            loss = (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
            loss.backward()
            optim.step()
            schedule.step()
            optim.zero_grad()
            losses.append(loss.item())
            if step % options.every == 0 or step == options.steps or preempted.is_set():
                rng.copy_(torch.get_rng_state())
                state |= {"step": step, "loss": loss.item()}
                job = ckpt.save(step, state)
                stall = f"stall {job.stall_seconds * 1e3:.1f} ms"
                print(f"step {step}: loss {loss.item():.4f}, {stall}", flush=True)
            if preempted.is_set():
                print(f"preempted, saved step {step}")
                break
    # Leaving the block has waited for the last save: it is durable.
    if options.losses:
        options.losses.write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
