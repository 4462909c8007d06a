"""A server that speaks a model provider's streaming format, over real HTTP on the loopback.

A subclass says how one event is framed; `replies` say what is answered.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

if TYPE_CHECKING:
    from types import TracebackType

Ending = Literal["done", "no-done", "eof", "cut", "hang"]


@dataclass
class Reply:
    """What one request is answered with.

    Endings: `done` as the provider does; `no-done` without the last marker; `eof` a clean end of
    the body right after the chunks; `cut` a closed socket; `hang` silence until the client goes
    away.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    chunks: list[Any] = field(default_factory=list)
    ending: Ending = "done"


@dataclass
class Request:
    """What a client sent."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class ModelServer:
    """Answers requests with `replies`, in turn; the last one stays."""

    media_type: ClassVar = "text/event-stream"
    base: ClassVar = ""
    """The path of the base URL."""

    done: ClassVar = b""
    """What the provider sends after the last event."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[Request] = []
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        """Set when a client closed its connection during a `hang`."""

        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def frame(self, event: Any) -> bytes:
        """Put an event into its wire form; bytes are sent as they are."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def url(self) -> str:
        return self.address + self.base

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._read(reader):
                reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                if not await self._answer(reply, reader, writer):
                    return
        except ConnectionError:
            self.left.set()
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except asyncio.IncompleteReadError:
            return False
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:]) if k}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append(Request(head[0].split()[1], headers, json.loads(body)))
        self.asked.set()
        return True

    async def _answer(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Send the reply; tell whether the connection can go on."""
        if reply.status == 0:
            await reader.read()
            self.left.set()
            return False
        kind = self.media_type if reply.status == 200 else "application/json"
        headers = {"content-type": kind, "transfer-encoding": "chunked"} | reply.headers
        lines = [f"HTTP/1.1 {reply.status} X", *(f"{k}: {v}" for k, v in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        if reply.status != 200:
            _write(writer, json.dumps(reply.body).encode())
        for one in reply.chunks:
            _write(writer, one if isinstance(one, bytes) else self.frame(one))
            await writer.drain()
        if reply.ending == "hang":
            await reader.read()
            self.left.set()
            return False
        if reply.ending == "cut":
            return False
        if reply.ending == "done" and reply.status == 200 and self.done:
            _write(writer, self.done)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


NO_BYTE = Reply(status=0)
"""Silence instead of an answer."""


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
