"""An fsspec file system over Forebay's stores.

``forebay+s3://bucket/key``, ``forebay+file:///path``, ``forebay+mem://name/key`` and so on name objects
of one kind of store; ``forebay://key`` with the option ``url=`` names objects below one location:

>>> fsspec.open("forebay+s3://bucket/key")
>>> fsspec.filesystem("forebay", url="s3://bucket/prefix")

Directories are those of object stores: they exist while there is something in them. Files are written
whole: what is visible is complete, and leaving a ``with`` block by an exception leaves the old content.
Local links are followed when looking and reading, and never when removing.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any, ClassVar, NamedTuple

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.utils import isfilelike

from forebay import (
    ForebayError,
    InvalidInputError,
    NotFoundError,
    ObjectMeta,
    Prefix,
    Store,
    UnsupportedError,
    Upload,
    alloc,
)

# Bytes of one step when whole files are moved: enough for parallel ranges, little enough to hold a few.
STEP_BYTES = 64 << 20

# Parts of one file on their way at the same time, and objects deleted at the same time.
AT_ONCE = 8

Info = dict[str, Any]


class _Place(NamedTuple):
    """Where a path is: a store, the key in it, and what to put before keys to get paths again."""

    store: Store
    key: str
    base: str


class ForebayFileSystem(AbstractFileSystem):
    """Objects below one location, given as ``url``; subclasses serve one kind of store each.

    Args:
        url: location that paths are relative to, such as ``s3://bucket/prefix``
        store_options: options of :class:`forebay.Store`
        storage_options: options of fsspec

    """

    protocol: ClassVar[str | tuple[str, ...]] = "forebay"
    scheme: ClassVar[str | None] = None
    root_marker = ""

    def __init__(
        self, url: str | None = None, store_options: dict[str, Any] | None = None, **storage_options: Any
    ) -> None:
        super().__init__(url=url, store_options=store_options, **storage_options)
        if (url is None) == (self.scheme is None):
            given = "is needed" if url is None else f"does not go with {self.protocol}://"
            raise ValueError(f"url {given}; write forebay:// with url=, or forebay+s3:// without")
        self.url = url
        self.store_options = store_options or {}
        self._stores: dict[str, Store] = {}

    # -- places

    def _locate(self, path: str) -> _Place:
        path = self._strip_protocol(path)
        if self.url is not None:
            return _Place(self._store(self.url), path.strip("/"), "")
        authority, _, key = path.lstrip("/").partition("/")
        if not authority:
            raise ValueError(f"a bucket or host is needed: {self.protocol}://name/key")
        return _Place(self._store(f"{self.scheme}://{authority}"), key, f"{authority}/")

    def _store(self, url: str) -> Store:
        if url not in self._stores:
            self._stores[url] = Store(url, **self.store_options)
        return self._stores[url]

    def _file_info(self, place: _Place, meta: ObjectMeta) -> Info:
        return {
            "name": place.base + meta.key,
            "size": meta.size,
            "type": "file",
            "version": meta.version,
            "mtime": meta.modified,
        }

    @staticmethod
    def _directory_info(path: str) -> Info:
        return {"name": path, "size": 0, "type": "directory"}

    # -- looking

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """List the next level below ``path``; a file lists itself."""
        path = self._strip_protocol(path)
        place = self._locate(path)
        try:
            infos = self._level(place)
        except UnsupportedError:
            # Most web servers list nothing, but tell what is at a name.
            infos = [self.info(path)] if place.key else []
            if not infos or infos[0]["type"] == "directory":
                raise
        if not infos and place.key:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return infos if detail else sorted(info["name"] for info in infos)

    def _level(self, place: _Place) -> list[Info]:
        infos: list[Info] = []
        itself: list[Info] = []
        for entry in _rows(place, recursive=False):
            if isinstance(entry, Prefix):
                infos.append(self._directory_info(place.base + entry.key))
            elif entry.key == place.key:
                itself.append(self._file_info(place, entry))
            else:
                infos.append(self._file_info(place, entry))
        return infos or itself

    def info(self, path: str, **kwargs: Any) -> Info:
        """Tell what is at ``path``: a file, or a directory when there is something below it."""
        path = self._strip_protocol(path)
        place = self._locate(path)
        if not place.key:
            return self._directory_info(path)
        try:
            return self._file_info(place, place.store.head(place.key))
        except NotFoundError:
            if not _is_anything_below(place):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
            return self._directory_info(path)

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        """List everything below ``path``, in one listing of the store."""
        if maxdepth is not None:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **kwargs)
        path = self._strip_protocol(path)
        place = self._locate(path)
        found: dict[str, Info] = {}
        for entry in _rows(place, recursive=True):
            if isinstance(entry, ObjectMeta):
                info = self._file_info(place, entry)
                found[info["name"]] = info
        if withdirs:
            for name in list(found):
                for directory in _parents(name, path):
                    found.setdefault(directory, self._directory_info(directory))
        names = sorted(found)
        return {name: found[name] for name in names} if detail else names

    def modified(self, path: str) -> datetime:
        """Time of the last change."""
        mtime = self.info(path).get("mtime")
        if mtime is None:
            raise NotImplementedError(f"no time of change is known for {path}")
        return datetime.fromtimestamp(mtime, tz=timezone.utc)

    created = modified

    def ukey(self, path: str) -> str:
        """Return a text that changes when the content does."""
        info = self.info(path)
        return str(info.get("version") or super().ukey(path))

    # -- reading

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Read a file or a part of it; parts beyond the end are cut."""
        place = self._locate(path)
        if start is None and end is None:
            return place.store.read(place.key).tobytes()
        if start is not None and end is not None and 0 <= start < end:
            try:
                return place.store.read(place.key, start, end - start).tobytes()
            except InvalidInputError:
                pass  # beyond the end: cut below
        meta = place.store.head(place.key)
        first, last, _ = slice(start, end).indices(meta.size)
        if first >= last:
            return b""
        return place.store.read(place.key, first, last - first, version=meta.version).tobytes()

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | list[int],
        ends: int | list[int],
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Read many ranges side by side."""
        places = [self._locate(path) for path in paths] if isinstance(paths, list) else []
        begins = starts if isinstance(starts, list) else [starts] * len(places)
        stops = ends if isinstance(ends, list) else [ends] * len(places)
        one_store = len({id(place.store) for place in places}) == 1
        if one_store and max_gap is None and len(begins) == len(stops) == len(places):
            ranges = [
                (place.key, begin, stop - begin)
                for place, begin, stop in zip(places, begins, stops, strict=True)
                if isinstance(begin, int) and isinstance(stop, int) and 0 <= begin < stop
            ]
            if len(ranges) == len(places):
                try:
                    return [buffer.tobytes() for buffer in places[0].store.read_many(ranges)]
                except ForebayError:
                    pass  # one by one, to tell which of them failed
        return list(super().cat_ranges(paths, starts, ends, max_gap=max_gap, on_error=on_error, **kwargs))

    def get_file(
        self,
        rpath: str,
        lpath: Any = None,
        callback: Any = DEFAULT_CALLBACK,
        outfile: Any = None,
        **kwargs: Any,
    ) -> None:
        """Copy a file to the local file system, or into an open one."""
        if outfile is None and isfilelike(lpath):
            outfile = lpath
        place = self._locate(rpath)
        try:
            meta = place.store.head(place.key) if place.key else None
        except NotFoundError:
            meta = None
        if meta is None:
            if outfile is None and self.isdir(rpath):
                os.makedirs(lpath, exist_ok=True)
                return
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), rpath)
        callback.set_size(meta.size)
        if outfile is not None:
            _pour(place, meta, outfile.write, callback)
            return
        os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
        with open(lpath, "wb") as file:
            _pour(place, meta, file.write, callback)

    # -- writing

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Write a file."""
        place = self._locate(path)
        place.store.write(place.key, value, if_absent=mode == "create")

    def put_file(
        self, lpath: Any, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite", **kwargs: Any
    ) -> None:
        """Copy a file from the local file system."""
        if os.path.isdir(lpath):
            return
        place = self._locate(rpath)
        with open(lpath, "rb") as file:
            callback.set_size(os.fstat(file.fileno()).st_size)
            with _Writer(place, if_absent=mode == "create") as writer:
                while step := file.read(STEP_BYTES):
                    writer.write(step)
                    callback.relative_update(len(step))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy a file; a directory is nothing to copy."""
        source, target = self._locate(path1), self._locate(path2)
        try:
            meta = source.store.head(source.key)
        except NotFoundError:
            if self.isdir(path1):
                return
            raise
        with _Writer(target, if_absent=False) as writer:
            _pour(source, meta, writer.write, DEFAULT_CALLBACK)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        place = self._locate(path)
        place.store.delete(place.key)

    _rm = rm_file

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files; with ``recursive`` also everything below directories.

        What a local link points to stays: the link itself is removed.
        """
        names: list[str] = []
        is_found = False
        for name in self._removable(path):
            place = self._locate(name)
            local = _local_path(place)
            if local is not None:
                _remove_local(local, recursive, maxdepth)
                is_found = True
            elif recursive:
                names += self.find(name, maxdepth=maxdepth)
            elif self.info(name)["type"] == "file":
                names.append(name)
            else:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if not names and not is_found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            deque(pool.map(self.rm_file, names), maxlen=0)

    def _removable(self, path: str | list[str]) -> list[str]:
        """Expand patterns, what is below a name before the name; ``**`` does not go through links."""
        removable: set[str] = set()
        for pattern in [path] if isinstance(path, str | os.PathLike) else path:
            names = self.expand_path(pattern, recursive=False)
            stripped = self._strip_protocol(pattern)
            if "**" in stripped:
                top = stripped[: stripped.index("**")].rpartition("/")[0]
                names = [name for name in names if not self._is_through_link(name, top)]
            removable.update(names)
        return sorted(removable, reverse=True)

    def _is_through_link(self, name: str, top: str) -> bool:
        between = (directory for directory in _parents(name, top) if directory != top)
        paths = (_local_path(self._locate(directory)) for directory in between)
        return any(path is not None and os.path.islink(path) for path in paths)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Do nothing: directories come with what is in them."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: directories come with what is in them."""

    def rmdir(self, path: str) -> None:
        """Refuse when there is something in it; otherwise there is no directory."""
        if self.isdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    # -- files

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> ForebayFile:
        if mode == "rb":
            info = self.info(path)
            if info["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        elif mode == "xb" and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        elif mode == "ab":
            raise NotImplementedError("objects cannot be appended to; write a new one")
        return ForebayFile(
            self, path, mode, block_size or "default", autocommit, cache_options=cache_options, **kwargs
        )


class ForebayFile(AbstractBufferedFile):
    """A file that is read in parallel ranges and written in parallel parts."""

    # One ranged GET; larger reads are cut into several, side by side.
    DEFAULT_BLOCK_SIZE = 8 << 20

    # Of the base class, for the type checker.
    closed: bool

    _writer: _Writer | None = None

    def _fetch_range(self, start: int, end: int) -> bytes:
        place = self.fs._locate(self.path)
        end = min(end, self.size)
        if start >= end:
            return b""
        # All of one version: a file that is replaced meanwhile must not be read as a mixture.
        version = self.details.get("version")
        return bytes(place.store.read(place.key, start, end - start, version=version).tobytes())

    def _initiate_upload(self) -> None:
        self._writer = _Writer(self.fs._locate(self.path), if_absent=self.mode == "xb")

    def _upload_chunk(self, final: bool = False) -> bool:
        if self._writer is None:
            return False
        self._writer.write(self.buffer.getbuffer())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Make the content visible."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.finish()

    def discard(self) -> None:
        """Leave what was there before."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.abort()

    def __exit__(self, kind: type[BaseException] | None, *args: Any) -> None:
        if kind is not None and self.mode != "rb" and not self.closed:
            self.discard()
            self.closed = True
        super().__exit__(kind, *args)


class _Writer:
    """Writes an object from pieces: small ones whole, others in parts, several of them side by side."""

    def __init__(self, place: _Place, if_absent: bool) -> None:
        self._place = place
        self._if_absent = if_absent
        self._small = bytearray()
        self._upload: Upload | None = None
        self._part: Any = None
        self._filled = 0
        self._index = 0
        self._aborted = False
        self._pool: ThreadPoolExecutor | None = None
        self._sent: deque[Future[Any]] = deque()

    def write(self, data: Any) -> None:
        try:
            self._write(memoryview(data).cast("B"))
        except BaseException:
            # A file object that is closed later must not make visible what has a hole.
            self.abort()
            raise

    def _write(self, view: memoryview) -> None:
        if self._aborted:
            raise ValueError("this file failed before, and cannot be written to any more")
        if self._upload is None:
            if len(self._small) + len(view) <= ForebayFile.DEFAULT_BLOCK_SIZE:
                self._small += view
                return
            self._begin()
        self._fill(view)

    def _begin(self) -> None:
        self._upload = self._place.store.upload(self._place.key, if_absent=self._if_absent)
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._fill(memoryview(self._small))
        self._small = bytearray()

    def _fill(self, view: memoryview) -> None:
        assert self._upload is not None
        while len(view) > 0:
            if self._part is None:
                self._part = alloc(self._upload.part_bytes)
            count = min(len(view), len(self._part) - self._filled)
            with memoryview(self._part) as part:
                part[self._filled : self._filled + count] = view[:count]
            self._filled += count
            view = view[count:]
            if self._filled == len(self._part):
                self._send()

    def _send(self) -> None:
        assert self._upload is not None
        assert self._pool is not None
        whole = self._part.freeze()[: self._filled]
        self._part, self._filled = None, 0
        while len(self._sent) >= AT_ONCE:
            self._sent.popleft().result()
        self._sent.append(self._pool.submit(self._upload.put_part, self._index, whole))
        self._index += 1

    def finish(self) -> None:
        if self._aborted:
            raise ValueError("this file failed before, and is not made visible")
        if self._upload is None:
            self._place.store.write(self._place.key, self._small, if_absent=self._if_absent)
            return
        try:
            if self._filled:
                self._send()
            while self._sent:
                self._sent.popleft().result()
            self._upload.complete()
        except BaseException:
            self.abort()
            raise
        self._close()

    def abort(self) -> None:
        self._aborted = True
        self._close()
        if self._upload is not None:
            self._upload.abort()
            self._upload = None

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *args: Any) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()


def _pour(place: _Place, meta: ObjectMeta, write: Callable[[Any], Any], callback: Any) -> None:
    """Read an object step by step, all of one version."""
    for offset in range(0, meta.size, STEP_BYTES):
        length = min(STEP_BYTES, meta.size - offset)
        write(place.store.read(place.key, offset, length, version=meta.version))
        callback.relative_update(length)


def _rows(place: _Place, recursive: bool) -> Iterator[ObjectMeta | Prefix]:
    """List what is there; a missing directory is as empty as a prefix, and a link to nowhere is nothing."""
    rows = place.store.list(place.key, recursive=recursive)
    missing: str | None = None
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except NotFoundError as error:
            # Listings go on after what they cannot look at; one that says the same again is over.
            if error.location == missing:
                return
            missing = error.location


def _parents(name: str, top: str) -> Iterator[str]:
    """Directories between ``top`` (included, unless it is the root) and ``name``."""
    directory = name.rpartition("/")[0]
    while directory and len(directory) >= len(top) and directory != name:
        yield directory
        if directory == top:
            return
        directory = directory.rpartition("/")[0]


def _is_anything_below(place: _Place) -> bool:
    try:
        return next(_rows(place, recursive=True), None) is not None
    except UnsupportedError:
        # A server that cannot be listed has files and no directories.
        return False


def _local_path(place: _Place) -> str | None:
    """Path of a place in the file system; other stores have none."""
    if not place.store.url.startswith("/"):
        return None
    parts = place.key.split("/") if place.key else []
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidInputError(f"'{place.key}' is no name of an object")
    return os.path.join(place.store.url, *parts)


def _remove_local(path: str, recursive: bool, maxdepth: int | None) -> None:
    """Remove a file, a link, or a directory with what is in it, down to ``maxdepth`` levels."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
    elif not recursive:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    elif os.path.dirname(path) == path:
        raise PermissionError(errno.EPERM, "the root of the file system is not removed", path)
    elif maxdepth is None:
        shutil.rmtree(path)
    else:
        with os.scandir(path) as rows:
            for row in list(rows):
                if not row.is_dir(follow_symlinks=False):
                    os.unlink(row.path)
                elif maxdepth > 1:
                    _remove_local(row.path, recursive, maxdepth - 1)
        _remove_if_empty(path)


def _remove_if_empty(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


class ForebayLocalFileSystem(ForebayFileSystem):
    """Local files through the disk engine: ``forebay+file:///path``."""

    protocol = "forebay+file"
    scheme = "file"
    root_marker = "/"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        path = super()._strip_protocol(path)
        if isinstance(path, str) and not path.startswith("/"):
            return os.path.abspath(path)
        return path

    def _locate(self, path: str) -> _Place:
        return _Place(self._store("file:///"), self._strip_protocol(path).strip("/"), "/")


class ForebayMemoryFileSystem(ForebayFileSystem):
    """Objects in memory: ``forebay+mem://name/key``."""

    protocol = "forebay+mem"
    scheme = "mem"


class ForebayS3FileSystem(ForebayFileSystem):
    """S3 and its likes: ``forebay+s3://bucket/key``."""

    protocol = "forebay+s3"
    scheme = "s3"


class ForebayGSFileSystem(ForebayFileSystem):
    """Google Cloud Storage: ``forebay+gs://bucket/key``."""

    protocol = "forebay+gs"
    scheme = "gs"


class ForebayAzureFileSystem(ForebayFileSystem):
    """Azure Blob Storage: ``forebay+az://container/key``."""

    protocol = "forebay+az"
    scheme = "az"


class ForebayHTTPFileSystem(ForebayFileSystem):
    """Files of a web server: ``forebay+http://host/path``."""

    protocol = "forebay+http"
    scheme = "http"


class ForebayHTTPSFileSystem(ForebayFileSystem):
    """Files of a web server over TLS: ``forebay+https://host/path``."""

    protocol = "forebay+https"
    scheme = "https"
