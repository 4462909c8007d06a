"""The WakeQueue and WakeSource ports on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.ports import Delivery, WakeUp

if TYPE_CHECKING:
    from shared.adapters.sqlite.database import Database
    from shared.adapters.sqlite.notices import Notices
    from shared.ports import Clock

_TOPIC = "wakes"

# An identical wake-up that is due and in nobody's hands names the thread already.
_SEND = """
    INSERT INTO wakes (due, thread, incarnation, run)
    SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS (
        SELECT 1 FROM wakes WHERE thread = ?2 AND incarnation = ?3 AND run = ?4 AND handed = 0
        AND due <= ?5 AND ?1 <= ?5
    )
"""
_NEXT = "SELECT due FROM wakes ORDER BY due LIMIT 1"
_DUE = """
    SELECT id, thread, incarnation, run, handed + 1 FROM wakes WHERE due <= ? ORDER BY due, id
    LIMIT ?
"""
_HAND_OUT = "UPDATE wakes SET due = ?, handed = handed + 1 WHERE id = ?"
_ACKNOWLEDGE = "DELETE FROM wakes WHERE id = ? AND handed = ?"


class SqliteWakeQueue:
    """Wake-ups in one SQLite table (implements `WakeQueue` and `WakeSource`)."""

    def __init__(self, database: Database, clock: Clock, notices: Notices) -> None:
        self._database = database
        self._clock = clock
        self._notices = notices

    async def send(self, wake: WakeUp, delay: int = 0) -> None:
        """Deliver the wake-up after `delay` ms, unless an identical one is waiting already."""
        now = self._clock.now()
        name = (wake.thread, wake.incarnation, wake.run or "")
        with self._database.transaction() as connection:
            connection.execute(_SEND, (now + delay, *name, now))
        self._notices.tell(_TOPIC)

    async def receive(self, *, limit: int, wait: int, hold: int) -> list[Delivery]:
        """Take up to `limit` due wake-ups, oldest first."""
        due, _ = self._take(limit, hold)
        if due or wait <= 0:
            return due
        with self._notices.listen(_TOPIC) as listener:
            while True:
                due, until = self._take(limit, hold)
                if due or wait <= 0:
                    return due
                wait -= await listener.wait(wait if until is None else min(wait, until))

    async def acknowledge(self, delivery: Delivery) -> None:
        """Remove a wake-up, unless its hold has ended and somebody else was handed it."""
        number, _, handed = delivery.receipt.partition(".")
        with self._database.transaction() as connection:
            connection.execute(_ACKNOWLEDGE, (int(number), int(handed)))

    def _take(self, limit: int, hold: int) -> tuple[list[Delivery], int | None]:
        """Hand out what is due; with nothing due, tell in how many ms something will be."""
        now = self._clock.now()
        following = self._database.rows(_NEXT)
        if not following:
            return [], None
        if following[0][0] > now:
            return [], following[0][0] - now
        with self._database.transaction() as connection:
            rows = connection.execute(_DUE, (now, limit)).fetchall()
            connection.executemany(_HAND_OUT, [(now + hold, row[0]) for row in rows])
        return [_delivery(row) for row in rows], None


def _delivery(row: tuple[Any, ...]) -> Delivery:
    number, thread, incarnation, run, handed = row
    return Delivery(WakeUp(thread, incarnation, run or None), f"{number}.{handed}")
