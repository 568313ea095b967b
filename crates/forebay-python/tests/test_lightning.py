"""Checkpoints of Lightning: what its Trainer saves through us, it goes on from."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import forebay
import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning.pytorch")

from forebay.lightning import ForebayCheckpointIO  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Notes the losses of its steps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)
        self.losses: list[float] = []

    def training_step(self, batch: Any, _: int) -> Any:
        loss = self.layer(batch[0]).square().mean()
        self.losses.append(float(loss))
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]

    def train_dataloader(self) -> Any:
        made = torch.Generator().manual_seed(2)
        data = torch.utils.data.TensorDataset(torch.randn(12, 4, generator=made))
        return torch.utils.data.DataLoader(data, batch_size=4)


def fit(folder: Path, epochs: int, resume: Path | None = None) -> Model:
    plugin = ForebayCheckpointIO()
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        callbacks=[ModelCheckpoint(folder, filename="{epoch}", save_last=True, save_top_k=1)],
        plugins=[plugin],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, ckpt_path=None if resume is None else str(resume))
    return model


def test_a_trainer_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", 4)
    first = fit(tmp_path / "cut", 2)
    assert first.losses == whole.losses[: len(first.losses)]
    last = tmp_path / "cut" / "last.ckpt"
    # It is a checkpoint like any other.
    saved = forebay.Checkpointer(last, rank=0, world=1).load()
    assert torch.equal(saved["state_dict"]["layer.weight"], first.layer.weight)
    assert forebay.Checkpointer(last, rank=0, world=1).verify()["is_whole"]
    rest = fit(tmp_path / "cut", 4, last)
    assert first.losses + rest.losses == whole.losses
    assert torch.equal(rest.layer.weight, whole.layer.weight)
    # Of those that are not the last, one is kept: the plug-in removes what Lightning asks it to.
    assert len(list((tmp_path / "cut").glob("epoch=*.ckpt"))) == 1


def test_paths_are_places_with_one_checkpoint(tmp_path: Path) -> None:
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


def test_objects_need_a_word(tmp_path: Path) -> None:
    given = {"w": torch.ones(3), "thing": collections.Counter(a=1)}
    plugin = ForebayCheckpointIO()
    with pytest.raises(forebay.InvalidInputError, match="thing"):
        plugin.save_checkpoint(given, tmp_path / "a")
    plugin = ForebayCheckpointIO(allow_pickle=True)
    plugin.save_checkpoint(given, tmp_path / "a")
    assert plugin.load_checkpoint(tmp_path / "a", map_location="cpu")["thing"] == {"a": 1}
    with pytest.raises(forebay.UnsupportedError, match="pickle"):
        plugin.load_checkpoint(tmp_path / "a", weights_only=True)
    plugin.teardown()
