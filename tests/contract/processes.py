"""What the tests of several processes run in another one: `python -m tests.contract.processes`.

Each command prints a line when it is ready, and most wait for a line before they go on.
"""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import count
from pathlib import Path

from shared.adapters.sqlite import (
    Database,
    Notices,
    SqliteCoordinator,
    SqliteTable,
    SqliteWakeQueue,
)
from shared.adapters.system import SystemClock
from shared.core.errors import ConditionFailed
from shared.core.events import EventId, LogEvent
from shared.ports import ABSENT, Check, Put, WakeUp

LOG = "THREAD#t#1"
CLOCK = SystemClock()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def hear() -> str:
    return sys.stdin.readline().strip()


async def open_at_once(path: Path, name: str) -> None:
    """Open a new file together with others, and write to it."""
    say("ready")
    hear()
    database = Database(path)
    await SqliteTable(database, CLOCK).commit([Put("p", name, {})])
    database.close()


async def increment(path: Path, times: str) -> None:
    """Add one to a counter, as often as told, against others who do the same."""
    database = Database(path)
    table = SqliteTable(database, CLOCK)
    say("ready")
    hear()
    done = 0
    while done < int(times):
        stored = await table.get("p", "counter")
        body = {"n": stored.body["n"] + 1 if stored else 1}
        free = Check("p", "never there", expect=ABSENT)
        try:
            if stored:
                await table.commit([free, Put("p", "counter", body, expect=stored.version)])
            else:
                await table.commit([free, Put("p", "counter", body, expect=ABSENT)])
        except ConditionFailed:
            continue
        done += 1
    database.close()


async def append(path: Path, times: str) -> None:
    """Append an event whenever told, with the moment of its commit."""
    database = Database(path)
    coordinator = SqliteCoordinator(database, CLOCK, Notices(database, CLOCK))
    lease = await coordinator.acquire(LOG, "child", 60_000)
    assert lease is not None
    say("ready")
    for k in range(int(times)):
        hear()
        event = LogEvent(EventId(1, 0, k), k, str(time.monotonic_ns()))
        await coordinator.append(lease, [event], 60_000)
    database.close()


async def receive(path: Path, times: str) -> None:
    """Receive as many wake-ups, and say when it waits, and which came when."""
    database = Database(path)
    queue = SqliteWakeQueue(database, CLOCK, Notices(database, CLOCK))
    for _ in range(int(times)):
        asyncio.get_running_loop().call_soon(say, "waiting")  # runs once `receive` waits
        found = await queue.receive(limit=1, wait=10_000, hold=60_000)
        for delivery in found:
            say(f"{delivery.wake.thread} {time.monotonic_ns()}")
            await queue.acknowledge(delivery)
    database.close()


async def send(path: Path, name: str) -> None:
    """Send a wake-up."""
    database = Database(path)
    await SqliteWakeQueue(database, CLOCK, Notices(database, CLOCK)).send(WakeUp(name, 1))
    database.close()


async def stop_inside(path: Path, text: str) -> None:
    """Write something, and wait before the commit."""
    database = Database(path)
    with database.transaction() as connection:
        connection.execute("UPDATE items SET body = ?, version = 99", (f'{{"t":"{text}"}}',))
        say("ready")
        hear()


async def write_pairs(path: Path, size: str) -> None:
    """Write two items that are always equal, without end."""
    database = Database(path)
    table = SqliteTable(database, CLOCK)
    for n in count(1):
        body = {"n": n, "text": "x" * int(size)}
        await table.commit([Put("p", "a", body), Put("p", "b", body)])
        say(str(n))


COMMANDS = {
    command.__name__: command
    for command in (open_at_once, increment, append, receive, send, stop_inside, write_pairs)
}

if __name__ == "__main__":
    asyncio.run(COMMANDS[sys.argv[1]](Path(sys.argv[2]), sys.argv[3]))
