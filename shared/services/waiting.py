"""What waits in a thread's inbox: showing it, and taking it back (`docs/protocols.md` A8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.core import keys
from shared.core.errors import ConditionFailed, Unavailable
from shared.core.limits import check_id
from shared.core.records import Active, Receipt, Run
from shared.ports import ABSENT, Check, Delete, Put
from shared.services import inbox
from shared.services.door import announce
from shared.services.threads import Page, Threads

if TYPE_CHECKING:
    from shared.core.choice import Waiting
    from shared.core.records import Thread
    from shared.ports import Item, Write
    from shared.services.context import Backend

ATTEMPTS = 20
RETRY_PAUSE = 100


class Waits:
    """The signals of a thread that nobody took yet."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend, self._threads = backend, Threads(backend)

    async def page(self, thread: str, resource: str | None, number: int, per_page: int) -> Page:
        """List the signals that wait, as the inbox has them; items are `choice.Waiting`.

        Raises:
            NotFound: there is no such thread.
            Forbidden: it belongs to another resource.
        """
        found = await self._threads.owned(thread, resource)
        partition = keys.partition(thread, found.incarnation)
        begin, total, after = number * per_page, 0, None
        shown: list[Waiting] = []
        while items := await self._backend.table.query(
            partition, keys.INBOX_PREFIX, after=after, limit=inbox.PAGE
        ):
            after = items[-1].sort
            signals = [w for item in items if (w := inbox.waiting(item)) and w.item.receipt]
            shown += signals[max(begin - total, 0) : max(begin + per_page - total, 0)]
            total += len(signals)
        return Page(shown, total, number, per_page)

    async def cancel(self, thread: str, resource: str | None, signal: str) -> bool:
        """Take a signal back, and tell whether it will be seen by nobody.

        A run of its own ends with it, and the thread goes to whoever waits next. A repeat after a
        lost reply is a success, too. False: it was taken, it was never here, or was long ago.

        Raises:
            NotFound: there is no such thread.
            Forbidden: it belongs to another resource.
            Unavailable: no answer; trying again is safe.
        """
        check_id(thread, "threadId")
        check_id(signal, "signalId")
        for _ in range(ATTEMPTS):
            try:
                found = await self._threads.owned(thread, resource)
                return await self._attempt(found, signal)
            except ConditionFailed:
                continue  # it is being taken, or the thread changed: look again
            except Unavailable:
                await self._backend.clock.sleep(RETRY_PAUSE)
        raise Unavailable("the thread changes too fast; try again")

    async def _attempt(self, thread: Thread, signal: str) -> bool:
        """Look and commit once.

        Raises:
            ConditionFailed: what was read is no longer so; nothing was done.
        """
        table, partition = self._backend.table, keys.partition(thread.thread, thread.incarnation)
        stored = await table.get(partition, keys.receipt(signal))
        receipt = Receipt.of(stored.body) if stored else None
        if stored is None or receipt is None or receipt.item is None:
            return False
        item = await table.get(partition, receipt.item)
        waiting = inbox.waiting(item) if item else None
        if waiting is None:
            return receipt.state == "cancelled"
        now = self._backend.clock.now()
        expires = now + self._backend.settings.receipt_ttl
        done = receipt.model_copy(update={"state": "cancelled"})
        writes: list[Write] = [
            Delete(partition, waiting.sort, waiting.version),
            Put(partition, stored.sort, done.body(), stored.version, expires=expires),
        ]
        if waiting.item.kind in inbox.OWNERS:
            writes += await self._give_up(partition, waiting, now, expires)
        await table.commit(writes)
        await announce(self._backend, thread.thread, thread.incarnation)
        return True

    async def _give_up(self, partition: str, owner: Waiting, now: int, expires: int) -> list[Write]:
        """End an owner's run, and give the thread on if it was reserved for it.

        Otherwise ACTIVE must stay as it is: a finish may be about to reserve it for this run.
        """
        table, run = self._backend.table, owner.item.run
        others = await inbox.read(table, partition)
        active_item = await table.get(partition, keys.ACTIVE)
        head = await table.get(keys.run(run), keys.RUN)
        writes: list[Write] = []
        if head:
            over = Run.of(head.body).model_copy(
                update={"status": "cancelled", "reason": "abort", "finished_at": now}
            )
            writes.append(Put(head.partition, head.sort, over.body(), head.version, None, expires))
        active = Active.of(active_item.body) if active_item else None
        if active_item is None or active is None:
            return [*writes, Check(partition, keys.ACTIVE, ABSENT)]
        if active.status != "reserved" or active.run != run:
            return [*writes, Check(partition, keys.ACTIVE, active_item.version)]
        return [*writes, *_hand_on(active_item, others, owner)]


def _hand_on(active: Item, others: inbox.Inbox, owner: Waiting) -> list[Write]:
    """Reserve the thread for its next owner, or for nobody (as a finish does, F1)."""
    heir = next((w for w in others.owners() if w.sort != owner.sort), None)
    if heir is None:
        return [Delete(active.partition, active.sort, active.version)]
    reserved = Active(run=heir.item.run, agent=heir.item.agent, status="reserved", item=heir.sort)
    return [
        Put(active.partition, active.sort, reserved.body(), active.version),
        Check(active.partition, heir.sort, heir.version),
    ]
