"""Interleaved rounds, and what is told about them.

Every round runs every contender once, starting with another one each time (A B C, B C A, C A B), so that
a slow minute of the machine or the position after a heavy neighbour hits all alike. The first round warms
up and is not counted, unless contenders warm up themselves.
"""

import statistics
import sys
from dataclasses import dataclass, field

from .contender import Failed


@dataclass
class Row:
    """All counted rounds of one contender."""

    name: str
    note: str
    samples: list = field(default_factory=list)
    failure: str = ""

    @property
    def rate(self):
        return statistics.median(sample.rate for sample in self.samples)

    @property
    def rate_min(self):
        return min(sample.rate for sample in self.samples)

    @property
    def rate_max(self):
        return max(sample.rate for sample in self.samples)

    @property
    def cpu_per_gb(self):
        return statistics.median(sample.cpu_per_gb for sample in self.samples)

    @property
    def rss_bytes(self):
        return max(sample.rss_bytes for sample in self.samples)

    def as_json(self):
        rounds = [{**vars(sample)} for sample in self.samples]
        row = {"name": self.name, "note": self.note, "rounds": rounds}
        if self.samples:
            row |= {"rate_gb_s": self.rate, "cpu_s_per_gb": self.cpu_per_gb, "rss_bytes": self.rss_bytes}
        if self.failure:
            row["failure"] = self.failure
        return row


def race(contenders, runs, after=None, warm_ups=1):
    """Run a warm-up round and `runs` counted ones; returns a `Row` per contender, in the order given.

    `after` is called, untimed, after each contender's turn.
    """
    rows = {one.name: Row(one.name, one.note) for one in contenders}
    assert len(rows) == len(contenders), "two contenders of one name"
    try:
        for one in contenders:
            attempt(one.start, rows[one.name])
        for round_index in range(1 - warm_ups, runs + 1):
            shift = round_index % len(contenders)
            for one in contenders[shift:] + contenders[:shift]:
                row = rows[one.name]
                if row.failure:
                    continue
                sample = attempt(one.measure, row)
                if after:
                    after()
                if sample is None:
                    continue
                label = "warm-up" if round_index < 1 else f"round {round_index}/{runs}"
                talk(f"{label}: {one.name}: {sample.wall_s:.2f} s, {sample.cpu_s:.2f} CPU s")
                if round_index > 0:
                    row.samples.append(sample)
    finally:
        for one in contenders:
            one.stop()
    return list(rows.values())


def attempt(action, row):
    """Do it; a failure is noted in the row and ends that contender, not the suite."""
    try:
        return action()
    except Failed as failure:
        row.failure = str(failure)
        talk(f"{row.name} failed: {row.failure}")
        return None


def talk(text):
    """Progress goes to stderr; stdout is for the tables."""
    print(text, file=sys.stderr, flush=True)
