"""bf16 weights saved to a store behind 200 MB/s, as they are and compressed.

The store is SeaweedFS on tmpfs, which shares the cores; a proxy between holds the rate. Weights are drawn
from normal distributions, whose exponents are about as predictable as those of trained ones.
"""

import json
from contextlib import contextmanager

from harness import servers, tools
from harness.fresh import Fresh
from harness.jobs import MIB
from harness.loaders import Named, made
from harness.rounds import race
from suites.load import table, with_forebay

STATE_BYTES = 500_000_000
RATE = 200_000_000
RAW = "Forebay, as it is"

SAVES = [
    (RAW, "save_far", ""),
    ("Forebay, compressed", "save_far_compressed", "compress=auto; of the bytes of the state"),
]


def run(options, tmpfs):
    size = max(64 * MIB, int(STATE_BYTES * options.scale))
    with servers.seaweedfs(tmpfs) as store, slowed(store) as server:
        entries = [Named(row[0], lambda row=row: contender(server, size, *row)) for row in SAVES]
        rows = race(made(entries, options), options.runs, warm_ups=0)
    title = f"Save {size / 1e9:.2f} GB of bf16 weights to {store.name} behind {RATE / 1e6:.0f} MB/s"
    return [table(title, rows, RAW)]


@contextmanager
def slowed(store):
    """The store behind a proxy that holds the rate."""
    (port,) = servers.free_ports(1)
    theirs = store.endpoint.rpartition(":")[2]
    argv = [tools.venv_bin("python"), tools.BENCH / "slow_proxy.py", port, theirs, RATE]
    server = servers.Server(store.name, store.folder, port)
    log = store.folder / "proxy.log"
    with servers.daemon([str(word) for word in argv], log, store.folder), servers.daemon_ready(server):
        yield server


def contender(server, size, name, op, note):
    env = with_forebay()
    if env is None:
        return None
    job = {"url": f"s3://{servers.BUCKET}/run", "bytes": size}
    argv = [tools.ensure_venv("load"), "-m", "clients.ckpt", op, json.dumps(job)]
    return Fresh(name, argv, 1, size, note=note, env={**env, **server.env}, cwd=tools.BENCH)
