"""Makes the data sets of the suites `stream` and `tokens`, each by its own library's writer, always the
same: `python -m clients.make_samples KIND FORMAT FOLDER COUNT SHARD_BYTES`.

Kinds: `images`, about 98,000 incompressible bytes and a small JSON label; `tokens`, 2,048 tokens of 16
bits. Samples begin with their number as eight little-endian bytes, so that a reader can tell whether each
came exactly once.
"""

import json
import random
import shutil
import struct
import sys
from pathlib import Path

IMAGE_BYTES_MIN, IMAGE_BYTES_MAX = 78_000, 118_000
TOKENS = 2048
CLASSES = 1000
MDS_SHARD_BYTES = 64 << 20
"""What the libraries of MDS and LitData do by default."""
IMAGE_ROWS, TOKEN_ROWS = 100, 2500
"""Rows of a row group of Parquet: about 10 MB, as is advised for either kind."""
FOLDER_FILES = 1000


def main():
    kind, form, folder, count, shard_bytes = sys.argv[1:]
    folder = Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = globals()[f"{kind}_{form}"]
    made(folder, int(count), int(shard_bytes))


def images(count):
    """Number, image and label of every sample."""
    for index in range(count):
        yield index, content(index, image_bytes(index)), label(index)


def image_bytes(index):
    return random.Random(index).randrange(IMAGE_BYTES_MIN, IMAGE_BYTES_MAX)


def images_bytes(count):
    """What all images together have."""
    return sum(map(image_bytes, range(count)))


def content(index, size):
    # Python's own generator takes ten times as long. The suites import this file where numpy need not be.
    import numpy as np

    return index.to_bytes(8, "little") + np.random.default_rng(index).bytes(size - 8)


def label(index):
    return json.dumps({"label": index % CLASSES, "name": f"class {index % CLASSES}"}).encode()


def tokens(count):
    for index in range(count):
        yield index, content(index, 2 * TOKENS)


def images_tar(folder, count, shard_bytes):
    from webdataset import ShardWriter

    with ShardWriter(f"{folder}/shard-%06d.tar", maxsize=shard_bytes, maxcount=1 << 40, verbose=0) as writer:
        for index, image, text in images(count):
            writer.write({"__key__": f"{index:08}", "jpg": image, "json": text})


def tokens_tar(folder, count, shard_bytes):
    from webdataset import ShardWriter

    with ShardWriter(f"{folder}/shard-%06d.tar", maxsize=shard_bytes, maxcount=1 << 40, verbose=0) as writer:
        for index, row in tokens(count):
            writer.write({"__key__": f"{index:08}", "bin": row})


def images_mds(folder, count, _shard_bytes):
    from streaming import MDSWriter

    columns = {"jpg": "bytes", "json": "bytes"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=MDS_SHARD_BYTES) as writer:
        for _, image, text in images(count):
            writer.write({"jpg": image, "json": text})


def tokens_mds(folder, count, _shard_bytes):
    import numpy as np
    from streaming import MDSWriter

    columns = {"tokens": f"ndarray:uint16:{TOKENS}"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=MDS_SHARD_BYTES) as writer:
        for _, row in tokens(count):
            writer.write({"tokens": np.frombuffer(row, np.uint16)})


def images_litdata(folder, count, _shard_bytes):
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes=MDS_SHARD_BYTES)
    for index, image, text in images(count):
        writer[index] = {"jpg": image, "json": text}
    writer.done()
    writer.merge()


def tokens_litdata(folder, count, _shard_bytes):
    import torch
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    # A chunk has a number of tokens here.
    writer = BinaryWriter(str(folder), chunk_size=MDS_SHARD_BYTES // 2, item_loader=TokensLoader(TOKENS))
    for index, row in tokens(count):
        writer[index] = torch.frombuffer(bytearray(row), dtype=torch.uint16)
    writer.done()
    writer.merge()


def images_parquet(folder, count, shard_bytes):
    import pyarrow as pa

    def table(rows):
        numbers, pictures, texts = zip(*rows, strict=True)
        del numbers
        return pa.table({"jpg": pa.array(pictures, pa.binary()), "json": pa.array(texts, pa.binary())})

    parquet(folder, images(count), table, IMAGE_ROWS, shard_bytes)


def tokens_parquet(folder, count, shard_bytes):
    import pyarrow as pa

    # Parquet has no 16-bit integers: as such, every token would take four bytes.
    def table(rows):
        return pa.table({"tokens": pa.array([row for _, row in rows], pa.binary(2 * TOKENS))})

    parquet(folder, tokens(count), table, TOKEN_ROWS, shard_bytes)


def parquet(folder, samples, table, group_rows, shard_bytes):
    """Row groups of `group_rows` into files of about `shard_bytes`; bytes that do not compress are stored as
    they are.
    """
    import pyarrow.parquet as pq

    def written(rows):
        nonlocal writer, files, size
        made = table(rows)
        if writer is None or size + made.nbytes > shard_bytes:
            if writer:
                writer.close()
            path = folder / f"part-{files:05}.parquet"
            writer = pq.ParquetWriter(path, made.schema, compression="none", use_dictionary=False)
            files, size = files + 1, 0
        writer.write_table(made)
        size += made.nbytes

    writer, files, size, rows = None, 0, 0, []
    for sample in samples:
        rows.append(sample)
        if len(rows) == group_rows:
            written(rows)
            rows = []
    if rows:
        written(rows)
    writer.close()


def images_tfrecord(folder, count, shard_bytes):
    tfrecord(folder, ({"jpg": image, "json": text} for _, image, text in images(count)), shard_bytes)


def tokens_tfrecord(folder, count, shard_bytes):
    tfrecord(folder, ({"tokens": row} for _, row in tokens(count)), shard_bytes)


def tfrecord(folder, samples, shard_bytes):
    import tensorflow as tf

    def feature(value):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    writer, files, size = None, 0, 0
    for sample in samples:
        features = {name: feature(value) for name, value in sample.items()}
        record = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
        if writer is None or size + len(record) > shard_bytes:
            if writer:
                writer.close()
            writer = tf.io.TFRecordWriter(str(folder / f"part-{files:05}.tfrecord"))
            files, size = files + 1, 0
        writer.write(record)
        size += len(record)
    writer.close()


def images_arrayrecord(folder, count, shard_bytes):
    arrayrecord(folder, ((image, text) for _, image, text in images(count)), shard_bytes)


def tokens_arrayrecord(folder, count, shard_bytes):
    arrayrecord(folder, ((row,) for _, row in tokens(count)), shard_bytes)


def arrayrecord(folder, samples, shard_bytes):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer, files, size = None, 0, 0
    for parts in samples:
        record = b"".join(parts)
        if writer is None or size + len(record) > shard_bytes:
            if writer:
                writer.close()
            # One record is one group, as Grain advises; what does not compress is not to be tried.
            options = "group_size:1,uncompressed"
            writer = ArrayRecordWriter(str(folder / f"part-{files:05}.array_record"), options)
            files, size = files + 1, 0
        writer.write(record)
        size += len(record)
    writer.close()


def images_files(folder, count, _shard_bytes):
    for index, image, _ in images(count):
        place = folder / f"{index // FOLDER_FILES:03}"
        if index % FOLDER_FILES == 0:
            place.mkdir()
        (place / f"{index:08}.jpg").write_bytes(image)


def tokens_raw(folder, count, _shard_bytes):
    with open(folder / "tokens.bin", "wb") as file:
        for _, row in tokens(count):
            file.write(row)


def tokens_megatron(folder, count, shard_bytes):
    """The same with an index, every sample a document: as Megatron-LM's `IndexedDatasetBuilder` writes it."""
    import numpy as np

    tokens_raw(folder, count, shard_bytes)
    uint16, row_bytes = 8, 2 * TOKENS
    with open(folder / "tokens.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, uint16, count, count + 1))
        file.write(np.full(count, TOKENS, np.int32).tobytes())
        file.write((np.arange(count, dtype=np.int64) * row_bytes).tobytes())
        file.write(np.arange(count + 1, dtype=np.int64).tobytes())


if __name__ == "__main__":
    main()
