"""A plain HTTP/1.1 server that costs next to nothing, so that the client is the bottleneck.

It gives out files with sendfile(2) and throws uploads away, and knows just enough of S3 for the clients
to be pointed at it: HEAD and GET of `/BUCKET/NAME` with one range, a listing, and the calls of a
multipart upload. Signatures and checksums are not looked at. One thread per connection; sendfile and recv
release the interpreter lock.

    python sendfile_server.py PORT BUCKET FOLDER
"""

import os
import socket
import sys
import threading
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

SENDFILE_BYTES_MAX = 4 << 20
"""One call; a whole range in few calls keeps the thread off the interpreter lock."""

RECEIVE_BYTES = 1 << 20
HEAD_BYTES_MAX = 64 << 10


class Bucket:
    """The files given out, and the sizes of what was uploaded and thrown away."""

    def __init__(self, name, folder):
        self.name = name
        self.files = {path.name: path for path in sorted(Path(folder).iterdir())}
        self.uploaded = {}
        self.lock = threading.Lock()

    def received(self, key, count):
        with self.lock:
            self.uploaded[key] = self.uploaded.get(key, 0) + count


def main(port, name, folder):
    bucket = Bucket(name, folder)
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=Connection(connection, bucket).serve, daemon=True).start()


class Connection:
    """One connection and the requests on it."""

    def __init__(self, connection, bucket):
        self.socket = connection
        self.bucket = bucket
        self.pending = b""
        self.memory = bytearray(RECEIVE_BYTES)

    def serve(self):
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.socket:
            try:
                while head := self.head():
                    self.answer(*head)
            except (BrokenPipeError, ConnectionResetError):
                return

    def head(self):
        """Method, path in the bucket, query and headers of the next request; None at the end."""
        while b"\r\n\r\n" not in self.pending:
            more = self.socket.recv(16384)
            if not more or len(self.pending) > HEAD_BYTES_MAX:
                return None
            self.pending += more
        head, self.pending = self.pending.split(b"\r\n\r\n", 1)
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        url = urlsplit(target)
        return method, unquote(url.path).lstrip("/"), parse_qs(url.query, keep_blank_values=True), headers

    def answer(self, method, path, query, headers):
        if headers.get("expect", "").lower() == "100-continue":
            self.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.discard(int(headers.get("content-length", 0)))
        place, _, key = path.partition("/")
        if place != self.bucket.name:
            self.reply("404 Not Found")
        elif method == "PUT" and key:
            # A body with a checksum behind it is longer on the wire than what it carries.
            count = int(headers.get("x-amz-decoded-content-length", headers.get("content-length", 0)))
            self.bucket.received(key, count)
            self.reply("200 OK", [("ETag", '"thrown-away"')])
        elif method == "POST" and key:
            self.multipart(key, query)
        elif method in ("GET", "HEAD") and key in self.bucket.files:
            self.content(method, self.bucket.files[key], headers.get("range"))
        elif method == "HEAD" and key in self.bucket.uploaded:
            self.send_head("200 OK", self.bucket.uploaded[key], [("ETag", '"thrown-away"'), *dates(0)])
        elif key:
            self.reply("204 No Content" if method == "DELETE" else "404 Not Found")
        elif query.keys() & {"list-type", "prefix", "delimiter", "max-keys"}:
            self.listing(query.get("prefix", [""])[0])
        else:
            self.reply("200 OK", body=b"" if method == "HEAD" else b"<LocationConstraint/>")

    def discard(self, left):
        """Take in a body and forget it."""
        here = min(left, len(self.pending))
        self.pending = self.pending[here:]
        left -= here
        view = memoryview(self.memory)
        while left:
            count = self.socket.recv_into(view[: min(left, RECEIVE_BYTES)])
            if not count:
                raise ConnectionResetError
            left -= count

    def multipart(self, key, query):
        """Begin an upload, or complete it."""
        name = f"<Bucket>{self.bucket.name}</Bucket><Key>{key}</Key>"
        if "uploads" in query:
            self.bucket.uploaded[key] = 0
            kind, rest = "InitiateMultipartUpload", "<UploadId>1</UploadId>"
        else:
            kind, rest = "CompleteMultipartUpload", "<ETag>&quot;thrown-away&quot;</ETag>"
        self.reply(
            "200 OK",
            [("Content-Type", "application/xml")],
            f"<{kind}Result>{name}{rest}</{kind}Result>".encode(),
        )

    def content(self, method, path, asked):
        """One file, or the range asked for."""
        size = path.stat().st_size
        start, end, status = 0, size, "200 OK"
        extra = [("ETag", f'"{etag(path)}"'), *dates(path.stat().st_mtime)]
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, size) if last else size
            status = "206 Partial Content"
            extra.append(("Content-Range", f"bytes {start}-{end - 1}/{size}"))
        self.send_head(status, end - start, extra)
        if method == "HEAD":
            return
        with open(path, "rb") as file:
            while start < end:
                start += os.sendfile(
                    self.socket.fileno(), file.fileno(), start, min(end - start, SENDFILE_BYTES_MAX)
                )

    def listing(self, prefix):
        rows = "".join(
            f"<Contents><Key>{name}</Key><Size>{path.stat().st_size}</Size><ETag>&quot;{etag(path)}&quot;</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for name, path in self.bucket.files.items()
            if name.startswith(prefix)
        )
        body = (
            f"<ListBucketResult><Name>{self.bucket.name}</Name><Prefix>{prefix}</Prefix><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        )
        self.reply("200 OK", [("Content-Type", "application/xml")], body.encode())

    def reply(self, status, extra=(), body=b""):
        self.send_head(status, len(body), extra)
        self.socket.sendall(body)

    def send_head(self, status, length, extra):
        fields = [("Content-Length", str(length)), ("Accept-Ranges", "bytes"), *extra]
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields), "", ""]
        self.socket.sendall("\r\n".join(lines).encode("latin-1"))


def etag(path):
    """The version: the same in a listing and in an answer, since clients compare them."""
    return f"{path.name}-{path.stat().st_size}"


def dates(modified):
    return [("Last-Modified", formatdate(modified, usegmt=True))]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
