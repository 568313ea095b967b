"""Training examples: stopped, resumed by another number of processes, with the same losses bit for bit."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def test_a_callback_of_hugging_face_saves_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if importlib.util.find_spec("transformers") is None:
        # All that the example takes from there is the class of callbacks.
        monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=object))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from checkpoint_hf import ForebayCallback

    def train(seed: int, max_steps: int) -> tuple[int, Any, Any]:
        """As the Trainer does: what is trained is made before the callbacks are told."""
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        parts = {"model": model, "optimizer": optimizer, "lr_scheduler": schedule}
        callback = ForebayCallback(str(tmp_path / "run"), every=2)
        state = SimpleNamespace(global_step=0, epoch=0.0, log_history=[])
        callback.on_train_begin(None, state, None, **parts)
        first = state.global_step
        while state.global_step < max_steps:
            model(torch.ones(3)).square().sum().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            state.global_step += 1
            state.log_history = [{"loss": float(state.global_step)}]
            callback.on_step_end(None, state, None, **parts)
        callback.on_train_end(None, state, None, **parts)
        return first, model, optimizer.state_dict()

    assert train(1, 5)[0] == 0
    first, model, moments = train(2, 9)
    assert first == 5
    shutil.rmtree(tmp_path / "run")
    _, expected, expected_moments = train(1, 9)
    assert torch.equal(model.weight, expected.weight)
    assert torch.equal(moments["state"][0]["exp_avg"], expected_moments["state"][0]["exp_avg"])
    assert moments["param_groups"][0]["lr"] == expected_moments["param_groups"][0]["lr"]
