"""Server-sent events: the frames of both stream routes, and the response that sends them.

Why not `fastapi.sse`: it sends one message per event, checks each event with a model, puts the
data before the id, and says `: ping`. Here a batch of events, which are JSON already, is one
message, and clients of `threads/subscribe` get exactly `data: ` frames and comments
(`docs/spec/signals.md` 8.4, 8.5).
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any

from anyio import CancelScope, create_task_group
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shared.core.errors import WakelineError
from shared.core.events import Cursor, LogEvent
from shared.services.follow import Following

log = logging.getLogger(__name__)

CONNECTED = b": connected\n\n"
HEARTBEAT = b": heartbeat\n\n"
RETRY = b"retry: 1000\n\n"
DONE = b"data: [DONE]\n\n"

HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "connection": "keep-alive",
    "x-accel-buffering": "no",
}

Frames = AsyncGenerator[bytes, None]


async def subscription(following: Following, heartbeat: int) -> Frames:
    """Give the frames of `threads/subscribe`: comments and data, nothing else (8.4)."""
    yield CONNECTED
    try:
        async with aclosing(following.batches(heartbeat)) as batches:
            async for batch in batches:
                yield _data(batch) if batch else HEARTBEAT
    except Exception as error:  # a stream that has begun can only tell it inside
        yield _error(error)
    yield DONE


async def event_source(following: Following, heartbeat: int) -> Frames:
    """Give the frames that a browser's EventSource takes up again by itself."""
    yield RETRY
    try:
        async with aclosing(following.batches(heartbeat)) as batches:
            async for batch in batches:
                yield _data_with_ids(batch, following.incarnation) if batch else HEARTBEAT
    except Exception as error:
        yield _error(error)


def _data(batch: Sequence[LogEvent]) -> bytes:
    frames = "\n\ndata: ".join([event.json for event in batch])
    return f"data: {frames}\n\n".encode()


def _data_with_ids(batch: Sequence[LogEvent], incarnation: int) -> bytes:
    frames = [f"id: {Cursor(incarnation, e.id)}\ndata: {e.json}\n\n" for e in batch]
    return "".join(frames).encode()


def _error(error: Exception) -> bytes:
    """Give the last chunk of a stream that broke; never a stack (9.3.10)."""
    if isinstance(error, WakelineError):
        log.warning("a stream ended: %s", error)
        told = {"message": str(error), "name": type(error).__name__}
    else:
        log.error("a stream broke", exc_info=error)
        told = {"message": "Internal error", "name": "InternalError"}
    return b"data: " + to_json({"type": "error", "payload": {"error": told}}) + b"\n\n"


class EventStream(Response):
    """Sends frames until they end or the client goes away; then closes their source at once."""

    def __init__(self, frames: Frames) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send, and listen for the client's end meanwhile."""
        async with create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
            with suppress(OSError):  # from `send`: the connection is closed
                await self._send(send)
            tasks.cancel_scope.cancel()

    async def _send(self, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        async with aclosing(self._frames) as frames:
            async for frame in frames:
                await send(_body(frame, more=True))
        await send(_body(b"", more=False))


def _body(content: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


async def _cancel_when_gone(receive: Receive, scope: CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
