"""Checkpoints of Lightning, saved in the background.

>>> trainer = Trainer(plugins=[forebay.lightning.ForebayCheckpointIO()])

Each path that Lightning names is a place with one checkpoint in it. Saving returns once the state is copied;
``teardown``, which Lightning calls at the end, waits until it is durable, and so does the next save.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from forebay._staging import Staging
from forebay.checkpoint import Checkpointer

try:
    from lightning.pytorch.plugins.io import CheckpointIO
except ImportError:
    from pytorch_lightning.plugins.io import CheckpointIO


class ForebayCheckpointIO(CheckpointIO):
    """A plug-in for the Trainer; takes the arguments of ``forebay.Checkpointer`` beside the place.

    One rank saves for all: with sharded strategies, which save from every rank, use ``Checkpointer`` itself.
    """

    def __init__(self, *, allow_pickle: bool = False, **options: Any) -> None:
        """Remember how to save."""
        self._allow_pickle = allow_pickle
        self._options = {"overwrite": True, "keep_last": 1, "rank": 0, "world": 1, **options}
        self._staging = Staging(None)
        # Held until its save is over: one that goes waits for that.
        self._flight: Checkpointer | None = None

    def _open(self, path: str | os.PathLike[str]) -> Checkpointer:
        return Checkpointer(path, allow_pickle=self._allow_pickle, **self._options)

    def _settle(self) -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.close()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Save in the background, after the save before."""
        self._settle()
        place = self._open(path)
        # One staging area for all paths: the second save allocates nothing.
        place._staging, place._flight.staging = self._staging, None
        # Always the same step: a path is written again by whoever wants it replaced, also at an earlier step.
        place.save(0, checkpoint)
        self._flight = place

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any | None = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load, every byte verified."""
        self._settle()
        with self._open(path) as place:
            allow_pickle = self._allow_pickle and not weights_only
            device = None if callable(map_location) else map_location
            loaded: dict[str, Any] = place.load(allow_pickle=allow_pickle, device=device)
            return loaded

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove a checkpoint, and the place that it was in."""
        self._settle()
        with self._open(path) as place:
            for step in place.steps():
                place.delete(step)
        if os.path.isdir(path):
            shutil.rmtree(path)

    def teardown(self) -> None:
        """Wait until everything is durable, and give the memory back."""
        self._settle()
        self._staging.release()


__all__ = ["ForebayCheckpointIO"]
