"""Image libraries: JPEGs in memory, a random-resized-crop of 224 x 224 as torchvision defines it, half of
them mirrored, as uint8 [3, 224, 224] of a batch. `job.in_flight` threads; a round is `job.objects` images.

Libraries that leave the choice of rectangle to the caller get it from `rectangle`, drawn with `random`.
"""

import math
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SIDE = 224
BATCH = 64


def files(job):
    return [path.read_bytes() for path in sorted(Path(job.source).iterdir())]


def rectangle(width, height):
    """Left, top, width and height."""
    area = width * height
    for _ in range(10):
        wanted = area * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(wanted * ratio)), round(math.sqrt(wanted / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def threaded(job, batches, decode):
    """A round: every thread takes images and puts them into slots of its own batch."""
    data = files(job)
    pool = ThreadPoolExecutor(job.in_flight)

    def work(thread):
        batch, done = batches[thread], 0
        for index in range(thread, job.objects, job.in_flight):
            decode(data[index % len(data)], batch[done % BATCH])
            done += 1
        return done

    return lambda: sum(pool.map(work, range(job.in_flight)))


def numpy_batches(job):
    import numpy as np

    return [np.empty((BATCH, 3, SIDE, SIDE), np.uint8) for _ in range(job.in_flight)]


def torchvision(job):
    import numpy as np
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    transform = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()])

    def decode(data, out):
        image = decode_jpeg(torch.from_numpy(np.frombuffer(data, np.uint8)), ImageReadMode.RGB)
        out.copy_(transform(image))

    shape = (BATCH, 3, SIDE, SIDE)
    return threaded(job, [torch.empty(shape, dtype=torch.uint8) for _ in range(job.in_flight)], decode)


def pillow(job):
    import io

    import numpy as np
    from PIL import Image

    def decode(data, out):
        image = Image.open(io.BytesIO(data)).convert("RGB")
        left, top, width, height = rectangle(*image.size)
        image = image.crop((left, top, left + width, top + height)).resize((SIDE, SIDE), Image.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        out[:] = np.asarray(image).transpose(2, 0, 1)

    return threaded(job, numpy_batches(job), decode)


def opencv(job):
    import cv2
    import numpy as np

    cv2.setNumThreads(1)
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION

    def decode(data, out):
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        left, top, width, height = rectangle(image.shape[1], image.shape[0])
        image = image[top : top + height, left : left + width]
        image = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        if random.random() < 0.5:
            image = cv2.flip(image, 1)
        for channel in range(3):
            cv2.extractChannel(image, channel, out[channel])

    return threaded(job, numpy_batches(job), decode)


def spdl(job):
    import numpy as np
    import spdl.io

    def decode(data, out):
        packets = spdl.io.demux_image(data)
        codec = packets.codec
        left, top, width, height = rectangle(codec.width, codec.height)
        flip = "hflip," if random.random() < 0.5 else ""
        crop = f"crop={width}:{height}:{left}:{top}:exact=1"
        description = f"{crop},scale={SIDE}:{SIDE}:flags=bilinear,{flip}format=rgb24"
        frames = spdl.io.decode_packets(packets, filter_desc=description)
        array = np.asarray(spdl.io.to_numpy(spdl.io.convert_frames(frames)))
        np.copyto(out, array.transpose(2, 0, 1))

    return threaded(job, numpy_batches(job), decode)


def dali(job):
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    data = [np.frombuffer(one, np.uint8) for one in files(job)]
    count = iter(range(10**12))

    @pipeline_def(batch_size=BATCH, num_threads=job.in_flight, device_id=None, prefetch_queue_depth=1)
    def steps():
        encoded = fn.external_source(source=lambda _: data[next(count) % len(data)], batch=False)
        images = fn.decoders.image_random_crop(
            encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        images = fn.resize(images, size=[SIDE, SIDE], interp_type=types.INTERP_LINEAR, antialias=True)
        mirror = fn.random.coin_flip()
        return fn.crop_mirror_normalize(images, mirror=mirror, dtype=types.UINT8, output_layout="CHW")

    pipe = steps()
    pipe.build()

    def once():
        done = 0
        while done < job.objects:
            (batch,) = pipe.run()
            done += len(batch)
        return done

    return once


OPS = {"torchvision": torchvision, "pillow": pillow, "opencv": opencv, "spdl": spdl, "dali": dali}
