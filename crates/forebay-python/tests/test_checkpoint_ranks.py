"""Ranks of torch.distributed that save and load together: one decision for all, errors of one told to all."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import forebay
import pytest

torch = pytest.importorskip("torch")

from torch_ranks import begin, spawn  # noqa: E402

pytestmark = pytest.mark.timeout(300)


def all_refuse(kind: type[BaseException], message: str, call: Any, *args: Any, **options: Any) -> None:
    """Have every rank raise the same, and nobody wait."""
    with pytest.raises(kind, match=message):
        call(*args, **options)
    torch.distributed.barrier()


def one_checkpoint_for_all(rank: int, place: str) -> None:
    with forebay.Checkpointer(place, overwrite=True) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"w": torch.full((3,), float(step))}).wait()
        own = ckpt._open
        if rank == 0:
            # The newer one appears between the looks of the ranks.
            ckpt._open = lambda step: own(1 if step is None else step)  # type: ignore[method-assign]
        assert ckpt.load()["w"][0] == 1
        target = {"w": torch.zeros(3)}
        ckpt.load_into(target)
        assert target["w"][0] == 1
        assert ckpt.loaded_step == 1
        all_refuse(forebay.InvalidInputError, "rank 1 loads step 2, and rank 0 step 1", ckpt.load, rank + 1)
        all_refuse(forebay.NotFoundError, "there is no checkpoint of step 9", ckpt.load, 9)

        def broken(step: int | None) -> Any:
            raise forebay.CorruptDataError("its disk is broken")

        ckpt._open = broken if rank == 1 else own  # type: ignore[method-assign]
        all_refuse(forebay.CorruptDataError, "its disk is broken", ckpt.load)

        def other(step: int | None) -> Any:
            return types.SimpleNamespace(step=2, info=lambda: {"attempt": "another"})

        ckpt._open = other if rank == 1 else own  # type: ignore[method-assign]
        all_refuse(forebay.PreconditionError, "they look at different places", ckpt.load)
        ckpt._open = own  # type: ignore[method-assign]
        assert ckpt.load()["w"][0] == 2


def one_answer_for_all(rank: int, place: str) -> None:
    with forebay.Checkpointer(place, on_busy="refuse", timeout=600) as ckpt:
        state = {"w": torch.ones(3)}
        ckpt.save(1, state).wait()
        job = ckpt._flight.job
        if rank == 1:
            ckpt._flight.job = types.SimpleNamespace(done=False, step=1)  # type: ignore[assignment]
        torch.distributed.barrier()
        all_refuse(forebay.PreconditionError, "step 1 is still being saved", ckpt.save, 2, state)
        ckpt._flight.job = None if rank == 0 else job
        ckpt.save(2, state).wait()
        # The step is there: all are told by the store, and one rank looks at its error.
        job = ckpt.save(2, state)
        assert isinstance(job._native.wait(200), bool)
        assert job.done
        if rank == 0:
            assert isinstance(job.exception(), forebay.AlreadyExistsError)
        torch.distributed.barrier()
        all_refuse(forebay.AlreadyExistsError, "step 2 has a checkpoint already", ckpt.save, 3, state)
        ckpt.save(3, state).wait()
        assert ckpt.steps() == [1, 2, 3]


def nobody_waits_for_a_broadcast(rank: int, place: str) -> None:
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, {"w": torch.ones(300), "v": torch.ones(300)}).wait()
        wrong = {"w": torch.zeros(300 + rank), "v": torch.zeros(300)}
        all_refuse(
            forebay.InvalidInputError, "w: its shape is", ckpt.load_into, wrong, broadcast=True, strict=False
        )
        into = forebay._loading._Into
        read = into.read

        def broken(self: Any, targets: Any) -> Any:
            if rank == 1:
                raise forebay.CorruptDataError("its disk is broken")
            return read(self, targets)

        into.read = broken  # type: ignore[method-assign]
        target = {"w": torch.zeros(300), "v": torch.zeros(300)}
        all_refuse(forebay.CorruptDataError, "its disk is broken", ckpt.load_into, target, broadcast=True)
        into.read = read  # type: ignore[method-assign]

        def unable(*_: Any) -> None:
            raise AssertionError("the group cannot send this")

        # A group that sends nothing but memory of GPUs: every rank reads what is on the host.
        group = torch.distributed
        config, send = group.get_backend_config, group.broadcast
        group.get_backend_config, group.broadcast = lambda *_: "cuda:nccl", unable
        ckpt.load_into(target, broadcast=True)
        assert target["w"].sum() == target["v"].sum() == 300
        group.get_backend_config = config
        all_refuse(AssertionError, "cannot send", ckpt.load_into, target, broadcast=True)
        group.broadcast = send


def moments_of_spread_parameters(rank: int, place: str, mesh: Any) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    def made(seed: int, steps: int) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        weight = torch.nn.Parameter(distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)]))
        optim = torch.optim.AdamW([weight], lr=0.1 * seed)
        for _ in range(steps):
            weight.square().sum().backward()
            optim.step()
            optim.zero_grad()
        return weight, optim

    with forebay.Checkpointer(place) as ckpt:
        weight, optim = made(1, 3)
        ckpt.save(1, {"optim": optim}).wait()
        _, fresh = made(2, 0)
        all_refuse(forebay.InvalidInputError, "optim: .*get_state_dict", ckpt.load_into, {"optim": fresh})
        other, filled = made(2, 1)
        ckpt.load_into({"optim": filled})
        for name in ("exp_avg", "exp_avg_sq"):
            found, expected = filled.state[other][name], optim.state[weight][name]
            assert type(found) is type(expected)
            assert torch.equal(found.full_tensor(), expected.full_tensor())
        assert filled.state[other]["step"] == 3
        assert filled.param_groups[0]["lr"] == 0.1
        # It goes on with them.
        other.square().sum().backward()
        filled.step()


def full_saves_come_when_others_reference(rank: int, place: str) -> None:
    with forebay.Checkpointer(place, incremental=True, full_every=3, chunk_bytes=1 << 20) as ckpt:
        for step in range(6):
            # Rank 0, which decides, has nothing that was there before.
            own = torch.full((1 << 20,), step * (1 - rank), dtype=torch.uint8)
            ckpt.save(step, {str(rank): own}).wait()
        assert [row["chain"] for row in ckpt.checkpoints()] == [0, 1, 2, 0, 1, 2]


def ranks_load_what_a_mirror_compressed(rank: int, place: str, mesh: Any) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.manual_seed(7)
    whole = torch.randn(1 << 10, 1 << 8)
    far = f"{place}-far"
    with forebay.Checkpointer(
        place, mirror=far, mirror_compress="auto", incremental=True, chunk_bytes=1 << 16
    ) as ckpt:
        for step in (1, 2):
            whole[step] = step
            ckpt.save(step, {"w": distribute_tensor(whole.clone(), mesh, [Shard(0)])}).wait()
        ckpt.drain()
    torch.distributed.barrier()
    assert not list(Path(far).rglob("*.safetensors"))
    # A machine where nothing is near, and the other cut.
    with forebay.Checkpointer(f"{place}-new", mirror=far) as ckpt:
        target = {"w": distribute_tensor(torch.zeros_like(whole), mesh, [Shard(1)])}
        ckpt.load_into(target)
        assert ckpt.loaded_step == 2
        assert torch.equal(target["w"].full_tensor(), whole)


def stages_of_others_are_found(rank: int, place: str) -> None:
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, {"model": {f"stage{rank}": torch.full((2,), rank + 1.0)}}).wait()
        target = {"model": {"stage0": torch.zeros(2), "stage1": torch.zeros(2)}}
        ckpt.load_into(target)
        assert [part[0].item() for part in target["model"].values()] == [1, 2]
        missing = {"model": {"stage0": torch.zeros(2), **({"other": torch.zeros(2)} if rank else {})}}
        all_refuse(forebay.NotFoundError, "other", ckpt.load_into, missing)


def tensors_of_one_name_are_one(rank: int, place: str) -> None:
    with forebay.Checkpointer(place) as ckpt:
        for state in (
            {"x": torch.ones(2 + rank)},
            {"x": torch.ones(2, dtype=(torch.int32, torch.float32)[rank])},
        ):
            all_refuse(forebay.InvalidInputError, "x: rank 0 has .* and rank 1", ckpt.save, 1, state)
        ckpt.save(1, {"x": torch.ones(2)}).wait()
        assert ckpt.steps() == [1]


def two_ranks(rank: int, world: int, meeting: str, folder: str) -> None:
    mesh = begin(rank, world, meeting)
    try:
        one_checkpoint_for_all(rank, f"{folder}/one")
        one_answer_for_all(rank, f"{folder}/answer")
        nobody_waits_for_a_broadcast(rank, f"{folder}/broadcast")
        moments_of_spread_parameters(rank, f"{folder}/moments", mesh)
        full_saves_come_when_others_reference(rank, f"{folder}/chain")
        ranks_load_what_a_mirror_compressed(rank, f"{folder}/mirror", mesh)
        stages_of_others_are_found(rank, f"{folder}/stages")
        tensors_of_one_name_are_one(rank, f"{folder}/names")
    finally:
        torch.distributed.destroy_process_group()


def test_ranks_decide_together(tmp_path: Path) -> None:
    spawn(two_ranks, 2, tmp_path, str(tmp_path))


def stage(rank: int) -> dict[str, Any]:
    # Ranks 0 and 1 have one stage of a pipeline, ranks 2 and 3 the other.
    number = rank // 2
    return {
        "model": {f"layer{number}": torch.full((4, 4), float(number))},
        "rng": torch.tensor([rank]),
        "numbers": {f"of{number}": number},
    }


def save_stages(rank: int, world: int, meeting: str, place: str) -> None:
    begin(rank, world, meeting)
    try:
        with forebay.Checkpointer(place) as ckpt:
            ckpt.save(1, stage(rank)).wait()
            mine = stage(rank)
            mine["model"][f"layer{rank // 2}"].zero_()
            ckpt.load_into(mine)
            assert mine["model"][f"layer{rank // 2}"][0, 0] == rank // 2
            assert ckpt.load()["model"].keys() == mine["model"].keys()
    finally:
        torch.distributed.destroy_process_group()


def test_stages_of_a_pipeline_are_found_by_other_ranks(tmp_path: Path) -> None:
    place = str(tmp_path / "run")
    spawn(save_stages, 4, tmp_path, place)
    with forebay.Checkpointer(place) as ckpt:
        found = ckpt.load()
        assert {name: layer[0, 0].item() for name, layer in found["model"].items()} == {
            "layer0": 0.0,
            "layer1": 1.0,
        }
        assert found["numbers"] == {"of0": 0, "of1": 1}
        target = {"model": {"layer1": torch.zeros(4, 4)}, "rng": torch.tensor([9]), "numbers": {}}
        ckpt.load_into(target)
        assert target["model"]["layer1"][0, 0] == 1
        assert target["rng"][0] == 0
        # One structure is read for all ranks of a stage, not one for each.
        names = [name for name, *_ in ckpt._open(None).entries() if name.startswith("forebay.state.")]
        assert len(names) == 1
