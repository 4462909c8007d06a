"""Reading the inbox, and the writes that take items out of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from shared.core import keys
from shared.core.choice import Waiting, next_start
from shared.core.records import InboxItem, Run
from shared.core.signals import Signal
from shared.ports import Delete, Put

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.core.choice import Choice
    from shared.core.records import ReceiptState
    from shared.ports import Item, Table, Write
    from shared.settings import Settings

log = logging.getLogger(__name__)

PAGE = 100
OWNERS = ("wake", "queue")


@dataclass(frozen=True, slots=True)
class Inbox:
    """The front of an inbox with its oldest owners, and the runs that have yet to start."""

    waiting: list[Waiting]
    owned: frozenset[str]

    def asks_to_stop(self, run: str) -> bool:
        """Tell whether a cancel of a run waits."""
        return any(w.item.kind == "cancel" and w.item.run == run for w in self.waiting)

    def owners(self) -> list[Waiting]:
        """Give the items that own a run, the oldest first."""
        return [w for w in self.waiting if w.item.kind in OWNERS]

    def next_start(self) -> Choice | None:
        """Choose what to start in a thread without a live run (B5)."""
        return next_start(self.waiting, self.owned)


async def read(table: Table, partition: str) -> Inbox:
    """Read the inbox of a thread."""
    items = await table.query(partition, keys.INBOX_PREFIX, limit=PAGE)
    full = len(items) == PAGE
    if full and not items[-1].sort.startswith(keys.OWNERS_PREFIX):
        items += await table.query(partition, keys.OWNERS_PREFIX, limit=PAGE)
    found = [each for item in items if (each := waiting(item))]
    owned = {w.item.run for w in found if w.item.kind in OWNERS}
    if full:
        for run in {w.item.run for w in found} - owned:
            if await _is_prepared(table, run):
                owned.add(run)
    return Inbox(found, frozenset(owned))


def waiting(item: Item) -> Waiting | None:
    """Read a stored item; one of a newer version stays where it is, in nobody's way."""
    try:
        read = InboxItem.of(item.body)
    except ValidationError:
        log.exception("%s/%s cannot be read by this version", item.partition, item.sort)
        return None
    return Waiting(item.sort, item.version, read, broken=not _is_readable(read))


def _is_readable(item: InboxItem) -> bool:
    try:
        return item.signal is None or bool(Signal.from_record(item.signal))
    except Exception:
        log.exception("the signal of run %s cannot be read by this version", item.run)
        return False


async def _is_prepared(table: Table, run: str) -> bool:
    stored = await table.get(keys.run(run), keys.RUN)
    return stored is not None and Run.of(stored.body).status == "prepared"


def take(
    items: Iterable[Waiting],
    state: ReceiptState,
    *,
    run: str,
    position: int,
    now: int,
    settings: Settings,
) -> list[Write]:
    """Remove items and write what became of their signals, which is final."""
    writes: list[Write] = []
    for each in items:
        partition = keys.partition(each.item.thread, each.item.incarnation)
        writes.append(Delete(partition, each.sort, each.version))
        receipt = each.item.receipt
        if receipt:
            done = receipt.model_copy(
                update={"state": state, "run": run, "position": position, "delivered_at": now}
            )
            writes.append(
                Put(
                    partition,
                    keys.receipt(receipt.signal),
                    done.body(),
                    1,
                    expires=now + settings.receipt_ttl,
                )
            )
    return writes
