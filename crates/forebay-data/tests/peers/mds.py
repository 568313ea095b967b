"""MDS data sets of ours, read by mosaicml-streaming: every encoding, compression and checksum. Run as

    cargo build -p forebay-data --example mds_peer
    python crates/forebay-data/tests/peers/mds.py target/debug/examples/mds_peer

with the mosaicml-streaming package installed (tried with 0.13.0). Ends with 0 when all values are
what they were.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from streaming import LocalDataset, StreamingDataset
from streaming.base.format.mds.encodings import mds_decode
from streaming.base.hashing import get_hashes

FIXTURES = pathlib.Path(__file__).parents[4] / "fixtures" / "mds"
REPEATS = 20


def plain(value):
    """A value in a form that compares."""
    if isinstance(value, np.ndarray):
        return (value.dtype.name, value.shape, value.tobytes())
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return (value.mode, value.size, value.tobytes())
    return value


def check(program, name, compression, hashes):
    index = json.loads((FIXTURES / name / "index.json").read_text())["shards"][0]
    columns = list(zip(index["column_names"], index["column_encodings"], strict=True))
    samples = json.loads((FIXTURES / name / "expected.json").read_text()) * REPEATS
    values = [[sample[column]["hex"] for column, _ in columns] for sample in samples]
    with tempfile.TemporaryDirectory() as scratch:
        remote, local = pathlib.Path(scratch, "remote"), pathlib.Path(scratch, "local")
        remote.mkdir()
        subprocess.run(
            [program, str(remote), compression, ",".join(hashes) or "none"],
            input=json.dumps([columns, values]).encode(),
            check=True,
        )
        shards = len(json.loads((remote / "index.json").read_text())["shards"])
        streamed = StreamingDataset(
            remote=str(remote),
            local=str(local),
            shuffle=False,
            batch_size=1,
            validate_hash=hashes[0] if hashes else None,
        )
        datasets = [streamed] if compression != "none" else [streamed, LocalDataset(str(remote))]
        for dataset in datasets:
            assert len(dataset) == len(samples)
            for number, sample in enumerate(samples):
                found = dataset[number]
                assert set(found) == {column for column, _ in columns}
                for column, encoding in columns:
                    expected = mds_decode(encoding, bytes.fromhex(sample[column]["hex"]))
                    assert plain(found[column]) == plain(expected), (name, compression, number, column)
        settings = f"{name:8} {compression:8} {','.join(hashes) or '-':10}"
        print(f"{settings} {len(samples)} samples in {shards} shards: same")


def main():
    program = sys.argv[1]
    for compression in ("none", "br", "br:1", "bz2", "gz", "gz:1", "snappy", "zstd", "zstd:19"):
        check(program, "every", compression, ["sha1", "xxh64"])
    for name in sorted(get_hashes()):
        check(program, "plain", "zstd", [name])
    check(program, "plain", "none", [])


main()
