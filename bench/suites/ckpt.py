"""The state of a training run (bf16 weights in the shapes of a transformer, two fp32 moments of Adam; 4 GB)
saved durably, saved in the background, and loaded from a cold disk.

Every round of every contender is a new process whose second save or load is counted (see `harness/fresh.py`):
the first touch of memory is nobody's. All are made durable in the same way: every file and every folder is
synced. The limits are plain direct writes and reads of as much memory, and a plain copy in memory by
threads. The peers have the environment of the suite `load`.
"""

import json
import tempfile
from pathlib import Path

from harness import tools
from harness.fresh import Fresh, forget
from harness.jobs import MIB
from harness.loaders import Named, made
from harness.rounds import race
from suites.load import table, with_forebay

STATE_BYTES = 4_000_000_000
WRITE_LIMIT = "plain direct write, fsync"
COPY_LIMIT = "plain copy in memory"
READ_LIMIT = "plain direct read"

SAVES = [
    (WRITE_LIMIT, "plain_write", "4 threads, 4 MiB, large pages; fallocate first"),
    (f"{WRITE_LIMIT}, 16 MiB", "plain_write_reused", "the same memory again and again"),
    ("Forebay", "save_forebay_sync", "hashes on; staging_bytes=0: from where the state is"),
    ("Forebay, in the background", "save_forebay", "hashes on; a copy is written, and waited for"),
    ("Forebay, BLAKE3", "save_forebay_blake3", ""),
    ("Forebay, 95 % unchanged", "save_forebay_incremental_sync", "incremental; of the bytes of the state"),
    ("Forebay, 95 % unchanged, in the background", "save_forebay_incremental", "the same from a copy"),
    ("safetensors", "save_safetensors", ""),
    ("torch.save", "save_torch", ""),
    ("DCP", "save_dcp", "one rank"),
    ("torchsnapshot", "save_torchsnapshot", ""),
]
STALLS = [
    (COPY_LIMIT, "plain_copy", "4 threads, into memory that is used again"),
    ("Forebay", "stall_forebay", ""),
    ("DCP async_save", "stall_dcp", "thread, own stager that is kept, shared memory"),
    ("torchsnapshot async_take", "stall_torchsnapshot", ""),
]
LOADS = [
    (READ_LIMIT, "plain_read", "2 threads, 4 MiB, large pages; no tensors"),
    (f"{READ_LIMIT}, 8 MiB", "plain_read_reused", "the same memory again and again"),
    ("Forebay", "load_forebay", "verified, into memory that is used again"),
    ("Forebay, new memory", "load_forebay_new", "verified"),
    ("safetensors", "load_safetensors", "maps the file; a touch reads it"),
    ("torch.load", "load_torch", ""),
    ("torch.load, mmap", "load_torch_mmap", "maps the file; a touch reads it"),
    ("DCP", "load_dcp", "into memory that is used again"),
]


def run(options, _tmpfs):
    options.dir.mkdir(parents=True, exist_ok=True)
    size = max(64 * MIB, int(STATE_BYTES * options.scale))
    results = []
    for title, rows, limit in [
        ("Save {:.2f} GB, durable", SAVES, WRITE_LIMIT),
        ("Stall of a save of {:.2f} GB in the background", STALLS, COPY_LIMIT),
        ("Load {:.2f} GB from a cold disk", LOADS, READ_LIMIT),
    ]:
        with tempfile.TemporaryDirectory(prefix="ckpt-", dir=options.dir) as folder:
            entries = [Named(row[0], lambda row=row: contender(folder, size, *row)) for row in rows]
            raced = race(made(entries, options), options.runs, warm_ups=0)
        results.append(table(title.format(size / 1e9), raced, limit))
    return results


def contender(folder, size, name, op, note):
    """A library in a new process; None where there is no Forebay to be measured or read from."""
    env = with_forebay() if name.startswith("Forebay") or op.startswith("plain_read") else {}
    if env is None:
        return None
    job = {"folder": folder, "bytes": size}
    argv = [tools.ensure_venv("load"), "-m", "clients.ckpt", op, json.dumps(job)]
    before = lambda: forget(Path(folder))  # noqa: E731
    return Fresh(name, argv, 1, size, before=before, note=note, env=env, cwd=tools.BENCH)
