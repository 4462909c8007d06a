"""One thread on the World, with hooks at the commits of its journal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shared.bootstrap import System, assemble
from shared.core import keys
from shared.core.agent import Agent
from shared.core.app import App
from shared.core.records import Active, Run
from shared.core.rows import rows
from shared.core.signal_input import parse_signal
from shared.ports import Appended, Put, WakeUp
from shared.services.accept import Accepted, Behaviour, Target
from tests.apps.script import ScriptModel, T
from tests.clock import VirtualClock
from tests.contract.faults import Faults, FaultyCoordinator, FaultyTable, Killed
from tests.crash.world import RESOURCE, SETTINGS, THREAD, World, superseded
from tests.logs import whole_log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from shared.core.events import EventId, LogEvent
    from shared.core.tool import Tool
    from shared.ports import Item, Lease, Write
    from tests.apps.script import Turn
    from tests.contract.faults import Fault, Rival

    Action = Callable[[Sequence[Write]], Awaitable[None]]

AGENT, OTHER = "agent", "other-agent"
WAKE = WakeUp(THREAD, 1)
P = keys.partition(THREAD, 1)
NOW = 1_700_000_000_000
PERSIST = Behaviour(if_active="persist", if_idle="persist")


class Hooks(Faults):
    """Faults, and actions before or after the first commit that writes an entry of a kind.

    `actions` may also name the first query of a prefix, as `("query", "IN#")`.
    """

    def __init__(
        self,
        plan: Mapping[int | tuple[str, int], Fault | Rival] | None = None,
        *,
        before: Mapping[str, Action] | None = None,
        after: Mapping[str, Action] | None = None,
    ) -> None:
        super().__init__(plan)
        self.actions = {("before", kind): action for kind, action in (before or {}).items()}
        self.actions |= {("after", kind): action for kind, action in (after or {}).items()}
        self.commits: list[Sequence[Write]] = []

    async def at(self, when: str, writes: Sequence[Write]) -> None:
        action = self.actions.pop((when, kind_of(writes)), None)
        if action:
            await action(writes)

    async def kill(self, writes: Sequence[Write] = ()) -> None:
        """End the process here: an action, or a part of one."""
        self._dead = True
        raise Killed

    @classmethod
    def killing(cls, *, before: str = "", after: str = "", **more: Any) -> Hooks:
        """Die before or after the first commit of such an entry."""
        hooks = cls(**more)
        hooks.actions["before" if before else "after", before or after] = hooks.kill
        return hooks


class _Tapped(FaultyTable):
    def __init__(self, world: Stage, hooks: Hooks) -> None:
        super().__init__(world.table, hooks)
        self._hooks = hooks

    async def query(self, partition: str, prefix: str = "", **options: Any) -> list[Item]:
        action = self._hooks.actions.pop(("query", prefix), None)
        if action:
            await action(())
        return await super().query(partition, prefix, **options)

    async def commit(self, writes: Sequence[Write]) -> None:
        await self._hooks.at("before", writes)
        self._hooks.commits.append(writes)
        await super().commit(writes)
        await self._hooks.at("after", writes)


def texts_of(chunks: list[dict[str, Any]]) -> list[str]:
    """Put the parts of texts together."""
    texts: list[str] = []
    for chunk in chunks:
        if chunk["type"] == "text-start":
            texts.append("")
        if chunk["type"] == "text-delta":
            texts[-1] += chunk["payload"]["text"]
    return texts


def kind_of(writes: Sequence[Write]) -> str:
    """The kind of the entry in a commit; of another, the beginning of its first key."""
    for write in writes:
        if isinstance(write, Put) and write.sort.startswith(keys.STEP_PREFIX):
            return str(write.body["kind"])
    return writes[0].sort.split("#")[0]


class Lying(FaultyCoordinator):
    """A Coordinator that lost everything and does not know: it says yes to its old owner."""

    def renew(self, lease: Lease, ttl: int) -> str | None:
        return None

    async def append(
        self, lease: Lease, events: Sequence[LogEvent], ttl: int, after: EventId | None = None
    ) -> Appended:
        return Appended(None, followed=True)


class Deaf(FaultyCoordinator):
    """The real one, whose renewals get no answer: what a frozen process has of it."""

    def renew(self, lease: Lease, ttl: int) -> str | None:
        return None


class Stage(World):
    """A thread, an agent that plays a script, and another agent."""

    def __init__(
        self,
        path: Path,
        *turns: Turn,
        tools: Sequence[Tool] = (),
        max_steps: int = 20,
        concurrency: int = 10,
    ) -> None:
        self.model = ScriptModel(turns)
        mine = Agent(
            AGENT,
            model=self.model,
            tools=tools,
            max_steps=max_steps,
            tool_call_concurrency=concurrency,
            last_messages=500,
        )
        other = Agent(OTHER, model=ScriptModel([T("as the other")] * 9))
        super().__init__(path, lambda _: App([mine, other]))

    # ---- processes -------------------------------------------------------------------------

    def process(self, faults: Faults | None = None) -> System:
        system = super().process(faults)
        if not isinstance(faults, Hooks):
            return system
        return self.over(replace(system.backend, table=_Tapped(self, faults)))

    def over(self, backend: Any) -> System:
        return assemble(backend, self.queue, self.database)

    def frozen(self, hooks: Hooks, coordinator: type[FaultyCoordinator]) -> System:
        """A process whose clock stands still, so that it never knows that its lease ran out."""
        backend = replace(
            self.process(hooks).backend,
            clock=VirtualClock(self.clock.now()),
            coordinator=coordinator(self.coordinator, hooks),
        )
        return self.over(backend)

    async def say(
        self,
        id: str,
        text: str = "hello",
        *,
        via: System | None = None,
        agent: str = AGENT,
        behaviour: Behaviour | None = None,
        queue: bool = False,
        keys: Sequence[str] = (),
        resource: str = RESOURCE,
        **more: Any,
    ) -> Accepted:
        """Send a message."""
        body = {"id": id, "type": "user", "contents": text, **more}
        signal = parse_signal(body, id=id, now=NOW)
        return await (via or self.outside).accept.send(
            Target(agent, THREAD, resource), signal, behaviour, keys=keys, queue=queue
        )

    async def settle(self, faults: Faults | None = None) -> None:
        """Handle all wake-ups that are due."""
        async with self.time_passes():
            await self.work(self.process(faults))

    async def work_once(self, faults: Faults) -> None:
        """Handle one wake-up."""
        (got,) = await self.queue.receive(limit=1, wait=0, hold=30_000)
        async with self.time_passes():
            await self.process(faults).advance.advance(got.wake)
        await self.queue.acknowledge(got)

    async def die(self, hooks: Faults) -> None:
        """Handle wake-ups until the process is killed; its lease and its wake-up stay."""
        async with self.time_passes():
            assert await self.die_in(hooks, self.work)

    async def die_in_other(self, process: System) -> None:
        """Advance the thread in a process that is killed."""
        with pytest.raises(Killed):
            await process.advance.advance(WAKE)

    async def revive(self, faults: Faults | None = None) -> None:
        """Let the dead owner's lease run out, and let another one advance the thread."""
        self.clock.advance(SETTINGS.lease + 1)
        async with self.time_passes():
            await self.process(faults).advance.advance(WAKE)

    async def heal(self) -> None:
        """Ticks and wake-ups, until nothing is due any more."""
        async with self.time_passes():
            await self.recover()

    # ---- what is stored --------------------------------------------------------------------

    async def one(self, sort: str) -> Item:
        found = await self.table.get(P, sort)
        assert found, sort
        return found

    async def active(self) -> Active | None:
        found = await self.table.get(P, keys.ACTIVE)
        return Active.of(found.body) if found else None

    async def head(self, run: str) -> Item:
        found = await self.table.get(keys.run(run), keys.RUN)
        assert found, run
        return found

    async def active_status(self) -> str | None:
        active = await self.active()
        return active.status if active else None

    async def status(self, run: str) -> str:
        return Run.of((await self.head(run)).body).status

    async def kinds(self) -> list[str]:
        return [entry.kind for entry in await self.journal()]

    async def told(self) -> list[str]:
        """The types of all chunks, without the parts of texts."""
        return [c["type"] for c in await self.chunks() if not c["type"].startswith("text-")]

    async def told_texts(self) -> list[str]:
        """The text of each try to answer, as it was streamed."""
        return texts_of(await self.chunks())

    async def kept_texts(self) -> list[str]:
        """The texts that a reader keeps, for whom a later attempt replaces the one before."""
        return texts_of(superseded(await self.chunks()))

    async def attempts(self) -> list[int]:
        """The attempt of each `step-start`."""
        starts = [c for c in await self.chunks() if c["type"] == "step-start"]
        return [chunk["payload"].get("attempt", 0) for chunk in starts]

    async def events(self) -> list[LogEvent]:
        return await whole_log(self.coordinator, P)

    async def prompts(self) -> list[list[str]]:
        """The user texts of each model call."""
        return [[m.text for m in r.messages if hasattr(m, "text")] for r in self.model.requests]

    async def counts_its_rows(self) -> bool:
        """Whether each entry counts the rows that are really there."""
        stored = await self.journal()
        ends = range(1, len(stored) + 1)
        return [e.rows for e in stored] == [len(rows(stored[:n], THREAD, RESOURCE)) for n in ends]

    async def due(self, group: str) -> list[tuple[str, int]]:
        """What is in an index group of this thread, at any time."""
        found = await self.table.index(f"due:{group}:{keys.shard(THREAD)}", high=None)
        return [(item.sort, item.index.order) for item in found if item.index]

    def wakes(self) -> list[tuple[int, str]]:
        """The wake-ups in the queue: when due, and for which run."""
        return [
            (due, run) for due, run in self.database.rows("SELECT due, run FROM wakes ORDER BY due")
        ]

    def everything(self) -> str:
        """All records and events, to be compared."""
        sql = (
            "SELECT * FROM items ORDER BY partition, sort",
            "SELECT * FROM events ORDER BY 1, 2, 3",
        )
        return json.dumps([[list(map(str, r)) for r in self.database.rows(s)] for s in sql])

    def forget_wakes(self) -> None:
        """The queue lost what it held."""
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM wakes")

    def lose_the_log(self) -> None:
        """The Coordinator's data is gone."""
        with self.database.transaction() as connection:
            connection.execute("DELETE FROM events")
            connection.execute("DELETE FROM logs")
