"""A language model of 2 GiB in bfloat16, one safetensors file on a cold local disk, loaded into host memory;
and saved, durably.

Every round of every contender is a new process whose second load is counted (see `harness/fresh.py`); a touch
of every page is part of it where a library only maps the file. The limits are plain direct reads of the
same file into memory of its size that was used before, and plain direct writes of such memory with an
fsync. The peers have an environment of their own (`requirements-load.txt`), made on the first run.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from harness import tools
from harness.fresh import Fresh, forget
from harness.jobs import MIB
from harness.loaders import Named, made
from harness.result import Result, named
from harness.rounds import race, talk

MODEL_BYTES = 2048 * MIB
READ_LIMIT = "plain direct read"
WRITE_LIMIT = "plain direct write, fsync"

LOADERS = [
    ("safetensors", "safetensors_mmap", "maps the file; a touch reads it"),
    ("safetensors, pread", "safetensors_pread", ""),
    ("torch.load, mmap", "torch_mmap", "maps the file; a touch reads it"),
    ("Run:ai streamer", "runai", "default settings; tensors copied out of its buffer"),
    ("fastsafetensors", "fastsafetensors", "nogds"),
]
SAVERS = [
    ("safetensors", "save_safetensors", "fsync of file and folder added"),
    ("torch.save", "save_torch", "fsync of file and folder added"),
]


def run(options, _tmpfs):
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="load-", dir=options.dir) as folder:
        model = make(Path(folder) / "model", max(64 * MIB, int(MODEL_BYTES * options.scale)))
        loads = race(made(listed_loads(model), options), options.runs, warm_ups=0)
        saves = race(made(listed_saves(model, Path(folder)), options), options.runs, warm_ups=0)
    return [
        table(f"Load {model['bytes'] / 1e9:.2f} GB from a cold disk", loads, READ_LIMIT),
        table(f"Save {model['bytes'] / 1e9:.2f} GB, durable", saves, WRITE_LIMIT),
    ]


def table(title, rows, limit):
    reference = named(rows, limit) if any(row.name == limit for row in rows) else None
    return Result(title, rows, reference, "the limit")


def make(folder, size):
    talk("making a model")
    argv = [tools.ensure_venv("load"), "-m", "clients.make_weights", str(folder), str(size)]
    made = subprocess.run(argv, check=True, cwd=tools.BENCH, capture_output=True, text=True)
    os.sync()
    model = json.loads(made.stdout)
    return model | {
        "path": str(folder / "model.safetensors"),
        "pt": str(folder / "model.pt"),
        "folder": folder,
    }


def contender(model, name, op, note="", python=None, env=None, **job):
    """A library in a new process."""
    job = {key: value for key, value in model.items() if key != "folder"} | job
    argv = [python or tools.ensure_venv("load"), "-m", "clients.load_weights", op, json.dumps(job)]
    return Fresh(
        name,
        argv,
        model["count"],
        model["bytes"],
        before=lambda: forget(model["folder"]),
        note=note,
        env=env,
        cwd=tools.BENCH,
    )


def with_forebay():
    """The peers' Python with the package of a Python that has Forebay: tensors are of torch for all."""
    python = tools.forebay_python()
    if python is None:
        return None
    script = "import forebay, pathlib; print(pathlib.Path(forebay.__file__).parent.parent)"
    found = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    link = tools.MADE / "forebay-package"
    link.mkdir(parents=True, exist_ok=True)
    target = link / "forebay"
    target.unlink(missing_ok=True)
    target.symlink_to(Path(found) / "forebay")
    return {"PYTHONPATH": str(link)}


def listed_loads(model):
    def own(name, op, note=""):
        env = with_forebay()
        return None if env is None else contender(model, name, op, note, env=env)

    again = "the same memory again and again"
    entries = [
        Named(
            READ_LIMIT,
            lambda: contender(model, READ_LIMIT, "plain_read", "2 threads, 4 MiB, large pages; no tensors"),
        ),
        Named(
            f"{READ_LIMIT}, 8 MiB",
            lambda: contender(model, f"{READ_LIMIT}, 8 MiB", "plain_read_reused", again),
        ),
        Named("Forebay", lambda: own("Forebay", "forebay")),
        Named(
            "Forebay, verified",
            lambda: own("Forebay, verified", "forebay_verified", "checksums in the header"),
        ),
    ]
    for name, op, note in LOADERS:
        entries.append(Named(name, lambda name=name, op=op, note=note: contender(model, name, op, note)))
    return entries


def listed_saves(model, folder):
    target = {"target": str(folder / "saved.safetensors")}

    def own(name, op, note=""):
        env = with_forebay()
        return None if env is None else contender(model, name, op, note, env=env, **target)

    limit, again = "4 threads, 4 MiB, large pages; fallocate first", "the same memory again and again"
    entries = [
        Named(WRITE_LIMIT, lambda: contender(model, WRITE_LIMIT, "plain_write", limit, **target)),
        Named(
            f"{WRITE_LIMIT}, 16 MiB",
            lambda: contender(model, f"{WRITE_LIMIT}, 16 MiB", "plain_write_reused", again, **target),
        ),
        Named("Forebay", lambda: own("Forebay", "save_forebay")),
        Named(
            "Forebay, checksums", lambda: own("Forebay, checksums", "save_forebay_hashed", "in the header")
        ),
    ]
    for name, op, note in SAVERS:
        one = lambda name=name, op=op, note=note: contender(model, name, op, note, **target)  # noqa: E731
        entries.append(Named(name, one))
    return entries
