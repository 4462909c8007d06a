"""The Coordinator port on SQLite (`docs/protocols.md` B1, D1, D3).

Logs are trimmed as they grow: when a run begins, what older runs told before `retention` is
removed from its log, and one other log in turn is looked at and emptied if nobody has held its
lease for `idle`; and a log never holds more than `cap` events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.adapters.sqlite.trimming import Trimmer
from shared.core.errors import LeaseLost, LogLost
from shared.core.events import EventId, LogEvent
from shared.ports import Appended, Lease

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.adapters.sqlite.database import Database
    from shared.adapters.sqlite.notices import Notices
    from shared.ports import Clock

HOUR = 3_600_000
RETENTION = 24 * HOUR
IDLE = 30 * RETENTION
CAP = 100_000
PAGE_BYTES = 1_000_000

# A lease that ends later than any could is of before the clock stepped back: its owner would have
# renewed it since, so it is free (the fence keeps that safe).
# Whose token holds the lease already keeps its fence; anybody else gets a higher one.
_ACQUIRE = """
    INSERT INTO logs (name, token, fence, expires, ttl)
    VALUES (?1, ?2, max(1, ?3), ?3 + ?4, ?4)
    ON CONFLICT (name) DO UPDATE SET
        fence = CASE WHEN token = ?2 AND expires > ?3 THEN fence ELSE max(fence + 1, ?3) END,
        token = ?2, expires = ?3 + ?4, ttl = ?4
    WHERE token = '' OR token = ?2 OR expires <= ?3 OR expires > ?3 + 2 * ttl
    RETURNING fence, last_start, last_sequence, last_index
"""
_RENEW = """
    UPDATE logs SET expires = ?1 + ?2 WHERE name = ?3 AND token = ?4 AND fence = ?5 AND expires > ?1
    RETURNING cancel
"""
_RELEASE = "UPDATE logs SET token = '' WHERE name = ? AND token = ? AND fence = ?"
_HELD = """
    SELECT 1 FROM logs
    WHERE name = ?1 AND token <> '' AND expires > ?2 AND expires <= ?2 + 2 * ttl
"""
_LAST = "SELECT last_start, last_sequence FROM logs WHERE name = ?"
_OWNED = """
    SELECT id, last_start, last_sequence, last_index, events, cancel FROM logs
    WHERE name = ? AND token = ? AND fence = ?
"""
_ADD = "INSERT INTO events (log, start, sequence, number, json) VALUES (?, ?, ?, ?, ?)"
_ADVANCE = """
    UPDATE logs SET expires = ?, last_start = ?, last_sequence = ?, last_index = ?, events = ?
    WHERE id = ?
"""
_READ = """
    SELECT start, sequence, number, json FROM events
    WHERE log = (SELECT id FROM logs WHERE name = ?) AND (start, sequence) >= (?, ?)
    ORDER BY start, sequence LIMIT ?
"""
_FORGET_EVENTS = "DELETE FROM events WHERE log = (SELECT id FROM logs WHERE name = ?)"
_FORGET = """
    UPDATE logs SET last_start = -1, last_sequence = -1, last_index = -1, events = 0, cancel = NULL
    WHERE name = ?
"""
_STOP = """
    INSERT INTO logs (name, cancel) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET cancel = excluded.cancel
"""


class SqliteCoordinator:
    """Leases, event logs and cancel flags (implements `Coordinator`)."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        notices: Notices,
        *,
        retention: int = RETENTION,
        idle: int = IDLE,
        cap: int = CAP,
    ) -> None:
        """Take how long events are kept (ms), and how many of one log."""
        self._database = database
        self._clock = clock
        self._notices = notices
        self._trimmer = Trimmer(retention=retention, idle=idle, cap=cap)

    async def acquire(self, log: str, token: str, ttl: int) -> Lease | None:
        """Take the lease, or return None while another token holds it."""
        with self._database.transaction() as connection:
            found = connection.execute(_ACQUIRE, (log, token, self._clock.now(), ttl)).fetchall()
        if not found:
            return None
        fence, start, sequence, index = found[0]
        return Lease(log, token, fence, _id(start, sequence), index)

    def renew(self, lease: Lease, ttl: int) -> str | None:
        """Extend the lease and return the run that was asked to stop; from any thread."""
        parameters = (self._clock.now(), ttl, lease.log, lease.token, lease.fence)
        with self._database.transaction() as connection:
            found = connection.execute(_RENEW, parameters).fetchall()
        if not found:
            raise LeaseLost(f"the lease of {lease.log} ran out or was taken")
        cancelled: str | None = found[0][0]
        return cancelled

    async def release(self, lease: Lease) -> None:
        """Give the lease up, if it is still ours."""
        with self._database.transaction() as connection:
            connection.execute(_RELEASE, (lease.log, lease.token, lease.fence))

    async def held(self, log: str) -> bool:
        """Tell whether anybody holds the lease."""
        return bool(self._database.rows(_HELD, (log, self._clock.now())))

    async def append(
        self, lease: Lease, events: Sequence[LogEvent], ttl: int, after: EventId | None = None
    ) -> Appended:
        """Add events and renew the lease, in one transaction.

        A lease that ran out but that nobody took still counts: the fence decides, not the time.
        """
        now = self._clock.now()
        with self._database.transaction() as connection:
            found = connection.execute(_OWNED, (lease.log, lease.token, lease.fence)).fetchone()
            if found is None:
                raise LeaseLost(f"the lease of {lease.log} was taken")
            log, start, sequence, index, count, cancelled = found
            if after and EventId.of(start, sequence) < after:
                raise LogLost(f"the log of {lease.log} ends before {after}")
            fresh = _beyond(EventId.of(start, sequence), events)
            if fresh:
                rows = [(log, e.id.start, e.id.sequence, e.index, e.json) for e in fresh]
                connection.executemany(_ADD, rows)
                start, sequence, index = rows[-1][1:4]
                count += len(rows) - self._trimmer.trim(connection, log, fresh, count, now)
            connection.execute(_ADVANCE, (now + ttl, start, sequence, index, count, log))
        if fresh:
            self._notices.tell(lease.log)
        return Appended(cancelled, followed=True)

    async def last(self, log: str) -> EventId | None:
        """Return the id of the newest event."""
        found = self._database.rows(_LAST, (log,))
        return _id(*found[0]) if found else None

    async def read(
        self,
        log: str,
        after: EventId | None,
        *,
        inclusive: bool = False,
        limit: int = 500,
        wait: int = 0,
    ) -> list[LogEvent]:
        """Read events beyond `after`, waiting up to `wait` ms for the first one."""
        start, sequence = (after.start, after.sequence + (not inclusive)) if after else (-1, -1)
        parameters = (log, start, sequence, limit)
        events = self._read(parameters)
        if events or wait <= 0:
            return events
        with self._notices.listen(log) as listener:
            while not (events := self._read(parameters)) and wait > 0:
                wait -= await listener.wait(wait)
        return events

    async def forget(self, log: str) -> None:
        """Drop a log's events and its cancel flag."""
        with self._database.transaction() as connection:
            connection.execute(_FORGET_EVENTS, (log,))
            connection.execute(_FORGET, (log,))

    async def ask_to_stop(self, log: str, run: str) -> None:
        """Set the cancel flag."""
        with self._database.transaction() as connection:
            connection.execute(_STOP, (log, run))

    def _read(self, parameters: tuple[Any, ...]) -> list[LogEvent]:
        page, size = [], 0
        for start, sequence, index, json in self._database.each(_READ, parameters):
            page.append(LogEvent(EventId.of(start, sequence), index, json))
            size += len(json)
            if size > PAGE_BYTES:
                break
        return page


def _id(start: int, sequence: int) -> EventId | None:
    """Return an id as it is stored: a log without events has the start -1."""
    return None if start < 0 else EventId.of(start, sequence)


def _beyond(last: EventId, events: Sequence[LogEvent]) -> list[LogEvent]:
    """Return the events whose ids are above all before them."""
    fresh = []
    for event in events:
        if event.id > last:
            fresh.append(event)
            last = event.id
    return fresh
