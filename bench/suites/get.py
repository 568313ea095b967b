"""Parallel ranged GET of 16 x 64 MiB objects, 8 MiB ranges, 16 in flight, from SeaweedFS and from the
plain server.
"""

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

OBJECTS = 16
OBJECT_BYTES = 64 * MIB
REFERENCE = "object_store stream, copied"


def run(options, tmpfs):
    objects = max(2, int(OBJECTS * options.scale))
    data = tmpfs / "data"
    data.mkdir()
    job = {
        "keys": [f"get-{index:02}" for index in range(objects)],
        "object_bytes": OBJECT_BYTES,
        "range_bytes": RANGE_BYTES,
        "in_flight": IN_FLIGHT,
        "expect": str(data),
    }
    for key in job["keys"]:
        write_random(data / key, OBJECT_BYTES)
    results = []
    with servers.sendfile(tmpfs, data) as server:
        results.append(measure(options, server, job, tmpfs))
    with servers.seaweedfs(tmpfs) as server:
        servers.tool(server, "seed", *(data / key for key in job["keys"]))
        results.append(measure(options, server, job, tmpfs))
    return results


def measure(options, server, job, tmpfs):
    rows = race(chosen(contenders(server, job, tmpfs), options), options.runs)
    reference = next((row for row in rows if row.name == REFERENCE and row.samples), None)
    return Result(f"GET from {server.name}", rows, reference, "object_store")


def contenders(server, job, tmpfs):
    for_python = {name: value for name, value in job.items() if name != "expect"}

    def python(name, module, note="", op="get", python=None, **more):
        return python_client(name, module, op, {**for_python, **more}, server, note, python)

    def cli(name, op, note):
        return python(name, "cli", note, op, target=str(tmpfs / f"target-{op}"))

    listed = [
        forebay_rust(
            "Forebay, Rust", "get", job, server, "page-aligned leases; every byte checked (CRC-64/NVME)"
        ),
        rust_peer(REFERENCE, "get-stream", job, server, "page-aligned buffers, used again; not checked"),
        rust_peer(
            "object_store stream, dropped", "get-stream-drop", job, server, "bytes go nowhere; not checked"
        ),
        rust_peer("object_store get_range", "get-range", job, server, "joined by the crate; not checked"),
        python("obstore", "with_obstore", "memory of the crate"),
        python("boto3, 16 threads", "with_boto3", "memory from malloc; no buffer can be given"),
        python("awscrt", "with_awscrt", "a callback per part, bytes dropped"),
        python("s3torchconnectorclient", "with_s3torch", "an iterator of parts, bytes dropped"),
        cli("s5cmd", "get_s5cmd", "start-up included; writes files on tmpfs"),
        cli("rclone", "get_rclone", "start-up included; writes files on tmpfs; checks MD5"),
        python("s3fs", "with_s3fs", "asyncio; memory from malloc"),
    ]
    if server.name == "the plain server":
        listed.insert(
            1,
            rust_peer("plain sockets", "get-raw", job, server, "16 threads, page-aligned buffers, unsigned"),
        )
    if python_with_forebay := tools.forebay_python():
        wheel = python("Forebay, Python", "with_forebay", "page-aligned leases", python=python_with_forebay)
        listed.insert(1, wheel)
    return listed
