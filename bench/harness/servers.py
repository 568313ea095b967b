"""The two servers everything remote is measured against, on loopback, with their data on tmpfs.

SeaweedFS is a real S3 server: it checks signatures and shares the cores with the client. The plain server
(`sendfile_server.py`) costs next to nothing and shows what the client alone can do.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from . import tools
from .rounds import talk

BUCKET = "bench"
ACCESS_KEY = "forebay"
SECRET_KEY = "forebaysecret"
REGION = "us-east-1"

START_SECONDS_MAX = 60
"""SeaweedFS answers after a few seconds on an idle machine."""


class Server:
    """Where a server listens, and what clients need to know of it."""

    def __init__(self, name, folder, port, admin_port=None):
        self.name = name
        self.folder = folder
        self.endpoint = f"http://127.0.0.1:{port}"
        self.admin = f"http://127.0.0.1:{admin_port}"
        self.pid = None

    def cpu_s(self):
        """User and system time of the server so far."""
        stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def env(self):
        """The environment every S3 client understands; nothing outside this machine is asked for
        credentials.
        """
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "FOREBAY_S3_ENDPOINT": self.endpoint,
            "FOREBAY_STATE_DIR": str(self.folder / "state"),
            "BENCH_ENDPOINT": self.endpoint,
            "BENCH_BUCKET": BUCKET,
        }


@contextmanager
def seaweedfs(folder):
    """SeaweedFS with all its ports free ones, telemetry off, bound to loopback."""
    data = folder / "seaweedfs"
    (data / "volumes").mkdir(parents=True)
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = free_ports(8)
    identities = data / "s3.json"
    identity = {
        "name": "bench",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    identities.write_text(json.dumps({"identities": [identity]}))
    argv = [
        tools.venv_bin("weed"),
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={data / 'volumes'}",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=1024",
        "-volume.max=40",
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        f"-filer.localSocket={data / 'filer.sock'}",
        "-s3",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.localSocket={data / 's3.sock'}",
        f"-s3.config={identities}",
    ]
    server = Server("SeaweedFS", folder, s3, master)
    with daemon(argv, data / "log.txt", data) as process, daemon_ready(server):
        server.pid = process.pid
        # The gateway answers before the volume server has joined; the first object shows when all is up.
        tool(server, "seed", "--bucket-only")
        yield server


@contextmanager
def sendfile(folder, served):
    """The plain server, giving out the files of `served`."""
    (port,) = free_ports(1)
    argv = [sys.executable, tools.BENCH / "sendfile_server.py", str(port), BUCKET, served]
    server = Server("the plain server", folder, port)
    with daemon(argv, folder / "sendfile.log", folder) as process, daemon_ready(server):
        server.pid = process.pid
        yield server


def loopback_bytes():
    """What went over loopback so far, of anybody: a server that asks itself shows here."""
    (line,) = (
        line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")
    )
    return int(line.split()[9])


def tool(server, *args):
    """Run one of the helper scripts of `clients/` in the peers' environment."""
    argv = [tools.venv_bin("python"), "-m", f"clients.{args[0]}", *map(str, args[1:])]
    subprocess.run(argv, check=True, cwd=tools.BENCH, env={**os.environ, **server.env}, stdout=sys.stderr)


@contextmanager
def daemon(argv, log_path, cwd):
    """A server process that is ended however the block ends."""
    with open(log_path, "wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=cwd)
    try:
        yield process
    except BaseException:
        talk(f"last words of {argv[0]}: {tail(log_path)}")
        raise
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def daemon_ready(server):
    """Wait until the server answers anything at all over HTTP."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            urllib.request.urlopen(server.endpoint, timeout=2).close()
            break
        except urllib.error.HTTPError:
            break
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{server.name} does not answer") from None
            time.sleep(0.1)
    yield


def free_ports(count):
    """Ports that are free now; all are held until the last is known, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def tail(path):
    lines = path.read_text(errors="replace").splitlines()
    return lines[-1] if lines else "none"
