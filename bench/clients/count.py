"""Counts what lies below a prefix of the bucket: `python -m clients.count PREFIX COUNT` fails when it is
another number.
"""

import sys

import boto3

from .worker import Job


def main():
    prefix, expected = sys.argv[1], int(sys.argv[2])
    job = Job()
    pages = boto3.client("s3", endpoint_url=job.endpoint).get_paginator("list_objects_v2")
    found = sum(page["KeyCount"] for page in pages.paginate(Bucket=job.bucket, Prefix=prefix))
    if found != expected:
        sys.exit(f"{found} objects below {prefix} instead of {expected}")


if __name__ == "__main__":
    main()
