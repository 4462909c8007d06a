"""One reader per thread and process, however many follow (`docs/design.md` 8, live follower)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shared.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.core.events import EventId, LogEvent
    from shared.ports import Coordinator

log = logging.getLogger(__name__)

WAIT = 20_000
PAGE = 500
BACKLOG = 256
RETRY = 0.5


class Listener:
    """A follower's end: batches in order, or `behind` when it was too slow to keep them all."""

    def __init__(self) -> None:
        """Begin empty."""
        self._batches: asyncio.Queue[list[LogEvent]] = asyncio.Queue(BACKLOG)
        self.behind = False

    def offer(self, batch: list[LogEvent]) -> None:
        """Take a batch, unless too many wait: then none, until `reset`."""
        if self.behind:
            return
        try:
            self._batches.put_nowait(batch)
        except asyncio.QueueFull:
            self.behind = True

    def reset(self) -> None:
        """Forget what waits; the log has it."""
        while not self._batches.empty():
            self._batches.get_nowait()
        self.behind = False

    async def next(self, wait: int) -> list[LogEvent]:
        """Return the next batch, or nothing after `wait` ms."""
        if not self._batches.empty():
            return self._batches.get_nowait()
        try:
            async with asyncio.timeout(wait / 1000):
                return await self._batches.get()
        except TimeoutError:
            return []


class Tail:
    """The end of one log, read once for all listeners of this process."""

    def __init__(self, coordinator: Coordinator, name: str) -> None:
        """Begin at the log's present end."""
        self._coordinator, self._name = coordinator, name
        self.listeners: set[Listener] = set()
        self.position: EventId | None = None
        self._task = asyncio.create_task(self._read())
        self.ready = asyncio.Event()

    def stop(self) -> None:
        """Read no more."""
        self._task.cancel()

    async def _read(self) -> None:
        while not self.ready.is_set():
            try:
                self.position = await self._coordinator.last(self._name)
                self.ready.set()
            except Unavailable:
                await asyncio.sleep(RETRY)
        while True:
            try:
                batch = await self._coordinator.read(
                    self._name, self.position, limit=PAGE, wait=WAIT
                )
            except Exception as error:
                level = logging.WARNING if isinstance(error, Unavailable) else logging.ERROR
                log.log(level, "log %s: %s", self._name, error)
                await asyncio.sleep(RETRY)
                continue
            if batch:
                self.position = batch[-1].id
                for listener in self.listeners:
                    listener.offer(batch)


class Tails:
    """The tails that somebody listens to."""

    def __init__(self, coordinator: Coordinator) -> None:
        """Read from a coordinator."""
        self._coordinator = coordinator
        self._tails: dict[str, Tail] = {}

    @asynccontextmanager
    async def listen(self, name: str) -> AsyncIterator[Listener]:
        """Hear all that is appended to a log from now on."""
        tail = self._tails.get(name)
        if tail is None:
            tail = self._tails[name] = Tail(self._coordinator, name)
        listener = Listener()
        tail.listeners.add(listener)
        try:
            await tail.ready.wait()
            yield listener
        finally:
            tail.listeners.discard(listener)
            if not tail.listeners and self._tails.get(name) is tail:
                del self._tails[name]
                tail.stop()
