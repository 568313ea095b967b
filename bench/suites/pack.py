"""Packing 200,000 files of 4 KiB, in folders of 1,000, into tar shards; with the files in memory, and
cold.

The limit is fio writing as many bytes as the shards have to one file, durably. Forebay's shards are
durable and have a manifest with a checksum of every sample; those of the others are neither, but for the
row that says so.
"""

import json
import os
import tempfile
from pathlib import Path

from harness import tools
from harness.contender import Worker
from harness.fio import Fio
from harness.fresh import forget, remember
from harness.jobs import chosen
from harness.result import Result
from harness.rounds import race
from harness.table import Unit

FILES = 200_000
FILE_BYTES = 4096
FOLDER_FILES = 1000
MEMBER_BYTES = 512 + FILE_BYTES
"""In a tar, with its header."""

FILES_UNIT = Unit("files/s", 1e9 / FILE_BYTES, 0)
LIMIT = "fio, durable sequential write"


class Packer(Worker):
    """`before` is called before each round, untimed."""

    def __init__(self, name, argv, before, **more):
        super().__init__(name, argv, **more)
        self.before = before

    def measure(self):
        self.before()
        return super().measure()


class Limit(Fio):
    """Counts files instead of the bytes written."""

    def __init__(self, name, options, content_bytes, **more):
        super().__init__(name, options, **more)
        self.content_bytes = content_bytes

    def measure(self):
        sample = super().measure()
        sample.bytes = self.content_bytes
        return sample


def run(options, _tmpfs):
    count = max(2 * FOLDER_FILES, int(FILES * options.scale))
    options.dir.mkdir(parents=True, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="pack-", dir=options.dir) as folder:
        source = Path(folder) / "source"
        make(source, count)
        for title, before in (("in memory", remember), ("on a cold disk", forget)):
            listed = contenders(Path(folder), source, count, before)
            rows = race(chosen(listed, options), options.runs)
            limit = next((row for row in rows if row.name == LIMIT and row.samples), None)
            results.append(
                Result(f"Packing {count} files {title}", rows, limit, "the limit", unit=FILES_UNIT)
            )
    return results


def make(source, count):
    for index in range(count):
        folder = source / f"{index // FOLDER_FILES:04}"
        if index % FOLDER_FILES == 0:
            folder.mkdir(parents=True)
        (folder / f"{index:08}.jpg").write_bytes(os.urandom(FILE_BYTES))
    os.sync()


def contenders(folder, source, count, before):
    def packer(name, op, note, python):
        target = folder / f"target-{op}"
        job = {"source": str(source), "target": str(target), "objects": count, "object_bytes": FILE_BYTES}
        argv = [python, "-m", "clients.worker", "pack", op, json.dumps(job)]
        return Packer(name, argv, lambda: before(source), note=note, cwd=tools.BENCH)

    python = tools.ensure_venv("stream")
    written = folder / "fio"
    write = [f"--filename={written}", f"--size={count * MEMBER_BYTES}", "--rw=write", "--bs=4m"]
    write += ["--iodepth=8", "--end_fsync=1"]
    return [
        Limit(LIMIT, write, count * FILE_BYTES, note="4 MiB, depth 8; fsync included", fresh=written),
        packer("Forebay", "forebay", "durable; with a manifest", python),
        packer("GNU tar", "tar", "one tar; not synced", python),
        packer("GNU tar, synced", "tar_synced", "one tar; sync included", python),
        packer("GNU tar, side by side", "tar_side_by_side", "one per core; not synced", python),
        packer("webdataset ShardWriter", "webdataset", "not synced; importing included", python),
    ]
