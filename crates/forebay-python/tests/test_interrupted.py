"""Ctrl-C at every moment at which Python looks for it: no batch is lost, and none is given twice.

Python looks where functions begin and where calls have returned, so that is where a profiler raises it: at
the first such place of one step in one run, at the second in the next, until a step has no more of them.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import forebay
import pytest
from conftest import write_shard

pytest.importorskip("numpy")

# Hundreds of streams are opened: each with as little as it needs.
OPTIONS: dict[str, Any] = {
    "batch_size": 10,
    "shuffle": True,
    "lanes": 4,
    "epochs": 2,
    "threads": 1,
    "window": "1MiB",
    "block_size": "64KiB",
    "memory": "16MiB",
    "fields": ["cls"],
    "decode": {"cls": "int"},
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number in range(4):
        write_shard(tmp_path / f"train-{number:03}.tar", number)
    forebay.stream(tmp_path, batch_size=10, save_index=True).close()
    return tmp_path


def step_interrupted(batches: Iterator[Any], moment: int) -> Any:
    """Take a batch, but for an interruption at that moment of it, counted from 0; raises it where it came."""
    passed = 0
    outermost: FrameType | None = None

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal passed, outermost
        is_ours = frame.f_globals.get("__name__", "").startswith("forebay")
        if not is_ours or event not in ("call", "return", "c_return"):
            return
        if outermost is None:
            outermost = frame
        if event == "return" and frame is outermost:
            # The batch is the caller's: nobody looks on the way to a variable of a loop.
            return
        if passed == moment:
            sys.setprofile(None)
            raise KeyboardInterrupt
        passed += 1

    sys.setprofile(look)
    try:
        return batches.__next__()
    finally:
        sys.setprofile(None)


def number(batch: Any) -> tuple[int, int]:
    return batch.epoch, batch.index


def rest(batches: Iterator[Any]) -> list[tuple[int, int]]:
    """Take the others by ``next``: a loop over a loader would begin another epoch."""
    given = []
    while (batch := next(batches, None)) is not None:
        given.append(number(batch))
    return given


def check(open_batches: Callable[[], tuple[Any, Iterator[Any]]], before: int) -> int:
    """Interrupt the step after so many at every moment of it; tells how many there are."""
    for moment in itertools.count():
        source, batches = open_batches()
        with source:
            for _ in range(before):
                next(batches)
            state = source.state_dict()
            try:
                batch = step_interrupted(batches, moment)
            except KeyboardInterrupt:
                assert source.state_dict() == state, moment
                assert rest(batches) == [(0, index) for index in range(before, 12)], moment
                continue
            assert number(batch) == (0, before)
            assert source.state_dict() != state
            return moment
    raise AssertionError


def test_streams_lose_no_batch(data: Path) -> None:
    def opened() -> tuple[Any, Iterator[Any]]:
        stream = forebay.stream(data, **{**OPTIONS, "epochs": 1})
        return stream, stream

    assert check(opened, 2) > 10


def check_loaders(data: str, device: str | None) -> None:
    """For an interpreter that has a torch, or what stands for it."""
    from forebay.torch import StreamLoader

    # Pinning calls back from Rust, which makes an error of its own of what is raised there.
    options = {**OPTIONS, "device": device, "pin": None}

    def looped() -> tuple[Any, Iterator[Any]]:
        loader = StreamLoader(data, **options)
        return loader, iter(loader)

    def stepped() -> tuple[Any, Iterator[Any]]:
        loader = StreamLoader(data, **options)
        return loader, loader

    # The first batch, the last of an epoch, and one in between.
    for opened, before in ((looped, 0), (looped, 11), (stepped, 2)):
        assert check(opened, before) > 10, (opened, before)


@pytest.mark.parametrize("device", [None, "cuda"])
def test_loaders_lose_no_batch(data: Path, device: str | None) -> None:
    torch = pytest.importorskip("torch")
    if device is not None and not torch.cuda.is_available():
        pytest.skip("no GPU")
    check_loaders(str(data), device)


@pytest.mark.parametrize("device", ["", "cuda"])
def test_loaders_of_a_device_lose_no_batch(data: Path, script: Callable[..., Any], device: str) -> None:
    source = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import fake_torch
        fake_torch.install()
        import test_interrupted
        test_interrupted.check_loaders(sys.argv[2], sys.argv[3] or None)
    """
    script(source, str(Path(__file__).parent), str(data), device)


@pytest.mark.parametrize("before", [0, 2, 11])
def test_states_of_data_sets_are_of_what_was_given(data: Path, before: int) -> None:
    pytest.importorskip("torch")
    from forebay.torch import StreamDataset

    options = {name: value for name, value in OPTIONS.items() if name != "epochs"}
    for moment in itertools.count():
        dataset = StreamDataset(data, **options)
        batches = iter(dataset)
        for _ in range(before):
            next(batches)
        state = dataset.state_dict()
        try:
            batch = step_interrupted(batches, moment)
        except KeyboardInterrupt:
            # The iteration has ended with it; another one goes on.
            assert dataset.state_dict() == state, moment
            dataset.load_state_dict(state)
            assert rest(iter(dataset)) == [(0, index) for index in range(before, 12)], moment
            continue
        assert number(batch) == (0, before)
        assert dataset.state_dict() != state
        break
    assert moment > 10
