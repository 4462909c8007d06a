"""Connections to the one SQLite file that all embedded adapters share.

Calls are made directly on the thread that asks, the event loop's included. That is a decision: in
WAL mode they take tens of microseconds, and handing one to another thread and back costs more. The
price is that a write waits on the event loop while another *process* writes, at most `BUSY` ms.

Any number of processes on one machine may open the file, each with a `Database` of its own. Open
it after a fork, never before: SQLite connections must not cross one.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Literal

from shared.adapters.sqlite import schema
from shared.core.errors import Misconfigured, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

Rows = list[tuple[Any, ...]]

BUSY = 5_000
"""How long a write waits for another process's, in ms."""

_RETRY = 0.01  # seconds between two tries to switch a new file to WAL


class Database:
    """One SQLite file: a connection for each thread, transactions, and the schema."""

    def __init__(
        self, path: Path | str, *, synchronous: Literal["NORMAL", "FULL"] = "NORMAL"
    ) -> None:
        """Open the file, and create it with its schema if it is new.

        With `NORMAL` a commit survives the death of the process; a power failure may take the last
        ones, the file staying consistent. `FULL` waits for the disk with each commit.

        Raises:
            Misconfigured: the file is no database, or was written by a newer version.
            Unavailable: the file cannot be opened.
        """
        self.path = str(path)
        self.writing = threading.Lock()
        self._synchronous = synchronous
        self._local = threading.local()
        self._opening = threading.Lock()
        self._opened: list[tuple[weakref.ref[threading.Thread], sqlite3.Connection]] = []
        self._closed = False
        try:
            _create_schema(self.connection())
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.OperationalError):
                raise Unavailable(f"cannot set up {self.path}: {error}") from error
            if isinstance(error, sqlite3.DatabaseError):
                raise Misconfigured(f"{self.path} cannot be used: {error}") from error
            raise

    def connection(self) -> sqlite3.Connection:
        """Return the calling thread's connection.

        Raises:
            Unavailable: the database was closed, or cannot be opened.
        """
        if self._closed:
            raise Unavailable("the database is closed")
        try:
            return self._local.connection  # type: ignore[no-any-return]
        except AttributeError:
            self._local.connection = connection = self._connect()
            return connection

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run one statement, a transaction of its own, and return all its rows.

        Raises:
            Unavailable: the file is locked for too long, or cannot be read or written.
        """
        try:
            return self.connection().execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            raise Unavailable(str(error)) from error

    def each(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Run one statement and give its rows one by one, as many as are asked for.

        Raises:
            Unavailable: the file is locked for too long, or cannot be read or written.
        """
        try:
            cursor = self.connection().execute(sql, parameters)
            try:
                yield from cursor
            finally:
                cursor.close()
        except sqlite3.OperationalError as error:
            raise Unavailable(str(error)) from error

    def transaction(self) -> Transaction:
        """Return a write transaction; the block gets the thread's connection.

        It is committed at the end of the block, and rolled back when the block raises.

        Raises:
            Unavailable: the file is locked for too long, or cannot be written.
        """
        return Transaction(self)

    def close(self) -> None:
        """Close the connections of all threads; later calls raise `Unavailable`."""
        with self.writing, self._opening:
            self._closed = True
            for _, connection in self._opened:
                connection.close()
            self._opened.clear()

    def _connect(self) -> sqlite3.Connection:
        """Take over the connection of a thread that has ended, or open one."""
        me = weakref.ref(threading.current_thread())
        with self._opening:
            for number, (owner, connection) in enumerate(self._opened):
                thread = owner()
                if thread is None or not thread.is_alive():
                    self._opened[number] = (me, connection)
                    return connection
            try:
                connection = sqlite3.connect(
                    self.path, timeout=BUSY / 1000, isolation_level=None, check_same_thread=False
                )
            except sqlite3.OperationalError as error:
                raise Unavailable(f"cannot open {self.path}: {error}") from error
            self._opened.append((me, connection))
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            return connection


class Transaction:
    """A write transaction that takes the write lock at once, so that it never fails half-way.

    Threads of this process queue for a lock of their own: SQLite's makes them sleep and try again.
    """

    __slots__ = ("_connection", "_database")

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> sqlite3.Connection:
        self._database.writing.acquire()
        try:
            self._connection = self._database.connection()
            self._connection.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._database.writing.release()
            if isinstance(error, sqlite3.OperationalError):
                raise Unavailable(str(error)) from error
            raise
        return self._connection

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._connection.execute("COMMIT")
        except sqlite3.OperationalError as failure:
            raise Unavailable(str(failure)) from failure
        finally:
            try:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            finally:
                self._database.writing.release()
        if isinstance(error, sqlite3.OperationalError):
            raise Unavailable(str(error)) from error


def _create_schema(connection: sqlite3.Connection) -> None:
    """Create what is missing; two processes that start at once wait for each other."""
    _switch_to_wal(connection)
    if connection.execute("PRAGMA user_version").fetchone()[0] == schema.VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found > schema.VERSION:
            raise Misconfigured(f"the database has format {found}, newer than {schema.VERSION}")
        if found == 0:
            for statement in schema.STATEMENTS:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {schema.VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Set WAL, trying again: SQLite does not wait for the lock that this switch needs."""
    deadline = time.monotonic() + BUSY / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY)
        else:
            return
