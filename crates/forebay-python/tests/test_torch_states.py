"""Data sets under loaders of torch and torchdata, and their states: nothing comes again, nor goes missing."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import damage, keys, names, out_of_reach

pytest.importorskip("numpy")
pytest.importorskip("torch")

OPTIONS: dict[str, Any] = {"batch_size": 10, "shuffle": True, "lanes": 4, "seed": 5}


@pytest.fixture
def data(data: Path) -> Path:
    forebay.stream(data, batch_size=10, save_index=True).close()
    return data


def made(data: Any, epoch: int = 0, **others: Any) -> Any:
    """Make a data set that gives an epoch."""
    from forebay.torch import StreamDataset

    dataset = StreamDataset(data, **{**OPTIONS, **others})
    dataset.set_epoch(epoch)
    return dataset


def stateful(dataset: Any, workers: int, **others: Any) -> Any:
    """Put the loader of torchdata around a data set."""
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    return loaders.StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **others)


class Counted:
    """A transform that counts batches, in all workers."""

    def __init__(self) -> None:
        import torch

        self.made = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call, unused-ignore]

    def __call__(self, batch: Any) -> Any:
        self.made += 1
        return batch


def lists(batches: Any, count: int | None = None) -> list[list[str]]:
    return [batch["__key__"].list() for batch in itertools.islice(batches, count)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_is_no_data_set_for_a_loader(data: Path, workers: int) -> None:
    from forebay.torch import StreamLoader
    from torch.utils.data import DataLoader

    with StreamLoader(data, batch_size=10) as loader:
        with pytest.raises(forebay.UnsupportedError, match="put a StreamDataset"):
            next(iter(DataLoader(loader, batch_size=None, num_workers=workers)))  # type: ignore[arg-type]
        assert sorted(names(loader)) == keys()


@pytest.mark.parametrize("given", [0, 1, 5, 12])
def test_an_iteration_goes_on_from_a_state(data: Path, given: int) -> None:
    from torch.utils.data import DataLoader

    whole = lists(made(data, 2))
    dataset = made(data, 2)
    batches = iter(DataLoader(dataset, batch_size=None))
    assert lists(batches, given) == whole[:given]
    state = json.loads(json.dumps(dataset.state_dict()))
    assert (state["epoch"], state["worker"], state["is_over"]) == (2, None, given == 12)
    assert len(json.dumps(state)) < 1024
    again = made(data, 2)
    again.load_state_dict(state)
    assert again.state_dict() == state
    loader = DataLoader(again, batch_size=None)
    assert lists(loader) == whole[given:]
    assert again.state_dict()["is_over"]
    # One that is under way is not touched, and after the rest come whole epochs.
    assert lists(batches) == whole[given:]
    assert lists(loader) == whole
    again.set_epoch(3)
    assert lists(loader) == lists(made(data, 3)) != whole


def test_a_state_is_of_what_was_given(data: Path) -> None:
    failing = True

    def transform(batch: Any) -> Any:
        if failing and batch.index == 2:
            raise KeyboardInterrupt
        return batch

    whole = lists(made(data))
    dataset = made(data, transform=transform)
    given = []
    with pytest.raises(KeyboardInterrupt):
        for batch in dataset:
            given.append(batch["__key__"].list())
    state = dataset.state_dict()
    failing = False
    dataset.load_state_dict(state)
    assert given + lists(dataset) == whole
    # After a break, too.
    for batch in dataset:
        if batch.index == 6:
            break
    dataset.load_state_dict(dataset.state_dict())
    assert lists(dataset) == whole[7:]


def test_states_belong_to_an_epoch(data: Path) -> None:
    dataset = made(data, 3)
    lists(iter(dataset), 5)
    state = dataset.state_dict()
    rest = lists(made(data, 3))[5:]
    again = made(data, 4)
    again.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(forebay.PreconditionError, match=r"is in epoch 3, .* call set_epoch\(3\)"):
            lists(again)
    # Nothing of that made it go on elsewhere.
    again.set_epoch(3)
    assert lists(again) == rest
    # Of one that was given as a whole, nothing is left; another is given as ever.
    lists(dataset)
    state = dataset.state_dict()
    for epoch, left in ((3, []), (4, lists(made(data, 4)))):
        again = made(data, epoch)
        again.load_state_dict(state)
        assert lists(again) == left


def test_states_that_do_not_fit_are_refused(data: Path) -> None:
    dataset = made(data)
    lists(iter(dataset), 5)
    state = dataset.state_dict()
    with forebay.stream(data, **OPTIONS) as stream:
        other = stream.state_dict()
    for none in (None, "x", {}, other, {**state, "worker": {"id": 1}}, {**state, "position": {1: object()}}):
        with pytest.raises(forebay.InvalidInputError, match=r"a state .*is a dict as"):
            dataset.load_state_dict(none)
    again = made(data, seed=6)
    again.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(forebay.PreconditionError, match="seed was 5 and is 6"):
            lists(again)
    again = made(data, bad="skip:1")
    again.load_state_dict({**state, "worker": {"id": 0, "workers": 2, "world": 1}})
    with pytest.raises(
        forebay.PreconditionError, match=r"of worker 0 of 2 on each of 1 ranks.* a process without workers"
    ):
        iter(again)


def test_mixtures_go_on(data: Path) -> None:
    options: dict[str, Any] = {"weights": [1, 1]}
    whole = lists(made([data, data], 1, **options))
    dataset = made([data, data], 1, **options)
    given = lists(iter(dataset), 7)
    again = made([data, data], 1, **options)
    again.load_state_dict(dataset.state_dict())
    assert given + lists(again) == whole
    assert len(whole) == 24
    assert again.state_dict()["is_over"]


def test_without_workers_another_number_of_ranks_goes_on(data: Path) -> None:
    ranks = [made(data, 1, batch_size=5, rank=rank, world=2) for rank in range(2)]
    given = [key for rank in ranks for batch in lists(iter(rank), 4) for key in batch]
    states = [rank.state_dict() for rank in ranks]
    assert states[0] == states[1]
    alone = made(data, 1, rank=0, world=1)
    alone.load_state_dict(states[0])
    assert sorted(given + names(alone)) == keys()


def test_copies_stand_where_the_first_one_does(data: Path) -> None:
    whole = lists(made(data))
    dataset = made(data)
    lists(iter(dataset), 3)
    state = dataset.state_dict()
    for again in (copy.deepcopy(dataset), copy.copy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert again.state_dict() == state
        again.load_state_dict(state)
        twice = copy.deepcopy(again)
        assert lists(again) == lists(twice) == whole[3:]
        assert dataset.state_dict() == state
    # One that is loaded before there are several is nobody's to move on.
    dataset.load_state_dict(state)
    others = [copy.copy(dataset) for _ in range(2)]
    assert [lists(other) for other in others] == [whole[3:]] * 2
    assert lists(dataset) == whole[3:]


def test_the_rest_of_an_epoch_is_no_repetition(data: Path) -> None:
    from forebay.torch import StreamDataset

    dataset = StreamDataset(data, **OPTIONS)
    lists(iter(dataset), 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset.load_state_dict(dataset.state_dict())
        assert len(lists(dataset)) == 7
        # The next one is, and refusing the warning loses nothing that was loaded.
        with pytest.raises(RuntimeWarning, match="gives epoch 0 again"):
            lists(dataset)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_have_no_state_in_common(data: Path, context: str) -> None:
    from torch.utils.data import DataLoader

    dataset = made(data)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    for _ in loader:
        with pytest.raises(
            forebay.UnsupportedError, match=r"StatefulDataLoader around it, or .*StreamLoader"
        ):
            dataset.state_dict()
    # Without them, it has one again, which they cannot go on from.
    lists(iter(dataset), 3)
    dataset.load_state_dict(dataset.state_dict())
    with pytest.raises(
        forebay.PreconditionError, match="of a process without workers, and this is worker 0 of 2"
    ):
        lists(loader)
    assert len(lists(dataset)) == 9


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("workers", "places", "others"),
    [
        (0, [0, 1, 23, 24], {}),
        (1, [11], {"multiprocessing_context": "spawn"}),
        (2, [0, 1, 11, 23, 24], {"multiprocessing_context": "fork"}),
        (2, [11, 24], {"multiprocessing_context": "fork", "persistent_workers": True, "prefetch_factor": 3}),
        (2, [2, 11], {"multiprocessing_context": "fork", "snapshot_every_n_steps": 3}),
    ],
    ids=["none", "spawned", "forked", "persistent", "snapshots"],
)
def test_stateful_loaders_go_on(data: Path, workers: int, places: list[int], others: dict[str, Any]) -> None:
    epochs = [lists(stateful(made(data, epoch, batch_size=5), workers)) for epoch in (2, 3)]
    assert sorted(key for batch in epochs[0] for key in batch) == keys()
    for given in places:
        loader = stateful(made(data, 2, batch_size=5), workers, **others)
        batches = iter(loader)
        assert lists(batches, given) == epochs[0][:given]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        del batches, loader
        counted = Counted()
        dataset = made(data, 2, batch_size=5, transform=counted)
        again = stateful(dataset, workers, **others)
        again.load_state_dict(state)
        assert lists(again) == epochs[0][given:]
        # Without reading to get there, but for what comes after the last snapshot.
        read_again = others.get("snapshot_every_n_steps", 1) - 1
        assert 24 - given <= counted.made <= 24 - given + read_again
        # And after that as ever.
        dataset.set_epoch(3)
        assert lists(again) == epochs[1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("epoch", [2, 3])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_after_the_state_of_an_epoch_that_was_ended_a_whole_one_is_given(
    data: Path, workers: int, persistent: bool, epoch: int, capfd: pytest.CaptureFixture[str]
) -> None:
    others: dict[str, Any] = {"persistent_workers": True} if persistent else {}
    loader = stateful(made(data, 2), workers, **others)
    assert len(lists(loader)) == 12
    # Taken after the `for`: torchdata begins anew from there, so the epoch must be the next one, not again 2.
    state = loader.state_dict()
    if workers:
        # Those that are forked keep what they warn of to themselves, as pytest does.
        others["multiprocessing_context"] = "spawn"
    again = stateful(made(data, epoch), workers, **others)
    again.load_state_dict(state)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert lists(again) == lists(stateful(made(data, epoch), workers))
        assert lists(again) == lists(stateful(made(data, epoch), workers))
    # Once, by workers on stderr.
    own = [str(one.message) for one in told]
    theirs = capfd.readouterr().err
    assert "\n".join([*own, theirs]).count("is the end of epoch 2") == (1 if epoch == 2 else 0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_state_that_was_refused_is_still_there(data: Path, workers: int, persistent: bool) -> None:
    others: dict[str, Any] = {"persistent_workers": True} if persistent else {}
    whole = lists(stateful(made(data, 2), workers))
    loader = stateful(made(data, 2), workers, **others)
    assert lists(iter(loader), 5) == whole[:5]
    state = loader.state_dict()
    del loader
    dataset = made(data, 0)
    again = stateful(dataset, workers, **others)
    again.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(forebay.PreconditionError, match=r"call set_epoch\(2\) before it"):
            lists(again)
    dataset.set_epoch(2)
    assert lists(again) == whole[5:]


@pytest.mark.timeout(300)
def test_workers_of_all_ranks_go_on_from_the_state_of_one(data: Path) -> None:
    options: dict[str, Any] = {"batch_size": 5, "lanes": 12}

    def ranks(world: int) -> list[Any]:
        return [stateful(made(data, 1, rank=rank, world=world, **options), 2) for rank in range(world)]

    given: list[str] = []
    # A state in the middle of a round: one worker has given a batch more than the other.
    for loader in reversed(ranks(2)):
        batches = iter(loader)
        given += [key for batch in lists(batches, 5) for key in batch]
        state = loader.state_dict()
    for loader in ranks(2):
        loader.load_state_dict(state)
        given += names(loader)
    assert sorted(given) == keys()
    for loader in ranks(3):
        loader.load_state_dict(state)
        with pytest.raises(forebay.PreconditionError, match=r"of worker \d of 2 on each of 2 ranks"):
            names(loader)
    other = stateful(made(data, 1, rank=0, world=2, **options), 3)
    other.load_state_dict(state)
    with pytest.raises(
        forebay.PreconditionError, match=r"worker \d of 2 on each of 2 .* worker \d of 3 on each of 2 ranks"
    ):
        names(other)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("given", [4, 5])
def test_workers_in_the_order_of_the_shards_go_on(data: Path, given: int) -> None:
    options: dict[str, Any] = {"batch_size": 5, "shuffle": False}
    whole = lists(stateful(made(data, **options), 2))
    assert sorted(key for batch in whole for key in batch) == keys()
    loader = stateful(made(data, **options), 2)
    assert lists(iter(loader), given) == whole[:given]
    state = loader.state_dict()
    again = stateful(made(data, **options), 2)
    again.load_state_dict(state)
    assert lists(again) == whole[given:]
    # Where one worker has given a batch more, batches of another size cut the samples elsewhere.
    for batch_size in (4, 10):
        other = stateful(made(data, **{**options, "batch_size": batch_size}), 2)
        other.load_state_dict(state)
        with pytest.raises(forebay.PreconditionError, match=f"batch_size was 5 and is {batch_size}: workers"):
            names(other)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_state_survives_a_data_set_that_cannot_be_opened(
    data: Path, workers: int, persistent: bool
) -> None:
    others: dict[str, Any] = {"persistent_workers": True} if persistent else {}
    whole = lists(stateful(made(data, 2), workers))
    loader = stateful(made(data, 2), workers, **others)
    assert lists(iter(loader), 5) == whole[:5]
    state = loader.state_dict()
    del loader
    again = stateful(made(data, 2), workers, **others)
    again.load_state_dict(state)
    with out_of_reach(data):
        for _ in range(2):
            with pytest.raises(forebay.NotFoundError):
                lists(again)
    assert lists(again) == whole[5:]


def test_bad_samples_of_an_iteration_are_told(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from torch.utils.data import DataLoader

    damage(data, "01-0004")
    dataset = made(data, bad="skip:2")
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="1 bad samples were left out of epoch 0"):
            assert len(names(dataset)) == len(keys())
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    assert len(names(loader)) == len(keys())
    assert "1 bad samples were left out of epoch 0" in capfd.readouterr().err


def test_a_look_at_a_copy_leaves_the_place(data: Path) -> None:
    from torch.utils.data import DataLoader

    whole = lists(made(data))
    dataset = made(data)
    batches = iter(dataset)
    assert lists(batches, 3) == whole[:3]
    state = dataset.state_dict()
    assert lists(iter(copy.copy(dataset)), 1) == whole[:1]
    assert dataset.state_dict() == state
    dataset.load_state_dict(state)
    assert lists(iter(copy.copy(dataset)), 1) == whole[3:4]
    assert lists(dataset) == whole[3:]
    # Nor does it hide that workers stream.
    workers = iter(DataLoader(dataset, batch_size=None, num_workers=2))
    next(workers)
    next(iter(copy.copy(dataset)))
    with pytest.raises(forebay.UnsupportedError, match="workers stream"):
        dataset.state_dict()
