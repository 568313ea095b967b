"""TFRecord: TensorFlow's writer against our streams, our records against tf.data."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from kit import Case, contents

COUNT = 60
BIG = 2**63 - 1


def ints(index):
    return [-1, BIG, index][: index % 4]


def floats(index):
    return [index / 3, -0.0][: index % 3]


def example(index, blob):
    """An Example with features of every kind and any number of values."""
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[blob])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[index])),
        "ints": tf.train.Feature(int64_list=tf.train.Int64List(value=ints(index))),
        "floats": tf.train.Feature(float_list=tf.train.FloatList(value=floats(index))),
        "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=[f"n\u00e9 {index}".encode()])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(
        deterministic=True
    )


PARSED = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "ints": tf.io.VarLenFeature(tf.int64),
    "floats": tf.io.VarLenFeature(tf.float32),
    "name": tf.io.FixedLenFeature([], tf.string),
}


def write(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for record in records:
            writer.write(record)


def records():
    return [example(index, blob) for index, blob in enumerate(contents(7, COUNT))]


def expected():
    return [
        {
            "image": blob,
            "label": np.array([index]),
            "ints": np.array(ints(index), np.int64),
            "floats": np.array(floats(index), np.float32),
            "name": f"n\u00e9 {index}".encode(),
        }
        for index, blob in enumerate(contents(7, COUNT))
    ]


def parse(dataset):
    """Read Examples as training does."""
    made = []
    for record in dataset:
        row = tf.io.parse_single_example(record, PARSED)
        dense = {name: tf.sparse.to_dense(row[name]).numpy() for name in ["ints", "floats"]}
        made.append({name: value.numpy() for name, value in row.items() if name not in dense} | dense)
    return made


class TheirRecords(Case):
    """What TFRecordWriter writes."""

    def test_examples_of_every_compression_tfrecord(self):
        for compression in ["", "GZIP", "ZLIB"]:
            with self.subTest(compression=compression):
                folder = self.place(f"c{compression}")
                for part in range(2):
                    write(
                        folder / f"data-{part:05}-of-00002.tfrecord", records()[part * 30 :][:30], compression
                    )
                self.assert_streams(folder, expected())

    def test_raw_records_tfrecord(self):
        blobs = contents(8, COUNT)
        folder = self.place("raw")
        write(folder / "a.tfrecord", blobs)
        self.assert_streams(folder, [{"record": blob} for blob in blobs], format="tfrecord", records="raw")

    def test_tensors_in_features_tfrecord(self):
        arrays = [np.arange(index, dtype=np.float64) for index in range(COUNT)]
        texts = [tf.io.serialize_tensor(array).numpy() for array in arrays]
        folder = self.place("tensors")
        made = []
        for text in texts:
            feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))
            features = tf.train.Features(feature={"tensor": feature})
            made.append(tf.train.Example(features=features).SerializeToString())
        write(folder / "a.tfrecords", made)
        self.assert_streams(folder, [{"tensor": text} for text in texts])

    def test_sequences_tfrecord(self):
        folder = self.place("sequences")
        made, wanted = [], []
        for index in range(COUNT):
            steps = [
                tf.train.Feature(int64_list=tf.train.Int64List(value=[step])) for step in range(index % 5)
            ]
            steps = tf.train.FeatureList(feature=steps)
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[index]))
            message = tf.train.SequenceExample(
                context=tf.train.Features(feature={"label": label}),
                feature_lists=tf.train.FeatureLists(feature_list={"steps": steps}),
            )
            made.append(message.SerializeToString())
            wanted.append({"label": np.array([index]), "steps": steps.SerializeToString()})
        write(folder / "a.tfrecord", made)
        self.assert_streams(folder, wanted)


class OurRecords(Case):
    """What `forebay pack` writes."""

    def test_examples_are_read_tfrecord(self):
        theirs = self.place("theirs")
        write(theirs / "a.tfrecord", records())
        for compression, name in [("", None), ("GZIP", "gz"), ("ZLIB", "zlib")]:
            with self.subTest(compression=compression):
                options = ["--compression", name] if name else []
                ours = self.pack(theirs, "tfrecord", "--samples-per-shard", 25, *options)
                files = sorted(str(path) for path in ours.glob("*.tfrecord*") if path.suffix != ".idx")
                self.assertEqual(len(files), 3)
                found = parse(tf.data.TFRecordDataset(files, compression_type=compression))
                self.assert_same(found, parse(tf.data.TFRecordDataset(str(theirs / "a.tfrecord"))))

    def test_raw_records_are_the_same_file_tfrecord(self):
        theirs = self.place("theirs")
        write(theirs / "shard-000000.tfrecord", contents(8, COUNT))
        ours = self.pack(theirs, "tfrecord", format="tfrecord", records="raw")
        name = "shard-000000.tfrecord"
        self.assertEqual((ours / name).read_bytes(), (theirs / name).read_bytes())

    def test_a_tree_is_read_tfrecord(self):
        tree = self.place("tree")
        blobs = contents(9, COUNT)
        for index, blob in enumerate(blobs):
            (tree / f"{index:03}.bin").write_bytes(blob)
            (tree / f"{index:03}.txt").write_text(f"\u00e9{index}")
        ours = self.pack(tree, "tfrecord", "--samples-per-shard", 25)
        files = sorted(str(path) for path in ours.glob("*.tfrecord"))
        features = {name: tf.io.FixedLenFeature([], tf.string) for name in ["__key__", "bin", "txt"]}
        for index, record in enumerate(tf.data.TFRecordDataset(files)):
            row = {
                name: value.numpy() for name, value in tf.io.parse_single_example(record, features).items()
            }
            self.assertEqual(
                row,
                {"__key__": f"{index:03}".encode(), "bin": blobs[index], "txt": f"\u00e9{index}".encode()},
            )
        self.assertEqual(index, COUNT - 1)
