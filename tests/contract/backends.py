"""The backends that the contract suites run on, and what differs between them, as data."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.adapters.sqlite import (
    Database,
    Notices,
    SqliteCoordinator,
    SqliteTable,
    SqliteWakeQueue,
)
from tests.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from shared.ports import Clock, Coordinator, Table, WakeQueue, WakeSource


@dataclass(frozen=True)
class Ports:
    """One set of adapters over fresh storage."""

    clock: Clock
    table: Table
    coordinator: Coordinator
    queue: WakeQueue
    source: WakeSource
    elapse: Callable[[int], Awaitable[None]]
    """Lets that many ms pass: on a virtual clock at once."""


@dataclass(frozen=True)
class Backend:
    """How to open a backend, and what the suites must know of it."""

    name: str
    open: Callable[[Path], AbstractAsyncContextManager[Ports]]
    unit: int
    """The shortest time in ms that leases, expiries, delays and holds may have in a test."""

    prompt_index: bool
    """An index read sees every commit before it; otherwise the suites ask until it does."""

    merges_wake_ups: bool
    """Identical wake-ups that wait are delivered once; otherwise each is delivered."""

    ordered_queue: bool
    """Wake-ups are delivered oldest first."""


@asynccontextmanager
async def open_sqlite(directory: Path) -> AsyncIterator[Ports]:
    clock = VirtualClock()
    database = Database(directory / "wakeline.db")
    notices = Notices(database, clock)
    queue = SqliteWakeQueue(database, clock, notices)
    try:
        yield Ports(
            clock=clock,
            table=SqliteTable(database, clock),
            coordinator=SqliteCoordinator(database, clock, notices),
            queue=queue,
            source=queue,
            elapse=clock.run,
        )
    finally:
        database.close()


BACKENDS = [
    Backend(
        name="sqlite",
        open=open_sqlite,
        unit=1_000,
        prompt_index=True,
        merges_wake_ups=True,
        ordered_queue=True,
    ),
]
