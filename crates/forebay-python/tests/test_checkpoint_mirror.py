"""Mirrors of checkpoints: what becomes of those that fail, and of near places that are damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forebay
import pytest

numpy = pytest.importorskip("numpy")


def test_mirrors_that_fail_and_places_that_rot_are_told(tmp_path: Path, script: Any) -> None:
    (tmp_path / "file").write_text("no folder")
    done = script(
        """
        import sys, numpy, forebay
        ckpt = forebay.Checkpointer(sys.argv[1], mirror=sys.argv[2])
        ckpt.save(1, {"w": numpy.ones(10)}).wait()
        """,
        str(tmp_path / "near"),
        str(tmp_path / "file"),
    )
    assert "forebay: old checkpoints were not removed, or new ones not copied" in done.stderr
    place, far = tmp_path / "run", tmp_path / "far"
    with forebay.Checkpointer(place, mirror=far) as ckpt:
        ckpt.save(1, {"w": numpy.arange(1000)}).wait()
        ckpt.drain()
        (payload,) = place.rglob("*.safetensors")
        data = bytearray(payload.read_bytes())
        data[-9] ^= 1
        payload.write_bytes(data)
        with pytest.warns(UserWarning, match=r"not from .*: corrupt data.*; it was taken from another place"):
            assert ckpt.load(framework="numpy")["w"][9] == 9
