"""Packs a folder with webdataset's ShardWriter: `python -m clients.pack_webdataset SOURCE TARGET`."""

import os
import sys

from webdataset import ShardWriter

from .pack import SHARD_BYTES


def main():
    source, target = sys.argv[1:]
    with ShardWriter(f"{target}/shard-%06d.tar", maxsize=SHARD_BYTES, maxcount=1 << 40, verbose=0) as writer:
        for folder, _, names in os.walk(source):
            for name in names:
                stem, _, extension = name.partition(".")
                with open(os.path.join(folder, name), "rb", buffering=0) as file:
                    writer.write({"__key__": stem, extension: file.read()})


if __name__ == "__main__":
    main()
