"""Makes photograph-like JPEGs: `python -m clients.make_images FOLDER COUNT`; always the same ones.

Gradients, soft blobs and grain, at about 500 x 375, quality 90, 4:2:0: about 100 KB each, as the images of
ImageNet have.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

SIZES = [(500, 375), (500, 333), (375, 500), (500, 400)]
GRAIN = 17.0


def main():
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        width, height = SIZES[index % len(SIZES)]
        image = Image.fromarray(picture(np.random.default_rng(index), width, height))
        image.save(folder / f"{index:05}.jpg", quality=90)


def picture(rng, width, height):
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    planes = []
    for _ in range(3):
        a, b, c, d = rng.uniform(-6, 6, 4)
        planes.append(128 + 50 * np.sin(a * x + b * y) + 40 * np.cos(c * x * y + d))
    smooth = np.stack(planes, -1)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8))
    blobs = coarse.resize((width, height), Image.BICUBIC).filter(ImageFilter.GaussianBlur(1))
    smooth += (np.asarray(blobs, dtype=np.float64) - 128) * 0.5
    # Grain of brightness mostly, as sensors have.
    smooth += rng.normal(0, GRAIN, (height, width, 1)) + rng.normal(0, GRAIN / 4, (height, width, 3))
    return smooth.clip(0, 255).astype(np.uint8)


if __name__ == "__main__":
    main()
