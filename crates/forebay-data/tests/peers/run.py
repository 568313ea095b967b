"""Runs the tests of this folder; `cargo xtask test --peers` does so where the libraries are.

    python run.py --programs target/debug [--filter TEXT] test_wds test_mds ...

Needs the `forebay` package, the programs `forebay`, `examples/mds_peer` and `examples/wds_peer` in the folder
of `--programs`, and the libraries that the named tests import. Ends with 0 when all agree.
"""

import argparse
import faulthandler
import os
import sys
import tempfile
import unittest
from pathlib import Path

import kit

SECONDS_MAX = 1200
"""Nobody waits longer for a reader that hangs; all tests of an environment take a few minutes."""


def main():
    """Run what the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--filter")
    parser.add_argument("modules", nargs="+")
    options = parser.parse_args()
    kit.PROGRAMS = options.programs.resolve()
    faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
    loader = unittest.TestLoader()
    if options.filter:
        loader.testNamePatterns = [f"*{options.filter}*"]
    with tempfile.TemporaryDirectory(prefix="forebay-peers-") as folder:
        # Some libraries write to fixed names below the folder for temporary files, and leave them there.
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        suite = loader.loadTestsFromNames(options.modules)
        result = unittest.TextTestRunner(verbosity=2).run(suite)
    # With a filter there may be none in this environment; without one that would be a mistake.
    return 0 if result.wasSuccessful() and (result.testsRun or options.filter) else 1


if __name__ == "__main__":
    sys.exit(main())
