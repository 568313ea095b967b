"""Loading to GPUs, with drivers made of C (crates/forebay-io/stub): everything but the hardware.

A library is opened once per process, so each test runs in an interpreter of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from forebay.safetensors import numpy as files

numpy = pytest.importorskip("numpy")

STUBS = Path(__file__).resolve().parents[2] / "forebay-io" / "stub"
COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(
    COMPILER is None or not STUBS.is_dir(), reason="needs a C compiler and the checkout"
)

Run = Callable[..., str]


def compile_stub(source: str, to: Path, *flags: str) -> str:
    library = to / f"{source}.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", str(library), str(STUBS / source), *flags]
    subprocess.run(command, check=True)
    return str(library)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run code with stubs made with these flags, and a file of tensors, `path`."""
    random = numpy.random.default_rng(3)
    tensors = {
        "a.weight": random.standard_normal((1000, 3000)).astype("float32"),
        "a.bias": random.standard_normal(77).astype("float16"),
        "b.weight": random.integers(0, 255, (64, 40_960), dtype="uint8"),
        "empty": numpy.zeros((0, 3), dtype="float64"),
        "scalar": numpy.array(7, dtype="int64"),
    }
    files.save_file(tensors, tmp_path / "m.safetensors")

    def runner(code: str, cuda: tuple[str, ...] = (), cufile: tuple[str, ...] = ()) -> str:
        head = f"import forebay, json\npath = {str(tmp_path / 'm.safetensors')!r}\n"
        environment = {
            **os.environ,
            "FOREBAY_CUDA_LIBRARY": compile_stub("cuda.c", tmp_path, *cuda),
            "FOREBAY_CUFILE_LIBRARY": compile_stub("cufile.c", tmp_path, *cufile),
        }
        done = subprocess.run(
            [sys.executable, "-c", head + textwrap.dedent(code)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return runner


def test_bytes_arrive_on_every_device_from_one_read(run: Run) -> None:
    run(
        """
        host = forebay.load(path, framework="numpy")
        both = forebay.load_each(path, ["cuda:0", "cuda:1"], framework="dlpack", pinned="8MiB")
        for ordinal, weights in enumerate(both):
            assert list(weights) == list(host)
            for name, tensor in weights.items():
                assert tensor.tobytes() == host[name].tobytes(), name
                assert tensor.__dlpack_device__() == (2, ordinal)
                assert tensor.nbytes == 0 or tensor.address % 256 == 0
        report = both[0].report
        assert report["device"]["copied_bytes"] == 2 * report["tensor_bytes"]
        assert report["device"]["ring"]["bytes_max"] == 8 << 20
        assert not both[0].ledger.to_dict()["downgrades"]
        one = forebay.load(path, "cuda:1", select="a.*", shard=(1, 2, {"*.weight": 1}), framework="dlpack")
        part = host["a.weight"][:, 1500:]
        assert one["a.weight"].tobytes() == part.tobytes() and "b.weight" not in one
        # On this machine there is no way around host memory, and the account says so.
        assert any(step["wanted"] == "gds" for step in one.ledger.to_dict()["downgrades"])
        """,
        cuda=("-DDEVICES=2",),
    )


def test_capsules_have_the_layout_of_dlpack_and_hold_the_memory(run: Run) -> None:
    run(
        """
        import ctypes, gc
        weights = forebay.load(path, "cuda", framework="dlpack")
        capsule = weights["a.weight"].__dlpack__(stream=1)
        newer = weights["a.weight"].__dlpack__(max_version=(1, 1), dl_device=(2, 0), copy=False)
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

        class Tensor(ctypes.Structure):
            _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32),
                        ("dims", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]

        class Newer(ctypes.Structure):
            _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]

        old = Tensor.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor"))
        new = Newer.from_address(api.PyCapsule_GetPointer(newer, b"dltensor_versioned"))
        assert (new.major, new.flags) == (1, 0)
        address = weights["a.weight"].address
        for tensor in (old, new.tensor):
            assert (tensor.data, tensor.kind, tensor.ordinal, tensor.dims) == (address, 2, 0, 2)
            assert (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1)
            assert tensor.shape[:2] == [1000, 3000] and tensor.strides[:2] == [3000, 1]
        # Device memory of the stub is memory of the host: it must be there as long as a capsule is.
        expected = forebay.load(path, framework="numpy")["a.weight"].tobytes()
        del weights, capsule
        gc.collect()
        assert ctypes.string_at(new.tensor.data, 1000 * 3000 * 4) == expected
        try:
            forebay.load(path, "cuda", framework="dlpack")["a.bias"].__dlpack__(copy=True)
        except BufferError:
            pass
        else:
            raise AssertionError("a copy was promised")
        """
    )


def test_required_gds_is_proved_or_refused(run: Run) -> None:
    run(
        """
        weights = forebay.load(path, "cuda:0", gds="require", verify="off", framework="dlpack")
        ledger = weights.ledger.to_dict()
        report = weights.report
        assert ledger["paths"]["gds"]["bytes"] == report["read_bytes"]
        assert report["device"]["gds"]["reads_posix"] == 0
        host = forebay.load(path, framework="numpy")
        assert all(weights[name].tobytes() == host[name].tobytes() for name in host)
        """,
        cufile=("-DNVFS",),
    )
    for flags, words in ((), "no direct path"), (("-DNVFS", "-DPOSIX_EVERY=1"), "went through host memory"):
        run(
            f"""
            try:
                forebay.load(path, "cuda:0", gds="require", verify="off", framework="dlpack")
            except forebay.UnsupportedError as error:
                assert {words!r} in str(error), error
            else:
                raise AssertionError("not refused")
            """,
            cufile=flags,
        )


def test_preferred_gds_goes_on_after_a_read_that_fails_and_memory_is_bounded(run: Run) -> None:
    run(
        """
        weights = forebay.load(path, "cuda:0", gds="prefer", verify="off", framework="dlpack")
        assert weights.report["device"]["gds"] is None
        host = forebay.load(path, framework="numpy")
        assert all(weights[name].tobytes() == host[name].tobytes() for name in host)
        try:
            forebay.load(path, "cuda:0", memory="1MiB", framework="dlpack")
        except forebay.LimitExceededError as error:
            assert "at most 1.0 MiB may be used" in str(error), error
        else:
            raise AssertionError("the bound was passed over")
        """,
        cufile=("-DNVFS", "-DFAIL_READ=5026"),
    )


def test_whole_files_go_to_devices_without_a_detour(run: Run) -> None:
    pytest.importorskip("torch")
    run(
        """
        import torch
        from forebay.safetensors import SafetensorError, _file
        from forebay.safetensors.torch import load_file
        # A torch without a GPU cannot show memory of one: what it would be given is looked at instead.
        torch.version.cuda = "13.0"
        _file.to_torch_device = lambda name, dtype, shape, data: (dtype, shape, data.tobytes())
        host = forebay.load(path, framework="numpy")
        for device in ("cuda", "cuda:1", 1, torch.device("cuda", 1)):
            loaded = load_file(path, device=device)
            assert list(loaded) == list(host)
            for name, (_, shape, data) in loaded.items():
                assert (tuple(shape), data) == (host[name].shape, host[name].tobytes()), name
        try:
            load_file(path, device="cuda:7")
        except SafetensorError as error:
            assert "no device cuda:7" in str(error), error
        else:
            raise AssertionError("loaded to nowhere")
        """,
        cuda=("-DDEVICES=2",),
    )


def test_what_devices_lack_is_said(run: Run) -> None:
    run(
        """
        warmed = forebay.warm("cuda:0", pinned=8 << 20)
        assert warmed["pinned_bytes"] == 8 << 20, warmed
        for device, framework, kind, words in (
            ("cuda:5", "dlpack", forebay.InvalidInputError, "no device cuda:5"),
            ("cuda:0", "dlpack", forebay.OutOfSpaceError, "are needed on cuda:0"),
            ("tpu", "dlpack", forebay.InvalidInputError, "unknown device 'tpu'"),
            ("cpu", "numpy", forebay.InvalidInputError, "gds='require' is for GPUs"),
            ("cuda:0", "numpy", ValueError, "no framework 'numpy' on devices"),
        ):
            try:
                gds = "require" if device == "cpu" else "prefer"
                forebay.load(path, device, framework=framework, gds=gds)
            except kind as error:
                assert words in str(error), error
            else:
                raise AssertionError(device)
        try:
            forebay.load_each(path, ["cpu", "cuda:0"], framework="dlpack")
        except forebay.InvalidInputError as error:
            assert "at once" in str(error), error
        else:
            raise AssertionError("two kinds of places")
        """,
        cuda=("-DMEMORY=18000000",),
    )


def test_a_machine_without_cuda_says_so_and_loads_to_the_host(run: Run) -> None:
    run(
        """
        import os
        os.environ["FOREBAY_CUDA_LIBRARY"] = "libforebay-nowhere.so"
        try:
            forebay.load(path, "cuda", framework="dlpack")
        except forebay.UnsupportedError as error:
            assert "there is no CUDA driver here" in str(error)
            assert "cpu" in error.hint
        else:
            raise AssertionError("loaded to nowhere")
        assert len(forebay.load(path, framework="numpy")) == 5
        """
    )
