"""Reading the inbox, and the writes that take items out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.core import keys
from shared.core.choice import Waiting
from shared.core.records import InboxItem, Run
from shared.ports import Delete, Put

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.core.records import ReceiptState
    from shared.ports import Item, Table, Write
    from shared.settings import Settings

PAGE = 100


def waiting(item: Item) -> Waiting:
    """Read a stored inbox item."""
    return Waiting(item.sort, item.version, InboxItem.of(item.body))


async def read(table: Table, partition: str) -> tuple[list[Waiting], frozenset[str]]:
    """Return the front of the inbox, and the runs named there that have yet to start."""
    items = await table.query(partition, keys.INBOX_PREFIX, limit=PAGE)
    found = [waiting(item) for item in items]
    owned = {w.item.run for w in found if w.item.kind in ("wake", "queue")}
    if len(items) == PAGE:
        for run in {w.item.run for w in found} - owned:
            if await _is_prepared(table, run):
                owned.add(run)
    return found, frozenset(owned)


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
