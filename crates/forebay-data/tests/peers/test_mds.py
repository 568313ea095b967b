"""MDS: mosaicml-streaming's writer against our streams, our shards against its reader."""

import decimal
import json

import forebay
import numpy as np
from PIL import Image
from streaming import MDSWriter, StreamingDataset
from streaming.base.format.mds.encodings import mds_encode

from kit import Case, bytes_of, contents

COUNT = 40

NUMBERS = {
    "a_int": "int64",
    "b_u8": "uint8",
    "c_i16": "int16",
    "d_f16": "float16",
    "e_f32": "float32",
    "f_f64": "float64",
}
"""Columns that become arrays of no dimension, with the types they have in numpy."""

COLUMNS = {
    "a_int": "int",
    "b_u8": "uint8",
    "c_i16": "int16",
    "d_f16": "float16",
    "e_f32": "float32",
    "f_f64": "float64",
    "g_bytes": "bytes",
    "h_str": "str",
    "i_json": "json",
    "j_any": "ndarray",
    "k_ndims": "ndarray:int32",
    "l_fixed": "ndarray:uint16:2,3",
    "m_str_int": "str_int",
    "n_str_float": "str_float",
    "o_decimal": "str_decimal",
    "p_png": "png",
    "q_pil": "pil",
}


READ_AS = {"a_int": int, "m_str_int": int, "n_str_float": float, "p_png": lambda value: value}
"""Columns whose bytes get another encoding by packing, and what makes their values the same."""


def rows():
    """Samples with every column, as Python has them."""
    made = []
    for index, blob in enumerate(contents(3, COUNT)):
        picture = Image.fromarray(np.full((3, 4 + index % 2, 3), index, dtype=np.uint8))
        made.append(
            {
                "a_int": -index * 10**12,
                "b_u8": np.uint8(index),
                "c_i16": np.int16(-index),
                "d_f16": np.float16(index / 4),
                "e_f32": np.float32(index / 3),
                "f_f64": np.float64(index / 3),
                "g_bytes": blob,
                "h_str": f"t\u00e9xt {index}" * (index % 4),
                "i_json": {"index": index, "list": [1, None, "\u5b57"]},
                "j_any": np.arange(index + 1, dtype=np.float64).reshape(-1, 1),
                "k_ndims": np.arange(2 * index + 2, dtype=np.int32).reshape(2, -1),
                "l_fixed": np.arange(6, dtype=np.uint16).reshape(2, 3) + index,
                "m_str_int": 10**30 + index,
                "n_str_float": index / 7,
                "o_decimal": decimal.Decimal(index) / 8,
                "p_png": picture,
                "q_pil": picture,
            }
        )
    return made


def expected(samples, columns):
    """Samples as streams give them: arrays where the size is fixed, else the bytes their library makes."""
    made = []
    for sample in samples:
        row = {name: mds_encode(encoding, sample[name]) for name, encoding in columns.items()}
        for name, dtype in NUMBERS.items():
            if name in row:
                row[name] = np.frombuffer(row[name], dtype).reshape(())
        if "l_fixed" in row:
            row["l_fixed"] = np.frombuffer(row["l_fixed"], np.uint16).reshape(2, 3)
        made.append(row)
    return made


def write(folder, samples, columns, **options):
    """Write a data set with their writer."""
    options = {"size_limit": 1 << 16, **options}
    with MDSWriter(out=str(folder), columns=columns, **options) as writer:
        for sample in samples:
            writer.write(sample)


def plain(value):
    """A value of theirs in a form that compares."""
    if isinstance(value, np.ndarray | np.generic):
        return (value.dtype.name, value.shape, value.tobytes())
    if isinstance(value, Image.Image):
        return (value.mode, value.size, value.tobytes())
    return value


class TheirShards(Case):
    """What MDSWriter writes."""

    def test_compressions_and_hashes_mds(self):
        kinds = [None, "br:4", "bz2:9", "gz:5", "snappy", "zstd:3"]
        hashes = [[], ["sha1"], ["md5", "xxh64"], ["sha256"], ["blake2b"], ["xxh3_128"]]
        for compression, names in zip(kinds, hashes, strict=True):
            with self.subTest(compression=compression, hashes=names):
                folder = self.place(f"{compression}")
                write(folder, rows(), COLUMNS, compression=compression, hashes=names)
                self.assertGreater(len(list(folder.iterdir())), 2)
                self.assert_streams(folder, expected(rows(), COLUMNS))

    def test_values_are_opened_mds(self):
        folder = self.place("opened")
        write(folder, rows(), COLUMNS)
        fields = ["j_any", "k_ndims", "q_pil"]
        with forebay.stream(folder, batch_size=COUNT, fields=fields, drop_last=False) as batches:
            batch = next(batches)
        for number, sample in enumerate(rows()):
            picture = batch["q_pil"][number]
            opened = Image.frombytes(picture.mode, (picture.width, picture.height), picture.pixels)
            found = [batch["j_any"][number], batch["k_ndims"][number], opened]
            self.assertEqual([plain(value) for value in found], [plain(sample[name]) for name in fields])


class OurShards(Case):
    """What `forebay pack` writes."""

    def read(self, folder, **options):
        """Read a data set with their reader."""
        local = self.place(f"local-{folder.name}")
        dataset = StreamingDataset(
            remote=str(folder), local=str(local), shuffle=False, batch_size=1, **options
        )
        return [dataset[number] for number in range(len(dataset))]

    def test_same_files_as_the_writer_mds(self):
        theirs = self.place("theirs")
        columns = {name: encoding for name, encoding in COLUMNS.items() if name not in READ_AS}
        samples = [{name: sample[name] for name in columns} for sample in rows()]
        write(theirs, samples, columns, size_limit=1 << 16)
        ours = self.pack(theirs, "mds", "--shard-size", 1 << 16)
        self.assertGreater(len(bytes_of(ours, "*.mds")), 2)
        self.assertEqual(bytes_of(ours, "*.mds"), bytes_of(theirs, "*.mds"))

    def assert_plain(self, found, wanted):
        self.assertEqual(len(found), len(wanted))
        for have, want in zip(found, wanted, strict=True):
            self.assertEqual({*have}, {*want})
            for name, value in want.items():
                read_as = READ_AS.get(name, lambda value: value)
                self.assertEqual(plain(read_as(have[name])), plain(value), name)

    def test_compressions_are_read_mds(self):
        theirs = self.place("theirs")
        write(theirs, rows(), COLUMNS)
        compressions = [None, "br", "bz2", "gz", "snappy", "zstd", "zstd:19"]
        hashes = ["sha1", "xxh64", "md5", "sha256", "blake2b", "xxh3_128", "xxh32"]
        for compression, name in zip(compressions, hashes, strict=True):
            with self.subTest(compression=compression, hash=name):
                options = ["--compression", compression] if compression else []
                ours = self.pack(
                    theirs, "mds", "--hashes", f"{name},sha224", "--shard-size", 1 << 16, *options
                )
                for shard in json.loads((ours / "index.json").read_text())["shards"]:
                    self.assertEqual(shard["hashes"], sorted([name, "sha224"]))
                    self.assertEqual(bool(shard["zip_data"]), bool(compression))
                self.assert_plain(self.read(ours, validate_hash=name), rows())

    def test_hashes_are_compared_by_their_reader_mds(self):
        theirs = self.place("theirs")
        write(theirs, rows(), COLUMNS)
        for compression in [None, "zstd"]:
            with self.subTest(compression=compression):
                options = ["--compression", compression] if compression else []
                ours = self.pack(theirs, "mds", "--hashes", "sha1", "--shard-size", 1 << 16, *options)
                index = json.loads((ours / "index.json").read_text())
                for shard in index["shards"]:
                    shard["zip_data" if compression else "raw_data"]["hashes"]["sha1"] = "0" * 40
                (ours / "index.json").write_text(json.dumps(index))
                with self.assertRaises(ValueError):
                    self.read(ours, validate_hash="sha1")

    def test_tars_are_read_mds(self):
        import webdataset

        tars = self.place("tars")
        blobs = contents(4, COUNT)
        with webdataset.TarWriter(f"{tars}/a.tar") as writer:
            for index, blob in enumerate(blobs):
                writer.write(
                    {
                        "__key__": f"k{index:04}",
                        "bin": blob,
                        "cls": index,
                        "json": {"a": index},
                        "txt": f"\u00e9{index}",
                    }
                )
        found = self.read(self.pack(tars, "mds", "--samples-per-shard", 9))
        self.assertEqual(len(found), COUNT)
        for index, sample in enumerate(found):
            wanted = {
                "__key__": f"k{index:04}",
                "bin": blobs[index],
                "json": {"a": index},
                "txt": f"\u00e9{index}",
            }
            self.assertEqual(int(sample.pop("cls")), index)
            self.assertEqual(sample, wanted)

    def test_every_encoding_and_checksum_mds(self):
        self.example("mds")
