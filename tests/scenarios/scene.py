"""One thread of a World, with what the scenarios need to tell their stories.

A process's life is a `Life`: it can die at a port call, inside the model's stream or inside a tool.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from shared.adapters.sqlite import (
    Database,
    Notices,
    SqliteCoordinator,
    SqliteTable,
    SqliteWakeQueue,
)
from shared.adapters.system import SystemIds
from shared.bootstrap import System, assemble
from shared.core import keys
from shared.core.agent import Agent
from shared.core.app import App
from shared.core.events import Cursor
from shared.core.model import AssistantMessage, ToolMessage
from shared.core.records import Run
from shared.core.signal_input import parse_signal
from shared.core.tool import Tool, ToolContext, tool
from shared.services.accept import Accepted, Behaviour, Target
from shared.services.context import Backend
from shared.settings import Settings
from tests.apps.script import ScriptModel
from tests.clock import VirtualClock
from tests.contract.faults import Faults, FaultyCoordinator, Killed
from tests.crash.world import RESOURCE, THREAD, World

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from shared.core.events import LogEvent
    from shared.core.model import ModelPart, ModelRequest
    from shared.ports import Lease
    from tests.apps.script import Turn

    Hook = Callable[[], Awaitable[None]]

AGENT, OTHER = "agent", "other"
P = keys.partition(THREAD, 1)
LIMIT = 20.0
"""Seconds after which a test gives up waiting."""

TOOLS = ("t1", "t2", "t3")
ENDS = ("finish", "abort", "error")
Chunk = dict[str, Any]


class Life(Faults):
    """The port calls of one process, and its death."""

    async def die(self) -> NoReturn:
        """End the process here; a hook or a rival."""
        self._dead = True
        raise Killed

    def end(self, task: asyncio.Task[Any]) -> None:
        """End the process from outside, wherever `task`, which is all that it does, waits."""
        self._dead = True
        task.cancel()


class Played(ScriptModel):
    """A script with hooks: `on[turn, part]` is called once, before that part of that turn."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        super().__init__(turns)
        self.on: dict[tuple[int, int], Hook] = {}

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        turn = sum(isinstance(m, AssistantMessage) for m in request.messages)
        number = 0
        script = cast("AsyncGenerator[ModelPart, None]", super().stream(request))
        async with aclosing(script) as parts:
            async for part in parts:
                if hook := self.on.pop((turn, number), None):
                    await hook()
                yield part
                number += 1


class Deaf(FaultyCoordinator):
    """Its renewals get no answer, so that a lease runs out without its owner's knowing."""

    def renew(self, lease: Lease, ttl: int) -> str | None:
        return None


class Scene(World):
    """A thread, its agent, and another agent that may talk in the same thread."""

    def __init__(
        self,
        path: Path,
        *turns: Turn,
        other: Sequence[Turn] = (),
        names: Sequence[str] = TOOLS,
        concurrency: int = 10,
        max_steps: int = 100,
        **settings: Any,
    ) -> None:
        self.settings = Settings(
            **{"flush_pause": 0, "heartbeat": 20, "lease": 600_000, **settings}
        )
        self.model, self.other_model = Played(turns), Played(other)
        self.path, self._files = path, list[Database]()
        self.ran: list[str] = []
        """The call ids of all executions of tools."""
        self.in_tool: dict[str, Hook] = {}
        """By call id: what the next execution does before it answers."""
        self.outputs: dict[str, Any] = {}
        tools = [self._tool(name) for name in names]
        agents = [
            Agent(
                id,
                model=model,
                tools=tools,
                max_steps=max_steps,
                tool_call_concurrency=concurrency,
                last_messages=500,
            )
            for id, model in ((AGENT, self.model), (OTHER, self.other_model))
        ]
        super().__init__(path, lambda _: App(agents))

    def _tool(self, name: str) -> Tool:
        @tool(name=name, description=name)
        async def act(ctx: ToolContext) -> Any:
            self.ran.append(ctx.call_id)
            self.calls[ctx.idempotency_key] += 1
            if hook := self.in_tool.pop(ctx.call_id, None):
                await hook()
            output = self.outputs.get(ctx.call_id, "ok")
            if isinstance(output, Exception):
                raise output
            return output

        return act

    # ---- processes -------------------------------------------------------------------------

    def process(self, faults: Faults | None = None, **settings: Any) -> System:
        return self._over(super().process(faults).backend, **settings)

    def _over(self, backend: Backend, **changes: Any) -> System:
        settings = replace(self.settings, **changes)
        return assemble(replace(backend, settings=settings), self.queue, self.database)

    def frozen(self, life: Life) -> System:
        """A process that does not notice how time passes: its clock stands, its heart is still."""
        backend = super().process(life).backend
        clock, deaf = VirtualClock(self.clock.now()), Deaf(self.coordinator, life)
        return self._over(replace(backend, clock=clock, coordinator=deaf))

    def elsewhere(self) -> System:
        """A process that shares nothing with this one but the file."""
        database = Database(self.path / "world.db")
        self._files.append(database)
        notices = Notices(database, self.clock)
        queue = SqliteWakeQueue(database, self.clock, notices)
        backend = Backend(
            app=self.app,
            settings=self.settings,
            table=SqliteTable(database, self.clock),
            coordinator=SqliteCoordinator(database, self.clock, notices),
            queue=queue,
            clock=self.clock,
            ids=SystemIds(),
            model=self.outside.backend.model,
        )
        return assemble(backend, queue, database)

    def close(self) -> None:
        for database in (*self._files, self.database):
            database.close()

    # ---- what happens ----------------------------------------------------------------------

    async def say(
        self,
        id: str,
        text: str = "go",
        *,
        via: System | None = None,
        agent: str = AGENT,
        queue: bool = False,
        persist: bool = False,
        keys: Sequence[str] = (),
        **more: Any,
    ) -> Accepted:
        """Send a message under an id of its own."""
        body = {"id": id, "type": "user", "contents": text, **more}
        signal = parse_signal(body, id=id, now=self.clock.now())
        behaviour = Behaviour(if_active="persist", if_idle="persist") if persist else None
        return await (via or self.outside).accept.send(
            Target(agent, THREAD, RESOURCE),
            signal,
            behaviour,
            queue=queue,
            keys=keys,
            request=[id, text],
        )

    async def settle(self, process: System | None = None) -> None:
        """Handle all wake-ups that are due."""
        async with self.time_passes():
            await self.work(process or self.process())

    async def live(self, life: Life, process: System | None = None) -> bool:
        """Handle wake-ups until there are none, or until the process dies (True)."""

        async def work(fresh: System) -> None:
            await self.work(process or fresh)

        async with self.time_passes():
            return await self.die_in(life, work)

    def lease_runs_out(self) -> None:
        self.clock.advance(self.settings.lease + self.settings.tick + 1)

    async def recover(self) -> None:
        """Let leases run out, then tick and work until nothing is due any more."""
        process = self.process()
        async with self.time_passes():
            for _ in range(6):
                self.lease_runs_out()
                await process.recover.tick()
                await self.work(process)

    @asynccontextmanager
    async def following(self, cursor: str = "", via: System | None = None) -> AsyncIterator[Reader]:
        """A reader of the thread who has begun to read."""
        reader = Reader(via or self.outside, cursor)
        try:
            await reader.opened()
            yield reader
        finally:
            await reader.stop()

    def lose_the_log(self) -> None:
        """The Coordinator's data is gone."""
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM events")
            connection.execute("DELETE FROM logs")

    # ---- what can be seen ------------------------------------------------------------------

    async def chunks(self) -> list[Chunk]:
        """All that readers were told, in order, however large: read page by page."""
        events: list[LogEvent] = []
        while page := await self.coordinator.read(P, events[-1].id if events else None):
            events += page
        ids = [event.id for event in events]
        assert ids == sorted(set(ids)), "event ids grow"
        return [json.loads(event.json) for event in events]

    async def kinds(self) -> list[str]:
        return [entry.kind for entry in await self.journal()]

    async def status(self, run: str) -> str:
        stored = await self.table.get(keys.run(run), keys.RUN)
        assert stored, run
        return Run.of(stored.body).status

    async def messages(self) -> list[dict[str, Any]]:
        """The transcript as a client reads it, oldest first."""
        return (await self.outside.threads.messages(THREAD, RESOURCE, 0, 500)).items

    async def ends(self) -> list[str]:
        return [c["type"] for c in await self.chunks() if c["type"] in ENDS]

    async def said(self) -> list[tuple[str, str]]:
        """Who, and the text of each row of the transcript; a signal of a user is the user's."""
        roles = {"signal": "user"}
        return [(roles.get(m["role"], m["role"]), text_in(m)) for m in await self.messages()]

    def prompts(self, model: ScriptModel | None = None) -> list[list[str]]:
        """What each model call was shown, one line a message."""
        return [lines(request) for request in (model or self.model).requests]

    def everything(self) -> str:
        """All records and all events, to be compared."""
        items = self.database.rows("SELECT * FROM items ORDER BY partition, sort")
        events = self.database.rows("SELECT * FROM events ORDER BY log, start, sequence")
        return json.dumps([items, events], default=repr)

    def wakes(self) -> int:
        """How many wake-ups there are."""
        return int(self.database.rows("SELECT count(*) FROM wakes")[0][0])


class Reader:
    """Follows the thread, and keeps all that it is shown."""

    def __init__(self, process: System, cursor: str) -> None:
        self.events: list[LogEvent] = []
        self._process, self._cursor = process, Cursor.parse(cursor) if cursor else None
        self._opened = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        following = await self._process.follow.open(THREAD, RESOURCE, self._cursor)
        self._opened.set()
        async with aclosing(following.batches(60_000)) as batches:
            async for batch in batches:
                self.events += batch

    async def opened(self) -> None:
        async with asyncio.timeout(LIMIT):
            await self._opened.wait()
        for _ in range(20):  # turns of the event loop, in which it begins to listen
            await asyncio.sleep(0)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled() and self._task.exception():
            raise self._task.exception() or AssertionError

    @property
    def chunks(self) -> list[Chunk]:
        return [json.loads(event.json) for event in self.events]

    @property
    def indexes(self) -> list[int]:
        return [event.index for event in self.events]

    def ends(self) -> list[str]:
        return [chunk["type"] for chunk in self.chunks if chunk["type"] in ENDS]

    async def sees_end(self, count: int = 1) -> None:
        """Return when it has seen so many runs end."""
        await until(lambda: len(self.ends()) >= count, f"{count} ends")

    async def sees(self, events: int) -> None:
        """Return when it has seen so many events."""
        await until(lambda: len(self.events) >= events, f"{events} events")


async def until(holds: Callable[[], object], what: str) -> None:
    """Return when something holds, or fail after a limit."""

    async def ask() -> object:
        return holds()

    await until_stored(ask, what)


async def until_stored(holds: Callable[[], Awaitable[object]], what: str) -> None:
    """Return when something holds that it takes a look into the store to know."""
    deadline = asyncio.get_running_loop().time() + LIMIT
    while not await holds():
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.001)


def lines(request: ModelRequest) -> list[str]:
    """A prompt, one line a message: who, and what it says or which calls it is about."""
    shown = []
    for message in request.messages:
        if isinstance(message, ToolMessage):
            shown.append("results " + ",".join(r.call_id for r in message.results))
        elif isinstance(message, AssistantMessage):
            calls = ",".join(call.call_id for call in message.tool_calls)
            shown.append(f"calls {calls}" if calls else f"assistant {message.text}")
        else:
            shown.append(f"user {message.text}")
    return shown


def text_in(message: dict[str, Any]) -> str:
    """All text of a row."""
    parts = message["content"]["parts"]
    return "".join(part["text"] for part in parts if part["type"] == "text")
