"""Following a thread: every event once, in order, over any number of reconnects.

`docs/protocols.md` I.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from shared.core import keys
from shared.core.errors import Forbidden
from shared.core.events import END_K, K_MAX, EventId
from shared.core.records import Active, Thread
from shared.services.rebuild import rebuild
from shared.services.tails import Tails

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from shared.core.events import Cursor, LogEvent
    from shared.services.context import Backend

PAGE = 500
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
        if cursor and known and cursor.incarnation == incarnation:
            following.begin(cursor.id, inclusive=True)
            return following
        end = await backend.coordinator.last(following.log)
        active = await backend.table.get(following.log, keys.ACTIVE)
        start = Active.of(active.body).start if active else None
        if start is not None:
            following.begin(EventId(start, 0, 0), inclusive=True, whole=True)
        else:
            following.begin(end, inclusive=False)
        return following


async def read_thread(backend: Backend, thread: str) -> Thread | None:
    """Read a thread's record, a tombstone too."""
    stored = await backend.table.get(keys.thread(thread), keys.THREAD)
    return Thread.of(stored.body) if stored else None


def check_owner(thread: Thread | None, resource: str | None) -> None:
    """Refuse a resource that the thread does not belong to.

    Raises:
        Forbidden: it belongs to another one.
    """
    if thread and not thread.deleted and resource not in (None, thread.resource):
        raise Forbidden("Access denied: thread belongs to a different resource")


class Following:
    """One follower of a thread, bound to the resource that it named (I2)."""

    def __init__(
        self, backend: Backend, tails: Tails, thread: str, resource: str | None, incarnation: int
    ) -> None:
        """Follow one incarnation of a thread."""
        self._backend, self._tails = backend, tails
        self._thread, self._resource = thread, resource
        self.incarnation = incarnation
        self._position: EventId | None = None
        self._inclusive = self._whole = False

    @property
    def log(self) -> str:
        """The log that is followed."""
        return keys.partition(self._thread, self.incarnation)

    @property
    def _ended(self) -> bool:
        return self._position is not None and self._position.k == END_K

    def begin(self, position: EventId | None, *, inclusive: bool, whole: bool = False) -> None:
        """Say where to begin.

        `inclusive`: the event at `position` must be there, or the log has lost it; with `whole`
        it is shown, otherwise it was seen.
        """
        self._position, self._inclusive, self._whole = position, inclusive, whole

    async def batches(self, wait: int) -> AsyncGenerator[list[LogEvent], None]:
        """Give events as they come, and an empty batch whenever none came for `wait` ms.

        Raises:
            Forbidden: meanwhile the thread was made by another resource.
        """
        while True:
            async with aclosing(self._incarnation(wait)) as batches:
                async for batch in batches:
                    yield batch
            known = await read_thread(self._backend, self._thread)
            check_owner(known, self._resource)
            self.incarnation = known.incarnation if known else self.incarnation + 1
            self.begin(None, inclusive=False)

    async def _incarnation(self, wait: int) -> AsyncGenerator[list[LogEvent], None]:
        """Follow one incarnation until it is deleted (J2)."""
        async with self._tails.listen(self.log) as listener:
            if self._inclusive:
                async for batch in self._resume():
                    yield batch
            while not self._ended:
                async for batch in self._catch_up():
                    yield batch
                while not (listener.behind or self._ended):
                    batch = await listener.next(wait)
                    fresh = [e for e in batch if self._position is None or e.id > self._position]
                    if fresh or not batch:
                        async for shown in self._with_lost(fresh):
                            yield shown
                listener.reset()

    async def _resume(self) -> AsyncIterator[list[LogEvent]]:
        """Read from a place that must be in the log; where it is lost, from the journal."""
        position, coordinator = self._position, self._backend.coordinator
        if position is None:
            return
        for doubt in (DOUBT, 0):
            found = await coordinator.read(self.log, position, inclusive=True, limit=PAGE)
            if found and found[0].id == position:
                async for batch in self._with_lost(found if self._whole else found[1:]):
                    yield batch
                return
            if doubt:
                await self._backend.clock.sleep(doubt)
        async for place, batch in rebuild(
            self._backend, self._thread, self.incarnation, position, seen=not self._whole
        ):
            yield await self._passed(batch)
            # Also back, where the cursor was of a step that never committed, or of another log.
            self._position = place

    async def _catch_up(self) -> AsyncIterator[list[LogEvent]]:
        while True:
            found = await self._backend.coordinator.read(self.log, self._position, limit=PAGE)
            if not found:
                return
            async for shown in self._with_lost(found):
                yield shown
            if len(found) < PAGE:
                return

    async def _with_lost(self, batch: list[LogEvent]) -> AsyncIterator[list[LogEvent]]:
        """Show a batch; where the log says that it was lost, fill in from the journal (D5)."""
        for number, event in enumerate(batch):
            if event.id.k != K_MAX:
                continue
            before = batch[:number]
            if before:
                yield await self._passed(before)
            lost = self._position or EventId(event.id.start, 0, 0)
            seen = self._position is not None
            async for _, rebuilt in rebuild(
                self._backend, self._thread, self.incarnation, lost, seen=seen, until=event.id
            ):
                yield rebuilt
            self._position = event.id
            async for shown in self._with_lost(batch[number + 1 :]):
                yield shown
            return
        yield await self._passed(batch)

    async def _passed(self, batch: list[LogEvent]) -> list[LogEvent]:
        """Note what is shown, and check the owner again where a run begins (I2)."""
        if not batch:
            return batch
        if self._resource is not None and any(e.id.position == 0 and e.id.k == 0 for e in batch):
            check_owner(await read_thread(self._backend, self._thread), self._resource)
        self._position = batch[-1].id
        return batch
