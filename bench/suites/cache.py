"""A cache hit of a 64 MiB shard against a plain read of the same bytes from the same disk; hits are
verified, the others are not.
"""

import os
import tempfile
from pathlib import Path

from harness.fio import Fio
from harness.jobs import MIB, chosen, forebay_rust, write_random
from harness.result import Result
from harness.rounds import race

SHARDS = 16
SHARD_BYTES = 64 * MIB
PLAIN = "Forebay, plain local read"


def run(options, _tmpfs):
    shards = max(2, int(SHARDS * options.scale))
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cache-", dir=options.dir) as folder:
        origin, cache = Path(folder) / "origin", Path(folder) / "cache"
        origin.mkdir()
        keys = [f"shard-{index:02}" for index in range(shards)]
        for key in keys:
            write_random(origin / key, SHARD_BYTES)
        os.sync()
        job = {"folder": str(origin), "keys": keys, "object_bytes": SHARD_BYTES, "cache": str(cache)}
        files = ":".join(str(origin / key) for key in keys)
        arguments = [
            f"--filename={files}",
            "--file_service_type=sequential",
            "--rw=read",
            "--bs=4m",
            "--iodepth=8",
        ]
        listed = [
            forebay_rust("Forebay, cache hit", "files-cache", job, note="shard by shard; every byte checked"),
            forebay_rust(PLAIN, "files-local", job, note="the local store; shard by shard"),
            forebay_rust("Forebay, disk alone", "files-disk", job, note="one span per shard; shard by shard"),
            Fio("fio bs 4 MiB, depth 8", arguments, "file after file without a pause"),
        ]
        rows = race(chosen(listed, options), options.runs)
    plain = next((row for row in rows if row.name == PLAIN and row.samples), None)
    return [Result("Cache hit of 64 MiB shards", rows, plain, "plain read")]
