"""torch.distributed.checkpoint through our writer, reader and stager: what comes back, what is refused."""

from __future__ import annotations

import collections
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import forebay
import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from forebay._dcp_plan import step_of  # noqa: E402
from forebay.dcp import ForebayReader, ForebayStager, ForebayWriter  # noqa: E402
from torch.distributed.checkpoint.default_planner import (  # noqa: E402
    DefaultLoadPlanner,
    DefaultSavePlanner,
    _EmptyStateDictLoadPlanner,
)
from torch_ranks import begin, spawn  # noqa: E402

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)"),
]


class Thing:
    """Something that has no typed value."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


def trained(seed: int = 1) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 3))
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(5, 30)).sum().backward()
    optim.step()
    return {
        "model": model.state_dict(),
        "optim": optim.state_dict(),
        "half": torch.randn(7, 5).bfloat16(),
        "scalar": torch.tensor(3.5),
        "none": torch.empty(0, 4),
        "turned": torch.randn(4, 6).t(),
        "some": torch.randn(8, 9)[:, ::3],
        "list": [torch.ones(3), {"a": 1}],
        "pair": (1, torch.arange(5)),
        "names": ["x", "y"],
        "big": 1 << 90,
        "loss": 2.5 + seed,
    }


def emptied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: emptied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [emptied(item) for item in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else None


def assert_same(found: Any, expected: Any, path: str = "") -> None:
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype, path
        assert torch.equal(found, expected), path
    elif isinstance(expected, dict):
        # Torch has all keys as texts once they are saved.
        assert [str(key) for key in found] == [str(key) for key in expected], path
        for key, item in found.items():
            own = key if key in expected else next(one for one in expected if str(one) == key)
            assert_same(item, expected[own], f"{path}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected), path
        assert len(found) == len(expected), path
        for index, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_same(a, b, f"{path}[{index}]")
    else:
        assert found == expected, path


def message_of(error: BaseException) -> str:
    """What the ranks of a checkpoint that failed have said."""
    failures = getattr(error, "failures", None)
    return str(error) if failures is None else " ".join(str(one[0]) for one in failures.values())


def test_states_come_back(place: Path) -> None:
    given = trained()
    writer = ForebayWriter(place, metadata={"note": "first"})
    metadata = dcp.save(given, storage_writer=writer)
    assert metadata.storage_meta.checkpoint_id == f"{place}/0"
    assert metadata.storage_data
    assert writer.report["step"] == 0
    assert writer.report["bytes_raw"] > 0
    assert writer.ledger.bytes >= writer.report["bytes_written"]
    found = emptied(given)
    reader = ForebayReader(place)
    dcp.load(found, storage_reader=reader)
    assert_same(found, given)
    assert reader.ledger.verified_bytes >= writer.report["bytes_raw"]
    (row,) = forebay.Checkpointer(place).checkpoints()
    assert row["metadata"] == {"big": 1 << 90, "loss": 3.5, "note": "first"}


def test_the_other_interface_loads_it_and_the_other_way_round(place: Path) -> None:
    given = trained()
    dcp.save(given, storage_writer=ForebayWriter(place))
    with forebay.Checkpointer(place) as ckpt:
        assert_same(ckpt.load(), given)
        assert ckpt.verify()["is_whole"]
        target = {"model": emptied(given["model"]), "half": torch.zeros(7, 5).bfloat16()}
        ckpt.load_into(target, strict=False)
        assert_same(target, {"model": given["model"], "half": given["half"]})
        other = {
            **trained(2),
            "shared": given["half"][:3],
            "same": given["half"],
            "half": given["half"],
            "kind": collections.OrderedDict(a=1),
            "rows": given["model"]["0.weight"].t(),
        }
        other["model"]["0.weight"] = given["model"]["0.weight"]
        ckpt.save(5, other).wait()
    found = emptied(other)
    dcp.load(found, storage_reader=ForebayReader(place))
    other["kind"] = dict(other["kind"])
    assert_same(found, other)


def test_states_of_ranks_of_the_other_interface(place: Path) -> None:
    numpy = pytest.importorskip("numpy")
    given = {
        "array": numpy.arange(6).reshape(2, 3),
        "kept": numpy.float32(2.5),
        "w": torch.ones(2),
        3: {"x": 4},
    }
    forebay.Checkpointer(place).save(1, given).wait()
    found = {"array": None, "kept": None, "w": torch.zeros(2), "3": {"x": None}}
    dcp.load(found, storage_reader=ForebayReader(place))
    numpy.testing.assert_array_equal(found["array"], given["array"])
    assert found["kept"] == 2.5
    assert found["3"] == {"x": 4}
    forebay.Checkpointer(place).save(2, [torch.ones(2)]).wait()
    with pytest.raises(dcp.CheckpointException, match="loads dicts"):
        dcp.load({"w": torch.zeros(2)}, storage_reader=ForebayReader(place))


@pytest.mark.parametrize(
    ("given", "step"),
    [
        (12, 12),
        ("12", 12),
        ("step-0012", 12),
        ("epoch3_step12", 12),
        ("/runs/a/step-12", 12),
        ("/runs/a/12/", 12),
        (Path("/runs/a/12"), 12),
        ("file:///runs/a/12", 12),
        ("/runs/a", None),
        ("/runs/a/", None),
    ],
)
def test_checkpoint_ids_name_steps(given: Any, step: int | None) -> None:
    assert step_of(given, "/runs/a") == step


@pytest.mark.parametrize("given", ["latest", "/runs/a/final", "/runs/b/12", "s3://runs/a/12", "/runs/a/x/12"])
def test_other_checkpoint_ids_are_refused(given: str) -> None:
    with pytest.raises(forebay.InvalidInputError, match="checkpoint_id"):
        step_of(given, "/runs/a")


def test_steps(place: Path) -> None:
    writer = ForebayWriter(place)
    for checkpoint_id, step in ((None, 0), (7, 7), (None, 8), (f"{place}/step-20", 20), ("3", 3), (None, 21)):
        dcp.save({"w": torch.full((2,), float(step))}, checkpoint_id=checkpoint_id, storage_writer=writer)
        assert writer.report["step"] == step
    dcp.save({"w": torch.full((2,), 40.0)}, storage_writer=ForebayWriter(place, step=40))
    found = {"w": torch.zeros(2)}
    for own, given, expected in ((None, None, 40), (None, 7, 7), (3, None, 3), (3, "20", 20)):
        dcp.load(found, checkpoint_id=given, storage_reader=ForebayReader(place, step=own))
        assert found["w"][0] == expected
    with pytest.raises(dcp.CheckpointException, match="step 7 has a checkpoint already"):
        dcp.save({"w": torch.zeros(2)}, checkpoint_id=7, storage_writer=writer)
    with pytest.raises(dcp.CheckpointException, match="not -1"):
        dcp.save({"w": torch.zeros(2)}, checkpoint_id=-1, storage_writer=writer)
    dcp.save({"w": torch.ones(2)}, checkpoint_id=7, storage_writer=ForebayWriter(place, overwrite=True))
    dcp.load(found, checkpoint_id=7, storage_reader=ForebayReader(place))
    assert found["w"][0] == 1
    with pytest.raises(dcp.CheckpointException, match="step 99"):
        dcp.load(found, checkpoint_id=99, storage_reader=ForebayReader(place))
    with pytest.raises(dcp.CheckpointException, match="there is no checkpoint"):
        dcp.load(found, storage_reader=ForebayReader(place / "nothing"))
    assert ForebayWriter.validate_checkpoint_id("a")
    assert not ForebayReader.validate_checkpoint_id("")


def test_a_checkpoint_that_was_damaged_is_refused(place: Path) -> None:
    given = {"a": torch.randn(3000), "b": torch.randn(3000)}
    dcp.save(given, storage_writer=ForebayWriter(place))
    (payload,) = place.rglob("*.safetensors")
    data = bytearray(payload.read_bytes())
    data[-5] ^= 1
    payload.write_bytes(data)
    found = {"b": torch.zeros(3000)}
    with pytest.raises(dcp.CheckpointException) as caught:
        dcp.load(found, storage_reader=ForebayReader(place))
    assert "hash" in message_of(caught.value)
    assert not torch.equal(found["b"], given["b"])
    found = {"a": torch.zeros(3000)}
    dcp.load(found, storage_reader=ForebayReader(place))
    assert torch.equal(found["a"], given["a"])


def test_no_pickle_unless_both_sides_say_so(place: Path) -> None:
    given = {"w": torch.ones(3), "deep": {"thing": Thing(5)}}
    writer = ForebayWriter(place)
    with pytest.raises(
        dcp.CheckpointException, match=r"deep.thing: an object of type .*Thing cannot be saved"
    ):
        dcp.save(given, storage_writer=writer)
    assert forebay.Checkpointer(place).steps() == []
    # What was begun is given up at once.
    assert list((place / "pins").glob("*")) == []
    dcp.save(given, storage_writer=ForebayWriter(place, allow_pickle=True))
    found = {"w": torch.zeros(3), "deep": {"thing": None}}
    with pytest.raises(dcp.CheckpointException, match="was saved as a pickle"):
        dcp.load(found, storage_reader=ForebayReader(place))
    # Nothing was overwritten before that was known.
    assert found["w"].sum() == 0
    with pytest.raises(forebay.UnsupportedError, match="was saved as a pickle"):
        forebay.Checkpointer(place).load()
    dcp.load(found, storage_reader=ForebayReader(place, allow_pickle=True))
    assert found == {"w": found["w"], "deep": {"thing": Thing(5)}}
    assert forebay.Checkpointer(place).load(allow_pickle=True)["deep"]["thing"] == Thing(5)


class OwnBytes(DefaultSavePlanner):  # type: ignore[misc]
    """A planner that writes values in its own way."""

    def transform_object(self, write_item: Any, object: Any) -> Any:  # noqa: A002
        if isinstance(object, str):
            return io.BytesIO(b"own:" + object.encode())
        return super().transform_object(write_item, object)


class OwnLoad(DefaultLoadPlanner):  # type: ignore[misc]
    """And one that reads them."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        if value.getvalue().startswith(b"own:"):
            self.state_dict[read_item.dest_index.fqn] = value.getvalue()[4:].decode()
            self.original_state_dict[read_item.dest_index.fqn] = value.getvalue()[4:].decode()
        else:
            super().load_bytes(read_item, value)


def test_planners_of_others(place: Path) -> None:
    given = {"w": torch.ones(3), "text": "abc", "number": 5}
    with pytest.raises(dcp.CheckpointException, match="text: what the planner makes of it"):
        dcp.save(given, storage_writer=ForebayWriter(place), planner=OwnBytes())
    dcp.save(given, storage_writer=ForebayWriter(place, allow_pickle=True), planner=OwnBytes())
    found = {"w": torch.zeros(3), "text": None, "number": None}
    dcp.load(found, storage_reader=ForebayReader(place, allow_pickle=True), planner=OwnLoad())
    assert_same(found, given)


class Halved(DefaultSavePlanner):  # type: ignore[misc]
    """Saves tensors as others than they are."""

    def resolve_data(self, write_item: Any) -> Any:
        found = super().resolve_data(write_item)
        return found.to(torch.float16) if isinstance(found, torch.Tensor) else found


def test_other_dtypes_are_converted_as_torch_does(place: Path) -> None:
    given = {"w": torch.randn(10, 4), "x": torch.arange(5)}
    dcp.save(given, storage_writer=ForebayWriter(place))
    found = {"w": torch.zeros(10, 4, dtype=torch.bfloat16), "x": torch.zeros(5, dtype=torch.float64)}
    dcp.load(found, storage_reader=ForebayReader(place))
    assert_same(found, {"w": given["w"].bfloat16(), "x": given["x"].double()})
    dcp.save({"w": given["w"], "n": 1}, storage_writer=ForebayWriter(place), planner=Halved())
    found = {"w": torch.zeros(10, 4), "n": 0}
    dcp.load(found, storage_reader=ForebayReader(place))
    assert_same(found, {"w": given["w"].half().float(), "n": 1})


def test_every_dtype(place: Path) -> None:
    bits = torch.randint(0, 256, (12, 64), dtype=torch.uint8)
    given = {}
    for kind in {kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}:
        if "q" not in str(kind):
            try:
                # Planners of torch ask for this, and some dtypes have none.
                torch._utils._element_size(kind)
                given[str(kind)] = bits.view(kind) if kind != torch.bool else bits > 7
            except (RuntimeError, TypeError, NotImplementedError):
                continue
    assert len(given) >= 20
    dcp.save(given, storage_writer=ForebayWriter(place))
    metadata = ForebayReader(place).read_metadata().state_dict_metadata
    for name, tensor in given.items():
        assert metadata[name].properties.dtype == tensor.dtype, name
        assert metadata[name].size == tensor.shape, name
    found = {name: torch.zeros(12, 64, dtype=torch.uint8).view(one.dtype) for name, one in given.items()}
    dcp.load(found, storage_reader=ForebayReader(place))
    for name, tensor in given.items():
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name
    loaded = forebay.Checkpointer(place).load()
    assert all(loaded[name].dtype == tensor.dtype for name, tensor in given.items())


def test_without_flattening(place: Path) -> None:
    given = {"model": {"w": torch.randn(4), "n": 3}, "x": torch.randn(2), "pair": (torch.ones(2), "y")}
    dcp.save(given, storage_writer=ForebayWriter(place), planner=DefaultSavePlanner(flatten_state_dict=False))
    found = {"model": None, "x": torch.zeros(2), "pair": None}
    # With the other flattening, torch sets values in a copy of the dict.
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.load(found, storage_reader=ForebayReader(place), planner=planner)
    assert_same(found, given)
    assert_same(forebay.Checkpointer(place).load(), given)


def test_parts_of_states(place: Path) -> None:
    given = {"a": {"x": torch.randn(3), "y": 2}, "b": torch.randn(2), "c": "text"}
    dcp.save(given, storage_writer=ForebayWriter(place))
    some = {"a": {"x": torch.zeros(3)}, "new": torch.zeros(1)}
    with pytest.raises(dcp.CheckpointException, match="Missing key"):
        dcp.load(some, storage_reader=ForebayReader(place))
    planner = DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(some, storage_reader=ForebayReader(place), planner=planner)
    assert_same(some, {"a": {"x": given["a"]["x"]}, "new": torch.zeros(1)})
    with pytest.raises(dcp.CheckpointException, match="Size mismatch"):
        dcp.load({"b": torch.zeros(3)}, storage_reader=ForebayReader(place))
    whole: dict[str, Any] = {}
    dcp.state_dict_loader._load_state_dict(
        whole, storage_reader=ForebayReader(place), planner=_EmptyStateDictLoadPlanner(), no_dist=True
    )
    assert_same(whole, given)


def test_objects_with_states(place: Path) -> None:
    torch.manual_seed(3)
    model, other = torch.nn.Linear(5, 6), torch.nn.Linear(5, 6)
    dcp.save({"model": model}, storage_writer=ForebayWriter(place))
    dcp.load({"model": other}, storage_reader=ForebayReader(place))
    assert_same(other.state_dict(), dict(model.state_dict()))


def test_incremental_saves_reference_what_did_not_change(place: Path) -> None:
    writer = ForebayWriter(place, incremental=True, full_every=3, chunk_bytes=4096)
    weights = torch.randn(64, 1024)
    chains = []
    for number in range(5):
        weights[0] = number
        dcp.save({"w": weights}, storage_writer=writer)
        chains.append(writer.report["chunks_referenced"])
    assert chains == [0, 63, 63, 0, 63]
    found = {"w": torch.zeros(64, 1024)}
    dcp.load(found, storage_reader=ForebayReader(place))
    assert_same(found, {"w": weights})


def test_what_is_saved_in_the_background_may_be_changed(place: Path) -> None:
    given = trained()
    expected = [trained(seed) for seed in (1, 2, 3)]
    writer = ForebayWriter(place)
    for number in (1, 2, 3):
        for name in ("half", "scalar", "turned", "some"):
            given[name].copy_(expected[number - 1][name])
        given["loss"] = number
        saved = dcp.async_save(given, checkpoint_id=number, storage_writer=writer)
        for name in ("half", "scalar", "turned", "some"):
            given[name].zero_()
        saved.result()
    assert writer._stager is not None
    assert writer._stager.allocations == 1
    for number in (1, 2, 3):
        found = forebay.Checkpointer(place).load(number)
        for name in ("half", "scalar", "turned", "some"):
            assert torch.equal(found[name], expected[number - 1][name]), name
        assert found["loss"] == number
    assert writer._stager.nbytes > 0
    stager = writer._stager
    writer.close()
    assert stager.nbytes == 0
    with pytest.raises(forebay.InvalidInputError, match="closed"):
        stager.stage({})


@pytest.mark.parametrize("shared", [False, True])
def test_a_copy_that_is_still_read_is_not_overwritten(shared: bool) -> None:
    stager = ForebayStager(shared=shared)
    first = stager.stage(
        {"w": torch.ones(5000), "e": torch.empty(0), "c": torch.ones(3, dtype=torch.cfloat).conj()}
    )
    second = stager.stage({"w": torch.zeros(5000)})
    assert first["w"].sum() == 5000
    assert first["w"].is_shared() == shared
    assert stager.allocations == 2
    del first, second
    third = stager.stage({"w": torch.ones(5000)})
    assert stager.allocations == 2
    kind = collections.OrderedDict(a=[torch.ones(1)])
    assert type(stager.stage({"kind": kind})["kind"]) is collections.OrderedDict
    stager.close()
    assert third["w"].sum() == 5000


def test_a_stager_of_its_own(place: Path) -> None:
    stager = ForebayStager()
    writer = ForebayWriter(place)
    for number in range(3):
        saved = dcp.async_save({"w": torch.full((4,), number)}, storage_writer=writer, async_stager=stager)
        saved.result()
    assert stager.allocations == 1
    assert forebay.Checkpointer(place).load()["w"].tolist() == [2] * 4
    stager.close()


def test_values_that_name_pickles_or_themselves_are_refused(place: Path) -> None:
    """Of checkpoints that somebody has made to be loaded: a value may name what a structure does not."""
    from forebay._forebay import EntryName, NativeAttempt, NativeCheckpoints

    for step, others, error in (
        (
            1,
            [("a", "value", [EntryName("b")]), ("b", "opaque", b"cos\nsystem\n(S'exit 1'\ntR.")],
            "as a pickle",
        ),
        (2, [("a", "value", {"x": EntryName("a")})], "contains itself"),
    ):
        native = NativeCheckpoints(str(place), {})
        options = {"step": step, "attempt": native.draw(), "rank": 0, "world": 1, "is_coordinator": True}
        options |= {"hash": "xxh3", "publish": "if_absent", "timeout": 1.0, "join_timeout": 1.0}
        attempt = NativeAttempt(native, options)
        attempt.write(None, [], [*others, ("forebay.state", "value", {"a": EntryName("a")})], None)
        attempt.commit({})
        with pytest.raises(forebay.PreconditionError, match="over"):
            attempt.commit({})
        with pytest.raises(forebay.ForebayError, match=error):
            forebay.Checkpointer(place).load(step)
        with pytest.raises(dcp.CheckpointException, match=error):
            dcp.load({"a": None}, storage_reader=ForebayReader(place, step=step))


# Ranks.


def full(seed: int = 0) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    return {
        "rows": torch.randn(37, 20, generator=made),
        "columns": torch.randn(12, 41, generator=made),
        "few": torch.randn(2, 3, generator=made),
        "same": torch.randn(300, generator=made),
        "plain": torch.randn(50, generator=made),
    }


def spread(tensors: dict[str, Any], mesh: Any) -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    places = {"rows": Shard(0), "columns": Shard(1), "few": Shard(0), "same": Replicate()}
    return {
        name: distribute_tensor(tensor, mesh, [places[name]]) if name in places else tensor.clone()
        for name, tensor in tensors.items()
    }


def gathered(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def zeroed(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def save_spread(mesh: Any, place: str, mode: str) -> None:
    writer = ForebayWriter(place, shared=mode == "process")
    for step in (1, 2):
        state: dict[str, Any] = {"model": spread(full(step), mesh), "step": step}
        if mode == "save":
            dcp.save(state, checkpoint_id=step, storage_writer=writer)
        else:
            from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

            kind = AsyncCheckpointerType.THREAD if mode == "thread" else AsyncCheckpointerType.PROCESS
            future = dcp.async_save(
                state, checkpoint_id=step, storage_writer=writer, async_checkpointer_type=kind
            )
            for tensor in state["model"].values():
                getattr(tensor, "_local_tensor", tensor).zero_()
            future.result()
            assert writer._stager is not None
            assert writer._stager.allocations == 1
    assert forebay.Checkpointer(place, rank=0, world=1).latest() == 2
    torch.distributed.barrier()


def load_spread(mesh: Any, place: str) -> None:
    for given, step in ((None, 2), (1, 1)):
        state: dict[str, Any] = {"model": spread(zeroed(full()), mesh), "step": 0}
        dcp.load(state, checkpoint_id=given, storage_reader=ForebayReader(place))
        assert state["step"] == step
        for name, tensor in full(step).items():
            assert torch.equal(gathered(state["model"][name]), tensor), (name, step)


def save_plainly(mesh: Any, place: str) -> None:
    rank = torch.distributed.get_rank()
    ckpt = forebay.Checkpointer(place)
    ckpt.save(4, {"model": spread(full(4), mesh), "rng": torch.tensor([rank]), "mine": rank}).wait()
    state = {
        "model": spread(zeroed(full()), mesh),
        "rng": torch.tensor([-1]),
        "mine": None,
    }
    dcp.load(state, storage_reader=ForebayReader(place))
    assert state["rng"].tolist() == [rank]
    assert state["mine"] == rank
    for name, tensor in full(4).items():
        assert torch.equal(gathered(state["model"][name]), tensor), name
    dcp.save({"model": spread(full(5), mesh)}, checkpoint_id=5, storage_writer=ForebayWriter(place))
    target = {"model": spread(zeroed(full()), mesh)}
    ckpt.load_into(target, step=5)
    for name, tensor in full(5).items():
        assert torch.equal(gathered(target["model"][name]), tensor), name
    ckpt.close()


def save_and_fail(mesh: Any, place: str) -> None:
    rank = torch.distributed.get_rank()
    writer = ForebayWriter(place)
    good = {"model": spread(full(1), mesh)}
    dcp.save(good, checkpoint_id=1, storage_writer=writer)
    for failing in (0, 1):
        bad = {"model": spread(full(2), mesh), f"own{rank}": (lambda: 0) if rank == failing else 1}
        with pytest.raises(dcp.CheckpointException) as caught:
            dcp.save(bad, checkpoint_id=2, storage_writer=writer)
        assert f"own{failing}: a function cannot be saved" in message_of(caught.value)
        assert forebay.Checkpointer(place, rank=0, world=1).steps() == [1]
        torch.distributed.barrier()
    with pytest.raises(dcp.CheckpointException) as caught:
        dcp.save(good, checkpoint_id=3 + rank, storage_writer=writer)
    assert "rank 1 saves step 4, and the coordinator step 3" in message_of(caught.value)
    dcp.save(good, checkpoint_id=2, storage_writer=writer)
    torch.distributed.barrier()
    assert forebay.Checkpointer(place, rank=0, world=1).steps() == [1, 2]


def save_with_kept_plans(mesh: Any, place: str) -> None:
    rank = torch.distributed.get_rank()
    for step in range(1, 5):
        # A new writer and planner each time: what is kept is kept by torch.
        state = {"model": spread(full(step), mesh), "step": step}
        if step == 4:
            state["more"] = torch.ones(rank + 1) if rank == 0 else torch.ones(1)
        planner = DefaultSavePlanner(enable_plan_caching=True)
        writer = ForebayWriter(place, timeout=20)
        dcp.save(state, checkpoint_id=step, storage_writer=writer, planner=planner)
    planner = DefaultSavePlanner(enable_plan_caching=True)
    with pytest.raises(dcp.CheckpointException) as caught:
        dcp.save(state, storage_writer=ForebayWriter(place, timeout=20), planner=planner)
    assert "needs a step for each save" in message_of(caught.value)


def save_without_a_word(mesh: Any, place: str) -> None:
    world = torch.distributed.get_world_size()
    writer = ForebayWriter(place, run_id="first", timeout=60)
    state = {"model": spread(full(1), mesh), "step": 1}
    dcp.save(state, checkpoint_id=1, storage_writer=writer, use_collectives=False)
    assert writer.report["world"] == world
    again: dict[str, Any] = {"model": spread(zeroed(full()), mesh), "step": 0}
    dcp.load(again, storage_reader=ForebayReader(place))
    for name, tensor in full(1).items():
        assert torch.equal(gathered(again["model"][name]), tensor), name


def fsdp(mesh: Any, place: str) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    def made(seed: int) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(9, 13), torch.nn.Linear(13, 3))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optim = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(torch.full((2, 9), float(seed))).sum().backward()
        optim.step()
        optim.zero_grad()
        return model, optim

    model, optim = made(1)
    weights, moments = get_state_dict(model, optim)
    writer = ForebayWriter(place)
    dcp.async_save({"model": weights, "optim": moments}, checkpoint_id=1, storage_writer=writer).result()
    other, other_optim = made(2)
    state = dict(zip(("model", "optim"), get_state_dict(other, other_optim), strict=True))
    dcp.load(state, storage_reader=ForebayReader(place))
    set_state_dict(other, other_optim, model_state_dict=state["model"], optim_state_dict=state["optim"])
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a.full_tensor(), b.full_tensor())
    for key, one in optim.state_dict()["state"].items():
        for name, value in one.items():
            found = other_optim.state_dict()["state"][key][name]
            assert torch.equal(gathered(found), gathered(value)), (key, name)


MODES = ("save", "thread", "process")


def every_save(rank: int, world: int, meeting: str, folder: str) -> None:
    """All in one set of processes: starting them takes longer than what they do."""
    mesh = begin(rank, world, meeting)
    for mode in MODES:
        save_spread(mesh, f"{folder}/{mode}", mode)
    for scenario in (save_plainly, save_and_fail, save_with_kept_plans, save_without_a_word, fsdp):
        scenario(mesh, f"{folder}/{scenario.__name__}")
    torch.distributed.destroy_process_group()


def every_load(rank: int, world: int, meeting: str, folder: str) -> None:
    mesh = begin(rank, world, meeting)
    for mode in MODES:
        load_spread(mesh, f"{folder}/{mode}")
    state = {"model": spread(zeroed(full()), mesh)}
    dcp.load(state, storage_reader=ForebayReader(f"{folder}/save_without_a_word"))
    for name, tensor in full(1).items():
        assert torch.equal(gathered(state["model"][name]), tensor), name
    torch.distributed.destroy_process_group()


@pytest.mark.timeout(600)
def test_ranks(tmp_path: Path) -> None:
    spawn(every_save, 2, tmp_path, str(tmp_path))
    for mode in MODES:
        with forebay.Checkpointer(tmp_path / mode) as ckpt:
            assert_same(ckpt.load(), {"model": full(2), "step": 2})
            assert ckpt.verify()["is_whole"]
            # What several ranks have is written by one of them.
            assert ckpt.checkpoints()[-1]["bytes_total"] == sum(tensor.nbytes for tensor in full().values())
            assert ckpt.checkpoints()[-1]["world"] == 2
    # What failed was given up.
    assert list(tmp_path.glob("*/pins/*")) == []
    with forebay.Checkpointer(tmp_path / "save_with_kept_plans") as ckpt:
        assert ckpt.steps() == [1, 2, 3, 4]
        for step in range(1, 5):
            found = ckpt.load(step)
            assert_same(found["model"], full(step))
            assert found["step"] == step
    spawn(every_load, 3, tmp_path, str(tmp_path))


EXAMPLE = Path(__file__).parents[3] / "examples" / "checkpoint_dcp.py"


@pytest.mark.timeout(600)
@pytest.mark.skipif(not EXAMPLE.exists(), reason="not in a checkout")
def test_the_example_goes_on_with_other_ranks(tmp_path: Path) -> None:
    def run(place: str, world: int, steps: int) -> str:
        command = [sys.executable, str(EXAMPLE), str(tmp_path / place)]
        command += ["--world", str(world), "--steps", str(steps)]
        done = subprocess.run(command, check=True, timeout=200, capture_output=True, text=True)
        return done.stdout.splitlines()[-1]

    whole = run("whole", 1, 4)
    run("cut", 2, 2)
    assert run("cut", 1, 4) == whole
    assert forebay.Checkpointer(tmp_path / "cut").steps() == [3, 4]


DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.skipif(not DOCS.exists(), reason="not in a checkout")
def test_the_guide_and_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "guides" / "checkpoint.md").read_text()
    (block,) = re.findall(r"```python torch\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "checkpoint.md", "exec"), {"state": {"w": torch.ones(2), "step": 5}})
    assert forebay.Checkpointer(tmp_path / "runs" / "c").steps() == [1200, 1300]
    reference = (DOCS / "reference" / "python.md").read_text()
    for kind in (ForebayWriter, ForebayReader, ForebayStager):
        for parameter in inspect.signature(kind).parameters:
            assert f"`{parameter}" in reference, parameter
