"""Folders of images: torchvision's labels against our streams, what we pack of them against readers."""

import io

import numpy as np
import webdataset
from PIL import Image
from streaming import LocalDataset
from torchvision.datasets import ImageFolder

from kit import Case

CLASSES = ["zebra", "Ant", "bee 2"]


class Folders(Case):
    """A folder of images, each class a directory."""

    def setUp(self):
        """Write the images."""
        super().setUp()
        self.images = self.place("images")
        for number, name in enumerate(CLASSES):
            for index in range(9):
                path = (
                    self.images
                    / name
                    / f"sub{index % 2}"
                    / f"i{index:02}.{['png', 'jpg', 'JPEG'][index % 3]}"
                )
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = np.random.default_rng(number * 100 + index).integers(
                    0, 255, (6 + index, 5, 3), dtype=np.uint8
                )
                Image.fromarray(pixels).save(path)
        theirs = ImageFolder(str(self.images)).samples
        self.samples = {
            path[len(str(self.images)) + 1 :].split(".")[0]: (path, label) for path, label in theirs
        }
        self.assertEqual(len(self.samples), 27)

    def wanted(self, key):
        path, label = self.samples[key]
        with open(path, "rb") as file:
            return file.read(), label

    def test_streams_have_the_same_labels_files(self):
        keys = sorted(self.samples, key=lambda key: (key.split("/")[:-1], key))
        rows = []
        for key in keys:
            image, label = self.wanted(key)
            rows.append({"image": image, "label": np.int64(label)})
        self.assert_streams(self.images, rows, keys, is_plain=True)

    def test_tars_have_the_same_labels_files(self):
        ours = self.pack(self.images, "wds", "--samples-per-shard", 10)
        urls = [str(path) for path in sorted(ours.glob("*.tar"))]
        seen = set()
        for sample in webdataset.WebDataset(urls, shardshuffle=False):
            image, label = self.wanted(sample["__key__"])
            self.assertEqual((sample["jpg"], int(sample["cls"])), (image, label))
            seen.add(sample["__key__"])
        self.assertEqual(seen, {*self.samples})
        for sample in webdataset.WebDataset(urls, shardshuffle=False).decode("pil"):
            self.assertEqual(sample["jpg"].mode, "RGB")

    def test_mds_has_the_same_pixels_files(self):
        dataset = LocalDataset(str(self.pack(self.images, "mds")))
        self.assertEqual(len(dataset), 27)
        for index in range(27):
            sample = dataset[index]
            image, label = self.wanted(sample["__key__"])
            with Image.open(io.BytesIO(image)) as picture:
                self.assertEqual(sample["image"].convert("RGB").tobytes(), picture.convert("RGB").tobytes())
            self.assertEqual(int(sample["label"]), label)
