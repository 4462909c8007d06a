"""What all that comes to a thread begins and ends with: whose it is, who runs, who is told."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from shared.core import keys
from shared.core.errors import Forbidden, Unavailable
from shared.core.records import Thread
from shared.ports import WakeUp

if TYPE_CHECKING:
    from shared.ports import Item
    from shared.services.context import Backend

log = logging.getLogger(__name__)


def living(stored: Item | None) -> Thread | None:
    """Read a thread's record; a tombstone is none."""
    thread = Thread.of(stored.body) if stored else None
    return None if thread is None or thread.deleted else thread


def check_owner(thread: Thread | None, resource: str | None) -> None:
    """Refuse a resource that a thread does not belong to; a deleted one belongs to nobody.

    Raises:
        Forbidden: it belongs to another one.
    """
    if thread and not thread.deleted and resource not in (None, thread.resource):
        raise Forbidden("Access denied: thread belongs to a different resource")


async def read_active(backend: Backend, thread: str) -> tuple[Item | None, Item | None]:
    """Read the thread and its active run together, guessing incarnation 1 (A2)."""
    table = backend.table
    stored, active = await asyncio.gather(
        table.get(keys.thread(thread), keys.THREAD),
        table.get(keys.partition(thread, 1), keys.ACTIVE),
    )
    incarnation = Thread.of(stored.body).incarnation if stored else 1
    if incarnation != 1:
        active = await table.get(keys.partition(thread, incarnation), keys.ACTIVE)
    return stored, active


async def announce(backend: Backend, thread: str, incarnation: int) -> None:
    """Send a wake-up, best effort: what it is for is stored, and due for the tick."""
    try:
        await backend.queue.send(WakeUp(thread, incarnation))
    except Unavailable:
        log.warning("a wake-up for thread %s could not be sent; the tick finds it", thread)
