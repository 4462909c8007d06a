"""Ending open streams when a server is told to stop."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

GONE: Message = {"type": "http.disconnect"}
END: Message = {"type": "http.response.body", "body": b"", "more_body": False}


class Draining:
    """An ASGI app around another one, whose open streams can be ended.

    A server that shuts down waits for its responses, and a stream of events has no end of its own.
    After `drain` the app inside sees its clients go away; the real ones get a proper end.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._drained = asyncio.Event()

    def drain(self) -> None:
        """End every response that is waiting for its client to go away, now and from now on."""
        self._drained.set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = ended = False
        open_response = False

        async def receive_or_drain() -> Message:
            nonlocal asked
            # Only a request that was read whole may be ended: its work has been taken over.
            message = await (self._first(receive) if asked else receive())
            asked = asked or not message.get("more_body", False)
            return message

        async def note_and_send(message: Message) -> None:
            nonlocal open_response, ended
            open_response = True
            ended = message["type"] == END["type"] and not message.get("more_body", False)
            await send(message)

        await self._app(scope, receive_or_drain, note_and_send)
        if open_response and not ended and self._drained.is_set():
            await send(END)

    async def _first(self, receive: Receive) -> Message:
        """Return the next message, or that the client is gone once this drains."""
        message = asyncio.ensure_future(receive())
        drained = asyncio.ensure_future(self._drained.wait())
        try:
            await asyncio.wait((message, drained), return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else GONE
        finally:
            message.cancel()
            drained.cancel()
