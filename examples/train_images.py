"""A small convolutional network on images in WebDataset tars, decoded by the threads of the loader.

python examples/train_images.py /tmp/images --steps 20 --world 2
python examples/train_images.py /tmp/images --steps 40 --world 4 --resume
"""

import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import loop

GLOBAL_BATCH = 32
MICRO_BATCH = 8
LEARNING_RATE = 3e-3
STREAM = {"decode": {"png": "image:rrc:32,scale:0.5-1,flip,normalize", "cls": "int"}}

CLASSES = 4
SHARDS, SAMPLES = 4, 128


def png(pixels: np.ndarray) -> bytes:
    """An RGB image as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in chunks)


def make_data(folder: Path) -> None:
    """Noise with a bright bar: its direction and colour are the class."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"train-{shard:03}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for index in range(SAMPLES):
                label = int(random.integers(CLASSES))
                pixels = random.integers(0, 160, (40, 40, 3), dtype=np.uint8)
                at = int(random.integers(8, 28))
                bar = pixels[at : at + 6] if label % 2 else pixels[:, at : at + 6]
                bar[..., 0 if label < CLASSES // 2 else 2] = 255
                for suffix, content in [("png", png(pixels)), ("cls", str(label).encode())]:
                    member = tarfile.TarInfo(f"{shard:03}-{index:05}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


class Model(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 5, stride=2)
        self.second = nn.Conv2d(8, 16, 5, stride=2)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        seen = functional.relu(self.second(functional.relu(self.first(images))))
        return self.last(seen.amax(dim=(2, 3)))


def tensors(batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of a batch."""
    return batch["png"], batch["cls"]


def loss(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy."""
    return functional.cross_entropy(model(images), labels)


if __name__ == "__main__":
    loop.main("train_images")
