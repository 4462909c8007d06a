"""Following a thread: every event once, in order, over any number of reconnects.

`docs/protocols.md` I.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from shared.core import keys
from shared.core.events import END_K, K_MAX, EventId
from shared.core.records import Active, Thread
from shared.services.door import check_owner
from shared.services.rebuild import rebuild
from shared.services.tails import Tails

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from shared.core.events import Cursor, LogEvent
    from shared.services.context import Backend
    from shared.services.tails import Listener

PAGE = 500
LARGE = 500_000
"""Bytes from which a page may have ended before its count."""
DOUBT = 100
"""Before a loss is believed: a replica may lag (I1)."""


class Follow:
    """Opens followers."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend
        self._tails = Tails(backend.coordinator)

    async def open(self, thread: str, resource: str | None, cursor: Cursor | None) -> Following:
        """Begin to follow a thread, which need not exist yet.

        With a cursor: exactly what came after it. Without: the active run from its start, then
        what comes.

        Raises:
            Forbidden: the thread belongs to another resource.
        """
        backend = self._backend
        known = await read_thread(backend, thread)
        check_owner(known, resource)
        incarnation = known.incarnation if known else 1
        following = Following(backend, self._tails, thread, resource, incarnation)
        following.bound = known is not None and not known.deleted
        if cursor and known and cursor.incarnation == incarnation:
            following.begin(cursor.id)
            return following
        await following.begin_anew()
        return following


async def read_thread(backend: Backend, thread: str) -> Thread | None:
    """Read a thread's record, a tombstone too."""
    stored = await backend.table.get(keys.thread(thread), keys.THREAD)
    return Thread.of(stored.body) if stored else None


class Following:
    """One follower of a thread, bound to the resource that it named (I2)."""

    def __init__(
        self, backend: Backend, tails: Tails, thread: str, resource: str | None, incarnation: int
    ) -> None:
        """Follow one incarnation of a thread, which may have to be made first."""
        self._backend, self._tails = backend, tails
        self._thread, self._resource = thread, resource
        self.incarnation = incarnation
        self.bound = False
        self._listener: Listener | None = None
        self.begin(None)

    @property
    def log(self) -> str:
        """The log that is followed."""
        return keys.partition(self._thread, self.incarnation)

    def begin(self, position: EventId | None, *, seen: bool = True) -> None:
        """Say where to begin: after an event of the log, or with it if it was not seen."""
        self._position, self._seen = position, seen
        self._logged = position is not None

    async def begin_anew(self) -> None:
        """Begin with the active run from its start, or with what comes (I1)."""
        end = await self._backend.coordinator.last(self.log)
        active = await self._backend.table.get(self.log, keys.ACTIVE)
        start = Active.of(active.body).start if active else None
        if start is not None:
            self.begin(EventId(start, 0, 0), seen=False)
        else:
            self.begin(end)

    async def batches(self, wait: int) -> AsyncGenerator[list[LogEvent], None]:
        """Give events as they come, and an empty batch whenever none came for `wait` ms.

        Raises:
            Forbidden: meanwhile the thread was made by another resource.
        """
        while True:
            async with aclosing(self._one_incarnation(wait)) as batches:
                async for batch in batches:
                    yield batch
            self.bound, self._listener = False, None
            known = await self._check()
            self.incarnation = known.incarnation if known else self.incarnation + 1
            self.begin(None)

    async def _one_incarnation(self, wait: int) -> AsyncGenerator[list[LogEvent], None]:
        """Follow until the thread is deleted (J2)."""
        async with self._tails.listen(self.log) as listener:
            self._listener = listener
            while not self._ended:
                async for batch in self._catch_up():
                    yield batch
                while not (listener.behind or self._ended):
                    heard = await listener.next(wait)
                    if heard is None:
                        yield []
                        continue
                    fresh = [e for e in heard if self._position is None or e.id > self._position]
                    async for shown in self._shown(fresh):
                        yield shown
                listener.reset()

    @property
    def _ended(self) -> bool:
        return self._position is not None and self._position.k == END_K

    async def _catch_up(self) -> AsyncIterator[list[LogEvent]]:
        """Read the log up to its end; where it lost our place, the journal."""
        while not self._ended:
            found = await self._next_page()
            if found is None:
                async for batch in self._rebuilt(None):
                    yield batch
                continue
            async for shown in self._shown(found):
                yield shown
            if len(found) < PAGE and sum(len(event.json) for event in found) < LARGE:
                return

    async def _next_page(self) -> list[LogEvent] | None:
        """Read on from our place; None when the log does not hold it any more (I1)."""
        coordinator, position = self._backend.coordinator, self._position
        if position is None or not self._logged:
            return await coordinator.read(self.log, position, limit=PAGE)
        for doubt in (DOUBT, 0):
            found = await coordinator.read(self.log, position, inclusive=True, limit=PAGE + 1)
            if found and found[0].id == position:
                return found[1:] if self._seen else found
            if doubt:
                await self._backend.clock.sleep(doubt)
        return None

    async def _shown(self, batch: list[LogEvent]) -> AsyncIterator[list[LogEvent]]:
        """Show a batch; where the log says that it was lost, fill in from the journal (D5)."""
        plain: list[LogEvent] = []
        for event in batch:
            if event.id.k != K_MAX:
                plain.append(event)
                continue
            if plain:
                yield await self._passed(plain)
                plain = []
            async for rebuilt in self._rebuilt(event.id):
                yield rebuilt
            self.begin(event.id)
        if plain:
            yield await self._passed(plain)

    async def _rebuilt(self, until: EventId | None) -> AsyncIterator[list[LogEvent]]:
        """Show what the journal has after our place."""
        await self._check()
        lost, seen = self._position, self._seen
        if lost is None:
            lost, seen = EventId(until.start if until else 0, 0, 0), False
        place: EventId | None = None
        async for place, batch in rebuild(
            self._backend, self._thread, self.incarnation, lost, seen=seen, until=until
        ):
            if batch:
                yield batch
            # Also back, where the cursor was of another log.
            self._position, self._seen, self._logged = place, True, False
        if place is None:
            end = await self._backend.coordinator.last(self.log)
            self._position, self._seen, self._logged = lost, True, False
            if until is None and (end is None or end < lost):
                await self.begin_anew()  # a place that this thread has yet to come to
        elif seen and lost[:2] == (place.start, place.position + 1):
            self._position = lost  # inside the step that is being told: what follows it is new

    async def _passed(self, batch: list[LogEvent]) -> list[LogEvent]:
        """Note what is shown, and check the owner where a run begins (I2)."""
        begun = [e.id.start for e in batch if e.id.position == 0 and e.id.k == 0]
        if begun or not self.bound:
            await self._check(begun[-1] if begun else None)
        self.begin(batch[-1].id)
        return batch

    async def _check(self, start: int | None = None) -> Thread | None:
        """Let nothing be shown of a thread of another resource.

        With the start of a run, the thread is read once for all who follow here.

        Raises:
            Forbidden: it is one.
        """

        async def read() -> Thread | None:
            return await read_thread(self._backend, self._thread)

        if start is not None and self._listener:
            known = await self._listener.once(start, read)
        else:
            known = await read()
        check_owner(known, self._resource)
        self.bound = known is not None
        return known
