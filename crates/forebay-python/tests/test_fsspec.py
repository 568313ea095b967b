"""The fsspec file system: fsspec's own abstract suite on every store, and what it does not cover."""

from __future__ import annotations

import http.server
import os
import pickle
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

fsspec = pytest.importorskip("fsspec")

import forebay  # noqa: E402
from forebay.fsspec import ForebayFile, ForebayFileSystem, ForebayS3FileSystem  # noqa: E402
from fsspec.tests import abstract  # noqa: E402


class ObjectFixtures(abstract.AbstractFixtures):
    """Directories exist while there is something in them, and paths are joined with slashes."""

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class LocalFixtures(ObjectFixtures):
    @pytest.fixture
    def fs(self) -> Any:
        return fsspec.filesystem("forebay+file")

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        return str(tmp_path / "remote")


class MemoryFixtures(ObjectFixtures):
    @pytest.fixture
    def fs(self) -> Any:
        return fsspec.filesystem("forebay+mem")

    @pytest.fixture
    def fs_path(self) -> str:
        return f"fsspec-{uuid.uuid4().hex}/top"


class UrlFixtures(ObjectFixtures):
    @pytest.fixture
    def fs(self, tmp_path: Path) -> Any:
        return fsspec.filesystem("forebay", url=str(tmp_path / "remote"))

    @pytest.fixture
    def fs_path(self) -> str:
        return "top"


class WithoutEmptyFolders(ForebayS3FileSystem):
    """SeaweedFS lists folders for some seconds after the last object in them is gone; S3 does not."""

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        rows = super().ls(path, detail=True, **kwargs)
        rows = [row for row in rows if row["type"] == "file" or self.exists(row["name"])]
        if not rows:
            raise FileNotFoundError(path)
        return rows if detail else sorted(row["name"] for row in rows)


class S3Fixtures(ObjectFixtures):
    @pytest.fixture
    def fs(self, s3_prefix: str) -> Any:
        if os.environ.get("FOREBAY_TEST_S3_SERVER") == "seaweedfs":
            return WithoutEmptyFolders()
        return fsspec.filesystem("forebay+s3")

    @pytest.fixture
    def fs_path(self, s3_prefix: str) -> str:
        return f"{s3_prefix}/{uuid.uuid4().hex}"


class Suite(
    abstract.AbstractCopyTests,  # type: ignore[misc]
    abstract.AbstractGetTests,  # type: ignore[misc]
    abstract.AbstractOpenTests,  # type: ignore[misc]
    abstract.AbstractPipeTests,  # type: ignore[misc]
    abstract.AbstractPutTests,  # type: ignore[misc]
):
    """What fsspec asks of every file system, and more."""

    def test_big_files_are_written_in_parts(self, fs: Any, fs_target: str) -> None:
        content = bytes(range(256)) * (20 << 12)
        with fs.open(fs_target, "wb") as file:
            for start in range(0, len(content), 3_000_000):
                file.write(content[start : start + 3_000_000])
        assert fs.size(fs_target) == len(content)
        assert fs.cat_file(fs_target) == content
        with fs.open(fs_target, "rb") as file:
            assert isinstance(file, ForebayFile)
            file.seek(1_000_001)
            assert file.read(5) == content[1_000_001:1_000_006]
            file.seek(-3, 2)
            assert file.read() == content[-3:]
            file.seek(0)
            assert file.read() == content
        copy = fs_target + "-copy"
        fs.cp_file(fs_target, copy)
        assert fs.cat_file(copy) == content
        fs.rm(copy)

    def test_parts_of_files(self, fs: Any, fs_target: str) -> None:
        fs.pipe_file(fs_target, b"0123456789")
        for start, end in [(0, 3), (3, None), (None, 4), (-3, None), (2, -2), (5, 5), (5, 100), (20, 30)]:
            assert fs.cat_file(fs_target, start, end) == b"0123456789"[start:end], (start, end)
        assert fs.cat_ranges([fs_target] * 3, [0, 2, 4], [2, 4, 6]) == [b"01", b"23", b"45"]
        found = fs.cat_ranges([fs_target, fs_target + "-missing"], 0, 5)
        assert found[0] == b"01234"
        assert isinstance(found[1], FileNotFoundError)

    def test_what_fails_is_not_visible(self, fs: Any, fs_target: str) -> None:
        fs.pipe_file(fs_target, b"old")
        for size in (10, 20 << 20):
            with pytest.raises(RuntimeError), fs.open(fs_target, "wb") as file:
                file.write(b"x" * size)
                raise RuntimeError
            assert fs.cat_file(fs_target) == b"old"
        with fs.transaction, fs.open(fs_target, "wb") as file:
            file.write(b"new")
            file.close()
            assert fs.cat_file(fs_target) == b"old"
        assert fs.cat_file(fs_target) == b"new"

    def test_names_and_infos(self, fs: Any, fs_target: str) -> None:
        for name in ["a b", "x/y/z", "x/ü", "x/y/w"]:
            fs.pipe_file(f"{fs_target}/{name}", name.encode())
        rows = {row["name"]: row for row in fs.ls(f"{fs_target}/x")}
        assert {name: row["type"] for name, row in rows.items()} == {
            f"{fs_target}/x/y": "directory",
            f"{fs_target}/x/ü": "file",
        }
        assert fs.ls(fs_target, detail=False) == [f"{fs_target}/a b", f"{fs_target}/x"]
        assert fs.find(fs_target) == sorted(
            f"{fs_target}/{name}" for name in ["a b", "x/y/z", "x/ü", "x/y/w"]
        )
        assert fs.find(fs_target, maxdepth=1) == [f"{fs_target}/a b"]
        assert fs.glob(f"{fs_target}/x/*/w") == [f"{fs_target}/x/y/w"]
        assert fs.isdir(f"{fs_target}/x/y")
        assert not fs.isfile(f"{fs_target}/x/y")
        assert fs.info(f"{fs_target}/a b")["size"] == 3
        assert fs.modified(f"{fs_target}/a b").year >= 2024
        assert [len(files) for _, _, files in fs.walk(fs_target)] == [1, 1, 2]
        assert fs.du(fs_target) == sum(len(name.encode()) for name in ["a b", "x/y/z", "x/ü", "x/y/w"])
        assert not fs.exists(f"{fs_target}/x/q")
        for missing in (fs.ls, fs.info, fs.cat_file, fs.open, fs.rm):
            with pytest.raises(FileNotFoundError):
                missing(f"{fs_target}/x/q")
        with pytest.raises(IsADirectoryError):
            fs.open(f"{fs_target}/x", "rb")
        with pytest.raises(OSError, match="not empty"):
            fs.rmdir(f"{fs_target}/x")
        before = fs.ukey(f"{fs_target}/a b")
        fs.pipe_file(f"{fs_target}/a b", b"changed")
        assert fs.ukey(f"{fs_target}/a b") != before
        fs.mv(f"{fs_target}/x", f"{fs_target}/moved", recursive=True)
        assert fs.cat_file(f"{fs_target}/moved/y/z") == b"x/y/z"
        assert not fs.exists(f"{fs_target}/x")


class TestLocal(LocalFixtures, Suite):  # type: ignore[misc]
    pass


class TestMemory(MemoryFixtures, Suite):  # type: ignore[misc]
    pass


class TestUrl(UrlFixtures, Suite):  # type: ignore[misc]
    pass


class TestS3(S3Fixtures, Suite):  # type: ignore[misc]
    pass


@pytest.fixture
def local(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "data.csv").write_text("a,b\n1,2\n3,4\n")
    return f"forebay+file://{tmp_path}/data.csv"


def test_urls_find_the_file_system(local: str) -> None:
    with fsspec.open(local, "rt") as file:
        assert file.readline() == "a,b\n"
    fs, path = fsspec.core.url_to_fs(local)
    assert isinstance(fs, ForebayFileSystem)
    assert fs.unstrip_protocol(path) == local
    for protocol in ("az", "file", "gs", "http", "https", "mem", "s3"):
        assert issubclass(fsspec.get_filesystem_class(f"forebay+{protocol}"), ForebayFileSystem)
    with pytest.raises(ValueError, match="url is needed"):
        fsspec.filesystem("forebay")
    with pytest.raises(ValueError, match="bucket or host"):
        fsspec.filesystem("forebay+mem").ls("")


def test_file_systems_are_pickled(local: str) -> None:
    fs, path = fsspec.core.url_to_fs(local, store_options={"service": "latency"})
    assert pickle.loads(pickle.dumps(fs)).cat_file(path) == b"a,b\n1,2\n3,4\n"


def test_local_directories_go_with_what_was_in_them(tmp_path: Path) -> None:
    fs = fsspec.filesystem("forebay+file")
    fs.pipe_file(f"{tmp_path}/d/e/f", b"x")
    fs.rm(f"{tmp_path}/d", recursive=True)
    assert not (tmp_path / "d").exists()
    fs.pipe_file(f"{tmp_path}/d", b"now a file")
    assert fs.cat_file(f"{tmp_path}/d") == b"now a file"


@pytest.fixture(params=["forebay+file", "forebay"])
def linked(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, str]:
    """A file system, and the name of a tree in it with links to what must stay."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "one").write_bytes(b"1")
    (tmp_path / "single").write_bytes(b"2")
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "own").write_bytes(b"3")
    (tmp_path / "tree" / "link").symlink_to("../precious")
    (tmp_path / "tree" / "sub" / "file").symlink_to(tmp_path / "single")
    (tmp_path / "tree" / "dangling").symlink_to("nowhere")
    if request.param == "forebay":
        return fsspec.filesystem("forebay", url=str(tmp_path)), ""
    return fsspec.filesystem("forebay+file"), f"{tmp_path}/"


@pytest.mark.parametrize(
    ("pattern", "options", "left"),
    [
        ("tree", {"recursive": True}, None),
        ("tree/", {"recursive": True}, None),
        ("tree/link", {"recursive": True}, ["dangling", "sub"]),
        ("tree/link", {}, ["dangling", "sub"]),
        ("tree/*", {"recursive": True}, ["dangling"]),
        # By the rules of fsspec, this is the tree itself too.
        ("tree/**", {"recursive": True}, None),
        ("tree/**/o*", {"recursive": True}, ["dangling", "link", "sub"]),
        ("tree", {"recursive": True, "maxdepth": 1}, ["sub"]),
        ("tree", {"recursive": True, "maxdepth": 2}, None),
    ],
)
def test_links_are_removed_and_not_what_they_point_to(
    linked: tuple[Any, str],
    tmp_path: Path,
    pattern: str,
    options: dict[str, Any],
    left: list[str] | None,
) -> None:
    fs, base = linked
    fs.rm(base + pattern, **options)
    assert (tmp_path / "precious" / "one").read_bytes() == b"1"
    assert (tmp_path / "single").read_bytes() == b"2"
    if left is None:
        assert not (tmp_path / "tree").exists()
    else:
        assert sorted(os.listdir(tmp_path / "tree")) == left


def test_what_is_not_to_be_removed_is_refused(linked: tuple[Any, str], tmp_path: Path) -> None:
    fs, base = linked
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{base}tree")
    for missing in ("missing", "missing/*"):
        with pytest.raises(FileNotFoundError):
            fs.rm(base + missing, recursive=True)
    with pytest.raises(ValueError, match="no name"):
        fs.rm(f"{base}tree/../precious", recursive=True)
    with pytest.raises(PermissionError):
        fsspec.filesystem("forebay+file").rm("/", recursive=True)
    assert (tmp_path / "tree" / "sub" / "own").exists()
    fs.rm([f"{base}tree", f"{base}tree/sub/own"], recursive=True)
    assert not (tmp_path / "tree").exists()
    assert (tmp_path / "precious" / "one").exists()


def test_files_of_a_web_server_that_lists_nothing(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"content")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        fs = fsspec.filesystem("forebay+http")
        base = f"127.0.0.1:{server.server_address[1]}"
        assert fs.info(f"{base}/k")["size"] == 7
        assert fs.cat_file(f"{base}/k") == b"content"
        assert [row["name"] for row in fs.ls(f"{base}/k")] == [f"{base}/k"]
        for look in (fs.info, fs.ls, fs.cat_file, fs.open, fs.size):
            with pytest.raises(FileNotFoundError):
                look(f"{base}/missing")
        assert not fs.exists(f"{base}/missing")
        assert not fs.isdir(f"{base}/missing")
        with pytest.raises(forebay.UnsupportedError):
            fs.ls(f"{base}")
        server.shutdown()


def test_a_file_that_is_replaced_is_not_read_as_a_mixture(tmp_path: Path) -> None:
    fs = fsspec.filesystem("forebay+file")
    path = f"{tmp_path}/k"
    fs.pipe_file(path, b"a" * 100)
    with fs.open(path, "rb", cache_type="none") as file:
        assert file.read(10) == b"a" * 10
        fs.pipe_file(path, b"b" * 100)
        with pytest.raises(forebay.PreconditionError):
            file.read(10)


def test_pandas_reads_through_it(local: str) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.read_csv(local)
    assert frame["b"].tolist() == [2, 4]


def test_pyarrow_reads_through_it(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    fs = fsspec.filesystem("forebay+file")
    table = pyarrow.table({"x": list(range(1000))})
    parquet.write_table(table, f"{tmp_path}/t.parquet", filesystem=fs)
    assert parquet.read_table(f"{tmp_path}/t.parquet", filesystem=fs).equals(table)
