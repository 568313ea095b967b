"""What the tests share: places to store things, shards, fresh interpreters, the S3 server if there is one."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

if "FOREBAY_STATE_DIR" not in os.environ:
    # State of probes must not go to the home of whoever runs the tests. Forked children leave it alone.
    state = tempfile.mkdtemp(prefix="forebay-tests-")
    os.environ["FOREBAY_STATE_DIR"] = state
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(state, ignore_errors=True))

Script = Callable[..., subprocess.CompletedProcess[str]]

FIXTURES = Path(__file__).parents[3] / "fixtures"

# What the data set of ``data`` has, and samples of each shard.
SHARDS = 4
SAMPLES = 30


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


def value(key: str) -> bytes:
    return (key * (1 + int(key[3:]) % 7)).encode()


def write_shard(path: Path, number: int, samples: int = SAMPLES) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(samples):
            key = f"{number:02}-{index:04}"
            label = {"cls": index, "shard": number}
            for suffix, content in [
                ("bin", value(key)),
                ("cls", str(index).encode()),
                ("json", json.dumps(label).encode()),
                ("txt", f"caption {key}".encode()),
            ]:
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_images(folder: Path) -> None:
    folder.mkdir()
    image = (FIXTURES / "image" / "rgb.jpg").read_bytes()
    with tarfile.open(folder / "images.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(12):
            for suffix, content in [("jpg", image[: None if index != 7 else 50]), ("cls", b"%d" % index)]:
                member = tarfile.TarInfo(f"{index:04}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def keys() -> list[str]:
    return [f"{number:02}-{index:04}" for number in range(SHARDS) for index in range(SAMPLES)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(SHARDS):
        write_shard(folder / f"train-{number:03}.tar", number)
    return folder


def damage(folder: Path, key: str) -> None:
    """Change a sample of the data set."""
    path = folder / f"train-{int(key[:2]):03}.tar"
    path.write_bytes(path.read_bytes().replace(f"caption {key}".encode(), f"CAPTION {key}".encode()))


@contextlib.contextmanager
def out_of_reach(folder: Path) -> Iterator[None]:
    """Have a folder be elsewhere for a while; its files stay what they are."""
    away = folder.rename(folder.with_name("away"))
    try:
        yield
    finally:
        away.rename(folder)


def names(stream: Iterable[Any]) -> list[str]:
    return [key for batch in stream for key in batch["__key__"]]


def contents(batch: Any) -> dict[str, list[Any]]:
    """Give the values of a batch as they compare."""
    return {name: [bytes(v) if isinstance(v, memoryview) else v for v in batch[name]] for name in batch}
