"""Parquet: pyarrow's writer against our streams, our files against its reader."""

import datetime
import decimal
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import dataset

from kit import Case, contents, streamed

COUNT = 100


def table():
    """Columns of every kind that streams give; nulls only where they have a place."""
    numbers = range(COUNT)
    return pa.table(
        {
            "flag": pa.array([index % 3 == 0 for index in numbers]),
            "i8": pa.array([index - 50 for index in numbers], pa.int8()),
            "u16": pa.array([index * 600 for index in numbers], pa.uint16()),
            "i64": pa.array([index * -(10**15) for index in numbers], pa.int64()),
            "u64": pa.array([2**64 - 1 - index for index in numbers], pa.uint64()),
            "f16": pa.array([np.float16(index / 4) for index in numbers], pa.float16()),
            "f32": pa.array([index / 3 for index in numbers], pa.float32()),
            "f64": pa.array([index / 3 for index in numbers], pa.float64()),
            "text": pa.array([None if index % 7 == 0 else f"t\u00e9xt {index % 5}" for index in numbers]),
            "large": pa.array([f"large {index}" for index in numbers], pa.large_string()),
            "blob": pa.array(
                [None if index % 9 == 4 else blob for index, blob in enumerate(contents(5, COUNT))],
                pa.binary(),
            ),
            "fixed": pa.array([index.to_bytes(6, "big") for index in numbers], pa.binary(6)),
            "ids": pa.array(
                [None if index % 6 == 5 else list(range(index % 6)) for index in numbers],
                pa.list_(pa.int32()),
            ),
            "vector": pa.array([[index, 0.5, -1] for index in numbers], pa.list_(pa.float32(), 3)),
            "inner": pa.array(
                [
                    {
                        "x": index,
                        "name": None if index % 4 == 0 else str(index),
                        "list": [index] * (index % 3),
                    }
                    for index in numbers
                ],
                pa.struct([("x", pa.int16()), ("name", pa.string()), ("list", pa.list_(pa.uint8()))]),
            ),
            "day": pa.array([datetime.date(2024, 1, 1) + datetime.timedelta(index) for index in numbers]),
            "moment": pa.array([10**15 + index for index in numbers], pa.timestamp("us", tz="UTC")),
            "money": pa.array([decimal.Decimal(index) / 100 for index in numbers], pa.decimal128(10, 2)),
            "kind": pa.array([f"kind {index % 4}" for index in numbers]).dictionary_encode(),
        }
    )


def expected():
    """The same rows as streams give them."""
    made = []
    for index, row in enumerate(table().to_pylist()):
        inner = row["inner"]
        made.append(
            {
                "flag": np.bool_(row["flag"]),
                "i8": np.int8(row["i8"]),
                "u16": np.uint16(row["u16"]),
                "i64": np.int64(row["i64"]),
                "u64": np.uint64(row["u64"]),
                "f16": np.float16(row["f16"]),
                "f32": np.float32(row["f32"]),
                "f64": np.float64(row["f64"]),
                "text": (row["text"] or "").encode(),
                "large": row["large"].encode(),
                "blob": row["blob"] or b"",
                "fixed": np.frombuffer(row["fixed"], np.uint8),
                "ids": np.array(row["ids"] or [], np.int32),
                "vector": np.array(row["vector"], np.float32),
                "inner.x": np.int16(inner["x"]),
                "inner.name": (inner["name"] or "").encode(),
                "inner.list": np.array(inner["list"], np.uint8),
                "day": np.int32((row["day"] - datetime.date(1970, 1, 1)).days),
                "moment": np.int64(10**15 + index),
                "money": np.int64(index),
                "kind": row["kind"].encode(),
            }
        )
    return made


class TheirFiles(Case):
    """What pyarrow writes."""

    def test_codecs_and_versions_parquet(self):
        for codec in ["NONE", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD"]:
            for page in ["1.0", "2.0"]:
                with self.subTest(codec=codec, page=page):
                    folder = self.place(f"{codec}-{page}")
                    options = {"compression": codec, "data_page_version": page, "row_group_size": 17}
                    options |= {
                        "write_page_checksum": codec != "LZ4",
                        "use_dictionary": page == "1.0",
                        "data_page_size": 500,
                    }
                    for part in range(2):
                        half = table().slice(part * 60, 60)
                        pq.write_table(half, folder / f"part-{part}.parquet", **options)
                    self.assert_streams(folder, expected())

    def test_encodings_parquet(self):
        encodings = {
            "i64": "DELTA_BINARY_PACKED",
            "f32": "BYTE_STREAM_SPLIT",
            "f64": "BYTE_STREAM_SPLIT",
            "text": "DELTA_BYTE_ARRAY",
            "large": "DELTA_LENGTH_BYTE_ARRAY",
            "fixed": "BYTE_STREAM_SPLIT",
            "flag": "RLE",
        }
        folder = self.place("encodings")
        options = {
            "use_dictionary": False,
            "column_encoding": encodings,
            "write_page_index": True,
            "store_schema": True,
        }
        pq.write_table(table(), folder / "a.parquet", **options)
        self.assert_streams(folder, expected())

    def test_nested_columns_are_json_parquet(self):
        chats, tags, counts = nested()
        columns = {
            "chat": pa.array(chats, pa.list_(pa.struct([("role", pa.string()), ("text", pa.string())]))),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "counts": pa.array([list(count.items()) for count in counts], pa.map_(pa.string(), pa.int64())),
            "nothing": pa.nulls(COUNT),
        }
        wanted = {"chat": chats, "tags": tags, "counts": counts}
        for page, has_dictionary in [("1.0", True), ("2.0", False)]:
            with self.subTest(page=page):
                folder = self.place(f"nested-{page}")
                options = {"data_page_version": page, "use_dictionary": has_dictionary, "row_group_size": 17}
                pq.write_table(pa.table(columns), folder / "a.parquet", data_page_size=500, **options)
                _, rows = streamed(folder)
                for number, row in enumerate(rows):
                    found = {name: json.loads(text) for name, text in row.items()}
                    self.assertEqual(found, {name: values[number] for name, values in wanted.items()})
                # Packed anew, they are text of the same kind.
                _, again = streamed(self.pack(folder, "mds", "--samples-per-shard", 40))
                self.assertEqual([row["chat"] for row in again], [row["chat"] for row in rows])

    def test_partitions_are_fields_parquet(self):
        langs = ["de", "en us", "a/b"]
        made = pa.table(
            {
                "x": pa.array(range(COUNT)),
                "year": pa.array([2020 + index % 2 for index in range(COUNT)]),
                "lang": pa.array([langs[index % 3] for index in range(COUNT)]),
                "scores": pa.array([[index / 2, None] for index in range(COUNT)]),
            }
        )
        folder = self.place("partitions")
        pq.write_to_dataset(made, folder, partition_cols=["year", "lang"])
        # What pyarrow itself reads, in the order of the files.
        wanted = [
            {
                "x": np.int64(row["x"]),
                "scores": np.array([row["x"] / 2, np.nan]),
                "year": np.int64(row["year"]),
                "lang": row["lang"].encode(),
            }
            for part in self.parts(folder, made)
            for row in part.to_pylist()
        ]
        self.assertEqual({row["lang"] for row in wanted}, {lang.encode() for lang in langs})
        self.assert_streams(folder, wanted)
        report = json.loads(self.forebay("stream", "--json", "--filter", "year = 2021", folder))
        self.assertEqual(report["samples"], COUNT // 2)
        packed = [pq.read_table(file) for file in self.pack(folder, "parquet").glob("*.parquet")]
        found = pa.concat_tables(packed).sort_by("x")
        for name in ["x", "year", "lang"]:
            self.assertEqual(found[name].to_pylist(), made[name].to_pylist(), name)

    def parts(self, folder, made):
        """Read the files in order with pyarrow, which is told the columns in names of folders."""
        fields = [made.schema.field(name) for name in ["year", "lang"]]
        hive = dataset.partitioning(pa.schema(fields), flavor="hive")
        whole = dataset.dataset(folder, partitioning=hive)
        files = sorted(whole.get_fragments(), key=lambda file: file.path)
        return [file.to_table(schema=whole.schema) for file in files]


def nested():
    """Conversations, lists of text and maps, some of them empty."""

    def turn(index):
        return {"role": "user" if index % 2 else None, "text": f't\u00e9xt "{index}"\n' * (index % 3)}

    chats = [[turn(index + step) for step in range(index % 4)] for index in range(COUNT)]
    tags = [[f"tag {step}" for step in range(index % 5)] for index in range(COUNT)]
    counts = [{f"k{step}": step * index for step in range(index % 3)} for index in range(COUNT)]
    return chats, tags, counts


class OurFiles(Case):
    """What `forebay pack` writes."""

    def test_columns_are_read_parquet(self):
        theirs = self.place("theirs")
        pq.write_table(table(), theirs / "a.parquet", row_group_size=30)
        for options in [[], ["--compression", "zstd"]]:
            with self.subTest(options=options):
                ours = self.pack(theirs, "parquet", "--samples-per-shard", 40, *options)
                files = sorted(ours.glob("*.parquet"))
                self.assertEqual(len(files), 3)
                found = pa.concat_tables(
                    pq.read_table(file, page_checksum_verification=True) for file in files
                )
                self.assert_columns(found)

    def assert_columns(self, found):
        """Compare with what was packed, nulls included."""
        wanted = table().flatten()
        self.assertEqual({*found.column_names}, {*wanted.column_names})
        for name in wanted.column_names:
            have, want = found[name].to_pylist(), wanted[name].to_pylist()
            if name in STORED:
                want = [STORED[name](value) for value in want]
            self.assertEqual(have, want, name)

    def test_dates_and_decimals_keep_their_types_parquet(self):
        day = datetime.date(2024, 5, 31)
        amounts = [decimal.Decimal("-12345678901234567890.123"), None, decimal.Decimal("0.001")]
        ticks = [1_700_000_000_123, None, -1]
        made = pa.table(
            {
                "day": pa.array([day, None, datetime.date(1969, 12, 31)]),
                "days": pa.array([[day], None, []], pa.list_(pa.date32())),
                "ms": pa.array(ticks, pa.timestamp("ms")),
                "us": pa.array(ticks, pa.timestamp("us", tz="UTC")),
                "ns": pa.array(ticks, pa.timestamp("ns")),
                "clock": pa.array([3_600_000, None, 0], pa.time32("ms")),
                "fine": pa.array([3_600_000_001, None, 0], pa.time64("us")),
                "price": pa.array(
                    [decimal.Decimal("9.99"), None, decimal.Decimal("-0.01")], pa.decimal128(9, 2)
                ),
                "wide": pa.array(amounts, pa.decimal128(30, 3)),
                "huge": pa.array(amounts, pa.decimal256(50, 5)),
            }
        )
        theirs = self.place("theirs")
        pq.write_table(made, theirs / "a.parquet")
        (file,) = self.pack(theirs, "parquet").glob("*.parquet")
        found = pq.read_table(file)
        for name in made.column_names:
            # Of lists, the name of the elements is the writer's own.
            if name == "days":
                self.assertEqual(found[name].to_pylist(), made[name].to_pylist())
                self.assertEqual(found.schema.field(name).type.value_type, pa.date32())
            else:
                self.assertTrue(found[name].equals(made[name]), f"{name}: {found[name]}")

    def test_tars_are_read_parquet(self):
        import webdataset

        tars = self.place("tars")
        blobs = contents(6, COUNT)
        with webdataset.TarWriter(f"{tars}/a.tar") as writer:
            for index, blob in enumerate(blobs):
                extra = {"txt": f"\u00e9{index}"} if index % 2 else {}
                writer.write({"__key__": f"k{index:04}", "bin": blob, "cls": index, **extra})
        (file,) = self.pack(tars, "parquet").glob("*.parquet")
        found = pq.read_table(file).to_pylist()
        wanted = [
            {
                "__key__": f"k{index:04}",
                "bin": blob,
                "cls": str(index),
                "txt": f"\u00e9{index}" if index % 2 else None,
            }
            for index, blob in enumerate(blobs)
        ]
        self.assertEqual(found, wanted)


STORED = {
    "vector": lambda value: np.array(value, "<f4").tobytes(),
}
"""Columns that keep their values, but not the name of their type."""
