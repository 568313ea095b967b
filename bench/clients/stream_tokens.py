"""Loaders of tokens: shuffled batches of 256 x 2,048 tokens of 16 bits, as one array, from each format.

Fixed sizes make one array of a batch, so everybody has to put one together. Shuffles are those of each
library; where it leaves the pool to the user, the pool has 1,000 samples, or some row groups of Parquet.

`job.folder` is the data set, `job.workers` the processes or threads beside the main one.
"""

import random

from .stream_images import (
    BATCH,
    POOL,
    SEED,
    Reader,
    listed,
    pooled,
    read_ahead,
    row_groups,
    spdl_pipeline,
    torch_loader,
)

TOKENS = 2048


def rows_of(samples):
    """One array of the bytes of samples."""
    import numpy as np

    return np.frombuffer(b"".join(samples), np.uint16).reshape(-1, TOKENS)


def tensor_of(samples):
    """The same for worker processes, which hand over tensors by shared memory."""
    import torch

    return torch.from_numpy(rows_of(samples))


def stacked(rows):
    import numpy as np
    import torch

    return torch.from_numpy(np.stack(rows))


def arrays(loader):
    """Tensors as numpy sees them."""
    for batch in loader:
        yield batch.numpy()


def mapped(job):
    import numpy as np

    (path,) = listed(job, ".bin")
    return np.memmap(path, np.uint16, mode="r").reshape(-1, TOKENS)


class Rows:
    """A map-style data set of torch's over a memory map."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def torch_memmap(job):
    import torch

    def epoch():
        torch.manual_seed(SEED)
        yield from arrays(
            torch_loader(job, Rows(mapped(job)), batch_size=BATCH, shuffle=True, collate_fn=stacked)
        )

    return epoch


def numpy_memmap(job):
    """No loader at all, but what many training loops do: a permutation, and one index per batch."""
    import numpy as np

    def epoch():
        rows = mapped(job)
        order = np.random.default_rng(SEED).permutation(len(rows))
        for start in range(0, len(rows), BATCH):
            yield rows[order[start : start + BATCH]]

    return epoch


def webdataset(job):
    import webdataset as wds

    def epoch():
        urls = listed(job, ".tar")
        dataset = wds.WebDataset(urls, shardshuffle=len(urls), seed=SEED, empty_check=False)
        dataset = dataset.shuffle(POOL).to_tuple("bin").map(lambda sample: sample[0])
        if job["workers"]:
            batches = dataset.batched(BATCH, collation_fn=tensor_of)
            yield from arrays(torch_loader(job, batches, batch_size=None))
        else:
            yield from dataset.batched(BATCH, collation_fn=rows_of)

    return epoch


def mosaic(job):
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    def epoch():
        clean_stale_shared_memory()
        dataset = StreamingDataset(local=job["folder"], shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
        loader = torch_loader(
            job, dataset, batch_size=BATCH, collate_fn=lambda rows: stacked([row["tokens"] for row in rows])
        )
        yield from arrays(loader)

    return epoch


def litdata(job):
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    def epoch():
        dataset = StreamingDataset(
            job["folder"], item_loader=TokensLoader(TOKENS), shuffle=True, seed=SEED, drop_last=False
        )
        more = {"prefetch_factor": 4} if job["workers"] else {}
        yield from arrays(StreamingDataLoader(dataset, batch_size=BATCH, num_workers=job["workers"], **more))

    return epoch


def spdl_tar(job):
    import spdl.io
    import spdl.pipeline

    def rows(path):
        """Lists of samples of a shard, so that few items pass through the queues."""
        ready = []
        with open(path, "rb", buffering=1 << 20) as file:
            for _, content in spdl.io.iter_tarfile(file):
                ready.append(content)
                if len(ready) == BATCH:
                    yield ready
                    ready = []
        yield ready

    def epoch():
        urls = listed(job, ".tar")
        random.Random(SEED).shuffle(urls)
        pipeline = spdl_pipeline(job, urls, rows)
        with pipeline.auto_stop():
            for batch in pooled(sample for some in pipeline for sample in some):
                yield rows_of(batch)

    return epoch


def grain(job):
    import grain
    from grain.sources import ArrayRecordDataSource

    def epoch():
        source = ArrayRecordDataSource(listed(job, ".array_record"))
        rows = grain.MapDataset.source(source).shuffle(seed=SEED)
        options = grain.ReadOptions(num_threads=job["workers"], prefetch_buffer_size=2 * BATCH)
        yield from rows.to_iter_dataset(options).batch(BATCH, batch_fn=rows_of)

    return epoch


def pyarrow(job):
    import numpy as np
    import pyarrow.parquet  # noqa: F401 - here, so that it is not measured

    reader = Reader(["tokens"])

    def read(pool):
        """A row group as one array, not copied."""
        chunks = [chunk for table in reader.read(pool) for chunk in table.column("tokens").chunks]
        parts = [np.frombuffer(chunk.buffers()[1], np.uint16).reshape(-1, TOKENS) for chunk in chunks]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def epoch():
        groups = row_groups(job)
        random.Random(SEED).shuffle(groups)
        rng = np.random.default_rng(SEED)
        left = np.empty((0, TOKENS), np.uint16)
        # A row group has more samples than the pools of the others: it is shuffled in itself.
        for rows in read_ahead(job, [[group] for group in groups], read):
            order = rng.permutation(len(rows))
            first = min(-len(left) % BATCH, len(rows))
            if len(left):
                left = np.concatenate([left, rows[order[:first]]])
                if len(left) < BATCH:
                    continue
                yield left
            whole = first + (len(rows) - first) // BATCH * BATCH
            for start in range(first, whole, BATCH):
                yield rows[order[start : start + BATCH]]
            left = rows[order[whole:]]
        if len(left):
            yield left

    return epoch


def tfdata(job):
    import tensorflow as tf

    fields = {"tokens": tf.io.FixedLenFeature([], tf.string)}

    def decoded(batch):
        return tf.io.decode_raw(
            tf.io.parse_example(batch, fields)["tokens"], tf.uint16, fixed_length=2 * TOKENS
        )

    def epoch():
        files = tf.data.Dataset.from_tensor_slices(listed(job, ".tfrecord"))
        files = files.shuffle(1 << 16, seed=SEED)
        parallel = tf.data.AUTOTUNE if job["workers"] else None
        records = files.interleave(
            tf.data.TFRecordDataset,
            cycle_length=max(1, job["workers"]),
            num_parallel_calls=parallel,
            deterministic=False,
        )
        batches = records.shuffle(POOL, seed=SEED).batch(BATCH).map(decoded, num_parallel_calls=parallel)
        yield from batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()

    return epoch


OPS = {
    "torch_memmap": torch_memmap,
    "numpy_memmap": numpy_memmap,
    "webdataset": webdataset,
    "mosaic": mosaic,
    "litdata": litdata,
    "spdl_tar": spdl_tar,
    "grain": grain,
    "pyarrow": pyarrow,
    "tfdata": tfdata,
}
