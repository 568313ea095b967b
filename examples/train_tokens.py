"""A small language model on a file of raw tokens.

python examples/train_tokens.py /tmp/tokens --steps 20 --world 2
python examples/train_tokens.py /tmp/tokens --steps 40 --world 1 --resume
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import loop

GLOBAL_BATCH = 16
MICRO_BATCH = 4
LEARNING_RATE = 1e-2
CONTEXT = 64
STREAM = {"format": {"name": "tokens", "tokens": CONTEXT + 1, "dtype": "uint16"}}

WORDS = 64
TOKENS = 64_000


def make_data(folder: Path) -> None:
    """A text in which each word allows for a few next ones."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    followers = random.integers(0, WORDS, (WORDS, 4))
    text = np.zeros(TOKENS, dtype=np.uint16)
    for place in range(1, TOKENS):
        text[place] = followers[text[place - 1], random.integers(4)]
    text.tofile(folder / "train.bin")


class Model(nn.Module):
    """An embedding, a recurrent layer and a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 32)
        self.memory = nn.GRU(32, 64, batch_first=True)
        self.last = nn.Linear(64, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next word at each place."""
        return self.last(self.memory(self.embedding(tokens))[0])


def tensors(batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Words and the ones that follow them."""
    tokens = batch["tokens"].to(torch.int64)
    return tokens[:, :-1], tokens[:, 1:]


def loss(model: nn.Module, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy."""
    return functional.cross_entropy(model(tokens).flatten(0, 1), wanted.flatten())


if __name__ == "__main__":
    loop.main("train_tokens")
