"""Telling readers: events are numbered at once and appended in batches (`docs/protocols.md` D3)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from shared.core.errors import LeaseLost, LogLost, Unavailable
from shared.core.events import EventId, LogEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.core.events import Chunk
    from shared.ports import Clock, Coordinator
    from shared.services.heartbeat import Beat
    from shared.settings import Settings

log = logging.getLogger(__name__)

UNHEARD_PAUSE = 2_000
RETRY_PAUSE = 200


class Publisher:
    """The owner's end of a thread's event log.

    `position` and `k` are the place of the next event, `index` its number in the run. `last`: the
    newest event that is in the log or on its way there.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        beat: Beat,
        incarnation: int,
        clock: Clock,
        settings: Settings,
    ) -> None:
        """Begin with nothing to tell."""
        self._coordinator, self._beat, self._clock = coordinator, beat, clock
        self._incarnation, self._settings = incarnation, settings
        self.start = self.position = self.k = self.index = 0
        self._pending: list[LogEvent] = []
        self._bytes = 0
        self._followed, self._closed = True, False
        self.last = self._acknowledged = beat.lease.last
        self.log_lost = False
        self._last_flush = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None

    def place(self, start: int, position: int, k: int, index: int) -> None:
        """Say where the next event stands."""
        self.start, self.position, self.k, self.index = start, position, k, index

    def tell(self, chunks: Iterable[Chunk]) -> None:
        """Number chunks and send them soon: the first after a pause at once."""
        if self._closed:
            return
        for chunk in chunks:
            id = EventId(self.start, self.position, self.k)
            event = LogEvent.make(self._incarnation, id, self.index, chunk)
            self._pending.append(event)
            self._bytes += len(event.json)
            self.last = id
            self.k += 1
            self.index += 1
        if self._pending:
            self._schedule()

    async def flush(self) -> None:
        """Return when all that was told is in the log.

        Raises:
            LeaseLost: another owner has the thread, or nothing answered while the lease lasted.
        """
        self._cancel_timer()
        while self._pending or self._flushing:
            if self._flushing is None:
                self._flushing = asyncio.ensure_future(self._flush())
            await asyncio.shield(self._flushing)
            self._beat.check(self._clock.now())

    def close(self) -> None:
        """Drop what was not sent; whoever goes on tells it."""
        self._cancel_timer()
        self._pending, self._closed = [], True

    def _schedule(self) -> None:
        if self._flushing or self._beat.lost:
            return
        pause = self._settings.flush_pause if self._followed else UNHEARD_PAUSE
        loop = asyncio.get_running_loop()
        delay = self._last_flush + pause / 1000 - loop.time()
        if delay <= 0 or (self._followed and self._bytes >= self._settings.flush_bytes):
            self._cancel_timer()
            self._flushing = loop.create_task(self._flush())
        elif self._timer is None:
            self._timer = loop.call_later(delay, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        if self._flushing is None and self._pending:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    def _cancel_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    async def _flush(self) -> None:
        """Send what is there in one call; a later call sends what came meanwhile."""
        batch, ttl = self._pending, self._settings.lease
        self._pending, self._bytes = [], 0
        sent_at = self._clock.now()
        try:
            if batch:
                appended = await self._coordinator.append(
                    self._beat.lease, batch, ttl, after=self._acknowledged
                )
                self._acknowledged = batch[-1].id
                self._followed = appended.followed
                self._beat.renewed(sent_at + ttl, appended.cancelled)
        except LeaseLost as lost:
            self.log_lost = isinstance(lost, LogLost)
            self._beat.lose()
        except Unavailable:
            self._pending = batch + self._pending
            await asyncio.sleep(RETRY_PAUSE / 1000)
        except Exception:
            log.exception("%s: telling failed; the next owner goes on", self._beat.lease.log)
            self._beat.lose()
        finally:
            self._last_flush = asyncio.get_running_loop().time()
            self._flushing = None
        if self._pending:
            self._schedule()
