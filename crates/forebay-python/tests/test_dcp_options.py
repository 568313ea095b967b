"""Options of the writer and reader for torch.distributed.checkpoint, tied weights, ranks that fail."""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path
from typing import Any

import forebay
import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from forebay.dcp import ForebayReader, ForebayStager, ForebayWriter  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner  # noqa: E402
from torch_ranks import begin, spawn  # noqa: E402

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)"),
]

# Two pairs of Ed25519 keys, from the examples of RFC 8032: secret and public.
KEYS = (
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    ),
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


def state(seed: int = 1) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    return {"model": {"w": torch.randn(90, 70, generator=made)}, "zeros": torch.zeros(1 << 16), "n": seed}


def empty() -> dict[str, Any]:
    return {"model": {"w": torch.zeros(90, 70)}, "zeros": torch.ones(1 << 16), "n": 0}


def assert_loads(place: Path, expected: dict[str, Any], **options: Any) -> None:
    found = empty()
    dcp.load(found, storage_reader=ForebayReader(place, **options))
    assert torch.equal(found["model"]["w"], expected["model"]["w"])
    assert torch.equal(found["zeros"], expected["zeros"])
    assert found["n"] == expected["n"]


def private(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    path.chmod(0o600)
    return str(path)


def test_sealed_checkpoints_need_their_key(place: Path, tmp_path: Path) -> None:
    keys = [private(tmp_path / f"key{number}", bytes([number]) * 32) for number in (1, 2)]
    dcp.save(state(), storage_writer=ForebayWriter(place, key=keys[0]))
    (row,) = forebay.Checkpointer(place, key=keys[0]).checkpoints()
    assert "aes-256-gcm" in row["features"]
    for options in ({}, {"key": keys[1]}):
        found = empty()
        with pytest.raises(dcp.CheckpointException, match="key"):
            dcp.load(found, storage_reader=ForebayReader(place, **options))
        assert found["n"] == 0
    assert_loads(place, state(), key=keys[0])
    assert_loads(place, state(), key=keys)
    # Sealed for both: either opens it, and a save in the background is sealed, too.
    dcp.async_save(state(2), storage_writer=ForebayWriter(place, key=keys)).result()
    for key in keys:
        assert_loads(place, state(2), key=key)


def test_only_what_was_signed_by_those_who_are_trusted(place: Path, tmp_path: Path) -> None:
    prefix = bytes.fromhex("302e020100300506032b657004220420")
    secrets, publics = [], []
    for number, (secret, public) in enumerate(KEYS):
        body = base64.b64encode(prefix + bytes.fromhex(secret)).decode()
        pem = f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n"
        secrets.append(private(tmp_path / f"signer{number}", pem.encode()))
        (tmp_path / f"signer{number}.pub").write_text(public)
        publics.append(tmp_path / f"signer{number}.pub")
    with pytest.raises(dcp.CheckpointException, match="BLAKE3"):
        dcp.save(state(), storage_writer=ForebayWriter(place, sign=secrets[0]))
    dcp.save(state(), storage_writer=ForebayWriter(place, sign=secrets[0], hash="blake3"))
    assert_loads(place, state())
    assert_loads(place, state(), trust=publics[0])
    assert_loads(place, state(), trust=publics)
    with pytest.raises(dcp.CheckpointException, match="sign"):
        dcp.load(empty(), storage_reader=ForebayReader(place, trust=publics[1]))
    dcp.save(state(2), storage_writer=ForebayWriter(place, hash="sha256"))
    assert_loads(place, state(2))
    with pytest.raises(dcp.CheckpointException, match="sign"):
        dcp.load(empty(), checkpoint_id=1, storage_reader=ForebayReader(place, trust=publics))


@pytest.mark.parametrize("compress", ["lz4", "zstd", "zstd:3", "auto"])
def test_compressed_checkpoints(place: Path, compress: str) -> None:
    writer = ForebayWriter(place, compress=compress)
    dcp.save(state(), storage_writer=writer)
    assert writer.report["bytes_written"] < writer.report["bytes_raw"]
    assert_loads(place, state())
    with pytest.raises(dcp.CheckpointException, match="compress"):
        dcp.save(state(), storage_writer=ForebayWriter(place, compress="gzip"))


def test_everything_at_once(place: Path, tmp_path: Path) -> None:
    key = private(tmp_path / "key", bytes(range(32)))
    writer = ForebayWriter(
        place, key=key, compress="lz4", incremental=True, chunk_bytes=4096, hash="blake3", keep_last=2
    )
    given = state()
    for number in range(4):
        given["n"] = number
        given["model"]["w"][number] = number
        dcp.save(given, storage_writer=writer)
    assert writer.report["chunks_referenced"] > 0
    assert forebay.Checkpointer(place, key=key).steps() == [2, 3]
    assert_loads(place, given, key=key)


def test_who_saves_and_loads_is_noted(place: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    writer = ForebayWriter(place, access_log=log, keep_last=1)
    dcp.save(state(1), storage_writer=writer)
    dcp.save(state(2), storage_writer=writer)
    assert_loads(place, state(2), access_log=log)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    noted = [(line["op"], line["step"]) for line in lines]
    assert noted[:3] == [("save", 0), ("save", 1), ("gc", 0)]
    # Once for each time that bytes are asked for.
    assert set(noted[3:]) == {("load", 1)}
    # Nothing is loaded that cannot be noted.
    with pytest.raises(dcp.CheckpointException, match="access"):
        assert_loads(place, state(2), access_log=tmp_path / "nowhere" / "access.log")


def test_saves_and_loads_have_ids(place: Path) -> None:
    writer, reader = ForebayWriter(place), ForebayReader(place)
    made = [dcp.save(state(), storage_writer=writer) for _ in range(2)]
    saved = [metadata.storage_meta for metadata in made]
    # The version of its metadata that this torch writes, where it has one.
    version = getattr(dcp.filesystem, "CURRENT_DCP_VERSION", None)
    assert getattr(made[0], "version", None) == version
    assert getattr(reader.read_metadata(), "version", None) == version
    assert saved[1].save_id == writer.save_id != saved[0].save_id
    for step in (0, 1):
        reader.reset(step)
        found = reader.read_metadata().storage_meta
        assert found.checkpoint_id == saved[step].checkpoint_id == f"{place}/{step}"
        assert found.save_id == saved[step].save_id
        assert found.load_id == reader.load_id
    assert found.load_id != reader.read_metadata().storage_meta.load_id


class Tied(torch.nn.Module):  # type: ignore[misc]
    """A model whose first and last layer share their weights."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(50, 8)
        self.head = torch.nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("is_async", [False, True])
def test_tied_weights_are_stored_once(place: Path, is_async: bool) -> None:
    model, other = Tied(1), Tied(2)
    nbytes = model.embed.weight.nbytes
    writer = ForebayWriter(place)
    if is_async:
        dcp.async_save({"model": model}, storage_writer=writer).result()
    else:
        dcp.save({"model": model}, storage_writer=writer)
    assert writer.report["bytes_raw"] == nbytes
    dcp.load({"model": other}, storage_reader=ForebayReader(place))
    assert torch.equal(other.head.weight, model.head.weight)
    assert other.head.weight is other.embed.weight
    # Each name for itself, into memory of its own and of another dtype; and by the other interface.
    for name in ("embed.weight", "head.weight"):
        found = {"model": {name: torch.zeros(50, 8, dtype=torch.float64)}}
        dcp.load(found, storage_reader=ForebayReader(place))
        assert torch.equal(found["model"][name], model.embed.weight.detach().double()), name
    loaded = forebay.Checkpointer(place).load()["model"]
    assert loaded["head.weight"] is loaded["embed.weight"]


def test_what_only_looks_tied_is_stored_apart(place: Path) -> None:
    base = torch.randn(6, 6)
    given = {
        "a": base,
        "turned": base.t(),
        "some": base[:3],
        "bits": base.view(torch.int32),
        "none": base[:0],
        "none2": base[:0],
        "equal": base.clone(),
        "again": base,
    }
    writer = ForebayWriter(place)
    dcp.save(given, storage_writer=writer)
    # All but the last.
    assert writer.report["bytes_raw"] == sum(value.nbytes for value in given.values()) - base.nbytes
    found = {name: torch.zeros_like(value) for name, value in given.items()}
    dcp.load(found, storage_reader=ForebayReader(place))
    for name, value in given.items():
        assert torch.equal(found[name], value), name


def test_a_stager_copies_tied_tensors_once() -> None:
    for shared in (False, True):
        stager = ForebayStager(shared=shared)
        # More than what memory is rounded up to.
        weight = torch.randn(1 << 20)
        staged = stager.stage({"a": weight, "b": weight.detach(), "c": weight[:5], "d": weight.t()})
        assert staged["a"] is staged["b"]
        assert stager.nbytes < 2 * weight.nbytes
        weight.zero_()
        assert staged["a"].count_nonzero() > 0
        assert torch.equal(staged["c"], staged["a"][:5])
        stager.close()


def test_states_without_anything_and_subclasses_of_dict(place: Path) -> None:
    class Noting(dict[str, Any]):
        sets = 0

        def __setitem__(self, key: str, value: Any) -> None:
            self.sets += 1
            super().__setitem__(key, value)

    class Own:
        loaded: Any = None

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, given: dict[str, Any]) -> None:
            self.loaded = given

    writer = ForebayWriter(place)
    for save in (dcp.save, lambda *args, **kwargs: dcp.async_save(*args, **kwargs).result()):
        save({}, storage_writer=writer)
        dcp.load({}, storage_reader=ForebayReader(place))
        own = Own()
        given = Noting(own=own)
        save(given, storage_writer=writer)
        dcp.load(given, storage_reader=ForebayReader(place))
        # It is filled where it is, and stays there.
        assert own.loaded == {}
        assert (given.sets, given["own"]) == (0, own)
        given = Noting(plain={"w": torch.ones(2), "list": [1, 2]})
        save(given, storage_writer=writer)
        dcp.load(given, storage_reader=ForebayReader(place))
        assert given.sets == 1


def test_streams_of_bytes_are_objects(place: Path) -> None:
    given = {"losses": io.BytesIO(b"abc"), "w": torch.ones(2)}
    with pytest.raises(dcp.CheckpointException, match=r"losses: .*BytesIO cannot be saved"):
        dcp.save(given, storage_writer=ForebayWriter(place))
    dcp.async_save(given, storage_writer=ForebayWriter(place, allow_pickle=True)).result()
    found = {"losses": None, "w": torch.zeros(2)}
    dcp.load(found, storage_reader=ForebayReader(place, allow_pickle=True))
    assert found["losses"].getvalue() == b"abc"


def test_names_of_hugging_face(place: Path) -> None:
    """Flat dicts whose keys have dots in them; they come back flat."""
    given = {f"model.layers.{number}.mlp.weight": torch.full((3, 2), number).half() for number in range(12)}
    given["lm_head.weight"] = torch.randn(4)
    dcp.save(given, storage_writer=ForebayWriter(place))
    assert list(forebay.Checkpointer(place).load()) == list(given)
    found = {name: torch.zeros_like(value) for name, value in given.items()}
    dcp.load(found, storage_reader=ForebayReader(place))
    assert all(torch.equal(found[name], value) for name, value in given.items())
    loaded = dict(forebay.load(place, framework="torch").items())
    assert set(loaded) == set(given)


def test_keys_name_what_is_loaded_without_a_state(place: Path) -> None:
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    given = {
        "model": {"a.weight": torch.randn(3), "b": {"c": torch.randn(2)}},
        "optim": {"state": {0: {"step": torch.tensor(4.0)}}, "param_groups": [{"lr": 0.5}]},
    }
    dcp.save(given, storage_writer=ForebayWriter(place))
    reader = ForebayReader(place)
    found = _load_state_dict_from_keys("model", storage_reader=reader)
    assert list(found) == ["model"]
    assert torch.equal(found["model"]["a.weight"], given["model"]["a.weight"])
    assert torch.equal(found["model"]["b"]["c"], given["model"]["b"]["c"])
    found = _load_state_dict_from_keys({"optim.state"}, storage_reader=reader)
    assert list(found["optim"]) == ["state"]
    found = _load_state_dict_from_keys(storage_reader=reader)
    assert found["optim"]["param_groups"] == [{"lr": 0.5}]


class Renamed(DefaultLoadPlanner):  # type: ignore[misc]
    """Takes tensors from under other names than those they go to."""

    def create_local_plan(self) -> Any:
        import dataclasses

        before, self.metadata = (
            self.metadata,
            dataclasses.replace(
                self.metadata,
                state_dict_metadata={
                    name.removeprefix("old."): kind
                    for name, kind in self.metadata.state_dict_metadata.items()
                },
            ),
        )
        plan = super().create_local_plan()
        self.metadata = before
        items = [
            dataclasses.replace(
                item,
                storage_index=dataclasses.replace(item.storage_index, fqn=f"old.{item.storage_index.fqn}"),
            )
            for item in plan.items
        ]
        return dataclasses.replace(plan, items=items)


def test_planners_that_take_other_names(place: Path) -> None:
    given = {"old": {"w": torch.randn(5, 3), "n": 7}}
    dcp.save(given, storage_writer=ForebayWriter(place))
    found = {"w": torch.zeros(5, 3), "n": 0}
    dcp.load(found, storage_reader=ForebayReader(place), planner=Renamed())
    assert torch.equal(found["w"], given["old"]["w"])
    assert found["n"] == 7


# Ranks.


def spread(seed: int, mesh: Any) -> dict[str, Any]:
    """Tied tensors of every kind, and one that is not."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    made = torch.Generator().manual_seed(seed)
    rows = distribute_tensor(torch.randn(7, 4, generator=made), mesh, [Shard(0)])
    # One row: all ranks but the first have nothing of it.
    few = distribute_tensor(torch.randn(1, 4, generator=made), mesh, [Shard(0)])
    same = distribute_tensor(torch.randn(5, generator=made), mesh, [Replicate()])
    return {"embed": rows, "head": rows, "few": few, "few2": few, "same": same, "same2": same, "n": seed}


def whole(state: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.full_tensor() if hasattr(value, "full_tensor") else value for key, value in state.items()
    }


def assert_spread(mesh: Any, place: str, seed: int) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    expected = whole(spread(seed, mesh))
    tensors = {key: value for key, value in expected.items() if key != "n"}
    found: dict[str, Any] = {
        key: distribute_tensor(torch.zeros_like(value), mesh, [Shard(0)]) for key, value in tensors.items()
    }
    dcp.load(found, storage_reader=ForebayReader(place))
    for key, value in tensors.items():
        assert torch.equal(found[key].full_tensor(), value), key


def save_tied(mesh: Any, place: str) -> None:
    writer = ForebayWriter(place)
    dcp.save(spread(1, mesh), checkpoint_id=1, storage_writer=writer)
    dcp.async_save(spread(2, mesh), checkpoint_id=2, storage_writer=writer).result()
    assert_spread(mesh, place, 2)


def save_tied_here_and_not_there(mesh: Any, place: str) -> None:
    state = spread(1, mesh)
    if torch.distributed.get_rank() == 1:
        state["head"] = state["head"].clone()
    with pytest.raises(dcp.CheckpointException) as caught:
        dcp.save(state, checkpoint_id=1, storage_writer=ForebayWriter(place))
    said = " ".join(str(one[0]) for one in caught.value.failures.values())
    assert "head shares its memory with embed on rank 0, and not on rank 1" in said


def save_with_kept_plans(mesh: Any, place: str) -> None:
    for step in (1, 2, 3):
        state = spread(step, mesh)
        if step == 3 and torch.distributed.get_rank() == 1:
            state["more"] = torch.ones(3)
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(state, checkpoint_id=step, storage_writer=ForebayWriter(place, timeout=20), planner=planner)
        assert_spread(mesh, place, step)


def save_without_a_word(mesh: Any, place: str) -> None:
    writer = ForebayWriter(place, run_id="first", timeout=60)
    dcp.save(spread(1, mesh), checkpoint_id=1, storage_writer=writer, use_collectives=False)
    assert_spread(mesh, place, 1)


def save_by_another_coordinator(mesh: Any, place: str) -> None:
    writer = ForebayWriter(place)
    for step, coordinator in ((1, 1), (2, 0)):
        writer.reset(step)
        dcp.state_dict_saver._save_state_dict(
            spread(step, mesh), storage_writer=writer, coordinator_rank=coordinator
        )
        is_coordinator = torch.distributed.get_rank() == coordinator
        assert ("bytes_total" in writer.report) == is_coordinator
        assert_spread(mesh, place, step)


def save_what_says_where_it_is(mesh: Any, place: str) -> None:
    """Plain tensors that carry their place in a larger one, in torch that knows such."""
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if not hasattr(dcp, "protocol"):
        return

    def placed(tensor: Any) -> Any:
        tensor.global_shape, tensor.global_offsets = (4 * world,), ((4 * rank,),)
        tensor.local_offsets, tensor.local_sizes = ((0,),), ((4,),)
        return tensor

    dcp.save({"w": placed(torch.arange(4.0) + 4 * rank)}, storage_writer=ForebayWriter(place))
    found = {"w": placed(torch.empty(4, device="meta"))}
    dcp.load(found, storage_reader=ForebayReader(place))
    assert found["w"].tolist() == [4.0 * rank + number for number in range(4)]
    whole = {"w": torch.zeros(4 * world)}
    dcp.load(whole, storage_reader=ForebayReader(place))
    assert torch.equal(whole["w"], torch.arange(4.0 * world))


def fail_in_another_process(mesh: Any, place: str) -> None:
    """What cannot be saved is told by the process that saves, which goes on."""
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    rank = torch.distributed.get_rank()
    writer = ForebayWriter(place, shared=True, timeout=60)
    for step in (1, 2, 3):
        state = spread(step, mesh)
        if step == 2 and rank == 1:
            state["own1"] = io.BytesIO(b"")
        future = dcp.async_save(
            state,
            checkpoint_id=step,
            storage_writer=writer,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        error = future.exception()
        if step == 2:
            assert error is not None
            assert "BytesIO cannot be saved" in str(error)
        else:
            assert error is None, error
        torch.distributed.barrier()
    assert forebay.Checkpointer(place, rank=0, world=1).steps() == [1, 3]
    assert_spread(mesh, place, 3)


SCENARIOS = (
    save_tied,
    save_tied_here_and_not_there,
    save_with_kept_plans,
    save_without_a_word,
    save_by_another_coordinator,
    save_what_says_where_it_is,
    fail_in_another_process,
)


def every_save(rank: int, world: int, meeting: str, folder: str) -> None:
    mesh = begin(rank, world, meeting)
    for scenario in SCENARIOS:
        scenario(mesh, f"{folder}/{scenario.__name__}")
    torch.distributed.destroy_process_group()


@pytest.mark.timeout(600)
def test_ranks(tmp_path: Path) -> None:
    spawn(every_save, 2, tmp_path, str(tmp_path))
    floats = 7 * 4 + 4
    with forebay.Checkpointer(tmp_path / "save_tied") as ckpt:
        for step in (1, 2):
            row = next(row for row in ckpt.checkpoints() if row["step"] == step)
            # The two that all ranks have are a pair if torch has one rank write both.
            assert row["bytes_total"] - floats * 4 in {5 * 4, 2 * 5 * 4}, row
            assert ckpt.verify(step)["is_whole"]
            loaded = ckpt.load(step)
            assert torch.equal(loaded["head"], loaded["embed"])
    assert forebay.Checkpointer(tmp_path / "save_tied_here_and_not_there").steps() == []
    # What failed was given up.
    assert list(tmp_path.glob("*/pins/*")) == []


class Dies(DefaultSavePlanner):  # type: ignore[misc]
    """Ends the process while it is asked for what is to be written."""

    def resolve_data(self, write_item: Any) -> Any:
        os._exit(3)


def lose_a_rank(rank: int, world: int, meeting: str, place: str) -> None:
    mesh = begin(rank, world, meeting)
    writer = ForebayWriter(place, timeout=10)
    dcp.save(spread(1, mesh), checkpoint_id=1, storage_writer=writer)
    planner = Dies() if rank == 1 else None
    try:
        dcp.save(spread(2, mesh), checkpoint_id=2, storage_writer=writer, planner=planner)
    except Exception:
        # Whatever torch makes of a rank that is gone: it is not committed.
        assert forebay.Checkpointer(place, rank=0, world=1).steps() == [1]
        writer.close()
        os._exit(5)
    os._exit(6)


def go_on(rank: int, world: int, meeting: str, place: str) -> None:
    mesh = begin(rank, world, meeting)
    assert_spread(mesh, place, 1)
    dcp.save(spread(2, mesh), checkpoint_id=2, storage_writer=ForebayWriter(place))
    assert_spread(mesh, place, 2)
    torch.distributed.destroy_process_group()


@pytest.mark.timeout(600)
def test_a_rank_that_dies_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    context = torch.multiprocessing.get_context("spawn")
    place = str(tmp_path / "run")
    meeting = f"file://{tmp_path}/meeting"
    started = [context.Process(target=lose_a_rank, args=(rank, 2, meeting, place)) for rank in (0, 1)]
    for process in started:
        process.start()
    for process in started:
        process.join(200)
    assert [process.exitcode for process in started] == [5, 3]
    assert forebay.Checkpointer(place).steps() == [1]
    # Those who are started anew load what there is, and save the step that was lost.
    spawn(go_on, 2, tmp_path, place)
    assert forebay.Checkpointer(place).steps() == [1, 2]
