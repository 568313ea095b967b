"""Plain direct reads and writes by threads: what a disk gives to whoever asks it well.

The memory is private and lies in 2 MiB pages. Memory that Python maps by default is shared, in pages of
4 KiB: a request of 1 MiB in it has more pieces than a disk takes at once, and a limit measured so is
none.

There are two limits. A program that loads or saves needs memory for all of it, so it is held against reads
and writes of memory of that size, all of it touched before. The same few MiB used again and again stay in the
caches, which makes a virtual disk faster; that is told beside it.
"""

import ctypes
import mmap
import os
import threading

HUGE_PAGE = 2 << 20
NOISE_BYTES = 64 << 20


def memory(size):
    """Memory of so many bytes in large pages, all of them touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    area = mmap.mmap(-1, size + HUGE_PAGE, flags=flags)
    area.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(area)) % HUGE_PAGE
    aligned = memoryview(area)[start : start + size]
    ones = bytes([1]) * HUGE_PAGE
    for at in range(0, size, HUGE_PAGE):
        aligned[at : at + HUGE_PAGE] = ones[: size - at]
    return aligned


def noise(size):
    """Memory of so many bytes that do not compress."""
    area, tile = memory(size), os.urandom(min(size, NOISE_BYTES))
    for at in range(0, size, NOISE_BYTES):
        area[at : at + NOISE_BYTES] = tile[: size - at]
    return area


def whole(area, block):
    """The part of `area` for the block at an offset: memory of each block's own."""
    return lambda at: area[at : at + block]


def reused(make, block, threads):
    """The same memory for every block that a thread has."""
    areas = [make(block) for _ in range(threads)]
    return lambda _: areas[int(threading.current_thread().name)]


def in_threads(blocks, work, threads):
    """Let threads work through blocks."""
    left, lock = iter(blocks), threading.Lock()
    failures = []

    def run():
        try:
            while True:
                with lock:
                    block = next(left, None)
                if block is None:
                    return
                work(block)
        except OSError as error:
            failures.append(error)

    workers = [threading.Thread(target=run, name=str(number)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
