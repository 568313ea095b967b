"""The client under the S3 connector for PyTorch: the Common Runtime behind Mountpoint's Rust client."""

from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

from .parallel import mapped, summed


def client(job):
    return MountpointS3Client(
        "us-east-1", endpoint=job.endpoint, part_size=job.range_bytes, force_path_style=True
    )


def get(job):
    s3 = client(job)

    def one(key):
        return sum(len(part) for part in s3.get_object(job.bucket, key))

    return summed(job, one, [(key,) for key in job.keys])


def put(job):
    s3 = client(job)
    source = mapped(job.source)

    def once():
        stream = s3.put_object(job.bucket, job.keys[0])
        for start in range(0, len(source), job.range_bytes):
            stream.write(bytes(source[start : start + job.range_bytes]))
        stream.close()
        return len(source)

    return once


OPS = {"get": get, "put": put}
