"""JPEGs of about 500 x 375 and 100 KB, in memory, decoded to 224 x 224: random-resized-crop, half of them
mirrored, uint8 [3, 224, 224] of a batch; on one thread and on two.

The peers have an environment of their own (`requirements-images.txt`), made on the first run.
"""

import json
import statistics
import subprocess

from harness import tools
from harness.contender import Worker
from harness.jobs import chosen, forebay_rust
from harness.result import Result
from harness.rounds import race
from harness.table import line

FILES = 200
PASSES = 4
PLAN = "rrc:224,flip"
PEERS = [
    ("torchvision", "torchvision", "decode_jpeg, transforms.v2"),
    ("Pillow", "pillow", ""),
    ("OpenCV", "opencv", "no antialias"),
    ("SPDL", "spdl", "FFmpeg; resized before colour conversion"),
    ("DALI, CPU", "dali", "decodes the rectangle only"),
]


def run(options, tmpfs):
    python = tools.ensure_venv("images")
    folder = tmpfs / "images"
    count = max(10, int(FILES * options.scale))
    made = [python, "-m", "clients.make_images", folder, str(count)]
    subprocess.run(made, check=True, cwd=tools.BENCH)
    results = []
    for threads in (1, 2):
        total = count * PASSES
        job = {"source": str(folder), "objects": total, "in_flight": threads}
        own = {"folder": str(folder), "threads": threads, "passes": PASSES, "plan": PLAN}
        listed = [forebay_rust("Forebay", "images", own)]
        for name, op, note in PEERS:
            argv = [python, "-m", "clients.worker", "images", op, json.dumps(job)]
            # One thread is one thread: libraries must not start their own beside ours.
            env = {"OMP_NUM_THREADS": "1"}
            listed.append(Worker(name, argv, note, env=env, cwd=tools.BENCH))
        rows = race(chosen(listed, options), options.runs)
        title = "JPEG to 224 x 224, one thread" if threads == 1 else f"JPEG to 224 x 224, {threads} threads"
        results.append(Images(title, rows))
    return results


class Images(Result):
    """A table of images instead of bytes."""

    def markdown(self):
        head = ["contender", "images/s", "min - max", "images per CPU second", "peak RSS MiB", "note"]
        lines = [line(head), line(["---"] * len(head))]
        for row in self.rows:
            if not row.samples:
                lines.append(line([row.name, *["-"] * 4, f"failed: {row.failure}"]))
                continue
            rates = sorted(sample.bytes / sample.wall_s for sample in row.samples)
            per_cpu = statistics.median(sample.bytes / sample.cpu_s for sample in row.samples)
            cells = [row.name, f"{statistics.median(rates):.0f}", f"{rates[0]:.0f} - {rates[-1]:.0f}"]
            lines.append(line([*cells, f"{per_cpu:.0f}", f"{row.rss_bytes / (1 << 20):.0f}", row.note]))
        return f"### {self.title}\n\n" + "\n".join(lines) + "\n"
