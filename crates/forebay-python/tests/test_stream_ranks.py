"""Ranks of torch that stream one data set: where one cannot, none goes on, and nobody waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import write_shard

pytest.importorskip("torch")

from test_torch import WRONG, join, meet

pytestmark = pytest.mark.timeout(120)

OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "lanes": 4}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_shard(folder / "train-000.tar", 0)
    forebay.stream(folder, batch_size=4, save_index=True).close()
    return folder


def kinds() -> list[Callable[..., Any]]:
    """Give what ranks make together."""
    from forebay.torch import StreamDataset, StreamLoader

    return [StreamLoader, partial(StreamDataset, check_ranks=True)]


def unopened(*_: Any, **__: Any) -> Any:
    raise AssertionError("this rank has no reason to open the data set")


class PanicException(BaseException):
    """As what Rust raises is called."""


def fail_beside_others(rank: int, data: str, meeting: str) -> None:
    import forebay.torch as own

    group = join(rank, meeting)
    stream = own.stream
    try:
        # What is seen without opening the data set is told to the others before they open theirs.
        own.stream = unopened
        for kind in kinds():
            with pytest.raises(forebay.NotFoundError, match=r"there is no '.*/nothing'"):
                kind(f"{data}/nothing" if rank else data, **OPTIONS)
            with pytest.raises(forebay.InvalidInputError, match="no data set in the list"):
                kind([] if rank else [data], **OPTIONS)
            for wrong, words in WRONG:
                if "world" not in wrong:
                    with pytest.raises(forebay.InvalidInputError, match=words):
                        kind(data, **{**OPTIONS, **(wrong if rank else {})})
        with pytest.raises(forebay.UnsupportedError, match="no 'cuda:77' here"):
            own.StreamLoader(data, device="cuda:77" if rank else None, **OPTIONS)

        def broken(*_: Any, **__: Any) -> Any:
            raise PanicException("a bound")

        own.stream = broken if rank else stream
        for kind in kinds():
            with pytest.raises(PanicException if rank else forebay.InternalError, match="a bound"):
                kind(data, **OPTIONS)
        # One that is there already is closed where another rank has none, or another one.
        made: list[forebay.Stream] = []

        def kept(*args: Any, **options: Any) -> forebay.Stream:
            made.append(stream(*args, **options))
            return made[-1]

        own.stream = broken if rank else kept
        with pytest.raises(PanicException if rank else forebay.InternalError):
            own.StreamLoader(data, **OPTIONS)
        own.stream = kept
        with pytest.raises(forebay.InvalidInputError, match="settings differ"):
            own.StreamLoader(data, seed=rank, **OPTIONS)
        assert [stream._left is not None for stream in made] == [True] * (2 - rank)
    finally:
        own.stream = stream
        group.destroy_process_group()


def test_a_rank_that_fails_is_waited_for_by_nobody(data: Path, tmp_path: Path) -> None:
    meet(fail_beside_others, tmp_path, str(data))


def stream_beside_others(rank: int, data: str, meeting: str) -> None:
    from forebay.torch import StreamLoader

    group = join(rank, meeting)
    try:
        if rank == 0:
            # The other one makes none, and is not waited for.
            with StreamLoader(data, rank=0, world=1, check_ranks=False, **OPTIONS) as loader:
                assert len(loader) == len(list(loader)) == 7
        with StreamLoader(data, check_ranks=False, **OPTIONS) as loader:
            assert len(loader) == 3
    finally:
        group.destroy_process_group()


def test_a_rank_that_checks_nothing_waits_for_nobody(data: Path, tmp_path: Path) -> None:
    meet(stream_beside_others, tmp_path, str(data))


def fail_beside_a_slow_rank(rank: int, data: str, meeting: str, said: str) -> None:
    import forebay.torch as own

    group = join(rank, meeting)
    stream = own.stream

    def slow(*args: Any, **options: Any) -> forebay.Stream:
        # As one that makes an index: it goes on once the other has said what is wrong.
        for _ in range(300):
            if Path(said).exists():
                return stream(*args, **options)
            time.sleep(0.1)
        raise AssertionError("the other rank says nothing while it waits")

    def broken(*_: Any, **__: Any) -> Any:
        raise forebay.CorruptDataError("its disk is broken")

    try:
        logging.getLogger("forebay").addHandler(logging.FileHandler(said, delay=True))
        own.stream = broken if rank else slow
        with pytest.raises(forebay.CorruptDataError, match="its disk is broken"):
            own.StreamLoader(data, **OPTIONS)
    finally:
        own.stream = stream
        group.destroy_process_group()


def test_a_rank_that_fails_says_so_while_others_are_slow(data: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    meet(fail_beside_a_slow_rank, tmp_path, str(data), str(said))
    assert said.read_text() == "rank 1 cannot open the data set: CorruptDataError: its disk is broken\n"


def share_in_other_ways(rank: int, data: str, meeting: str) -> None:
    import forebay.torch as own

    group = join(rank, meeting)
    stream = own.stream
    try:
        # Nobody opens the data set for it.
        own.stream = unopened
        for kind in kinds():
            # As on two nodes of which each counts from 0.
            with pytest.raises(forebay.InvalidInputError, match="no process streams as rank 2, 3 of 4, so"):
                kind(data, rank=rank, world=4, **OPTIONS)
            with pytest.raises(forebay.InvalidInputError, match="as rank 0 of 2, so"):
                kind(data, rank=1, world=2, **OPTIONS)
            with pytest.raises(
                forebay.InvalidInputError,
                match="process 1 streams as one of 2 ranks, and process 0 as one of 1",
            ):
                kind(data, rank=rank, world=rank + 1, **OPTIONS)
            with pytest.raises(
                forebay.InvalidInputError, match=r"as rank 2, .*, 17 and others of 1000000000, so"
            ):
                kind(data, rank=rank, world=1_000_000_000, **{**OPTIONS, "shuffle": False})
            with pytest.raises(forebay.InvalidInputError, match="rank and world belong together"):
                kind(data, rank=rank, **OPTIONS)
        # Both have the same share where they are parts of one model.
        own.stream = stream
        for kind in kinds():
            assert kind(data, rank=0, world=1, **OPTIONS) is not None
    finally:
        own.stream = stream
        group.destroy_process_group()


def test_ranks_that_leave_out_shares_are_refused(data: Path, tmp_path: Path) -> None:
    meet(share_in_other_ways, tmp_path, str(data))


def test_ranks_that_cannot_be_compared_are_not(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay.torch import StreamDataset

    refused = pytest.raises(forebay.InvalidInputError, match=r"no process group to compare 2 ranks in: call")
    with refused:
        StreamDataset(data, check_ranks=True, rank=0, world=2, **OPTIONS)
    StreamDataset(data, rank=0, world=2, **OPTIONS)
    StreamDataset(data, check_ranks=True, **OPTIONS)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused:
        StreamDataset(data, check_ranks=True, **OPTIONS)
