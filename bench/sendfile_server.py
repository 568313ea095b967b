"""A plain HTTP/1.1 server that gives out files with sendfile(2), so that the client is the bottleneck.

It knows just enough of S3 for the clients to be pointed at it: HEAD and GET of `/BUCKET/NAME` with one range, and a listing. Signatures
are not checked. One thread per connection; sendfile releases the interpreter lock.

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

HEAD_BYTES_MAX = 64 << 10


def main(port, bucket, folder):
    files = {path.name: path for path in sorted(Path(folder).iterdir())}
    with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection, bucket, files), daemon=True).start()


def serve(connection, bucket, files):
    """All requests of one connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pending = b""
    with connection:
        try:
            while True:
                while b"\r\n\r\n" not in pending:
                    more = connection.recv(16384)
                    if not more or len(pending) > HEAD_BYTES_MAX:
                        return
                    pending += more
                head, pending = pending.split(b"\r\n\r\n", 1)
                answer(connection, head.decode("latin-1"), bucket, files)
        except (BrokenPipeError, ConnectionResetError):
            return


def answer(connection, head, bucket, files):
    lines = head.split("\r\n")
    method, target, _ = lines[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    url = urlsplit(target)
    place = unquote(url.path).lstrip("/").partition("/")
    query = parse_qs(url.query, keep_blank_values=True)
    if place[0] == bucket and not place[2] and query.keys() & {"list-type", "prefix", "delimiter", "max-keys"}:
        listing(connection, bucket, files, query.get("prefix", [""])[0])
    elif place[0] == bucket and place[2] in files and method in ("GET", "HEAD"):
        content(connection, method, files[place[2]], headers.get("range"))
    elif place[0] == bucket and not place[2]:
        reply(connection, "200 OK", [], b"" if method == "HEAD" else b"<LocationConstraint/>")
    else:
        reply(connection, "404 Not Found", [], b"")


def content(connection, method, path, asked):
    """One file, or the range asked for."""
    size = path.stat().st_size
    start, end, status = 0, size, "200 OK"
    extra = [("ETag", f'"{path.name}-{size}"'), ("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))]
    if asked:
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1, size) if last else size
        status = "206 Partial Content"
        extra.append(("Content-Range", f"bytes {start}-{end - 1}/{size}"))
    send_head(connection, status, end - start, extra)
    if method == "HEAD":
        return
    with open(path, "rb") as file:
        while start < end:
            start += os.sendfile(connection.fileno(), file.fileno(), start, min(end - start, SENDFILE_BYTES_MAX))


def listing(connection, bucket, files, prefix):
    rows = "".join(
        f"<Contents><Key>{name}</Key><Size>{path.stat().st_size}</Size><ETag>&quot;{name}&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
        for name, path in files.items()
        if name.startswith(prefix)
    )
    body = (
        f"<ListBucketResult><Name>{bucket}</Name><Prefix>{prefix}</Prefix><KeyCount>{len(files)}</KeyCount>"
        f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
    )
    reply(connection, "200 OK", [("Content-Type", "application/xml")], body.encode())


def reply(connection, status, extra, body):
    send_head(connection, status, len(body), extra)
    connection.sendall(body)


def send_head(connection, status, length, extra):
    fields = [("Content-Length", str(length)), ("Accept-Ranges", "bytes"), *extra]
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields), "", ""]
    connection.sendall("\r\n".join(lines).encode("latin-1"))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
