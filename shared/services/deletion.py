"""Deleting a thread, and clearing away what it held (`docs/protocols.md` J)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from shared.core import keys
from shared.core.errors import ConditionFailed, NotFound, Unavailable
from shared.core.events import END_K, EventId, LogEvent
from shared.core.records import Active, InboxItem, Run, Thread
from shared.ports import ABSENT, Delete, Index, Put, WakeUp
from shared.services.door import check_owner, living

if TYPE_CHECKING:
    from shared.ports import Expect, Item, Write
    from shared.services.context import Backend

log = logging.getLogger(__name__)

ATTEMPTS = 20
PAGE = 45
LATER = 60_000
"""Between the two passes: whoever still wrote to the old incarnation has long given up (J2)."""


class Deletion:
    """Deletes threads, and purges their records from the tick."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend

    async def delete(self, thread: str, resource: str | None) -> None:
        """Delete a thread at once for all readers and senders; its records go later.

        A run that is active is asked to stop, and nothing of the thread runs after it.

        Raises:
            NotFound: there is no such thread.
            Forbidden: it belongs to another resource.
            Unavailable: it changes too fast; try again.
        """
        for _ in range(ATTEMPTS):
            stored = await self._backend.table.get(keys.thread(thread), keys.THREAD)
            known = living(stored)
            if stored is None or known is None:
                raise NotFound("Thread not found")
            check_owner(known, resource)
            try:
                return await self._commit(stored, known)
            except ConditionFailed:
                log.debug("thread %s changed while it was deleted", thread)
        raise Unavailable("the thread changes too fast; try again")

    async def _commit(self, stored: Item, known: Thread) -> None:
        now = self._backend.clock.now()
        partition = keys.partition(known.thread, known.incarnation)
        active_item = await self._backend.table.get(partition, keys.ACTIVE)
        active = Active.of(active_item.body) if active_item else None
        runs = active is not None and active.status in ("running", "suspended")
        tombstone = known.model_copy(
            update={"deleted": True, "incarnation": known.incarnation + 1, "updated_at": now}
        )
        body = {"thread": known.thread, "incarnation": known.incarnation, "passes": 0}
        doomed = (
            active.model_copy(update={"doomed": True})
            if active and runs
            else Active(run="", agent="", status="deleted", doomed=True)
        )
        expect: Expect = active_item.version if active_item else ABSENT
        writes: list[Write] = [
            Put(stored.partition, stored.sort, tombstone.body(), stored.version),
            Put(
                stored.partition, keys.purge(known.incarnation), body, ABSENT,
                Index(keys.DUE_PURGE, now),
            ),
            Put(partition, keys.ACTIVE, doomed.body(), expect),
        ]  # fmt: skip
        if active and runs:
            item = InboxItem(
                kind="cancel", run=active.run, agent=active.agent, thread=known.thread,
                resource=known.resource, incarnation=known.incarnation, accepted_at=now,
            )  # fmt: skip
            writes.append(Put(partition, keys.cancel(active.run), item.body()))
        await self._backend.table.commit(writes)
        try:
            if active and runs:
                await self._backend.coordinator.ask_to_stop(partition, active.run)
            await self._backend.queue.send(WakeUp(known.thread, known.incarnation))
        except Unavailable:
            log.warning("thread %s: its run sees the deletion at its next drain", known.thread)

    async def purge(self, seen: Item) -> None:
        """Clear away one deleted incarnation, once nobody works in it; twice, some time apart."""
        item = await self._backend.table.get(seen.partition, seen.sort)
        if item is None or item.index is None:
            return
        thread, incarnation = str(item.body["thread"]), int(item.body["incarnation"])
        partition = keys.partition(thread, incarnation)
        now, settings = self._backend.clock.now(), self._backend.settings
        lease = await self._backend.coordinator.acquire(
            partition, self._backend.ids.new(), settings.lease
        )
        if lease is None:
            await self._again(item, item.body, now + settings.tick)
            return
        try:
            if not item.body["passes"]:
                start = max(now, lease.last.start + 1 if lease.last else 0)
                event = LogEvent.make(
                    incarnation, EventId(start, 0, END_K), 0, {"type": "thread-deleted"}
                )
                await self._backend.coordinator.append(lease, [event], settings.lease)
            await self._clear(partition)
        finally:
            await self._backend.coordinator.release(lease)
        if not item.body["passes"]:
            await self._again(item, {**item.body, "passes": 1}, now + LATER)
            return
        await self._backend.coordinator.forget(partition)
        await self._backend.table.commit(
            [Delete(partition, keys.ACTIVE), Delete(item.partition, item.sort, item.version)]
        )

    async def _clear(self, partition: str) -> None:
        """Delete all records but ACTIVE, which keeps everything from starting."""
        after = None
        while items := await self._backend.table.query(partition, after=after, limit=PAGE):
            after = items[-1].sort
            writes: list[Write] = [
                Delete(i.partition, i.sort) for i in items if i.sort != keys.ACTIVE
            ]
            for run in {name for i in items if (name := _run_of(i.body))}:
                head = await self._backend.table.get(keys.run(run), keys.RUN)
                if head and _is_of(head, partition):
                    writes.append(Delete(head.partition, head.sort, head.version))
            try:
                await self._backend.table.commit(writes)
            except ConditionFailed:
                after = None  # a head moved meanwhile: look at all again

    async def _again(self, item: Item, body: dict[str, Any], at: int) -> None:
        put = Put(item.partition, item.sort, body, item.version, Index(keys.DUE_PURGE, at))
        try:
            await self._backend.table.commit([put])
        except ConditionFailed:
            log.debug("another tick purges %s", item.partition)


def _is_of(head: Item, partition: str) -> bool:
    """Tell whether a run belongs to the incarnation that is cleared away."""
    run = Run.of(head.body)
    return keys.partition(run.thread, run.incarnation) == partition


def _run_of(body: dict[str, Any]) -> str | None:
    """Give the run that an entry or inbox item names, whose head lies elsewhere."""
    run = body.get("run")
    return run if isinstance(run, str) and run else None
