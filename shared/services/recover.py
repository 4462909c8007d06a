"""The schedule's tick: find what nobody looks after (`docs/protocols.md` H1).

All it writes is conditional, so overlapping, late and doubled ticks do no harm.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from shared.core import keys
from shared.core.errors import ConditionFailed, Unavailable
from shared.core.records import Active, InboxItem, Run
from shared.ports import Index, Put, WakeUp
from shared.services.deletion import Deletion

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from shared.ports import Item
    from shared.services.context import Backend

T = TypeVar("T")

log = logging.getLogger(__name__)

LONGEST_POSTPONE = 3_600_000
PAGE = 100


class Recover:
    """Sends wake-ups for due runs and inbox items."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend
        self._deletion = Deletion(backend)

    async def tick(self) -> int:
        """Look once through all shards; return how many wake-ups were sent."""
        sent = 0
        for shard in range(keys.SHARDS):
            try:
                sent += await self._shard(shard)
            except Unavailable as error:
                # Without the Coordinator nobody knows who lives: touch nothing, come again (H1).
                log.warning("tick: shard %d: %s", shard, error)
        for item in await self._backend.table.index(
            keys.DUE_PURGE, high=self._backend.clock.now(), limit=PAGE
        ):
            await self._alone(self._deletion.purge(item), item)
        return sent

    async def _shard(self, shard: int) -> int:
        table, now = self._backend.table, self._backend.clock.now()
        woken: set[WakeUp] = set()
        for item in await table.index(keys.due_runs(shard), high=now, limit=PAGE):
            wake = await self._alone(self._due_run(item, now), item)
            if wake:
                woken.add(wake)
        for item in await table.index(keys.due_inbox(shard), high=now, limit=PAGE):
            wake = await self._alone(self._due_item(item, now), item)
            if wake and not any(w.thread == wake.thread for w in woken):
                woken.add(wake)
        for wake in woken:
            await self._backend.queue.send(wake)
        return len(woken)

    async def _alone(self, look: Awaitable[T], item: Item) -> T | None:
        """Look at one record; one that cannot be read is put off, out of the others' way."""
        try:
            return await look
        except Unavailable:
            raise
        except Exception:
            log.exception("tick: %s/%s cannot be looked after", item.partition, item.sort)
        stored = await self._backend.table.get(item.partition, item.sort)
        if stored:
            await self._postpone(stored, self._backend.clock.now() + LONGEST_POSTPONE)
        return None

    async def _due_run(self, seen: Item, now: int) -> WakeUp | None:
        """A run whose owner lives is looked at later; any other is announced by name."""
        item = await self._backend.table.get(seen.partition, seen.sort)
        if item is None or item.index is None or item.index.order > now:
            return None
        run = Run.of(item.body)
        log_name = keys.partition(run.thread, run.incarnation)
        if await self._backend.coordinator.held(log_name):
            await self._postpone(item, now + self._backend.settings.tick)
            return None
        return WakeUp(run.thread, run.incarnation, run.run)

    async def _due_item(self, seen: Item, now: int) -> WakeUp | None:
        """An item that somebody could start on is announced; any other is postponed by its age."""
        item = await self._backend.table.get(seen.partition, seen.sort)
        if item is None or item.index is None or item.index.order > now:
            return None
        waiting = InboxItem.of(item.body)
        active = await self._backend.table.get(item.partition, keys.ACTIVE)
        status = Active.of(active.body).status if active else None
        if status in ("suspended", "deleted") or await self._backend.coordinator.held(
            item.partition
        ):
            age = max(now - waiting.accepted_at, self._backend.settings.tick)
            await self._postpone(item, now + min(age, LONGEST_POSTPONE))
            return None
        return WakeUp(waiting.thread, waiting.incarnation)

    async def _postpone(self, item: Item, until: int) -> None:
        index = Index(item.index.group, until) if item.index else None
        put = Put(item.partition, item.sort, item.body, item.version, index, item.expires)
        try:
            await self._backend.table.commit([put])
        except ConditionFailed:
            log.debug("%s/%s moved meanwhile", item.partition, item.sort)
