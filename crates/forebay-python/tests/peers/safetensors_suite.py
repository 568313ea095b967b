"""The safetensors library's own tests, against `forebay.safetensors`: `python safetensors_suite.py SDIST`.

SDIST is a source distribution of the library. Its tests are unpacked into a folder of their own with nothing
changed but the names of the modules they import, and run by unittest; those about frameworks other than torch
and numpy are left out.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

MODULES = [
    "test_handle",
    "test_multithreaded",
    "test_pread_backend",
    "test_pt_comparison",
    "test_pt_model",
    "test_simple",
    "test_threadable",
]
IMPORT = re.compile(r"^( *)from safetensors(\.torch|\.numpy)? import", re.MULTILINE)

# So many there were in the version that was looked at; fewer mean that they were not found.
TESTS_MIN = 60


def unpack(sdist: Path, folder: Path) -> None:
    """Write the tests, with the imports of `forebay.safetensors`."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            name = Path(member.name).stem
            if "/tests/" not in member.name or name not in MODULES:
                continue
            file = archive.extractfile(member)
            assert file is not None, member.name
            text = IMPORT.sub(r"\1from forebay.safetensors\2 import", file.read().decode())
            (folder / f"{name}.py").write_text(text)
    # Some tests write to where they expect to be run.
    (folder / "tests" / "data").mkdir(parents=True)


def suite() -> unittest.TestSuite:
    """Collect the cases of all modules, and their plain functions."""
    tests = unittest.TestSuite()
    for name in MODULES:
        module = importlib.import_module(name)
        tests.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
        functions = (value for key, value in vars(module).items() if key.startswith("test_"))
        tests.addTests(unittest.FunctionTestCase(function) for function in functions)
    return tests


def main() -> int:
    """Run them; the exit status says how it went."""
    with tempfile.TemporaryDirectory(prefix="forebay-safetensors-") as folder:
        unpack(Path(sys.argv[1]), Path(folder))
        os.chdir(folder)
        sys.path.insert(0, folder)
        tests = suite()
        count = tests.countTestCases()
        result = unittest.TextTestRunner(verbosity=1).run(tests)
    if count < TESTS_MIN:
        print(f"only {count} tests were found", file=sys.stderr)
        return 1
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
