"""Bytes in flight with a slow consumer: 1 GiB read from the plain server under a ceiling of 64 MiB of
buffer memory.
"""

from harness import servers
from harness.jobs import IN_FLIGHT, MIB, RANGE_BYTES, chosen, forebay_rust, write_random
from harness.result import Result
from harness.rounds import race
from harness.table import line

OBJECTS = 16
OBJECT_BYTES = 64 * MIB
CEILING_BYTES = 64 * MIB
PAUSE_MS = 20


def run(options, tmpfs):
    data = tmpfs / "data"
    data.mkdir()
    keys = [f"get-{index:02}" for index in range(max(2, int(OBJECTS * options.scale)))]
    for key in keys:
        write_random(data / key, OBJECT_BYTES)
    job = {
        "keys": keys,
        "object_bytes": OBJECT_BYTES,
        "range_bytes": RANGE_BYTES,
        "in_flight": 4 * IN_FLIGHT,
        "pause_ms": PAUSE_MS,
        "buffer_bytes_max": CEILING_BYTES,
    }
    with servers.sendfile(tmpfs, data) as server:
        free = {**job, "buffer_bytes_max": 1024 * MIB}
        listed = [
            forebay_rust("Forebay, ceiling 64 MiB", "memory", job, server),
            forebay_rust("Forebay, ceiling 1 GiB", "memory", free, server, "the same work with room"),
        ]
        rows = race(chosen(listed, options), options.runs)
    note = f"64 requests of 8 MiB are wanted at once; the consumer sleeps {PAUSE_MS} ms over each."
    return [Memory("Memory with a slow consumer", rows, remarks=[note])]


class Memory(Result):
    """A table of bytes instead of rates."""

    def markdown(self):
        head = [
            "contender",
            "ceiling MiB",
            "most leased MiB",
            "leases that waited",
            "RSS before MiB",
            "peak RSS MiB",
        ]
        lines = [line(head), line(["---"] * len(head))]
        for row in self.rows:
            if not row.samples:
                lines.append(line([row.name, f"failed: {row.failure}", *[""] * 4]))
                continue
            last = row.samples[-1].extra
            before = row.samples[0].extra["rss_bytes_before"]
            sizes = [last["pool_bytes_max"], last["pool_bytes_peak"], before, row.rss_bytes]
            ceiling, peak, rss_before, rss = (f"{size / MIB:.0f}" for size in sizes)
            lines.append(line([row.name, ceiling, peak, str(last["pool_waits"]), rss_before, rss]))
        return f"### {self.title}\n\n" + "\n".join([*lines, "", *self.remarks]) + "\n"
