"""Test data and the contenders of the remote suites."""

import json
import os

from . import tools
from .contender import Worker

MIB = 1 << 20
RANGE_BYTES = 8 * MIB
IN_FLIGHT = 16


def write_random(path, size):
    """A file of incompressible bytes."""
    with open(path, "wb") as file:
        left = size
        while left:
            left -= file.write(os.urandom(min(left, 16 * MIB)))


def chosen(contenders, options):
    """Those the user asked for."""
    words = [word.strip() for word in options.only.split(",") if word.strip()]
    return [one for one in contenders if not words or any(word.lower() in one.name.lower() for word in words)]


def python_client(name, module, op, job, server, note="", python=None):
    """A client driven by `clients/worker.py`."""
    argv = [python or tools.venv_bin("python"), "-m", "clients.worker", module, op, json.dumps(job)]
    return Worker(name, argv, note, env=server.env, cwd=tools.BENCH)


def rust_peer(name, mode, job, server, note=""):
    """A mode of the Rust peers."""
    return Worker(name, [tools.PEERS, mode, json.dumps(job)], note, env=server.env)


def forebay_rust(name, mode, job, server=None, note="", env=None):
    """A mode of Forebay's own measuring program."""
    return Worker(
        name,
        [tools.FOREBAY_BENCH, mode, json.dumps(job)],
        note,
        env={**(server.env if server else {}), **(env or {})},
    )
