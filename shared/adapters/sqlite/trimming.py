"""Removing events that nobody will ask for, a little with each run that begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from shared.core.events import LogEvent

_DROP_OLD = "DELETE FROM events WHERE log = ? AND start < ?"
_DROP_OLDEST = """
    DELETE FROM events WHERE log = ?1 AND (start, sequence) < (
        SELECT start, sequence FROM events WHERE log = ?1 ORDER BY start, sequence
        LIMIT 1 OFFSET ?2
    )
"""
_NEXT_LOG = "SELECT id, expires, events FROM logs WHERE id > ? ORDER BY id LIMIT 1"
_DROP_ALL = "DELETE FROM events WHERE log = ?"
_EMPTY = """
    UPDATE logs SET last_start = -1, last_sequence = -1, last_index = -1, events = 0, cancel = NULL
    WHERE id = ?
"""


class Trimmer:
    """Keeps logs within an age and a size; its calls belong into the append's transaction."""

    def __init__(self, *, retention: int, idle: int, cap: int) -> None:
        self._retention = retention
        self._idle = idle
        self._cap = cap
        self._slack = max(1, cap // 100)
        self._looked_at = 0

    def trim(
        self,
        connection: sqlite3.Connection,
        log: int,
        added: Sequence[LogEvent],
        count: int,
        now: int,
    ) -> int:
        """Trim a log that held `count` events before some were added; return how many went.

        If a run begins with them, another log is looked at, too.
        """
        dropped = 0
        if any(event.id.position == 0 and event.id.k == 0 for event in added):
            oldest = min(now - self._retention, added[0].id.start)
            dropped = connection.execute(_DROP_OLD, (log, oldest)).rowcount
            self._empty_if_idle(connection, log, now)
        excess = count + len(added) - dropped - self._cap
        if excess > 0:
            # Some more than needed, so that the next appends need not trim.
            number = min(excess + self._slack, count + len(added) - dropped - 1)
            dropped += connection.execute(_DROP_OLDEST, (log, number)).rowcount
        return dropped

    def _empty_if_idle(self, connection: sqlite3.Connection, log: int, now: int) -> None:
        """Look at one more log, and empty it if nobody has held its lease for long."""
        found = connection.execute(_NEXT_LOG, (self._looked_at,)).fetchone()
        if found is None:
            self._looked_at = 0
            return
        self._looked_at, expires, events = found
        if self._looked_at != log and events and expires < now - self._idle:
            connection.execute(_DROP_ALL, (self._looked_at,))
            connection.execute(_EMPTY, (self._looked_at,))
