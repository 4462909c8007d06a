"""A clock that moves only when a test says so."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

START = 1_700_000_000_000

_ROUNDS = 20  # turns of the event loop that let woken tasks run, and sleep again


class VirtualClock:
    """Implements `Clock`; `now` may be asked from any thread, the rest on one event loop.

    As on a real machine, setting the time of day neither wakes sleepers nor lets them sleep longer.
    """

    def __init__(self, now: int = START) -> None:
        self._passed = 0
        self._offset = now
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    def now(self) -> int:
        return self._passed + self._offset

    async def sleep(self, ms: int) -> None:
        """Wait until the clock was advanced by `ms`; at least let others run."""
        if ms <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._passed + ms, next(self._numbers), woken))
        await woken

    @property
    def sleepers(self) -> int:
        """How many tasks sleep on this clock."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    def advance(self, ms: int) -> None:
        """Move on at once, waking who is due; they run when the caller next awaits."""
        self._passed += ms
        self._wake()

    async def run(self, ms: int) -> None:
        """Move on from one sleeper's time to the next, letting each one run at its time."""
        end = self._passed + ms
        while True:
            await self._settle()
            self._forget_cancelled()
            if not self._sleepers or self._sleepers[0][0] > end:
                break
            self._passed = max(self._passed, self._sleepers[0][0])
            self._wake()
        self._passed = end

    def set(self, now: int) -> None:
        """Step to a time of day, which may be in the past."""
        self._offset = now - self._passed

    def _wake(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._passed:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)

    def _forget_cancelled(self) -> None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)

    async def _settle(self) -> None:
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
