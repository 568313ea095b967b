"""States that are larger than the staging area: copied in rounds, within its memory, while ``save`` waits."""

from __future__ import annotations

import json
import math
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay._staging import Staging, boxes

numpy = pytest.importorskip("numpy")

pytestmark = pytest.mark.timeout(120)

STAGING = 64 << 10
CHUNK = 8 << 10


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run"


def state(seed: int = 1) -> dict[str, Any]:
    values = numpy.random.default_rng(seed)
    small = {f"small{index}": values.standard_normal((index + 2, 5)).T for index in range(30)}
    return {
        "turned": values.standard_normal((300, 257)).astype("float32").T,
        "cube": values.integers(0, 1 << 15, (30, 20, 70)).astype("int16").transpose(1, 2, 0),
        "some": values.integers(0, 255, (90, 1001), dtype="uint8")[::2, ::3],
        "swapped": values.standard_normal(20_000).astype(">f8"),
        "plain": values.standard_normal((50, 50)),
        "empty": numpy.zeros((0, 3)).T,
        **small,
    }


def checkpointer(place: Path, **options: Any) -> forebay.Checkpointer:
    return forebay.Checkpointer(place, **{"staging_bytes": STAGING, "chunk_bytes": CHUNK, **options})


def copied(given: dict[str, Any]) -> dict[str, Any]:
    return {name: array.astype(array.dtype.newbyteorder("<")) for name, array in given.items()}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        numpy.testing.assert_array_equal(found[name], array, name)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """Give what every round copies: places in the staging area, and bytes."""
    seen: list[list[tuple[int, int]]] = []
    own = Staging._copy_others

    def copy(self: Staging, buffer: Any, others: Any, rows: Any = ()) -> None:
        seen.append([(place, nbytes) for _, nbytes, place in others])
        own(self, buffer, others, rows)

    monkeypatch.setattr(Staging, "_copy_others", copy)
    return seen


@pytest.mark.parametrize("compress", ["off", "zstd"])
def test_larger_states_are_copied_in_rounds_within_the_staging_area(
    place: Path, compress: str, rounds: list[list[tuple[int, int]]]
) -> None:
    given = state()
    expected = copied(given)
    with checkpointer(place, compress=compress) as ckpt:
        job = ckpt.save(1, given)
        for array in given.values():
            array[...] = 0
        report = job.result()
        strided = sum(array.nbytes for name, array in given.items() if name != "plain")
        assert report["rounds"] == len(rounds) >= strided // (STAGING // 2)
        assert job.notes[0] == f"larger than staging_bytes: copied in {len(rounds)} rounds while save waited"
        assert job.stall_seconds > 0
        assert ckpt.staging_nbytes == STAGING
        assert sum(nbytes for pieces in rounds for _, nbytes in pieces) == strided
        for pieces in rounds:
            # Each is within one half of the area: the other is written from meanwhile.
            half = pieces[0][0] // (STAGING // 2)
            end = 0
            for at, nbytes in pieces:
                assert at >= max(end, half * STAGING // 2)
                end = at + nbytes
            assert end <= (half + 1) * STAGING // 2
        assert_same(ckpt.load(framework="numpy"), expected)
        assert ckpt.verify()["is_whole"]
        assert ckpt.ledger is not None
        for step in (2, 3):
            ckpt.save(step, given).wait()
        assert ckpt.staging_allocations == 1


def test_what_is_written_in_rounds_is_a_safetensors_file(place: Path) -> None:
    given = state()
    with checkpointer(place) as ckpt:
        ckpt.save(1, given).wait()
    with forebay.Checkpointer(place) as ckpt:
        ckpt.save(2, given).wait()
    files = []
    for step in (1, 2):
        [path] = [path for path in place.rglob("*.safetensors") if _step_of(path) == step]
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        del header["__metadata__"]
        assert max(entry["data_offsets"][1] for entry in header.values()) == len(data) - 8 - length
        files.append((header, data[8 + length :]))
    # The same as that of a save with staging for everything.
    assert files[0] == files[1]


def _step_of(path: Path) -> int:
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    return int(header["__metadata__"]["forebay.step"])


def test_a_round_of_the_whole_area_is_enough(place: Path) -> None:
    given = state()
    with checkpointer(place, staging_bytes=CHUNK + 100) as ckpt:
        job = ckpt.save(1, given)
        job.wait()
        assert ckpt.staging_nbytes <= CHUNK + 100
        assert_same(ckpt.load(framework="numpy"), copied(given))
    for staging in (0, CHUNK - 1):
        with (
            checkpointer(place, staging_bytes=staging) as ckpt,
            pytest.raises(forebay.LimitExceededError, match="staging_bytes must be 8192 or more"),
        ):
            ckpt.save(2, given)


def test_what_did_not_change_is_not_written_again(place: Path) -> None:
    given = state()
    with checkpointer(place, incremental=True) as ckpt:
        ckpt.save(1, given).wait()
        given["turned"][3, 4] += 1
        job = ckpt.save(2, given)
        job.wait()
        report = job.result()
        assert report["chunks"] - report["chunks_referenced"] == 1
        # Once to compare it, and what changed once more.
        assert report["rounds"] > 1
        assert_same(ckpt.load(framework="numpy"), copied(given))
        assert ckpt.verify()["is_whole"]


def files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("kind", "fail"),
    [
        (RuntimeError, lambda: _raise(RuntimeError("CUDA error: an illegal memory access"))),
        (KeyboardInterrupt, lambda: signal.raise_signal(signal.SIGINT)),
    ],
)
@pytest.mark.parametrize("number", [0, 1, 25])
def test_an_exception_while_copying_leaves_the_checkpoint_before(
    place: Path,
    kind: type[BaseException],
    fail: Callable[[], None],
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, calls = Staging._copy_one, 0

    def copy(self: Staging, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number + 1:
            fail()
        own(self, *args)

    given = state()
    with checkpointer(place) as ckpt:
        ckpt.save(1, given).wait()
        before = files(place)
        with monkeypatch.context() as patch:
            patch.setattr(Staging, "_copy_one", copy)
            with pytest.raises(kind):
                ckpt.save(2, given)
        assert ckpt.latest() == 1
        # What was dropped half-way cleans up behind itself.
        deadline = time.monotonic() + 10
        while files(place) != before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert files(place) == before
        # Nothing of it is told again, and the staging area is good for the next one.
        ckpt.save(3, given).wait()
        assert ckpt.steps() == [1, 3]
        assert_same(ckpt.load(framework="numpy"), copied(given))


def save_as_ranks(place: Path, step: int, saves: list[Callable[[forebay.Checkpointer], Any]]) -> list[Any]:
    """Save by ranks that share nothing but the store, one in each thread; gives what they gave or raised."""
    outcomes: list[Any] = [None] * len(saves)

    def run(rank: int) -> None:
        options = {"rank": rank, "world": len(saves), "coordinate": "store", "run_id": f"run{step}"}
        try:
            with checkpointer(place, timeout=30.0, **options) as ckpt:
                outcomes[rank] = saves[rank](ckpt)
        except Exception as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(saves))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_ranks_copy_in_rounds_and_tell_each_other_of_errors(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saver(rank: int, step: int) -> Callable[[forebay.Checkpointer], Any]:
        given = {"rng": state(rank), "shared": state(7)["turned"]}
        return lambda ckpt: ckpt.save(step, given).result()["rounds"]

    assert min(save_as_ranks(place, 1, [saver(0, 1), saver(1, 1)])) > 1
    for rank in (0, 1):
        with checkpointer(place, rank=rank, world=2, coordinate="store", run_id="load") as ckpt:
            assert_same(ckpt.load(1, framework="numpy")["rng"], copied(state(rank)))

    def broken(ckpt: forebay.Checkpointer) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(ckpt._staging, "_copy_one", lambda *_: _raise(RuntimeError("out of luck")))
            return ckpt.save(2, {"rng": state(1)}).result()

    outcomes = save_as_ranks(place, 2, [saver(0, 2), broken])
    assert "out of luck" in str(outcomes[0])
    assert isinstance(outcomes[1], RuntimeError)
    with forebay.Checkpointer(place) as ckpt:
        assert ckpt.latest() == 1


def test_errors_of_the_store_end_the_rounds(place: Path) -> None:
    given = state()
    with checkpointer(place) as ckpt:
        ckpt.save(1, given).wait()
        job = ckpt.save(1, given)
        with pytest.raises(forebay.AlreadyExistsError):
            job.wait()
        ckpt.save(2, given).wait()


def test_runs_of_elements_are_cut_into_boxes() -> None:
    values = random.Random(3)
    for _ in range(400):
        shape = tuple(values.randint(1, 5) for _ in range(values.randint(1, 4)))
        array = numpy.arange(math.prod(shape)).reshape(shape)
        first = values.randint(0, array.size - 1)
        count = values.randint(1, array.size - first)
        parts = [array[box] for box in boxes(shape, first, count)]
        numpy.testing.assert_array_equal(
            numpy.concatenate([part.ravel() for part in parts]), numpy.arange(first, first + count)
        )
        assert len(parts) <= max(2 * len(shape) - 1, 1)
