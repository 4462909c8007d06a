"""The embedded worker: polls wake-ups, advances threads, and ticks (`docs/design.md` 3).

On AWS the queue and the schedule call `Advance` and `Recover` instead; this is their stand-in for
one machine.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from shared.core.errors import WakelineError

if TYPE_CHECKING:
    from shared.ports import Delivery, WakeSource
    from shared.services.advance import Advance
    from shared.services.context import Backend, Slice
    from shared.services.recover import Recover

log = logging.getLogger(__name__)

WAIT = 20_000
HOLD = 30_000
GRACE = 0.6
"""Seconds that a stop leaves to steps under way, before they are cut and recovered elsewhere."""


class Worker:
    """Advances the threads of this machine until it is stopped."""

    def __init__(
        self, backend: Backend, source: WakeSource, advance: Advance, recover: Recover
    ) -> None:
        """Work on a backend's queue."""
        self._backend, self._source = backend, source
        self._advance, self._recover = advance, recover
        self._tasks: set[asyncio.Task[None]] = set()
        self._slices: set[Slice] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._room = asyncio.Semaphore(backend.settings.concurrency)

    def start(self) -> None:
        """Begin to poll and to tick."""
        self._loops = [asyncio.create_task(self._poll()), asyncio.create_task(self._tick())]

    def drain(self) -> None:
        """Take nothing new, and let every run be handed over before its next step."""
        for loop in self._loops:
            loop.cancel()
        for slice in self._slices:
            slice.stopping = True

    async def stop(self) -> None:
        """End what `drain` began; what takes too long is cut, and goes on elsewhere."""
        self.drain()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._loops, *self._tasks, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            await self._room.acquire()
            try:
                got = await self._source.receive(limit=1, wait=WAIT, hold=HOLD)
            except WakelineError as error:
                log.warning("the queue did not answer: %s", error)
                await asyncio.sleep(1)
                got = []
            if not got:
                self._room.release()
            for delivery in got:
                task = asyncio.create_task(self._handle(delivery))
                self._tasks.add(task)
                task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled() and task.exception():
            log.error("a wake-up failed and will come again", exc_info=task.exception())

    async def _handle(self, delivery: Delivery) -> None:
        slice = self._advance.slice()
        self._slices.add(slice)
        try:
            await self._advance.advance(delivery.wake, slice)
            await self._source.acknowledge(delivery)
        finally:
            self._slices.discard(slice)

    async def _tick(self) -> None:
        while True:
            try:
                await self._recover.tick()
            except Exception:
                log.exception("a tick failed; the next one goes on")
            await asyncio.sleep(self._backend.settings.tick / 1000)
