"""Advancing the thread that a wake-up names: acquire, work, let go, look again.

`docs/protocols.md` B. The only caller of everything that writes a journal.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.core import keys
from shared.core.choice import Discard, Keep
from shared.core.errors import ConditionFailed, LeaseLost, Unavailable, WakelineError
from shared.core.records import OVER, Active, Run
from shared.ports import Index, Put, WakeUp
from shared.services import inbox, journal, takeover
from shared.services.context import Head, Owner, Running, Slice
from shared.services.heartbeat import Heartbeat
from shared.services.journal import Journal
from shared.services.loop import RunLoop
from shared.services.model_call import HandOver
from shared.services.publisher import Publisher
from shared.services.starts import Starter

if TYPE_CHECKING:
    from shared.ports import Item, Lease
    from shared.services.context import Backend
    from shared.services.heartbeat import Beat
    from shared.services.inbox import Inbox

log = logging.getLogger(__name__)

UNAVAILABLE_DELAY = 2_000


@dataclass(frozen=True, slots=True)
class _Found:
    """What a thread holds: its inbox and the runs named there, its active run, its last entries.

    `tail`: all entries of the live run, or the newest ones of the thread.
    """

    inbox: Inbox
    active: Item | None
    tail: list[Item]

    @property
    def live(self) -> Active | None:
        """The active run's record."""
        return Active.of(self.active.body) if self.active else None


@dataclass(frozen=True, slots=True)
class Settled:
    """Something was done that needs no run."""


class Advance:
    """Advances threads; one call at a time per wake-up, any number of threads."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend
        self._starter, self._loop = Starter(backend), RunLoop(backend)
        settings = backend.settings
        self._heartbeat = Heartbeat(
            backend.coordinator, backend.clock, settings.lease, settings.heartbeat
        )

    def slice(self) -> Slice:
        """Give a fresh slice: what one invocation may do."""
        settings = self._backend.settings
        return Slice(self._backend.clock.now() + settings.slice_time, settings.slice_steps)

    async def advance(self, wake: WakeUp, slice: Slice | None = None) -> None:
        """Do what the thread needs, if nobody else does.

        Returns when there is nothing to do, the slice is over or the run was lost. What is left
        is announced by a wake-up, or found by the tick: nothing depends on the caller.
        """
        log_name = keys.partition(wake.thread, wake.incarnation)
        token, now = self._backend.ids.new(), self._backend.clock.now()
        try:
            lease = await self._backend.coordinator.acquire(
                log_name, token, self._backend.settings.lease
            )
        except Unavailable:
            await self._send(wake, UNAVAILABLE_DELAY)
            return
        if lease is None:
            await self._remind(log_name)
            return
        try:
            told, delay = await self._own(wake, lease, now, slice or self.slice())
        except asyncio.CancelledError:
            # A shutdown cut the work, and the lease is free: whoever polls next goes on at once.
            await self._send(WakeUp(wake.thread, wake.incarnation), 0)
            raise
        await self._after(wake, told, delay)

    async def _remind(self, partition: str) -> None:
        """Somebody else has the thread: set its cancel flag, if its run's cancel waits (A9)."""
        table = self._backend.table
        try:
            if not await table.query(partition, keys.ASKS_PREFIX, limit=1):
                return
            stored = await table.get(partition, keys.ACTIVE)
            run = Active.of(stored.body).run if stored else ""
            if await table.get(partition, keys.cancel(run)):
                await self._backend.coordinator.ask_to_stop(partition, run)
        except Unavailable:
            log.warning("%s: its owner sees a cancel at its next drain only", partition)

    async def _own(
        self, wake: WakeUp, lease: Lease, acquired_at: int, slice: Slice
    ) -> tuple[list[Head], int | None]:
        """Work under the lease and release it; give the told runs, and a delay to hand over."""
        delay: int | None = None
        async with self._heartbeat.keep(lease, acquired_at) as beat:
            owner = self._owner(wake, beat, slice)
            try:
                finished = await self._work(owner, wake)
                await owner.publisher.flush()
                delay = None if finished else 0
            except HandOver as hand_over:
                delay = hand_over.delay
                await self._pause(owner, delay)
            except LeaseLost as lost:
                log.info("%s: %s", lease.log, lost)
                delay = 0 if owner.publisher.log_lost else None
            except ConditionFailed as changed:
                log.info("%s changed under its owner: %s", lease.log, changed)
                delay = 0
            except WakelineError as error:
                log.warning("%s: %s; the tick goes on with it", lease.log, error)
            finally:
                owner.publisher.close()
                await self._release(beat)
        return owner.told_runs, delay

    def _owner(self, wake: WakeUp, beat: Beat, slice: Slice) -> Owner:
        backend = self._backend
        partition = keys.partition(wake.thread, wake.incarnation)
        return Owner(
            thread=wake.thread,
            incarnation=wake.incarnation,
            beat=beat,
            slice=slice,
            journal=Journal(backend.table, partition, backend.ids.new(), beat, backend.clock),
            publisher=Publisher(
                backend.coordinator, beat, wake.incarnation, backend.clock, backend.settings
            ),
        )

    async def _work(self, owner: Owner, wake: WakeUp) -> bool:
        """Tell, then claim or start runs until nothing is left (True) or the slice is over."""
        found = await self._look(owner)
        await self._tell(owner, wake, found)
        while True:
            running = await self._begin(owner, found)
            if running is None:
                return True
            if isinstance(running, Running):
                if not await self._loop.drive(owner, running):
                    return False
                if not running.has_heir:
                    return True
                if owner.slice.is_over(self._backend.clock.now()):
                    return False
            found = await self._look(owner)

    async def _look(self, owner: Owner) -> _Found:
        """Read the thread, in this order (C4).

        What leaves the inbox or ends the run meanwhile is in the journal that is read last; and
        what is built on an older reading fails to commit.
        """
        table = self._backend.table
        asked = await inbox.read(table, owner.partition)
        active = await table.get(owner.partition, keys.ACTIVE)
        live = Active.of(active.body) if active else None
        if live and live.status == "running" and live.start is not None:
            tail = await journal.of_run(table, owner.partition, live.start)
        else:
            tail = await journal.newest(table, owner.partition)
        return _Found(asked, active, tail)

    async def _tell(self, owner: Owner, wake: WakeUp, found: _Found) -> None:
        """Bring the log up to the journal's end, before anything else (B2)."""
        await takeover.tell_missing(self._backend, owner, found.tail)
        live = found.live
        if wake.run and not (live and live.run == wake.run):
            owner.told_runs.append(Head(wake.run))
        lost = owner.beat.lease.last is None
        if lost and found.tail and not (live and live.status == "running"):
            takeover.resync_idle(owner, found.tail)

    async def _begin(self, owner: Owner, found: _Found) -> Running | Settled | None:
        """Claim the live run, or do what the inbox asks for next; None when that is nothing."""
        live = found.live
        if live and live.status in ("suspended", "deleted"):
            return None
        if found.active and live and live.status == "running":
            return await takeover.claim(self._backend, owner, found.active, found.tail, found.inbox)
        choice = found.inbox.next_start()
        if choice is None:
            return None
        if isinstance(choice, Discard | Keep):
            await self._starter.settle(owner, choice, found.active, found.tail)
            return Settled()
        return await self._starter.start(owner, choice, found.active, found.tail)

    async def _pause(self, owner: Owner, delay: int) -> None:
        """Let the tick, too, leave a run alone for as long as its provider asked (F4)."""
        if owner.running is None:
            return
        state, table = owner.running.state, self._backend.table
        stored = await table.get(keys.run(state.run), keys.RUN)
        if stored is None or stored.index is None:
            return
        body = {**stored.body, "paused_at": state.position}
        due = Index(stored.index.group, self._backend.clock.now() + delay)
        try:
            await table.commit([Put(stored.partition, stored.sort, body, stored.version, due)])
        except ConditionFailed:
            log.debug("run %s: a tick was faster, and may wake it early", state.run)

    async def _release(self, beat: Beat) -> None:
        try:
            await self._backend.coordinator.release(beat.lease)
        except Unavailable:
            log.warning("%s: the lease could not be released and will run out", beat.lease.log)

    async def _after(self, wake: WakeUp, told: list[Head], delay: int | None) -> None:
        """After release: announce what is left, then take told runs out of the index (B7, F2)."""
        plain = WakeUp(wake.thread, wake.incarnation)
        try:
            if delay is not None:
                await self._send(plain, delay)
            elif await self._is_startable(wake):
                await self._send(plain, 0)
            for run in told:
                await self._unindex(run)
        except Unavailable:
            await self._send(plain, UNAVAILABLE_DELAY)

    async def _is_startable(self, wake: WakeUp) -> bool:
        partition = keys.partition(wake.thread, wake.incarnation)
        asked = await inbox.read(self._backend.table, partition)
        if asked.next_start() is None:
            return False
        active = await self._backend.table.get(partition, keys.ACTIVE)
        return active is None or Active.of(active.body).status == "reserved"

    async def _unindex(self, head: Head) -> None:
        """Take a run that is over and told out of the index; the tick does it if this fails."""
        sort, settings = keys.RUN, self._backend.settings
        partition = keys.run(head.run)
        if not head.version:
            stored = await self._backend.table.get(partition, sort)
            if stored is None or stored.index is None or Run.of(stored.body).status not in OVER:
                return
            head = Head(head.run, stored.body, stored.version)
        expires = self._backend.clock.now() + settings.receipt_ttl
        put = Put(partition, sort, head.body, head.version, expires=expires)
        try:
            await self._backend.table.commit([put])
        except ConditionFailed:
            log.debug("run %s stays in the index until the next tick", head.run)

    async def _send(self, wake: WakeUp, delay: int) -> None:
        try:
            await self._backend.queue.send(wake, delay)
        except Unavailable:
            log.warning("a wake-up for %s could not be sent; the tick finds it", wake.thread)
