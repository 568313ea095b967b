"""Makes a model to load: `python -m clients.make_weights FOLDER BYTES` writes `model.safetensors`, the same
tensors as `model.pt`, and prints their names with a CRC-32 each as JSON.

Tensors are those of a language model in bfloat16: an embedding, and layers of attention and feed-forward
matrices.
"""

import json
import sys
import zlib
from pathlib import Path

import torch
from safetensors.torch import save_file

WIDTH = 2048
INNER = 5632
VOCABULARY = 32_000


def main():
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(parents=True)
    torch.manual_seed(7)
    tensors = {"model.embed_tokens.weight": values(VOCABULARY, WIDTH)}
    layer = 0
    while sum(tensor.nbytes for tensor in tensors.values()) < size:
        name = f"model.layers.{layer}"
        for part in "qkvo":
            tensors[f"{name}.self_attn.{part}_proj.weight"] = values(WIDTH, WIDTH)
        for part, shape in {"up": (INNER, WIDTH), "gate": (INNER, WIDTH), "down": (WIDTH, INNER)}.items():
            tensors[f"{name}.mlp.{part}_proj.weight"] = values(*shape)
        tensors[f"{name}.input_layernorm.weight"] = values(WIDTH)
        layer += 1
    save_file(tensors, folder / "model.safetensors")
    torch.save(tensors, folder / "model.pt")
    crcs = {name: zlib.crc32(tensor.view(-1).view(torch.uint8).numpy()) for name, tensor in tensors.items()}
    total = sum(tensor.nbytes for tensor in tensors.values())
    print(json.dumps({"bytes": total, "count": len(tensors), "crcs": crcs}))


def values(*shape):
    return torch.empty(shape, dtype=torch.bfloat16).normal_()


if __name__ == "__main__":
    main()
