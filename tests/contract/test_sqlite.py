"""What the SQLite adapters do beyond the ports."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from shared.adapters.sqlite import (
    Database,
    Notices,
    SqliteCoordinator,
    SqliteTable,
    SqliteWakeQueue,
)
from shared.adapters.sqlite.table import SWEEP_EVERY, SWEEP_GRACE
from shared.core.errors import Misconfigured, Unavailable
from shared.core.events import EventId, LogEvent
from shared.ports import Item, Put, WakeUp
from tests.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shared.ports import Lease

LOG = "THREAD#t#1"
MINUTE = 60_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "wakeline.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    opened = Database(path)
    yield opened
    opened.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def notices(database: Database, clock: VirtualClock) -> Notices:
    return Notices(database, clock)


# ---- the file ------------------------------------------------------------------------------


def test_a_file_is_opened_again(path: Path) -> None:
    for synchronous in ("NORMAL", "FULL"):
        database = Database(path, synchronous=synchronous)
        assert database.rows("PRAGMA journal_mode") == [("wal",)]
        assert database.rows("PRAGMA synchronous") == [({"NORMAL": 1, "FULL": 2}[synchronous],)]
        database.close()


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(Misconfigured, match="99"):
        Database(path)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("no database at all, " * 100)
    with pytest.raises(Misconfigured):
        Database(path)


def test_a_folder_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        Database(tmp_path / "missing" / "wakeline.db")


async def test_a_closed_database_is_unavailable(database: Database, clock: VirtualClock) -> None:
    table = SqliteTable(database, clock)
    await table.get("p", "s")
    database.close()

    for call in (table.get("p", "s"), table.commit([Put("p", "s", {})])):
        with pytest.raises(Unavailable):
            await call


async def test_a_lock_that_lasts_too_long_is_unavailable(
    path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.adapters.sqlite.database.BUSY", 20)
    database = Database(path)
    table = SqliteTable(database, clock)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable):
            await table.commit([Put("p", "s", {})])
        assert await table.get("p", "s") is None
        other.execute("ROLLBACK")
        await table.commit([Put("p", "s", {})])
    assert await table.get("p", "s") is not None
    database.close()


def test_a_block_that_fails_is_rolled_back(database: Database) -> None:
    add = "INSERT INTO logs (name) VALUES ('x')"

    def fail(*statements: str) -> None:
        with database.transaction() as connection:
            for statement in statements:
                connection.execute(statement)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(add)
    with pytest.raises(Unavailable):
        fail(add, "INSERT INTO no_table VALUES (1)")

    assert database.rows("SELECT * FROM logs") == []
    with database.transaction() as connection:
        connection.execute(add)
    assert len(database.rows("SELECT * FROM logs")) == 1


def test_a_transaction_takes_the_write_lock_at_once(database: Database, path: Path) -> None:
    with (
        closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other,
        database.transaction(),
        pytest.raises(sqlite3.OperationalError),
    ):
        other.execute("BEGIN IMMEDIATE")


def test_threads_have_connections_of_their_own_and_leave_them(database: Database) -> None:
    mine = database.connection()
    seen: list[sqlite3.Connection] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: seen.append(database.connection()))
        thread.start()
        thread.join()

    assert database.connection() is mine
    assert mine not in seen
    assert seen[0] is seen[1] is seen[2]


async def test_threads_write_at_once(database: Database, clock: VirtualClock) -> None:
    table = SqliteTable(database, clock)

    def write(name: int) -> None:
        for n in range(50):
            asyncio.run(table.commit([Put("p", f"{name}.{n}", {})]))

    await asyncio.gather(*(asyncio.to_thread(write, name) for name in range(4)))

    assert len(await table.query("p")) == 200


async def test_expired_items_are_removed_some_time_later(
    database: Database, clock: VirtualClock
) -> None:
    table = SqliteTable(database, clock)
    soon = clock.now() + MINUTE
    await table.commit([Put("p", "old", {}, expires=soon), Put("p", "stays", {})])
    clock.advance(SWEEP_EVERY + SWEEP_GRACE + MINUTE)
    await table.commit([Put("p", "new", {}, expires=clock.now() + MINUTE)])

    assert database.rows("SELECT sort FROM items ORDER BY sort") == [("new",), ("stays",)]


async def test_an_expired_item_that_is_put_begins_again(
    database: Database, clock: VirtualClock
) -> None:
    table = SqliteTable(database, clock)
    for _ in range(2):
        await table.commit([Put("p", "s", {}, expires=clock.now() + MINUTE)])
    clock.advance(MINUTE)
    await table.commit([Put("p", "s", {})])

    assert await table.get("p", "s") == Item("p", "s", 1, {})


# ---- notices -------------------------------------------------------------------------------


async def test_a_reader_is_woken_from_another_thread(
    database: Database, clock: VirtualClock, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.adapters.sqlite.notices.POLL", 3600)
    coordinator = SqliteCoordinator(database, clock, notices)
    reader = asyncio.create_task(coordinator.read(LOG, None, wait=MINUTE))
    await asyncio.sleep(0)

    def write() -> None:
        asyncio.run(fill(coordinator, begun(clock.now())))

    await asyncio.to_thread(write)

    assert await reader == [begun(clock.now())]


async def test_waiting_ends_when_the_database_is_closed(
    database: Database, clock: VirtualClock, notices: Notices
) -> None:
    coordinator = SqliteCoordinator(database, clock, notices)
    reader = asyncio.create_task(coordinator.read(LOG, None, wait=MINUTE))
    await asyncio.sleep(0)
    database.close()

    with pytest.raises(Unavailable):
        await reader


@pytest.mark.parametrize("woken", [False, True])
async def test_a_clock_that_steps_back_does_not_prolong_a_wait(
    database: Database, clock: VirtualClock, notices: Notices, woken: bool
) -> None:
    queue = SqliteWakeQueue(database, clock, notices)
    receiver = asyncio.create_task(queue.receive(limit=1, wait=MINUTE, hold=MINUTE))
    await asyncio.sleep(0)
    clock.set(clock.now() - 100 * MINUTE)
    await clock.run(MINUTE // 2)
    if woken:
        await queue.send(WakeUp("t", 1), delay=1_000 * MINUTE)
    await clock.run(MINUTE)

    assert await receiver == []


# ---- trimming ------------------------------------------------------------------------------


def begun(start: int) -> LogEvent:
    """The first event of a run."""
    return LogEvent(EventId(start, 0, 0), 0, f'{{"start":{start}}}')


async def fill(coordinator: SqliteCoordinator, *events: LogEvent, log: str = LOG) -> Lease:
    lease = await coordinator.acquire(log, "token", MINUTE)
    assert lease is not None
    await coordinator.append(lease, events, MINUTE)
    return lease


async def starts(coordinator: SqliteCoordinator, log: str = LOG) -> list[int]:
    return [event.id.start for event in await coordinator.read(log, None)]


async def test_old_runs_are_trimmed_when_a_run_begins(
    database: Database, clock: VirtualClock, notices: Notices
) -> None:
    coordinator = SqliteCoordinator(database, clock, notices, retention=10 * MINUTE)
    first = clock.now()
    await fill(coordinator, begun(first))
    clock.advance(6 * MINUTE)
    await fill(coordinator, begun(first + 6 * MINUTE))
    clock.advance(6 * MINUTE)
    await fill(coordinator, LogEvent(EventId(first + 6 * MINUTE, 1, 0), 1, "{}"))
    assert len(await starts(coordinator)) == 3

    await fill(coordinator, begun(first + 12 * MINUTE))
    assert await starts(coordinator) == [first + n * MINUTE for n in (6, 6, 12)]


async def test_a_late_told_run_does_not_trim_itself(
    database: Database, clock: VirtualClock, notices: Notices
) -> None:
    coordinator = SqliteCoordinator(database, clock, notices, retention=MINUTE)
    old = clock.now()
    clock.advance(100 * MINUTE)
    await fill(coordinator, begun(old), LogEvent(EventId(old, 1, 0), 1, "{}"))

    assert await starts(coordinator) == [old, old]


async def test_a_log_keeps_its_newest_events(
    database: Database, clock: VirtualClock, notices: Notices
) -> None:
    coordinator = SqliteCoordinator(database, clock, notices, cap=200)
    lease = await fill(coordinator, begun(1))
    kept = 1
    for position in range(1, 100):
        events = [LogEvent(EventId(1, position, k), k, "{}") for k in range(7)]
        await coordinator.append(lease, events, MINUTE)
        kept = (
            kept + 7 if kept + 7 <= 200 else 198
        )  # some more than it must, so that it need not soon
        assert (await coordinator.read(LOG, None))[-7:] == events
        assert len(await coordinator.read(LOG, None)) == kept
        assert database.rows("SELECT events FROM logs") == [(kept,)]

    huge = [LogEvent(EventId(2, 0, k), k, "{}") for k in range(500)]
    await coordinator.append(lease, huge, MINUTE)
    assert await coordinator.read(LOG, None) == huge[-198:]
    assert await coordinator.last(LOG) == huge[-1].id


async def test_the_smallest_log_keeps_one_event(
    database: Database, clock: VirtualClock, notices: Notices
) -> None:
    coordinator = SqliteCoordinator(database, clock, notices, cap=1)
    for position in range(3):
        event = LogEvent(EventId(1, position, 0), position, "{}")
        await fill(coordinator, event)
        assert await coordinator.read(LOG, None) == [event]


async def test_a_log_that_nobody_used_for_long_is_emptied(
    database: Database, clock: VirtualClock, notices: Notices
) -> None:
    coordinator = SqliteCoordinator(database, clock, notices, idle=10 * MINUTE)
    old = await fill(coordinator, begun(clock.now()), log="idle")
    clock.advance(20 * MINUTE)
    await fill(coordinator, begun(clock.now()), log="fresh")
    for n in range(4):
        await fill(coordinator, begun(clock.now() + n), log="busy")

    assert await starts(coordinator, "idle") == []
    assert await coordinator.last("idle") is None
    assert len(await starts(coordinator, "fresh")) == 1
    again = await coordinator.acquire("idle", "token", MINUTE)
    assert again is not None
    assert (again.last, again.last_index) == (None, -1)
    assert again.fence > old.fence


# ---- the queue -----------------------------------------------------------------------------


async def test_a_late_acknowledgement_removes_nothing(
    database: Database, clock: VirtualClock, notices: Notices
) -> None:
    queue = SqliteWakeQueue(database, clock, notices)
    await queue.send(WakeUp("t", 1))
    [late] = await queue.receive(limit=1, wait=0, hold=MINUTE)
    clock.advance(MINUTE)
    [current] = await queue.receive(limit=1, wait=0, hold=MINUTE)
    await queue.acknowledge(late)
    clock.advance(MINUTE)

    [again] = await queue.receive(limit=1, wait=0, hold=MINUTE)
    assert late.wake == current.wake == again.wake


async def test_a_receipt_never_names_another_wake_up(
    database: Database, clock: VirtualClock, notices: Notices
) -> None:
    queue = SqliteWakeQueue(database, clock, notices)
    deliveries = []
    for n in range(3):
        await queue.send(WakeUp(f"t{n}", 1))
        deliveries += await queue.receive(limit=1, wait=0, hold=MINUTE)
        await queue.acknowledge(deliveries[-1])

    assert len({delivery.receipt for delivery in deliveries}) == 3
