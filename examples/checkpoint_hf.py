"""A callback for the Trainer of Hugging Face that saves in the background instead of stopping the training.

    arguments = TrainingArguments(..., save_strategy="no")
    trainer = Trainer(model, arguments, callbacks=[ForebayCallback("runs/c")])
    restore(trainer, "runs/c")
    trainer.train()

The Trainer's own saves are turned off. On several ranks, every rank has the callback, and they save together.
"""

from __future__ import annotations

from typing import Any

import forebay
from transformers import TrainerCallback


class ForebayCallback(TrainerCallback):
    """Saves every so many steps, and at the end."""

    def __init__(self, url: str, every: int = 500, **options: Any) -> None:
        """Take the arguments of ``forebay.Checkpointer``."""
        self.ckpt = forebay.Checkpointer(url, **options)
        self.every = every
        self.saved = -1

    def _save(self, state: Any, parts: dict[str, Any]) -> None:
        if state.global_step == self.saved:
            return
        self.saved = state.global_step
        names = ("model", "optimizer", "lr_scheduler")
        logs = state.log_history[-1] if state.log_history else {}
        self.ckpt.save(
            state.global_step,
            {name: parts[name] for name in names if parts.get(name) is not None}
            | {"global_step": state.global_step, "epoch": state.epoch},
            {key: value for key, value in logs.items() if isinstance(value, (int, float)) and key != "epoch"},
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Save, when it is time."""
        if state.global_step % self.every == 0:
            self._save(state, parts)

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Save once more, and wait until it is durable."""
        self._save(state, parts)
        self.ckpt.close()


def restore(trainer: Any, url: str) -> int:
    """Bring model, optimizer and schedule of a trainer to the newest checkpoint; gives its step."""
    with forebay.Checkpointer(url) as ckpt:
        if ckpt.latest() is None:
            return 0
        parts: dict[str, Any] = {"model": trainer.model, "global_step": 0}
        for name in ("optimizer", "lr_scheduler"):
            if getattr(trainer, name, None) is not None:
                parts[name] = getattr(trainer, name)
        ckpt.load_into(parts, strict=False)
        return int(parts["global_step"])
