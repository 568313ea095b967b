"""One tree of exceptions, complete, with what is needed to act on them."""

from __future__ import annotations

import builtins
import errno
import os
import pickle
from pathlib import Path

import forebay
import forebay._forebay as extension
import pytest

NATURAL = {
    "NotFoundError": FileNotFoundError,
    "AlreadyExistsError": FileExistsError,
    "PermissionDeniedError": PermissionError,
    "AuthenticationError": PermissionError,
    "InvalidInputError": ValueError,
    "UnsupportedError": NotImplementedError,
    "StoreTimeoutError": TimeoutError,
    "UnavailableError": ConnectionError,
    "OutOfSpaceError": OSError,
    "ReadOnlyError": OSError,
    "ForebayIOError": OSError,
}


def exceptions() -> dict[str, type[forebay.ForebayError]]:
    made = {name: getattr(extension, name) for name in extension.__all__}
    return {
        name: kind
        for name, kind in made.items()
        if isinstance(kind, type) and issubclass(kind, BaseException)
    }


def test_the_package_exports_everything() -> None:
    # What begins like this is what classes and functions of the package are made of.
    parts = ("Native", "buffer_", "weights_", "gds_", "ckpt_", "stream_", "EntryName", "Typed")
    own = {name for name in extension.__all__ if not name.startswith(parts)}
    assert own < set(forebay.__all__)
    assert all(getattr(forebay, name) is getattr(extension, name) for name in own)
    assert all(hasattr(forebay, name) for name in forebay.__all__)


def test_every_class_is_in_the_tree() -> None:
    made = exceptions()
    assert len(made) == 18
    kinds = set()
    for name, kind in made.items():
        assert kind.__module__ == "forebay"
        assert kind.__doc__
        assert issubclass(kind, forebay.ForebayError)
        if kind is forebay.ForebayError:
            continue
        assert kind.kind == kind.kind.lower()
        kinds.add(kind.kind)
        natural = NATURAL.get(name)
        builtin = [base for base in kind.__mro__ if base.__module__ == "builtins"]
        if natural is None:
            assert builtin == [builtins.Exception, builtins.BaseException, builtins.object], name
        else:
            assert issubclass(kind, natural), name
    assert len(kinds) == 17
    assert {"not_found", "permission_denied", "io", "internal"} <= kinds


def test_errors_tell_kind_operation_and_place(tmp_path: Path) -> None:
    store = forebay.Store(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        store.read("missing")
    error = caught.value
    assert isinstance(error, forebay.NotFoundError)
    assert error.kind == "not_found"
    assert error.op == "read" or error.op == "head"
    assert error.location == str(tmp_path / "missing")
    assert error.errno == 2
    assert str(tmp_path / "missing") in str(error)
    with pytest.raises(forebay.InvalidInputError) as refused:
        forebay.Store("s4://bucket/x")
    assert refused.value.hint
    assert "s3://" in refused.value.hint
    assert refused.value.hint in str(refused.value)
    assert refused.value.location is None


def test_errors_cross_processes(tmp_path: Path) -> None:
    with pytest.raises(forebay.NotFoundError) as caught:
        forebay.Store(tmp_path).head("missing")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is forebay.NotFoundError
    assert str(again) == str(caught.value)
    assert (again.kind, again.op, again.location) == ("not_found", caught.value.op, caught.value.location)
    assert again.errno == caught.value.errno == errno.ENOENT
    for name, number in [("OutOfSpaceError", errno.ENOSPC), ("ForebayIOError", errno.EIO)]:
        made = getattr(forebay, name)("text")
        assert pickle.loads(pickle.dumps(made)).errno == number
        assert str(made) == "text"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(PermissionError):
        forebay.Store(tmp_path).read("secret")


def test_directories_are_not_objects(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    with pytest.raises(forebay.ForebayError):
        forebay.Store(tmp_path).read("dir")


def test_secrets_never_appear(script: object) -> None:
    # A planted key must not turn up in exceptions, ledgers or representations, whatever goes wrong.
    source = """
        import os, traceback, forebay
        canary = os.environ["AWS_SECRET_ACCESS_KEY"]
        texts = []
        for url in ["s3://bucket/x", f"s3://user:{canary}@bucket/x", f"https://host/x?sig={canary}", f"http://u:{canary}@h/x"]:
            try:
                store = forebay.Store(url)
                texts += [repr(store), store.url]
                store.read("k")
            except Exception as error:
                texts += [traceback.format_exc(chain=True), repr(error), str(vars(error))]
        assert len(texts) >= 8
        for text in texts:
            text = text.replace("forebay.Store(url)", "")
            assert canary not in text, text
    """
    script(  # type: ignore[operator]
        source,
        AWS_ACCESS_KEY_ID="AKIACANARYCANARY",
        AWS_SECRET_ACCESS_KEY="canary-2f9d1c7b",
        FOREBAY_S3_ENDPOINT="http://127.0.0.1:9",
        FOREBAY_S3_REGION="us-east-1",
    )
