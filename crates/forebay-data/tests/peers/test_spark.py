"""Parquet: what Spark writes against our streams, our files against Spark.

Needs a Java for Spark to run in. Everything stays on loopback, in one process of two threads.
"""

import datetime
import decimal
import json
import os

import numpy as np
from pyspark.sql import SparkSession, functions, types

from kit import Case, streamed

COUNT = 90

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)

SPARK = None
"""The session of all tests here."""


def setUpModule():
    """Start Spark."""
    global SPARK
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    SPARK = builder.getOrCreate()


def tearDownModule():
    """End Spark, and the Java that it runs in."""
    SPARK.stop()


def schema():
    """Every type of column that Spark writes and streams give."""
    inner = types.StructType(
        [
            types.StructField("x", types.IntegerType(), False),
            types.StructField("name", types.StringType()),
            types.StructField("list", types.ArrayType(types.DoubleType(), False)),
        ]
    )
    turn = types.StructType(
        [types.StructField("role", types.StringType()), types.StructField("n", types.IntegerType())]
    )
    kinds = {
        "number": types.LongType(),
        "flag": types.BooleanType(),
        "i8": types.ByteType(),
        "i16": types.ShortType(),
        "i32": types.IntegerType(),
        "f32": types.FloatType(),
        "f64": types.DoubleType(),
        "text": types.StringType(),
        "blob": types.BinaryType(),
        "day": types.DateType(),
        "moment": types.TimestampType(),
        "local": types.TimestampNTZType(),
        "d9": types.DecimalType(9, 2),
        "d18": types.DecimalType(18, 4),
        "d38": types.DecimalType(38, 10),
        "ids": types.ArrayType(types.IntegerType(), False),
        "nids": types.ArrayType(types.LongType(), True),
        "words": types.ArrayType(types.StringType()),
        "counts": types.MapType(types.StringType(), types.LongType()),
        "inner": inner,
        "turns": types.ArrayType(turn),
    }
    return types.StructType([types.StructField(name, kind) for name, kind in kinds.items()])


def rows():
    """The values, as Python has them; nulls only where streams have a place for them."""
    made = []
    for index in range(COUNT):
        made.append(
            {
                "number": index * -(10**15),
                "flag": index % 3 == 0,
                "i8": index - 45,
                "i16": index * 300 - 15_000,
                "i32": index * 10**6,
                "f32": float(np.float32(index / 3)),
                "f64": index / 7,
                "text": None if index % 7 == 0 else f"t\u00e9xt {index % 5}",
                "blob": None if index % 9 == 4 else bytes([index]) * (index * 7),
                "day": datetime.date(1960, 1, 1) + datetime.timedelta(index * 400),
                "moment": EPOCH + datetime.timedelta(days=index * 300 - 9000, microseconds=index * 1000),
                "local": datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=index, microseconds=index),
                "d9": decimal.Decimal(index * 3 - 100) / 100,
                "d18": decimal.Decimal(index) * decimal.Decimal("12345.6789"),
                "d38": decimal.Decimal(10) ** 20 * index * (-1) ** index,
                "ids": None if index % 6 == 5 else list(range(index % 6)),
                "nids": list(range(index % 4)),
                "words": [f"w{step}" for step in range(index % 3)],
                "counts": {f"k{step}": step * index for step in range(index % 3)},
                "inner": (
                    index,
                    None if index % 4 == 0 else str(index),
                    [step / 2 for step in range(index % 3)],
                ),
                "turns": [("user", index), ("assistant", None if index % 2 else index + 1)][: index % 3],
            }
        )
    return made


def frame():
    """The rows as Spark has them, in two parts."""
    return SPARK.createDataFrame([tuple(row.values()) for row in rows()], schema()).coalesce(2)


def compact(value):
    """JSON as Forebay writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def sample(row, ticks):
    """A row as streams give it; `ticks` of a moment are in a second."""
    since = row["moment"] - EPOCH
    x, name, doubles = row["inner"]
    return {
        "number": np.int64(row["number"]),
        "flag": np.bool_(row["flag"]),
        "i8": np.int8(row["i8"]),
        "i16": np.int16(row["i16"]),
        "i32": np.int32(row["i32"]),
        "f32": np.float32(row["f32"]),
        "f64": np.float64(row["f64"]),
        "text": (row["text"] or "").encode(),
        "blob": row["blob"] or b"",
        "day": np.int32((row["day"] - EPOCH.date()).days),
        "moment": np.int64((since // datetime.timedelta(microseconds=1)) * ticks // 10**6),
        "local": np.int64((row["local"] - EPOCH.replace(tzinfo=None)) // datetime.timedelta(microseconds=1)),
        "d9": np.int64(row["d9"].scaleb(2)),
        "d18": np.int64(row["d18"].scaleb(4)),
        "d38": int(row["d38"].scaleb(10)).to_bytes(16, "little", signed=True),
        "ids": np.array(row["ids"] or [], np.int32),
        "nids": np.array(row["nids"], np.int64),
        "words": compact(row["words"]),
        "counts": compact(row["counts"]),
        "inner.x": np.int32(x),
        "inner.name": (name or "").encode(),
        "inner.list": np.array(doubles, np.float64),
        "turns": compact([{"role": role, "n": n} for role, n in row["turns"]]),
    }


def number_of(row):
    """Where a row is among the others."""
    return -int(row["number"])


class TheirFiles(Case):
    """What Spark writes."""

    def check(self, name, ticks=10**9, settings=(), **options):
        folder = self.folder / name
        for key, value in settings:
            SPARK.conf.set(key, value)
            self.addCleanup(SPARK.conf.unset, key)
        frame().write.options(**options).parquet(str(folder))
        self.assert_streams(folder, [sample(row, ticks) for row in rows()])
        # An index beside them is nothing to Spark.
        self.assertEqual(SPARK.read.parquet(str(folder)).count(), COUNT)

    def test_codecs_spark(self):
        for codec in ["none", "snappy", "gzip", "zstd", "lz4", "lz4_raw"]:
            with self.subTest(codec=codec):
                self.check(codec, compression=codec)

    def test_pages_spark(self):
        small = {
            "parquet.page.size": "512",
            "parquet.page.row.count.limit": "20",
            "parquet.block.size": "4096",
        }
        for name, options in {
            "version-2": {"parquet.writer.version": "v2"},
            "plain": {"parquet.enable.dictionary": "false", "parquet.writer.version": "v2"},
            "small": small,
            "bloom": {"parquet.bloom.filter.enabled#text": "true"},
        }.items():
            with self.subTest(name=name):
                self.check(name, **options)

    def test_types_of_moments_spark(self):
        key = "spark.sql.parquet.outputTimestampType"
        for name, ticks in {"TIMESTAMP_MICROS": 10**6, "TIMESTAMP_MILLIS": 1000, "INT96": 10**9}.items():
            with self.subTest(name=name):
                self.check(name, ticks, [(key, name)])

    def test_older_writers_spark(self):
        self.check("legacy", settings=[("spark.sql.parquet.writeLegacyFormat", "true")])

    def test_partitions_spark(self):
        folder = self.folder / "partitions"
        names = functions.when(functions.col("flag"), functions.lit("a b/c=\u00e9%"))
        made = frame().select("number", "text", "i8", "flag")
        made = made.withColumn("part", functions.col("i8") % 3).withColumn("name", names).drop("i8", "flag")
        made.write.partitionBy("part", "name").parquet(str(folder))
        # Spark itself reads them, with the names of files to put them into our order.
        theirs = SPARK.read.parquet(str(folder)).withColumn("file", functions.col("_metadata.file_path"))
        wanted = [
            {
                "number": np.int64(row["number"]),
                "text": (row["text"] or "").encode(),
                "part": np.int64(row["part"]),
                "name": (row["name"] or "").encode(),
            }
            for row in theirs.collect()
        ]
        self.assertEqual(len(wanted), COUNT)
        self.assertEqual({row["name"] for row in wanted}, {"a b/c=\u00e9%".encode(), b""})
        _, found = streamed(folder)
        self.assert_same(sorted(found, key=number_of), sorted(wanted, key=number_of))
        report = json.loads(self.forebay("stream", "--json", "--filter", "part = 1", folder))
        self.assertEqual(report["samples"], theirs.where("part = 1").count())


class OurFiles(Case):
    """What `forebay pack` writes, read by Spark from the directory, with the manifest in it."""

    def test_columns_are_read_spark(self):
        theirs = self.folder / "theirs"
        SPARK.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        self.addCleanup(SPARK.conf.unset, "spark.sql.parquet.outputTimestampType")
        frame().write.parquet(str(theirs))
        for options in [[], ["--compression", "zstd"]]:
            with self.subTest(options=options):
                ours = self.pack(theirs, "parquet", "--samples-per-shard", 40, *options)
                found = SPARK.read.parquet(str(ours))
                self.assert_rows_of(found.sort(functions.col("number").desc()))

    def assert_rows_of(self, found):
        """Compare types and values; structs are flat, and what is nested is JSON."""
        kinds = {field.name: field.dataType for field in found.schema}
        for name in [
            "i8",
            "i16",
            "i32",
            "number",
            "f32",
            "f64",
            "day",
            "moment",
            "local",
            "d38",
            "flag",
            "blob",
        ]:
            self.assertEqual(kinds[name], schema()[name].dataType, name)
        have = [row.asDict() for row in found.collect()]
        self.assertEqual(len(have), COUNT)
        for row, wanted in zip(have, rows(), strict=True):
            x, name, doubles = wanted.pop("inner")
            wanted |= {"inner.x": x, "inner.name": name, "inner.list": doubles}
            wanted["turns"] = [{"role": role, "n": n} for role, n in wanted["turns"]]
            for nested in ["words", "counts", "turns"]:
                row[nested] = json.loads(row[nested])
            row["moment"] = row["moment"].astimezone(UTC)
            row["blob"] = row["blob"] and bytes(row["blob"])
            wanted["blob"] = wanted["blob"] or row["blob"]
            self.assertEqual({name: row[name] for name in wanted}, wanted)
