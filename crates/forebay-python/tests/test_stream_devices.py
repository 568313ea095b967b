"""What a ``StreamLoader`` does for a GPU, in an interpreter that takes numpy for torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import write_shard

pytest.importorskip("numpy")

BEGIN = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import fake_torch
    fake_torch.install()
    import torch
    import forebay.torch
    options = {"batch_size": 10, "fields": ["cls"], "decode": {"cls": "int"}, "device": "cuda", "pin": None}
"""


@pytest.fixture
def run(tmp_path: Path, script: Callable[..., Any]) -> Callable[[str], Any]:
    for number in range(4):
        write_shard(tmp_path / f"train-{number:03}.tar", number)
    return lambda source: script(BEGIN + source, str(Path(__file__).parent), str(tmp_path))


def test_tensors_that_are_not_pinned_are_counted(run: Callable[[str], Any]) -> None:
    run("""
    with forebay.torch.StreamLoader(sys.argv[2], epochs=1, **options) as loader:
        assert [batch["cls"].device.type for batch in loader] == ["cuda"] * 12
        assert loader.report()["unpinned_tensors"] == 0
    torch.Tensor.is_batch_pinned = False
    with forebay.torch.StreamLoader(sys.argv[2], epochs=1, **options) as loader:
        assert [batch["cls"].tolist()[0] for batch in loader] == [0, 10, 20] * 4
        assert loader.report()["unpinned_tensors"] == 12
    """)


def test_what_a_transform_made_on_the_device_stays_there(run: Callable[[str], Any]) -> None:
    run("""
    torch.Tensor.is_batch_pinned = False
    made = []
    def transform(batch):
        made.append(torch.Tensor(batch["cls"] * 2, "cuda"))
        return {"own": made[-1], "cls": batch["cls"]}
    with forebay.torch.StreamLoader(sys.argv[2], epochs=1, transform=transform, **options) as loader:
        batches = list(loader)
        assert len(batches) == 12
        assert all(batch["own"] is own for batch, own in zip(batches, made))
        assert all(batch["own"].tolist()[1] == 2 * batch["cls"].tolist()[1] for batch in batches)
        assert loader.report()["unpinned_tensors"] == 12
    """)


def test_ranks_tell_each_other_by_their_own_device(run: Callable[[str], Any]) -> None:
    run("""
    import contextlib
    current, seen = [0], []
    @contextlib.contextmanager
    def device(named):
        before, current[0] = current[0], named.index
        yield
        current[0] = before
    def gather(rows, row):
        seen.append(current[0])
        rows[:] = [row] * len(rows)
    torch.cuda.device, torch.cuda.device_count = device, lambda: 4
    group = {"is_available": lambda: True, "is_initialized": lambda: True, "all_gather_object": gather}
    vars(torch.distributed).update(group, get_rank=lambda: 0, get_world_size=lambda: 2)
    # As parts of one model, which stream the same.
    forebay.torch.StreamLoader(sys.argv[2], rank=0, world=1, **{**options, "device": "cuda:2"}).close()
    assert (seen, current) == ([2, 2], [0])
    forebay.torch.StreamLoader(sys.argv[2], rank=0, world=1, **{**options, "device": None}).close()
    assert seen == [2, 2, 0, 0]
    """)
