"""What becomes of samples that do not fill a batch, on every rank."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import keys

pytest.importorskip("numpy")


def epoch(data: Path, rank: int, world: int, **options: Any) -> list[list[str]]:
    stream = forebay.stream(data, rank=rank, world=world, lanes=8, seed=3, **options)
    batches = [batch["__key__"].list() for batch in stream]
    assert len(batches) == len(stream)
    return batches


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("batch_size", "world"), [(7, 1), (7, 2), (7, 8), (50, 2), (16, 4), (15, 8)])
def test_wrapping_gives_every_rank_full_batches_of_all_samples(
    data: Path, batch_size: int, world: int, shuffle: bool
) -> None:
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "last": "wrap"}
    ranks = [epoch(data, rank, world, **options) for rank in range(world)]
    steps = -(-120 // (batch_size * world))
    assert [len(batches) for batches in ranks] == [steps] * world
    assert {len(batch) for batches in ranks for batch in batches} == {batch_size}
    seen = Counter(key for batches in ranks for batch in batches for key in batch)
    assert sorted(seen) == keys()
    assert sum(seen.values()) == steps * batch_size * world
    # What fills the last one comes once more, and no oftener than that takes.
    assert max(seen.values()) <= 1 + -(-(steps * batch_size * world - 120) // 120)


def test_samples_that_fill_no_batch_are_left_out_or_come_once(data: Path) -> None:
    def sizes(**options: Any) -> list[list[int]]:
        return [[len(batch) for batch in epoch(data, rank, 2, batch_size=7, **options)] for rank in range(2)]

    full = [7] * 8
    for options in ({}, {"last": "drop"}, {"drop_last": True}, {"last": "drop", "drop_last": True}):
        assert sizes(**options) == [full, full]
    for options in ({"last": "short"}, {"drop_last": False}, {"last": "short", "drop_last": False}):
        assert sizes(**options) == [[*full, 4], [*full, 4]]
    for options in ({"last": "wrap"}, {"last": "wrap", "drop_last": False}):
        assert sizes(**options) == [[*full, 7], [*full, 7]]
    for options, words in (
        ({"last": "none"}, "last cannot be 'none'; one of: drop, short, wrap"),
        ({"last": "wrap", "drop_last": True}, "last is 'wrap' and drop_last True"),
        ({"last": "drop", "drop_last": False}, "last is 'drop' and drop_last False"),
    ):
        with pytest.raises(forebay.InvalidInputError, match=words):
            sizes(**options)


def test_loaders_wrap_and_go_on_in_the_last_batch(data: Path) -> None:
    pytest.importorskip("torch")
    from forebay.torch import StreamDataset, StreamLoader

    options: dict[str, Any] = {"batch_size": 50, "shuffle": True, "lanes": 4, "last": "wrap"}
    with StreamLoader(data, **options) as loader:
        own = [[batch["__key__"].list() for batch in loader] for _ in range(2)]
    assert [[len(batch) for batch in batches] for batches in own] == [[50] * 3] * 2
    dataset = StreamDataset(data, **options)
    dataset.set_epoch(1)
    assert [batch["__key__"].list() for batch in dataset] == own[1]
    with StreamLoader(data, **options) as loader:
        next(loader)
        next(loader)
        state = loader.state_dict()
    with StreamLoader(data, **options) as loader:
        loader.load_state_dict(state)
        assert [batch["__key__"].list() for batch in loader] == own[0][2:]
    with (
        StreamLoader(data, **{**options, "last": "short"}) as loader,
        pytest.raises(forebay.PreconditionError, match="last was wrap and is short"),
    ):
        loader.load_state_dict(state)


def test_mixtures_have_no_last_batch(data: Path) -> None:
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "lanes": 4, "weights": [1, 1]}
    with pytest.warns(UserWarning, match="last='wrap' changes nothing in a mixture"):
        forebay.stream([data, data], last="wrap", **options).close()
