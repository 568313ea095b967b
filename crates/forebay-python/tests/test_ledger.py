"""The ledger as an object, a dict and a table."""

from __future__ import annotations

import json
from pathlib import Path

import forebay
import pytest


def test_ledgers_add_up(tmp_path: Path) -> None:
    store = forebay.Store(tmp_path)
    store.write("k", b"x" * 1000)
    ledgers = [store.read("k", 0, length).ledger for length in (1, 10, 100)]
    total = sum(ledgers, forebay.Ledger())
    assert total.bytes == 111
    assert total.requests == 3
    assert ledgers[0] + ledgers[1] == ledgers[0].merge(ledgers[1])
    assert ledgers[0].bytes == 1, "merging changes neither side"
    assert ledgers[0] != ledgers[1]
    assert forebay.Ledger() == forebay.Ledger()
    with pytest.raises(TypeError):
        ledgers[0] + 1  # type: ignore[operator]


def test_dict_and_table_tell_the_same(tmp_path: Path) -> None:
    store = forebay.Store(tmp_path)
    store.write("k", b"x" * 1000)
    ledger = store.read("k").ledger
    told = json.loads(json.dumps(ledger.to_dict()))
    assert set(told) == {"paths", "verified_bytes", "cpu_ns", "downgrades", "downgrades_dropped"}
    ((path, totals),) = told["paths"].items()
    assert totals["bytes"] == 1000
    assert totals == {"bytes": 1000, "requests": totals["requests"], "copied_bytes": 0, "retries": 0}
    assert told["paths"] == ledger.paths
    table = str(ledger)
    assert path in table
    assert "1000 B" in table
    assert f"{path}: 1000 bytes" in repr(ledger)
    for downgrade in ledger.downgrades:
        assert downgrade["reason"] in table
    assert "empty" in repr(forebay.Ledger())
