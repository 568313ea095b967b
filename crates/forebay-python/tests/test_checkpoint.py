"""Checkpoints without torch: what comes back, what is refused, what errors leave behind."""

from __future__ import annotations

import collections
import json
import random
import re
import threading
from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay._forebay import NativeCheckpoints

numpy = pytest.importorskip("numpy")

Script = Any


def state(seed: int = 5) -> dict[Any, Any]:
    values = numpy.random.default_rng(seed)
    return {
        "model": collections.OrderedDict(
            weight=values.standard_normal((300, 700)).astype("float32"), bias=values.standard_normal(700)
        ),
        "half": values.standard_normal((64, 64)).astype("float16"),
        "turned": values.standard_normal((30, 20)).T,
        "some": values.integers(0, 9, (8, 9))[:, ::3],
        "empty": numpy.zeros((0, 3), dtype="float64"),
        "scalar": numpy.array(7),
        "number": numpy.float32(0.5),
        "names": numpy.array([b"ab", b"c"]),
        "swapped": numpy.arange(5, dtype=">i4"),
        "nested": [1, (2.5, None, {"a": True}), ["x", b"y"]],
        3: {"four": 4, 4: "four", (1, "a"): None},
        "large": 1 << 100,
        "small": -(1 << 70),
        "complex": 1 + 2j,
        "set": {3, 1},
        "default": collections.defaultdict(list, a=[1]),
        "rng": {
            "python": random.getstate(),
            "numpy": numpy.random.get_state(),
            "generator": values.bit_generator.state,
        },
        "loss": 2.31,
    }


def assert_same(found: Any, expected: Any, path: str = "") -> None:
    assert type(found) is type(expected), path
    if isinstance(expected, dict):
        assert list(found) == list(expected), path
        for key in expected:
            assert_same(found[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), path
        for index, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_same(a, b, f"{path}[{index}]")
    elif isinstance(expected, numpy.ndarray):
        assert found.dtype == expected.dtype.newbyteorder("<"), path
        assert found.shape == expected.shape, path
        numpy.testing.assert_array_equal(found, expected)
    else:
        assert found == expected, path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_states_come_back_as_they_were(place: Path) -> None:
    with forebay.Checkpointer(place) as ckpt:
        job = ckpt.save(7, state(), {"note": "first"})
        job.wait()
        assert job.done
        assert job.exception() is None
        report = job.result()
        assert report["bytes_raw"] == job.bytes_total > 300 * 700 * 4
        assert job.bytes_written >= job.bytes_total
        assert job.ledger.bytes >= job.bytes_written
        assert job.stall_seconds > 0
        assert job.seconds > 0
        assert "step 7" in repr(job)
        found = ckpt.load(framework="numpy")
        assert_same(found, state())
        assert ckpt.loaded_step == 7
        assert ckpt.ledger is not None
        assert ckpt.ledger.verified_bytes == job.bytes_total
        assert found["default"]["new"] == []
        assert ckpt.load(select="loss") == {"loss": 2.31}
        assert ckpt.steps() == [7]
        assert ckpt.latest() == 7
        (row,) = ckpt.checkpoints()
        assert row["metadata"]["note"] == "first"
        assert row["metadata"]["loss"] == 2.31
        assert ckpt.verify()["is_whole"]
        random.setstate(found["rng"]["python"])
        numpy.random.set_state(found["rng"]["numpy"])


def test_arrays_may_be_changed_once_save_returns(place: Path) -> None:
    given = {"w": numpy.arange(1 << 20, dtype="float32"), "t": numpy.ones((500, 300)).T}
    with forebay.Checkpointer(place) as ckpt:
        job = ckpt.save(1, given)
        given["w"][:] = -1
        given["t"][:] = -1
        job.wait()
        found = ckpt.load(framework="numpy")
        numpy.testing.assert_array_equal(found["w"], numpy.arange(1 << 20, dtype="float32"))
        assert (found["t"] == 1).all()


def test_memory_is_allocated_once(place: Path) -> None:
    with forebay.Checkpointer(place) as ckpt:
        for step in range(4):
            ckpt.save(step, state(step))
        ckpt.save(4, {"less": numpy.zeros(3)}).wait()
        assert ckpt.staging_allocations == 1
        assert ckpt.staging_nbytes < 4 << 20
        for step in range(4):
            assert_same(ckpt.load(step, framework="numpy")["model"], state(step)["model"])
        ckpt.save(5, {"more": numpy.zeros(8 << 20, dtype="uint8")}).wait()
        assert ckpt.staging_allocations == 2


def test_states_larger_than_the_staging_area_are_saved_from_where_they_are(place: Path) -> None:
    given = state()
    given["wide"] = numpy.arange(3 << 20, dtype="float32").reshape(3, -1)
    with forebay.Checkpointer(place, staging_bytes=1 << 20) as ckpt:
        for step in (1, 2):
            job = ckpt.save(step, given)
            # The caller was kept waiting, so that this does not matter.
            given["wide"][:] += 1
            job.wait()
            assert "larger than staging_bytes" in job.notes[0]
            assert ckpt.staging_nbytes <= 1 << 20
            found = ckpt.load(framework="numpy")
            given["wide"][:] -= 1
            assert_same(found, given)
        # In rounds, which hold a chunk at least.
        with pytest.raises(forebay.LimitExceededError, match="staging_bytes must be 4194304 or more"):
            ckpt.save(3, {"turned": numpy.zeros((1 << 10, 1 << 10)).T})


def test_memory_of_pages_is_filled_where_it_is(place: Path) -> None:
    given = {"a": numpy.arange(3 << 20, dtype="float32"), "b": numpy.arange(10, dtype="int32")}
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, given).wait()
        found = ckpt.load(framework="numpy")
        found["a"][:] = 0
        ledger = ckpt.load_into(found)
        assert_same(found, given)
        # What was loaded here lies at a page boundary; only what is small was copied.
        assert ledger.copied_bytes < 1 << 20
        plain = {name: numpy.zeros(value.size + 1, value.dtype)[1:] for name, value in given.items()}
        ledger = ckpt.load_into(plain)
        assert_same(plain, given)
        assert ledger.copied_bytes >= given["a"].nbytes


def test_checkpoints_are_copied_to_a_mirror(place: Path, tmp_path: Path) -> None:
    far = tmp_path / "far"
    with forebay.Checkpointer(place, mirror=far, keep_last=1) as ckpt:
        for step in (1, 2, 3):
            ckpt.save(step, {"w": numpy.full(9000, step)}).wait()
        ckpt.drain()
        assert ckpt.steps() == [1, 2, 3]
        assert [len(row["places"]) for row in ckpt.checkpoints()] == [1, 1, 2]
        assert ckpt.load(1, framework="numpy")["w"][0] == 1
        # Damage in the near place: the far one has the same checkpoint, and the ledger says so.
        (payload,) = place.rglob("*.safetensors")
        data = bytearray(payload.read_bytes())
        data[-100] ^= 1
        payload.write_bytes(data)
        target = {"w": numpy.zeros(9000, dtype="int64")}
        ledger = ckpt.load_into(target)
        assert target["w"][0] == 3
        assert any("not from" in row["reason"] for row in ledger.downgrades)
    with forebay.Checkpointer(far) as ckpt:
        assert ckpt.steps() == [1, 2, 3]
        assert ckpt.verify(3)["is_whole"]
    # Another machine, where nothing is near.
    with forebay.Checkpointer(tmp_path / "new", mirror=[far]) as ckpt:
        assert ckpt.latest() == 3
        assert ckpt.load(framework="numpy")["w"][0] == 3


def test_mirrors_compress(place: Path, tmp_path: Path) -> None:
    far = tmp_path / "far"
    state = {"w": numpy.random.default_rng(1).normal(size=300_000).astype("float32"), "n": 7}
    with forebay.Checkpointer(
        place, mirror=far, mirror_compress="auto", keep_last=1, incremental=True, chunk_bytes=1 << 16
    ) as ckpt:
        for step in (1, 2):
            state["w"][step] = step
            ckpt.save(step, state).wait()
        ckpt.drain()
        rows = ckpt.checkpoints()
        assert [len(row["places"]) for row in rows] == [1, 2]
        # What is near is raw, and what is far is less.
        assert list(place.rglob("*.safetensors"))
        assert not list(place.rglob("*.chunks"))
        assert not list(far.rglob("*.safetensors"))
        packed = sum(path.stat().st_size for path in far.rglob("*.chunks"))
        assert 0 < packed < state["w"].nbytes * 0.95
        # Damage near: the far one is the same checkpoint.
        for payload in place.rglob("*.safetensors"):
            data = bytearray(payload.read_bytes())
            data[-100] ^= 1
            payload.write_bytes(data)
        target = {"w": numpy.zeros_like(state["w"]), "n": 0}
        ckpt.load_into(target)
        assert_same(target, state)
    with forebay.Checkpointer(far) as ckpt:
        assert all(ckpt.verify(step)["is_whole"] for step in (1, 2))
        assert_same(ckpt.load(framework="numpy"), state)
    for options in ({"key": "env"}, {"sign": "pair"}):
        with pytest.raises(forebay.InvalidInputError, match="give compress"):
            forebay.Checkpointer(place, mirror=far, mirror_compress="auto", **options)  # type: ignore[arg-type]


def test_saves_after_going_back_are_kept_and_told(place: Path) -> None:
    with forebay.Checkpointer(place, keep_last=2) as ckpt:
        for step in (10, 20, 30):
            ckpt.save(step, {"w": numpy.full(9, step)}).wait()
        # From 10 on again.
        job = ckpt.save(11, {"w": numpy.full(9, 11)})
        with pytest.warns(UserWarning, match="step 30 is there from before"):
            job.wait()
        ckpt.drain()
        assert ckpt.steps() == [11, 30]
        assert ckpt.load(11, framework="numpy")["w"][0] == 11


def test_who_saves_loads_and_removes_is_noted(place: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with forebay.Checkpointer(place, access_log=log, keep_last=1) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"w": numpy.full(9000, step)}).wait()
        ckpt.drain()
        ckpt.load(framework="numpy")
        ckpt.load_into({"w": numpy.zeros(9000, dtype="int64")})
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    noted = [(line["op"], line["step"]) for line in lines]
    assert noted == [("save", 1), ("save", 2), ("gc", 1), ("load", 2), ("load", 2)]


@pytest.mark.parametrize("compress", ["lz4", "zstd", "zstd:3", "auto"])
def test_compressed_states_come_back(place: Path, compress: str) -> None:
    with forebay.Checkpointer(place, compress=compress) as ckpt:
        given = {**state(), "zeros": numpy.zeros(1 << 18)}
        job = ckpt.save(1, given)
        job.wait()
        assert job.bytes_written < job.bytes_total
        assert_same(ckpt.load(framework="numpy"), given)


def test_shared_arrays_are_stored_once(place: Path) -> None:
    shared = numpy.arange(100_000, dtype="float64")
    with forebay.Checkpointer(place) as ckpt:
        job = ckpt.save(1, {"a": shared, "b": {"c": shared}, "front": shared[:10]})
        job.wait()
        assert job.bytes_total == shared.nbytes
        found = ckpt.load(framework="numpy")
        assert found["b"]["c"] is found["a"]
        numpy.testing.assert_array_equal(found["front"], shared[:10])
        found["a"][0] = 5
        assert found["front"][0] == 5


def test_what_cannot_be_saved_is_refused_by_its_place(place: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with forebay.Checkpointer(place) as ckpt:
        for given, message in [
            ({"optim": {"foo": [1, 2, 3, lambda: 0]}}, r"^optim\.foo\[3\]: a function cannot be saved"),
            ({"a": {1: object()}}, r"^a\[1\]: an object of type object"),
            ({"a": {frozenset(): 1}}, r"^a: .*frozenset.* cannot be a key"),
            ({"a": loop}, r"^a\[0\]: it contains itself"),
            ({"a": deep}, "nested more than 30"),
            ({"a": numpy.array(["x"])}, "^a: an array of dtype"),
            ({"a": numpy.array([object()])}, "^a: an array of dtype object"),
            ({"a": collections.defaultdict(lambda: 0)}, "^a: a defaultdict"),
            ({"a": Path("x")}, "^a: an object of type pathlib"),
        ]:
            with pytest.raises(forebay.InvalidInputError, match=message):
                ckpt.save(1, given)
        with pytest.raises(forebay.InvalidInputError, match="a step is a number"):
            ckpt.save(-1, {})
        with pytest.raises(forebay.InvalidInputError, match="metadata are a dict"):
            ckpt.save(1, {}, {1: 2})  # type: ignore[dict-item]
        assert ckpt.steps() == []
    assert not list(place.rglob("*.safetensors"))


def test_pickles_need_a_word_on_both_sides(place: Path) -> None:
    given = {"path": Path("a/b"), "w": numpy.ones(3)}
    with forebay.Checkpointer(place, allow_pickle=True) as ckpt:
        ckpt.save(1, given).wait()
    with forebay.Checkpointer(place) as ckpt:
        with pytest.raises(forebay.UnsupportedError, match="path was saved as a pickle"):
            ckpt.load()
        assert ckpt.load(allow_pickle=True, framework="numpy")["path"] == Path("a/b")
        assert list(ckpt.load(select="w", framework="numpy")) == ["w"]


def test_states_are_filled_in_place(place: Path) -> None:
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, state()).wait()
        target = state(6)
        weight, turned = target["model"]["weight"], target["turned"]
        target["loss"], target["nested"][1] = 0.0, (0.0, None, {"a": False})
        target["swapped"] = target["swapped"].astype("<i4")
        ledger = ckpt.load_into(target)
        assert target["model"]["weight"] is weight
        assert target["turned"] is turned
        assert ledger.verified_bytes > weight.nbytes
        expected = state()
        expected["swapped"] = expected["swapped"].astype("<i4")
        assert_same(target, expected)
        with pytest.raises(forebay.NotFoundError, match="more: not in the checkpoint"):
            ckpt.load_into({**state(), "more": 1})
        with pytest.raises(forebay.NotFoundError, match="in the checkpoint, but not here"):
            ckpt.load_into({"loss": 1.0})
        part = {"half": numpy.zeros((64, 64), dtype="float16"), "more": 1}
        ckpt.load_into(part, strict=False)
        numpy.testing.assert_array_equal(part["half"], state()["half"])
        with pytest.raises(forebay.InvalidInputError, match="half: its dtype is F32 here and F16"):
            ckpt.load_into({"half": numpy.zeros((64, 64), dtype="float32")}, strict=False)
        with pytest.raises(forebay.InvalidInputError, match="half: its shape is"):
            ckpt.load_into({"half": numpy.zeros((64, 63), dtype="float16")}, strict=False)


def test_what_cannot_be_written_to_is_refused(place: Path, tmp_path: Path) -> None:
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, {"w": numpy.ones(5000), "t": (numpy.ones(3), 5)}).wait()
        numpy.zeros(5000).tofile(tmp_path / "w")
        mapped = numpy.memmap(tmp_path / "w", mode="r")
        with pytest.raises(forebay.InvalidInputError, match="w: the array cannot be written to"):
            ckpt.load_into({"w": mapped.view("f8")}, strict=False)
        # A tuple takes up nothing, unless something holds it that does.
        ckpt.save(2, (numpy.ones(3), 5)).wait()
        with pytest.raises(forebay.InvalidInputError, match="values of a tuple cannot be set"):
            ckpt.load_into((numpy.zeros(3), 4))
        array = numpy.zeros(3)
        ckpt.load_into((array, 5))
        assert array[0] == 1
        target = {"t": (numpy.zeros(3), 4)}
        ckpt.load_into(target, 1, strict=False)
        assert target["t"][1] == 5


def test_tensors_larger_than_a_slot_are_filled(place: Path) -> None:
    # One that can be cut, and one of a single row.
    given = {
        "a": numpy.arange(12 << 20, dtype="float32").reshape(3, 1 << 22),
        "b": numpy.arange(9 << 20, dtype="int32").reshape(1, 9 << 20),
    }
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, given).wait()
        for _ in range(2):
            target = {name: numpy.zeros_like(value) for name, value in given.items()}
            ckpt.load_into(target)
            assert_same(target, given)


def test_steps_are_chosen_and_removed(place: Path) -> None:
    with forebay.Checkpointer(place, keep_last=2, keep_every=4) as ckpt:
        for step in range(1, 8):
            ckpt.save(step, {"w": numpy.full(10, step)})
        ckpt.save(9, {"w": numpy.full(10, 9)}).wait()
    with forebay.Checkpointer(place) as ckpt:
        assert ckpt.steps() == [4, 7, 9]
        assert ckpt.load(4, framework="numpy")["w"][0] == 4
        assert ckpt.delete(7)["steps"] == [7]
        assert ckpt.steps() == [4, 9]
        for call in (ckpt.load, ckpt.delete, ckpt.verify):
            with pytest.raises(forebay.NotFoundError, match="7"):
                call(7)


def test_there_is_nothing_at_first(place: Path) -> None:
    with forebay.Checkpointer(place) as ckpt:
        assert ckpt.steps() == []
        assert ckpt.latest() is None
        assert ckpt.loaded_step is ckpt.ledger is None
        with pytest.raises(forebay.NotFoundError, match="there is no checkpoint"):
            ckpt.load()


def test_one_step_has_one_checkpoint(place: Path) -> None:
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(1, {"w": numpy.zeros(3)}).wait()
        job = ckpt.save(1, {"w": numpy.ones(3)})
        with pytest.raises(forebay.AlreadyExistsError):
            job.wait()
        assert isinstance(job.exception(), forebay.AlreadyExistsError)
    with forebay.Checkpointer(place, overwrite=True) as ckpt:
        ckpt.save(1, {"w": numpy.ones(3)}).wait()
        assert ckpt.load(framework="numpy")["w"][0] == 1


def test_errors_of_saves_are_not_lost(place: Path) -> None:
    ckpt = forebay.Checkpointer(place)
    ckpt.save(1, {"w": numpy.zeros(3)}).wait()
    ckpt.save(1, {"w": numpy.zeros(3)})
    with pytest.raises(forebay.AlreadyExistsError):
        ckpt.save(2, {"w": numpy.zeros(3)})
    ckpt.save(2, {"w": numpy.zeros(3)}).wait()
    ckpt.save(2, {"w": numpy.zeros(3)})
    with pytest.raises(forebay.AlreadyExistsError):
        ckpt.close()
    ckpt.close()
    with pytest.raises(forebay.InvalidInputError, match="closed"):
        ckpt.save(3, {})
    with pytest.raises(forebay.InvalidInputError, match="closed"):
        ckpt.load()


def test_a_second_save_waits_or_is_refused(place: Path) -> None:
    large = {"w": numpy.zeros(64 << 20, dtype="uint8")}
    with forebay.Checkpointer(place, on_busy="refuse") as ckpt:
        job = ckpt.save(1, large)
        if not job.done:
            with pytest.raises(forebay.PreconditionError, match="step 1 is still being saved"):
                ckpt.save(2, large)
            with pytest.raises(forebay.StoreTimeoutError):
                job.wait(0)
        job.wait()
        ckpt.save(2, large).wait()
        assert ckpt.steps() == [1, 2]


def test_incremental_saves_write_what_changed(place: Path) -> None:
    given = {f"w{index}": numpy.full(1 << 20, index, dtype="uint8") for index in range(16)}
    with forebay.Checkpointer(place, incremental=True, full_every=3, chunk_bytes=1 << 20) as ckpt:
        written = []
        for step in range(7):
            given["w3"][:] = 100 + step
            job = ckpt.save(step, given)
            job.wait()
            written.append(job.bytes_written)
            assert_same(ckpt.load(framework="numpy"), given)
        is_full = [count > 16 << 20 for count in written]
        assert is_full == [True, False, False, True, False, False, True]
        assert max(count for count, full in zip(written, is_full, strict=True) if not full) < 2 << 20
        ckpt.delete(0)
        assert ckpt.verify(2)["is_whole"]
    with forebay.Checkpointer(place, incremental=True, chunk_bytes=1 << 20) as ckpt:
        job = ckpt.save(7, given)
        job.wait()
        assert job.bytes_written == 0
        assert_same(ckpt.load(framework="numpy"), given)


@pytest.mark.parametrize("hash_name", ["crc32c", "xxh3", "blake3", "sha256"])
def test_a_flipped_bit_is_refused_by_name(place: Path, hash_name: Any) -> None:
    with forebay.Checkpointer(place, hash=hash_name) as ckpt:
        ckpt.save(1, {"a": numpy.zeros(5000), "b": numpy.ones(5000)}).wait()
        (payload,) = place.rglob("*.safetensors")
        data = bytearray(payload.read_bytes())
        data[-100] ^= 1
        payload.write_bytes(data)
        with pytest.raises(forebay.CorruptDataError, match=r'"b": bytes .* are damaged'):
            ckpt.load()
        with pytest.raises(forebay.CorruptDataError):
            ckpt.load_into({"a": numpy.zeros(5000), "b": numpy.ones(5000)})
        assert list(ckpt.load(select="a", framework="numpy")) == ["a"]
        report = ckpt.verify()
        assert not report["is_whole"]
        assert report["damages"][0]["name"] == "b"


def test_a_manifest_that_cannot_be_read_is_told(place: Path) -> None:
    with forebay.Checkpointer(place) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"w": numpy.full(3, step)}).wait()
        newest = place / "manifests" / f"{2:020}.fbm"
        newest.write_bytes(b"x" * 200)
        with pytest.warns(UserWarning, match="step 2 is newer or nearer, and cannot be read"):
            assert ckpt.load(framework="numpy")["w"][0] == 1
        assert ckpt.steps() == [1]
        (place / "manifests" / f"{1:020}.fbm").unlink()
        with (
            pytest.warns(UserWarning, match="step 2"),
            pytest.raises(forebay.CorruptDataError, match="no checkpoint that can be read"),
        ):
            ckpt.load()


def test_wrong_arguments_are_refused(place: Path) -> None:
    for options, message in [
        ({"hash": "md5"}, "there is no hash 'md5'"),
        ({"on_busy": "panic"}, "on_busy"),
        ({"keep_every": 3}, "keep_last"),
        ({"keep_last": 0}, "keep_last"),
        ({"full_every": 0}, "full_every"),
        ({"rank": 2, "world": 2}, "rank 2 of 2"),
        ({"rank": 1}, "belong together"),
        ({"overwrite": True, "single_writer": True}, "one of them"),
        ({"coordinate": "torch"}, "torch.distributed is not initialized"),
        ({"rank": 0, "world": 2}, "run_id"),
        ({"chunk_bytes": 5}, "power of two"),
        ({"compress": "best"}, "best"),
        ({"mirror_keep_every": 2}, "keep_last"),
        ({"mirror_compress": "best"}, "best"),
    ]:
        with pytest.raises((forebay.InvalidInputError, forebay.LimitExceededError), match=message):
            forebay.Checkpointer(place, **options).save(1, {"w": numpy.zeros(3)}).wait()  # type: ignore[arg-type]


def ranks(place: Path, world: int, **options: Any) -> list[forebay.Checkpointer]:
    return [
        forebay.Checkpointer(place, rank=rank, world=world, run_id="a", coordinate="store", **options)
        for rank in range(world)
    ]


def test_ranks_meet_in_the_store(place: Path) -> None:
    together = ranks(place, 3)
    for step in (1, 2):
        jobs = [
            ckpt.save(
                step, {"own": {str(ckpt.rank): numpy.full(9, ckpt.rank)}, "rng": ckpt.rank, "all": step}
            )
            for ckpt in reversed(together)
        ]
        for job in jobs:
            job.wait()
    for ckpt in together:
        found = ckpt.load(framework="numpy")
        assert found["rng"] == ckpt.rank
        assert found["own"][str(ckpt.rank)][0] == ckpt.rank
        assert found["all"] == 2
        ckpt.close()
    with forebay.Checkpointer(place) as ckpt:
        assert ckpt.checkpoints()[0]["world"] == 3
        found = ckpt.load(framework="numpy")
        assert (found["rng"], found["all"]) == (0, 2)
        assert {key: value[0] for key, value in found["own"].items()} == {"0": 0, "1": 1, "2": 2}


def test_fewer_ranks_find_what_more_have_saved(place: Path) -> None:
    together = ranks(place, 3, per_rank=("rng",))
    jobs = [
        ckpt.save(
            1,
            {
                "layers": {str(ckpt.rank): numpy.full(9, ckpt.rank)},
                "rng": {"own": numpy.full(2, ckpt.rank)},
                "lists": [numpy.full(3, 7), {"of": ckpt.rank}],
            },
        )
        for ckpt in together
    ]
    for job in jobs:
        job.wait()
    for rank in range(2):
        with forebay.Checkpointer(place, rank=rank, world=2, run_id="b", coordinate="store") as ckpt:
            layers = {key: numpy.zeros(9, "i8") for key in (("1", "2") if rank else ("0",))}
            target = {
                "layers": layers,
                "rng": {"own": numpy.zeros(2, "i8")},
                "lists": [numpy.zeros(3, "i8"), {"of": -1}],
            }
            ckpt.load_into(target)
            assert [layer[0] for layer in layers.values()] == ([1, 2] if rank else [0])
            assert target["rng"]["own"][0] == rank
            assert target["lists"][0][0] == 7
            # What all ranks have is missed; what some have may be another one's.
            with pytest.raises(forebay.NotFoundError, match="lists: in the checkpoint, but not here"):
                ckpt.load_into({"layers": layers, "rng": {"own": numpy.zeros(2, "i8")}})
            with pytest.raises(forebay.NotFoundError, match=r"layers\.9: not in the checkpoint"):
                ckpt.load_into({**target, "layers": {"9": numpy.zeros(9, "i8")}})
    # As many ranks may have other parts than before, too.
    target = {"layers": {"2": numpy.zeros(9, "i8")}, "rng": {"own": numpy.zeros(2, "i8")}}
    target["lists"] = [numpy.zeros(3, "i8"), {"of": -1}]
    together[1].load_into(target)
    assert target["layers"]["2"][0] == 2
    assert together[1].load(framework="numpy")["layers"].keys() == {"1"}


def test_pickles_of_ranks_are_their_own(place: Path) -> None:
    together = ranks(place, 2, allow_pickle=True)
    jobs = [ckpt.save(1, {"path": Path(f"rank{ckpt.rank}")}) for ckpt in together]
    for job in jobs:
        job.wait()
    for ckpt in together:
        assert ckpt.load(allow_pickle=True)["path"] == Path(f"rank{ckpt.rank}")


@pytest.mark.timeout(300)
def test_a_step_that_is_refused_is_refused_to_all_ranks(place: Path) -> None:
    with forebay.Checkpointer(place) as alone:
        alone.save(1, {"w": numpy.zeros(3)}).wait()
    together = ranks(place, 3, timeout=600.0)
    jobs = [ckpt.save(1, {"w": numpy.ones(3)}) for ckpt in reversed(together)]
    for job in jobs:
        assert isinstance(job.exception(200), forebay.AlreadyExistsError)
    assert "rank 0 cannot save" in str(jobs[0].exception())


@pytest.mark.timeout(300)
def test_ranks_that_share_the_store_try_again_together(place: Path) -> None:
    together = ranks(place, 2, timeout=600.0)
    first = together[0].save(1, {"w": numpy.ones(3)})
    with pytest.raises(forebay.InvalidInputError, match="w: a function"):
        together[1].save(1, {"w": lambda: 0})
    with pytest.raises(forebay.InvalidInputError, match=r"rank 1 cannot save: .*w: a function"):
        first.result(200)
    for job in [ckpt.save(1, {"w": numpy.ones(3)}) for ckpt in together]:
        job.wait(200)
    assert together[0].steps() == [1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("where", ["before", "while"])
def test_a_rank_that_cannot_save_ends_the_save_of_all(place: Path, where: str) -> None:
    together = ranks(place, 3, timeout=600.0)
    failing = together[2]
    if where == "before":

        def refuse(slices: Any) -> Any:
            raise MemoryError("no memory to copy to")

        failing._staging.stage = refuse  # type: ignore[method-assign]
        message = "rank 2 cannot save: .*no memory to copy to"
    else:
        attempt = NativeCheckpoints.derive("a", 5, 0)
        (place / "steps" / f"{5:020}" / attempt / "rank-000002.safetensors").mkdir(parents=True)
        message = "rank 2 cannot save"
    jobs = [ckpt.save(5, {"w": numpy.ones(3)}) for ckpt in together[:2]]
    if where == "before":
        with pytest.raises(MemoryError):
            failing.save(5, {"w": numpy.ones(3)})
    else:
        assert failing.save(5, {"w": numpy.ones(3)}).exception(200) is not None
    for job in jobs:
        error = job.exception(200)
        assert isinstance(error, forebay.ForebayError)
        assert re.search(message, str(error)), error
    assert together[0].latest() is None


def test_a_rank_that_is_missing_is_named(place: Path) -> None:
    first, second, _ = ranks(place, 3, timeout=0.3)
    with forebay.Checkpointer(place) as alone:
        alone.save(1, {"w": numpy.zeros(3)}).wait()
    jobs = [ckpt.save(2, {"w": numpy.ones(3)}) for ckpt in (first, second)]
    with pytest.raises(forebay.StoreTimeoutError, match="1 of 3 ranks did not save, among them 2"):
        jobs[0].wait()
    with pytest.raises(forebay.ForebayError, match="rank 0"):
        jobs[1].wait()
    assert first.latest() == 1
    assert first.load(framework="numpy")["w"][0] == 0


def test_mem_and_s3_are_places_too(s3_prefix: str) -> None:
    for url in ("mem://ckpt", f"s3://{s3_prefix}/ckpt"):
        with forebay.Checkpointer(url, keep_last=1) as ckpt:
            for step in (1, 2):
                ckpt.save(step, state(step)).wait()
            assert_same(ckpt.load(framework="numpy"), state(2))
        with forebay.Checkpointer(url) as ckpt:
            assert ckpt.steps() == [2]


def test_threads_may_wait_for_one_job(place: Path) -> None:
    with forebay.Checkpointer(place) as ckpt:
        job = ckpt.save(1, {"w": numpy.zeros(8 << 20)})
        reports: list[Any] = []
        threads = [threading.Thread(target=lambda: reports.append(job.result())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(reports) == 4


def test_a_program_that_ends_ends_its_save(script: Script, place: Path) -> None:
    script(
        """
        import sys, numpy, forebay
        ckpt = forebay.Checkpointer(sys.argv[1])
        ckpt.save(1, {"w": numpy.ones(4 << 20)})
        """,
        str(place),
    )
    with forebay.Checkpointer(place) as ckpt:
        assert ckpt.load(framework="numpy")["w"][-1] == 1


def test_errors_of_a_program_that_ends_are_told(script: Script, place: Path) -> None:
    done = script(
        """
        import sys, numpy, forebay
        ckpt = forebay.Checkpointer(sys.argv[1])
        ckpt.save(1, {"w": numpy.zeros(3)}).wait()
        ckpt.save(1, {"w": numpy.zeros(3)})
        """,
        str(place),
    )
    assert "the save of step 1 failed: AlreadyExistsError" in done.stderr
    done = script(
        """
        import sys, numpy, forebay
        ckpt = forebay.Checkpointer(sys.argv[1])
        ckpt.save(1, {"w": numpy.zeros(3)}).exception()
        """,
        str(place),
    )
    assert done.stderr == ""


def test_a_program_that_is_killed_leaves_the_checkpoint_before(script: Script, place: Path) -> None:
    done = script(
        """
        import os, signal, sys, numpy, forebay
        ckpt = forebay.Checkpointer(sys.argv[1])
        ckpt.save(1, {"w": numpy.zeros(4 << 20)}).wait()
        ckpt.save(2, {"w": numpy.ones(64 << 20)})
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        str(place),
        check=False,
    )
    assert done.returncode == -9
    with forebay.Checkpointer(place) as ckpt:
        newest = ckpt.load(framework="numpy")["w"]
        assert newest[0] == len(ckpt.steps()) - 1
        assert ckpt.verify()["is_whole"]


def test_forked_children_are_told(script: Script, place: Path) -> None:
    out = script(
        """
        import os, sys, numpy, forebay
        ckpt = forebay.Checkpointer(sys.argv[1])
        job = ckpt.save(1, {"w": numpy.ones(1 << 20)})
        child = os.fork()
        if child == 0:
            for call in (job.wait, ckpt.load, lambda: ckpt.save(2, {})):
                try:
                    call()
                except forebay.UnsupportedError as error:
                    assert "another process" in str(error), error
                else:
                    os._exit(3)
            with forebay.Checkpointer(sys.argv[1] + "-child") as own:
                own.save(1, {"w": numpy.ones(9)}).wait()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        job.wait()
        print(os.waitstatus_to_exitcode(status), ckpt.steps())
        """,
        str(place),
    )
    assert out.stdout.strip() == "0 [1]"


def test_ctrl_c_ends_a_wait_and_not_the_save(script: Script, place: Path) -> None:
    out = script(
        """
        import os, signal, sys, threading, time, numpy, forebay
        ckpt = forebay.Checkpointer(sys.argv[1], rank=0, world=2, run_id="x", timeout=3.0)
        job = ckpt.save(1, {"w": numpy.ones(9)})
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            job.wait()
        except KeyboardInterrupt:
            print("interrupted", job.done)
        try:
            job.wait()
        except forebay.StoreTimeoutError as error:
            print("1 of 2 ranks" in str(error))
        """,
        str(place),
    )
    assert out.stdout.split() == ["interrupted", "False", "True"]


def test_listings_show_what_is_at_the_top(place: Path) -> None:
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(3, {"loss": 2.5, "name": "run", "w": numpy.ones(3), "deep": {"no": 1}}, {"lr": 0.1}).wait()
        (row,) = ckpt.checkpoints()
    assert row["metadata"] == {"loss": 2.5, "name": "run", "lr": 0.1}
