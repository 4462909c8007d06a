"""A real server in this process, whose ports are counted, and threads that a test tells by hand."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import uvicorn

from functions.api.app import create_app
from shared.adapters.sqlite import (
    Database,
    Notices,
    SqliteCoordinator,
    SqliteTable,
    SqliteWakeQueue,
)
from shared.adapters.system import SystemClock, SystemIds
from shared.bootstrap import System, assemble
from shared.core import keys
from shared.core.agent import Agent
from shared.core.app import App
from shared.core.events import EventId, LogEvent
from shared.core.records import Active, Thread
from shared.core.signal_input import parse_signal
from shared.ports import Put
from shared.services.accept import Target
from shared.services.context import Backend
from shared.settings import Settings
from tests.apps.script import ScriptModel
from tests.budgets.counting import CountingCoordinator, CountingQueue, CountingTable, Trace
from tests.logs import whole_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shared.core.tool import Tool
    from shared.ports import Lease, ModelClient

LIMIT = 40.0
"""Seconds after which a test gives up."""

AGENT, THREAD, RESOURCE = "agent", "thread", "owner"
P = keys.partition(THREAD, 1)
LEASE = 600_000


@dataclass
class Machine:
    """A system over one file. `coordinator` is the real one, below what is counted."""

    system: System
    coordinator: SqliteCoordinator
    trace: Trace = field(default_factory=Trace)
    url: str = ""

    async def say(self, text: str = "go", *, thread: str = THREAD, resource: str = RESOURCE) -> str:
        """Send a message and return the run's id."""
        id = self.system.ids.new()
        now = self.system.clock.now()
        signal = parse_signal({"id": id, "type": "user", "contents": text}, id=id, now=now)
        return (await self.system.accept.send(Target(AGENT, thread, resource), signal)).run

    async def log(self, thread: str = THREAD) -> list[LogEvent]:
        """All that is in a thread's log."""
        return await whole_log(self.coordinator, keys.partition(thread, 1))

    async def rows(self, thread: str = THREAD) -> list[dict[str, Any]]:
        """The transcript."""
        return (await self.system.threads.messages(thread, None, 0, 1_000)).items

    def lose_the_coordinator(self) -> None:
        """All its data is gone: logs, leases, flags."""
        with self.system.database.transaction() as connection:
            connection.execute("DELETE FROM events")
            connection.execute("DELETE FROM logs")

    async def lose_the_log(self, thread: str = THREAD) -> None:
        """A thread's events are gone, and its lease is not."""
        await self.coordinator.forget(keys.partition(thread, 1))


class Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@asynccontextmanager
async def machine(
    folder: Path,
    model: ModelClient | None = None,
    *,
    tools: tuple[Tool, ...] = (),
    cap: int = 100_000,
    works: bool = True,
    **settings: Any,
) -> AsyncIterator[Machine]:
    """A system that works (or whose threads the test tells by hand), without a server."""
    app = App([Agent(AGENT, model=model or ScriptModel([]), tools=tools, max_steps=50)])
    clock, ids = SystemClock(), SystemIds()
    database = Database(folder / "readers.db")
    notices = Notices(database, clock)
    queue = SqliteWakeQueue(database, clock, notices)
    coordinator = SqliteCoordinator(database, clock, notices, cap=cap)
    trace = Trace()
    backend = Backend(
        app=app,
        settings=Settings(**{"heartbeat_comment": 15_000, "tick": 200, **settings}),
        table=CountingTable(SqliteTable(database, clock), trace),
        coordinator=CountingCoordinator(coordinator, trace),
        queue=CountingQueue(queue, trace),
        clock=clock,
        ids=ids,
        model=lambda agent: agent.model,  # type: ignore[arg-type, return-value]
    )
    system = assemble(backend, queue, database)
    if works:
        await system.start()
    try:
        yield Machine(system, coordinator, trace)
    finally:
        await system.stop()


@asynccontextmanager
async def serving(made: Machine, *, buffer: int = 65_536) -> AsyncIterator[Machine]:
    """Serve it over HTTP; what the kernel buffers for a connection is bounded."""
    config = uvicorn.Config(
        create_app(made.system), http="h11", ws="none", log_level="warning", lifespan="off",
        timeout_graceful_shutdown=0,
    )  # fmt: skip
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        listener.bind(("127.0.0.1", 0))
        server = Server(config)
        task = asyncio.create_task(server.serve([listener]))
        await asyncio.wait_for(server.up.wait(), LIMIT)
        made.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield made
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, LIMIT)


class Teller:
    """An owner that tells what the test says: event after event of one run of one thread."""

    def __init__(self, made: Machine, thread: str = THREAD) -> None:
        self._made, self._thread = made, thread
        self._log = keys.partition(thread, 1)
        self._lease: Lease | None = None
        self._start = made.system.clock.now()
        self._k = self._index = 0

    async def begin(self) -> Teller:
        """Make the thread and its active run, and tell `start`."""
        now = self._start
        known = Thread(thread=self._thread, resource=RESOURCE, created_at=now, updated_at=now)
        active = Active(run="run", agent=AGENT, status="running", start=now)
        table = self._made.system.backend.table
        await table.commit([Put(keys.thread(self._thread), keys.THREAD, known.body())])
        await table.commit([Put(self._log, keys.ACTIVE, active.body())])
        self._lease = await self._made.coordinator.acquire(self._log, "teller", LEASE)
        await self._append([self._event(0, 0, "start")])
        return self

    async def tell(self, count: int, size: int = 100) -> None:
        """Append a batch of text deltas."""
        events = []
        for _ in range(count):
            events.append(self._event(1, self._k, "text-delta", "x" * size))
            self._k += 1
        await self._append(events)

    async def finish(self) -> None:
        """Tell the end."""
        await self._append([self._event(2, 0, "finish")])

    def _event(self, position: int, k: int, type: str, text: str = "") -> LogEvent:
        payload = {"id": "t", "text": text} if text else {}
        chunk = {"type": type, "runId": "run", "from": "AGENT", "payload": payload}
        self._index += 1
        return LogEvent.make(1, EventId(self._start, position, k), self._index - 1, chunk)

    async def _append(self, events: list[LogEvent]) -> None:
        assert self._lease
        await self._made.coordinator.append(self._lease, events, LEASE)
