"""Training examples: stopped, resumed by another number of processes, with the same losses bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[3] / "examples"


def train(name: str, folder: Path, *options: str) -> list[float]:
    losses = folder / "losses.json"
    command = [sys.executable, str(EXAMPLES / name), str(folder), "--losses", str(losses), *options]
    subprocess.run(command, check=True, timeout=300)
    return json.loads(losses.read_text())  # type: ignore[no-any-return]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["train_images.py", "train_tokens.py"])
def test_losses_are_the_same_at_another_world_size(name: str, tmp_path: Path) -> None:
    whole = train(name, tmp_path, "--steps", "20")
    first = train(name, tmp_path, "--steps", "7", "--world", "2")
    rest = train(name, tmp_path, "--steps", "20", "--world", "4", "--resume")
    assert first + rest == whole
    assert whole[-1] < whole[0]
