"""Contenders that are a new process in every round, and files that are in memory or are not.

A loader keeps memory, threads and caches of its own, and they must not add up over rounds. Each process
drains one epoch that is not counted, and then the one that is: a virtual machine gives memory that nobody
used for a second back to its host, and who touches it first pays up to 1.8 CPU seconds per GiB for that.
It depends on who ran before, so everybody's memory is touched by itself.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path

from .contender import Failed, Worker

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
LOOK_SECONDS = 0.25
"""How often the memory of worker processes is looked at: adding it up takes some milliseconds."""


class Fresh(Worker):
    """A process per round. `before` is called before each of its epochs; `samples` must have come, which
    are `payload_bytes`: rates are of the same bytes for all, whatever a format has around them.
    """

    def __init__(self, name, argv, samples, payload_bytes, before=None, **more):
        super().__init__(name, argv, **more)
        self.samples = samples
        self.payload_bytes = payload_bytes
        self.before = before

    def start(self):
        """Nothing lives longer than a round."""

    def measure(self):
        super().start()
        tree = Tree(self.process.pid)
        try:
            with tree:
                first, sample = (self.epoch() for _ in range(2))
        finally:
            self.stop()
        check(sample, self.samples, self.payload_bytes)
        # What one waits for who begins: memory that is new, and all that is done once.
        if "first_batch_s" in first.extra:
            sample.extra["first_batch_new_s"] = first.extra["first_batch_s"]
        sample.rss_bytes = max(sample.rss_bytes, tree.bytes_peak)
        return sample

    def epoch(self):
        if self.before:
            self.before()
        return super().measure()


def check(sample, samples, payload_bytes):
    """Whether everything came; the bytes are those of the samples alone from here on."""
    came = sample.extra.get("samples")
    if came != samples:
        raise Failed(f"{came} samples came instead of {samples}")
    sample.bytes = payload_bytes


class Tree:
    """Most memory of a process and its worker processes together, shared pages counted once; zero while it
    has none: then the process tells its own peak better.
    """

    def __init__(self, pid):
        self.pid = pid
        self.bytes_peak = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def look(self):
        while not self.over.wait(LOOK_SECONDS):
            pids = family(self.pid)
            if len(pids) > 1:
                self.bytes_peak = max(self.bytes_peak, sum(map(proportional_bytes, pids)))


def family(root):
    """A process and all that descend from it."""
    parents = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                # The name, in parentheses, may hold anything.
                stat = (path / "stat").read_text().rpartition(")")[2].split()
                parents[int(path.name)] = int(stat[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def proportional_bytes(pid):
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def forget(folder):
    """Drop what is in memory of the files below a folder, and, where that is allowed, all cached names.

    Only pages that are on the disk already can go: the one who wrote the files calls `sync` first.
    """
    for path in files(folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    with suppress(OSError):
        DROP_CACHES.write_text("2\n")


def remember(folder):
    """Read all files below a folder once, so that they are in memory."""
    memory = bytearray(1 << 20)
    for path in files(folder):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(memory):
                pass


def files(folder):
    for root, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(root, name)
