"""Copies between stores, and the cache."""

from __future__ import annotations

import uuid
from pathlib import Path

import forebay
import pytest


def test_an_object_is_copied_and_checked(tmp_path: Path) -> None:
    source = forebay.Store(tmp_path / "a")
    source.write("k", b"x" * 100_000)
    done = forebay.copy(tmp_path / "a" / "k", tmp_path / "b" / "other")
    assert (done.objects, done.bytes) == (1, 100_000)
    assert done.checked_by_store + done.checked_by_read_back == 1
    assert done.ledger.bytes >= 200_000
    assert (tmp_path / "b" / "other").read_bytes() == b"x" * 100_000
    with pytest.raises(forebay.AlreadyExistsError):
        forebay.copy(tmp_path / "a" / "k", tmp_path / "b" / "other", if_absent=True)
    with pytest.raises(FileNotFoundError):
        forebay.copy(tmp_path / "a" / "missing", tmp_path / "b" / "missing")
    with pytest.raises(forebay.InvalidInputError, match="verify"):
        forebay.copy(tmp_path / "a" / "k", tmp_path / "c", verify="maybe")  # type: ignore[arg-type]


def test_a_tree_is_copied(tmp_path: Path) -> None:
    source = forebay.Store(tmp_path / "a")
    for i in range(30):
        source.write(f"d{i % 2}/k{i}", b"%d" % i)
    url = f"mem://{uuid.uuid4().hex}/below"
    done = forebay.copy(tmp_path / "a", url, recursive=True, verify="read_back")
    assert done.objects == done.checked_by_read_back == 30
    target = forebay.Store(url)
    assert [row.key for row in target.list()] == [row.key for row in source.list()]
    assert target.read("d1/k29") == b"29"
    with pytest.raises(FileNotFoundError):
        forebay.copy(tmp_path / "missing", url, recursive=True)


def test_a_cache_keeps_what_was_read(tmp_path: Path) -> None:
    origin = forebay.Store(tmp_path / "origin")
    content = bytes(range(256)) * 40_000
    origin.write("k", content)
    cache = f"{tmp_path / 'cache'}:1GiB"
    store = forebay.Store(tmp_path / "origin", cache=cache, immutable=True)
    assert store.read("k") == content
    # Once everything is in, the origin is not needed any more. Blocks on their way in are copied to the reader, hits are not.
    again = store.read("k")
    while again.ledger.copied_bytes > 0:
        again = store.read("k")
    (tmp_path / "origin" / "k").unlink()
    other = forebay.Store(tmp_path / "origin", cache=cache, immutable=True)
    assert store.read("k") == content
    assert other.url == store.url
    assert any((tmp_path / "cache").rglob("*"))
    for bad in ["/nowhere", ":1GiB", "/x:lots", "/x:1", f"{tmp_path / 'origin'}:1GiB"]:
        with pytest.raises(forebay.InvalidInputError):
            forebay.Store(tmp_path / "origin", cache=bad)
