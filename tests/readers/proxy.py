"""A TCP proxy that cuts connections at random places, a given number of times."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READ = 65_536


class CuttingProxy:
    """Hands on what a server says, and cuts each connection until there were enough cuts.

    Where it cuts is random, by `seed`: inside a header, a frame or a character, up to `most` bytes
    into the answer; and so is how: with an end, or with a reset.
    """

    def __init__(self, target: str, *, cuts: int, most: int, seed: int) -> None:
        parts = urlsplit(target)
        self._host, self._port = str(parts.hostname), int(parts.port or 0)
        self._random = random.Random(seed)  # noqa: S311 - not for secrets
        self._most, self._left = most, cuts
        self.cuts = 0
        self.url = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CuttingProxy]:
        """Listen while the block runs."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        budget = self._budget()
        asking = asyncio.create_task(_pump(reader, up_writer))
        try:
            while data := await up_reader.read(READ):
                if budget is not None and len(data) >= budget:
                    self.cuts += 1
                    await self._cut(writer, data[:budget])
                    return
                budget = budget and budget - len(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            asking.cancel()
            for each in (writer, up_writer):
                each.transport.abort()

    def _budget(self) -> int | None:
        if self._left == 0:
            return None
        self._left -= 1
        return self._random.randrange(1, self._most)

    async def _cut(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        if self._random.random() < 0.5:  # an end, after what was written; else a reset
            with suppress(ConnectionError):
                writer.close()
                await writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(READ):
            writer.write(data)
            await writer.drain()
