"""Saves or loads the state of a training run by one library: `python -m clients.ckpt OP JOB`, where JOB is
a JSON object with `folder` and `bytes`.

A function of `OPS` takes the job, imports its library, makes the state, and returns a function that does one
round; it gives the seconds that count where those are not all. Each line on stdin asks for one round. What
is loaded was saved into the folder by the first process that needs it, and is compared in the first round.
"""

import atexit
import ctypes
import gc
import json
import math
import os
import resource
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clients.load_weights import BLOCK, READERS, THREADS, cpu_s, plain_reads, touch, write_plainly
from harness.plain import memory, noise, reused, whole

# Shapes of one layer, and what of the bytes of a parameter its weight has: 2 of 10.
WIDTH, INNER, WORDS = 1024, 2816, 32000


def main():
    op, job = sys.argv[1], json.loads(sys.argv[2])
    # Whatever a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    once = OPS[op](job)
    for _ in sys.stdin:
        before, began = cpu_s(), time.perf_counter()
        counted = once()
        wall, cpu = time.perf_counter() - began, cpu_s() - before
        answer = {"bytes": job["bytes"], "wall_s": wall, "cpu_s": cpu, "samples": 1}
        if isinstance(counted, tuple):
            # The stall, with what goes on in the background behind it.
            counted, finish = counted
            finish()
            answer |= {"total_s": time.perf_counter() - began, "cpu_s": cpu_s() - before}
        if counted is not None:
            answer["wall_s"] = counted
        answer["rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        gc.collect()
        print(json.dumps(answer), file=answers)


def state(job):
    """Tensors by name: weights and moments until there are as many bytes."""
    import torch

    torch.manual_seed(7)
    # Drawn once and given out from other places each time: to draw all of it takes longer than to save it.
    pool = torch.randn(WORDS * WIDTH + (1 << 20))

    def drawn(shape, number):
        count = math.prod(shape)
        start = number * 7919 % (len(pool) - count)
        return pool[start : start + count].clone().view(shape)

    flat, total, layer = {}, 0, 0
    while True:
        shapes = {
            **({"embed": (WORDS, WIDTH)} if layer == 0 else {}),
            **{f"{layer}.attn.{name}": (WIDTH, WIDTH) for name in "qkvo"},
            f"{layer}.mlp.gate": (INNER, WIDTH),
            f"{layer}.mlp.up": (INNER, WIDTH),
            f"{layer}.mlp.down": (WIDTH, INNER),
            f"{layer}.norm": (WIDTH,),
        }
        for name, shape in shapes.items():
            count = math.prod(shape)
            if total + 10 * count > job["bytes"]:
                job["bytes"] = total
                return flat
            flat[f"model.{name}"] = drawn(shape, total).to(torch.bfloat16)
            flat[f"exp_avg.{name}"] = drawn(shape, total + 1)
            flat[f"exp_avg_sq.{name}"] = drawn(shape, total + 2).square_()
            total += 10 * count
        layer += 1


def target(job, name):
    """A folder for saves, which goes with the process: rounds together are more than a disk has room for."""
    folder = Path(job["folder"]) / f"{name}-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def sync_all(folder):
    """Sync files and folders, as a program would that wants to find them after a power failure."""
    for root, _, names in os.walk(folder):
        for name in [*names, "."]:
            fd = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def saving(job, name, save):
    """Rounds that save into a folder that is empty each time; `save` makes it durable."""
    count = iter(range(1 << 30))
    base = target(job, name)

    def once():
        number = next(count)
        began = time.perf_counter()
        save(base / str(number), number)
        wall = time.perf_counter() - began
        shutil.rmtree(base / str(number), ignore_errors=True)
        return wall

    return once


def forebay_saver(job, change=None, **options):
    import forebay

    tensors = state(job)
    base = target(job, "forebay")
    ckpt = forebay.Checkpointer(base, rank=0, world=1, keep_last=1, **options)
    atexit.register(ckpt.close)
    count = iter(range(1 << 30))

    def once():
        if change:
            change(tensors)
        began = time.perf_counter()
        ckpt.save(next(count), tensors).wait()
        return time.perf_counter() - began

    return once


def save_forebay(job):
    return forebay_saver(job)


def save_forebay_sync(job):
    return forebay_saver(job, staging_bytes=0)


def save_forebay_blake3(job):
    return forebay_saver(job, staging_bytes=0, hash="blake3")


def save_forebay_incremental(job, **options):
    def change(tensors):
        left = job["bytes"] // 20
        for tensor in tensors.values():
            if left >= tensor.nbytes:
                tensor.add_(1)
                left -= tensor.nbytes

    return forebay_saver(job, change, incremental=True, **options)


def save_forebay_incremental_sync(job):
    return save_forebay_incremental(job, staging_bytes=0)


def weights(job):
    """Tensors of bf16 alone."""
    import torch

    torch.manual_seed(7)
    count = job["bytes"] // 2 // (WIDTH * WIDTH)
    job["bytes"] = count * 2 * WIDTH * WIDTH
    return {
        f"{number}.weight": (torch.randn(WIDTH, WIDTH) * 0.02).to(torch.bfloat16) for number in range(count)
    }


def save_far(job, **options):
    import forebay

    tensors = weights(job)
    ckpt = forebay.Checkpointer(f"{job['url']}-{os.getpid()}", rank=0, world=1, keep_last=1, **options)
    atexit.register(ckpt.close)
    count = iter(range(1 << 30))

    def once():
        began = time.perf_counter()
        ckpt.save(next(count), tensors).wait()
        return time.perf_counter() - began

    return once


def save_far_compressed(job):
    return save_far(job, compress="auto")


def save_safetensors(job):
    from safetensors.torch import save_file

    tensors = state(job)

    def save(folder, _):
        folder.mkdir()
        save_file(tensors, folder / "state.safetensors")
        sync_all(folder.parent)

    return saving(job, "safetensors", save)


def save_torch(job):
    import torch

    tensors = state(job)

    def save(folder, _):
        folder.mkdir()
        torch.save(tensors, folder / "state.pt")
        sync_all(folder.parent)

    return saving(job, "torch", save)


def save_dcp(job):
    import torch.distributed.checkpoint as dcp

    tensors = state(job)

    def save(folder, _):
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
        sync_all(folder.parent)

    return saving(job, "dcp", save)


def save_torchsnapshot(job):
    from torchsnapshot import Snapshot, StateDict

    tensors = StateDict(**state(job))

    def save(folder, _):
        Snapshot.take(str(folder), {"state": tensors})
        sync_all(folder.parent)

    return saving(job, "torchsnapshot", save)


def plain_writes(job, part):
    size = job["bytes"] // BLOCK * BLOCK

    def save(folder, _):
        folder.mkdir()
        write_plainly(folder / "plain", size, part)
        sync_all(folder.parent)

    return saving(job, "plain", save)


def plain_write(job):
    """The disk alone: a new file of as many bytes, written around the page cache from memory of that size."""
    return plain_writes(job, whole(noise(job["bytes"]), BLOCK))


def plain_write_reused(job):
    """The disk alone: the same from a few MiB, again and again."""
    return plain_writes(job, reused(noise, BLOCK, THREADS))


def plain_copy(job):
    """Memory alone: as many bytes by threads, from and to memory that is used again."""
    tensors = list(state(job).values())
    area = memory(job["bytes"] + BLOCK)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    pieces, at = [], base
    for tensor in tensors:
        for start in range(0, tensor.nbytes, BLOCK):
            size = min(BLOCK, tensor.nbytes - start)
            pieces.append((at, tensor.data_ptr() + start, size))
            at += size
    pool = ThreadPoolExecutor(THREADS)
    held = (tensors, area)

    def once():
        # Addresses alone keep nothing.
        assert held
        list(pool.map(lambda piece: ctypes.memmove(*piece), pieces, chunksize=len(pieces) // THREADS + 1))

    return once


def stall_forebay(job):
    import forebay

    tensors = state(job)
    ckpt = forebay.Checkpointer(target(job, "forebay"), rank=0, world=1, keep_last=1)
    atexit.register(ckpt.close)
    count = iter(range(1 << 30))

    def once():
        began = time.perf_counter()
        saving = ckpt.save(next(count), tensors)
        return time.perf_counter() - began, saving.wait

    return once


def stall_dcp(job):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    tensors = state(job)
    base = target(job, "dcp")
    dist.init_process_group("gloo", init_method=f"file://{base}/meeting", rank=0, world_size=1)
    stager = DefaultStager(StagingOptions(False, True, False, False))
    count = iter(range(1 << 30))

    def once():
        folder = base / str(next(count))
        began = time.perf_counter()
        saving = dcp.async_save(tensors, storage_writer=dcp.FileSystemWriter(folder), async_stager=stager)
        wall = time.perf_counter() - began

        def finish():
            getattr(saving, "upload_completion", saving).result()
            sync_all(folder)
            shutil.rmtree(folder, ignore_errors=True)

        return wall, finish

    return once


def stall_torchsnapshot(job):
    from torchsnapshot import Snapshot, StateDict

    tensors = StateDict(**state(job))
    base = target(job, "torchsnapshot")
    count = iter(range(1 << 30))

    def once():
        folder = base / str(next(count))
        began = time.perf_counter()
        pending = Snapshot.async_take(str(folder), {"state": tensors})
        wall = time.perf_counter() - began

        def finish():
            pending.wait()
            sync_all(folder)
            shutil.rmtree(folder, ignore_errors=True)

        return wall, finish

    return once


def kept(job, name, save):
    """A folder with what is to be loaded, made by the first who needs it; and the state to compare with."""
    tensors = state(job)
    folder = Path(job["folder"]) / name
    if not folder.exists():
        making = folder.with_name(f"{name}-making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        save(tensors, making)
        sync_all(making)
        making.rename(folder)
    return folder, tensors


def compared(found, tensors):
    import torch

    for name, tensor in tensors.items():
        if not torch.equal(found[name], tensor):
            raise SystemExit(f"{name} is not what was saved")


def loading(load, tensors, is_mapped=False):
    """Rounds of a function that gives tensors; the first is compared, and those of maps are touched."""
    left = [tensors]

    def once():
        began = time.perf_counter()
        found = load()
        if is_mapped:
            for tensor in found.values():
                touch(tensor)
        wall = time.perf_counter() - began
        if left:
            compared(found, left.pop())
        return wall

    return once


def forebay_kept(job):
    import forebay

    def save(tensors, folder):
        with forebay.Checkpointer(folder, rank=0, world=1) as ckpt:
            ckpt.save(1, tensors).wait()

    folder, tensors = kept(job, "load-forebay", save)
    return forebay.Checkpointer(folder, rank=0, world=1), tensors


def load_forebay(job):
    ckpt, tensors = forebay_kept(job)
    memory = ckpt.load()

    def load():
        ckpt.load_into(memory)
        return memory

    return loading(load, tensors)


def load_forebay_new(job):
    ckpt, tensors = forebay_kept(job)
    return loading(ckpt.load, tensors)


def load_safetensors(job):
    from safetensors.torch import load_file, save_file

    def save(tensors, folder):
        save_file(tensors, folder / "state.safetensors")

    folder, tensors = kept(job, "load-safetensors", save)
    return loading(lambda: load_file(folder / "state.safetensors"), tensors, is_mapped=True)


def load_torch(job, **options):
    import torch

    folder, tensors = kept(
        job, "load-torch", lambda tensors, folder: torch.save(tensors, folder / "state.pt")
    )
    load = lambda: torch.load(folder / "state.pt", weights_only=True, **options)  # noqa: E731
    return loading(load, tensors, is_mapped=bool(options))


def load_torch_mmap(job):
    return load_torch(job, mmap=True)


def load_dcp(job):
    import torch
    import torch.distributed.checkpoint as dcp

    def save(tensors, folder):
        dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)

    folder, tensors = kept(job, "load-dcp", save)
    memory = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}

    def load():
        dcp.load(memory, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
        return memory

    return loading(load, tensors)


def payload(job):
    """The file that Forebay saved the state to."""
    ckpt, _ = forebay_kept(job)
    ckpt.close()
    (path,) = (Path(job["folder"]) / "load-forebay").rglob("*.safetensors")
    return path


def plain_read(job):
    """The disk alone: direct reads of Forebay's payload into memory of its size that was used before."""
    path = payload(job)
    return plain_reads(path, whole(memory(-(-path.stat().st_size // BLOCK) * BLOCK), BLOCK))


def plain_read_reused(job):
    """The disk alone: direct reads of Forebay's payload into the same few MiB again and again."""
    return plain_reads(payload(job), reused(memory, BLOCK, READERS))


OPS = {
    name: function
    for name, function in globals().items()
    if name.startswith(("save_", "stall_", "load_", "plain_")) and name not in ("plain_reads", "plain_writes")
}

if __name__ == "__main__":
    main()
