"""An HTTP server with a system beside it, in one process that ends within two seconds."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import uvicorn

from infra.local.draining import Draining

STREAMS_LIMIT = 1
# From the signal to the end of `stop`; uvicorn's own ticks and the interpreter need the rest.
END_LIMIT = 1.7


class System(Protocol):
    """What runs beside the HTTP routes: the worker and the ticks."""

    async def start(self) -> None:
        """Begin to take wake-ups and to tick; called before the first request is taken."""

    def drain(self) -> None:
        """Take no new wake-up and begin to hand over runs; called at the signal."""

    async def stop(self) -> None:
        """End what `drain` began and close everything; cut off after END_LIMIT."""


class Server(uvicorn.Server):
    """Uvicorn with a system: started before it listens, told of the end before it waits.

    Why not the app's lifespan: its end comes after uvicorn has waited for open streams, and the
    time that this took is missing then.
    """

    def __init__(self, app: Draining, system: System, on_up: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            access_log=False,
            http="h11",
            log_level="warning",
            loop="asyncio",
            timeout_graceful_shutdown=STREAMS_LIMIT,
            ws="none",
        )
        super().__init__(config)
        self._app = app
        self._system = system
        self._on_up = on_up
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told_at = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the system and listen; then say so."""
        self._loop = asyncio.get_running_loop()
        await self._system.start()
        await super().startup(sockets)
        self._on_up()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal: what would keep uvicorn waiting begins to end at once."""
        if self._loop and not self._told_at:
            self._told_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._drain)
        super().handle_exit(sig, frame)

    def _drain(self) -> None:
        self._app.drain()
        self._system.drain()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the responses, then the system, within the time that is left."""
        await super().shutdown(sockets)
        left = END_LIMIT - (time.monotonic() - self._told_at)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(left, 0)):
                await self._system.stop()


def bind(host: str, port: int) -> socket.socket:
    """Take the address before anything is built, so that a taken port is told at once.

    Raises:
        OSError: the address is in use or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio leaves Nagle on: each answer would take 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def serve(app: Any, system: System, listener: socket.socket, on_up: Callable[[], None]) -> None:
    """Serve an ASGI app until SIGINT or SIGTERM."""
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises SIGINT again when it is done
        Server(Draining(app), system, on_up).run([listener])
