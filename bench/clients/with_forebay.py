"""Forebay from Python: whole objects by `Store.read`, a few at a time; `Store.write` from memory."""

import forebay

from .parallel import mapped, summed

OBJECTS_AHEAD = 2


def store(job):
    forebay.configure(concurrency=job.in_flight, part_size=job.range_bytes)
    return forebay.Store(f"s3://{job.bucket}/")


def get(job):
    place = store(job)
    # The store holds the bound on requests, so objects may overlap: while one ends, the next is under way.
    job.in_flight = OBJECTS_AHEAD * max(1, job.in_flight // -(-job.object_bytes // job.range_bytes))
    return summed(job, lambda key: place.read(key).nbytes, [(key,) for key in job.keys])


def put(job):
    place = store(job)
    source = mapped(job.source)
    return lambda: place.write(job.keys[0], source).size


OPS = {"get": get, "put": put}
