"""Torch's own tests of distributed checkpoints, with our storage: `python dcp_torch_suite.py FOLDER`.

`FOLDER` is `test/distributed/checkpoint` of a checkout of torch, of the version that is installed; the wheel
does not have it. Its files are run as they are, with our storage under the names of torch's file system
storage. What does not pass is run once more with torch's own: where that passes, ours has failed, but for
`LEFT_OUT`; where it does not (for want of GPUs, mostly), the test says nothing, and is counted as such.

Everything is on the CPU, by gloo. Tests that ask for GPUs are run all the same: most take whatever there is.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

# How a process and those it starts know whose storage they take. They all import this file first.
STORAGE = "DCP_SUITE_STORAGE"

# Seconds for a file of tests, and for one of the tests of several processes.
FILE_SECONDS = 900
TEST_SECONDS = 180

# Files whose tests save or load by the storage that is there; others bring one of their own, or none.
FILES = (
    "test_compatibility.py",
    "test_dtensor_checkpoint.py",
    "test_dtensor_resharding.py",
    "test_file_system_checkpoint.py",
    "test_file_system_checkpoint_cpu.py",
    "test_format_utils.py",
    "test_fsdp_model_state.py",
    "test_fsdp_optim_state.py",
    "test_fsdp_tp_checkpoint_conversion.py",
    "test_hsdp_checkpoint.py",
    "test_planner.py",
    "test_save_load_api.py",
    "test_tp_checkpoint.py",
    "e2e/test_e2e_save_and_load.py",
    "e2e/test_fine_tuning.py",
    "fsdp/test_fsdp_dsd.py",
)

# Tests that are not run with our storage, by a part of their names, and why.
LEFT_OUT = {
    "test_overwrite": "wants the words of torch's error; ours says that the step has a checkpoint already",
    ".test_storage_meta": "compares a checkpoint id with a path; ours has the step in it",
    "test_checkpointable_tensor_shard_save_load": (
        "looks at the pieces of a tensor in metadata; ours have one, of which any part is read"
    ),
}

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


def install() -> None:
    """Have tests run without GPUs, and with our storage where that is wanted."""
    import torch.testing._internal.common_distributed as common

    def whatever_there_is(*_: Any, **__: Any) -> Any:
        return lambda test: test

    # Before anything else takes them from there.
    for name in ("skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu", "require_n_gpus_for_nccl_backend"):
        if hasattr(common, name):
            setattr(common, name, whatever_there_is)
    common.TIMEOUT_DEFAULT = TEST_SECONDS
    also_on_the_cpu()
    by_forks(common)
    with_one_backend()
    if os.environ[STORAGE] == "ours":
        take_over()


def by_forks(common: Any) -> None:
    """Have ranks forked, where torch has them start anew: without GPUs nothing speaks against it."""
    import torch.multiprocessing as processes

    if __name__ == "__main__":
        # Who sets it later is refused, and takes that for good.
        processes.set_start_method("fork")

    def fork(self: Any) -> None:
        if int(self.world_size) < 1:
            # As many ranks as there are GPUs: it would pass without having done anything.
            raise unittest.SkipTest("no ranks without GPUs")
        self._start_processes(processes.get_context("fork").Process)

    common.MultiProcessTestCase._spawn_processes = fork


def with_one_backend() -> None:
    """Have tests that name gloo for the CPU, and the backend of their device beside it, name it once."""
    import torch.distributed as dist

    begin = dist.init_process_group

    def begin_once(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        begin("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    dist.init_process_group = begin_once


def also_on_the_cpu() -> None:
    """Have those tests made for the CPU that torch makes for all devices but that."""
    import torch
    import torch.testing._internal.common_device_type as devices

    there_is = torch.accelerator.current_accelerator(check_available=True)
    # A build for GPUs names its kind even where there is none, and tests take that for their device.
    torch.accelerator.current_accelerator = lambda check_available=False: there_is
    made = devices.instantiate_device_type_tests

    def make(test: Any, scope: Any, except_for: Any = None, only_for: Any = None, **options: Any) -> None:
        if "cpu" in ([except_for] if isinstance(except_for, str) else except_for or ()):
            except_for, only_for = None, "cpu"
        made(test, scope, except_for=except_for, only_for=only_for, **options)

    devices.instantiate_device_type_tests = make


def take_over() -> None:
    """Put our storage in the places of torch's."""
    import torch.distributed.checkpoint as dcp
    import torch.distributed.checkpoint.format_utils
    import torch.distributed.checkpoint.hf_storage  # Its classes are made of torch's, and stay so.
    from forebay._dcp_plan import CheckpointId
    from forebay.dcp import ForebayReader, ForebayWriter, _url_of
    from torch.distributed.checkpoint import filesystem

    class Writer(ForebayWriter):
        """Takes a path for one checkpoint, as torch's does, and replaces the one that is there."""

        def __init__(self, path: Any, *_: Any, overwrite: bool = True, **__: Any) -> None:
            # Torch pickles what is no tensor. Ranks that do not talk know the path, which is of one test.
            run_id = os.path.basename(os.fspath(path))
            super().__init__(path, step=0, overwrite=overwrite, allow_pickle=True, run_id=run_id, timeout=30)
            self.path = path

        def reset(self, checkpoint_id: CheckpointId | None = None) -> None:
            if checkpoint_id is not None:
                self.url, self._native, self.path = _url_of(checkpoint_id), None, checkpoint_id

        @classmethod
        def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
            return own["FileSystemWriter"].validate_checkpoint_id(checkpoint_id)

    class Reader(ForebayReader):
        """Takes a path for one checkpoint."""

        def __init__(self, path: Any, *_: Any, **__: Any) -> None:
            super().__init__(path, allow_pickle=True)
            self.path = path

        def reset(self, checkpoint_id: CheckpointId | None = None) -> None:
            super().reset(None)
            if checkpoint_id is not None:
                self.url, self._native, self.path = _url_of(checkpoint_id), None, checkpoint_id

        @classmethod
        def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
            return own["FileSystemReader"].validate_checkpoint_id(checkpoint_id)

    own: dict[str, Any] = {}
    for name, ours in (("FileSystemWriter", Writer), ("FileSystemReader", Reader)):
        own[name] = getattr(filesystem, name)
        # So that another process finds it.
        ours.__qualname__ = ours.__name__ = f"Ours{name}"
        ours.__module__ = __name__
        globals()[ours.__name__] = ours
        for module in (dcp, filesystem, dcp._storage_utils, torch.distributed.checkpoint.format_utils):
            if getattr(module, name, None) is own[name]:
                setattr(module, name, ours)


def run_file(path: Path, report: Path, names: list[str]) -> None:
    """Run tests of one file in this process, and note what became of them."""
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    chosen = unittest.TestSuite()
    for test in tests_of(unittest.defaultTestLoader.loadTestsFromModule(module)):
        is_named = not names or any(name in test.id() for name in names)
        if is_named and (os.environ[STORAGE] != "ours" or why_left_out(test.id()) is None):
            chosen.addTest(test)
    ids = [test.id() for test in tests_of(chosen)]
    result = unittest.TextTestRunner(verbosity=2).run(chosen)
    failed = [test.id() for test, _ in (*result.failures, *result.errors)]
    failed += [test.id() for test in result.unexpectedSuccesses]
    noted = {test: FAILED if any(is_about(one, test) for one in failed) else PASSED for test in ids}
    noted |= {test.id(): SKIPPED for test, _ in result.skipped if test.id() in noted}
    report.write_text(json.dumps(noted))


def is_about(failed: str, test: str) -> bool:
    """Say whether a failure is of a test, or of what is set up for all of its class."""
    return failed == test or f"({test.rpartition('.')[0]})" in failed


def tests_of(suite: unittest.TestSuite) -> list[Any]:
    found: list[Any] = []
    for test in suite:
        found.extend(tests_of(test) if isinstance(test, unittest.TestSuite) else [test])
    return found


def why_left_out(test: str) -> str | None:
    return next((why for name, why in LEFT_OUT.items() if name in test), None)


def outcome(path: Path, storage: str, names: list[str], log: Path) -> dict[str, str] | None:
    """Run a file in a process of its own; None where that comes to no end that tells."""
    with tempfile.TemporaryDirectory(prefix="forebay-suite-") as folder:
        report = Path(folder) / "report.json"
        env = {
            **os.environ,
            STORAGE: storage,
            # What tests leave behind goes with the folder.
            "TMPDIR": folder,
            "FOREBAY_STATE_DIR": folder,
            "FOREBAY_BUFFER_MEMORY": "64MiB",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, __file__, str(path), *names, "--report", str(report)]
        with log.open("w") as into:
            try:
                subprocess.run(command, env=env, check=False, timeout=FILE_SECONDS, stdout=into, stderr=into)
            except subprocess.TimeoutExpired:
                print(f"  {path.name} was not done after {FILE_SECONDS} s: see {log}", flush=True)
        return json.loads(report.read_text()) if report.exists() else None


def judge(path: Path, names: list[str], logs: Path) -> tuple[collections.Counter[str], list[str]]:
    """Run a file; gives how many tests came out how, and those that only torch's own storage passes."""
    ours = outcome(path, "ours", names, logs / f"{path.stem}-ours.log")
    counts: collections.Counter[str] = collections.Counter()
    if ours is None:
        return collections.Counter({FAILED: 1}), [path.name]
    doubtful = [test for test, what in ours.items() if what == FAILED]
    stock = outcome(path, "torch", doubtful, logs / f"{path.stem}-torch.log") if doubtful else {}
    failed = [test for test in doubtful if (stock or {}).get(test) == PASSED]
    counts.update(what for what in ours.values() if what != FAILED)
    counts.update({FAILED: len(failed), "not with torch's own": len(doubtful) - len(failed)})
    return +counts, failed


def suite(folder: Path, only: list[str], names: list[str], logs: Path) -> bool:
    """Run all files; says whether ours passed what it has to."""
    import torch

    total: collections.Counter[str] = collections.Counter()
    failed: list[str] = []
    for name in FILES:
        path = folder / name
        if only and not any(one in name for one in only):
            continue
        if not path.exists():
            print(f"{name}: not in this checkout", flush=True)
            continue
        counts, bad = judge(path, names, logs)
        print(f"{name}: {', '.join(f'{count} {what}' for what, count in counts.items())}", flush=True)
        for test in bad:
            print(f"  FAILED {test}", flush=True)
        total.update(counts)
        failed.extend(bad)
    print(f"torch {torch.__version__}: {', '.join(f'{count} {what}' for what, count in total.items())}")
    for name, why in LEFT_OUT.items():
        print(f"left out: {name}: {why}")
    return not failed and total[PASSED] > 0


def main() -> None:
    """Run one file, or all of them; the exit status says how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="test/distributed/checkpoint of a checkout of torch")
    parser.add_argument("names", nargs="*", help="only tests with one of these in their names")
    parser.add_argument("--only", action="append", default=[], help="only files with this in their names")
    parser.add_argument("--logs", type=Path, help="folder for what tests print; a temporary one without")
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_intermixed_args()
    if given.report is not None:
        run_file(given.folder, given.report, given.names)
        return
    logs = given.logs or Path(tempfile.mkdtemp(prefix="forebay-suite-logs-"))
    logs.mkdir(parents=True, exist_ok=True)
    if not suite(given.folder.resolve(), given.only, given.names, logs):
        sys.exit(f"see {logs}")


if STORAGE in os.environ:
    install()

if __name__ == "__main__":
    main()
