"""s3fs (fsspec): its asyncio calls, 16 at a time, each result dropped at once."""

import asyncio

import s3fs

from .parallel import mapped


class Loop:
    """An event loop and a file system that live on it."""

    def __init__(self, job):
        self.loop = asyncio.new_event_loop()
        self.fs = s3fs.S3FileSystem(
            asynchronous=True,
            endpoint_url=job.endpoint,
            config_kwargs={"max_pool_connections": job.in_flight, "s3": {"addressing_style": "path"}},
        )
        self.loop.run_until_complete(self.fs.set_session())


def get(job):
    on = Loop(job)

    async def everything():
        tokens = asyncio.Semaphore(job.in_flight)

        async def one(key, start, length):
            async with tokens:
                return len(await on.fs._cat_file(f"{job.bucket}/{key}", start=start, end=start + length))

        return sum(await asyncio.gather(*(one(*piece) for piece in job.ranges())))

    return lambda: on.loop.run_until_complete(everything())


def put(job):
    on = Loop(job)
    source = mapped(job.source)

    async def everything():
        await on.fs._pipe_file(
            f"{job.bucket}/{job.keys[0]}",
            Sliced(source),
            chunksize=job.range_bytes,
            max_concurrency=job.in_flight,
        )
        return len(source)

    return lambda: on.loop.run_until_complete(everything())


class Sliced:
    """Memory whose slices are bytes, which is all botocore takes."""

    def __init__(self, view):
        self.view = view

    def __len__(self):
        return len(self.view)

    def __getitem__(self, piece):
        return bytes(self.view[piece])


OPS = {"get": get, "put": put}
