"""Forebay from Python: batches of 256 by `forebay.stream`, every sample compared with its checksum.

`job.url` is the data set; `job.cache` a directory for what is read from a store.
"""

import forebay
import numpy as np

BATCH = 256
SEED = 7
TOKENS = 2048
CACHE_SIZE = "64GiB"


def batches(job):
    cache = f"{job['cache']}:{CACHE_SIZE}" if job.get("cache") else None
    return forebay.stream(job["url"], batch_size=BATCH, shuffle=True, seed=SEED, drop_last=False, cache=cache)


def images(job):
    def epoch():
        with batches(job) as stream:
            for batch in stream:
                yield batch["jpg"].bytes, batch["jpg"].offsets

    return filled(job, epoch)


def tokens(job):
    def epoch():
        with batches(job) as stream:
            name = stream.schema[0]["name"]
            for batch in stream:
                yield rows(batch[name])

    return filled(job, epoch)


def rows(field):
    """As tokens, in whatever form a format gives fixed sizes."""
    data = field if isinstance(field, np.ndarray) else field.bytes
    return data.view(np.uint16).reshape(-1, TOKENS)


def filled(job, epoch):
    """With a cache, a first epoch fills it before anything is measured."""
    if job.get("cache"):
        for _ in epoch():
            pass
    return epoch


OPS = {"images": images, "tokens": tokens}
