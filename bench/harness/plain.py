"""Plain direct reads and writes by threads: what a disk gives to whoever asks it well.

The memory is private and lies in 2 MiB pages. Memory that Python maps by default is shared, in pages of
4 KiB: a request of 1 MiB in it has more pieces than a disk takes at once, and a limit measured so is
none.
"""

import ctypes
import mmap
import threading

HUGE_PAGE = 2 << 20


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


def in_threads(blocks, work, threads, block_bytes):
    """Let threads work through blocks, each with memory of its own that is used again."""
    left, lock = iter(blocks), threading.Lock()
    failures = []

    def run(own):
        try:
            while True:
                with lock:
                    block = next(left, None)
                if block is None:
                    return
                work(own, block)
        except OSError as error:
            failures.append(error)

    workers = [threading.Thread(target=run, args=(memory(block_bytes),)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
