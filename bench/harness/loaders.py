"""What the suites of loaders share: data sets, contenders and the table."""

import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from . import tools
from .fio import Fio
from .fresh import Fresh, files, forget, remember
from .jobs import chosen
from .result import Result, fastest
from .rounds import talk
from .table import MIB, line

BATCH = 256
LIMIT = "plain direct read"
FIO = "fio, direct sequential read"


@dataclass(frozen=True)
class Peer:
    """A loader at its best setting: `workers` processes or threads."""

    name: str
    op: str
    form: str
    workers: int
    note: str = ""
    venv: str = "stream"


def tried(peers, options):
    """The peers as they are, or each with every number of workers that was asked for, to choose from."""
    if not options.workers:
        return peers
    names = {count: f"{count} worker{'' if count == 1 else 's'}" for count in options.workers}
    return [
        replace(one, name=f"{one.name}, {name}", workers=count, note="")
        for one in peers
        for count, name in names.items()
    ]


class Sets:
    """The same samples in several formats below one folder, made when they are first asked for."""

    def __init__(self, kind, folder, count, payload_bytes, shard_bytes):
        self.kind = kind
        self.folder = Path(folder)
        self.count = count
        self.payload_bytes = payload_bytes
        self.shard_bytes = shard_bytes

    def get(self, form):
        """The folder of a format."""
        path = self.folder / form
        if not path.exists():
            room = shutil.disk_usage(self.folder).free
            if room < 2 * self.payload_bytes:
                raise SystemExit(f"{self.folder} has too little room: {room} bytes")
            python = tools.ensure_venv("tf" if form == "tfrecord" else "stream")
            talk(f"making {self.kind} as {form}")
            words = [self.kind, form, path, self.count, self.shard_bytes]
            argv = [python, "-m", "clients.make_samples", *map(str, words)]
            subprocess.run(argv, check=True, cwd=tools.BENCH, capture_output=True)
            os.sync()
        return path

    def index(self, form, options=()):
        """The folder of a format, with the manifest that Forebay streams by and that has the checksums."""
        path = self.get(form)
        if not (path / "_forebay.fbi").exists():
            talk(f"indexing {form}")
            try:
                tools.run([tools.FOREBAY, "index", "--quiet", *options, path])
            except (OSError, subprocess.CalledProcessError) as error:
                # Its contenders will say what is missing; the peers are measured all the same.
                talk(f"no index of {form}: {error}")
            os.sync()
        return path

    def before(self, path, is_cold):
        """What is done before each round on a folder."""
        return (lambda: forget(path)) if is_cold else (lambda: remember(path))


def fresh(sets, name, argv, path, is_cold, note="", env=None):
    return Fresh(
        name,
        argv,
        sets.count,
        sets.payload_bytes,
        before=sets.before(path, is_cold),
        note=note,
        env=env,
        cwd=tools.BENCH,
    )


def peer(sets, one, is_cold):
    """A contender of `clients/stream_*.py`."""
    path = sets.get(one.form)
    job = {"folder": str(path), "count": sets.count, "workers": one.workers}
    python = tools.ensure_venv(one.venv)
    argv = [python, "-m", "clients.drain", f"stream_{sets.kind}", one.op, json.dumps(job)]
    return fresh(sets, one.name, argv, path, is_cold, one.note)


def forebay_rust(sets, name, form, is_cold, options=(), note=""):
    path = sets.index(form, options)
    job = {"url": f"file://{path}/", "batch_size": BATCH}
    return fresh(sets, name, [tools.FOREBAY_BENCH, "stream", json.dumps(job)], path, is_cold, note)


def forebay_python(sets, name, form, is_cold, options=(), note=""):
    """Nothing where no Python has Forebay."""
    python = tools.forebay_python()
    if python is None:
        return None
    path = sets.index(form, options)
    job = {"url": f"file://{path}/", "count": sets.count}
    argv = [python, "-m", "clients.drain", "stream_forebay", sets.kind, json.dumps(job)]
    return fresh(sets, name, argv, path, is_cold, note)


def limits(sets, form, is_cold):
    """The disk alone: the same files from the front to the end, past the page cache; well asked, and by
    fio, whose memory lies in small pages.
    """

    def plain():
        path = sets.get(form)
        job = json.dumps({"folder": str(path), "count": sets.count})
        argv = [sys.executable, "-m", "clients.read_plain", job]
        return fresh(sets, LIMIT, argv, path, is_cold, "2 threads, 4 MiB, large pages; no samples")

    def fio():
        own = ("_forebay.fbi", "_SHA256SUMS")
        names = ":".join(sorted(name for name in files(sets.get(form)) if not name.endswith(own)))
        arguments = [f"--filename={names}", "--file_service_type=sequential", "--rw=read", "--bs=4m"]
        return Fio(FIO, [*arguments, "--iodepth=8"], "4 MiB, depth 8; no samples")

    return [Named(LIMIT, plain), Named(FIO, fio)]


@dataclass(frozen=True)
class Named:
    """A contender's name, and how to make it: data sets are made only for those that were asked for."""

    name: str
    make: object


def made(entries, options):
    """The contenders that the user asked for."""
    contenders = [entry.make() for entry in chosen(entries, options)]
    return [one for one in contenders if one is not None]


class Loaders(Result):
    """A table of loaders: share of the disk's limit, multiple of the best peer, time to the first batch."""

    extras = (("first batch s", "first_batch_s", 3), ("in a new process s", "first_batch_new_s", 3))
    """Columns of what contenders measured besides rates: head, name, digits."""

    def heads(self):
        """Columns of ratios: a name, and the row that is 1."""
        top = next((row for row in self.rows if row.name == LIMIT and row.samples), None)
        ours = (LIMIT, FIO, "Forebay")
        peers = [row for row in self.rows if not row.name.startswith(ours)]
        return [("of the limit", top), ("of the best peer", fastest(peers))]

    def markdown(self):
        ratios = self.heads()
        head = ["contender", "GB/s", "min - max", *(name for name, _ in ratios), "CPU s/GB"]
        head += ["peak RSS MiB", *(column for column, _, _ in self.extras), "note"]
        lines = [line(head), line(["---"] * len(head))]
        for row in self.rows:
            note = "; ".join(filter(None, [row.note, row.failure and f"failed: {row.failure}"]))
            if not row.samples:
                lines.append(line([row.name, *["-"] * (len(head) - 2), note]))
                continue
            cells = [row.name, f"{row.rate:.2f}", f"{row.rate_min:.2f} - {row.rate_max:.2f}"]
            cells += [ratio(row, other) for _, other in ratios]
            cells.append(f"{row.cpu_per_gb:.2f}")
            cells.append(f"{row.rss_bytes / MIB:.0f}" if row.rss_bytes else "-")
            cells += [median_of(row, name, digits) for _, name, digits in self.extras]
            lines.append(line([*cells, note]))
        text = "\n".join([f"### {self.title}", "", *lines, ""])
        return text + "".join(f"\n{remark}\n" for remark in self.remarks)


def ratio(row, other):
    return f"{row.rate / other.rate:.2f}" if other else "-"


def median_of(row, name, digits):
    """Of what contenders measured besides rates."""
    found = [sample.extra[name] for sample in row.samples if name in sample.extra]
    return f"{statistics.median(found):.{digits}f}" if found else "-"
