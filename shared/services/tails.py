"""One reader per thread and process, however many follow (`docs/design.md` 8, live follower)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from shared.core.errors import Unavailable
from shared.core.events import K_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from shared.core.events import EventId, LogEvent
    from shared.core.records import Thread
    from shared.ports import Coordinator

    Read = Callable[[], Awaitable[Thread | None]]

log = logging.getLogger(__name__)

WAIT = 20_000
PAGE = 500
BACKLOG = 256
BACKLOG_BYTES = 2_000_000
RETRY = 0.5


class Listener:
    """A follower's end: batches in order, or `behind` when it was too slow to keep them all."""

    def __init__(self, tail: Tail) -> None:
        """Begin empty."""
        self._tail = tail
        self._batches: asyncio.Queue[tuple[list[LogEvent], int]] = asyncio.Queue(BACKLOG)
        self._bytes = 0
        self.behind = False

    def offer(self, batch: list[LogEvent], size: int) -> None:
        """Take a batch, unless too much waits: then none, until `reset`."""
        if self.behind:
            return
        if self._batches.full() or (self._bytes and self._bytes + size > BACKLOG_BYTES):
            self.lag()
            return
        self._bytes += size
        self._batches.put_nowait((batch, size))

    def lag(self) -> None:
        """Let the follower read the log itself, from its own place."""
        self.behind = True
        if self._batches.empty():
            self._batches.put_nowait(([], 0))  # wakes it

    def reset(self) -> None:
        """Forget what waits; the log has it."""
        while not self._batches.empty():
            self._batches.get_nowait()
        self._bytes, self.behind = 0, False

    async def next(self, wait: int) -> list[LogEvent] | None:
        """Return the next batch, which may be empty when behind; None after `wait` ms."""
        try:
            async with asyncio.timeout(wait / 1000):
                batch, size = await self._batches.get()
        except TimeoutError:
            return None
        self._bytes -= size
        return batch

    async def once(self, start: int, read: Read) -> Thread | None:
        """Read the thread once per run, for all listeners of its log."""
        return await self._tail.once(start, read)


class Tail:
    """The end of one log, read once for all listeners of this process."""

    def __init__(self, coordinator: Coordinator, name: str) -> None:
        """Begin at the log's present end."""
        self._coordinator, self._name = coordinator, name
        self.listeners: set[Listener] = set()
        self._position: EventId | None = None
        self._index = -1
        self._read_at: tuple[int, asyncio.Future[Thread | None]] | None = None
        self._task = asyncio.create_task(self._run())
        self.ready = asyncio.Event()

    def stop(self) -> None:
        """Read no more."""
        self._task.cancel()

    async def once(self, start: int, read: Read) -> Thread | None:
        """Read something once for the run that began at `start`."""
        if self._read_at is None or self._read_at[0] != start:
            self._read_at = (start, asyncio.ensure_future(read()))
        try:
            return await asyncio.shield(self._read_at[1])
        except Unavailable:
            self._read_at = None  # no answer is none to keep: whoever comes next asks again
            raise

    async def _run(self) -> None:
        while True:
            try:
                await self._read()
            except Exception as error:
                level = logging.WARNING if isinstance(error, Unavailable) else logging.ERROR
                log.log(level, "log %s: %s", self._name, error)
                await asyncio.sleep(RETRY)

    async def _read(self) -> None:
        if not self.ready.is_set():
            self._position = await self._coordinator.last(self._name)
            self.ready.set()
        batch = await self._coordinator.read(self._name, self._position, limit=PAGE, wait=WAIT)
        if not batch:
            return
        whole = await self._follows(batch[0])
        size = sum(len(event.json) for event in batch)
        self._position, self._index = batch[-1].id, batch[-1].index
        for listener in self.listeners:
            if whole:
                listener.offer(batch, size)
            else:
                listener.lag()

    async def _follows(self, event: LogEvent) -> bool:
        """Tell whether nothing was trimmed or lost between our place and an event."""
        last = self._position
        if last is None or self._index < 0 or event.id.k == K_MAX:
            return True
        if event.id.start == last.start and event.index == self._index + 1:
            return True
        found = await self._coordinator.read(self._name, last, inclusive=True, limit=2)
        return [e.id for e in found] == [last, event.id]


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
        listener = Listener(tail)
        tail.listeners.add(listener)
        try:
            await tail.ready.wait()
            yield listener
        finally:
            tail.listeners.discard(listener)
            if not tail.listeners and self._tails.get(name) is tail:
                del self._tails[name]
                tail.stop()
