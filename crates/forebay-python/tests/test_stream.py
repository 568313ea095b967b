"""Streams: every sample once, as it is in the shards, on every rank."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import SAMPLES, SHARDS, contents, keys, names, value, write_shard

np = pytest.importorskip("numpy")


def test_batches_have_what_the_shards_have(data: Path) -> None:
    with forebay.stream(data, batch_size=16, drop_last=False) as stream:
        assert len(stream) == 8
        assert stream.samples == SHARDS * SAMPLES
        assert [field["name"] for field in stream.schema] == ["bin", "cls", "json", "txt"]
        seen: list[str] = []
        for index, batch in enumerate(stream):
            assert isinstance(batch, dict)
            assert (batch.epoch, batch.index) == (0, index)
            assert set(batch) == {"bin", "cls", "json", "txt", "__key__"}
            for place, key in enumerate(batch["__key__"]):
                assert bytes(batch["bin"][place]) == value(key)
            seen += batch["__key__"]
        assert seen == keys()
        assert list(stream) == []


def test_filters_keep_some_samples(data: Path) -> None:
    options: dict[str, Any] = {"batch_size": 5, "filter": "cls < 10 and json.shard != 2"}
    with forebay.stream(data, **options) as stream:
        assert stream.samples == 30
        kept = names(stream)
    assert kept == [key for key in keys() if int(key[3:]) < 10 and key[:2] != "02"]
    with forebay.stream(data, **options) as stream:
        next(stream)
        state = stream.state_dict()
    with forebay.stream(data, **options) as stream:
        stream.load_state_dict(state)
        assert names(stream) == kept[5:]
    with pytest.raises(forebay.ForebayError), forebay.stream(data, batch_size=5) as stream:
        stream.load_state_dict(state)
    with pytest.raises(forebay.InvalidInputError):
        forebay.stream(data, batch_size=5, filter="cls <")


def test_several_data_sets_are_mixed_by_weight(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        write_shard(tmp_path / str(number) / "train.tar", number, 200)
    urls = [tmp_path / "0", tmp_path / "1"]
    options: dict[str, Any] = {"batch_size": 20, "weights": [3, 1], "shuffle": True, "lanes": 4, "epochs": 2}
    with forebay.stream(urls, **options) as stream:
        mixed = [batch["__key__"].list() for batch in stream]
    assert len(mixed) == 40
    shares = [sum(key.startswith("00-") for key in batch) for batch in mixed]
    assert all(14 <= share <= 16 for share in shares)
    with forebay.stream(urls, **options) as stream:
        for _ in range(5):
            next(stream)
        state = stream.state_dict()
    with forebay.stream(urls, **options) as stream:
        stream.load_state_dict(state)
        assert [batch["__key__"].list() for batch in stream] == mixed[5:]
    with pytest.raises(forebay.InvalidInputError, match="weights"):
        forebay.stream(urls, **{**options, "weights": [1]})


def test_results_that_are_kept_hold_up_no_stream(data: Path) -> None:
    (data / "large.tmp").write_bytes(bytes(8 << 20))
    program = f"""
        import forebay
        forebay.configure(buffer_memory="32MiB", part_size="1MiB")
        store = forebay.Store({str(data)!r})
        kept = [store.read("large.tmp") for _ in range(16)]
        with forebay.stream({str(data)!r} + "/train-{{000..003}}.tar", batch_size=10) as batches:
            print(sum(batch.size for batch in batches))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "120"


def test_an_index_can_be_kept(data: Path) -> None:
    forebay.stream(data, batch_size=16).close()
    assert not (data / "_forebay.fbi").exists()
    forebay.stream(data, batch_size=16, save_index=True).close()
    assert (data / "_forebay.fbi").exists()
    assert names(forebay.stream(data, batch_size=10, save_index=True)) == keys()


def test_transforms_and_fields(data: Path) -> None:
    stream = forebay.stream(data, batch_size=10, fields=["cls"], transform=lambda batch: sorted(batch))
    assert next(stream) == ["__key__", "cls"]
    with pytest.raises(forebay.InvalidInputError, match="jpg"):
        next(forebay.stream(data, batch_size=10, fields=["jpg"]))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_every_epoch(data: Path, world: int) -> None:
    epochs: list[list[str]] = [[], []]
    for rank in range(world):
        options = {"batch_size": 5, "shuffle": True, "seed": 3, "lanes": 8, "epochs": 2}
        for batch in forebay.stream(data, rank=rank, world=world, **options):  # type: ignore[arg-type]
            epochs[batch.epoch] += batch["__key__"]
    assert [sorted(epoch) for epoch in epochs] == [keys(), keys()]
    assert epochs[0] != epochs[1]


def test_the_launcher_says_which_rank(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"batch_size": 5, "shuffle": True, "lanes": 4}
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(forebay.InvalidInputError, match="WORLD_SIZE"):
        forebay.stream(data, **options)  # type: ignore[arg-type]
    monkeypatch.setenv("WORLD_SIZE", "2")
    launched = names(forebay.stream(data, **options))  # type: ignore[arg-type]
    assert launched == names(forebay.stream(data, rank=1, world=2, **options))  # type: ignore[arg-type]
    assert len(launched) == len(keys()) // 2
    with pytest.raises(forebay.InvalidInputError, match="go together"):
        forebay.stream(data, rank=1, **options)  # type: ignore[arg-type]


def test_the_second_run_reads_from_the_cache(s3_prefix: str, data: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 3, "drop_last": False}
    # Made beside the files: what is compared is how they are streamed, not how they are indexed.
    with forebay.stream(data, save_index=True, **options) as stream:
        local = [contents(batch) for batch in stream]
    url = f"s3://{s3_prefix}/stream"
    store = forebay.Store(url)
    for path in data.iterdir():
        store.write(path.name, path.read_bytes())
    cache = f"{tmp_path}/cache:64MiB"

    def run() -> tuple[list[Any], dict[str, Any]]:
        with forebay.stream(url, cache=cache, **options) as stream:
            return [contents(batch) for batch in stream], stream.report()

    def bytes_by_http(report: dict[str, Any]) -> int:
        return sum(path["bytes"] for name, path in report["ledger"]["paths"].items() if "http" in name)

    batches, first = run()
    assert batches == local
    assert bytes_by_http(first) > 0
    batches, second = run()
    assert batches == local
    assert bytes_by_http(second) == 0
    assert sum(path["bytes"] for path in second["ledger"]["paths"].values()) > 0
    assert second["stalls"]["blame"]["store_s"] == 0
    with forebay.stream(url, **options) as stream:
        assert [contents(batch) for batch in stream] == local
        assert bytes_by_http(stream.report()) > 0


def test_arguments_of_a_wrong_type_are_named(data: Path) -> None:
    for name, wrong, words in (
        ("batch_size", None, "batch_size is a whole number, and cannot be None"),
        ("url", None, "url cannot be None"),
        ("url", b"data", "url is a path or a URL, and cannot be b'data'"),
        ("url", [data, 5], "url is a path or a URL, and cannot be 5"),
        ("manifest", 5, "manifest cannot be 5"),
        ("fields", 5, "fields cannot be 5"),
        ("trace", 5, "trace is a path or a URL, and cannot be 5"),
        ("weights", 0.5, "weights cannot be 0.5"),
        ("weights", ["half"], "weights: "),
        ("shuffle", "yes", "shuffle: "),
        ("cache", data / "cache", "cache: "),
        ("filter", 5, "filter: "),
        ("pin", print, "pin: "),
        ("window", 2.5, "window is a whole number"),
    ):
        given: dict[str, Any] = {"url": data, "batch_size": 5, name: wrong}
        with pytest.raises(TypeError, match=f"^{words}"):
            forebay.stream(**given)


def test_parameters_of_a_format_are_named(data: Path) -> None:
    with pytest.raises(forebay.InvalidInputError, match=r"^format: .*not JSON serializable"):
        forebay.stream(data, batch_size=5, format={"name": "wds", "columns": {"cls"}})


def test_one_field_needs_no_list(data: Path) -> None:
    assert set(next(forebay.stream(data, batch_size=5, fields="cls"))) == {"cls", "__key__"}
    with pytest.raises(forebay.InvalidInputError, match="'jpg'"):
        forebay.stream(data, batch_size=5, fields="jpg")


def test_what_does_not_fit_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(forebay.InvalidInputError, match="63 or 66"):
        forebay.stream(data, batch_size=5, shuffle=True, rank=0, world=3)
    with pytest.raises(forebay.NotFoundError):
        forebay.stream(tmp_path / "nothing", batch_size=5)
    with pytest.raises(forebay.InvalidInputError, match="skip"):
        forebay.stream(data, batch_size=5, bad="ignore")
    with pytest.raises(forebay.InvalidInputError):
        forebay.stream(data, batch_size=5, window="much")
    with pytest.raises(TypeError):
        forebay.stream(data, batch_size="5")  # type: ignore[arg-type]
    with pytest.raises(forebay.InvalidInputError, match="batch_size"):
        forebay.stream(data, batch_size=0)


def test_arguments_that_cannot_be_are_named(data: Path) -> None:
    for name in (
        "batch_size",
        "seed",
        "epochs",
        "lanes",
        "threads",
        "limit",
        "window",
        "block_size",
        "memory",
    ):
        for number in (-1, 1 << 64, 2.5):
            given: dict[str, Any] = {"batch_size": 5, name: number}
            kind = TypeError if number == 2.5 else forebay.InvalidInputError
            with pytest.raises(kind, match=rf"^{name} .*cannot be {number}"):
                forebay.stream(data, **given)
    with pytest.raises(forebay.InvalidInputError, match="rank cannot be -1"):
        forebay.stream(data, batch_size=5, rank=-1, world=2)
    assert len(forebay.stream(data, batch_size=np.int64(5), memory=np.int64(1 << 27))) == 24
    with pytest.raises(forebay.InvalidInputError, match="no data set in the list"):
        forebay.stream([], batch_size=5)
    for decode, words in [("int", "a dict says how"), ({"cls": 5}, "how 'cls' is decoded, not 5")]:
        with pytest.raises(forebay.InvalidInputError, match=words):
            forebay.stream(data, batch_size=5, decode=decode)  # type: ignore[arg-type]


def test_samples_that_lanes_leave_out_are_told(data: Path) -> None:
    count = len(keys())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        forebay.stream(data, batch_size=1, shuffle=True, lanes=count - 1, rank=0, world=1)
        forebay.stream(data, batch_size=1, shuffle=True, lanes=1, rank=0, world=1)
    assert not [note for note in told if "left out of every epoch" in str(note.message)]
    lanes = count // 2 + 1
    with pytest.warns(UserWarning, match=f"{count - lanes} of {count} samples are left out of every epoch"):
        forebay.stream(data, batch_size=1, shuffle=True, lanes=lanes, rank=0, world=1)


def test_damage_is_named(tmp_path: Path) -> None:
    # Changed behind the index that was made when the stream was opened.
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "a.tar"
    write_shard(path, 0)
    stream = forebay.stream(folder, batch_size=10)
    content = bytearray(path.read_bytes())
    at = content.index(value("00-0013") + b"\0")
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises((forebay.CorruptDataError, forebay.PreconditionError), match=r"a\.tar"):
        names(stream)


def test_numpy_is_asked_for_in_words(data: Path, script: Callable[..., Any]) -> None:
    source = """
        import sys
        sys.modules["numpy"] = None
        import forebay
        stream = forebay.stream(sys.argv[1], batch_size=10)
        assert len(stream) == 12
        try:
            next(stream)
        except ImportError as error:
            assert "forebay[numpy]" in str(error)
        else:
            raise SystemExit("numpy was not missed")
    """
    script(source, str(data))
