"""Checkpoints of torch, where it is installed: every kind of tensor, modules and optimizers, ranks."""

from __future__ import annotations

import copy
import os
import subprocess
from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay._ranks import share_out

torch = pytest.importorskip("torch")

from torch_ranks import begin, spawn  # noqa: E402

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


def same_bits(a: Any, b: Any) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.numel() == 0:
        return True
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def every_dtype() -> list[Any]:
    kinds = (getattr(torch, name) for name in dir(torch))
    dtypes = {kind for kind in kinds if isinstance(kind, torch.dtype)}
    return sorted(dtypes, key=str)


def test_every_dtype_comes_back(place: Path) -> None:
    bits = torch.randint(0, 256, (12, 64), dtype=torch.uint8)
    given, refused = {}, []
    for dtype in every_dtype():
        name = str(dtype)
        if dtype in (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4):
            continue
        try:
            given[name] = bits.view(dtype) if dtype != torch.bool else bits > 7
        except (RuntimeError, TypeError, NotImplementedError):
            # Names without any tensors, such as 3-bit integers.
            refused.append(name)
    assert len(given) >= 20, given.keys()
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, given).wait()
        found = ckpt.load()
        assert list(found) == list(given)
        for name, tensor in given.items():
            assert same_bits(found[name], tensor), name
        target = {
            name: torch.zeros(12, 64, dtype=torch.uint8).view(tensor.dtype)
            for name, tensor in given.items()
            if tensor.dtype != torch.bool
        }
        ckpt.load_into(target, strict=False)
        for name, tensor in target.items():
            assert same_bits(tensor, given[name]), name


def test_strides_scalars_and_flags(place: Path) -> None:
    base = torch.randn(6, 8, 10)
    given = {
        "turned": base.transpose(0, 2),
        "steps": base[::2, :, ::3],
        "wide": torch.ones(1).expand(4, 5),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "conjugate": torch.randn(4, dtype=torch.complex64).conj(),
        "negative": torch.randn(4, dtype=torch.complex64).conj().imag,
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
    }
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, given).wait()
        found = ckpt.load()
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name], value.detach()), name
        else:
            assert found[name] == value
            assert type(found[name]) is type(value)
    with pytest.raises(forebay.InvalidInputError, match=r"a\[0\]: a tensor of layout .*to_dense"):
        forebay.Checkpointer(place).save(2, {"a": [torch.eye(3).to_sparse()]})
    with pytest.raises(forebay.InvalidInputError, match="a: a tensor on the device meta"):
        forebay.Checkpointer(place).save(2, {"a": torch.empty(3, device="meta")})


def test_shared_storages_are_stored_once_and_shared_again(place: Path) -> None:
    weight = torch.randn(50, 40)
    flat = torch.arange(1000.0)
    given = {
        "embed": weight,
        "head": weight,
        "turned": weight.t(),
        "rows": weight[10:20],
        "flat": flat,
        "views": [flat[:400].view(20, 20), flat[400:]],
        "other": torch.randn(50, 40),
    }
    with forebay.Checkpointer(place) as ckpt:
        job = ckpt.save(1, given)
        job.wait()
        assert job.bytes_total == (2 * 50 * 40 + 1000) * 4
        found = ckpt.load()
        for name in ("embed", "head", "turned", "rows", "flat", "other"):
            assert torch.equal(found[name], given[name]), name
        assert torch.equal(found["views"][0], given["views"][0])
        found["embed"].zero_()
        assert found["head"].abs().sum() == found["turned"].abs().sum() == found["rows"].abs().sum() == 0
        # In place, other names are loaded like any tensor.
        target = {name: torch.zeros(given[name].shape) for name in ("turned", "rows")}
        ckpt.load_into(target, strict=False)
        assert torch.equal(target["turned"], weight.t())
        assert torch.equal(target["rows"], weight[10:20])


def model(seed: int) -> tuple[Any, Any, Any]:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 2))
    optim = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optim, 3)
    for _ in range(4):
        net(torch.randn(8, 30)).square().sum().backward()
        optim.step()
        schedule.step()
        optim.zero_grad()
    return net, optim, schedule


def train(net: Any, optim: Any, schedule: Any) -> list[float]:
    losses = []
    for _ in range(4):
        loss = net(torch.randn(8, 30)).square().sum()
        loss.backward()
        optim.step()
        schedule.step()
        optim.zero_grad()
        losses.append(loss.item())
    return losses


def test_training_goes_on_bit_for_bit(place: Path) -> None:
    net, optim, schedule = model(1)
    state = {"model": net, "optim": optim, "schedule": schedule, "rng": torch.get_rng_state()}
    with forebay.Checkpointer(place) as ckpt:
        job = ckpt.save(4, state)
        # The next step changes everything that is being saved.
        expected = train(net, optim, schedule)
        job.wait()
        net, optim, schedule = model(2)
        rng = torch.get_rng_state()
        ckpt.load_into({"model": net, "optim": optim, "schedule": schedule, "rng": rng})
        torch.set_rng_state(rng)
        assert train(net, optim, schedule) == expected
        net, optim, schedule = model(3)
        found = ckpt.load(4)
        net.load_state_dict(found["model"])
        optim.load_state_dict(found["optim"])
        schedule.load_state_dict(found["schedule"])
        torch.set_rng_state(found["rng"])
        assert train(net, optim, schedule) == expected
        with pytest.raises(forebay.InvalidInputError, match=r"model\.0\.weight: its shape"):
            ckpt.load_into({"model": torch.nn.Sequential(torch.nn.Linear(3, 4))}, strict=False)


def test_a_second_save_allocates_nothing(place: Path) -> None:
    tensors = {str(index): torch.randn(1000, 500) for index in range(8)}
    tensors["turned"] = torch.randn(500, 1000).t()
    with forebay.Checkpointer(place) as ckpt:
        for step in range(3):
            ckpt.save(step, tensors).wait()
        assert ckpt.staging_allocations == 1
        peak = ckpt.staging_nbytes
        assert peak < sum(tensor.nbytes for tensor in tensors.values()) + (4 << 20)


def test_tensors_are_copied_in_rounds(place: Path) -> None:
    tied = torch.randn(300, 200).t()
    given = {
        "tied": tied,
        "again": tied,
        "half": torch.randn(40, 50, 60).bfloat16().permute(2, 0, 1),
        "complex": torch.randn(64, 80, dtype=torch.complex128).t(),
        "spread": torch.randn(7).expand(3000, 7),
        "flags": (torch.randn(200, 300) > 0).t(),
        "plain": torch.randn(100),
    }
    expected = {name: tensor.clone() for name, tensor in given.items()}
    with forebay.Checkpointer(place, staging_bytes=32 << 10, chunk_bytes=8 << 10) as ckpt:
        job = ckpt.save(1, given)
        tied.zero_()
        given["half"].zero_()
        report = job.result()
        assert report["rounds"] > 10
        assert ckpt.staging_nbytes == 32 << 10
        # What has two names is stored once.
        assert job.bytes_total == sum(given[name].nbytes for name in given if name != "again")
        found = ckpt.load()
        assert all(same_bits(found[name], tensor) for name, tensor in expected.items())
        assert found["again"].data_ptr() == found["tied"].data_ptr()


def test_boxes_are_shared_out_evenly_and_alike() -> None:
    lists = [
        [(("own", (rank, 0), (1, 8)), 100 * rank) for _ in range(1)]
        + [((f"all{index}", (0,), (8,)), 50 + index) for index in range(20)]
        for rank in range(4)
    ]
    owners = share_out(lists)
    assert owners == share_out(copy.deepcopy(lists))
    assert len(owners) == 24
    loads = [0] * 4
    for box, owner in owners.items():
        sizes = {key: size for boxes in lists for key, size in boxes}
        loads[owner] += sizes[box]
        assert any(key == box for key, _ in lists[owner])
    assert max(loads) - min(loads) <= 100


def full(seed: int = 0) -> dict[str, Any]:
    values = torch.Generator().manual_seed(seed)
    return {
        "rows": torch.randn(37, 16, generator=values),
        "columns": torch.randn(12, 30, generator=values),
        "vector": torch.randn(5, generator=values).to(torch.bfloat16),
        "small": torch.randn(3, 3, generator=values),
        **{f"same{index}": torch.randn(100 + index, generator=values) for index in range(9)},
    }


def spread(tensors: dict[str, Any], mesh: Any) -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    places = {"rows": Shard(0), "columns": Shard(1), "vector": Shard(0), "small": Replicate()}
    return {
        name: distribute_tensor(tensor, mesh, [places[name]]) if name in places else tensor.clone()
        for name, tensor in tensors.items()
    }


def save_spread(rank: int, world: int, meeting: str, place: str) -> None:
    mesh = begin(rank, world, meeting)
    try:
        with forebay.Checkpointer(place, keep_last=2, incremental=True, chunk_bytes=4096) as ckpt:
            assert (ckpt.rank, ckpt.world) == (rank, world)
            for step in (1, 2):
                state = {"model": spread(full(), mesh), "rng": torch.tensor([rank]), "step": step}
                job = ckpt.save(step, state)
                state["model"]["rows"].to_local().zero_()
                job.wait()
                if step == 1:
                    # All write about as much.
                    assert 0 < job.bytes_total < 2 * sum(t.nbytes for t in full().values()) / world + 2000
                else:
                    assert job.bytes_written == 0
            refused = {"a": [lambda: 0]} if rank == world - 1 else {"a": [1]}
            with pytest.raises(forebay.InvalidInputError, match=r"a\[0\]: a function"):
                ckpt.save(3, refused)
            assert ckpt.latest() == 2
    finally:
        torch.distributed.destroy_process_group()


def load_spread(rank: int, world: int, meeting: str, place: str, broadcast: bool) -> None:
    mesh = begin(rank, world, meeting)
    try:
        with forebay.Checkpointer(place) as ckpt:
            zeros = {name: torch.zeros_like(tensor) for name, tensor in full().items()}
            state = {"model": spread(zeros, mesh), "rng": torch.zeros(1, dtype=torch.int64), "step": 0}
            ckpt.load_into(state, broadcast=broadcast)
            for name, tensor in full().items():
                found = state["model"][name]
                whole = found.full_tensor() if hasattr(found, "full_tensor") else found
                assert torch.equal(whole, tensor), name
            assert state["step"] == 2
            assert state["rng"].item() == (rank if rank < 4 else 0)
            whole = ckpt.load()
            assert all(torch.equal(whole["model"][name], tensor) for name, tensor in full().items())
    finally:
        torch.distributed.destroy_process_group()


def test_what_4_ranks_saved_2_and_8_load(tmp_path: Path) -> None:
    place = str(tmp_path / "run")
    spawn(save_spread, 4, tmp_path, place)
    with forebay.Checkpointer(place) as ckpt:
        found = ckpt.load()
        assert all(torch.equal(found["model"][name], tensor) for name, tensor in full().items())
        assert ckpt.verify()["is_whole"]
        (row,) = [row for row in ckpt.checkpoints() if row["step"] == 2]
        assert row["world"] == 4
        assert row["bytes_total"] == sum(tensor.nbytes for tensor in full().values()) + 4 * 8
        target = {"model": {name: torch.zeros_like(tensor) for name, tensor in full().items()}}
        ckpt.load_into(target, strict=False)
        assert all(torch.equal(target["model"][name], tensor) for name, tensor in full().items())
    spawn(load_spread, 2, tmp_path, place, True)
    spawn(load_spread, 8, tmp_path, place, False)


def save_and_die(rank: int, world: int, meeting: str, place: str) -> None:
    begin(rank, world, meeting)
    with forebay.Checkpointer(place, timeout=2.0) as ckpt:
        ckpt.save(1, {"w": torch.zeros(9), "own": {str(rank): torch.zeros(1 << 22)}}).wait()
        job = ckpt.save(2, {"w": torch.ones(9), "own": {str(rank): torch.ones(1 << 22)}})
        if rank == 1:
            os._exit(0)
        error = job.exception()
        # Unless the other had saved its part before it died.
        assert error is None or isinstance(error, forebay.StoreTimeoutError), error
        if error is not None:
            assert "1 of 2 ranks did not save, among them 1" in str(error)
            assert ckpt.latest() == 1
    os._exit(0)


def test_a_rank_that_dies_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    place = str(tmp_path / "run")
    spawn(save_and_die, 2, tmp_path, place)
    with forebay.Checkpointer(place) as ckpt:
        newest = ckpt.load()
        assert newest["w"][0] == len(ckpt.steps()) - 1
        assert ckpt.verify()["is_whole"]


class Doubled(torch.nn.Module):  # type: ignore[misc]
    """Its state_dict has copies, and a tensor that it makes at that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.count = 0
        self.linear._register_state_dict_hook(self.copied)

    @staticmethod
    def copied(_module: Any, state: Any, prefix: str, _metadata: Any) -> Any:
        name = f"{prefix}weight"
        state[name] = state[name].clone()
        return state

    def get_extra_state(self) -> Any:
        return torch.tensor([self.count])

    def set_extra_state(self, state: Any) -> None:
        self.count = int(state[0])


def test_modules_whose_states_are_copies_are_given_theirs(place: Path) -> None:
    net = Doubled()
    net.count = 7
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, {"model": net}).wait()
        other = Doubled()
        weight, bias = other.linear.weight, other.linear.bias
        ckpt.load_into({"model": other})
        assert other.linear.weight is weight
        assert torch.equal(weight, net.linear.weight)
        assert torch.equal(bias, net.linear.bias)
        assert other.count == 7
        with torch.device("meta"):
            nowhere = torch.nn.Sequential(torch.nn.Linear(4, 4))
        ckpt.save(2, torch.nn.Sequential(torch.nn.Linear(4, 4))).wait()
        with pytest.raises(forebay.InvalidInputError, match="device meta has no memory"):
            ckpt.load_into(nowhere)


def test_many_views_of_one_storage_are_found_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay import _state

    asked = 0
    own = _state._alias

    def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return own(*args)

    monkeypatch.setattr(_state, "_alias", counted)
    flat = torch.arange(20_000.0)
    apart = _state.flatten([flat[4 * index : 4 * index + 4] for index in range(2000)])
    assert len(apart.slices) == 2000
    assert not apart.aliases
    # Each lies in one that begins before it; one view is there twice, one has strides, one ends beyond.
    views = [flat[4 * index : 4 * index + 4] for index in range(2000)]
    views += [flat[:6000], flat[10:20], flat[10:20], flat[1:5000:7], flat[5990:6010]]
    found = _state.flatten(views)
    assert len(found.slices) == 2000 - 1502 + 2
    assert len(found.aliases) == 1502 + 3
    assert asked < 4 * 4005
    whole = flat.clone()
    for name, (target, _, first, shape, strides) in found.aliases.items():
        base = next(part for part in found.slices if part.name == target).source
        seen = torch.as_strided(whole, shape, strides, base.storage_offset() + first)
        assert torch.equal(seen, views[int(name)]), name


class Cudart:
    """What there is of CUDA: notes of what is pinned."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.status = 0

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:  # noqa: N802
        if self.status == 0:
            self.pinned[address] = size
        return self.status

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.pinned[address]
        return 0


def test_pinned_memory_is_unpinned_before_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay._staging import Staging

    cudart = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    staging = Staging(None)
    buffer = staging.fit(1 << 20, is_pinned=True)
    assert list(cudart.pinned) == [buffer.address]
    staging.release()
    assert not cudart.pinned
    # Nobody releases it: it is unpinned when the last view goes, and not before.
    staging = Staging(None)
    view = torch.frombuffer(staging.fit(1 << 20, is_pinned=True), dtype=torch.uint8)
    del staging, buffer
    assert list(cudart.pinned) == [view.data_ptr()]
    del view
    assert not cudart.pinned
    cudart.status = 712
    with pytest.raises(forebay.PreconditionError, match="pinned by somebody else"):
        Staging(None).fit(1 << 20, is_pinned=True)
    cudart.status = 2
    staging = Staging(None)
    staging.fit(1 << 20, is_pinned=True)
    assert staging.notes == ["the staging area cannot be pinned: CUDA error 2"]


PROGRAM = Path(__file__).parents[3] / "target" / "debug" / "forebay"


@pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not built")
def test_torch_reads_what_is_exported_as_it_was_saved(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    tied = torch.arange(6.0)
    state = {
        "model": model,
        "tied": {"one": tied, "same": tied, "turned": tied.reshape(2, 3).T},
        "half": torch.randn(4, dtype=torch.bfloat16),
        "loss": 2.5,
        "shape": (1, [2, None]),
        7: "seven",
        "rng": torch.get_rng_state(),
    }
    with forebay.Checkpointer(tmp_path / "run") as ckpt:
        ckpt.save(1, state).wait()
        saved = ckpt.load()
    target = tmp_path / "run.pt"
    command = [PROGRAM, "ckpt", "export", tmp_path / "run", "--to", "torch", target]
    subprocess.run(command, check=True, capture_output=True)
    found = torch.load(target, weights_only=True)
    assert list(found) == list(state)
    assert type(found["model"]) is type(model.state_dict())
    assert all(torch.equal(found["model"][name], one) for name, one in model.state_dict().items())
    assert found["tied"]["one"].data_ptr() == found["tied"]["same"].data_ptr()
    assert torch.equal(found["tied"]["turned"], saved["tied"]["turned"])
    assert torch.equal(found["half"], state["half"])
    assert (found["loss"], found["shape"], found[7]) == (2.5, (1, [2, None]), "seven")
    assert torch.equal(found["rng"], state["rng"])
