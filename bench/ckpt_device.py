"""Saving a state from a GPU, held against the copy rate of pinned memory and against DCP: one JSON.

    python bench/ckpt_device.py --size 16 --rounds 5 --dir /tmp/ckpt --out ckpt_device.json

Runs on a machine with a GPU, torch and forebay. All contenders work in one process and in every round, in
turn: a plain copy of the same tensors into pinned memory that is used again (the limit of a stall), a plain
direct write of as many bytes with an fsync (the limit of a durable save), `Checkpointer.save` with room for
the state and with an eighth of it (in rounds, while it waits), and DCP's `async_save` with a pinned stager
that is kept. The first round is not counted: memory is pinned in it. What Forebay saved last is loaded and
compared on the GPU.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from pathlib import Path

GB = 1_000_000_000
now = time.perf_counter


def state_of(size):
    """Make weights in bf16 and two moments in fp32 of about `size` bytes on the GPU."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(7)
    state, total, layer = {"model": {}, "exp_avg": {}, "exp_avg_sq": {}}, 0, 0
    shapes = [(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (4096,)]
    while True:
        for index, shape in enumerate(shapes):
            count = 1
            for side in shape:
                count *= side
            if total + 10 * count > size:
                return state, total
            name = f"{layer}.{index}"
            made = torch.randn(shape, device="cuda", generator=generator)
            state["model"][name] = made.to(torch.bfloat16)
            state["exp_avg"][name] = made
            state["exp_avg_sq"][name] = made.square()
            total += 10 * count
        layer += 1


def leaves(state):
    """Give all tensors."""
    return [tensor for part in state.values() for tensor in part.values()]


def plain(state):
    """The limit: copies into pinned memory that is used again, on a stream of their own."""
    import torch

    tensors = leaves(state)
    pinned = [torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in tensors]
    stream = torch.cuda.Stream()

    def once():
        began = now()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for target, source in zip(pinned, tensors, strict=True):
                target.copy_(source, non_blocking=True)
        stream.synchronize()
        return {"stall_s": now() - began}

    return once


def disk(size, folder):
    """The limit of a durable save: a new file of as many bytes, around the page cache, synced."""
    from clients.ckpt import plain_write

    once = plain_write({"folder": str(folder), "bytes": size})
    return lambda: {"total_s": once()}


def forebay(state, folder, **options):
    """Time `save` alone; the writing behind it is waited for before anybody else's turn."""
    import forebay

    ckpt = forebay.Checkpointer(folder, rank=0, world=1, keep_last=1, **options)
    steps = iter(range(1 << 30))

    def once():
        began = now()
        job = ckpt.save(next(steps), state)
        stall = now() - began
        job.wait()
        return {
            "stall_s": stall,
            "total_s": now() - began,
            "notes": job.notes,
            "allocations": ckpt.staging_allocations,
        }

    def check():
        import torch

        found = ckpt.load(device="cuda")
        for part, tensors in state.items():
            for name, tensor in tensors.items():
                if not torch.equal(found[part][name], tensor):
                    raise SystemExit(f"{part}.{name} is not what was saved")

    return once, check


def dcp(state, folder):
    """Time DCP's `async_save`, thread, with a stager that is kept."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    folder.mkdir(parents=True, exist_ok=True)
    meeting = folder.resolve() / "meeting"
    meeting.unlink(missing_ok=True)
    dist.init_process_group("cpu:gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    stager = DefaultStager(StagingOptions(True, True, False, True))
    steps = iter(range(1 << 30))

    def once():
        target = folder / f"dcp-{next(steps)}"
        began = now()
        saving = dcp.async_save(state, storage_writer=dcp.FileSystemWriter(target), async_stager=stager)
        stall = now() - began
        getattr(saving, "upload_completion", saving).result()
        total = now() - began
        shutil.rmtree(target, ignore_errors=True)
        return {"stall_s": stall, "total_s": total}

    return once


def rates(rounds, size, what):
    """Medians of a time, as GB per second, of those who have it."""
    times = {name: [row[what] for row in rows if what in row] for name, rows in rounds.items()}
    return {name: size / statistics.median(found) / GB for name, found in times.items() if found}


def main():
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=float, default=4.0, help="GB of state (default 4)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("/tmp/forebay-ckpt-device"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--without", default="", help="contenders to leave out, comma separated")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU")
    state, size = state_of(int(options.size * GB))
    torch.cuda.synchronize()
    options.dir.mkdir(parents=True, exist_ok=True)
    own, check = forebay(state, options.dir / "forebay")
    in_rounds, check_rounds = forebay(state, options.dir / "rounds", staging_bytes=size // 8)
    contenders = {
        "pinned copy": plain(state),
        "plain write": disk(size, options.dir),
        "forebay": own,
        "forebay in rounds": in_rounds,
    }
    if "dcp" not in options.without.split(","):
        try:
            contenders["dcp"] = dcp(state, options.dir)
        except Exception as error:
            print(f"no DCP: {error}", file=sys.stderr)
    rounds = {name: [] for name in contenders}
    for number in range(options.rounds + 1):
        shift = number % len(contenders)
        names = list(contenders)
        for name in names[shift:] + names[:shift]:
            try:
                found = contenders[name]()
            except Exception as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            print(f"round {number}: {name}: {found}", file=sys.stderr, flush=True)
            if number > 0:
                rounds[name].append(found)
    check()
    check_rounds()
    report = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "bytes": size,
        "rounds": rounds,
    }
    stalls, totals = (rates(rounds, size, what) for what in ("stall_s", "total_s"))
    report["stall_gb_s"], report["durable_gb_s"] = stalls, totals
    report["of_pinned_copy"] = stalls["forebay"] / stalls["pinned copy"]
    report["of_plain_write"] = totals["forebay"] / totals["plain write"]
    shutil.rmtree(options.dir, ignore_errors=True)
    text = json.dumps(report, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
