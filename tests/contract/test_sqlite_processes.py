"""Several processes on one SQLite file, some of them killed."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from shared.adapters.sqlite import (
    Database,
    Notices,
    SqliteCoordinator,
    SqliteTable,
    SqliteWakeQueue,
)
from shared.adapters.system import SystemClock
from shared.ports import Item, Put, WakeUp
from tests.contract.processes import LOG

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CLOCK = SystemClock()
TOLERANCE = 1.0  # seconds; 50 ms are aimed at, on a machine that has nothing else to do


class Child:
    """A process that runs one command of `tests.contract.processes`."""

    def __init__(self, command: str, path: Path, argument: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.processes", command, path, str(argument)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def say(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        return self.process.wait(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def children(command: str, path: Path, *arguments: object) -> Iterator[list[Child]]:
    """Start a child for each argument, and leave none behind."""
    started = [Child(command, path, argument) for argument in arguments]
    try:
        yield started
    finally:
        for child in started:
            child.kill()
            child.process.communicate()


def let_go(started: list[Child]) -> None:
    """Let children that are ready go on, all at once; wait until they have ended well."""
    assert [child.hear() for child in started] == ["ready"] * len(started)
    for child in started:
        child.say()
    assert [child.end() for child in started] == [0] * len(started)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "wakeline.db"


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    database = Database(path)
    try:
        yield database
    finally:
        database.close()


async def test_processes_create_the_schema_at_once(path: Path) -> None:
    names = ["a", "b", "c", "d"]
    with children("open_at_once", path, *names) as started:
        let_go(started)

    with opened(path) as database:
        items = await SqliteTable(database, CLOCK).query("p")
    assert [item.sort for item in items] == names


async def test_processes_lose_no_update(path: Path) -> None:
    with children("increment", path, 150, 150, 150) as started:
        let_go(started)

    with opened(path) as database:
        stored = await SqliteTable(database, CLOCK).get("p", "counter")
    assert stored == Item("p", "counter", 450, {"n": 450})


async def test_a_follower_in_another_process_is_prompt(path: Path) -> None:
    times = 20
    delays = []
    with children("append", path, times) as [child], opened(path) as database:
        assert child.hear() == "ready"
        coordinator = SqliteCoordinator(database, CLOCK, Notices(database, CLOCK))
        after = None
        for _ in range(times):
            child.say()
            [event] = await coordinator.read(LOG, after, wait=10_000)
            delays.append((time.monotonic_ns() - int(event.json)) / 1e6)
            after = event.id
        assert child.end() == 0

    show("event in another process", delays)
    assert max(delays) < TOLERANCE * 1000


async def test_a_receiver_in_another_process_is_prompt(path: Path) -> None:
    times = 10
    delays = []
    with children("receive", path, times) as [child], opened(path) as database:
        queue = SqliteWakeQueue(database, CLOCK, Notices(database, CLOCK))
        for n in range(times):
            assert child.hear() == "waiting"
            sent = time.monotonic_ns()
            await queue.send(WakeUp(f"t{n}", 1))
            name, received = child.hear().split()
            assert name == f"t{n}"
            delays.append((int(received) - sent) / 1e6)
        assert child.end() == 0

    show("wake-up in another process", delays)
    assert max(delays) < TOLERANCE * 1000


async def test_processes_never_receive_the_same_wake_up(path: Path) -> None:
    with children("receive", path, 5, 5, 5) as started, opened(path) as database:
        queue = SqliteWakeQueue(database, CLOCK, Notices(database, CLOCK))
        for n in range(15):
            await queue.send(WakeUp(f"t{n}", 1))
        assert [child.end() for child in started] == [0, 0, 0]
        lines = [line for child in started for line in child.process.communicate()[0].split("\n")]
        names = [line.split()[0] for line in lines if line not in ("", "waiting")]

    assert sorted(names) == sorted(f"t{n}" for n in range(15))


async def test_a_writer_killed_inside_a_transaction_leaves_no_trace(path: Path) -> None:
    with opened(path) as database:
        table = SqliteTable(database, CLOCK)
        await table.commit([Put("p", "s", {"n": 1})])
        with children("stop_inside", path, "half") as [child]:
            assert child.hear() == "ready"
            assert await table.get("p", "s") == Item("p", "s", 1, {"n": 1})
            child.kill()

        await table.commit([Put("p", "s", {"n": 2}, expect=1)])
        assert await table.get("p", "s") == Item("p", "s", 2, {"n": 2})
        assert check(database) == "ok"


@pytest.mark.parametrize("commits", [1, 5, 40])
async def test_a_busy_writer_killed_anywhere_leaves_whole_commits(path: Path, commits: int) -> None:
    with children("write_pairs", path, 100_000) as [child]:
        told = [int(child.hear()) for _ in range(commits)]
        child.kill()

    with opened(path) as database:
        one, other = await SqliteTable(database, CLOCK).query("p")
        assert one.body == other.body
        assert one.version == one.body["n"] == other.version >= told[-1]
        assert check(database) == "ok"


def check(database: Database) -> Any:
    return database.rows("PRAGMA integrity_check")[0][0]


def show(what: str, delays: list[float]) -> None:
    sys.stdout.write(f"{what}: median {median(delays):.1f} ms, at most {max(delays):.1f} ms\n")
