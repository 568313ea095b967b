"""Drains a data set through one loader: `python -m clients.drain MODULE OP JOB`, where JOB is a JSON
object.

A client function of MODULE takes the job, imports its library, and returns a function that opens the data
set and gives batches; opening is measured, importing is not. Each line on stdin asks for one epoch. A
batch is one of

- a list with one object per sample that has bytes (`bytes`, `memoryview`, pyarrow's buffers);
- a pair of one array of bytes and the places in it where samples begin, and the end;
- an array with one row of tokens per sample.

Every sample must come exactly once: they begin with their number, and the numbers are added up. CPU time
is that of this process and of the worker processes it had, which have ended by then.
"""

import gc
import importlib
import json
import os
import resource
import sys
import time


def main():
    module, op, job = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    # Whatever a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    epoch = importlib.import_module(f"clients.{module}").OPS[op](job)
    for _ in sys.stdin:
        before, began = cpu_s(), time.perf_counter()
        drained = drain(epoch(), began)
        # Worker processes count once they are waited for.
        gc.collect()
        wall = time.perf_counter() - began
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        drained.check(job["count"])
        answer = {"bytes": drained.bytes, "wall_s": wall, "cpu_s": cpu_s() - before, "rss_bytes": rss}
        answer |= {"samples": drained.samples, "first_batch_s": drained.first_batch_s}
        print(json.dumps(answer), file=answers)


def drain(batches, began):
    drained = Drained()
    for batch in batches:
        if drained.samples == 0:
            drained.first_batch_s = time.perf_counter() - began
        drained.add(batch)
    return drained


def cpu_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Drained:
    """What was seen of the batches."""

    def __init__(self):
        self.bytes = self.samples = self.numbers = 0
        self.first_batch_s = 0.0

    def add(self, batch):
        if isinstance(batch, list):
            self.add_list(batch)
        elif isinstance(batch, tuple):
            self.add_packed(*batch)
        else:
            self.add_rows(batch)

    def add_list(self, batch):
        self.samples += len(batch)
        for sample in batch:
            view = memoryview(sample)
            self.bytes += view.nbytes
            self.numbers += int.from_bytes(view[:8], "little")

    def add_packed(self, data, offsets):
        view = memoryview(data)
        for start in offsets[:-1]:
            self.numbers += int.from_bytes(view[start : start + 8], "little")
        self.samples += len(offsets) - 1
        self.bytes += int(offsets[-1])

    def add_rows(self, batch):
        self.samples += len(batch)
        self.bytes += batch.nbytes
        self.numbers += int(batch[:, 0].astype("u8").sum()) + (int(batch[:, 1].astype("u8").sum()) << 16)

    def check(self, count):
        if self.samples != count or self.numbers != count * (count - 1) // 2:
            raise SystemExit(f"{self.samples} samples came instead of each of {count} once")


if __name__ == "__main__":
    main()
