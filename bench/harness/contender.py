"""Contenders: what is measured, each as a process of its own.

A contender lives for the whole suite and is asked for one round at a time, so that no round pays for
interpreter start-up, imports or client construction. The process is told `go` on stdin and answers one
JSON line on stdout:

    {"bytes": 1073741824, "wall_s": 0.91, "cpu_s": 0.43, "rss_bytes": 96468992}

It measures itself around the loop: wall clock, user and system CPU time of all its threads, peak resident
memory. Command line programs are run by such a process too (`clients/cli.py`); there one round is one run
of the program, start-up included.
"""

import json
import os
import select
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROUND_SECONDS_MAX = 300
"""A round that takes longer is a hang; every round here moves at most a few GiB."""


class Failed(Exception):  # noqa: N818 - reads as what happened
    """A contender could not do its round; the text says why."""


@dataclass
class Sample:
    """One round of one contender."""

    bytes: int
    wall_s: float
    cpu_s: float
    rss_bytes: int
    extra: dict = field(default_factory=dict)

    @property
    def rate(self):
        """GB/s, decimal."""
        return self.bytes / self.wall_s / 1e9

    @property
    def cpu_per_gb(self):
        """CPU seconds for each 10^9 bytes."""
        return self.cpu_s / (self.bytes / 1e9)


class Contender:
    """Base: a name, a note for the table, and `measure`."""

    def __init__(self, name, note=""):
        self.name = name
        self.note = note

    def start(self):
        """Get ready, untimed."""

    def measure(self):
        """Run one round and return its `Sample`, or raise `Failed`."""
        raise NotImplementedError

    def stop(self):
        """Give everything back."""


class Worker(Contender):
    """A process that measures one round each time it is told to."""

    def __init__(self, name, argv, note="", env=None, cwd=None):
        super().__init__(name, note)
        self.argv = [str(arg) for arg in argv]
        self.env = {**os.environ, **(env or {})}
        self.cwd = cwd
        self.process = None
        self.errors = None

    def start(self):
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        try:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env=self.env,
                cwd=self.cwd,
            )
        except OSError as error:
            raise Failed(f"{Path(self.argv[0]).name}: {error.strerror}") from None

    def measure(self):
        if self.process is None:
            raise Failed("not started")
        try:
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self.complaint()) from None
        # The answer is one short line, so a readable pipe means a whole line or the end.
        ready, _, _ = select.select([self.process.stdout], [], [], ROUND_SECONDS_MAX)
        if not ready:
            raise Failed(f"no answer within {ROUND_SECONDS_MAX} s")
        line = self.process.stdout.readline()
        if not line:
            raise Failed(self.complaint())
        answer = json.loads(line)
        base = {name: answer.pop(name) for name in ("bytes", "wall_s", "cpu_s", "rss_bytes")}
        return Sample(**base, extra=answer)

    def stop(self):
        if self.process is not None:
            # One that has ended may have left its last question unread.
            with suppress(BrokenPipeError):
                self.process.stdin.close()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
            self.process = None
        if self.errors is not None:
            self.errors.close()
            self.errors = None

    def complaint(self):
        """The last line the process wrote to stderr, or its exit status."""
        status = self.process.wait(timeout=30)
        self.errors.seek(0)
        lines = [line for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else f"ended with status {status}"
