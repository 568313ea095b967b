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


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, check=True, timeout=300, capture_output=True, text=True).stdout


@pytest.mark.timeout(600)
def test_a_loop_that_is_preempted_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def losses(place: str, *options: str) -> list[float]:
        told = tmp_path / "losses.json"
        run("checkpoint_loop.py", str(tmp_path / place), "--losses", str(told), *options)
        return json.loads(told.read_text())  # type: ignore[no-any-return]

    whole = losses("whole", "--steps", "30")
    command = [sys.executable, str(EXAMPLES / "checkpoint_loop.py"), str(tmp_path / "run"), "--steps", "30"]
    told = tmp_path / "first.json"
    first = subprocess.Popen(
        [*command, "--every", "1", "--losses", str(told)], stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    for _ in range(3):
        assert first.stdout.readline().startswith("step")
    first.terminate()
    first.communicate(timeout=100)
    assert first.returncode == 0
    done = json.loads(told.read_text())
    assert done == whole[: len(done)]
    # Unless it was over before the signal came.
    if len(done) < 30:
        assert losses("run", "--steps", "30") == whole[len(done) :]


@pytest.mark.timeout(600)
def test_fsdp2_goes_on_with_other_ranks(tmp_path: Path) -> None:
    whole = run("checkpoint_fsdp2.py", str(tmp_path / "whole"), "--world", "2", "--steps", "6")
    run("checkpoint_fsdp2.py", str(tmp_path / "run"), "--world", "3", "--steps", "3")
    rest = run("checkpoint_fsdp2.py", str(tmp_path / "run"), "--world", "2", "--steps", "6")

    def total(text: str) -> float:
        return float(text.strip().rsplit(" ", 1)[1])

    # Sums over ranks are rounded in another order, so it is not bit for bit.
    assert abs(total(whole) - total(rest)) < 1e-2


def test_a_callback_of_hugging_face_saves_and_restores(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    import torch

    sys.path.insert(0, str(EXAMPLES))
    try:
        from checkpoint_hf import ForebayCallback, restore
    finally:
        sys.path.remove(str(EXAMPLES))

    class State:
        global_step = 0
        epoch = 0.0
        log_history: list[dict[str, float]] = []  # noqa: RUF012

    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    callback = ForebayCallback(str(tmp_path / "run"), every=2)
    state = State()
    for step in range(1, 6):
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        state.global_step, state.log_history = step, [{"loss": float(step)}]
        callback.on_step_end(None, state, None, model=model, optimizer=optimizer)
    callback.on_train_end(None, state, None, model=model, optimizer=optimizer)

    class Other:
        model = torch.nn.Linear(3, 4)
        optimizer = torch.optim.AdamW(model.parameters())

    assert restore(Other, str(tmp_path / "run")) == 5
    assert torch.equal(Other.model.weight, model.weight)
    moments = Other.optimizer.state_dict()["state"][0]["exp_avg"]
    assert torch.equal(moments, optimizer.state_dict()["state"][0]["exp_avg"])


def test_lightning_has_its_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    import torch
    from forebay.lightning import ForebayCheckpointIO

    plugin = ForebayCheckpointIO()
    paths = [tmp_path / f"{name}.ckpt" for name in ("first", "last", "last")]
    for step, path in zip((1, 9, 2), paths, strict=True):
        plugin.save_checkpoint({"global_step": step, "state_dict": {"w": torch.full((9,), step)}}, path)
    # What was saved last counts, not the highest step; and what it replaced is gone.
    assert plugin.load_checkpoint(paths[1])["state_dict"]["w"][0] == 2
    assert len(list(paths[1].rglob("*.safetensors"))) == 1
    plugin.remove_checkpoint(paths[0])
    assert not paths[0].exists()
    plugin.teardown()
