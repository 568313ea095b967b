"""Images from a cold local disk: 20,000 samples of about 98 KB that do not compress and a JSON label,
shuffled, in batches of 256; tar shards of 256 MiB, and for every peer the format it is best with.

Every round of every contender is a new process on files that are not in memory, and its second epoch;
importing is not measured, opening is. The limit is plain direct reads of the tar shards. The peers have
environments of their own (`requirements-stream.txt`, `requirements-tf.txt`), made on the first run.
"""

import tempfile

from clients.make_samples import images_bytes
from harness.jobs import MIB
from harness.loaders import (
    Loaders,
    Named,
    Peer,
    Sets,
    forebay_python,
    forebay_rust,
    limits,
    made,
    peer,
    tried,
)
from harness.rounds import race

SAMPLES = 20_000
SHARD_BYTES = 256 * MIB
SHARDS_MIN = 8
"""A smoke test has smaller shards instead of fewer: loaders deal them out to their workers."""

# Each with the best of 0, 1, 2 and 4 workers on two cores (SPDL, Grain, torch and mosaicml-streaming: also 8
# and 16), chosen by `--workers`. Worker processes cost up to four times the CPU time of none, and gain most
# for mosaicml-streaming, which opens its file anew for every sample. Threads that wait for the disk help
# SPDL on files, pyarrow and Grain.
PEERS = [
    Peer("SPDL, tar", "spdl_tar", "tar", 1, "iter_tarfile; 1 thread; pool of 1,000"),
    Peer("SPDL, files", "spdl_files", "files", 16, "16 threads; shuffled over all"),
    Peer("pyarrow, Parquet", "pyarrow", "parquet", 2, "2 threads ahead; row groups and pool of 1,000"),
    Peer("LitData", "litdata", "litdata", 0, "no workers; shuffled by chunks"),
    Peer("torch DataLoader, files", "torch_files", "files", 8, "8 workers; shuffled over all"),
    Peer("Grain, ArrayRecord", "grain", "arrayrecord", 16, "16 threads; shuffled over all"),
    Peer("tf.data, TFRecord", "tfdata", "tfrecord", 0, "one file at a time; pool of 1,000", "tf"),
    Peer("webdataset", "webdataset", "tar", 0, "no workers; pool of 1,000"),
    Peer("mosaicml-streaming, MDS", "mosaic", "mds", 8, "8 workers; py1e"),
]


def run(options, _tmpfs):
    count = max(1000, int(SAMPLES * options.scale))
    payload_bytes = images_bytes(count)
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stream-", dir=options.dir) as folder:
        sets = Sets("images", folder, count, payload_bytes, min(SHARD_BYTES, payload_bytes // SHARDS_MIN))
        rows = race(made(listed(sets, options), options), options.runs, warm_ups=0)
    return [Loaders(f"{count} images from a cold disk, shuffled", rows)]


def listed(sets, options):
    own = [
        ("Forebay, Rust, tar", forebay_rust, "tar"),
        ("Forebay, Python, tar", forebay_python, "tar"),
        ("Forebay, Rust, MDS", forebay_rust, "mds"),
        ("Forebay, Rust, Parquet", forebay_rust, "parquet"),
        ("Forebay, Rust, TFRecord", forebay_rust, "tfrecord"),
        ("Forebay, Rust, files", forebay_rust, "files"),
    ]
    entries = limits(sets, "tar", is_cold=True)
    for name, how, form in own:
        entries.append(Named(name, lambda name=name, how=how, form=form: how(sets, name, form, True)))
    entries += [Named(one.name, lambda one=one: peer(sets, one, True)) for one in tried(PEERS, options)]
    return entries
