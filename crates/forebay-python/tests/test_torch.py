"""Streams for PyTorch, where it is installed."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import pickle
import warnings
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import Script, damage, keys, names, out_of_reach, value, write_shard

np = pytest.importorskip("numpy")
pytest.importorskip("torch")


needs_cuda = pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="no GPU")


@pytest.fixture(params=[None, pytest.param("cuda", marks=needs_cuda)])
def device(request: pytest.FixtureRequest) -> Any:
    """Where batches go: what a loop gives does not depend on it."""
    return request.param


def test_loaders_give_and_resume_batches(data: Path, device: str | None) -> None:
    from forebay.torch import StreamLoader

    with StreamLoader(data, batch_size=10, shuffle=True, lanes=4, device=device) as loader:
        assert len(loader) == 12
        begun = next(loader)["__key__"].list()
        state = loader.state_dict()
        # On its way, as it is with a device, but not given.
        loader._fetch()
    loader.close()
    assert loader.state_dict() == state
    assert loader.report()["unpinned_tensors"] == 0
    assert len(loader) == 12
    with StreamLoader(data, batch_size=10, shuffle=True, lanes=4, device=device) as loader:
        loader.load_state_dict(state)
        assert sorted(begun + names(loader)) == keys()


def test_every_loop_is_an_epoch(data: Path, device: str | None) -> None:
    from forebay.torch import StreamLoader

    options: dict[str, Any] = {"batch_size": 10, "shuffle": True, "lanes": 4, "device": device}
    with StreamLoader(data, **options) as loader:
        epochs = [names(loader) for _ in range(3)]
    assert all(sorted(epoch) == keys() for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    with StreamLoader(data, epochs=2, **options) as loader:
        assert [len(names(loader)) for _ in range(3)] == [120, 120, 0]


def numbers(batches: Iterable[Any]) -> list[tuple[int, int]]:
    return [(batch.epoch, batch.index) for batch in batches]


def take_by_next(loader: Any, count: int) -> list[tuple[int, int]]:
    batches = iter(loader)
    return numbers(next(batches) for _ in range(count))


def take_by_slice(loader: Any, count: int) -> list[tuple[int, int]]:
    return numbers(itertools.islice(loader, count))


def take_by_break(loader: Any, count: int) -> list[tuple[int, int]]:
    taken = []
    for batch in loader:
        taken.append((batch.epoch, batch.index))
        if len(taken) == count:
            break
    return taken


@pytest.mark.parametrize("take", [take_by_next, take_by_slice, take_by_break])
def test_consumers_that_stop_get_an_epoch_each_time(data: Path, take: Any, device: str | None) -> None:
    from forebay.torch import StreamLoader

    options: dict[str, Any] = {"batch_size": 10, "shuffle": True, "lanes": 4, "device": device}
    with StreamLoader(data, epochs=6, **options) as loader:
        # At the end of an epoch, before anybody was told that it is one; then in the middle.
        for epoch, count in enumerate([12, 12, 3, 1, 12]):
            assert take(loader, count) == [(epoch, index) for index in range(count)]
        assert len(numbers(loader)) == 12
        assert numbers(loader) == []


def test_an_iterator_goes_on_and_ends_once(data: Path, device: str | None) -> None:
    from forebay.torch import StreamLoader

    with StreamLoader(data, batch_size=10, device=device) as loader:
        batches = iter(loader)
        assert len(batches) == 12  # type: ignore[arg-type]
        assert (next(batches).index, next(loader).index) == (0, 1)
        assert [index for _, index in numbers(batches)] == list(range(2, 12))
        assert next(batches, None) is None
        assert next(batches, None) is None
        # Nothing is lost to those that were never used.
        unused = [iter(loader) for _ in range(3)]
        later = iter(loader)
        assert next(later).epoch == 1
        assert next(unused[0]).epoch == 2
        with pytest.raises(forebay.PreconditionError, match="another iteration"):
            next(later)


@pytest.mark.parametrize("given", [1, 5, 12])
def test_a_loop_after_a_state_gives_the_rest(data: Path, given: int, device: str | None) -> None:
    from forebay.torch import StreamLoader

    options: dict[str, Any] = {"batch_size": 10, "shuffle": True, "lanes": 4, "epochs": 3, "device": device}
    with StreamLoader(data, **options) as loader:
        epochs = [names(loader) for _ in range(3)]
    everything = [key for epoch in epochs for key in epoch]
    with StreamLoader(data, **options) as loader:
        take_by_break(loader, given)
        state = loader.state_dict()
        # An iterator that is there goes on with the state, and so does a new one.
        batches = iter(loader)
        next(batches)
        loader.load_state_dict(state)
        assert next(batches)["__key__"].list() == everything[10 * given :][:10]
    with StreamLoader(data, **options) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        loops = [names(loader) for _ in range(4)]
    assert [key for loop in loops for key in loop] == everything[10 * given :]
    assert len(loops[0]) == 10 * (12 - given % 12)


def test_a_loop_after_an_error_goes_on(data: Path, device: str | None) -> None:
    from forebay.torch import StreamLoader

    forebay.stream(data, batch_size=10, save_index=True).close()
    with StreamLoader(data, batch_size=10, device=device, epochs=2) as loader:
        with out_of_reach(data):
            for _ in range(2):
                with pytest.raises(forebay.NotFoundError):
                    next(iter(loader))
        # Nothing of that epoch was given: it comes.
        assert [names(loader) for _ in range(3)] == [keys(), keys(), []]
    damage(data, "02-0005")
    with StreamLoader(data, batch_size=10, device=device) as loader:
        for _ in range(2):
            seen = []
            with pytest.raises(forebay.CorruptDataError, match="02-0005"):
                for batch in loader:
                    seen.append(batch["__key__"].list())
            # Of a device, the batch before it was on its way.
            assert len(seen) == (5 if device else 6)
            assert loader.report()["bad_samples"] == 1


def test_epochs_behind_one_that_other_ranks_began_are_whole(data: Path, device: str | None) -> None:
    from forebay.torch import StreamLoader

    options: dict[str, Any] = {"seed": 4, "shuffle": True, "lanes": 4}
    with StreamLoader(data, batch_size=8, **options) as first:
        begun = names(next(first) for _ in range(3))
        state = first.state_dict()
    with StreamLoader(data, batch_size=40, device=device, **options) as loader:
        loader.load_state_dict(state)
        assert len(loader) == 2
        seen = []
        for _ in range(3):
            epoch = iter(loader)
            seen.append([(batch["__key__"].list(), len(loader)) for batch in epoch])
        # 96 samples are left of 120: two batches of 40, where whole epochs have three.
        assert [[length for _, length in epoch] for epoch in seen] == [[2, 3], [3, 3, 3], [3, 3, 3]]
        rest = [key for batch, _ in seen[0] for key in batch]
        assert len(set(begun + rest)) == 24 + 80
        for epoch in seen[1:]:
            assert sorted(key for batch, _ in epoch for key in batch) == keys()


def test_loops_over_a_mixture_begin_where_an_epoch_would(data: Path, device: str | None) -> None:
    from forebay.torch import StreamDataset, StreamLoader

    options: dict[str, Any] = {"batch_size": 10, "shuffle": True, "lanes": 4, "weights": [1, 1]}
    with StreamLoader([data, data], device=device, **options) as loader:
        assert len(loader) == 24
        epochs = [names(loader) for _ in range(2)]
    with StreamLoader([data, data], device=device, **options) as loader:
        take_by_break(loader, 5)
        assert names(loader) == epochs[1]
    dataset = StreamDataset([data, data], **options)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        assert names(dataset) == epochs[epoch]


def test_devices_that_are_not_there_are_named(data: Path) -> None:
    import torch
    from forebay.torch import StreamLoader

    missing = f"cuda:{torch.cuda.device_count()}"
    with pytest.raises(forebay.UnsupportedError, match=f"no '{missing}' here"):
        StreamLoader(data, batch_size=10, device=missing)
    with pytest.raises(forebay.InvalidInputError, match="'gpu' is none that torch knows"):
        StreamLoader(data, batch_size=10, device="gpu")


def test_transforms_may_return_anything(data: Path) -> None:
    import torch
    from forebay.torch import StreamLoader

    def pair(batch: Any) -> Any:
        return batch["cls"], {"again": [batch["cls"]]}

    options: dict[str, Any] = {"batch_size": 10, "decode": {"cls": "int"}}
    with StreamLoader(data, transform=pair, **options) as loader:
        labels, nested = next(loader)
    assert isinstance(labels, torch.Tensor)
    assert torch.equal(labels, nested["again"][0])
    with StreamLoader(data, transform=lambda _: None, **options) as loader:
        assert sum(1 for _ in loader) == 12


def arrays_without_tensors() -> dict[str, Any]:
    """Give arrays of every kind that torch has no tensors for."""
    arrays = [
        np.array(["text", "more"]),
        np.array([b"bytes"]),
        np.array([None, {}], dtype=object),
        np.array(["2026-01-01"], dtype="M8[D]"),
        np.array([5], dtype="m8[s]"),
        np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
        np.zeros(2, dtype="V3"),
        np.zeros(2, dtype="longdouble"),
    ]
    return {array.dtype.str: array for array in arrays}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [0, 1])
def test_arrays_that_torch_has_no_tensors_for_stay(data: Path, workers: int) -> None:
    from forebay.torch import StreamDataset, StreamLoader
    from torch.utils.data import DataLoader

    arrays = arrays_without_tensors()
    options: dict[str, Any] = {"batch_size": 60, "transform": lambda _: dict(arrays)}
    dataset = StreamDataset(data, **options)
    how: dict[str, Any] = {"batch_size": None, "num_workers": workers}
    if workers:
        # What is local here cannot be sent to others.
        how["multiprocessing_context"] = "fork"
    # A DataLoader converts by itself, and refuses times and records.
    for loader in (
        StreamLoader(data, epochs=1, **options),
        DataLoader(dataset, collate_fn=lambda batch: batch, **how),
    ):
        batches = list(loader)
        assert len(batches) == 2
        for batch in batches:
            assert all(isinstance(array, np.ndarray) for array in batch.values())
            assert all(batch[name].dtype == array.dtype for name, array in arrays.items())
            assert all(batch[name].tolist() == array.tolist() for name, array in arrays.items())
    texts = {name: array for name, array in arrays.items() if array.dtype.kind in "SUO"}
    dataset = StreamDataset(data, batch_size=60, transform=lambda _: dict(texts))
    assert [set(batch) for batch in DataLoader(dataset, **how)] == [set(texts)] * 2


def test_arrays_in_another_order_become_tensors() -> None:
    import torch
    from forebay.torch import tensors

    whole = np.arange(24, dtype="i4").reshape(4, 6)
    fields = np.zeros(3, dtype=[("a", "i4"), ("b", "u1")])
    fields["a"] = [1, 2, 3]
    for array in (
        whole.astype(">i4"),
        whole[::-1],
        whole[:, ::-2],
        whole.astype(">f8")[::-1].T,
        fields["a"],
        np.array(5, dtype=">i2"),
        np.zeros((0, 3), dtype=">f4"),
    ):
        for writeable in (True, False):
            given = array.view()
            given.flags.writeable = writeable
            tensor = tensors(given)
            assert isinstance(tensor, torch.Tensor)
            assert tensor.tolist() == array.tolist()
    # Of all others, the memory is shown.
    for shown in (whole, whole.T, whole[::2, 1:], np.broadcast_to(whole[0], (3, 6))):
        assert tensors(shown).data_ptr() == shown.__array_interface__["data"][0]


def test_memory_is_pinned_where_torch_can(data: Path) -> None:
    import torch
    from forebay.torch import StreamLoader

    options: dict[str, Any] = {"batch_size": 10, "fields": ["cls"], "decode": {"cls": "int"}}
    if not torch.cuda.is_available():
        # As early as that there is no such device.
        with pytest.raises(forebay.UnsupportedError, match="pin_memory: torch cannot pin memory here"):
            StreamLoader(data, pin_memory=True, **options)
        return
    with StreamLoader(data, pin_memory=True, **options) as loader:
        assert next(loader)["cls"].is_pinned()
        assert loader.report()["unpinned_tensors"] == 0


def test_nothing_is_pinned_that_cannot_be(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from forebay.torch import StreamLoader

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        made.append(tensor)
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise RuntimeError("only dense CPU tensors can be pinned")
        return tensor.clone()

    def transform(batch: Any) -> Any:
        elsewhere = torch.ones(4, device="meta")
        return {
            "cls": batch["cls"],
            "away": elsewhere,
            "sparse": torch.eye(3).to_sparse(),
            "none": torch.zeros(0),
        }

    made: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    with StreamLoader(
        data, batch_size=10, pin_memory=True, decode={"cls": "int"}, transform=transform
    ) as loader:
        made.clear()
        for batch in itertools.islice(loader, 3):
            assert batch["away"].is_meta
            assert batch["sparse"].is_sparse
            assert batch["cls"].tolist()
            assert batch["none"].numel() == 0
        assert len(made) == 3
        # Of none of them was there too little pinned memory.
        assert loader.report()["unpinned_tensors"] == 0


def join(rank: int, meeting: str) -> Any:
    """Become one of two ranks."""
    import torch

    group = torch.distributed
    # Nobody should wait long for a rank: where one does, the test ends.
    patience = timedelta(seconds=60)
    group.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=patience)
    return group


def stream_other_data(rank: int, folders: list[str], meeting: str) -> None:
    from forebay.torch import StreamDataset, StreamLoader

    group = join(rank, meeting)
    try:
        with pytest.raises(forebay.InvalidInputError, match="data differ"):
            StreamLoader(folders[rank], batch_size=4, shuffle=True, lanes=2)
        StreamLoader(folders[0], batch_size=4, shuffle=True, lanes=2).close()
        for given in ({}, {"rank": rank, "world": 2}):
            with pytest.raises(
                forebay.InvalidInputError, match=r"ranks 1 stream something else.*data differ"
            ):
                StreamDataset(folders[rank], batch_size=4, shuffle=True, lanes=4, check_ranks=True, **given)
        with pytest.raises(forebay.InvalidInputError, match="settings differ"):
            StreamDataset(folders[0], batch_size=4, shuffle=True, lanes=4, seed=rank, check_ranks=True)
    finally:
        group.destroy_process_group()


def stream_by_workers(rank: int, data: str, meeting: str, out: str) -> None:
    from forebay.torch import StreamDataset
    from torch.utils.data import DataLoader

    group = join(rank, meeting)
    try:
        dataset = StreamDataset(data, batch_size=5, shuffle=True, lanes=4, fields=["cls"], check_ranks=True)
        given = names(DataLoader(dataset, batch_size=None, num_workers=2))
        if rank == 0:
            # Nobody else has it, and nobody is asked.
            given += names(StreamDataset(data, batch_size=5, rank=0, world=1))
        Path(out, str(rank)).write_text(" ".join(given))
    finally:
        group.destroy_process_group()


def meet(function: Any, folder: Path, *args: Any) -> None:
    import torch

    torch.multiprocessing.spawn(function, args=(*args[:1], f"file://{folder}/meeting", *args[1:]), nprocs=2)


def test_ranks_that_see_other_data_are_told(data: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    write_shard(other / "train-000.tar", 7)
    meet(stream_other_data, other, [str(data), str(other)])


@pytest.mark.timeout(120)
def test_ranks_that_see_the_same_go_on_in_workers(
    data: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("out")
    meet(stream_by_workers, out, str(data), str(out))
    given = [Path(out, str(rank)).read_text().split() for rank in range(2)]
    assert len(given[1]) == 60
    assert sorted(given[0] + given[1]) == sorted(keys() * 2)


@needs_cuda
def test_batches_on_a_device_are_whole(data: Path) -> None:
    import torch
    from forebay.torch import StreamLoader

    options: dict[str, Any] = {"batch_size": 10, "decode": {"cls": "int"}, "shuffle": True, "lanes": 4}
    with StreamLoader(data, **options) as loader:
        expected = [batch["cls"].clone() for _ in range(20) for batch in loader]
    with StreamLoader(data, device="cuda", **options) as loader:
        # Much work before the copies, so that they are late.
        big = torch.ones(8192, 8192, device="cuda")
        moved = []
        for _ in range(20):
            for batch in loader:
                with torch.cuda.stream(loader._side):
                    big = big @ big * 1e-4
                moved.append(batch["cls"])
        state = loader.state_dict()
        assert loader.report()["unpinned_tensors"] == 0
    assert loader.state_dict() == state
    assert all(value.is_cuda for value in moved)
    assert all(torch.equal(value.cpu(), wanted) for value, wanted in zip(moved, expected, strict=True))
    assert state["epoch"] in (19, 20)


@needs_cuda
def test_images_on_a_device_are_those_of_the_host(tmp_path: Path) -> None:
    import io
    import tarfile

    import torch
    from forebay.torch import StreamLoader
    from torchvision.io import encode_jpeg

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for index in range(64):
            picture = torch.randint(0, 256, (3, 60 + index, 80), dtype=torch.uint8)
            data = encode_jpeg(picture).numpy().tobytes()
            member = tarfile.TarInfo(f"{index:03}.jpg")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "lanes": 4, "epochs": 2}
    options["decode"] = {"jpg": "image:rrc:48,flip,normalize"}
    with StreamLoader(tmp_path, **options) as loader:
        wanted = [batch["jpg"].clone() for _ in range(2) for batch in loader]
    with StreamLoader(tmp_path, device="cuda", **options) as loader:
        moved = [batch["jpg"] for _ in range(2) for batch in loader]
        assert loader.report()["unpinned_tensors"] == 0
    assert len(wanted) == 8
    assert all(torch.equal(one.cpu(), other) for one, other in zip(moved, wanted, strict=True))


@needs_cuda
def test_a_batch_in_hand_survives_an_error_of_the_next(data: Path) -> None:
    from forebay.torch import StreamLoader

    with StreamLoader(data, batch_size=10, device="cuda") as loader:
        first = next(loader)["__key__"].list()
        taken = loader.stream.__class__._look

        def interrupted(self: Any) -> Any:
            raise KeyboardInterrupt

        loader.stream.__class__._look = interrupted  # type: ignore[method-assign]
        try:
            with pytest.raises(KeyboardInterrupt):
                next(loader)
        finally:
            loader.stream.__class__._look = taken  # type: ignore[method-assign]
        state = loader.state_dict()
        second = next(loader)["__key__"].list()
    assert first != second
    with StreamLoader(data, batch_size=10) as loader:
        loader.load_state_dict(state)
        assert next(loader)["__key__"].list() == second


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_share_the_samples(data: Path, workers: int) -> None:
    from forebay.torch import StreamDataset
    from torch.utils.data import DataLoader

    dataset = StreamDataset(
        data, batch_size=5, shuffle=True, lanes=8, transform=lambda b: b["__key__"].list()
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    first = [key for batch in loader for key in batch]
    assert sorted(first) == keys()
    dataset.set_epoch(1)
    second = [key for batch in loader for key in batch]
    assert sorted(second) == keys()
    assert first != second


def reverse(value: memoryview) -> memoryview:
    return value[::-1]


def text(value: memoryview) -> str:
    return str(value, "utf-8")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
def test_whole_batches_come_out_of_a_data_loader(data: Path, workers: int, context: str | None) -> None:
    import torch
    from forebay.torch import StreamDataset
    from torch.utils.data import DataLoader

    decode: dict[str, Any] = {"cls": "int", "txt": text, "json": reverse}
    dataset = StreamDataset(data, batch_size=10, shuffle=True, lanes=4, decode=decode)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=workers > 0,
    )
    seen: list[str] = []
    for batch in loader:
        assert isinstance(batch, forebay.Batch)
        assert (batch.epoch, batch.size) == (0, 10)
        own = batch["__key__"]
        assert isinstance(own, forebay.Keys)
        assert own.list() == list(own) == own[:]
        assert isinstance(batch["cls"], torch.Tensor)
        assert batch["cls"].tolist() == [int(key[3:]) for key in own]
        assert isinstance(batch["bin"], forebay.Ragged)
        assert [bytes(view) for view in batch["bin"]] == [value(key) for key in own]
        assert not batch["bin"].bytes.flags.writeable
        assert batch["txt"].list() == [f"caption {key}" for key in own]
        assert all(bytes(item).endswith(b"{") for item in batch["json"])
        seen += own
    assert sorted(seen) == keys()
    # Also to workers that share no memory but what they are sent.
    dataset.set_epoch(1)
    assert [batch.epoch for batch in loader] == [1] * 12


@pytest.mark.timeout(120)
def test_views_that_a_transform_gives_leave_workers_as_bytes(data: Path) -> None:
    from forebay.torch import StreamDataset
    from torch.utils.data import DataLoader

    dataset = StreamDataset(data, batch_size=10, transform=lambda b: ({"bin": b["bin"].list()}, b["__key__"]))
    for values, own in DataLoader(dataset, batch_size=None, num_workers=1):
        assert values["bin"] == [value(key) for key in own]


# Arguments that are wrong whatever the data set is, as Rust knows.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"filter": "cls >"}, "filter"),
    ({"bad": "ignore"}, "skip"),
    ({"decode": {"cls": "image:nothing"}}, "nothing"),
    ({"memory": "much"}, "memory"),
    ({"shuffle": True, "rank": 0, "world": 3}, "63 or 66"),
    ({"rank": 2, "world": 2}, "rank 2 is not below"),
    ({"lanes": 0}, "lanes must not be 0"),
    ({"format": {"tokens": 5}}, "has a name"),
    ({"last": "none"}, "last cannot be 'none'; one of: drop, short, wrap"),
    ({"last": "wrap", "drop_last": True}, "give one of them"),
]


def test_data_sets_say_early_what_is_wrong(data: Path) -> None:
    from forebay.torch import StreamDataset

    for epochs in (3, None):
        with pytest.raises(forebay.InvalidInputError, match="set_epoch"):
            StreamDataset(data, batch_size=5, epochs=epochs)
    with pytest.raises(forebay.NotFoundError, match="there is no"):
        StreamDataset([data, data / "nothing"], batch_size=5)
    with pytest.raises(TypeError, match="shuffel"):
        StreamDataset(data, batch_size=5, shuffel=True)
    with pytest.raises(TypeError, match="batch_size"):
        StreamDataset(data)
    with pytest.raises(forebay.InvalidInputError, match="batch_size cannot be -1"):
        StreamDataset(data, batch_size=-1)
    few = StreamDataset(f"{data}/train-{{000..001}}.tar", batch_size=5, fields=iter(["cls"]), epochs=1)
    for _ in range(2):
        batches = list(few)
        assert len(batches) == 12
        assert set(batches[0]) == {"cls", "__key__"}
    StreamDataset("s3://bucket/prefix", batch_size=5)
    for options, words in WRONG:
        with pytest.raises(forebay.InvalidInputError, match=words):
            StreamDataset("s3://bucket/prefix", batch_size=5, **options)
    # What becomes of patterns is known where they are opened, and what to write instead.
    pattern = StreamDataset(data / "*.tar", batch_size=5)
    with pytest.raises(forebay.NotFoundError, match="hint") as told:
        next(iter(pattern))
    with pytest.raises(forebay.NotFoundError) as known:
        forebay.stream(data / "*.tar", batch_size=5)
    assert str(told.value) == str(known.value)


@pytest.mark.parametrize(
    ("rank", "world", "words"),
    [
        ("x", "2", "RANK cannot be 'x'"),
        ("1", "-2", "WORLD_SIZE cannot be '-2'"),
        ("1", "5000000000", "WORLD_SIZE cannot be"),
        ("", "2", "go together"),
        ("1", "", "go together"),
    ],
)
def test_launchers_that_say_nothing_useful_are_told(
    data: Path, monkeypatch: pytest.MonkeyPatch, rank: str, world: str, words: str
) -> None:
    from forebay.torch import StreamDataset, StreamLoader

    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    for kind in (StreamDataset, StreamLoader, forebay.stream):
        with pytest.raises(forebay.InvalidInputError, match=words):
            kind(data, batch_size=5)
        assert kind(data, batch_size=5, rank=0, world=1) is not None


def test_launchers_that_say_nothing_leave_a_process_alone(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay.torch import StreamLoader

    monkeypatch.setenv("RANK", "")
    monkeypatch.setenv("WORLD_SIZE", "")
    for kind in (StreamLoader, forebay.stream):
        assert len(kind(data, batch_size=5)) == 24


def doubled(dataset: Any) -> list[Any]:
    """Give copies of a data set, by all that makes some."""
    made = [copy.deepcopy(dataset), copy.copy(dataset), pickle.loads(pickle.dumps(dataset))]
    cloudpickle = importlib.util.find_spec("cloudpickle")
    if cloudpickle is not None:
        made.append(pickle.loads(importlib.import_module("cloudpickle").dumps(dataset)))
    return made


@pytest.mark.timeout(120)
def test_copies_tell_their_workers_the_epoch(data: Path) -> None:
    from forebay.torch import StreamDataset
    from torch.utils.data import DataLoader

    forebay.stream(data, batch_size=10, save_index=True).close()
    dataset = StreamDataset(data, batch_size=10, shuffle=True, lanes=4)
    dataset.set_epoch(3)
    for again in doubled(dataset):
        loader = DataLoader(
            again, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
        )
        assert {batch.epoch for batch in loader} == {3}
        again.set_epoch(5)
        assert {batch.epoch for batch in loader} == {5}
        dataset.set_epoch(3)


def test_epochs_are_known_on_the_host(data: Path) -> None:
    import torch
    from forebay.torch import StreamDataset

    # In its place, a GPU would be asked before every iteration, and could not be by workers that are forked.
    torch.set_default_device("meta")
    try:
        dataset = StreamDataset(data, batch_size=10)
        dataset.set_epoch(2)
        assert next(iter(dataset)).epoch == 2
    finally:
        torch.set_default_device(None)


def test_epochs_that_cannot_be_are_refused(data: Path) -> None:
    import torch
    from forebay.torch import StreamDataset

    dataset = StreamDataset(data, batch_size=10)
    for epoch in (-1, 1 << 63):
        with pytest.raises(forebay.InvalidInputError, match=f"epoch cannot be {epoch}"):
            dataset.set_epoch(epoch)
    for other in (2.5, "2", None):
        with pytest.raises(TypeError, match="epoch is a whole number"):
            dataset.set_epoch(other)  # type: ignore[arg-type]
    for number in (np.int64(2), torch.tensor(2)):
        dataset.set_epoch(number)  # type: ignore[arg-type]
        assert next(iter(dataset)).epoch == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_not_put_into_batches(data: Path, workers: int) -> None:
    from forebay.torch import StreamDataset
    from torch.utils.data import DataLoader

    dataset = StreamDataset(data, batch_size=5, decode={"cls": "int"}, fields=["cls"])
    with pytest.raises(forebay.InvalidInputError, match="batch_size=None"):
        next(iter(DataLoader(dataset, num_workers=workers)))


def test_an_epoch_that_is_given_again_is_warned_of_once(data: Path) -> None:
    from forebay.torch import StreamDataset

    def loop(dataset: Any) -> None:
        assert len(names(dataset)) == 120

    def fail_once(batch: Any) -> Any:
        if not failed:
            failed.append(True)
            raise ValueError("the first batch")
        return batch

    def silent(**options: Any) -> Any:
        return StreamDataset(data, batch_size=10, lanes=4, **options)

    forebay.stream(data, batch_size=10, save_index=True).close()
    failed: list[bool] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = silent(shuffle=True)
        # Of those that gave nothing, none was given again.
        iter(dataset)
        loop(dataset)
        broken = silent(shuffle=True, transform=fail_once)
        with pytest.raises(ValueError, match="the first batch"):
            loop(broken)
        loop(broken)
        # Somebody has chosen.
        chosen = silent(shuffle=True)
        for _ in range(3):
            chosen.set_epoch(0)
            loop(chosen)
        loop(chosen)
        later = silent(shuffle=True)
        loop(later)
        later.set_epoch(1)
        loop(later)
        # There is one order only, and another rank says it.
        for alone in (silent(), silent(shuffle=True, rank=1, world=2)):
            for _ in range(2):
                assert names(alone)
    with pytest.warns(RuntimeWarning, match=r"epoch 0 again, in the same order: call set_epoch") as told:
        assert sum(batch.size for batch in dataset) == 120
    assert [one.filename for one in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(dataset)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("context", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_warn_of_an_epoch_that_is_given_again(
    data: Path, script: Script, context: str, workers: int
) -> None:
    forebay.stream(data, batch_size=10, save_index=True).close()
    done = script(
        """
        import sys
        from forebay.torch import StreamDataset
        from torch.utils.data import DataLoader

        for stays in (False, True):
            for chosen in ((None, None, None), (None, 1, 1)):
                dataset = StreamDataset(sys.argv[1], batch_size=10, shuffle=True, lanes=4)
                loader = DataLoader(
                    dataset,
                    batch_size=None,
                    num_workers=int(sys.argv[3]),
                    multiprocessing_context=sys.argv[2],
                    persistent_workers=stays,
                )
                for epoch in chosen:
                    if epoch is not None:
                        dataset.set_epoch(epoch)
                    assert sum(batch.size for batch in loader) == 120
                print("=====", file=sys.stderr, flush=True)
        """,
        str(data),
        context,
        str(workers),
    )
    told = [part.count("RuntimeWarning: a StreamDataset gives") for part in done.stderr.split("=====")]
    assert told == [1, 0, 1, 0, 0]
