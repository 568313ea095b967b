"""WebDataset: its writers against our streams, our tars against its readers."""

import gzip
import io
import json
import tarfile

import numpy as np
import webdataset

from kit import Case, bytes_of, contents

COUNT = 40


def rows():
    """Samples whose keys have folders and letters that are not ASCII, and whose fields have two dots."""
    blobs = contents(1, COUNT)
    return [
        {
            "__key__": f"dir{index % 3}/k\u00e9y-{index:05}",
            "bin": blob,
            "cls": str(index % 10).encode(),
            "json": json.dumps({"index": index, "text": "\u5b57"}).encode(),
            "seg.png": blob[::-1],
        }
        for index, blob in enumerate(blobs)
    ]


def split(samples):
    """Keys and fields of samples."""
    keys = [sample["__key__"] for sample in samples]
    return keys, [{name: value for name, value in sample.items() if name[:2] != "__"} for sample in samples]


def read(folder, pattern="shard-*.tar*"):
    """Read shards with WebDataset as it comes, nothing decoded."""
    urls = [str(path) for path in sorted(folder.glob(pattern))]
    return split(list(webdataset.WebDataset(urls, shardshuffle=False)))


class TheirShards(Case):
    """What WebDataset and tarfile write."""

    def test_shard_writer_wds(self):
        for options in [{"maxcount": 15}, {"maxsize": 60_000}, {"maxcount": 15, "compress": True}]:
            with self.subTest(**options):
                folder = self.place("-".join(options))
                end = ".tar.gz" if "compress" in options else ".tar"
                with webdataset.ShardWriter(
                    f"{folder}/s-%04d{end}", encoder=False, verbose=0, **options
                ) as writer:
                    for sample in rows():
                        writer.write(sample)
                self.assertGreater(len(list(folder.iterdir())), 1)
                keys, fields = split(rows())
                self.assert_streams(folder, fields, keys)

    def test_encoders_of_the_writer_wds(self):
        folder = self.place("encoded")
        arrays = [np.arange(index + 1, dtype=np.float32).reshape(1, -1) for index in range(COUNT)]
        with webdataset.TarWriter(f"{folder}/a.tar") as writer:
            for index, array in enumerate(arrays):
                texts = {"txt": f"caption {index}", "cls": index, "json": {"a": [index]}}
                writer.write({"__key__": f"{index}", **texts, "npy": array})
        expected = list(webdataset.WebDataset(f"{folder}/a.tar", shardshuffle=False))
        keys, fields = split(expected)
        self.assertEqual(fields[3]["cls"], b"3")
        self.assert_streams(folder, fields, keys)

    def test_long_names_of_every_kind_of_tar_wds(self):
        names = [
            f"{'d' * part}/{'n' * 90}{'m' * tail}{index:03}" for index, (part, tail) in enumerate(LENGTHS)
        ]
        blobs = contents(2, len(names))
        flavours = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
        for name, flavour in flavours.items():
            for zipped in [False, True]:
                with self.subTest(flavour=name, zipped=zipped):
                    folder = self.place(f"{name}-{zipped}")
                    short = len(names) if flavour != tarfile.USTAR_FORMAT else USTAR_NAMES
                    data = archive(zip(names[:short], blobs, strict=False), flavour)
                    path = folder / ("a.tar.gz" if zipped else "a.tar")
                    path.write_bytes(gzip.compress(data) if zipped else data)
                    keys, fields = (
                        names[:short],
                        [{"bin": blob, "u\u00e9": blob[:3]} for blob in blobs[:short]],
                    )
                    self.assertEqual(read(folder, "a.*"), (keys, fields))
                    self.assert_streams(folder, fields, keys)


LENGTHS = [(1, 0), (50, 2), (100, 1), (120, 3), (3, 30), (200, 60), (10, 100)]
"""Lengths of the folder and the tail of names; the first of them fit into the headers of ustar."""

USTAR_NAMES = 4


def archive(samples, flavour):
    """Write samples with tarfile."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=flavour) as tar:
        for key, blob in samples:
            for name, data in [("bin", blob), ("u\u00e9", blob[:3])]:
                info = tarfile.TarInfo(f"{key}.{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


class OurShards(Case):
    """What `forebay pack` writes."""

    def written(self, **options):
        """Let WebDataset write shards without the time in them."""
        folder = self.place("theirs")
        with webdataset.ShardWriter(
            f"{folder}/shard-%06d.tar", encoder=False, verbose=0, mtime=0, **options
        ) as writer:
            for sample in rows():
                writer.write(sample)
        return folder

    def test_same_files_as_the_writer_wds(self):
        theirs = self.written(maxcount=15)
        ours = self.pack(theirs, "wds", "--samples-per-shard", 15)
        self.assertEqual(bytes_of(ours, "*.tar"), bytes_of(theirs, "*.tar"))

    def test_compressed_shards_are_read_wds(self):
        theirs = self.written(maxcount=100)
        ours = self.pack(theirs, "wds", "--samples-per-shard", 15, "--compression", "gz")
        self.assertEqual(len(list(ours.glob("*.tar.gz"))), 3)
        self.assertEqual(read(ours), split(rows()))

    def test_a_tree_of_files_is_read_wds(self):
        tree = self.place("tree")
        for sample in rows():
            for name, data in sample.items():
                if name != "__key__":
                    path = tree / f"{sample['__key__']}.{name}"
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(data)
        keys, fields = split(sorted(rows(), key=lambda sample: sample["__key__"]))
        self.assert_streams(tree, fields, keys, is_plain=True)
        (tree / "_forebay.fbi").unlink(missing_ok=True)
        self.assertEqual(read(self.pack(tree, "wds")), (keys, fields))

    def test_values_of_parquet_are_decoded_wds(self):
        import pyarrow
        import pyarrow.parquet

        columns = {
            "number": pyarrow.array(range(COUNT), pyarrow.int32()),
            "caption": [f"caption {index}" for index in range(COUNT)],
            "ids": pyarrow.array(
                [list(range(index)) for index in range(COUNT)], pyarrow.list_(pyarrow.uint16())
            ),
            "score": pyarrow.array([index / 4 for index in range(COUNT)], pyarrow.float32()),
        }
        source = self.place("parquet")
        pyarrow.parquet.write_table(pyarrow.table(columns), source / "a.parquet")
        ours = self.pack(source, "wds")
        urls = [str(path) for path in ours.glob("*.tar")]
        samples = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
        self.assertEqual(len(samples), COUNT)
        for index, sample in enumerate(samples):
            self.assertEqual((sample["number.cls"], sample["caption.txt"]), (index, f"caption {index}"))
            wanted = [np.arange(index, dtype=np.uint16), np.array(index / 4, dtype=np.float32)]
            for name, want in zip(["ids.npy", "score.npy"], wanted, strict=True):
                self.assertEqual((sample[name].dtype, sample[name].shape), (want.dtype, want.shape))
                self.assertEqual(sample[name].tobytes(), want.tobytes())

    def test_every_name_and_size_wds(self):
        self.example("wds")
