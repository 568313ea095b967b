"""What the tests share: the commands of Forebay, its Python package, and how samples are compared.

A data set is a list of dicts from names of fields to values. A value is `bytes`, or a numpy array where its
type is part of the format. Where a sample does not have a field, a batch has no bytes: both are compared as
such.
"""

import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import forebay
import numpy as np

PROGRAMS = None
"""Folder with the programs under test; set by `run.py`."""

ROOT = Path(__file__).resolve().parents[4]
FIXTURES = ROOT / "fixtures"

BATCH = 7
"""Samples of a batch: few, and no divisor of what the tests write, so that the last one is short."""

SIZES = [0, 1, 5, 511, 512, 513, 5000, 70_000]
"""Around the blocks of tars, and more than fits into two bytes."""


def contents(seed, count):
    """Bytes of all sizes that matter, most of which do not compress."""
    rng = random.Random(seed)
    return [rng.randbytes(SIZES[index % len(SIZES)]) for index in range(count)]


def comparable(value):
    """Something that compares with everything: bytes, or type, shape and bytes."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.ascontiguousarray(value)
        return (
            array.dtype.newbyteorder("<").str,
            np.shape(value),
            array.astype(array.dtype.newbyteorder("<")).tobytes(),
        )
    return bytes(value)


class Case(unittest.TestCase):
    """A test with a folder of its own."""

    maxDiff = 4000

    def setUp(self):
        """Make the folder."""
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def place(self, *names):
        """Name an empty folder that is there."""
        path = self.folder.joinpath(*names)
        path.mkdir(parents=True)
        return path

    def forebay(self, *words):
        """Run a command, and give what it writes."""
        argv = [str(PROGRAMS / "forebay"), *map(str, words)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, f"{' '.join(argv[1:])}\n{done.stdout}{done.stderr}")
        return done.stdout

    def example(self, name, *words):
        """Run one of the scripts here with the program it is about."""
        script, program = Path(__file__).with_name(f"{name}.py"), PROGRAMS / "examples" / f"{name}_peer"
        run_python(script, program, *words)

    def pack(self, source, to, *options, **settings):
        """Pack a data set, and give the folder; it verifies."""
        target = self.folder / f"packed-{to}-{len(list(self.folder.glob('packed-*')))}"
        self.forebay("pack", "--quiet", source, target, "--to", to, *options, *words_of(settings))
        self.forebay("verify", "--quiet", target)
        self.assert_sums(target)
        return target

    def assert_streams(self, url, rows, keys=None, *, is_plain=False, **settings):
        """Compare a data set with samples: without an index and with one, in Python and by the commands.

        Plain files are no shards, and have no sums.
        """
        self.assert_rows(streamed(url, **settings), rows, keys)
        self.forebay("index", "--quiet", url, *words_of(settings))
        self.forebay("verify", "--quiet", url)
        if is_plain:
            self.assertFalse(Path(url, "_SHA256SUMS").exists())
        else:
            self.assert_sums(url)
        self.assert_rows(streamed(url), rows, keys)
        report = json.loads(self.forebay("stream", "--json", "--batch-size", BATCH, url))
        self.assertEqual(report["samples"], len(rows))
        if keys is not None:
            lines = self.forebay("stream", "--quiet", "--keys", url).splitlines()
            self.assertEqual(lines, keys)

    def assert_rows(self, found, rows, keys=None):
        """Compare keys and fields of samples."""
        found_keys, found_rows = found
        if keys is not None:
            self.assertEqual(found_keys, keys)
        self.assert_same(found_rows, rows)

    def assert_same(self, found, rows):
        """Compare fields of samples, and say which differs first."""
        self.assertEqual(len(found), len(rows))
        for number, (have, want) in enumerate(zip(found, rows, strict=True)):
            for name in sorted({*have, *want}):
                left, right = comparable(have.get(name, b"")), comparable(want.get(name, b""))
                if left != right:
                    self.fail(f"sample {number}, field {name}: {str(left)[:300]} is not {str(right)[:300]}")

    def assert_sums(self, folder):
        """Compare the sums beside a data set with its files, as `sha256sum -c` does."""
        lines = Path(folder, "_SHA256SUMS").read_text().splitlines()
        self.assertGreater(len(lines), 0)
        for line in lines:
            digest, name = line.split(maxsplit=1)
            self.assertEqual(hashlib.sha256(Path(folder, name).read_bytes()).hexdigest(), digest, name)


def run_python(script, *words):
    """Run a script with this interpreter."""
    subprocess.run([sys.executable, str(script), *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def streamed(url, **settings):
    """Read a whole data set: keys, and fields of every sample."""
    form = settings or None
    if form:
        form = {
            "name": settings["format"],
            **{name: value for name, value in settings.items() if name != "format"},
        }
    keys, rows = [], []
    with forebay.stream(url, batch_size=BATCH, drop_last=False, format=form) as batches:
        for batch in batches:
            keys += batch["__key__"].list()
            fields = {name: values for name, values in batch.items() if name != "__key__"}
            rows += [
                {name: own(values, index) for name, values in fields.items()} for index in range(batch.size)
            ]
    return keys, rows


def own(values, index):
    """Copy a value out of the memory of its batch, as it is stored."""
    stored = getattr(values, "ragged", None)
    value = values[index] if stored is None else stored[index]
    return bytes(value) if isinstance(value, memoryview) else np.array(value)


def words_of(settings):
    """Give settings of a format as options of a command."""
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


def bytes_of(folder, pattern):
    """Read all files of a pattern, by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob(pattern))}
