"""Puts the test objects where the clients will look for them: `python -m clients.seed FILE...`, each
under its own name.

Waits until the server takes writes at all; `--bucket-only` does no more than that.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from .worker import Job

READY_SECONDS_MAX = 60
UPLOADS_IN_FLIGHT = 16


def main():
    job = Job()
    config = Config(
        max_pool_connections=UPLOADS_IN_FLIGHT, s3={"addressing_style": "path"}, retries={"max_attempts": 1}
    )
    s3 = boto3.client("s3", endpoint_url=job.endpoint, config=config)
    wait_ready(s3, job.bucket)
    paths = [Path(name) for name in sys.argv[1:] if not name.startswith("--")]
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    # Objects of a folder keep the folder's name, so that small ones stay apart from large ones.
    key = {file: f"{file.parent.name}/{file.name}" if file.parent in paths else file.name for file in files}
    with ThreadPoolExecutor(UPLOADS_IN_FLIGHT) as pool:
        list(
            pool.map(
                lambda file: s3.put_object(Bucket=job.bucket, Key=key[file], Body=file.read_bytes()), files
            )
        )


def wait_ready(s3, bucket):
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        try:
            if bucket not in [one["Name"] for one in s3.list_buckets()["Buckets"]]:
                s3.create_bucket(Bucket=bucket)
            s3.put_object(Bucket=bucket, Key="ready", Body=b"ready")
            s3.delete_object(Bucket=bucket, Key="ready")
            return
        except (BotoCoreError, ClientError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


if __name__ == "__main__":
    main()
