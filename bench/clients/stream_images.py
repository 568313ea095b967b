"""Loaders of images: shuffled batches of 256 samples of about 100 KB, from the format each library has.

Batches are lists of what a library hands out for a sample: nobody is made to copy what a training loop
would decode one by one anyway. Only worker processes pack a batch into one array, which travels through
shared memory instead of a pipe. Labels are read and dropped. Shuffles are those of each library; where it
leaves the pool to the user, the pool has 1,000 samples.

`job.folder` is the data set, `job.workers` the processes or threads beside the main one.
"""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BATCH = 256
POOL = 1000
SEED = 7


def listed(job, suffix):
    """The files of the data set."""
    return sorted(str(path) for path in Path(job["folder"]).rglob(f"*{suffix}"))


def packed(samples):
    """One array, and where samples begin in it."""
    import numpy as np
    import torch

    ends = np.cumsum([0, *map(len, samples)])
    return torch.from_numpy(np.frombuffer(b"".join(samples), np.uint8)), ends


def collate(job):
    """What becomes of a list of samples."""
    return packed if job["workers"] else list


def torch_loader(job, dataset, **more):
    from torch.utils.data import DataLoader

    if job["workers"]:
        more["prefetch_factor"] = 4
    return DataLoader(dataset, num_workers=job["workers"], **more)


def handed(job, loader):
    """Batches as they come, tensors of worker processes as numpy sees them."""
    for batch in loader:
        yield (batch[0].numpy(), batch[1]) if job["workers"] else batch


class Files:
    """A map-style data set of torch's: sample i is file i."""

    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return bytes_of(self.paths[index])


def bytes_of(path):
    with open(path, "rb", buffering=0) as file:
        return file.read()


def torch_files(job):
    import torch

    def epoch():
        torch.manual_seed(SEED)
        dataset = Files(listed(job, ".jpg"))
        loader = torch_loader(job, dataset, batch_size=BATCH, shuffle=True, collate_fn=collate(job))
        yield from handed(job, loader)

    return epoch


def webdataset(job):
    import webdataset as wds

    def epoch():
        urls = listed(job, ".tar")
        dataset = wds.WebDataset(urls, shardshuffle=len(urls), seed=SEED, empty_check=False)
        dataset = dataset.shuffle(POOL).to_tuple("jpg", "json")
        images = dataset.map(lambda sample: sample[0]).batched(BATCH, collation_fn=collate(job))
        loader = torch_loader(job, images, batch_size=None) if job["workers"] else images
        yield from handed(job, loader)

    return epoch


def mosaic(job):
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    def epoch():
        clean_stale_shared_memory()
        dataset = StreamingDataset(local=job["folder"], shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
        together = collate(job)
        loader = torch_loader(
            job, dataset, batch_size=BATCH, collate_fn=lambda rows: together([row["jpg"] for row in rows])
        )
        yield from handed(job, loader)

    return epoch


def litdata(job):
    from litdata import StreamingDataLoader, StreamingDataset

    def epoch():
        dataset = StreamingDataset(job["folder"], shuffle=True, seed=SEED, drop_last=False)
        together = collate(job)
        more = {"prefetch_factor": 4} if job["workers"] else {}
        loader = StreamingDataLoader(
            dataset,
            batch_size=BATCH,
            num_workers=job["workers"],
            collate_fn=lambda rows: together([row["jpg"] for row in rows]),
            **more,
        )
        yield from handed(job, loader)

    return epoch


def spdl_pipeline(job, source, stage):
    from spdl.pipeline import PipelineBuilder

    threads = max(1, job["workers"])
    steps = PipelineBuilder().add_source(source).pipe(stage, concurrency=threads)
    return steps.add_sink(4 * BATCH).build(num_threads=threads)


def spdl_files(job):
    import spdl.pipeline  # noqa: F401 - here, so that it is not measured

    def epoch():
        paths = listed(job, ".jpg")
        random.Random(SEED).shuffle(paths)
        # Whole batches go from stage to stage: single samples would cost a turn of its event loop each.
        batches = [paths[start : start + BATCH] for start in range(0, len(paths), BATCH)]

        def read(batch):
            return [bytes_of(path) for path in batch]

        pipeline = spdl_pipeline(job, batches, read)
        with pipeline.auto_stop():
            yield from pipeline

    return epoch


def spdl_tar(job):
    import spdl.io
    import spdl.pipeline

    def images(path):
        """Lists of samples of a shard, so that few items pass through the queues."""
        ready = []
        with open(path, "rb") as file:
            for name, content in spdl.io.iter_tarfile(file):
                if name.endswith(".jpg"):
                    ready.append(content)
                if len(ready) == BATCH:
                    yield ready
                    ready = []
        yield ready

    def epoch():
        urls = listed(job, ".tar")
        random.Random(SEED).shuffle(urls)
        pipeline = spdl_pipeline(job, urls, images)
        with pipeline.auto_stop():
            yield from pooled(sample for some in pipeline for sample in some)

    return epoch


def pooled(samples):
    """Batches of a pool of samples, where a library has no pool of its own."""
    rng, pool, batch = random.Random(SEED), [], []
    for sample in samples:
        if len(pool) < POOL:
            pool.append(sample)
            continue
        place = rng.randrange(POOL)
        batch.append(pool[place])
        pool[place] = sample
        if len(batch) == BATCH:
            yield batch
            batch = []
    rng.shuffle(pool)
    batch += pool
    for start in range(0, len(batch), BATCH):
        yield batch[start : start + BATCH]


def grain(job):
    import grain
    from grain.sources import ArrayRecordDataSource

    def epoch():
        source = ArrayRecordDataSource(listed(job, ".array_record"))
        images = grain.MapDataset.source(source).shuffle(seed=SEED)
        options = grain.ReadOptions(num_threads=job["workers"], prefetch_buffer_size=2 * BATCH)
        yield from images.to_iter_dataset(options).batch(BATCH, batch_fn=list)

    return epoch


def pyarrow(job):
    import pyarrow.parquet as pq

    def epoch():
        groups = row_groups(job)
        rng = random.Random(SEED)
        rng.shuffle(groups)
        # Row groups of a pool are read together; the next pool is on its way meanwhile.
        rows = pq.read_metadata(groups[0][0]).row_group(0).num_rows
        together = max(1, POOL // rows)
        pools = [groups[start : start + together] for start in range(0, len(groups), together)]
        left = []
        for tables in read_ahead(job, pools, Reader(["jpg", "json"]).read):
            images = [image.as_buffer() for table in tables for image in table.column("jpg")]
            rng.shuffle(images)
            left += images
            whole = len(left) // BATCH * BATCH
            for start in range(0, whole, BATCH):
                yield left[start : start + BATCH]
            left = left[whole:]
        if left:
            yield left

    return epoch


def row_groups(job):
    """Every row group of a data set of Parquet, as a path and a number."""
    import pyarrow.parquet as pq

    counts = {path: pq.read_metadata(path).num_row_groups for path in listed(job, ".parquet")}
    return [(path, group) for path, count in counts.items() for group in range(count)]


class Reader:
    """Reads row groups. Open files are kept by each thread for itself: pyarrow's are not for several."""

    def __init__(self, columns):
        self.columns = columns
        self.own = threading.local()

    def read(self, pool):
        return [self.opened(path).read_row_group(group, columns=self.columns) for path, group in pool]

    def opened(self, path):
        import pyarrow.parquet as pq

        if not hasattr(self.own, "files"):
            self.own.files = {}
        if path not in self.own.files:
            self.own.files[path] = pq.ParquetFile(path, pre_buffer=True)
        return self.own.files[path]


def read_ahead(job, pools, read):
    """The pools one after the other, as many read ahead as there are threads."""
    if not job["workers"]:
        yield from map(read, pools)
        return
    with ThreadPoolExecutor(job["workers"]) as threads:
        waiting = []
        for pool in pools:
            waiting.append(threads.submit(read, pool))
            if len(waiting) > job["workers"]:
                yield waiting.pop(0).result()
        for one in waiting:
            yield one.result()


def tfdata(job):
    import tensorflow as tf

    fields = {name: tf.io.FixedLenFeature([], tf.string) for name in ("jpg", "json")}

    def epoch():
        files = tf.data.Dataset.from_tensor_slices(listed(job, ".tfrecord"))
        files = files.shuffle(1 << 16, seed=SEED)
        parallel = tf.data.AUTOTUNE if job["workers"] else None
        cycle = max(1, job["workers"])
        records = files.interleave(
            tf.data.TFRecordDataset, cycle_length=cycle, num_parallel_calls=parallel, deterministic=False
        )
        batches = records.shuffle(POOL, seed=SEED).batch(BATCH)
        batches = batches.map(
            lambda batch: tf.io.parse_example(batch, fields)["jpg"], num_parallel_calls=parallel
        )
        for batch in batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
            yield batch.tolist()

    return epoch


OPS = {
    "torch_files": torch_files,
    "webdataset": webdataset,
    "mosaic": mosaic,
    "litdata": litdata,
    "spdl_files": spdl_files,
    "spdl_tar": spdl_tar,
    "grain": grain,
    "pyarrow": pyarrow,
    "tfdata": tfdata,
}
