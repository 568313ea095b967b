"""Batches for those who are no torch: by DLPack, and by JAX where it is installed."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import forebay
import pytest
from test_stream import write_shard

np = pytest.importorskip("numpy")

CONTEXT = 8
WORDS = 16


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A text in which each word says which one is next."""
    folder = tmp_path / "words"
    folder.mkdir()
    words = [1]
    for _ in range(4096):
        words.append((5 * words[-1] + 3) % WORDS)
    np.array(words, dtype="<u2").tofile(folder / "train.bin")
    return folder


def tokens(folder: Path, **options: Any) -> forebay.Stream:
    told = {"name": "tokens", "tokens": CONTEXT + 1, "dtype": "uint16"}
    return forebay.stream(folder, batch_size=32, shuffle=True, lanes=4, format=told, **options)


def stream_something_else(words: Path) -> None:
    """Have memory that nobody holds any more used again."""
    gc.collect()
    assert sum(1 for _ in tokens(words, seed=1, epochs=3)) > 30


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="numpy without DLPack 1.0")
def test_dlpack_shares_memory_that_outlives_the_stream(words: Path) -> None:
    shown: list[tuple[Any, Any]] = []
    with tokens(words) as stream:
        for batch in stream:
            array = batch["tokens"]
            again = np.from_dlpack(array)
            assert np.shares_memory(again, array)
            assert not again.flags.writeable
            shown.append((again, array.copy()))
    assert len(shown) == len(stream) > 10
    del stream, batch, array, again
    stream_something_else(words)
    for again, copied in shown:
        assert again.dtype == copied.dtype
        assert np.array_equal(again, copied)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="numpy without DLPack 1.0")
def test_dlpack_shares_what_ragged_fields_are_made_of(tmp_path: Path) -> None:
    write_shard(tmp_path / "train.tar", 0)
    ragged = next(forebay.stream(tmp_path, batch_size=10))["bin"]
    for array in (ragged.bytes, ragged.offsets):
        again = np.from_dlpack(array)
        assert np.shares_memory(again, array)
        assert np.array_equal(again, array)
        assert not again.flags.writeable


@pytest.fixture
def jax() -> Any:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_platforms", "cpu")
    return jax


def by_device(jax: Any, array: Any) -> Any:
    return jax.device_put(array)


def by_dlpack(jax: Any, array: Any) -> Any:
    try:
        return jax.dlpack.from_dlpack(array)
    except BufferError:
        # It does not know yet of arrays that are read-only.
        return jax.dlpack.from_dlpack(array.copy())


@pytest.mark.parametrize("take", [by_device, by_dlpack])
def test_jax_arrays_outlive_the_stream(jax: Any, words: Path, take: Any) -> None:
    with tokens(words) as stream:
        taken = [(take(jax, batch["tokens"]), batch["tokens"].copy()) for batch in stream]
    assert len(taken) == len(stream) > 10
    del stream
    stream_something_else(words)
    for array, copied in taken:
        assert array.dtype == copied.dtype
        assert np.array_equal(np.asarray(array), copied)


@pytest.mark.parametrize("take", [by_device, by_dlpack])
def test_jax_trains_on_batches(jax: Any, words: Path, take: Any) -> None:
    def loss(table: Any, batch: Any) -> Any:
        logits = jax.nn.log_softmax(table[batch[:, :-1]])
        return -jax.numpy.take_along_axis(logits, batch[:, 1:, None].astype("int32"), axis=-1).mean()

    @jax.jit
    def step(table: Any, batch: Any) -> tuple[Any, Any]:
        value, gradient = jax.value_and_grad(loss)(table, batch)
        return value, table - 20 * gradient

    table = jax.numpy.zeros((WORDS, WORDS))
    losses = []
    with tokens(words, rank=jax.process_index(), world=jax.process_count(), epochs=3) as stream:
        for batch in stream:
            value, table = step(table, take(jax, batch["tokens"]))
            losses.append(float(value))
    assert losses[0] == pytest.approx(np.log(WORDS), rel=1e-3)
    assert losses[-1] < 0.1 < losses[1]


def test_jax_compares_fingerprints(jax: Any, words: Path) -> None:
    multihost_utils = pytest.importorskip("jax.experimental.multihost_utils")
    with tokens(words) as stream:
        own = np.frombuffer(bytes.fromhex(stream.fingerprint), dtype="uint8")
    multihost_utils.assert_equal(own, "the hosts stream different data")
    assert multihost_utils.process_allgather(own).reshape(-1).tolist() == own.tolist()
