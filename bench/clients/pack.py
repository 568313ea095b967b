"""Programs that put many small files into tar shards. One round is one run, start-up included.

`job.source` is a folder of folders of files, `job.target` the folder for the shards, which is empty at first.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CLI = True

ROOT = Path(__file__).resolve().parents[2]
SHARD_BYTES = 256 << 20


def forebay(job):
    program = ROOT / "target" / "release" / "forebay"
    size = f"{SHARD_BYTES >> 20}MiB"
    return packed(job, [program, "pack", job.source, job.target, "--to", "wds", "--shard-size", size])


def tar(job):
    return packed(job, tar_argv(job, "all"))


def tar_synced(job):
    """Durable at the end, as what Forebay packs is."""
    return packed(job, tar_argv(job, "all"), ["sync", f"{job.target}/all.tar"])


def tar_argv(job, name, folders=(".",)):
    """Records of 1 MiB: with its usual 10 KiB it is slower."""
    return ["tar", "-c", "-b", "2048", "-f", f"{job.target}/{name}.tar", "-C", job.source, *folders]


def tar_side_by_side(job):
    """As many at once as there are cores, each with its share of the folders."""
    folders = sorted(path.name for path in Path(job.source).iterdir())
    cores = len(os.sched_getaffinity(0))
    commands = [tar_argv(job, core, folders[core::cores]) for core in range(cores)]

    def once():
        running = [subprocess.Popen(argv, stdin=subprocess.DEVNULL) for argv in commands]
        # All of them are waited for, whatever the first says.
        if sum(one.wait() for one in running):
            raise RuntimeError("tar failed")
        return landed(job)

    return once


def webdataset(job):
    return packed(job, [sys.executable, "-m", "clients.pack_webdataset", job.source, job.target])


def packed(job, *commands):
    def once():
        for argv in commands:
            subprocess.run([str(arg) for arg in argv], check=True, stdin=subprocess.DEVNULL)
        return landed(job)

    return once


def landed(job):
    """Shards hold every file and something around each, or the round was none."""
    found = sum(path.stat().st_size for path in Path(job.target).rglob("*.tar"))
    if found < job.total_bytes:
        raise RuntimeError(f"shards of {found} bytes cannot hold {job.total_bytes}")
    return job.total_bytes


def between(job):
    """Untimed, before each round: an empty target folder, and nothing left to write."""
    shutil.rmtree(job.target, ignore_errors=True)
    os.makedirs(job.target)
    os.sync()


OPS = {
    "forebay": forebay,
    "tar": tar,
    "tar_synced": tar_synced,
    "tar_side_by_side": tar_side_by_side,
    "webdataset": webdataset,
}
