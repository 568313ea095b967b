"""Loading weights to a GPU, held against other loaders and against the limits of disk and bus: one JSON.

    python bench/load_device.py --sizes 4,16 --rounds 5 --budget 540 --out load_device.json

Runs on a machine with a GPU, torch and the wheels of the contestants that are there; none of them is
needed but forebay. Every contestant loads the same safetensors file in a process of its own, all of them
in each round, in turn; after every load all bytes are compared on the GPU with what was written. The
limits are measured in the same rounds: plain direct reads of the same file by threads, as many and of as many
bytes as were found to be fastest, and plain copies of pinned memory.

`cold` is after the file was dropped from the page cache, `warm` when it is in it, `tmpfs` a file in /dev/shm.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import signal
import statistics
import struct
import sys
import time
import traceback
from pathlib import Path

from harness.plain import in_threads, memory, reused

GB = 1_000_000_000
# Shapes of one layer of an 8B model.
LAYER = {
    "self_attn.q_proj.weight": (4096, 4096),
    "self_attn.k_proj.weight": (1024, 4096),
    "self_attn.v_proj.weight": (1024, 4096),
    "self_attn.o_proj.weight": (4096, 4096),
    "mlp.gate_proj.weight": (14336, 4096),
    "mlp.up_proj.weight": (14336, 4096),
    "mlp.down_proj.weight": (4096, 14336),
    "input_layernorm.weight": (4096,),
    "post_attention_layernorm.weight": (4096,),
}
PACKAGES = [
    "forebay",
    "torch",
    "safetensors",
    "fastsafetensors",
    "runai-model-streamer",
    "kvikio-cu13",
    "kvikio-cu12",
]
now = time.perf_counter


def shapes_of(size):
    """Names and shapes of bf16 tensors of about `size` bytes, in file order."""
    shapes, total, layer = {}, 0, 0
    while True:
        for name, shape in LAYER.items():
            bytes_ = 2
            for side in shape:
                bytes_ *= side
            if total + bytes_ > size:
                return shapes, total
            shapes[f"model.layers.{layer}.{name}"] = shape
            total += bytes_
        layer += 1


def reference(size):
    """Make the tensors on the GPU, the same in every process."""
    import torch

    shapes, _ = shapes_of(size)
    made = {}
    for index, (name, shape) in enumerate(shapes.items()):
        generator = torch.Generator(device="cuda:0").manual_seed(index)
        made[name] = torch.randint(
            -32768, 32768, shape, dtype=torch.int16, device="cuda:0", generator=generator
        )
    return made


def write(path, size):
    """Write the file, tensor by tensor, and have it on the disk."""
    shapes, total = shapes_of(size)
    header, at = {}, 0
    for name, shape in shapes.items():
        bytes_ = 2
        for side in shape:
            bytes_ *= side
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + bytes_]}
        at += bytes_
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in reference(size).values():
            file.write(tensor.cpu().numpy().data)
        file.flush()
        os.fsync(file.fileno())
    return total


def drop(path):
    """Out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    with contextlib.suppress(OSError), open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("1\n")


def disk_bytes(path):
    """What the disk of a file has given so far, to whomever."""
    device = os.stat(path).st_dev
    number = [str(os.major(device)), str(os.minor(device))]
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if fields[:2] == number:
            return int(fields[5]) * 512
    return 0


def heat(path):
    """Into the page cache."""
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(64 << 20)
        while file.readinto(buffer):
            pass


# --- contestants: each is a function that makes a loader of a path; what it must do to let go of the tensors,
# which is not measured, is the loader's `close` ---


def with_forebay():
    """Forebay, through pinned memory."""
    import forebay

    notes = {"warm": forebay.warm("cuda:0")}

    def load(path):
        weights = forebay.load(path, "cuda:0", gds="off", verify="off")
        notes["report"] = weights.report
        notes["ledger"] = json.loads(json.dumps(weights.ledger.to_dict()))
        return weights

    return load, notes


def with_safetensors():
    """Load by the safetensors library, straight to the GPU."""
    from safetensors.torch import load_file

    return lambda path: load_file(path, device="cuda:0"), {}


def with_fastsafetensors():
    """Load by fastsafetensors without GDS, which is not there on machines without nvidia-fs."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    held = []

    def close():
        while held:
            held.pop().close()

    def load(path):
        loader = SafeTensorsFileLoader(SingleGroup(), "cuda:0", nogds=True)
        loader.add_filenames({0: [path]})
        files = loader.copy_files_to_device()
        held.extend([loader, files])
        return {name: files.get_tensor(name) for name in files.key_to_rank_lidx}

    load.close = close
    return load, {}


def with_runai():
    """Load by the Run:ai streamer, which brings tensors to the GPU itself."""
    from runai_model_streamer import SafetensorsStreamer

    def load(path):
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path, device="cuda:0")
            return dict(streamer.get_tensors())

    return load, {}


def with_kvikio():
    """Load by KvikIO: the whole file into one allocation by sixteen threads, tensors are views."""
    import kvikio
    import kvikio.defaults
    import torch

    kvikio.defaults.set({"num_threads": 16, "task_size": 4 << 20})

    def load(path):
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            (len_,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(len_))
        whole = torch.empty(size, dtype=torch.uint8, device="cuda:0")
        with kvikio.CuFile(path, "r") as file:
            if file.read(whole) != size:
                raise RuntimeError("short read")
        tensors = {}
        for name, info in header.items():
            begin, end = (8 + len_ + offset for offset in info["data_offsets"])
            tensors[name] = whole[begin:end].view(torch.bfloat16).reshape(info["shape"])
        return tensors

    return load, {}


CONTESTANTS = {
    "forebay": with_forebay,
    "safetensors": with_safetensors,
    "fastsafetensors": with_fastsafetensors,
    "runai": with_runai,
    "kvikio": with_kvikio,
}


def worker(name, pipe):
    """Serve one contestant: load, wait, compare, tell."""
    import torch

    wanted, load, notes = {}, None, {}
    while True:
        command, argument = pipe.recv()
        try:
            if command == "stop":
                return
            if command == "open":
                torch.zeros(1, device="cuda:0")
                start = now()
                load, notes = CONTESTANTS[name]()
                pipe.send({"open_s": now() - start, "notes": notes})
            elif command == "reference":
                wanted = {}
                torch.cuda.empty_cache()
                wanted = reference(argument)
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                pipe.send({})
            elif command == "load":
                cpu, start = time.process_time(), now()
                tensors = load(argument)
                torch.cuda.synchronize()
                took, cpu = now() - start, time.process_time() - cpu
                same = set(tensors) == set(wanted) and all(
                    torch.equal(tensor.view(torch.int16), wanted[key]) for key, tensor in tensors.items()
                )
                del tensors
                getattr(load, "close", lambda: None)()
                torch.cuda.empty_cache()
                pipe.send({"s": took, "cpu_s": cpu, "same": bool(same), "notes": notes})
        except Exception as error:
            pipe.send({"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-1500:]})


class Contestant:
    """A process with one contestant."""

    def __init__(self, name):
        context = multiprocessing.get_context("spawn")
        self.name, self.error = name, None
        self.pipe, child = context.Pipe()
        self.process = context.Process(target=worker, args=(name, child), daemon=True)
        self.process.start()

    def ask(self, command, argument=None, timeout=120):
        """Have something done; after a failure nothing more is asked. Between its turns a contestant is
        stopped, so that threads of one that wait busily take nothing from the others.
        """
        if self.error:
            return {"error": self.error}
        os.kill(self.process.pid, signal.SIGCONT)
        self.pipe.send((command, argument))
        try:
            answer = self.pipe.recv() if self.pipe.poll(timeout) else {"error": "no answer in time"}
        except EOFError:
            answer = {"error": "the process died"}
        if "error" in answer:
            self.error = answer["error"]
            print(self.name, answer, file=sys.stderr)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGSTOP)
        return answer

    def stop(self):
        """Let it go."""
        with contextlib.suppress(Exception):
            os.kill(self.process.pid, signal.SIGCONT)
            self.pipe.send(("stop", None))
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()


# Threads and bytes of a read among which the fastest is looked for, and how much of a file is read for it.
READ_THREADS = (1, 2, 4, 8, 16)
READ_BYTES = (1 << 20, 4 << 20, 8 << 20)
READ_TRIED = 2 << 30


def fastest_read(path):
    """Find out by how many threads and in which pieces plain reads are fastest: keywords of `plain_read`."""
    rates = {}
    for threads in READ_THREADS:
        for block in READ_BYTES:
            drop(path)
            rates[threads, block] = plain_read(path, threads, block, READ_TRIED)
    threads, block = max(rates, key=rates.get)
    return {"threads": threads, "block": block}


def plain_read(path, threads, block, most=None):
    """Read the file around the page cache, as fast as plain calls do: bytes per second."""
    size = min(os.path.getsize(path), most or 1 << 60)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    start = now()
    part = reused(memory, block, threads)
    in_threads(range(0, size, block), lambda at: os.preadv(fd, [part(at)], at), threads)
    os.close(fd)
    return size / (now() - start)


def pinned_copy(total=8 << 30, block=64 << 20):
    """Copy pinned memory to the GPU: bytes per second."""
    import torch

    source = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(256 << 20, dtype=torch.uint8, device="cuda:0")
    for _ in range(2):
        torch.cuda.synchronize()
        start, moved = now(), 0
        while moved < total:
            at = moved % (256 << 20)
            target[at : at + block].copy_(source[at : at + block], non_blocking=True)
            moved += block
        torch.cuda.synchronize()
        rate = moved / (now() - start)
    return rate


def refusals(path):
    """What Forebay says where GPUDirect Storage is not possible, and what it finds out about the machine."""
    import forebay

    found = {}
    for policy in ("require", "prefer"):
        start = now()
        try:
            weights = forebay.load(path, "cuda:0", gds=policy, verify="off", select="model.layers.0.*")
            found[policy] = {"ledger": weights.ledger.to_dict(), "device": weights.report.get("device")}
        except forebay.ForebayError as error:
            found[policy] = {"error": str(error), "hint": error.hint, "kind": error.kind}
        found[policy]["s"] = now() - start
    found["probe"] = forebay.gds(path, "cuda:0")
    found["too_large"] = None
    try:
        import torch

        free = torch.cuda.mem_get_info(0)[0]
        held = torch.empty(free - (64 << 20), dtype=torch.uint8, device="cuda:0")
        try:
            forebay.load(path, "cuda:0", gds="off")
        except forebay.OutOfSpaceError as error:
            found["too_large"] = str(error)
        del held
        torch.cuda.empty_cache()
    except Exception as error:
        found["too_large"] = f"not tried: {error}"
    return found


def median(values):
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def first_load(path):
    """A load in a fresh process, pinning and all: what a server that starts sees."""
    code = (
        "import time, json, torch; torch.zeros(1, device='cuda:0'); import forebay\n"
        f"t = time.perf_counter(); w = forebay.load({str(path)!r}, 'cuda:0', gds='off', verify='off')\n"
        "torch.cuda.synchronize(); print(json.dumps({'s': time.perf_counter() - t, 'report': w.report}))"
    )
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    return json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr[-1500:]}


def measure(size, mode, path, contestants, rounds, deadline):
    """All contestants in turn, round by round."""
    rates = {one.name: [] for one in contestants}
    cpu = {one.name: [] for one in contestants}
    from_disk = {one.name: [] for one in contestants}
    notes, wrong, limits = {}, [], {"plain_read": [], "pinned_copy": []}
    total = os.path.getsize(path)
    fastest = fastest_read(path) if mode == "cold" else {}
    for round_ in range(rounds):
        if now() > deadline:
            break
        if mode == "cold":
            drop(path)
            limits["plain_read"].append(plain_read(path, **fastest))
        limits["pinned_copy"].append(pinned_copy(4 << 30))
        turn = round_ % len(contestants)
        for one in contestants[turn:] + contestants[:turn]:
            if mode == "cold":
                drop(path)
            before = disk_bytes(path)
            answer = one.ask("load", str(path))
            if "error" in answer:
                continue
            from_disk[one.name].append((disk_bytes(path) - before) / total)
            rates[one.name].append(total / answer["s"])
            cpu[one.name].append(answer["cpu_s"] / (total / GB))
            if answer["notes"]:
                notes[one.name] = answer["notes"]
            if not answer["same"]:
                wrong.append((one.name, round_))
    return {
        "size": size,
        "mode": mode,
        "bytes": total,
        "bytes_per_s": {name: median(values) for name, values in rates.items() if values},
        "cpu_s_per_gb": {name: median(values) for name, values in cpu.items() if values},
        # 1 when cold and 0 when warm, or the comparison is none.
        "share_from_disk": {name: median(values) for name, values in from_disk.items() if values},
        "fastest_read": fastest,
        "limits_bytes_per_s": {name: median(values) for name, values in limits.items() if values},
        "wrong_bytes": wrong,
        "notes": notes,
    }


def versions():
    """What is installed."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def main():
    """Do everything, and write what is known after each step."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="4,16", help="GB, separated by commas")
    parser.add_argument("--modes", default="warm,cold,tmpfs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=540, help="seconds")
    parser.add_argument("--dir", default=".", help="folder on the disk to measure")
    parser.add_argument("--only", default=",".join(CONTESTANTS))
    parser.add_argument("--out", default="load_device.json")
    args = parser.parse_args()
    deadline = now() + args.budget
    import torch

    result = {
        "machine": {
            "gpu": torch.cuda.get_device_name(0),
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "memory": Path("/proc/meminfo").read_text().splitlines()[0],
            "versions": versions(),
        },
        "contestants": {},
        "results": [],
    }

    def keep():
        Path(args.out).write_text(json.dumps(result, indent=1, default=str))

    contestants = []
    for name in args.only.split(","):
        one = Contestant(name)
        answer = one.ask("open", timeout=90)
        result["contestants"][name] = answer
        contestants.append(one)
        keep()
    contestants = [one for one in contestants if not one.error]
    for text in args.sizes.split(","):
        size = int(float(text) * GB)
        path = Path(args.dir) / "load_device.safetensors"
        write(path, size)
        torch.cuda.empty_cache()
        for one in contestants:
            one.ask("reference", size)
        if "refusals" not in result:
            result["refusals"] = refusals(path)
            result["first_load_warm"] = first_load(path)
            keep()
        for mode in args.modes.split(","):
            place = path
            if mode == "tmpfs":
                place = Path("/dev/shm/load_device.safetensors")
                room = os.statvfs("/dev/shm")
                if room.f_bavail * room.f_frsize < size * 1.1:
                    continue
                place.write_bytes(b"")
                os.system(f"cp {path} {place}")
            elif mode == "warm":
                heat(path)
            result["results"].append(measure(size, mode, place, contestants, args.rounds, deadline))
            keep()
            if mode == "tmpfs":
                place.unlink()
        path.unlink()
    for one in contestants:
        one.stop()
    result["left_s"] = deadline - now()
    keep()
    print(json.dumps(result, indent=1, default=str))


if __name__ == "__main__":
    main()
