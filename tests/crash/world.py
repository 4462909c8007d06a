"""A machine whose processes die: one store, and executors that come and go.

Time is virtual, so leases run out and ticks come when the test says so.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from shared.adapters.sqlite import (
    Database,
    Notices,
    SqliteCoordinator,
    SqliteTable,
    SqliteWakeQueue,
)
from shared.adapters.system import SystemIds
from shared.bootstrap import System, assemble
from shared.core import entries, keys
from shared.core.errors import LeaseLost
from shared.core.rows import rows
from shared.services.context import Backend
from shared.settings import Settings
from tests.clock import VirtualClock
from tests.contract.faults import Faults, FaultyCoordinator, FaultyQueue, FaultyTable, Killed
from tests.logs import whole_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from shared.core.app import App
    from shared.core.entries import AnyEntry
    from shared.ports import Lease

THREAD, RESOURCE = "thread-1", "user-1"
SETTINGS = Settings(flush_pause=0, heartbeat=20)


class World:
    """The machine: storage and clock. What its tools did is kept in `calls`."""

    def __init__(self, path: Path, make_app: Callable[[World], App]) -> None:
        self.clock = VirtualClock()
        path.mkdir()
        self.database = Database(path / "world.db")
        self.notices = Notices(self.database, self.clock)
        self.table = SqliteTable(self.database, self.clock)
        self.coordinator = SqliteCoordinator(self.database, self.clock, self.notices)
        self.queue = SqliteWakeQueue(self.database, self.clock, self.notices)
        self.calls: Counter[str] = Counter()
        self.app = make_app(self)
        self.outside = self.process()

    def process(self, faults: Faults | None = None) -> System:
        """An executor over the same storage; with faults, one that may die."""
        faults = faults or Faults()
        backend = Backend(
            app=self.app,
            settings=SETTINGS,
            table=FaultyTable(self.table, faults),
            coordinator=_Coordinator(self.coordinator, faults),
            queue=FaultyQueue(self.queue, faults),
            clock=self.clock,
            ids=SystemIds(),
            model=lambda agent: agent.model,  # type: ignore[arg-type, return-value]
        )
        return assemble(backend, self.queue, self.database)

    async def work(self, process: System) -> None:
        """Handle wake-ups until there are none that are due."""
        while got := await self.queue.receive(limit=1, wait=0, hold=30_000):
            await process.advance.advance(got[0].wake)
            await self.queue.acknowledge(got[0])

    async def recover(self) -> None:
        """Let leases run out, then tick and work until nothing is due any more."""
        process = self.process()
        for _ in range(6):
            self.clock.advance(SETTINGS.lease + SETTINGS.tick + 1)
            await process.recover.tick()
            await self.work(process)

    @asynccontextmanager
    async def time_passes(self) -> AsyncIterator[None]:
        """Wake whoever sleeps on the clock."""

        async def pump() -> None:
            while True:
                await asyncio.sleep(0.001)
                if self.clock.sleepers:
                    self.clock.advance(100)

        pumping = asyncio.create_task(pump())
        try:
            yield
        finally:
            pumping.cancel()
            with suppress(asyncio.CancelledError):
                await pumping

    async def die_in(self, faults: Faults, life: Callable[[System], Awaitable[None]]) -> bool:
        """Run a process's life until its end, or until it is killed (True)."""
        others = asyncio.all_tasks()
        asyncio.get_running_loop().set_exception_handler(_unless_killed)
        try:
            await life(self.process(faults))
        except Killed:
            tasks = asyncio.all_tasks() - others  # they are gone with the process
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return True
        return False

    # ---- what can be seen from outside -----------------------------------------------------

    async def journal(self) -> list[AnyEntry]:
        """All entries of the thread."""
        items = await self.table.query(keys.partition(THREAD, 1), keys.STEP_PREFIX)
        return [entries.read(item.body) for item in items]

    async def transcript(self) -> list[Any]:
        """The rows without ids and times."""
        return [
            {"role": row["role"], "type": row["type"], "parts": row["content"]["parts"]}
            for row in rows(await self.journal(), THREAD, RESOURCE)
        ]

    async def chunks(self) -> list[dict[str, Any]]:
        """All that readers were told, in order."""
        events = await whole_log(self.coordinator, keys.partition(THREAD, 1))
        ids = [event.id for event in events]
        assert ids == sorted(set(ids)), "event ids grow"
        return [json.loads(event.json) for event in events]

    async def inbox(self) -> list[Any]:
        """What still waits."""
        return [i.body for i in await self.table.query(keys.partition(THREAD, 1), "IN#")]

    async def receipts(self) -> dict[str, str]:
        """What became of each signal."""
        found = await self.table.query(keys.partition(THREAD, 1), "SIG#")
        return {item.body["signal"]: item.body["state"] for item in found}


class _Coordinator(FaultyCoordinator):
    """Renewals are not numbered: they come when the heartbeat's thread has its turn."""

    def renew(self, lease: Lease, ttl: int) -> str | None:
        if self._faults.dead:
            raise LeaseLost("the process is dead")
        return self._coordinator.renew(lease, ttl)


def _unless_killed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A dead process complains of nothing."""
    if not isinstance(context.get("exception"), Killed):
        loop.default_exception_handler(context)


def superseded(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chunks as a reader keeps them: a later attempt of a step replaces the earlier one."""
    kept: list[dict[str, Any]] = []
    for chunk in chunks:
        if chunk["type"] == "step-start" and chunk["payload"].get("attempt"):
            while kept and kept[-1]["type"] not in ("step-finish", "start", "tool-result"):
                if kept[-1]["type"].startswith("data-"):
                    break
                kept.pop()
        kept.append(chunk)
    return kept
