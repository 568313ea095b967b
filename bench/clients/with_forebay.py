"""Forebay from Python: whole objects by `Store.read`, as many threads as keep 16 ranges in flight; `Store.write` from memory."""

import forebay

from .parallel import mapped, summed


def store(job):
    forebay.configure(concurrency=job.in_flight, part_size=job.range_bytes)
    return forebay.Store(f"s3://{job.bucket}/")


def get(job):
    place = store(job)
    objects_at_once = max(1, job.in_flight // -(-job.object_bytes // job.range_bytes))
    job.in_flight = objects_at_once
    return summed(job, lambda key: place.read(key).nbytes, [(key,) for key in job.keys])


def put(job):
    place = store(job)
    source = mapped(job.source)
    return lambda: place.write(job.keys[0], source).size


OPS = {"get": get, "put": put}
