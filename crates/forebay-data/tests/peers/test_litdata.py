"""LitData: its writers against our streams. It is not written here, but packed into what others read."""

import os

os.environ.setdefault("DISABLE_VERSION_CHECK", "1")

import litdata
import numpy as np
import torch
from litdata.streaming.item_loader import TokensLoader
from PIL import Image

from kit import Case, contents

COUNT = 30


def sample(index):
    """A sample of every serializer that is opened."""
    blob = contents(10, COUNT)[index]
    return {
        "number": index,
        "share": index / 3,
        "flag": index % 2 == 0,
        "text": f"t\u00e9xt {index}",
        "blob": blob,
        "tensor": torch.arange(index, dtype=torch.float32),
        "array": np.arange(index + 1, dtype=np.int16),
        "nested": {"inner": {"number": index}, "name": f"{index}"},
    }


def grid(index):
    """A sample of arrays with more dimensions than one, and with none."""
    return {
        "a": torch.full((2, index + 1), index, dtype=torch.float32),
        "b": np.full((index + 1, 3), index),
        "c": torch.tensor(index),
    }


def row(index):
    """A sample that they make a row of Arrow of."""
    return {
        "number": index,
        "text": f"t\u00e9xt {index}",
        "list": list(range(index % 4)),
        "nested": {"name": f"{index}"},
    }


def document(index):
    return torch.arange(index * 10, index * 10 + 8, dtype=torch.int32)


def uneven_document(index):
    return torch.arange(index * 100, index * 100 + 3 + 5 * (index % 4), dtype=torch.int32)


def picture(index):
    return {"image": Image.fromarray(np.full((4, 5, 3), index, dtype=np.uint8)), "label": index}


class TheirChunks(Case):
    """What `litdata.optimize` writes."""

    def optimized(self, fn, **options):
        folder = self.place("chunks")
        litdata.optimize(
            fn=fn, inputs=list(range(COUNT)), output_dir=str(folder), num_workers=1, verbose=False, **options
        )
        return folder

    def check(self, **options):
        folder = self.optimized(sample, chunk_size=11, **options)
        self.assertEqual(len(list(folder.glob("chunk-*"))), 3)
        dataset = litdata.StreamingDataset(str(folder), shuffle=False)
        theirs = [dataset[index] for index in range(COUNT)]
        wanted = []
        for row in theirs:
            wanted.append(
                {
                    "number": np.int64(row["number"]),
                    "share": np.float64(row["share"]),
                    "flag": np.bool_(row["flag"]),
                    "text": row["text"].encode(),
                    "blob": row["blob"],
                    "tensor": row["tensor"].numpy(),
                    "array": row["array"],
                    "nested.inner.number": np.int64(row["nested"]["inner"]["number"]),
                    "nested.name": row["nested"]["name"].encode(),
                }
            )
        self.assertEqual([row["number"] for row in theirs], list(range(COUNT)))
        self.assert_streams(folder, wanted)

    def test_samples_litdata(self):
        self.check()

    def test_compressed_chunks_litdata(self):
        self.check(compression="zstd")

    def test_compressed_items_litdata(self):
        self.check(compression="zstd", compression_level="sample")

    def check_rows_of_arrow(self, **options):
        folder = self.optimized(row, chunk_size=11, **options)
        self.assertEqual((folder / "chunk-0-0.bin").read_bytes()[-8:], b"LDARW01\0")
        dataset = litdata.StreamingDataset(str(folder), shuffle=False)
        wanted = []
        for index in range(COUNT):
            theirs = dataset[index]
            wanted.append(
                {
                    "number": np.int64(theirs["number"]),
                    "text": theirs["text"].encode(),
                    "list": np.array(theirs["list"], dtype=np.int64),
                    "nested.name": theirs["nested"]["name"].encode(),
                }
            )
        self.assertEqual([want["number"] for want in wanted], list(range(COUNT)))
        self.assert_streams(folder, wanted)

    def test_rows_of_arrow_litdata(self):
        self.check_rows_of_arrow()

    def test_compressed_rows_of_arrow_litdata(self):
        self.check_rows_of_arrow(compression="zstd")

    def test_tokens_litdata(self):
        folder = self.optimized(document, chunk_size=80, item_loader=TokensLoader(block_size=8))
        dataset = litdata.StreamingDataset(str(folder), shuffle=False, item_loader=TokensLoader(block_size=8))
        wanted = [{"tokens": dataset[index].numpy()} for index in range(len(dataset))]
        self.assertEqual(len(wanted), COUNT)
        self.assert_streams(folder, wanted)

    def test_blocks_of_tokens_litdata(self):
        folder = self.optimized(uneven_document, chunk_size=64, item_loader=TokensLoader(block_size=8))
        dataset = litdata.StreamingDataset(str(folder), shuffle=False, item_loader=TokensLoader(block_size=8))
        wanted = [{"tokens": dataset[index].numpy()} for index in range(len(dataset))]
        self.assertNotIn(len(wanted), [0, COUNT])
        self.assert_streams(folder, wanted, format="litdata", tokens=8)

    def test_packed_for_others_litdata(self):
        import webdataset

        folder = self.optimized(sample, chunk_size=11)
        ours = self.pack(folder, "wds", "--fields", "number,text,blob,array")
        urls = [str(path) for path in sorted(ours.glob("*.tar"))]
        for index, row in enumerate(webdataset.WebDataset(urls, shardshuffle=False).decode()):
            want = sample(index)
            self.assertEqual(
                [row["number.cls"], row["text"], row["blob"]], [index, want["text"], want["blob"]]
            )
            self.assertEqual(row["array.npy"].tobytes(), want["array"].tobytes())
        self.assertEqual(index, COUNT - 1)

    def test_pictures_packed_for_others_litdata(self):
        from streaming import LocalDataset

        dataset = LocalDataset(str(self.pack(self.optimized(picture, chunk_size=11), "mds")))
        self.assertEqual(len(dataset), COUNT)
        for index in range(COUNT):
            found, want = dataset[index], picture(index)
            self.assertEqual(found["label"], index)
            image = (found["image"].mode, found["image"].size, found["image"].tobytes())
            self.assertEqual(image, (want["image"].mode, want["image"].size, want["image"].tobytes()))

    def test_arrays_packed_for_others_litdata(self):
        import webdataset
        from streaming import LocalDataset

        folder = self.optimized(grid, chunk_size=11)
        tars = [str(path) for path in sorted(self.pack(folder, "wds").glob("*.tar"))]
        dataset = LocalDataset(str(self.pack(folder, "mds")))
        samples = list(webdataset.WebDataset(tars, shardshuffle=False).decode())
        self.assertEqual([len(dataset), len(samples)], [COUNT, COUNT])
        for index, sample in enumerate(samples):
            for name, value in grid(index).items():
                want = np.asarray(value)
                self.assert_same([{name: sample[f"{name}.npy"]}], [{name: want}])
                self.assert_same([{name: dataset[index][name]}], [{name: np.atleast_1d(want)}])
