"""What ranks tell each other of their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import forebay
import pytest
from forebay import _ranks

Gather = Callable[[Any], list[Any]]


class Group:
    """A process group of two, of which this process is rank 0."""

    def __init__(self, gather: Gather) -> None:
        self.gather = gather

    def get_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return 2

    def all_gather_object(self, rows: list[Any], row: Any) -> None:
        rows[:] = self.gather(row)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Gather], _ranks.Ranks]:
    def make(gather: Gather) -> _ranks.Ranks:
        monkeypatch.setattr(_ranks, "_group", lambda: Group(gather))
        return _ranks.Ranks(None, None, "auto", None)

    return make


def told(ranks: Any, error: BaseException) -> Any:
    """Give what a rank with an error tells the others."""
    rows: list[Any] = []
    with pytest.raises(type(error)):
        ranks(lambda row: [rows.append(row), row]).together(error, "load")
    return rows[0]


def refused() -> forebay.ForebayError:
    with pytest.raises(forebay.InvalidInputError) as caught:
        forebay.Store("s4://bucket/x")
    return caught.value


def test_errors_of_other_ranks_are_what_they_were(ranks: Any) -> None:
    error = refused()
    other = told(ranks, error)
    with pytest.raises(forebay.InvalidInputError, match=r"^rank 1 cannot load: .*'s4'.*hint") as heard:
        ranks(lambda row: [row, other]).together(None, "load")
    assert error.hint
    assert (heard.value.kind, heard.value.hint) == (error.kind, error.hint)
    assert (heard.value.op, heard.value.location) == (error.op, error.location)


class PanicException(BaseException):
    """As what Rust raises is called."""


def test_errors_of_other_ranks_that_are_not_ours_are_named(ranks: Any) -> None:
    cases = [
        (KeyError("w"), forebay.PreconditionError, "KeyError: 'w'"),
        (KeyboardInterrupt(), forebay.PreconditionError, "KeyboardInterrupt"),
        (PanicException("a bound"), forebay.InternalError, "PanicException: a bound"),
    ]
    for error, kind, text in cases:
        other = told(ranks, error)
        with pytest.raises(kind, match=f"rank 1 cannot load: {text}"):
            ranks(lambda row, other=other: [row, other]).together(None, "load")


def test_an_own_error_is_said_before_the_others_are_told(
    ranks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def lost(row: Any) -> list[Any]:
        seen.extend(caplog.messages)
        raise RuntimeError("the group has waited too long")

    error = refused()
    with pytest.raises(forebay.InvalidInputError) as caught:
        ranks(lost).together(error, "load")
    assert caught.value is error
    assert isinstance(error.__cause__, RuntimeError)
    assert seen == [f"rank 0 cannot load: InvalidInputError: {error}"]
    with pytest.raises(RuntimeError, match="waited too long"):
        ranks(lost).together(None, "load")
