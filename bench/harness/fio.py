"""fio as a contender: one round is one run, rates and CPU time as fio itself reports them for the job.

fio pre-faults and lays out before it starts its clock, and its CPU time is that of the job alone, so
start-up is not counted. Its buffers are page-aligned, as O_DIRECT demands.
"""

import json
import resource
import shutil
import subprocess
from pathlib import Path

from .contender import ROUND_SECONDS_MAX, Contender, Failed, Sample

COMMON = [
    "--name=job",
    "--ioengine=io_uring",
    "--direct=1",
    "--thread",
    "--output-format=json",
    "--randrepeat=0",
]


class Fio(Contender):
    """One fio configuration. `fresh` files are removed before each run, as a new file is what is
    measured.
    """

    def __init__(self, name, options, note="", fresh=None):
        super().__init__(name, note)
        self.options = options
        self.fresh = fresh

    def start(self):
        if shutil.which("fio") is None:
            raise Failed("fio is not installed")

    def measure(self):
        if self.fresh:
            Path(self.fresh).unlink(missing_ok=True)
        before = children_cpu_s()
        done = subprocess.run(
            ["fio", *COMMON, *self.options],
            check=False,
            capture_output=True,
            text=True,
            timeout=ROUND_SECONDS_MAX,
        )
        process_cpu_s = children_cpu_s() - before
        if done.returncode != 0:
            raise Failed((done.stderr or done.stdout).strip().splitlines()[-1])
        job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
        return sample(job, process_cpu_s)


def sample(job, process_cpu_s):
    """`usr_cpu` and `sys_cpu` are percent of the job's run time, which includes the final fsync; so does
    the rate here.

    They count the job's own thread only, not fio's main thread nor kernel workers, and so flatter fio a
    little; the whole process, start-up included, is kept beside them.
    """
    moved = job["read"]["io_bytes"] + job["write"]["io_bytes"]
    wall_s = job["job_runtime"] / 1e3
    cpu_s = (job["usr_cpu"] + job["sys_cpu"]) / 100 * wall_s
    own_rate = max(job["read"]["bw_bytes"], job["write"]["bw_bytes"]) / 1e9
    return Sample(moved, wall_s, cpu_s, 0, {"fio_gb_s": own_rate, "cpu_process_s": process_cpu_s})


def children_cpu_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lay_out(path, size):
    """A file of incompressible bytes, written directly."""
    options = [
        f"--filename={path}",
        f"--size={size}",
        "--rw=write",
        "--bs=4m",
        "--iodepth=8",
        "--refill_buffers",
    ]
    subprocess.run(["fio", *COMMON, *options, "--end_fsync=1"], check=True, capture_output=True)
