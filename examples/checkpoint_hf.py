"""A callback for the Trainer of Hugging Face that saves in the background instead of stopping the training.

    arguments = TrainingArguments(..., save_strategy="no")
    trainer = Trainer(model, arguments, callbacks=[ForebayCallback("runs/c")])
    trainer.train()

The Trainer's own saves are turned off. A training that is started again goes on with model, optimizer,
schedule and step of the newest checkpoint, until ``max_steps``; the data begin anew. On several ranks, every
rank has the callback, and they save together.
"""

from __future__ import annotations

from typing import Any

import forebay
from transformers import TrainerCallback

# What the Trainer gives to its callbacks and is saved.
PARTS = ("model", "optimizer", "lr_scheduler")


class ForebayCallback(TrainerCallback):
    """Goes on from the newest checkpoint, and saves every so many steps and at the end."""

    def __init__(self, url: str, every: int = 500, **options: Any) -> None:
        """Take the arguments of ``forebay.Checkpointer``."""
        self.url, self.every, self.options = url, every, options
        self.saved = -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Go on: here, and not before, there are an optimizer and a schedule."""
        self.ckpt = forebay.Checkpointer(self.url, **self.options)
        if self.ckpt.latest() is None:
            return
        found = {name: parts[name] for name in PARTS if parts.get(name) is not None}
        found |= {"global_step": 0, "epoch": 0.0}
        self.ckpt.load_into(found, strict=False)
        state.global_step, state.epoch = found["global_step"], found["epoch"]
        self.saved = state.global_step

    def _save(self, state: Any, parts: dict[str, Any]) -> None:
        if state.global_step == self.saved:
            return
        self.saved = state.global_step
        logs = state.log_history[-1] if state.log_history else {}
        self.ckpt.save(
            state.global_step,
            {name: parts[name] for name in PARTS if parts.get(name) is not None}
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
