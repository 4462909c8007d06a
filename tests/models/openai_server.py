"""A server with the streaming part of OpenAI's chat API, over real HTTP on the loopback.

async with OpenAIServer() as server:
    server.replies = [stream(text("Hello", " world"))]
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from types import TracebackType

Ending = Literal["done", "no-done", "eof", "cut", "hang"]


@dataclass
class Reply:
    """What one request is answered with.

    Endings: `done` as OpenAI does; `no-done` without the last marker; `eof` a clean end of the body
    right after the chunks; `cut` a closed socket; `hang` silence until the client goes away.
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


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "served-model",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def usage(prompt: int, completion: int, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    return chunk({}) | {
        "choices": [],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        },
    }


def text(*words: str) -> list[dict[str, Any]]:
    return [chunk({"role": "assistant", "content": words[0]})] + [
        chunk({"content": word}) for word in words[1:]
    ]


def call(index: int, id: str, name: str, *args: str) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": ""}
    first = {"index": index, "id": id, "type": "function", "function": function}
    return [chunk({"tool_calls": [first]})] + [args_delta(index, part) for part in args]


def args_delta(index: int, part: str) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})


def stream(
    *chunks: list[dict[str, Any]],
    finish: str | None = "stop",
    usage: dict[str, Any] | None = None,
    ending: Ending = "done",
) -> Reply:
    flat = [one for some in chunks for one in some]
    if finish:
        flat.append(chunk({}, finish))
    return Reply(chunks=flat + ([usage] if usage else []), ending=ending)


def error(status: int, message: str = "no", *, code: str | None = None, **headers: str) -> Reply:
    body = {"error": {"message": message, "type": "an_error", "code": code, "param": None}}
    return Reply(status, {k.replace("_", "-"): v for k, v in headers.items()}, body)


class OpenAIServer:
    """Answers requests with `replies`, in turn; the last one stays."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[Request] = []
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        """Set when a client closed its connection during a `hang`."""

        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}/v1"

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
        kind = "text/event-stream" if reply.status == 200 else "application/json"
        headers = {"content-type": kind, "transfer-encoding": "chunked"} | reply.headers
        lines = [f"HTTP/1.1 {reply.status} X", *(f"{k}: {v}" for k, v in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        if reply.status != 200:
            _write(writer, json.dumps(reply.body))
        for one in reply.chunks:
            _write(writer, f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n")
            await writer.drain()
        if reply.ending == "hang":
            await reader.read()
            self.left.set()
            return False
        if reply.ending == "cut":
            return False
        if reply.ending == "done" and reply.status == 200:
            _write(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _write(writer: asyncio.StreamWriter, data: str) -> None:
    raw = data.encode()
    writer.write(b"%x\r\n%s\r\n" % (len(raw), raw))
