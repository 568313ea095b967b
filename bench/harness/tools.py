"""Where things are, and how they are made: the environment of the peers and the Rust contenders.

Everything made lies under `target/`, which git ignores: `target/bench/venv` with the packages pinned in
`requirements.txt`, and the two Rust programs among the other release builds.

`python -m harness.tools stream tf` makes the environments of these suites, for others who need the peers.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent
MADE = ROOT / "target" / "bench"
VENV = MADE / "venv"
STAMP = VENV / "stamp.txt"
RELEASE = ROOT / "target" / "release"

PEERS = RELEASE / "forebay-bench-peers"
FOREBAY_BENCH = RELEASE / "forebay-bench"
FOREBAY = RELEASE / "forebay"


def venv_bin(name):
    """A program of the peers' environment."""
    return VENV / "bin" / name


def ensure_venv(suite=None):
    """Make the peers' environment hold exactly what the requirements say, and return its Python.

    A suite whose peers are large has an environment of its own: `requirements-SUITE.txt`.
    """
    requirements = BENCH / f"requirements{tail(suite)}.txt"
    venv = VENV.with_name(VENV.name + tail(suite))
    python, stamp = venv / "bin" / "python", venv / STAMP.name
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return python
    run([sys.executable, "-m", "venv", "--clear", venv])
    uv = shutil.which("uv")
    if uv is None:
        run([python, "-m", "pip", "install", "--quiet", "uv"])
        uv = venv / "bin" / "uv"
    run(
        [uv, "pip", "install", "--quiet", "--require-hashes", "-r", requirements],
        env={"VIRTUAL_ENV": str(venv)},
    )
    stamp.write_text(requirements.read_text())
    return python


def ensure_programs():
    """Build the Rust contenders and the `forebay` program, all with the release profile of the project."""
    target = ["--release", "--quiet", "--target-dir", ROOT / "target"]
    run(["cargo", "build", *target, "--locked", "--manifest-path", BENCH / "peers" / "Cargo.toml"])
    # Its lock follows the crates of the project, which change more often than anybody runs benchmarks.
    run(["cargo", "build", *target, "--manifest-path", BENCH / "forebay-bench" / "Cargo.toml"])
    run(["cargo", "build", *target, "--locked", "--manifest-path", ROOT / "Cargo.toml", "-p", "forebay-cli"])


def forebay_python():
    """A Python that can import forebay: this one (under `cargo xtask bench`), or that of the checkout's
    `.venv`.

    `BENCH_FOREBAY_PYTHON` names another one. Whether its wheel is a release build is the caller's
    business.
    """
    named = os.environ.get("BENCH_FOREBAY_PYTHON")
    for python in [Path(named)] if named else [Path(sys.executable), ROOT / ".venv" / "bin" / "python"]:
        if not python.exists():
            continue
        if subprocess.run([python, "-c", "import forebay"], check=False, capture_output=True).returncode == 0:
            return python
    return None


def tail(suite):
    """How the names of a suite's own environment end."""
    return f"-{suite}" if suite else ""


def package_versions(names, suite=None):
    """Versions of packages in the peers' environment, or that of a suite; nothing where it is not made."""
    venv = VENV.with_name(VENV.name + tail(suite))
    if not (venv / STAMP.name).exists():
        return {}
    script = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run(
        [venv / "bin" / "python", "-c", script, *names], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def run(argv, env=None):
    """Run a step of the set-up; its failure ends everything."""
    print("+", *argv, file=sys.stderr, flush=True)
    subprocess.run(argv, check=True, env={**os.environ, **(env or {})}, stdout=sys.stderr)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        ensure_venv(name)
