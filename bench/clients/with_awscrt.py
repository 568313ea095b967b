"""awscrt: the Common Runtime's own S3 client, one meta request per object, parts inside it."""

import os
import threading
from urllib.parse import urlsplit

from awscrt.auth import AwsCredentialsProvider
from awscrt.http import HttpHeaders, HttpRequest
from awscrt.s3 import S3Client, S3RequestTlsMode, S3RequestType


class Crt:
    def __init__(self, job):
        self.job = job
        self.host = urlsplit(job.endpoint).netloc
        self.s3 = S3Client(
            region="us-east-1",
            tls_mode=S3RequestTlsMode.DISABLED,
            credential_provider=AwsCredentialsProvider.new_static(
                os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
            ),
            part_size=job.range_bytes,
            multipart_upload_threshold=job.range_bytes,
            max_active_connections_override=job.in_flight,
        )

    def request(self, method, key, length=None):
        headers = HttpHeaders([("Host", self.host)])
        if length is not None:
            headers.add("Content-Length", str(length))
        return HttpRequest(method, f"/{self.job.bucket}/{key}", headers)


def get(job):
    crt = Crt(job)

    def once():
        moved, lock = [0], threading.Lock()

        def on_body(chunk, offset, **_):
            with lock:
                moved[0] += len(chunk)

        requests = [
            crt.s3.make_request(
                type=S3RequestType.GET_OBJECT, request=crt.request("GET", key), on_body=on_body
            )
            for key in job.keys
        ]
        for request in requests:
            request.finished_future.result(300)
        return moved[0]

    return once


def put(job):
    crt = Crt(job)
    length = os.path.getsize(job.source)

    def once():
        request = crt.s3.make_request(
            type=S3RequestType.PUT_OBJECT,
            request=crt.request("PUT", job.keys[0], length),
            send_filepath=job.source,
        )
        request.finished_future.result(300)
        return length

    return once


OPS = {"get": get, "put": put}
