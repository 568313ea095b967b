"""Values of different sizes as one array, and lists of numbers as tensors."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import Script

np = pytest.importorskip("numpy")

# Tokens of each document; some have none.
LENGTHS = [3, 0, 7, 1, 12, 5, 0, 9] * 8


def write_documents(folder: Path) -> list[Any]:
    """Write lists of tokens, as Megatron-LM has them, and give them."""
    ends = list(itertools.accumulate(LENGTHS, initial=0))
    tokens = np.arange(60_000, 60_000 + ends[-1]).astype("<u2")
    tokens.tofile(folder / "train.bin")
    count = len(LENGTHS)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1)
    index += struct.pack(f"<{count}i", *LENGTHS)
    index += struct.pack(f"<{count}q", *(2 * end for end in ends[:-1]))
    index += struct.pack(f"<{count + 1}q", *range(count + 1))
    (folder / "train.idx").write_bytes(index)
    return [tokens[begin:end] for begin, end in itertools.pairwise(ends)]


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    write_documents(tmp_path)
    return tmp_path


OPTIONS: dict[str, Any] = {"batch_size": 8, "format": "tokens"}


def padded(values: list[Any], fill: int, length: int) -> list[list[int]]:
    """As ``Ragged.padded`` does it, value by value."""
    return [[*value[:length].tolist(), *[fill] * (length - len(value))] for value in values]


def ragged(values: Sequence[Sequence[int]], dtype: str) -> forebay.Ragged:
    arrays = [np.array(value, dtype=dtype) for value in values]
    offsets = np.cumsum([0, *(array.nbytes for array in arrays)]).astype("<i8")
    return forebay.Ragged(b"".join(array.tobytes() for array in arrays), offsets.tobytes(), dtype)


def test_lists_are_padded_to_one_array(tmp_path: Path) -> None:
    expected = write_documents(tmp_path)
    for number, batch in enumerate(forebay.stream(tmp_path, **OPTIONS)):
        tokens, own = batch["tokens"], expected[8 * number :][:8]
        assert tokens.dtype == "uint16"
        assert tokens.lengths.tolist() == LENGTHS[:8]
        whole = tokens.padded()
        assert (whole.dtype, whole.shape) == (np.uint16, (8, 12))
        assert whole.tolist() == padded(own, 0, 12)
        whole[:] = 0
        for fill, length in ((7, 4), (65_535, 12), (0, 20), (1, 1)):
            assert tokens.padded(fill=fill, length=length).tolist() == padded(own, fill, length)
        assert tokens.padded(length=0).shape == (8, 0)
    assert number == 7


def test_bytes_are_padded_as_bytes() -> None:
    values = [b"some", b"", b"longer text"]
    offsets = np.cumsum([0, *map(len, values)]).astype("<i8").tobytes()
    rows = forebay.Ragged(b"".join(values), offsets).padded(fill=32, length=6)
    assert rows.dtype == np.uint8
    assert [row.tobytes() for row in rows] == [b"some  ", b"      ", b"longer"]


def test_nothing_is_padded_to_nothing() -> None:
    assert ragged([], "int32").padded().shape == (0, 0)
    assert ragged([], "int32").padded(length=3).shape == (0, 3)
    assert ragged([[], []], "float32").padded().shape == (2, 0)
    assert ragged([[], []], "float32").padded(fill=0.5, length=2).tolist() == [[0.5, 0.5]] * 2


def test_fillings_that_values_cannot_be_are_refused() -> None:
    tokens = ragged([[1], [2, 3]], "uint16")
    for fill in (-100, 65_536, 0.5, float("nan"), float("inf")):
        with pytest.raises(forebay.InvalidInputError, match=r"fill: .* is no uint16"):
            tokens.padded(fill=fill)
    assert tokens.padded(fill=np.int64(9)).tolist() == [[1, 9], [2, 3]]
    weights = ragged([[1], [2, 3]], "float32")
    assert weights.padded(fill=-np.inf).tolist() == [[1, -np.inf], [2, 3]]
    with pytest.raises(forebay.InvalidInputError, match="length cannot be -1"):
        tokens.padded(length=-1)
    with pytest.raises(TypeError):
        tokens.padded(length=1.5)  # type: ignore[arg-type]


def test_fillings_are_what_the_values_are() -> None:
    def filled(dtype: str, fill: float) -> Any:
        values = ragged([[], []], "uint16" if dtype == "bfloat16" else dtype)
        values.dtype = dtype
        return values.padded(fill=fill, length=1)[0, 0]

    refused = [
        ("bool", [2, -1, 0.5, float("nan")]),
        ("float16", [1e10, -65_520, 10**400]),
        ("float32", [1e39, 10**400]),
        ("float64", [10**400]),
        ("bfloat16", [3.4e38, -1e39, 10**400]),
        ("uint64", [2**64, np.float64(2**64), -1]),
        ("int64", [2**63, np.float64(2**63)]),
    ]
    for dtype, fills in refused:
        for fill in fills:
            with pytest.raises(forebay.InvalidInputError, match=f"is no {dtype}, which"):
                filled(dtype, fill)
    infinity = float("inf")
    assert filled("bool", True)
    assert filled("bool", np.float32(1)) == np.True_
    assert filled("float16", -65_504) == -65_504
    assert filled("float16", -infinity) == -infinity
    assert np.isnan(filled("float16", float("nan")))
    assert filled("float32", 0.1) == np.float32(0.1)
    assert filled("uint64", 2**64 - 1) == 2**64 - 1
    # The upper half of a float32, rounded to the nearest and, between two, to the even one.
    for fill, bits in [
        (0, 0x0000),
        (-0.0, 0x8000),
        (1.0, 0x3F80),
        (-100, 0xC2C8),
        (0.1, 0x3DCD),
        (1 + 2**-8, 0x3F80),
        (1 + 3 * 2**-8, 0x3F82),
        (3.3895313892515355e38, 0x7F7F),
        (infinity, 0x7F80),
        (-infinity, 0xFF80),
        (float("nan"), 0x7FC0),
    ]:
        assert filled("bfloat16", fill) == bits, fill


def test_fillings_of_bfloat16_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    values = ragged([[], []], "uint16")
    values.dtype = "bfloat16"
    for fill in [*np.random.default_rng(0).normal(0, 1e3, 200), 1e-40, 1e-30, 1e38]:
        bits = int(values.padded(fill=fill, length=1)[0, 0])
        assert bits == int(torch.tensor(fill, dtype=torch.bfloat16).view(torch.uint16)), fill


# One document among many that is much longer, so that what is padded is mostly filling.
LONG = [1 << 15] + [500] * 63


def test_padding_takes_the_memory_of_what_it_makes() -> None:
    documents = ragged([range(length) for length in LONG], "uint16")
    tracemalloc.start()
    try:
        rows = documents.padded()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows.nbytes == 2 * 64 << 15
    assert peak < 1.1 * rows.nbytes


def test_padding_on_devices_takes_little_beside_what_it_makes() -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import tensors
    from torch.utils._python_dispatch import TorchDispatchMode

    made: dict[int, Any] = {}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = function(*args, **(kwargs or {}))
            if isinstance(given, torch.Tensor):
                made[given.untyped_storage()._cdata] = given
            return given

    tokens = tensors(ragged([range(length) for length in LONG], "uint16")).to("meta")
    for length in (None, 100):
        made.clear()
        with Watch():
            rows = tokens.padded(length=length)
        sizes = [tensor.untyped_storage().nbytes() for tensor in made.values()]
        assert max(sizes) <= max(rows.nbytes, 8 * sum(LONG))
        assert sum(sizes) - rows.nbytes < 10 * 8 * sum(LONG)


needs_cuda = pytest.mark.skipif(
    "not __import__('importlib').util.find_spec('torch') or not __import__('torch').cuda.is_available()",
    reason="no GPU",
)


@pytest.mark.parametrize("device", [None, "cpu", pytest.param("cuda", marks=needs_cuda)])
def test_loaders_give_lists_as_tensors(tmp_path: Path, device: str | None) -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import RaggedTensor, StreamLoader

    expected = write_documents(tmp_path)
    with StreamLoader(tmp_path, device=device, epochs=1, **OPTIONS) as loader:
        batches = list(loader)
        assert loader.report()["unpinned_tensors"] == 0
    assert len(batches) == 8
    for number, batch in enumerate(batches):
        tokens, own = batch["tokens"], expected[8 * number :][:8]
        assert isinstance(tokens, RaggedTensor)
        assert tokens.device.type == (device or "cpu")
        assert tokens.values.dtype == torch.uint16
        assert tokens.values.tolist() == np.concatenate(own).tolist()
        assert tokens.splits.dtype == torch.int64
        assert tokens.splits.tolist() == [0, 3, 3, 10, 11, 23, 28, 28, 37]
        assert tokens.lengths.tolist() == LENGTHS[:8]
        assert tokens.splits.device == tokens.lengths.device == tokens.device
        for fill, length in ((0, None), (7, 4), (65_535, 12), (0, 20), (1, 0)):
            width = 12 if length is None else length
            # On the host, it is made by numpy.
            for rows in (tokens.padded(fill, length), tokens._scattered(fill, width)):
                assert (rows.dtype, rows.device) == (torch.uint16, tokens.device)
                assert rows.tolist() == padded(own, fill, width)
        # As every Ragged.
        assert isinstance(tokens, forebay.Ragged)
        assert len(tokens) == 8
        assert all(map(np.array_equal, tokens, own))
        assert np.array_equal(tokens[-1], own[-1])
        assert [bytes(tokens.view(place)) for place in range(8)] == [value.tobytes() for value in own]
        assert np.array_equal(tokens.bytes.view("<u2"), np.concatenate(own))
        assert tokens.offsets.tolist() == (2 * tokens.splits).tolist()
        assert isinstance(batch["__key__"], forebay.Keys)


def test_tensors_of_lists_show_the_memory_of_the_batch(documents: Path) -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import StreamLoader

    with StreamLoader(documents, **OPTIONS) as loader:
        tokens = next(loader)["tokens"]
    address = tokens.bytes.__array_interface__["data"][0]
    assert tokens.values.data_ptr() == address
    nested = tokens.nested()
    assert nested.layout == torch.jagged
    assert nested.values().data_ptr() == address
    assert [value.tolist() for value in nested.unbind()] == [value.tolist() for value in tokens]


def test_lists_go_to_devices_and_stay_on_the_host(documents: Path) -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import StreamLoader

    # A device without memory: what is computed there cannot come from the host, or go to it.
    with StreamLoader(documents, device="meta", **OPTIONS) as loader:
        tokens = next(loader)["tokens"]
    assert tokens.values.is_meta
    assert tokens.splits.is_meta
    assert tokens.padded().shape == (8, 12)
    assert tokens.padded(fill=1, length=4).is_meta
    assert [len(value) for value in tokens] == LENGTHS[:8]
    assert copy.deepcopy(tokens).values.is_meta
    assert tokens.to(torch.device("meta")).lengths.is_meta


def test_tensors_of_lists_can_be_pickled(documents: Path) -> None:
    pytest.importorskip("torch")
    from forebay.torch import RaggedTensor, StreamLoader

    with StreamLoader(documents, **OPTIONS) as loader:
        batch = next(loader)
    for again in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
        assert isinstance(again["tokens"], RaggedTensor)
        assert again["tokens"].padded().tolist() == batch["tokens"].padded().tolist()
        assert all(map(np.array_equal, again["tokens"], batch["tokens"]))


def test_all_kinds_of_numbers_are_padded_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import RaggedTensor, tensors

    dtypes = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
    for dtype in [*dtypes, "float16", "float32", "float64", "bool", "bfloat16"]:
        values = ragged([[1, 0], [], [1]], "uint16" if dtype == "bfloat16" else dtype)
        values.dtype = dtype
        tensor = tensors(values)
        assert isinstance(tensor, RaggedTensor)
        assert tensor.values.dtype == getattr(torch, "uint16" if dtype == "bfloat16" else dtype)
        one = 0x3F80 if dtype == "bfloat16" else 1
        assert tensor.padded(fill=1).tolist() == [[1, 0], [one, one], [1, one]]
        assert tensor.padded(length=1).tolist() == [[1], [0], [1]]
        assert tensor._scattered(one, 2).tolist() == [[1, 0], [one, one], [1, one]]
        assert tensor._scattered(0, 1).tolist() == [[1], [0], [1]]
    with pytest.raises(forebay.InvalidInputError, match=r"fill: -1 is no uint16"):
        tensors(ragged([[1]], "uint16")).padded(fill=-1)
    for empty in ([], [[], []]):
        rows = tensors(ragged(empty, "float32")).padded(fill=2, length=3)
        assert rows.tolist() == [[2, 2, 2]] * len(empty)
        rows += 1
    # What is no list of numbers stays as it is.
    texts = forebay.Ragged(b"text", np.array([0, 4]).tobytes())
    assert tensors([texts])[0] is texts


def saved(value: Any, where: str) -> Any:
    """Give it as it comes out of a file that is loaded to a device."""
    import torch

    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, map_location=where, weights_only=False)


def test_tensors_of_lists_become_other_types() -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import RaggedTensor, tensors

    lists = [[1, 2, 60_000], [4], []]
    tokens = tensors(ragged(lists, "uint16"))
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((torch.int64,), {}),
        ((torch.int64, True), {}),
        ((torch.int64,), {"copy": True, "non_blocking": True}),
        ((), {"dtype": torch.int64}),
        (("cpu", torch.int64), {}),
        (("cpu", torch.int64, True), {}),
        ((torch.device("cpu"),), {"dtype": torch.int64}),
        ((torch.zeros(1, dtype=torch.int64),), {}),
    ]
    for target, options in ways:
        ids = tokens.to(*target, **options)
        assert isinstance(ids, RaggedTensor)
        assert (ids.dtype, ids.values.dtype) == ("int64", torch.int64)
        assert ids.values.tolist() == [1, 2, 60_000, 4]
        assert ids.splits.tolist() == [0, 3, 4, 4]
        assert ids.lengths.tolist() == [3, 1, 0]
        assert [value.tolist() for value in ids] == lists
        assert ids.offsets.tolist() == [0, 24, 32, 32]
        rows = ids.padded(fill=-1)
        assert (rows.dtype, rows.tolist()) == (torch.int64, [[1, 2, 60_000], [4, -1, -1], [-1] * 3])
        assert ids._scattered(-1, 3).equal(rows)
    assert [value.tolist() for value in tokens] == lists
    dtypes = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
    for dtype in [*dtypes, "float16", "float32", "float64", "bool"]:
        made = tensors(ragged([[1, 0], [1]], "int32")).to(getattr(torch, dtype))
        assert made.dtype == dtype
        assert [value.tolist() for value in made] == [[1, 0], [1]]
        assert made.padded().tolist() == [[1, 0], [1, 0]]
    for other in (torch.bfloat16, torch.complex64):
        with pytest.raises(forebay.UnsupportedError, match=f"cannot become {other}; convert their `values`"):
            tokens.to(other)
    with pytest.raises(TypeError):
        tokens.to([])


def test_lists_of_bfloat16_are_converted_as_numbers() -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import tensors

    values = ragged([[0x3F80, 0x4000], [0xC0A0]], "uint16")
    values.dtype = "bfloat16"
    bits = tensors(values)
    assert bits.to(torch.float32).values.tolist() == [1, 2, -5]
    assert [value.tolist() for value in bits.to(torch.int64)] == [[1, 2], [-5]]
    same = bits.to(torch.bfloat16)
    assert (same.dtype, same.values.dtype) == ("bfloat16", torch.uint16)


def test_lists_become_other_types_on_devices() -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import tensors

    ids = tensors(ragged([[1, 2, 3], [], [4]], "uint16")).to("meta", torch.int64)
    assert (ids.device.type, ids.values.dtype, ids.splits.is_meta) == ("meta", torch.int64, True)
    # Where samples begin is known on the host, as what pads on a device asks for it.
    assert ids.offsets.tolist() == [0, 24, 24, 32]
    assert ids.padded().shape == (3, 3)
    assert ids.padded(fill=-1, length=2).is_meta


def test_copies_of_lists_show_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import tensors

    tokens = tensors(ragged([[5, 9], [], [1]], "int32"))
    # Where there is no GPU, nothing can be pinned.
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    for own in (tokens.pin_memory(), tokens.to("cpu", copy=True)):
        own.values.clamp_(max=4)
        assert [value.tolist() for value in own] == [[4, 4], [], [1]]
        assert own.padded().tolist() == [[4, 4], [0, 0], [1, 0]]
        assert own.values.data_ptr() == own.bytes.__array_interface__["data"][0]
        # It holds nothing of the batch.
        assert own._data.obj is not tokens._data.obj
        assert own._offsets.obj is not tokens._offsets.obj
    assert [value.tolist() for value in tokens] == [[5, 9], [], [1]]
    same = tokens.to("cpu")
    assert same.values.data_ptr() == tokens.values.data_ptr()
    assert same._data is tokens._data


def test_lists_can_be_pinned_where_there_is_a_gpu_only() -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import tensors

    tokens = tensors(ragged([[5, 9], [], [1]], "int32"))
    if torch.cuda.is_available():
        pinned = tokens.pin_memory()
        assert pinned.values.is_pinned()
        assert [value.tolist() for value in pinned] == [[5, 9], [], [1]]
    else:
        with pytest.raises(RuntimeError):
            tokens.pin_memory()


def test_lists_are_loaded_without_trusting_the_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import tensors

    if not hasattr(torch.serialization, "add_safe_globals"):
        pytest.skip("this torch trusts files, or nothing but tensors")
    tokens = tensors(ragged([[1, 2], [], [3]], "uint16"))
    torch.save({"tokens": tokens}, tmp_path / "saved.pt")
    again = torch.load(tmp_path / "saved.pt", weights_only=True)["tokens"]
    assert [value.tolist() for value in again] == [[1, 2], [], [3]]
    assert torch.load(tmp_path / "saved.pt", weights_only=True, map_location="meta")["tokens"].values.is_meta


def test_tensors_of_lists_are_loaded_where_they_are_wanted(documents: Path) -> None:
    pytest.importorskip("torch")
    from forebay.torch import StreamLoader

    with StreamLoader(documents, **OPTIONS) as loader:
        batch = next(loader)
    tokens = batch["tokens"]
    again = saved(batch, "meta")["tokens"]
    assert again.values.is_meta
    assert again.splits.is_meta
    assert len(again) == 8
    again = saved(batch, "cpu")["tokens"]
    assert again.values.equal(tokens.values)
    assert all(map(np.array_equal, again, tokens))
    assert not again[2].flags.writeable


def test_tensors_of_lists_stay_on_their_device() -> None:
    pytest.importorskip("torch")
    from multiprocessing.reduction import ForkingPickler

    from forebay.torch import tensors

    tokens = tensors(ragged([[1, 2], [], [3]], "uint16")).to("meta")
    assert pickle.loads(bytes(ForkingPickler.dumps(tokens))).values.is_meta
    # What is on the host goes along where there is no other.
    assert [list(value) for value in tokens.to("meta")] == [[1, 2], [], [3]]


def send_on(inbox: Any, outbox: Any) -> None:
    tokens = inbox.get()
    rows = tokens.padded().tolist()
    # It took no copy of the values.
    assert "_data" not in vars(tokens)
    outbox.put((tokens.device.type, [value.tolist() for value in tokens], rows))
    # It is gone when its sender is.
    del tokens
    inbox.get()


@needs_cuda
def test_tensors_of_lists_on_a_gpu_stay_and_are_loaded_anywhere() -> None:
    import torch
    from forebay.torch import tensors

    lists = [[1, 2], [], [3]]
    tokens = tensors(ragged(lists, "uint16")).to("cuda")
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    other = context.Process(target=send_on, args=(inbox, outbox))
    other.start()
    inbox.put(tokens)
    assert outbox.get(timeout=60) == ("cuda", lists, [[1, 2], [0, 0], [3, 0]])
    inbox.put(None)
    other.join(60)
    assert other.exitcode == 0
    for where in ("cpu", "cuda"):
        again = saved(tokens, where)
        assert again.device.type == where
        assert [value.tolist() for value in again] == lists
        assert copy.deepcopy(again).padded().tolist() == [[1, 2], [0, 0], [3, 0]]
    assert [value.tolist() for value in saved(tokens, "cuda").to("cpu")] == lists
    # What was changed there is what comes back, and what is on the host shows it.
    tokens = tokens.to(torch.int64)
    assert [value.tolist() for value in tokens] == lists
    tokens.values.clamp_(max=2)
    back = tokens.to("cpu")
    assert back.padded().tolist() == tokens.padded().tolist() == [[1, 2], [0, 0], [2, 0]]
    assert [value.tolist() for value in back] == [[1, 2], [], [2]]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_lists_come_out_of_workers_as_tensors(tmp_path: Path, context: str | None) -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import RaggedTensor, StreamDataset

    expected = write_documents(tmp_path)
    workers = 0 if context is None else 1
    loader = torch.utils.data.DataLoader(
        StreamDataset(tmp_path, **OPTIONS),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=context,
    )
    for number, batch in enumerate(loader):
        tokens, own = batch["tokens"], expected[8 * number :][:8]
        assert isinstance(tokens, RaggedTensor)
        assert tokens.padded().tolist() == padded(own, 0, 12)
        assert tokens.values.data_ptr() == tokens.bytes.__array_interface__["data"][0]
    assert number == 7


def test_lists_leave_workers_in_shared_memory() -> None:
    pytest.importorskip("torch")
    from multiprocessing.reduction import ForkingPickler

    from forebay.torch import RaggedTensor, tensors

    tokens = tensors(ragged([[1] * 50_000, [2]], "int32"))
    sent = bytes(ForkingPickler.dumps(tokens))
    assert len(sent) < 10_000
    again = pickle.loads(sent)
    assert isinstance(again, RaggedTensor)
    # What pads on a device asks the host for no more than where samples begin.
    assert again._width(None) == 50_000
    assert again._scattered(again._filling(0), 1).tolist() == [[1], [2]]
    assert "_data" not in vars(again)
    assert again.values.equal(tokens.values)
    assert all(map(np.array_equal, again, tokens))
    assert again.values.data_ptr() == again.bytes.__array_interface__["data"][0]
    for lists in ([], [[], []]):
        empty = pickle.loads(bytes(ForkingPickler.dumps(tensors(ragged(lists, "uint16")))))
        assert [value.tolist() for value in empty] == lists
        assert empty.padded().shape == (len(lists), 0)


def test_nothing_changes_the_warnings_of_other_threads(script: Script) -> None:
    pytest.importorskip("torch")
    # In an interpreter of its own: torch warns once.
    script("""
        import gc, pickle, warnings, weakref
        import forebay, numpy
        from forebay.torch import tensors
        from multiprocessing.reduction import ForkingPickler

        def refuse(*_, **__):
            raise AssertionError("filters of warnings are those of all threads")

        warnings.simplefilter("error")
        warnings.catch_warnings = refuse
        data, offsets = numpy.arange(100, dtype="<i4"), numpy.array([0, 0, 160, 400])
        for take in (
            lambda array: array,
            lambda array: array[:, ::2],
            lambda array: array[:0],
            lambda array: array[0, 0:0],
            lambda array: array > 7,
        ):
            shown = take(data.reshape(4, 25)).view()
            shown.flags.writeable = False
            alive = weakref.ref(shown)
            tensor = tensors(shown)
            assert tuple(tensor.shape) == shown.shape
            assert [stride * tensor.element_size() for stride in tensor.stride()] == list(shown.strides)
            assert tensor.tolist() == shown.tolist()
            assert shown.size == 0 or tensor.data_ptr() == shown.__array_interface__["data"][0]
            assert not shown.flags.writeable
            del shown
            gc.collect()
            assert alive() is not None
            del tensor
            gc.collect()
            assert alive() is None
        for dtype in (None, "int32"):
            ragged = forebay.Ragged(data.tobytes(), offsets.tobytes(), dtype)
            again = pickle.loads(ForkingPickler.dumps(tensors([ragged])[0]))
            assert all(map(numpy.array_equal, again, ragged))
    """)
