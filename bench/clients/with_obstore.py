"""obstore: the object_store crate from Python."""

import obstore
from obstore.store import S3Store

from .parallel import mapped, summed


def client(job):
    return S3Store(
        job.bucket,
        endpoint=job.endpoint,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def get(job):
    store = client(job)

    def one(key, start, length):
        return len(obstore.get_range(store, key, start=start, length=length))

    return summed(job, one, job.ranges())


def put(job):
    store = client(job)
    source = mapped(job.source)

    def once():
        obstore.put(
            store,
            job.keys[0],
            source,
            use_multipart=True,
            chunk_size=job.range_bytes,
            max_concurrency=job.in_flight,
        )
        return len(source)

    return once


OPS = {"get": get, "put": put}
