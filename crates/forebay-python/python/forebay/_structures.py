"""Structures of ranks that have saved different things: what each has, and what all of them have together.

Every rank that has another structure than rank 0 saves its own under one name. What of it is not that rank's
alone is saved once more, under a name with its digest: however many ranks there are, the list of names says
how many different structures there are, and one read brings each of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forebay._forebay import EntryName, NativeCheckpoint, Typed, ckpt_encode
from forebay._state import STRUCTURE

if TYPE_CHECKING:
    from forebay._loading import Entries

_SHARED = re.compile(re.escape(STRUCTURE) + r"\.[0-9a-f]{32}")


def without(structure: Any, keys: Sequence[str]) -> Any:
    """Give a structure without some keys at its top: those whose content is each rank's own."""
    if isinstance(structure, Typed) and structure.kind == "OrderedDict":
        return Typed("OrderedDict", without(structure.value, keys))
    if not isinstance(structure, dict):
        return structure
    return {key: value for key, value in structure.items() if key not in keys}


def shared_name(structure: Any) -> str:
    """Give the name that a structure is saved under for others than the rank it is of."""
    digest = hashlib.blake2b(ckpt_encode(structure), digest_size=16)
    return f"{STRUCTURE}.{digest.hexdigest()}"


class Structures:
    """What ranks have saved, as one of so many sees it that load."""

    def __init__(self, native: NativeCheckpoint, entries: Entries, rank: int, world: int) -> None:
        """Read the structure that this rank has saved, or the first; a flat one where none was."""
        self._native = native
        saved_world = int(native.info()["world"])
        # Each rank finds what it had itself.
        self.is_as_saved = saved_world == world
        self._names: list[str] = []
        self._is_first = True
        if STRUCTURE in entries:
            found = native.value(STRUCTURE, rank) if 0 < rank < saved_world else None
            self._is_first = found is None
            self.own = native.value(STRUCTURE) if found is None else found
            if saved_world > 1:
                rows = entries.items()
                self._names = [name for name, one in rows if one.kind == "value" and _SHARED.fullmatch(name)]
        else:
            self.own = {
                name: native.value(name) if entry.kind == "value" else EntryName(name)
                for name, entry in entries.items()
            }
        self._together: tuple[Any, set[str]] | None = None

    @property
    def is_many(self) -> bool:
        """Whether ranks may have saved different things."""
        return bool(self._names)

    def together(self) -> tuple[Any, set[str]]:
        """Give what all ranks have, this one's first; and the paths of what only some of them have."""
        if self._together is None:
            # Rank 0 has its structure under the common name alone.
            first = [] if self._is_first else [self._native.value(STRUCTURE)]
            others = first + [self._native.value(name) for name in self._names]
            partial: set[str] = set()
            self._together = _merge([self.own, *others], "", partial), partial
        return self._together

    def everything(self) -> Any:
        """Give what all ranks have, where they have different things."""
        return self.together()[0] if self.is_many else self.own

    def whole(self) -> Any:
        """Give what a load is to bring: what this rank had, or with other ranks than saved it, everything."""
        return self.own if self.is_as_saved else self.everything()


def _plain(structure: Any) -> Any:
    """Look into dicts of other kinds."""
    if isinstance(structure, Typed) and structure.kind == "OrderedDict":
        return structure.value
    if isinstance(structure, Typed) and structure.kind == "defaultdict":
        return structure.value[1]
    return structure


def _merge(found: list[Any], path: str, partial: set[str]) -> Any:
    first, plain = found[0], [_plain(one) for one in found]
    if isinstance(plain[0], dict):
        dicts = [one for one in plain if isinstance(one, dict)]
        made: dict[Any, Any] = {}
        for key in dict.fromkeys(key for one in dicts for key in one):
            below = f"{path}.{key}" if path else str(key)
            having = [one[key] for one in dicts if key in one]
            if len(having) < len(found):
                partial.add(below)
            made[key] = _merge(having, below, partial)
        if isinstance(first, Typed):
            kept = made if first.kind == "OrderedDict" else (first.value[0], made)
            return Typed(first.kind, kept)
        return made
    if isinstance(first, (list, tuple)):
        alike = [one for one in found if type(one) is type(first) and len(one) == len(first)]
        items = [
            _merge([one[index] for one in alike], f"{path}[{index}]", partial) for index in range(len(first))
        ]
        return type(first)(items)
    return first
