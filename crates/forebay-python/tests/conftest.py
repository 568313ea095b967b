"""What the tests share: places to store things, fresh interpreters, the S3 server where there is one."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if "FOREBAY_STATE_DIR" not in os.environ:
    # State of probes must not go to the home of whoever runs the tests. Forked children leave it alone.
    state = tempfile.mkdtemp(prefix="forebay-tests-")
    os.environ["FOREBAY_STATE_DIR"] = state
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(state, ignore_errors=True))

Script = Callable[..., subprocess.CompletedProcess[str]]


def s3_settings() -> dict[str, str] | None:
    """Environment for the S3 server of the tests, or None where there is none."""
    endpoint = os.environ.get("FOREBAY_TEST_S3_ENDPOINT")
    if not endpoint:
        return None
    return {
        "FOREBAY_S3_ENDPOINT": endpoint,
        "FOREBAY_S3_REGION": os.environ.get("FOREBAY_TEST_S3_REGION", "us-east-1"),
        "FOREBAY_S3_ADDRESSING": "path",
        "AWS_ACCESS_KEY_ID": os.environ["FOREBAY_TEST_S3_ACCESS_KEY"],
        "AWS_SECRET_ACCESS_KEY": os.environ["FOREBAY_TEST_S3_SECRET_KEY"],
    }


@pytest.fixture(scope="session")
def s3_prefix() -> str:
    """A prefix of our own in the bucket of the test server: ``bucket/prefix``."""
    settings = s3_settings()
    if settings is None:
        if os.environ.get("FOREBAY_TEST_REQUIRE_SERVERS"):
            pytest.fail("FOREBAY_TEST_S3_ENDPOINT is not set, but servers are required")
        pytest.skip("no S3 server: FOREBAY_TEST_S3_ENDPOINT is not set")
    os.environ.update(settings)
    return f"{os.environ['FOREBAY_TEST_S3_BUCKET']}/python-{uuid.uuid4().hex}"


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    """Run a script in a fresh interpreter."""

    def run(source: str, *args: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source), *args],
            cwd=tmp_path,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
