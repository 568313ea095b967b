"""The first epoch from a store, and the second from the cache: 20,000 images as in the suite `stream`,
tar shards of 256 MiB with their manifest, on the plain server and on SeaweedFS, their data on tmpfs.

A first epoch is held against plain GETs of the same shards, which is what `forebay bench store` measures;
a second one, from a cache on the disk, against the same data set in a folder of that disk. Neither is in
memory: the page cache of both is dropped before each round.
"""

import json
import shutil
import tempfile
from pathlib import Path

from clients.make_samples import images_bytes
from harness import servers, tools
from harness.contender import Worker
from harness.fresh import check, forget
from harness.jobs import IN_FLIGHT, MIB, RANGE_BYTES, chosen
from harness.loaders import BATCH, Loaders, Sets
from harness.rounds import race, talk

SAMPLES = 20_000
SHARD_BYTES = 256 * MIB
SHARDS_MIN = 8
OBJECT_BYTES = 64 * MIB
"""Of `forebay bench store`: longer shards are read in pieces of that size."""

BLOCK_BYTES = 2 * MIB
"""Of a shuffled stream, by default."""
LONG_BLOCKS = {"block_bytes": 8 * MIB, "lanes": 16}
"""In the same memory, a window of two blocks for each lane."""

PLAIN = "Forebay, GET alone"
LOCAL = "Forebay, Rust, local folder"


class Served(Worker):
    """Also tells what the server did for it: CPU time, and bytes over loopback for each that was wanted. More
    than one of these is what the server asks itself for.
    """

    def __init__(self, name, argv, server, **more):
        super().__init__(name, argv, env=server.env, **more)
        self.server = server

    def measure(self):
        cpu_s, loopback_bytes = self.server.cpu_s(), servers.loopback_bytes()
        sample = super().measure()
        sample.extra["server_cpu_per_gb"] = (self.server.cpu_s() - cpu_s) / (sample.bytes / 1e9)
        sample.extra["loopback_per_byte"] = (servers.loopback_bytes() - loopback_bytes) / sample.bytes
        return sample


class Stream(Served):
    """Lives for the whole suite, so that its cache is filled once."""

    def __init__(self, name, argv, server, sets, **more):
        super().__init__(name, argv, server, **more)
        self.sets = sets

    def measure(self):
        forget(Path(self.sets.folder))
        sample = super().measure()
        check(sample, self.sets.count, self.sets.payload_bytes)
        return sample


def run(options, tmpfs):
    count = max(1000, int(SAMPLES * options.scale))
    payload_bytes = images_bytes(count)
    options.dir.mkdir(parents=True, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="stores-", dir=options.dir) as folder:
        sets = Sets("images", folder, count, payload_bytes, min(SHARD_BYTES, payload_bytes // SHARDS_MIN))
        local = sets.index("tar")
        served = tmpfs / "data"
        shutil.copytree(local, served)
        with servers.sendfile(tmpfs, served) as server:
            results += measure(options, server, sets, served, Path(folder))
        if not tools.venv_bin("weed").exists():
            talk("SeaweedFS is left out: it is not installed")
            return results
        with servers.seaweedfs(tmpfs) as server:
            servers.tool(server, "seed", *sorted(served.iterdir()))
            results += measure(options, server, sets, served, Path(folder))
    return results


def measure(options, server, sets, served, disk):
    first = race(chosen(first_epoch(server, sets, served, disk), options), options.runs)
    second = race(chosen(second_epoch(server, sets, disk), options), options.runs)
    title = f"{sets.count} images, shuffled"
    return [
        First(f"{title}: first epoch from {server.name}", first, PLAIN, "of GET alone"),
        Against(f"{title}: second epoch, cached from {server.name}", second, LOCAL, "of local"),
    ]


def first_epoch(server, sets, served, disk):
    get = {
        "keys": sorted(path.name for path in served.glob("*.tar")),
        "object_bytes": OBJECT_BYTES,
        "range_bytes": RANGE_BYTES,
        "in_flight": IN_FLIGHT,
        "expect": str(served),
    }
    note = "whole shards, as `forebay bench store` reads; every byte checked"
    listed = [Served(PLAIN, [tools.FOREBAY_BENCH, "get", json.dumps(get)], server, note=note)]
    # What the server makes of requests as long as a shuffled stream's blocks are.
    in_flight = IN_FLIGHT * RANGE_BYTES // BLOCK_BYTES
    short = json.dumps(get | {"range_bytes": BLOCK_BYTES, "in_flight": in_flight})
    note = "the same in ranges of 2 MiB, as long as blocks of a stream are"
    listed.append(Served(f"{PLAIN}, 2 MiB", [tools.FOREBAY_BENCH, "get", short], server, note=note))
    # A stream asks for them in no order, and its blocks do not begin where a server's chunks do.
    mixed = json.dumps(get | {"range_bytes": BLOCK_BYTES, "in_flight": in_flight, "shuffled": True})
    note = "the same ranges in no order, not aligned"
    argv = [tools.FOREBAY_BENCH, "get-ranges", mixed]
    listed.append(Served(f"{PLAIN}, 2 MiB, shuffled", argv, server, note=note))
    url = f"s3://{servers.BUCKET}/"
    listed += stream(server, sets, "Forebay, Rust", url)
    listed += stream(server, sets, "Forebay, Python", url)
    listed += stream(server, sets, "Forebay, Rust, blocks of 8 MiB", url, **LONG_BLOCKS)
    filling = {"cache": str(disk / "cache-filling"), "fill": 1}
    listed += stream(server, sets, "Forebay, Rust, filling a cache", url, **filling)
    return listed


def second_epoch(server, sets, disk):
    url = f"s3://{servers.BUCKET}/"
    # A cache of its own for each: two that fill one at the same time would help each other.
    name = server.name.replace(" ", "-")
    listed = stream(server, sets, LOCAL, f"file://{sets.get('tar')}/")
    listed += stream(server, sets, "Forebay, Rust, cache", url, cache=str(disk / f"cache-rust-{name}"))
    listed += stream(server, sets, "Forebay, Python, local folder", f"file://{sets.get('tar')}/")
    listed += stream(server, sets, "Forebay, Python, cache", url, cache=str(disk / f"cache-python-{name}"))
    return listed


def stream(server, sets, name, url, **more):
    """A contender as a list; an empty one where no Python has Forebay."""
    if "Python" not in name:
        argv = [tools.FOREBAY_BENCH, "stream", json.dumps({"url": url, "batch_size": BATCH, **more})]
        return [Stream(name, argv, server, sets)]
    python = tools.forebay_python()
    if python is None:
        return []
    argv = [python, "-m", "clients.drain", "stream_forebay", sets.kind]
    argv.append(json.dumps({"url": url, "count": sets.count, **more}))
    return [Stream(name, argv, server, sets, cwd=tools.BENCH)]


class Against(Loaders):
    """Loaders against one row of their table."""

    extras = (("first batch s", "first_batch_s", 3),)

    def __init__(self, title, rows, reference, head):
        found = next((row for row in rows if row.name == reference and row.samples), None)
        super().__init__(title, rows, found, head)

    def heads(self):
        return [(self.reference_name, self.reference)]


class First(Against):
    """With what the server did for it."""

    extras = (
        *Against.extras,
        ("server CPU s/GB", "server_cpu_per_gb", 2),
        ("loopback bytes per byte", "loopback_per_byte", 2),
    )
