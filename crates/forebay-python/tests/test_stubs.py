"""The stubs say what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CRATE = Path(__file__).resolve().parent.parent


def test_stubs_agree_with_the_module(tmp_path: Path) -> None:
    pytest.importorskip("mypy.stubtest")
    command = [
        sys.executable,
        "-m",
        "mypy.stubtest",
        "--mypy-config-file",
        str(CRATE / "pyproject.toml"),
        "--allowlist",
        str(CRATE / "stubtest-allowlist.txt"),
        "--ignore-unused-allowlist",
        "forebay._forebay",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_users_types_are_checked(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(
        "import forebay\n"
        "store = forebay.Store('/x', require='direct_uring')\n"
        "reveal_type(store.read('k')[0])\n"
        "view: memoryview = memoryview(store.read('k'))\n"
        "store.write('k', store.read('j'))\n"
        "store.write('k', 'text')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r'Revealed type is "(builtins\.)?int"', done.stdout), done.stdout
    assert "program.py:6: error" in done.stdout, done.stdout
    assert "Found 1 error" in done.stdout, done.stdout
