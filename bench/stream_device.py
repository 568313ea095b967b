"""Streaming to a GPU, held against torch's own loader: tokens and JPEGs, one JSON.

    python bench/stream_device.py --rounds 5 --out stream_device.json

Runs on a machine with a GPU, torch and torchvision. Every contestant is a new process in each round, all of
them in turn; it drains one epoch that is not counted and then the one that is, and adds up on the GPU what
arrived there, which must be what was written. Files are in the page cache, but for the rows that say `cold`.

Then the same with work for the GPU: every batch is followed by matrix products that take about as long as is
asked for (`--step-ms`), and the limit is that work alone, with batches that are on the GPU already.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import statistics
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path

GB = 1_000_000_000
TOKENS = 2048
BATCH = 256
IMAGES = 8000
now = time.perf_counter


def make_tokens(folder, samples):
    """Write tokens into raw files, and tell their sum."""
    import numpy as np

    rng, total = np.random.default_rng(7), 0
    folder.mkdir()
    for part in range(8):
        tokens = rng.integers(0, 65536, samples // 8 * TOKENS, dtype=np.uint16)
        total += int(tokens.sum(dtype=np.uint64))
        tokens.tofile(folder / f"tokens-{part}.bin")
    return total


def make_images(folder):
    """Write JPEGs of about 500 x 375 and 100 KB with their labels into tars; tells the sum of the labels."""
    import torch
    from torchvision.io import encode_jpeg

    generator = torch.Generator().manual_seed(7)
    pictures = []
    for _ in range(64):
        coarse = torch.rand(3, 48, 64, generator=generator)[None]
        smooth = torch.nn.functional.interpolate(coarse, size=(375, 500), mode="bicubic")[0]
        noisy = (smooth + 0.12 * torch.randn(3, 375, 500, generator=generator)).clamp(0, 1)
        pictures.append(encode_jpeg((noisy * 255).to(torch.uint8), quality=88).numpy().tobytes())
    folder.mkdir()
    for part in range(8):
        with tarfile.open(folder / f"train-{part}.tar", "w") as tar:
            for index in range(part * IMAGES // 8, (part + 1) * IMAGES // 8):
                for ending, data in (("cls", str(index).encode()), ("jpg", pictures[index % 64])):
                    member = tarfile.TarInfo(f"{index:06}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return IMAGES * (IMAGES - 1) // 2


# --- contestants: each makes an iterable of one epoch, of dicts with what is added up on the GPU ---


def forebay_loader(folder, **options):
    """Stream to the GPU."""
    from forebay.torch import StreamLoader

    loader = StreamLoader(folder, batch_size=BATCH, shuffle=True, seed=3, drop_last=False, **options)
    return loader, loader.report


def forebay_tokens(folder, device):
    """Forebay: tokens."""
    chosen = {"name": "tokens", "dtype": "uint16", "tokens": TOKENS}
    return forebay_loader(folder, format=chosen, device=device)


def forebay_images(folder, device):
    """Forebay: JPEGs to what a network takes."""
    decode = {"jpg": "image:rrc:224,flip,normalize", "cls": "int"}
    return forebay_loader(folder, decode=decode, device=device)


def to_device(batches, device):
    """Move as everybody writes it: pinned by the loader, copied without waiting."""
    for batch in batches:
        if device is None:
            yield batch
        else:
            yield {name: value.to(device, non_blocking=True) for name, value in batch.items()}


class Epochs:
    """A new iterator for every epoch."""

    def __init__(self, begin):
        self.begin = begin

    def __iter__(self):
        return self.begin()


def torch_tokens(folder, device):
    """Tokens by a DataLoader with eight workers over numpy's memmap."""
    import numpy as np
    import torch

    class Tokens(torch.utils.data.Dataset):
        def __init__(self):
            paths = sorted(Path(folder).glob("*.bin"))
            self.parts = [np.memmap(path, np.uint16, "r").reshape(-1, TOKENS) for path in paths]

        def __len__(self):
            return sum(map(len, self.parts))

        def __getitems__(self, indices):
            length = len(self.parts[0])
            return [self.parts[index // length][index % length] for index in indices]

    def collate(rows):
        return {"tokens": torch.from_numpy(np.stack(rows))}

    loader = torch.utils.data.DataLoader(
        Tokens(),
        BATCH,
        shuffle=True,
        num_workers=8,
        multiprocessing_context="fork",
        collate_fn=collate,
        pin_memory=device is not None,
        persistent_workers=True,
    )
    return Epochs(lambda: to_device(loader, device)), dict


def torch_images(folder, device):
    """JPEGs by a DataLoader with sixteen workers and torchvision, from plain files beside the tars."""
    import torch
    from torchvision.io import decode_jpeg
    from torchvision.transforms import v2

    class Files(torch.utils.data.Dataset):
        def __init__(self):
            self.folder = Path(folder).with_name("files")
            self.transform = v2.Compose(
                [
                    v2.RandomResizedCrop(224, antialias=True),
                    v2.RandomHorizontalFlip(),
                    v2.ToDtype(torch.float32, scale=True),
                    v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
                ]
            )

        def __len__(self):
            return IMAGES

        def __getitem__(self, index):
            data = (self.folder / f"{index:06}.jpg").read_bytes()
            picture = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            return {"jpg": self.transform(picture), "cls": index}

    loader = torch.utils.data.DataLoader(
        Files(),
        BATCH,
        shuffle=True,
        num_workers=16,
        multiprocessing_context="fork",
        pin_memory=device is not None,
        persistent_workers=True,
    )
    return Epochs(lambda: to_device(loader, device)), dict


def nothing(_folder, device):
    """Labels that are on the GPU from the start."""
    import torch

    batches = torch.arange(IMAGES, device=device).split(BATCH)
    return [{"cls": batch} for batch in batches], dict


ALONE = "the work alone"
CONTESTANTS = {
    ALONE: (None, nothing),
    "Forebay": (forebay_tokens, forebay_images),
    "torch DataLoader": (torch_tokens, torch_images),
}


def drain(batches, adds, step):
    """One epoch: samples, the sum of what arrived, and seconds."""
    import torch

    start, samples = now(), 0
    total, events = torch.zeros(1, dtype=torch.int64, device="cuda"), []
    for batch in batches:
        values = batch[adds]
        samples += len(values)
        if adds == "tokens":
            # There is no sum of unsigned numbers of 16 bits.
            values = values.view(torch.int16).to(torch.int64).bitwise_and(0xFFFF)
        total += values.sum()
        if step:
            step()
            events.append(torch.cuda.Event())
            events[-1].record()
            if len(events) > 2:
                # As training does that looks at a loss: no more than two steps ahead.
                events[-3].synchronize()
    torch.cuda.synchronize()
    return {"samples": samples, "sum": int(total), "s": now() - start}


def worker(name, work, folder, is_cold, step_ms, pipe):
    """Drain two epochs, and tell of the second."""
    import torch

    try:
        torch.zeros(1, device="cuda")
        batches, report = CONTESTANTS[name][work](folder, "cuda")
        step = products(step_ms) if step_ms else None
        for _ in range(2):
            if is_cold:
                drop(folder)
            cpu = cpu_seconds()
            done = drain(batches, ("tokens", "cls")[work], step)
            cpu = cpu_seconds() - cpu
        told = report()
        kept = {key: told[key] for key in ("unpinned_tensors", "stalls") if key in told}
        pipe.send({**done, "cpu_s": cpu, "report": kept})
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-2000:]})
    finally:
        with contextlib.suppress(Exception):
            batches.close()
        # Workers of a DataLoader are not waited for.
        pipe.close()


def cpu_seconds():
    """Of this process and of those it began, also while they live."""
    total = time.process_time()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                stat = (path / "stat").read_text().rpartition(")")[2].split()
                if int(stat[1]) == os.getpid():
                    total += (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return total


def products(step_ms):
    """Make work that takes about so long, and nothing of the processor."""
    import torch

    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        matrix @ matrix
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(20):
        matrix @ matrix
    end.record()
    end.synchronize()
    count = max(1, round(step_ms / (begin.elapsed_time(end) / 20)))

    def step():
        for _ in range(count):
            matrix @ matrix

    return step


def drop(folder):
    """Out of the page cache."""
    for path in Path(folder).iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def one(name, work, folder, is_cold, step_ms):
    """One contestant in a process of its own."""
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    process = context.Process(target=worker, args=(name, work, str(folder), is_cold, step_ms, other))
    process.start()
    other.close()
    try:
        done = mine.recv() if mine.poll(240) else {"error": "no answer in time"}
    except EOFError:
        done = {"error": "the process died"}
    process.join(20)
    if process.is_alive():
        process.kill()
    if process.exitcode != 0 and "error" not in done:
        print(name, "ended with", process.exitcode, file=sys.stderr)
    return done


def race(title, work, folder, wanted, options, deadline, is_cold=False, step_ms=0):
    """All contestants in turn, round by round; gives their rows."""
    size = sum(path.stat().st_size for path in Path(folder).iterdir() if path.suffix != ".fbi")
    names = [name for name in CONTESTANTS if step_ms or name != ALONE]
    rounds = {name: [] for name in names}
    failed = {}
    for number in range(options.rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if now() > deadline or name in failed:
                continue
            done = one(name, work, folder, is_cold, step_ms)
            if "error" in done:
                failed[name] = done
                print(title, name, done, file=sys.stderr)
            elif (done["samples"], done["sum"]) != wanted:
                failed[name] = {"error": f"{done['samples']} samples came, or not what was written"}
                print(title, name, failed[name], done, file=sys.stderr)
            else:
                rounds[name].append(done)
    rows = {"title": title, "failed": failed, "rows": {}}
    for name, all_done in rounds.items():
        if not all_done:
            continue
        rate = [done["samples"] / done["s"] for done in all_done]
        rows["rows"][name] = {
            "samples/s": spread(rate),
            "GB/s": spread([size / done["s"] / GB for done in all_done]),
            "cpu_s/GB": spread([done["cpu_s"] * GB / size for done in all_done]),
            "report": all_done[-1]["report"],
        }
        print(title, name, json.dumps(rows["rows"][name]), flush=True)
    return rows


def spread(values):
    """Median, least and most."""
    return [round(value, 4) for value in (statistics.median(values), min(values), max(values))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=400_000, help="of tokens")
    parser.add_argument("--step-ms", type=float, default=50.0, help="work of the GPU for a batch")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which no round begins")
    parser.add_argument("--only", default="", help="only tables whose title contains this")
    parser.add_argument("--dir", type=Path, help="folder on the disk to measure")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    deadline = now() + options.budget
    with tempfile.TemporaryDirectory(prefix="stream-", dir=options.dir) as made:
        tokens, images = Path(made) / "tokens", Path(made) / "images"
        wanted = [(options.samples, make_tokens(tokens, options.samples)), (IMAGES, make_images(images))]
        files = Path(made) / "files"
        files.mkdir()
        for path in images.iterdir():
            with tarfile.open(path) as tar:
                tar.extractall(files, filter="data")
        index(tokens, images)
        os.sync()
        works = [
            ("tokens in memory", 0, tokens, {}),
            ("tokens, cold", 0, tokens, {"is_cold": True}),
            ("images in memory", 1, images, {}),
            ("images, with work", 1, images, {"step_ms": options.step_ms}),
        ]
        tables = [
            race(title, work, folder, wanted[work], options, deadline, **more)
            for title, work, folder, more in works
            if options.only in title
        ]
    if options.out:
        options.out.write_text(json.dumps(tables, indent=1) + "\n")
    return 1 if any("Forebay" in table["failed"] for table in tables) else 0


def index(tokens, images):
    """Make the indexes, as people do before they train."""
    import forebay

    chosen = {"name": "tokens", "dtype": "uint16", "tokens": TOKENS}
    forebay.stream(tokens, batch_size=1, format=chosen, save_index=True).close()
    forebay.stream(images, batch_size=1, save_index=True).close()


if __name__ == "__main__":
    sys.exit(main())
