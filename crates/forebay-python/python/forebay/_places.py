"""Where iterations over a ``StreamDataset`` stand: what its states say, and which of them fit together.

A state is a dict: ``epoch``; ``position``, which is a state of the stream, or None before the first batch;
``is_over``, after the last batch of the epoch; ``worker``, None without workers, else which of them it is,
of how many on each of how many ranks. It does not say which rank: after as many batches, all ranks have the
same states.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forebay._forebay import InvalidInputError, PreconditionError


class Place:
    """Where one iteration stands, and in which worker."""

    def __init__(self, *, worker: dict[str, int] | None = None) -> None:
        self.worker = worker
        # Known once the iteration has begun, and after the first batch it gave.
        self.epoch: int | None = None
        self.position: str | None = None
        self.is_over = False

    @classmethod
    def of(cls, state: Any) -> Place:
        """Give the place that a state tells of."""
        wanted: dict[str, Any] = {
            "epoch": int,
            "position": Mapping | None,
            "is_over": bool,
            "worker": Mapping | None,
        }
        if (
            not isinstance(state, Mapping)
            or set(state) != set(wanted)
            or not all(isinstance(state[name], kind) for name, kind in wanted.items())
            or (state["worker"] is not None and set(state["worker"]) != {"id", "workers", "world"})
        ):
            raise InvalidInputError(
                "a state of a StreamDataset is a dict as its state_dict() gives it, with "
                f"{', '.join(wanted)}, and cannot be {state!r}"
            )
        place = cls(worker=None if state["worker"] is None else dict(state["worker"]))
        place.epoch, place.is_over = state["epoch"], state["is_over"]
        if state["position"] is not None:
            try:
                place.position = json.dumps(dict(state["position"]))
            except (TypeError, ValueError) as error:
                raise InvalidInputError(
                    f"a state is a dict as state_dict() gives it: position: {error}"
                ) from error
        return place

    def enter(self, epoch: int) -> None:
        """Be in the epoch that was chosen."""
        if self.epoch not in (None, epoch):
            if not self.is_over:
                raise PreconditionError(
                    f"the state that was loaded is in epoch {self.epoch}, and this iteration gives epoch "
                    f"{epoch}: call set_epoch({self.epoch}) before it, whose rest it gives then"
                )
            self.position, self.is_over = None, False
        self.epoch = epoch


def told(worker: Mapping[str, Any] | None) -> str:
    """Name a worker, or a process that has none."""
    if worker is None:
        return "a process without workers"
    return "worker {id} of {workers} on each of {world} ranks".format_map(worker)
