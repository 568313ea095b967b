"""Streams for PyTorch, where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_stream import keys, names, write_shard

pytest.importorskip("torch")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number in range(4):
        write_shard(tmp_path / f"train-{number:03}.tar", number)
    return tmp_path


def test_loaders_give_and_resume_batches(data: Path) -> None:
    from forebay.torch import StreamLoader

    with StreamLoader(data, batch_size=10, shuffle=True, lanes=4) as loader:
        assert len(loader) == 12
        begun = next(loader)["__key__"].list()
        state = loader.state_dict()
    with StreamLoader(data, batch_size=10, shuffle=True, lanes=4) as loader:
        loader.load_state_dict(state)
        assert sorted(begun + names(loader)) == keys()  # type: ignore[arg-type]
        assert loader.report()["samples"] == len(keys()) - 10


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_share_the_samples(data: Path, workers: int) -> None:
    from forebay.torch import StreamDataset
    from torch.utils.data import DataLoader

    dataset = StreamDataset(
        data, batch_size=5, shuffle=True, lanes=8, transform=lambda b: b["__key__"].list()
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    assert sorted(key for batch in loader for key in batch) == keys()
