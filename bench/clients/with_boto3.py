"""boto3: get_object from threads; upload_fileobj (s3transfer, without the CRT)."""

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from .parallel import mapped, summed


def client(job):
    config = Config(max_pool_connections=job.in_flight, s3={"addressing_style": "path"})
    return boto3.client("s3", endpoint_url=job.endpoint, config=config)


def get(job):
    s3 = client(job)

    def one(key, start, length):
        asked = f"bytes={start}-{start + length - 1}"
        return len(s3.get_object(Bucket=job.bucket, Key=key, Range=asked)["Body"].read())

    return summed(job, one, job.ranges())


def put(job):
    s3 = client(job)
    source = mapped(job.source)
    config = TransferConfig(
        multipart_threshold=job.range_bytes,
        multipart_chunksize=job.range_bytes,
        max_concurrency=job.in_flight,
        preferred_transfer_client="classic",
    )

    def once():
        s3.upload_fileobj(Memory(source), job.bucket, job.keys[0], Config=config)
        return len(source)

    return once


class Memory:
    """A file over a memoryview; like io.BytesIO, but without a copy of its own of the whole."""

    def __init__(self, view):
        self.view = view
        self.at = 0

    def read(self, count=-1):
        end = len(self.view) if count is None or count < 0 else min(self.at + count, len(self.view))
        piece = bytes(self.view[self.at : end])
        self.at = end
        return piece

    def seek(self, offset, whence=0):
        self.at = {0: 0, 1: self.at, 2: len(self.view)}[whence] + offset
        return self.at

    def tell(self):
        return self.at


OPS = {"get": get, "put": put}
