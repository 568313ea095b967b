"""Tokens: what numpy and Megatron write against our streams, our files against both."""

import itertools
import json
import warnings

import numpy as np

from kit import FIXTURES, Case

DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Codes of types in an index of Megatron."""

WINDOW = 64


def tokens(count, dtype="<u2"):
    return np.random.default_rng(1).integers(0, 50_000, count).astype(dtype)


def documents(path):
    """Read a pair of files of Megatron's as its IndexedDataset does: with numpy alone."""
    index = path.with_suffix(".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    assert np.frombuffer(index, "<u8", 1, 9) == 1
    dtype = np.dtype(DTYPES[index[17]])
    sequences, entries = (int(count) for count in np.frombuffer(index, "<u8", 2, 18))
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    pointers = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    borders = np.frombuffer(index, "<i8", entries, 34 + 12 * sequences)
    data = np.memmap(path, dtype=dtype, mode="r")
    made = []
    for first, last in itertools.pairwise(borders):
        parts = [
            data[at // dtype.itemsize :][:length]
            for at, length in zip(pointers[first:last], lengths[first:last], strict=True)
        ]
        made.append(np.concatenate(parts) if parts else np.empty(0, dtype))
    return made


def megatron():
    """Import what Megatron writes and reads such files with, without its words about what is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import indexed_dataset
    return indexed_dataset


class TheirFiles(Case):
    """What numpy and Megatron write."""

    def test_megatron_writes_tokens(self):
        import torch

        for dtype in [np.uint16, np.int32, np.int64, np.uint8]:
            with self.subTest(dtype=dtype):
                folder = self.place(np.dtype(dtype).name)
                builder = megatron().IndexedDatasetBuilder(f"{folder}/a.bin", dtype=dtype)
                rows = []
                for count in [3, 0, 1, 70_000, 12, *range(40)]:
                    sentences = [
                        tokens(count + step, "<i8") % (200 if dtype == np.uint8 else 50_000)
                        for step in range(2)
                    ]
                    for sentence in sentences:
                        builder.add_item(torch.from_numpy(sentence))
                    builder.end_document()
                    rows.append(np.concatenate(sentences).astype(dtype))
                builder.finalize(f"{folder}/a.idx")
                self.assert_streams(folder, [{"tokens": row} for row in rows])

    def test_memory_maps_tokens(self):
        for dtype in ["uint16", "uint32", "int32"]:
            with self.subTest(dtype=dtype):
                folder = self.place(dtype)
                rows = tokens(100 * WINDOW + 9, dtype)
                for part in range(2):
                    half = rows[part * 50 * WINDOW :][: 50 * WINDOW + 9 * part]
                    written = np.memmap(folder / f"part{part}.bin", dtype=dtype, mode="w+", shape=half.shape)
                    written[:] = half
                    written.flush()
                wanted = [{"tokens": row} for row in rows[: 100 * WINDOW].reshape(100, WINDOW)]
                self.assert_streams(folder, wanted, format="tokens", tokens=WINDOW, dtype=dtype)

    def test_npy_tokens(self):
        folder = self.place("npy")
        rows = tokens(100 * WINDOW)
        np.save(folder / "a.npy", rows)
        wanted = [{"tokens": row} for row in rows.reshape(100, WINDOW)]
        self.assert_streams(folder, wanted, format="tokens", tokens=WINDOW)

    def test_megatron_tokens(self):
        expected = json.loads((FIXTURES / "tokens" / "expected.json").read_text())
        for name in ["several", "single"]:
            with self.subTest(name=name):
                folder = self.place(name)
                for end in ["bin", "idx"]:
                    (folder / f"{name}.{end}").write_bytes(
                        (FIXTURES / "tokens" / f"{name}.{end}").read_bytes()
                    )
                wanted = documents(folder / f"{name}.bin")
                self.assertIn(name, expected)
                self.assert_streams(folder, [{"tokens": row} for row in wanted])


class OurFiles(Case):
    """What `forebay pack` writes."""

    def check(self, source, rows, *options, written="<u2", **settings):
        ours = self.pack(source, "tokens", "--samples-per-shard", 33, *options, **settings)
        paths = sorted(ours.glob("*.bin"))
        found = [row for path in paths for row in documents(path)]
        theirs = [megatron().IndexedDataset(str(path.with_suffix(""))) for path in paths]
        self.assert_same(
            [{"tokens": read[index]} for read in theirs for index in range(len(read))],
            [{"tokens": row} for row in found],
        )
        self.assert_same(
            [{"tokens": row} for row in found], [{"tokens": row.astype(written)} for row in rows]
        )

    def test_windows_tokens(self):
        source = self.place("raw")
        rows = tokens(100 * WINDOW)
        rows.tofile(source / "a.bin")
        self.check(source, rows.reshape(100, WINDOW), format="tokens", tokens=WINDOW, dtype="uint16")

    def test_arrays_of_mds_tokens(self):
        from streaming import MDSWriter

        rows = [tokens(20 + index, "int64") for index in range(90)]
        source = self.place("mds")
        with MDSWriter(out=str(source), columns={"ids": "ndarray:int64", "id": "str"}) as writer:
            for index, row in enumerate(rows):
                writer.write({"ids": row, "id": f"{index}"})
        self.check(source, rows, "--fields", "ids", "--token-dtype", "uint16")

    def test_lists_of_parquet_tokens(self):
        import pyarrow
        import pyarrow.parquet

        rows = [tokens(index, "int32") for index in range(90)]
        source = self.place("parquet")
        table = pyarrow.table(
            {"input_ids": pyarrow.array(rows, pyarrow.list_(pyarrow.int32())), "text": ["x"] * 90}
        )
        pyarrow.parquet.write_table(table, source / "a.parquet")
        self.check(source, rows, "--fields", "input_ids", written="<i4")
