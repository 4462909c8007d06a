"""Ports that fail when a test says so.

One `Faults` holds the plan for all wrapped ports of a test, so that their calls are numbered
together, from 1 on, as they happen:

    faults = Faults({3: Fault.CUT, ("commit", 2): Fault.CONFLICT, ("get", 1): rival})
    table = FaultyTable(real_table, faults)

A crash test runs once without a plan, and then once for each number in `faults.calls`.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from shared.core.errors import ConditionFailed, Unavailable
from shared.ports import ABSENT, Failure, Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from shared.core.events import EventId, LogEvent
    from shared.ports import (
        Appended,
        Coordinator,
        Index,
        Item,
        Lease,
        Table,
        WakeQueue,
        WakeUp,
        Write,
    )

    Rival = Callable[[], Awaitable[None]]
    """Something that happens just before the call; the call itself goes through."""

T = TypeVar("T")

ALL = 1_000_000


class Fault(Enum):
    """What happens to a call."""

    REFUSED = "not applied, and Unavailable is raised"
    CUT = "applied, but the reply is lost: Unavailable is raised"
    CONFLICT = "a commit meets an item that a rival has just written"
    KILL_BEFORE = "the process dies before the call"
    KILL_AFTER = "the process dies after the call"


class Killed(BaseException):
    """The process died here; nothing of it may go on, so nothing may catch this."""


class Faults:
    """Which calls fail, by number or by (name, number of that name)."""

    def __init__(self, plan: Mapping[int | tuple[str, int], Fault | Rival] | None = None) -> None:
        self.plan = dict(plan or {})
        self.calls: list[str] = []
        self._counts: Counter[str] = Counter()
        self._dead = False

    async def around(
        self, name: str, call: Callable[[], Awaitable[T]], conflict: Rival | None = None
    ) -> T:
        """Make a call, with what the plan says for it; a call without conflicts has none."""
        planned = self._next(name)
        rival = conflict if planned is Fault.CONFLICT else planned
        if rival is not None and not isinstance(rival, Fault):
            await rival()
        self._before(planned)
        result = await call()
        self._after(planned)
        return result

    def around_blocking(self, name: str, call: Callable[[], T]) -> T:
        """Make a blocking call; a rival cannot come before it."""
        planned = self._next(name)
        assert planned is None or isinstance(planned, Fault), name
        self._before(planned)
        result = call()
        self._after(planned)
        return result

    @property
    def dead(self) -> bool:
        """Whether the process was killed."""
        return self._dead

    def _next(self, name: str) -> Fault | Rival | None:
        if self._dead:
            raise Killed(f"{name} was called by a dead process")
        self.calls.append(name)
        self._counts[name] += 1
        by_name = self.plan.get((name, self._counts[name]))
        return by_name or self.plan.get(len(self.calls))

    def _before(self, fault: Fault | Rival | None) -> None:
        if fault is Fault.REFUSED:
            raise Unavailable("injected: not applied")
        if fault is Fault.KILL_BEFORE:
            self._dead = True
            raise Killed

    def _after(self, fault: Fault | Rival | None) -> None:
        if fault is Fault.CUT:
            raise Unavailable("injected: applied, reply lost")
        if fault is Fault.KILL_AFTER:
            self._dead = True
            raise Killed


class FaultyTable:
    """A Table with faults; its index lags by `lag` commits that went through this wrapper."""

    def __init__(self, table: Table, faults: Faults, *, lag: int = 0) -> None:
        self._table = table
        self._faults = faults
        self._lag = lag
        self._before: list[dict[tuple[str, str], Item | None]] = []

    async def get(self, partition: str, sort: str) -> Item | None:
        return await self._faults.around("get", lambda: self._table.get(partition, sort))

    async def query(self, partition: str, prefix: str = "", **options: Any) -> list[Item]:
        return await self._faults.around(
            "query", lambda: self._table.query(partition, prefix, **options)
        )

    async def index(
        self,
        group: str,
        *,
        low: int = 0,
        high: int | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[Item]:
        async def late() -> list[Item]:
            old: dict[tuple[str, str], Item | None] = {}
            for commit in reversed(self._before):
                old.update(commit)
            now = await self._table.index(group, low=low, high=high, limit=ALL)
            items = [item for item in now if (item.partition, item.sort) not in old]
            items += [i for i in old.values() if i and _within(i.index, group, low, high)]
            items.sort(key=_place, reverse=reverse)
            return items[:limit]

        return await self._faults.around("index", late)

    def catch_up(self) -> None:
        """Let the index see all commits so far."""
        self._before.clear()

    async def commit(self, writes: Sequence[Write]) -> None:
        async def call() -> None:
            keys = [(w.partition, w.sort) for w in writes] if self._lag else []
            before = {key: await self._table.get(*key) for key in keys}
            await self._table.commit(writes)
            self._before = [*self._before, before][-self._lag :] if self._lag else []

        await self._faults.around("commit", call, lambda: self._conflict(writes))

    async def _conflict(self, writes: Sequence[Write]) -> None:
        """Put the first item that is expected at a version once more, as a rival would.

        Where only absence is expected, the commit fails as if a rival's item had come and gone.
        """
        for write in writes:
            stored = await self._table.get(write.partition, write.sort)
            if stored and write.expect == stored.version:
                again = Put(
                    stored.partition,
                    stored.sort,
                    stored.body,
                    index=stored.index,
                    expires=stored.expires,
                )
                await self._table.commit([again])
                return
        absent = [Failure(write, None) for write in writes if write.expect == ABSENT]
        if absent:
            raise ConditionFailed(absent)


class FaultyCoordinator:
    """A Coordinator with faults."""

    def __init__(self, coordinator: Coordinator, faults: Faults) -> None:
        self._coordinator = coordinator
        self._faults = faults

    async def acquire(self, log: str, token: str, ttl: int) -> Lease | None:
        return await self._faults.around(
            "acquire", lambda: self._coordinator.acquire(log, token, ttl)
        )

    def renew(self, lease: Lease, ttl: int) -> str | None:
        return self._faults.around_blocking("renew", lambda: self._coordinator.renew(lease, ttl))

    async def release(self, lease: Lease) -> None:
        await self._faults.around("release", lambda: self._coordinator.release(lease))

    async def held(self, log: str) -> bool:
        return await self._faults.around("held", lambda: self._coordinator.held(log))

    async def append(
        self, lease: Lease, events: Sequence[LogEvent], ttl: int, after: EventId | None = None
    ) -> Appended:
        return await self._faults.around(
            "append", lambda: self._coordinator.append(lease, events, ttl, after)
        )

    async def last(self, log: str) -> EventId | None:
        return await self._faults.around("last", lambda: self._coordinator.last(log))

    async def read(self, log: str, after: EventId | None, **options: Any) -> list[LogEvent]:
        return await self._faults.around(
            "read", lambda: self._coordinator.read(log, after, **options)
        )

    async def forget(self, log: str) -> None:
        await self._faults.around("forget", lambda: self._coordinator.forget(log))

    async def ask_to_stop(self, log: str, run: str) -> None:
        await self._faults.around("ask_to_stop", lambda: self._coordinator.ask_to_stop(log, run))


class FaultyQueue:
    """A WakeQueue with faults."""

    def __init__(self, queue: WakeQueue, faults: Faults) -> None:
        self._queue = queue
        self._faults = faults

    async def send(self, wake: WakeUp, delay: int = 0) -> None:
        await self._faults.around("send", lambda: self._queue.send(wake, delay))


def _within(index: Index | None, group: str, low: int, high: int | None) -> bool:
    return (
        index is not None
        and index.group == group
        and low <= index.order
        and (high is None or index.order <= high)
    )


def _place(item: Item) -> tuple[int, str, str]:
    return (item.index.order if item.index else 0, item.partition, item.sort)
