"""Clients that follow a thread over HTTP, and what they have read in the end."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode, urlsplit

from tests.crash.world import superseded
from tests.readers.serving import AGENT, LIMIT, RESOURCE, THREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Chunk = dict[str, Any]
Form = Literal["subscribe", "subscribe-header", "events-header", "events-query"]


class Refused(Exception):
    """The server did not begin a stream; `status` tells why."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Client:
    """Follows a thread without end; a connection that breaks is opened again where it was cut.

    It reads frames as a browser does: what is not whole when the connection ends is forgotten.
    With `buffer`, the kernel keeps no more than that for it while it does not read.
    """

    def __init__(
        self,
        url: str,
        form: Form = "subscribe",
        *,
        thread: str = THREAD,
        resource: str = RESOURCE,
        cursor: str = "",
        keep: bool = True,
        buffer: int | None = None,
    ) -> None:
        self._address = urlsplit(url)
        self._form: Form = form
        self._thread, self._resource = thread, resource
        self._keep, self._buffer = keep, buffer
        self.cursor = cursor
        self.chunks: list[Chunk] = []
        self.count = 0
        self.connections = 0
        self.done = False
        """Whether the server ended the stream with `[DONE]`."""
        self.on_chunk: Callable[[Chunk], None] = lambda _: None
        self.connected, self.reading = asyncio.Event(), asyncio.Event()
        self.reading.set()
        self._more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Client:
        self._task = asyncio.create_task(self._follow())
        async with asyncio.timeout(LIMIT):
            waiting = asyncio.create_task(self.connected.wait())
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError, Refused):
                await self._task

    async def until(self, wanted: Callable[[], bool]) -> None:
        """Return as soon as something is true of what was read."""
        async with asyncio.timeout(LIMIT):
            while not wanted():
                self._more.clear()
                await self._more.wait()

    async def has(self, number: int) -> None:
        """Return when it has read so many chunks."""
        await self.until(lambda: self.count == number)

    async def sees(self, type: str, times: int = 1) -> None:
        """Return when it has read chunks of a type."""
        await self.until(lambda: self.types.count(type) >= times)

    async def reads(self, text: str) -> None:
        """Return when it has read a text, and the end of that run."""
        await self.until(lambda: text in str(self.chunks) and self.types[-1] == "finish")

    async def ended(self) -> None:
        """Return when the server has ended the stream or refused it; raises `Refused`."""
        assert self._task
        await asyncio.wait_for(asyncio.shield(self._task), LIMIT)

    @property
    def types(self) -> list[str]:
        return [chunk["type"] for chunk in self.chunks]

    @property
    def cursors(self) -> list[str]:
        return [chunk["cursor"] for chunk in self.chunks]

    async def _follow(self) -> None:
        while not self.done:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._connection()

    async def _connection(self) -> None:
        with socket.socket() as made:
            if self._buffer:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer)
            made.setblocking(False)
            address = (str(self._address.hostname), int(self._address.port or 0))
            await asyncio.get_running_loop().sock_connect(made, address)
            reader, writer = await asyncio.open_connection(sock=made, limit=self._buffer or 65_536)
            try:
                writer.write(self._request())
                await self._read(reader)
            finally:
                writer.transport.abort()

    def _request(self) -> bytes:
        headers = {"host": "test", "content-type": "application/json", "content-length": "0"}
        if self.cursor and self._form != "events-query":
            headers["last-event-id"] = self.cursor
        if self._form.startswith("subscribe"):
            body = json.dumps({"threadId": self._thread, "resourceId": self._resource})
            headers["content-length"] = str(len(body))
            line = f"POST /api/agents/{AGENT}/threads/subscribe HTTP/1.1"
        else:
            query = {"resourceId": self._resource}
            if self.cursor and self._form == "events-query":
                query["lastEventId"] = self.cursor
            body, line = "", f"GET /api/threads/{self._thread}/events?{urlencode(query)} HTTP/1.1"
        head = "\r\n".join([line, *(f"{name}: {value}" for name, value in headers.items())])
        return f"{head}\r\n\r\n{body}".encode()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status != 200:
            raise Refused(status)
        self.connections += 1
        rest = b""
        while True:
            size = int(await reader.readline() or b"0", 16)
            if size == 0:
                return
            while size:
                await self.reading.wait()
                piece = await reader.read(min(size, 65_536))
                if not piece:
                    return
                size -= len(piece)
                *frames, rest = (rest + piece).split(b"\n\n")
                for frame in frames:
                    self._frame(frame)
            await reader.readexactly(2)

    def _frame(self, frame: bytes) -> None:
        fields = dict(line.split(b": ", 1) for line in frame.split(b"\n") if line[:1] != b":")
        data = fields.get(b"data")
        self.connected.set()
        if data == b"[DONE]":
            self.done = True
        elif data:
            chunk = json.loads(data)
            self.count += 1
            self.cursor = chunk.get("cursor", self.cursor)
            if b"id" in fields:
                assert fields[b"id"].decode() == self.cursor
            if self._keep:
                self.chunks.append(chunk)
            self.on_chunk(chunk)
        self._more.set()


# ---- what was read ---------------------------------------------------------------------------

Line = tuple[str, Any]


def read_in(chunks: Sequence[Chunk]) -> list[Line]:
    """What a reader has before it in the end: signals, texts, calls with their results."""
    lines: list[Line] = []
    fresh = True
    for chunk in superseded([c for c in chunks if c["type"] != "resync"]):
        payload = chunk.get("payload", {})
        match chunk["type"]:
            case "data-user-message":
                lines.append(("user", chunk["data"]["contents"]))
            case "text-start":
                fresh = True
            case "text-delta" if fresh:
                lines.append(("text", payload["text"]))
                fresh = False
            case "text-delta":
                lines[-1] = ("text", lines[-1][1] + payload["text"])
            case "tool-result":
                lines.append(("result", [payload["toolCallId"], payload["result"]]))
            case "step-start":
                fresh = True
            case _:
                pass
    return lines


def stored_in(rows: Sequence[dict[str, Any]]) -> list[Line]:
    """The same of a transcript."""
    lines: list[Line] = []
    for row in rows:
        for part in row["content"]["parts"]:
            call = part.get("toolInvocation")
            if call:
                lines.append(("result", [call["toolCallId"], call["result"]]))
            elif part["type"] == "text":
                lines.append(("user" if row["role"] == "signal" else "text", part["text"]))
    return lines
