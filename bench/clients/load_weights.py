"""Loads a model from files, or saves it, by one library: `python -m clients.load_weights OP JOB`, where
JOB is a JSON object.

A function of `OPS` takes the job, imports its library, and returns a function that does one round and gives
tensors by name (or nothing, for saves); importing is not measured, nor is letting go of what was loaded, by
the function's `close` where it has one. Each line on stdin asks for one round.
Loads that only map files include a touch of every page. The first round compares every byte with what
was saved, by CRC-32; rounds that are counted come after it.
"""

import gc
import json
import os
import resource
import sys
import time
import zlib

from harness.plain import in_threads, memory, noise, reused, whole

PAGE = 4096
BLOCK = 4 << 20
THREADS = 4
# More of them do not read faster on two cores.
READERS = 2
MAPPING = ("safetensors_mmap", "torch_mmap")


def main():
    op, job = sys.argv[1], json.loads(sys.argv[2])
    # Whatever a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    once = OPS[op](job)
    is_checked = False
    for _ in sys.stdin:
        before, began = cpu_s(), time.perf_counter()
        tensors = once()
        touched = sum(touch(tensor) for tensor in tensors.values()) if op in MAPPING else 0
        wall, cpu = time.perf_counter() - began, cpu_s() - before
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if tensors and not is_checked:
            check(tensors, job["crcs"])
        is_checked = True
        # What is still mapped could not be dropped from memory before the next round.
        tensors = None
        gc.collect()
        getattr(once, "close", lambda: None)()
        answer = {"bytes": job["bytes"], "wall_s": wall, "cpu_s": cpu, "rss_bytes": rss}
        answer |= {"samples": job["count"], "touched": touched}
        print(json.dumps(answer), file=answers)


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def raw(tensor):
    """The bytes of a tensor of torch, as an array."""
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy()


def touch(tensor):
    return int(raw(tensor)[::PAGE].sum(dtype="u8"))


def check(tensors, crcs):
    if set(tensors) != set(crcs):
        raise SystemExit(f"{len(tensors)} tensors came instead of {len(crcs)}")
    for name, crc in crcs.items():
        if zlib.crc32(raw(tensors[name])) != crc:
            raise SystemExit(f"tensor {name} is not what was saved")


def forebay(job):
    import forebay

    return lambda: forebay.load(job["path"], framework="torch", verify="off")


def forebay_verified(job):
    """The same tensors with checksums in the header, all of them compared."""
    import forebay
    from forebay.safetensors.torch import save_file

    path = job["path"].replace(".safetensors", "-checksums.safetensors")
    if not os.path.exists(path):
        save_file(model(job), path, hashes=True)
    return lambda: forebay.load(path, framework="torch", verify="require")


def safetensors_mmap(job):
    from safetensors.torch import load_file

    return lambda: load_file(job["path"])


def safetensors_pread(job):
    from safetensors.torch import load_file

    return lambda: load_file(job["path"], backend="pread")


def torch_mmap(job):
    import torch

    return lambda: torch.load(job["pt"], mmap=True, weights_only=True)


def runai(job):
    from runai_model_streamer import SafetensorsStreamer

    def once():
        # Tensors are the caller's to keep, which is what it does unless told otherwise.
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(job["path"], owned=True)
            return dict(streamer.get_tensors())

    return once


def fastsafetensors(job):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    kept = []

    def close():
        for loader, buffer in kept:
            buffer.close()
            loader.close()
        kept.clear()

    def once():
        loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
        loader.add_filenames({0: [job["path"]]})
        buffer = loader.copy_files_to_device()
        kept.append((loader, buffer))
        return {name: buffer.get_tensor(name) for name in loader.get_keys()}

    once.close = close
    return once


def plain_reads(path, part):
    """Rounds of direct reads of a file, each block into the memory that `part` gives for it."""
    size = os.path.getsize(path)

    def once():
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            in_threads(range(0, size, BLOCK), lambda at: os.preadv(fd, [part(at)], at), READERS)
        finally:
            os.close(fd)

    return once


def plain_read(job):
    """The disk alone: direct reads of the file into memory of its size that was used before."""
    size = os.path.getsize(job["path"])
    return plain_reads(job["path"], whole(memory(-(-size // BLOCK) * BLOCK), BLOCK))


def plain_read_reused(job):
    """The disk alone: direct reads of the file into the same few MiB again and again."""
    return plain_reads(job["path"], reused(memory, BLOCK, READERS))


def model(job):
    """The tensors to be saved, loaded before anything is measured."""
    from safetensors.torch import load_file

    return {name: tensor.clone() for name, tensor in load_file(job["path"]).items()}


def save_forebay(job, **options):
    from forebay.safetensors.torch import save_file

    tensors = model(job)
    return lambda: save_file(tensors, job["target"], **options)


def save_forebay_hashed(job):
    return save_forebay(job, hashes=True)


def save_safetensors(job):
    from safetensors.torch import save_file

    tensors = model(job)

    def once():
        save_file(tensors, job["target"])
        sync(job["target"])

    return once


def save_torch(job):
    import torch

    tensors = model(job)

    def once():
        torch.save(tensors, job["target"])
        sync(job["target"])

    return once


def write_plainly(path, size, part):
    """A new file of `size` bytes, written around the page cache from what `part` gives, and synced."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o644)
    try:
        os.posix_fallocate(fd, 0, size)
        in_threads(range(0, size, BLOCK), lambda at: os.pwritev(fd, [part(at)], at), THREADS)
        os.fsync(fd)
    finally:
        os.close(fd)


def plain_writes(job, part):
    """Rounds of writes of a file like the model's, renamed to its name."""
    size = os.path.getsize(job["path"]) // BLOCK * BLOCK

    def once():
        temporary = job["target"] + ".tmp"
        write_plainly(temporary, size, part)
        os.rename(temporary, job["target"])
        sync_folder(job["target"])

    return once


def plain_write(job):
    """The disk alone: writes from memory of the size of the file."""
    return plain_writes(job, whole(noise(os.path.getsize(job["path"])), BLOCK))


def plain_write_reused(job):
    """The disk alone: writes from the same few MiB again and again."""
    return plain_writes(job, reused(noise, BLOCK, THREADS))


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(path)


def sync_folder(path):
    fd = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


OPS = {
    "forebay": forebay,
    "forebay_verified": forebay_verified,
    "safetensors_mmap": safetensors_mmap,
    "safetensors_pread": safetensors_pread,
    "torch_mmap": torch_mmap,
    "runai": runai,
    "fastsafetensors": fastsafetensors,
    "plain_read": plain_read,
    "plain_read_reused": plain_read_reused,
    "save_forebay": save_forebay,
    "save_forebay_hashed": save_forebay_hashed,
    "save_safetensors": save_safetensors,
    "save_torch": save_torch,
    "plain_write": plain_write,
    "plain_write_reused": plain_write_reused,
}

if __name__ == "__main__":
    main()
