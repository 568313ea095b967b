"""10,000 objects of 4 KiB, listed and copied: SeaweedFS to a directory on disk and on tmpfs, and a
directory to SeaweedFS.
"""

import tempfile
from pathlib import Path

from harness import servers
from harness.jobs import chosen, python_client, write_random
from harness.result import Result
from harness.rounds import race
from harness.table import objects_of

OBJECTS = 10_000
OBJECT_BYTES = 4096
IN_FLIGHT = 32
REFERENCE = "rclone"


def run(options, tmpfs):
    count = max(100, int(OBJECTS * options.scale))
    source = tmpfs / "small"
    source.mkdir()
    for index in range(count):
        write_random(source / f"{index:05}", OBJECT_BYTES)
    job = {"keys": ["small"], "object_bytes": OBJECT_BYTES, "objects": count, "in_flight": IN_FLIGHT}
    options.dir.mkdir(parents=True, exist_ok=True)
    with (
        servers.seaweedfs(tmpfs) as server,
        tempfile.TemporaryDirectory(prefix="small-", dir=options.dir) as disk,
    ):
        servers.tool(server, "seed", source)
        results = [
            download(options, server, job, Path(disk), "disk"),
            download(options, server, job, tmpfs / "down", "tmpfs"),
            upload(options, server, job, source),
        ]
        for key in ("forebay", "s5cmd", "rclone"):
            if not options.only or any(word in key for word in options.only.split(",")):
                servers.tool(server, "count", f"up-{key}-{options.runs}/", count)
    return results


def download(options, server, job, folder, medium):
    def client(name, op, note):
        return python_client(name, "cli", op, {**job, "target": str(folder / op)}, server, note)

    listed = [
        client("Forebay cp", "down_forebay", "every byte checked; files and their directory durable (fsync)"),
        client("rclone", "down_rclone", "checks MD5; no fsync"),
        client("s5cmd", "down_s5cmd", "no check; no fsync"),
    ]
    return told(f"SeaweedFS to a directory on {medium}", race(chosen(listed, options), options.runs))


def upload(options, server, job, source):
    def client(name, key, note):
        work = {**job, "source": str(source), "target_key": f"up-{key}"}
        return python_client(name, "cli", f"up_{key}", work, server, note)

    listed = [
        client("Forebay cp", "forebay", "checksum compared by the server, or read back"),
        client("rclone", "rclone", "MD5 sent"),
        client("s5cmd", "s5cmd", ""),
    ]
    return told("A directory on tmpfs to SeaweedFS", race(chosen(listed, options), options.runs))


def told(title, rows):
    reference = next((row for row in rows if row.name == REFERENCE and row.samples), None)
    return Result(title, rows, reference, REFERENCE, unit=objects_of(OBJECT_BYTES))
