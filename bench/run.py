"""Side-by-side benchmarks: `python bench/run.py SUITE [--runs 5] [--json FILE]`; `setup` makes what they
need.

Suites: disk, get, put, cache, small, memory, images, stream, tokens, stores-stream, pack, load, ckpt,
ckpt-far, or `all`. Tables go to stdout as Markdown, progress to stderr, every single round into the JSON
file. Servers listen on loopback only; data lies on tmpfs unless the disk is the subject. See
docs/benchmarks.md for the method.
"""

import argparse
import importlib
import json
import signal
import sys
import tempfile
from pathlib import Path

from harness import machine, tools
from harness.rounds import talk

SUITES = ["disk", "get", "put", "cache", "small", "memory", "images"]
SUITES += ["stream", "tokens", "stores-stream", "pack", "load", "ckpt", "ckpt-far"]
TMPFS = Path("/dev/shm")


def main():
    options = arguments()
    # Ended from outside, it still stops its servers and removes its data.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.suite == "setup":
        tools.ensure_venv()
        tools.ensure_programs()
        return 0
    if not options.no_build:
        tools.ensure_venv()
        tools.ensure_programs()
    suites = SUITES if options.suite == "all" else [options.suite]
    report = {"machine": machine.facts(), "versions": {}, "suites": {}}
    failed = False
    for suite in suites:
        report["suites"][suite], suite_failed = run_suite(suite, options)
        failed |= suite_failed
        # Suites make environments of their own.
        report["versions"] = machine.versions()
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failed else 0


def run_suite(suite, options):
    """One suite, its tables printed; the second value tells whether Forebay itself failed in it."""
    load_before = machine.load()
    talk(f"suite {suite}, load {load_before}")
    module = importlib.import_module(f"suites.{suite.replace('-', '_')}")
    with tempfile.TemporaryDirectory(prefix="forebay-bench-", dir=TMPFS) as tmpfs:
        results = module.run(options, Path(tmpfs))
    load_after = machine.load()
    for result in results:
        print(result.markdown(), flush=True)
    print(
        f"Median of {options.runs}; load average before {load_before[0]}, after {load_after[0]}.\n",
        flush=True,
    )
    rows = [row for result in results for row in result.rows]
    failed = any(row.failure for row in rows if row.name.startswith("Forebay"))
    kept = {
        "runs": options.runs,
        "scale": options.scale,
        "load_before": load_before,
        "load_after": load_after,
        "tables": [result.as_json() for result in results],
    }
    return kept, failed


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", choices=[*SUITES, "all", "setup"])
    parser.add_argument("--runs", type=int, default=5, help="counted rounds (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="sizes times this; below 1 for a smoke test")
    parser.add_argument(
        "--only", default="", help="only contenders whose name contains one of these, comma separated"
    )
    parser.add_argument(
        "--workers",
        type=lambda text: [int(word) for word in text.split(",")],
        help="every peer with each of these numbers of workers, to choose from (stream, tokens)",
    )
    parser.add_argument(
        "--dir", type=Path, default=tools.MADE, help="folder on the disk to measure (default target/bench)"
    )
    parser.add_argument("--json", type=Path, help="keep every round here")
    parser.add_argument("--no-build", action="store_true", help="use what is built already")
    options = parser.parse_args()
    if options.runs < 1 or not 0 < options.scale <= 1:
        parser.error("--runs is at least 1, --scale above 0 and at most 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
