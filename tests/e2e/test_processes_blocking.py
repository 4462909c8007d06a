"""A tool blocks the event loop for longer than a lease lasts: the heartbeat's thread keeps it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from shared.adapters.sqlite import Database, Notices, SqliteCoordinator
from shared.adapters.system import SystemClock
from shared.services.heartbeat import Heartbeat
from tests.e2e.servers import Machine, in_order, machine_in, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with machine_in(tmp_path) as machine:
        yield machine


async def test_a_tool_that_blocks_the_event_loop_does_not_lose_the_lease(machine: Machine) -> None:
    await machine.start(BLOCK_MS=7_000, DELTA_MS=20, TOOL_MS=100)
    others = {f"other {n}": ("slow", "steps 3") if n % 2 else ("echo", "hi") for n in range(8)}
    readers = {thread: machine.reader(thread) for thread in ("thread", *others)}
    for reader in readers.values():
        await reader.connected()
    sending = [machine.send(thread, text, agent) for thread, (agent, text) in others.items()]
    sends = [asyncio.ensure_future(each) for each in sending[:4]]
    await machine.send("thread", "call block_loop", "tool")
    sends += [asyncio.ensure_future(each) for each in sending[4:]]
    await until(lambda: machine.calls("thread"), "the tool blocks")
    await asyncio.gather(*sends)
    for thread, reader in readers.items():
        assert (await reader.end())["type"] == "finish"
        log = await machine.store.log(thread)
        assert in_order(log)
        assert [chunk["type"] for chunk in log].count("finish") == 1
        assert "claim" not in await machine.store.kinds(thread), thread
    assert len(machine.calls("thread")) == 1
    assert len(machine.calls("thread", "end")) == 1


async def test_c3_a_lease_that_was_renewed_while_the_loop_was_blocked_counts_at_once(
    tmp_path: Path,
) -> None:
    """What another tool has blocked goes on in the same turn of the loop as the blocking one."""
    database, clock = Database(tmp_path / "test.db"), SystemClock()
    coordinator = SqliteCoordinator(database, clock, Notices(database, clock))
    lease_time, interval = 300, 50
    lease = await coordinator.acquire("log", "token", lease_time)
    assert lease
    heartbeat = Heartbeat(coordinator, clock, lease_time, interval)
    async with heartbeat.keep(lease, clock.now()) as beat:
        time.sleep(0.6)  # noqa: ASYNC251 - the tool of another thread's run
        assert await coordinator.held("log")
        beat.check(clock.now())
    database.close()
