"""Anything may happen in any order; what must always hold is checked after each step.

`docs/design.md` 7.1 to 7.10, `docs/protocols.md` A to J.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections import Counter
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.core import entries, keys
from shared.core.errors import Conflict, NotFound, Unavailable
from shared.core.events import Cursor, EventId
from shared.core.records import Active, Thread
from shared.core.route import Behaviour
from shared.core.signal_input import parse_signal
from shared.ports import WakeUp
from shared.services.accept import Target
from tests.contract.faults import Fault, Faults
from tests.crash.machine_app import AGENTS, app
from tests.crash.world import RESOURCE, SETTINGS, THREAD, World

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from shared.bootstrap import System
    from shared.core.entries import AnyEntry

FAULTS = st.sampled_from([Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.REFUSED, Fault.CUT])
NUMBERS = st.integers(1, 40)


class Machine(RuleBasedStateMachine):
    """One thread, whatever happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.world = self.run(self._world())
        self.sent = 0
        self.acked: dict[tuple[int, str], str] = {}
        self.frozen: list[tuple[asyncio.Task[Any], asyncio.Event]] = []
        self.read: list[tuple[int, dict[str, Any]]] = []
        self.cursor: str | None = None
        self.doubted = False

    async def _world(self) -> World:
        return World(self.folder / "world", app)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run on the machine's loop, while its clock's sleepers are woken."""

        async def timed() -> Any:
            async with self.world.time_passes():
                return await coroutine

        is_first = not hasattr(self, "world")
        return self.loop.run_until_complete(coroutine if is_first else timed())

    # ---- senders ---------------------------------------------------------------------------

    async def _send(
        self, process: System, number: int, agent: str, text: str, behaviour: Behaviour, *,
        queue: bool,
    ) -> None:  # fmt: skip
        id = f"s{number}"
        signal = parse_signal(
            {"id": id, "type": "user", "contents": text}, id=id, now=self.world.clock.now()
        )
        incarnation = await self._incarnation()
        with suppress(Unavailable, Conflict):
            accepted = await process.accept.send(
                Target(agent, THREAD, RESOURCE), signal, behaviour, queue=queue,
                request=[id, text],
            )  # fmt: skip
            if await self._incarnation() == incarnation:
                self.acked.setdefault((incarnation, id), accepted.run)

    async def _incarnation(self) -> int:
        stored = await self.world.table.get(keys.thread(THREAD), keys.THREAD)
        return Thread.of(stored.body).incarnation if stored else 1

    @rule(
        agent=st.sampled_from(AGENTS),
        steps=st.integers(0, 3),
        queue=st.booleans(),
        active=st.sampled_from(["deliver", "deliver", "persist", "discard"]),
        idle=st.sampled_from(["wake", "wake", "persist", "discard"]),
        fault=st.one_of(st.none(), FAULTS),
        number=st.integers(1, 6),
    )
    def send(
        self, agent: str, steps: int, queue: bool, active: Any, idle: Any,
        fault: Fault | None, number: int,
    ) -> None:  # fmt: skip
        """Somebody sends, over a process that may fail or die; who got no answer asks again."""
        self.sent += 1
        sent = self.sent
        text = f"tool {steps} #{sent}" if steps else f"say #{sent}"
        behaviour = Behaviour(if_active=active, if_idle=idle)

        async def life(process: System) -> None:
            await self._send(process, sent, agent, text, behaviour, queue=queue)

        faults = Faults({number: fault} if fault else {})
        if self.run(self.world.die_in(faults, life)):
            self.run(self._send(self.world.outside, sent, agent, text, behaviour, queue=queue))

    @rule()
    def cancel(self) -> None:
        """Somebody asks the active run to stop."""
        self.run(self.world.outside.accept.abort(THREAD, RESOURCE))

    @precondition(lambda self: self.acked)
    @rule(data=st.data())
    def cancel_run(self, data: st.DataObject) -> None:
        """Somebody asks a run to stop that was answered once, whatever became of it."""
        run = data.draw(st.sampled_from(sorted(self.acked.values())))

        async def stop() -> None:
            with suppress(NotFound, Conflict):
                await self.world.outside.accept.cancel_run(run, RESOURCE)

        self.run(stop())

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), fault=st.one_of(st.none(), FAULTS), number=st.integers(1, 8))
    def take_back(self, data: st.DataObject, fault: Fault | None, number: int) -> None:
        """Somebody takes a signal back, over a process that may fail or die; and asks again."""
        id = f"s{data.draw(st.integers(1, self.sent))}"

        async def life(process: System) -> None:
            with suppress(NotFound, Unavailable):
                await process.accept.cancel_waiting(THREAD, RESOURCE, id)

        faults = Faults({number: fault} if fault else {})
        if self.run(self.world.die_in(faults, life)):
            self.run(life(self.world.outside))

    # ---- owners ----------------------------------------------------------------------------

    @rule(fault=st.one_of(st.none(), FAULTS), number=NUMBERS)
    def advance(self, fault: Fault | None, number: int) -> None:
        """A worker handles a wake-up, and may fail or die."""

        async def life(process: System) -> None:
            for delivery in await self.world.queue.receive(limit=1, wait=0, hold=30_000):
                await process.advance.advance(delivery.wake)
                await self.world.queue.acknowledge(delivery)

        self.run(self.world.die_in(Faults({number: fault} if fault else {}), life))

    @precondition(lambda self: len(self.frozen) < 2)
    @rule(number=NUMBERS)
    def freeze(self, number: int) -> None:
        """A worker handles a wake-up and is paused in the middle."""

        async def begin() -> None:
            gate, reached = asyncio.Event(), asyncio.Event()

            async def hold() -> None:
                reached.set()
                await gate.wait()

            process = self.world.process(Faults({number: hold}))
            got = await self.world.queue.receive(limit=1, wait=0, hold=30_000)
            if not got:
                return
            task = asyncio.create_task(process.advance.advance(got[0].wake))
            waiting = asyncio.create_task(reached.wait())
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not task.done():
                self.frozen.append((task, gate))
            else:
                task.result()

        self.run(begin())

    @precondition(lambda self: self.frozen)
    @rule()
    def thaw(self) -> None:
        """A paused worker goes on."""
        self.run(self._thaw())

    async def _thaw(self) -> None:
        task, gate = self.frozen.pop(0)
        gate.set()
        await task

    # ---- what goes wrong -------------------------------------------------------------------

    @rule(ms=st.sampled_from([-60_000, -3_000, 1, 2_500, 6_000, 40_000]))
    def clock_jumps(self, ms: int) -> None:
        """The wall clock jumps."""
        self.world.clock.set(self.world.clock.now() + ms)

    @rule()
    def coordinator_loses_everything(self) -> None:
        """Redis is gone and comes back empty."""
        with self.world.database.transaction() as connection:
            connection.execute("DELETE FROM events")
            connection.execute("DELETE FROM logs")

    @rule()
    def doubled_wake_up(self) -> None:
        """The queue delivers twice."""
        self.run(self._wake())

    async def _wake(self) -> None:
        await self.world.queue.send(WakeUp(THREAD, await self._incarnation()))

    @rule(late=st.booleans())
    def overlapping_ticks(self, late: bool) -> None:
        """Two ticks at once, maybe late."""
        if late:
            self.world.clock.advance(SETTINGS.lease + SETTINGS.tick + 1)
        tick = self.world.outside.recover.tick

        async def both() -> None:
            await asyncio.gather(tick(), tick())

        self.run(both())

    @rule()
    def delete(self) -> None:
        """The thread is deleted; a later send makes it anew."""

        async def gone() -> None:
            with suppress(NotFound):
                await self.world.outside.deletion.delete(THREAD, RESOURCE)

        self.run(gone())

    # ---- readers ---------------------------------------------------------------------------

    @rule()
    def follow(self) -> None:
        """A reader comes back with its cursor, reads what there is and is cut."""
        self.run(self._follow())

    async def _follow(self) -> None:
        cursor = Cursor.parse(self.cursor) if self.cursor else None
        following = await self.world.outside.follow.open(THREAD, RESOURCE, cursor)
        async with aclosing(following.batches(5)) as batches:
            async for batch in batches:
                if not batch:
                    return
                for event in batch:
                    self.cursor = str(Cursor(following.incarnation, event.id))
                    self.read.append((following.incarnation, json.loads(event.json)))

    # ---- what must always hold -------------------------------------------------------------

    @invariant()
    def journals_are_whole(self) -> None:
        """Positions follow one another, nothing comes after a finish, no signal is there twice."""
        if not hasattr(self, "sent"):
            return
        self.run(self._check())

    async def _check(self) -> None:
        incarnation = await self._incarnation()
        partition = keys.partition(THREAD, incarnation)
        stored = await self.world.table.query(partition, keys.STEP_PREFIX)
        runs: dict[int, list[AnyEntry]] = {}
        for item in stored:
            start, position = keys.start_and_position(item.sort)
            assert position == len(runs.setdefault(start, [])), item.sort
            runs[start].append(entries.read(item.body))
        ids = Counter(s["id"] for run in runs.values() for e in run for s in _signals(e))
        assert all(count == 1 for count in ids.values()), ids
        live = [run for run in runs.values() if _is_live(run)]
        active = await self.world.table.get(partition, keys.ACTIVE)
        assert len(live) <= 1, live
        if live:
            assert active is not None
            assert Active.of(active.body).run == live[0][0].run  # type: ignore[union-attr]
        for run in runs.values():
            ends = [place for place, entry in enumerate(run) if isinstance(entry, entries.Finish)]
            assert ends in ([], [len(run) - 1])
        await self._check_signals(partition, incarnation, set(ids))

    async def _check_signals(self, partition: str, incarnation: int, journal: set[str]) -> None:
        """Invariant 1: an accepted signal is in exactly one place."""
        inbox = {
            i.body["signal"]["id"]
            for i in await self.world.table.query(partition, keys.INBOX_PREFIX)
            if i.body.get("signal")
        }
        for acked_in, id in self.acked:
            if acked_in != incarnation:
                continue
            receipt = await self.world.table.get(partition, keys.receipt(id))
            assert receipt is not None, id
            discarded = receipt.body["state"] in ("discarded", "cancelled")
            if receipt.body["state"] == "cancelled":
                run = await self.world.table.get(keys.run(self.acked[acked_in, id]), keys.RUN)
                owned = receipt.body["action"] == "wake"
                assert not owned or (run and run.body["status"] == "cancelled"), id
            places = (id in inbox) + (id in journal) + discarded
            assert places == 1, (id, id in inbox, id in journal, receipt.body)

    def teardown(self) -> None:
        """After one recovery everything has come to its end, and the reader has seen it."""
        try:
            if hasattr(self, "sent"):
                self.run(self._end())
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.close()
            self.world.database.close()
            shutil.rmtree(self.folder)

    async def _end(self) -> None:
        while self.frozen:
            await self._thaw()
        self.world.clock.advance(3_700_000)
        for _ in range(4):
            await self.world.recover()
            self.world.clock.advance(120_000)
        await self._check()
        await self._follow()
        incarnation = await self._incarnation()
        partition = keys.partition(THREAD, incarnation)
        waiting = await self.world.table.query(partition, keys.INBOX_PREFIX)
        assert [i.body for i in waiting] == []
        active = await self.world.table.get(partition, keys.ACTIVE)
        assert active is None, active
        assert max(self.world.calls.values(), default=0) <= 1 + 40
        await self._check_reader(partition, incarnation)

    async def _check_reader(self, partition: str, incarnation: int) -> None:
        """Invariant 7: each end is told exactly once, and none that is not in the journal."""
        ends = Counter[str]()
        run = ""
        for item in await self.world.table.query(partition, keys.STEP_PREFIX):
            entry = entries.read(item.body)
            run = getattr(entry, "run", None) or run
            if isinstance(entry, entries.Finish) or (isinstance(entry, entries.Note) and entry.run):
                ends[run] += 1
        told = Counter(
            c["runId"]
            for told_in, c in self.read
            if told_in == incarnation and c["type"] in ("finish", "abort", "error")
        )
        first = self._first_read(incarnation)
        if first is not None:
            assert not told - ends, (told, ends)
            assert all(count == 1 for count in told.values()), told

    def _first_read(self, incarnation: int) -> EventId | None:
        for told_in, chunk in self.read:
            if told_in == incarnation:
                return Cursor.parse(chunk["cursor"]).id
        return None


def _signals(entry: AnyEntry) -> list[dict[str, Any]]:
    return getattr(entry, "signals", [])


def _is_live(run: list[AnyEntry]) -> bool:
    return isinstance(run[0], entries.Input) and not isinstance(run[-1], entries.Finish)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=int(os.environ.get("MACHINE_EXAMPLES", "40")),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
