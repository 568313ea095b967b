"""WebDataset shards both ways: what we write, others read byte for byte; what they write, we read.

Others are webdataset's own TarWriter and reader, Python's tarfile, and GNU tar where it is installed. Run as

    cargo build -p forebay-data --example wds_peer
    python crates/forebay-data/tests/peers/wds.py target/debug/examples/wds_peer

with the webdataset package installed (tried with 1.0.2). Ends with 0 when all agree.
"""

import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile

import webdataset
from webdataset import tariterators

ROUNDS = 20
SAMPLES_MAX = 30


def samples(rng):
    """Make keys and fields of all lengths that matter to tar, in characters that are easy and not."""
    alphabet = ["abc", "abc_-", "a\u00e9\u5b57", "a b"][rng.randrange(4)]
    rows = []
    for index in range(rng.randrange(SAMPLES_MAX)):
        folders = "".join(
            "".join(rng.choices(alphabet, k=rng.choice([1, 8, 60]))) + "/" for _ in range(rng.randrange(4))
        )
        key = f"{folders}{'n' * rng.choice([0, 0, 50, 85, 90, 95, 120])}{index:04}"
        fields = {}
        for field in rng.sample(["cls", "jpg", "json", "seg.png", "txt.gz", "\u00e9"], rng.randrange(1, 7)):
            fields[field] = rng.randbytes(rng.choice([0, 1, 511, 512, 513, 5000]))
        rows.append((key, fields))
    return rows


def to_json(rows):
    """Write samples as wds_peer takes them."""
    return json.dumps([[key, {field: data.hex() for field, data in fields.items()}] for key, fields in rows])


def from_json(text):
    """Read samples as wds_peer gives them."""
    rows = json.loads(text)
    return [(key, {field: bytes.fromhex(data) for field, data in fields.items()}) for key, fields in rows]


def by_webdataset(path):
    """Read samples with WebDataset."""
    rows = []
    for sample in tariterators.tarfile_samples([{"url": str(path)}]):
        rows.append((sample.pop("__key__"), {k: v for k, v in sample.items() if k != "__url__"}))
    return rows


def members(rows):
    """List the members of samples in the order of the archive."""
    return [(f"{key}.{field}", fields[field]) for key, fields in rows for field in sorted(fields)]


def by_tarfile(path):
    """Read members with Python."""
    with tarfile.open(path) as tar:
        found = []
        for info in tar:
            assert (info.type, info.mode, info.mtime) == (tarfile.REGTYPE, 0o444, 0), info
            assert (info.uname, info.gname) == ("bigdata", "bigdata"), info
            found.append((info.name, tar.extractfile(info).read()))
        return found


def by_gnu_tar(path):
    """Read names and all data, joined, with GNU tar."""
    command = ["tar", "-f", str(path), "--quoting-style=literal"]
    settings = {**os.environ, "LC_ALL": "C.UTF-8"}
    names = subprocess.run([*command, "-t"], check=True, capture_output=True, env=settings).stdout.decode()
    data = subprocess.run([*command, "-x", "-O"], check=True, capture_output=True, env=settings).stdout
    return names.splitlines(), data


def write_webdataset(path, rows, **options):
    """Write samples with WebDataset."""
    with open(path, "wb") as file:
        writer = webdataset.TarWriter(file, encoder=False, **options)
        for key, fields in rows:
            writer.write({"__key__": key, **fields})
        writer.close()


def write_tarfile(path, rows, flavour):
    """Write samples with Python."""
    with tarfile.open(path, "w", format=flavour) as tar:
        for name, data in members(rows):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def ours_read_by_others(program, folder, rows):
    """Compare what others read in a shard of ours."""
    path = folder / "ours.tar"
    subprocess.run([program, "write", str(path)], input=to_json(rows).encode(), check=True)
    assert by_webdataset(path) == rows, "webdataset reads something else"
    assert by_tarfile(path) == members(rows), "tarfile reads something else"
    if shutil.which("tar"):
        names, data = by_gnu_tar(path)
        assert names == [name for name, _ in members(rows)], "GNU tar lists something else"
        assert data == b"".join(data for _, data in members(rows)), "GNU tar reads something else"


def others_read_by_us(program, folder, rows):
    """Compare what we read in shards of others."""
    path = folder / "theirs.tar"
    writers = [
        lambda: write_webdataset(path, rows),
        lambda: write_webdataset(path, rows, mtime=0),
        lambda: write_tarfile(path, rows, tarfile.GNU_FORMAT),
        lambda: write_tarfile(path, rows, tarfile.PAX_FORMAT),
    ]
    for writer in writers:
        writer()
        found = subprocess.run([program, "read", str(path)], check=True, capture_output=True).stdout
        assert from_json(found) == rows, "we read something else"


def main():
    """Run all rounds."""
    program = pathlib.Path(sys.argv[1]).resolve()
    for seed in range(ROUNDS):
        rows = samples(random.Random(seed))
        with tempfile.TemporaryDirectory() as folder:
            ours_read_by_others(program, pathlib.Path(folder), rows)
            others_read_by_us(program, pathlib.Path(folder), rows)
    print(f"{ROUNDS} rounds agree")


if __name__ == "__main__":
    main()
