"""Threads around a blocking call, 16 by default, made once and used by all rounds."""

from concurrent.futures import ThreadPoolExecutor


def summed(job, call, items):
    """A round: `call` over all `items`, `job.in_flight` at a time; returns the sum of what it returned."""
    pool = ThreadPoolExecutor(job.in_flight)
    items = list(items)
    return lambda: sum(pool.map(lambda item: call(*item), items))


def mapped(path):
    """A file on tmpfs as read-only memory: page-aligned, and shared by all contenders instead of one copy
    each.
    """
    import mmap

    with open(path, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
