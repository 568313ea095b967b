"""Batches for those who are no torch: by DLPack, and by JAX where it is installed."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import write_shard

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
    taken = jax.device_put(array)
    assert taken.unsafe_buffer_pointer() == array.ctypes.data
    return taken


# Before, JAX did not know of arrays that are read-only.
JAX_WITH_READ_ONLY = (0, 12)


def by_dlpack(jax: Any, array: Any) -> Any:
    if jax.__version_info__ < JAX_WITH_READ_ONLY:
        with pytest.raises(BufferError):
            jax.dlpack.from_dlpack(array)
        return jax.dlpack.from_dlpack(array.copy())
    taken = jax.dlpack.from_dlpack(array)
    assert taken.unsafe_buffer_pointer() == array.ctypes.data
    return taken


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


# As the guide has it. The first run sees the same on both, the others do not.
COMPARE = """
    import sys
    import forebay, jax, numpy

    jax.config.update("jax_platforms", "cpu")
    number, meeting, own, common = int(sys.argv[1]), *sys.argv[2:]
    jax.distributed.initialize(meeting, num_processes=2, process_id=number, initialization_timeout=60)
    from jax.experimental import multihost_utils

    told = {"name": "tokens", "tokens": 9, "dtype": "uint16"}
    options = {"batch_size": 32, "shuffle": True, "lanes": 4, "format": told}
    options |= {"rank": jax.process_index(), "world": jax.process_count()}
    assert (options["rank"], options["world"]) == (number, 2)
    for url, seed in [(common, 0), (own, 0), (common, number)]:
        batches = forebay.stream(url, seed=seed, **options)
        own_print = numpy.frombuffer(bytes.fromhex(batches.fingerprint), dtype="uint8")
        prints = multihost_utils.process_allgather(own_print)
        print("same" if (prints == own_print).all() else "different")
"""


def test_jax_compares_fingerprints(jax: Any, words: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax.experimental.multihost_utils")
    other = tmp_path / "other"
    other.mkdir()
    np.arange(4096, dtype="<u2").tofile(other / "train.bin")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(COMPARE)]
    hosts = [
        subprocess.Popen(
            [*command, str(number), meeting, str(own), str(words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, own in enumerate([words, other])
    ]
    try:
        done = [(*host.communicate(timeout=100), host.returncode) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    for said, complaints, code in done:
        assert code == 0, complaints
        assert [line for line in said.split() if line in ("same", "different")] == [
            "same",
            "different",
            "different",
        ]
