"""What streams warn of."""

from __future__ import annotations

import io
import json
import tarfile
import warnings
from pathlib import Path
from typing import Any

import forebay
import pytest


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for number in range(3):
        with tarfile.open(tmp_path / f"{number:03}.tar", "w") as tar:
            for sample in range(8):
                member = tarfile.TarInfo(f"{number}-{sample}.cls")
                member.size = 1
                tar.addfile(member, io.BytesIO(str(sample).encode()))
    return tmp_path


def test_reading_everything_to_make_an_index_is_warned_of(shards: Path) -> None:
    with pytest.warns(UserWarning, match="no index here: reading 3 shards, .*forebay index") as told:
        forebay.stream(shards, batch_size=4).close()
    assert told[0].filename == __file__
    with pytest.warns(UserWarning, match="each of 2 ranks does so"):
        forebay.stream(shards, batch_size=4, rank=0, world=2).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="no index here"):
            forebay.stream(shards, batch_size=4)
    with pytest.warns(UserWarning, match="to make one$"):
        forebay.stream(shards, batch_size=4, save_index=True).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forebay.stream(shards, batch_size=4).close()


def test_a_list_of_shards_is_one_data_set(shards: Path) -> None:
    listed = sorted(shards.glob("*.tar"))
    with forebay.stream(listed, batch_size=4, shuffle=True, lanes=4) as batches:
        keys = [key for batch in batches for key in batch["__key__"]]
    assert len(keys) == len(set(keys)) == 24


def test_a_state_with_nothing_behind_it_is_told(shards: Path) -> None:
    forebay.stream(shards, batch_size=4, save_index=True).close()
    stream = forebay.stream(shards, batch_size=4, epochs=2)
    states = [stream.state_dict() for _ in stream]
    once = forebay.stream(shards, batch_size=4)
    with pytest.warns(UserWarning, match="nothing is left"):
        once.load_state_dict(states[5])
    assert list(once) == []
    with pytest.raises(forebay.InvalidInputError, match="is in epoch 2, and the run ends after epoch 1"):
        once.load_state_dict(states[6])
    with pytest.raises(forebay.CorruptDataError, match="this is no state of a stream"):
        once.load_state_dict({"epoch": 1})


def test_files_that_are_no_images_are_warned_of(tmp_path: Path) -> None:
    for name in ("cat/0.jpg", "cat/1.jpg", "dog/0.jpg", "dog/Thumbs.db", "README.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    with pytest.warns(UserWarning, match=r"left out are 2 files.*such as 'README.txt'.*\"layout\": \"tree\""):
        stream = forebay.stream(tmp_path, batch_size=3)
    with stream as batches:
        batch = next(batches)
        assert list(batch["label"]) == [0, 0, 1]
        assert list(batch["__key__"]) == ["cat/0", "cat/1", "dog/0"]
    tree = {"name": "files", "layout": "tree"}
    with pytest.warns(UserWarning, match="no index here"):
        assert forebay.stream(tmp_path, batch_size=5, format=tree).samples == 5


def test_members_of_json_that_no_sample_has_are_warned_of(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for sample in range(8):
            text = json.dumps({"width": sample}).encode()
            member = tarfile.TarInfo(f"{sample}.json")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    forebay.stream(tmp_path, batch_size=4, save_index=True).close()
    with pytest.warns(UserWarning, match="no sample that was looked at has 'json.breadth', which"):
        forebay.stream(tmp_path, batch_size=4, filter="json.width < 4 or json.breadth > 3").close()
    with pytest.raises(
        forebay.InvalidInputError, match=r"keeps none of 8 samples.*that was looked at has 'json.breadth'"
    ):
        forebay.stream(tmp_path, batch_size=4, filter="json.breadth > 3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forebay.stream(tmp_path, batch_size=4, filter="json.width > 3").close()


def test_a_filter_that_reads_much_is_warned_of_once(tmp_path: Path) -> None:
    # Of 64 ranks, 17 MB each are more than a trifle.
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with tarfile.open(tmp_path / name / "0.tar", "w") as tar:
            for sample in range(64):
                for field, content in [("bin", bytes(140_000)), ("cls", str(sample).encode())]:
                    member = tarfile.TarInfo(f"{sample:02}.{field}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        with pytest.warns(UserWarning, match="no index here"):
            forebay.stream(tmp_path / name, batch_size=4, save_index=True).close()
    both = [tmp_path / "one", tmp_path / "two"]
    options: dict[str, Any] = {"batch_size": 1, "shuffle": True, "rank": 0, "world": 64}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        forebay.stream(both, filter="cls >= 0", **options).close()
    assert [str(one.message).partition(" at every start")[0] for one in told] == [
        "the filter reads about 17.3 MiB"
    ]
    assert "each of 64 ranks does so, 1.1 GiB together; `forebay pack --filter`" in str(told[0].message)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forebay.stream(both, filter="__key__ >= '00'", **options).close()
        forebay.stream(both[0], filter="cls >= 0", batch_size=4).close()


def test_short_batches_of_mixtures_are_told_not_to_come(shards: Path) -> None:
    forebay.stream(shards, batch_size=4, save_index=True).close()
    with pytest.warns(UserWarning, match="last='short' changes nothing in a mixture"):
        forebay.stream(
            [shards, shards], weights=[1, 1], batch_size=5, shuffle=True, lanes=4, drop_last=False
        ).close()
