"""Ports that count: each request with what it is for, and the bytes that it moves.

One `Trace` holds the requests of all wrapped ports of a test, in order, and marks between them:

    trace = Trace()
    table = CountingTable(real_table, trace)
    ...
    assert trace.take().upto("model").over(get=2, query=2, commit=1) == []

Renewals are not counted: they come with the time that passes, not with the work.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import to_json

from shared.core import keys
from shared.ports import Appended, Check, Put

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shared.core.events import EventId, LogEvent
    from shared.ports import Coordinator, Item, Lease, Table, WakeQueue, WakeUp, Write

MARK = "mark"


class Call(NamedTuple):
    """One request, or a mark. `put`: a commit of one write, which is a plain PutItem."""

    name: str
    what: str
    read: int = 0
    written: int = 0

    def __str__(self) -> str:
        return self.what if self.name == MARK else f"{self.name} {self.what}"


class Trace:
    """Requests in the order in which they were made."""

    def __init__(self, calls: Iterable[Call] = ()) -> None:
        self.calls = list(calls)
        self.widest = 0
        """How many requests were under way at the same time, at most."""
        self._under_way = 0

    def add(self, name: str, what: str, *, read: int = 0, written: int = 0) -> None:
        self.calls.append(Call(name, what, read, written))

    def mark(self, what: str) -> None:
        """Note a place, such as a model call."""
        self.calls.append(Call(MARK, what))

    async def send(self) -> None:
        """Be under way for a moment, as every request is."""
        self._under_way += 1
        self.widest = max(self.widest, self._under_way)
        await asyncio.sleep(0)
        self._under_way -= 1

    def take(self) -> Trace:
        """Give what came since the last time."""
        taken, self.calls = Trace(self.calls), []
        taken.widest, self.widest = self.widest, 0
        return taken

    # ---- parts -----------------------------------------------------------------------------

    def upto(self, what: str) -> Trace:
        """What came before the first mark or request like this."""
        return Trace(self.calls[: self._places(what)[0]])

    def after(self, what: str) -> Trace:
        """What came after the last mark or request like this."""
        return Trace(self.calls[self._places(what)[-1] + 1 :])

    def between(self, what: str) -> list[Trace]:
        """What came between each two neighbouring marks or requests like this."""
        places = self._places(what)
        return [Trace(self.calls[one + 1 : other]) for one, other in pairwise(places)]

    def _places(self, what: str) -> list[int]:
        found = [n for n, call in enumerate(self.calls) if str(call) == what]
        assert found, f"no {what} in {self}"
        return found

    # ---- sums ------------------------------------------------------------------------------

    def counts(self, *, without: Sequence[str] = ("append",)) -> Counter[str]:
        """Count the requests by name."""
        return Counter(call.name for call in self.calls if call.name not in (MARK, *without))

    def count(self, name: str) -> int:
        return sum(call.name == name for call in self.calls)

    def of(self, *names: str) -> Trace:
        """Only the requests with these names."""
        return Trace(call for call in self.calls if call.name in names)

    @property
    def read(self) -> int:
        return sum(call.read for call in self.calls)

    @property
    def written(self) -> int:
        return sum(call.written for call in self.calls)

    def over(self, **most: int) -> list[str]:
        """Tell which requests are more than allowed; appends are counted apart."""
        found = []
        for name, number in self.counts().items():
            if number > most.get(name, 0):
                which = ", ".join(call.what for call in self.calls if call.name == name)
                found.append(f"{name}: {number} > {most.get(name, 0)} ({which})")
        return found

    def __str__(self) -> str:
        return "; ".join(map(str, self.calls))


class CountingTable:
    """A Table that counts (implements `Table`)."""

    def __init__(self, table: Table, trace: Trace) -> None:
        self._table, self._trace = table, trace

    async def get(self, partition: str, sort: str) -> Item | None:
        await self._trace.send()
        item = await self._table.get(partition, sort)
        self._trace.add("get", sort, read=_sizes([item] if item else []))
        return item

    async def query(self, partition: str, prefix: str = "", **options: Any) -> list[Item]:
        await self._trace.send()
        items = await self._table.query(partition, prefix, **options)
        self._trace.add("query", prefix.partition("#")[0] or "all", read=_sizes(items))
        return items

    async def index(self, group: str, **options: Any) -> list[Item]:
        await self._trace.send()
        items = await self._table.index(group, **options)
        self._trace.add("index", group, read=_sizes(items))
        return items

    async def commit(self, writes: Sequence[Write]) -> None:
        await self._trace.send()
        name = "put" if len(writes) == 1 and not isinstance(writes[0], Check) else "commit"
        written = sum(len(to_json(w.body)) for w in writes if isinstance(w, Put))
        self._trace.add(name, _kind(writes), written=written)
        await self._table.commit(writes)


class CountingCoordinator:
    """A Coordinator that counts (implements `Coordinator`); `followed`: what appends answer."""

    def __init__(
        self, coordinator: Coordinator, trace: Trace, *, followed: bool | None = None
    ) -> None:
        self._coordinator, self._trace, self._followed = coordinator, trace, followed

    async def acquire(self, log: str, token: str, ttl: int) -> Lease | None:
        self._trace.add("acquire", log)
        return await self._coordinator.acquire(log, token, ttl)

    def renew(self, lease: Lease, ttl: int) -> str | None:
        return self._coordinator.renew(lease, ttl)

    async def release(self, lease: Lease) -> None:
        self._trace.add("release", lease.log)
        await self._coordinator.release(lease)

    async def held(self, log: str) -> bool:
        self._trace.add("held", log)
        return await self._coordinator.held(log)

    async def append(
        self, lease: Lease, events: Sequence[LogEvent], ttl: int, after: EventId | None = None
    ) -> Appended:
        self._trace.add("append", f"{len(events)} events", written=_lengths(events))
        appended = await self._coordinator.append(lease, events, ttl, after)
        followed = appended.followed if self._followed is None else self._followed
        return Appended(appended.cancelled, followed)

    async def last(self, log: str) -> EventId | None:
        self._trace.add("last", log)
        return await self._coordinator.last(log)

    async def read(self, log: str, after: EventId | None, **options: Any) -> list[LogEvent]:
        events = await self._coordinator.read(log, after, **options)
        name = "read" if options.get("wait") else "look"
        self._trace.add(name, f"{len(events)} events", read=_lengths(events))
        return events

    async def forget(self, log: str) -> None:
        self._trace.add("forget", log)
        await self._coordinator.forget(log)

    async def ask_to_stop(self, log: str, run: str) -> None:
        self._trace.add("ask_to_stop", log)
        await self._coordinator.ask_to_stop(log, run)


class CountingQueue:
    """A WakeQueue that counts (implements `WakeQueue`)."""

    def __init__(self, queue: WakeQueue, trace: Trace) -> None:
        self._queue, self._trace = queue, trace

    async def send(self, wake: WakeUp, delay: int = 0) -> None:
        self._trace.add("send", wake.thread)
        await self._queue.send(wake, delay)


def _kind(writes: Sequence[Write]) -> str:
    """The kind of the journal entry in a commit; of another, the beginning of its first key."""
    for write in writes:
        if isinstance(write, Put) and write.sort.startswith(keys.STEP_PREFIX):
            return str(write.body["kind"])
    return writes[0].sort.split("#")[0]


def _sizes(items: Sequence[Item]) -> int:
    return sum(len(to_json(item.body)) for item in items)


def _lengths(events: Sequence[LogEvent]) -> int:
    return sum(len(event.json.encode()) for event in events)
