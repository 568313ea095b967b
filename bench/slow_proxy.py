"""A TCP proxy on loopback that lets so many bytes per second through to a server, over all connections
together: `python slow_proxy.py PORT SERVER_PORT BYTES_PER_SECOND`. What comes back is not limited.
"""

import asyncio
import sys

PIECE_BYTES = 128 << 10
BURST_SECONDS = 0.05
"""How far ahead of its rate it may be: a switch has some memory, too."""


class Wire:
    """Bytes pass in the order they ask, each when the ones before it have had their time."""

    def __init__(self, rate):
        self.rate = rate
        self.free_at = 0.0

    async def carry(self, count):
        now = asyncio.get_running_loop().time()
        self.free_at = max(self.free_at, now - BURST_SECONDS) + count / self.rate
        if self.free_at > now:
            await asyncio.sleep(self.free_at - now)


async def pump(reader, writer, wire=None):
    try:
        while data := await reader.read(PIECE_BYTES):
            if wire:
                await wire.carry(len(data))
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def main(port, server_port, rate):
    wire = Wire(rate)

    async def connected(reader, writer):
        there = await asyncio.open_connection("127.0.0.1", server_port, limit=PIECE_BYTES)
        await asyncio.gather(pump(reader, there[1], wire), pump(there[0], writer))

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=PIECE_BYTES)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
