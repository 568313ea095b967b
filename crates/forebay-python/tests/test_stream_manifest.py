"""An index that is not beside its shards."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import keys, names, write_shard

pytest.importorskip("numpy")


def quietly(*url: Any, **options: Any) -> forebay.Stream:
    """Open a stream that has nothing to warn of, such as that all shards are read."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return forebay.stream(*url, **options)


def test_an_index_elsewhere_is_made_and_used(data: Path, tmp_path: Path) -> None:
    before = sorted(data.iterdir())
    manifest = tmp_path / "kept" / "x.fbi"
    with pytest.raises(forebay.NotFoundError, match=r"x\.fbi") as missing:
        forebay.stream(data, batch_size=10, manifest=manifest)
    assert "forebay index -o" in str(missing.value.hint)
    with pytest.warns(UserWarning, match="no index here: reading 4 shards"):
        forebay.stream(data, batch_size=10, manifest=manifest, save_index=True).close()
    assert manifest.exists()
    assert sorted(data.iterdir()) == before
    with quietly(data, batch_size=10, manifest=manifest) as stream:
        assert names(stream) == keys()
        assert stream.report()["unverified"] is None
    quietly(data, batch_size=10, manifest=str(manifest), save_index=True).close()
    shards = sorted(data.glob("*.tar"))
    assert quietly(shards, batch_size=10, manifest=[manifest]).samples == len(keys())


def test_data_sets_that_are_mixed_have_an_index_each(data: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    write_shard(more / "more-000.tar", 9)
    manifest = tmp_path / "data.fbi"
    with pytest.warns(UserWarning, match="no index here"):
        forebay.stream(data, batch_size=10, manifest=manifest, save_index=True).close()
    with pytest.warns(UserWarning, match="no index here"):
        forebay.stream(more, batch_size=10, save_index=True).close()
    options: dict[str, Any] = {"batch_size": 10, "shuffle": True, "lanes": 2}
    assert quietly([data, more], manifest=[manifest, None], **options).samples == 150
    for manifests in (manifest, [manifest]):
        with pytest.raises(forebay.InvalidInputError, match="1 manifest named for 2 data sets"):
            forebay.stream([data, more], manifest=manifests, **options)
    with pytest.raises(TypeError):
        forebay.stream(data, batch_size=10, manifest=5)  # type: ignore[arg-type]


def test_loaders_of_torch_take_it(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from forebay.torch import StreamDataset, StreamLoader

    manifest = tmp_path / "x.fbi"
    with pytest.raises(forebay.NotFoundError, match="manifest: there is no"):
        StreamDataset(data, batch_size=10, manifest=manifest)
    with pytest.warns(UserWarning, match="no index here"):
        made = list(StreamDataset(data, batch_size=10, manifest=manifest, save_index=True))
    assert len(made) == 12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(StreamDataset(data, batch_size=10, manifest=manifest))) == 12
        with StreamLoader(data, batch_size=10, manifest=manifest) as loader:
            assert len(loader) == 12
