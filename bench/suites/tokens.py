"""Tokens from a local disk: 200,000 samples of 2,048 tokens of 16 bits, shuffled, in batches of 256 that
are one array; once from memory, once cold.

Every round of every contender is a new process, and its second epoch; importing is not measured, opening
is. The limit is plain direct reads of the raw file, past the page cache in both tables. The peers have
environments of their own (`requirements-stream.txt`, `requirements-tf.txt`), made on the first run.
"""

import tempfile

from clients.make_samples import TOKENS
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

SAMPLES = 200_000
SHARD_BYTES = 256 * MIB
SHARDS_MIN = 8
RAW = ["--format", "tokens", "--tokens", str(TOKENS), "--dtype", "uint16"]

FORMS = [
    ("MDS", "mds", ()),
    ("TFRecord", "tfrecord", ()),
    ("Parquet", "parquet", ()),
    ("raw", "raw", RAW),
    ("Megatron", "megatron", ["--format", "tokens"]),
    ("tar", "tar", ()),
]

# Each with the best of 0, 1, 2 and 4 workers on two cores, chosen by `--workers`.
PEERS = [
    Peer("numpy memmap", "numpy_memmap", "raw", 0, "no loader: one index expression per batch"),
    Peer("pyarrow, Parquet", "pyarrow", "parquet", 1, "1 thread ahead; row groups, shuffled in themselves"),
    Peer("torch DataLoader, memmap", "torch_memmap", "raw", 0, "no workers; shuffled over all"),
    Peer("SPDL, tar", "spdl_tar", "tar", 1, "iter_tarfile; 1 thread; pool of 1,000"),
    Peer("LitData TokensLoader", "litdata", "litdata", 0, "no workers; shuffled by chunks"),
    Peer("tf.data, TFRecord", "tfdata", "tfrecord", 0, "one file at a time; pool of 1,000", "tf"),
    Peer("webdataset", "webdataset", "tar", 2, "2 workers; pool of 1,000"),
    Peer("mosaicml-streaming, MDS", "mosaic", "mds", 4, "4 workers; py1e"),
    Peer("Grain, ArrayRecord", "grain", "arrayrecord", 0, "no threads; shuffled over all"),
]


def run(options, _tmpfs):
    count = max(4096, int(SAMPLES * options.scale))
    payload_bytes = count * 2 * TOKENS
    options.dir.mkdir(parents=True, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory(prefix="tokens-", dir=options.dir) as folder:
        sets = Sets("tokens", folder, count, payload_bytes, min(SHARD_BYTES, payload_bytes // SHARDS_MIN))
        for title, is_cold in (("in memory", False), ("on a cold disk", True)):
            rows = race(made(listed(sets, is_cold, options), options), options.runs, warm_ups=0)
            results.append(Loaders(f"{count} samples of {TOKENS} tokens {title}, shuffled", rows))
    return results


def listed(sets, is_cold, options):
    def own(how, name, form, index):
        return Named(name, lambda: how(sets, name, form, is_cold, index))

    entries = limits(sets, "raw", is_cold)
    for label, form, index in FORMS:
        entries.append(own(forebay_rust, f"Forebay, Rust, {label}", form, index))
        entries.append(own(forebay_python, f"Forebay, Python, {label}", form, index))
    entries += [Named(one.name, lambda one=one: peer(sets, one, is_cold)) for one in tried(PEERS, options)]
    return entries
