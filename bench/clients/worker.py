"""Measures one client: `python -m clients.worker MODULE OP JOB`, where JOB is a JSON object with the
fields of `Job`.

Each line on stdin asks for one round. CPU time and memory are this process's own, or, for modules that
say `CLI = True`, those of the programs they ran (wait4 adds up a whole process tree).
"""

import importlib
import json
import os
import resource
import sys
import time
from dataclasses import dataclass, field


@dataclass
class Job:
    """What to move, alike for all clients."""

    keys: list = field(default_factory=list)
    object_bytes: int = 0
    range_bytes: int = 8 << 20
    in_flight: int = 16
    source: str = ""
    target: str = ""
    target_key: str = ""
    objects: int = 0
    endpoint: str = os.environ.get("BENCH_ENDPOINT", "")
    bucket: str = os.environ.get("BENCH_BUCKET", "")

    @property
    def total_bytes(self):
        return (self.objects or len(self.keys)) * self.object_bytes

    def ranges(self):
        """Every (key, start, length), object by object."""
        for key in self.keys:
            for start in range(0, self.object_bytes, self.range_bytes):
                yield key, start, min(self.range_bytes, self.object_bytes - start)


def main():
    module_name, op, job = sys.argv[1], sys.argv[2], Job(**json.loads(sys.argv[3]))
    module = importlib.import_module(f"clients.{module_name}")
    who = resource.RUSAGE_CHILDREN if getattr(module, "CLI", False) else resource.RUSAGE_SELF
    # Whatever a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    round_once = module.OPS[op](job)
    between = getattr(module, "between", lambda job: None)
    for _ in sys.stdin:
        between(job)
        before, began = resource.getrusage(who), time.perf_counter()
        moved = round_once()
        wall, after = time.perf_counter() - began, resource.getrusage(who)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        rss = after.ru_maxrss * 1024
        answer = {
            "bytes": moved,
            "wall_s": wall,
            "cpu_s": cpu,
            "rss_bytes": rss,
        }
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
