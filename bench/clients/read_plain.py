"""The disk alone: `python -m clients.read_plain JOB` reads the files of the folder `job.folder` from the
front to the end, past the page cache, into the same few MiB again and again.

Each line on stdin asks for one round. `job.count` is what is told as the number of samples.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

from harness.plain import in_threads, memory, reused

BLOCK = 4 << 20
READERS = 2


def main():
    job = json.loads(sys.argv[1])
    part = reused(memory, BLOCK, READERS)
    for _ in sys.stdin:
        before, began = cpu_s(), time.perf_counter()
        moved = read(Path(job["folder"]), part)
        wall = time.perf_counter() - began
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        answer = {"bytes": moved, "wall_s": wall, "cpu_s": cpu_s() - before, "rss_bytes": rss}
        print(json.dumps(answer | {"samples": job["count"]}), flush=True)


def read(folder, part):
    """All that is not Forebay's own; gives how many bytes that is."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    paths = sorted(path for path in paths if path.name not in ("_forebay.fbi", "_SHA256SUMS"))
    files = [(os.open(path, os.O_RDONLY | os.O_DIRECT), path.stat().st_size) for path in paths]
    try:
        blocks = [(fd, at) for fd, size in files for at in range(0, size, BLOCK)]
        in_threads(blocks, lambda block: os.preadv(block[0], [part(None)], block[1]), READERS)
    finally:
        for fd, _ in files:
            os.close(fd)
    return sum(size for _, size in files)


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
