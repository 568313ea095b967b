"""The disk itself: sequential direct reads, durable writes, random reads; fio with io_uring and O_DIRECT
is the limit.
"""

import shutil
import tempfile
from pathlib import Path

from harness.fio import Fio, lay_out
from harness.jobs import MIB, chosen, forebay_rust
from harness.result import Result, fastest
from harness.rounds import race

FILE_BYTES = 4096 * MIB
RANDOM_BYTES = 128 << 10
RANDOM_COUNT = 16384

FIXED = ["--fixedbufs=1", "--registerfiles=1"]
# Forebay's buffers are in transparent 2 MiB pages; fio has them only where some are reserved.
HUGE = [*FIXED, "--iomem=mmaphuge"]
HUGE_PAGES_MIN = 64
HUGE_NOTE = "registered buffers in 2 MiB pages"
SEQUENTIAL = {
    "bs 1 MiB, depth 16": ["--bs=1m", "--iodepth=16"],
    "bs 4 MiB, depth 8": ["--bs=4m", "--iodepth=8"],
}


def run(options, _tmpfs):
    size = max(256 * MIB, int(FILE_BYTES * options.scale) // (16 * MIB) * (16 * MIB))
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="disk-", dir=options.dir) as folder:
        if shutil.disk_usage(folder).free < 4 * size:
            raise SystemExit(f"{folder} has too little room: 4 x {size} bytes are needed")
        path = Path(folder) / "data"
        lay_out(path, size)
        results = [read(options, path), random(options, path, size)]
        path.unlink()
        results.insert(1, write(options, Path(folder), size))
    return results


def read(options, path):
    listed = [
        forebay_rust("Forebay", "disk-read", {"path": str(path)}, note="8 MiB spans x 2, requests of 512 KiB")
    ]
    for name, flags in SEQUENTIAL.items():
        arguments = [f"--filename={path}", "--rw=read", *flags]
        listed.append(Fio(f"fio {name}", arguments))
        listed.append(Fio(f"fio {name}, fixed", [*arguments, *FIXED], "registered buffers and file"))
        if has_huge_pages():
            listed.append(Fio(f"fio {name}, huge", [*arguments, *HUGE], HUGE_NOTE))
    return against_fio("Sequential direct read", listed, options)


def write(options, folder, size):
    job = {"path": str(folder / "forebay"), "bytes": size}
    listed = [forebay_rust("Forebay", "disk-write", job, note="new file, reserved; fsync included")]
    target = folder / "fio"
    for name, flags in SEQUENTIAL.items():
        arguments = [f"--filename={target}", f"--size={size}", "--rw=write", "--end_fsync=1", *flags]
        listed.append(Fio(f"fio {name}", arguments, "new file, fallocated; fsync included", target))
        listed.append(Fio(f"fio {name}, fixed", [*arguments, *FIXED], "registered buffers and file", target))
        if has_huge_pages():
            listed.append(Fio(f"fio {name}, huge", [*arguments, *HUGE], HUGE_NOTE, target))
    arguments = [f"--filename={target}", f"--size={size}", "--rw=write", "--end_fsync=1", "--fallocate=none"]
    listed.append(
        Fio("fio bs 4 MiB, depth 8, not allocated", [*arguments, "--bs=4m", "--iodepth=8"], "", target)
    )
    return against_fio("Durable sequential direct write", listed, options)


def random(options, path, size):
    count = min(RANDOM_COUNT, size // RANDOM_BYTES)
    job = {"path": str(path), "count": count}
    arguments = [
        f"--filename={path}",
        "--rw=randread",
        "--norandommap",
        f"--bs={RANDOM_BYTES}",
        "--iodepth=32",
        f"--io_size={count * RANDOM_BYTES}",
    ]
    listed = [
        forebay_rust("Forebay", "disk-random", job),
        Fio("fio", arguments),
        Fio("fio, fixed", [*arguments, *FIXED], "registered buffers and file"),
    ]
    if has_huge_pages():
        listed.append(Fio("fio, huge", [*arguments, *HUGE], HUGE_NOTE))
    return against_fio("Random 128 KiB reads, depth 32", listed, options)


def has_huge_pages():
    """Whether enough pages are reserved for the buffers of any of these jobs."""
    reserved = Path("/proc/sys/vm/nr_hugepages")
    return reserved.exists() and int(reserved.read_text()) >= HUGE_PAGES_MIN


def against_fio(title, listed, options):
    """The limit is fio's best configuration, by its median."""
    rows = race(chosen(listed, options), options.runs)
    best = fastest([row for row in rows if row.name.startswith("fio")])
    remarks = []
    forebay = next((row for row in rows if row.name == "Forebay" and row.samples), None)
    if best and forebay:
        ratio = forebay.cpu_per_gb / best.cpu_per_gb if best.cpu_per_gb else float("nan")
        remarks.append(
            f"Limit: {best.name}. Forebay: {forebay.rate / best.rate:.2f} of its rate, "
            f"{ratio:.2f} times its CPU time."
        )
    return Result(title, rows, best, "fio's best", remarks)
