"""The Table port on SQLite (`docs/design.md` section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from shared.adapters.limits import MAX_INTEGER, check_limits
from shared.core.errors import ConditionFailed
from shared.ports import ABSENT, Check, Delete, Failure, Index, Item, Put

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from shared.adapters.sqlite.database import Database
    from shared.ports import Clock, Write

SWEEP_EVERY = 60_000
"""How often a commit also removes expired items, in ms."""

SWEEP_LIMIT = 200
SWEEP_GRACE = 3_600_000
"""How long an expired item is kept, hidden, in ms: the clock may have been wrong."""

_GET = """
    SELECT partition, sort, version, body, index_group, index_order, expires FROM items
    WHERE partition = ? AND sort = ? AND (expires IS NULL OR expires > ?)
"""
_QUERY = """
    SELECT partition, sort, version, body, index_group, index_order, expires FROM items
    WHERE partition = ? AND sort >= ? AND sort < ? AND (expires IS NULL OR expires > ?)
    ORDER BY sort LIMIT ?
"""
_INDEX = """
    SELECT partition, sort, version, body, index_group, index_order, expires FROM items
    WHERE index_group = ? AND index_order BETWEEN ? AND ? AND (expires IS NULL OR expires > ?)
    ORDER BY index_order, partition, sort LIMIT ?
"""
_QUERIES = {False: _QUERY, True: _QUERY.replace("BY sort", "BY sort DESC")}
_INDEXES = {
    False: _INDEX,
    True: _INDEX.replace(
        "order, partition, sort LIMIT", "order DESC, partition DESC, sort DESC LIMIT"
    ),
}
_PUT = """
    INSERT INTO items (partition, sort, version, body, index_group, index_order, expires)
    VALUES (?, ?, 1, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
        version = CASE WHEN expires <= ? THEN 1 ELSE version + 1 END,
        body = excluded.body, index_group = excluded.index_group,
        index_order = excluded.index_order, expires = excluded.expires
"""
_PUT_ABSENT = """
    INSERT INTO items (partition, sort, version, body, index_group, index_order, expires)
    VALUES (?, ?, 1, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
        version = 1, body = excluded.body, index_group = excluded.index_group,
        index_order = excluded.index_order, expires = excluded.expires
    WHERE items.expires <= ?
"""
_PUT_VERSION = """
    UPDATE items
    SET version = version + 1, body = ?, index_group = ?, index_order = ?, expires = ?
    WHERE partition = ? AND sort = ? AND version = ? AND (expires IS NULL OR expires > ?)
"""
_DELETE = "DELETE FROM items WHERE partition = ? AND sort = ?"
_DELETE_VERSION = """
    DELETE FROM items
    WHERE partition = ? AND sort = ? AND version = ? AND (expires IS NULL OR expires > ?)
"""
_SWEEP = "DELETE FROM items WHERE rowid IN (SELECT rowid FROM items WHERE expires <= ? LIMIT ?)"

_LAST_CODE_POINT = 0x10FFFF
_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000
_ABOVE_ALL_TEXT = b""
"""SQLite sorts every blob after every text, so that `sort < ?` holds for all."""


class SqliteTable:
    """Records in one SQLite table (implements `Table`). Expiry goes by the given clock."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._swept = clock.now()

    async def get(self, partition: str, sort: str) -> Item | None:
        """Read one item."""
        rows = self._database.rows(_GET, (partition, sort, self._clock.now()))
        return _item(rows[0]) if rows else None

    async def query(
        self,
        partition: str,
        prefix: str = "",
        *,
        after: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Item]:
        """Read items whose sort key has the prefix, in key order, beyond `after`."""
        low, high = prefix, _successor(prefix)
        if after is not None and reverse:
            high = after if isinstance(high, bytes) else min(high, after)
        elif after is not None:
            low = max(low, after + "\0")
        top = -1 if limit is None else limit
        parameters = (partition, low, high, self._clock.now(), top)
        return [_item(row) for row in self._database.rows(_QUERIES[reverse], parameters)]

    async def index(
        self,
        group: str,
        *,
        low: int = 0,
        high: int | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[Item]:
        """Read items of an index group, ordered by (order, partition, sort)."""
        top = MAX_INTEGER if high is None else high
        parameters = (group, low, top, self._clock.now(), limit)
        return [_item(row) for row in self._database.rows(_INDEXES[reverse], parameters)]

    async def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes or none; raises as the port says."""
        if not writes:
            return
        bodies = check_limits(writes)
        now = self._clock.now()
        with self._database.transaction() as connection:
            failed = [
                write
                for write, body in zip(writes, bodies, strict=True)
                if not _apply(connection, write, body, now)
            ]
            if failed:
                raise ConditionFailed([_failure(connection, write, now) for write in failed])
            self._sweep(connection, now)

    def _sweep(self, connection: sqlite3.Connection, now: int) -> None:
        """Remove some of the items that expired a while ago, if it is time for that."""
        if now - self._swept >= SWEEP_EVERY:
            self._swept = now
            connection.execute(_SWEEP, (now - SWEEP_GRACE, SWEEP_LIMIT))


def _apply(connection: sqlite3.Connection, write: Write, body: bytes, now: int) -> bool:
    """Do one write and tell whether its expectation held; if not, its key is as it was."""
    match write:
        case Put():
            return _put(connection, write, body, now)
        case Delete(expect=None):
            connection.execute(_DELETE, (write.partition, write.sort))
            return True
        case Delete(expect=int() as version):
            key = (write.partition, write.sort)
            return connection.execute(_DELETE_VERSION, (*key, version, now)).rowcount == 1
        case Check(expect=None):
            return True
    stored = _stored(connection, write, now)
    found = ABSENT if stored is None else stored.version
    return found == write.expect


def _put(connection: sqlite3.Connection, put: Put, body: bytes, now: int) -> bool:
    group, order = (put.index.group, put.index.order) if put.index else (None, None)
    values = (body, group, order, put.expires)
    key = (put.partition, put.sort)
    if put.expect is None:
        cursor = connection.execute(_PUT, (*key, *values, now))
    elif put.expect == ABSENT:
        cursor = connection.execute(_PUT_ABSENT, (*key, *values, now))
    else:
        cursor = connection.execute(_PUT_VERSION, (*values, *key, put.expect, now))
    return cursor.rowcount == 1


def _stored(connection: sqlite3.Connection, write: Write, now: int) -> Item | None:
    rows = connection.execute(_GET, (write.partition, write.sort, now)).fetchall()
    return _item(rows[0]) if rows else None


def _failure(connection: sqlite3.Connection, write: Write, now: int) -> Failure:
    return Failure(write, _stored(connection, write, now))


def _item(row: tuple[Any, ...]) -> Item:
    partition, sort, version, body, group, order, expires = row
    index = None if group is None else Index(group, order)
    return Item(partition, sort, version, from_json(body), index, expires)


def _successor(prefix: str) -> str | bytes:
    """Return the least key above all keys with the prefix."""
    for end in range(len(prefix), 0, -1):
        last = ord(prefix[end - 1])
        if last < _LAST_CODE_POINT:
            following = _AFTER_SURROGATES if last == _BEFORE_SURROGATES else last + 1
            return prefix[: end - 1] + chr(following)
    return _ABOVE_ALL_TEXT
