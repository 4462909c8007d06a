"""The clock and the ids of the process, and the clock of the tests."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import uuid_utils

from shared.adapters.system import SystemClock, SystemIds
from tests.clock import VirtualClock


async def test_the_system_clock_tells_epoch_milliseconds() -> None:
    clock = SystemClock()
    before = time.time_ns() // 1_000_000
    await clock.sleep(1)
    assert before < clock.now() <= time.time_ns() // 1_000_000


def test_ids_grow_within_a_millisecond() -> None:
    ids = SystemIds()
    made = [ids.new() for _ in range(20_000)]

    assert made == sorted(set(made))
    assert {len(each) for each in made} == {36}


def test_ids_grow_though_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = SystemIds()
    made = [ids.new()]
    real = uuid_utils.uuid7
    hour = 3_600_000_000_000

    def late(nanoseconds: int | None = None) -> uuid_utils.UUID:
        return real(nanoseconds=nanoseconds or time.time_ns() - hour)

    monkeypatch.setattr(uuid_utils, "uuid7", late)
    made += [ids.new() for _ in range(100)]
    monkeypatch.undo()
    made += [ids.new() for _ in range(100)]

    assert made == sorted(set(made))


def test_threads_never_get_the_same_id() -> None:
    ids = SystemIds()
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: [ids.new() for _ in range(2_000)], range(4)))

    assert all(part == sorted(part) for part in parts)
    assert len({each for part in parts for each in part}) == 8_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_makes_other_ids() -> None:
    ids = SystemIds()
    ids.new()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, ids.new().encode())
        os._exit(0)
    mine = ids.new()
    os.waitpid(child, 0)
    theirs = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)

    assert len(theirs) == len(mine)
    assert theirs[15:] != mine[15:]


async def test_the_virtual_clock_wakes_sleepers_at_their_time() -> None:
    clock = VirtualClock(1_000)
    woken: list[tuple[str, int]] = []

    async def sleep(name: str, *times: int) -> None:
        for ms in times:
            await clock.sleep(ms)
            woken.append((name, clock.now()))

    tasks = [asyncio.create_task(sleep("a", 10, 10)), asyncio.create_task(sleep("b", 15))]
    await clock.run(14)
    assert (woken, clock.now()) == ([("a", 1_010)], 1_014)
    await clock.run(10)
    assert woken == [("a", 1_010), ("b", 1_015), ("a", 1_020)]
    assert (clock.sleepers, clock.now()) == (0, 1_024)
    await asyncio.gather(*tasks)


async def test_the_virtual_clock_steps_without_waking() -> None:
    clock = VirtualClock(1_000)
    task = asyncio.create_task(clock.sleep(10))
    await asyncio.sleep(0)
    clock.set(5_000)
    await asyncio.sleep(0)
    assert (task.done(), clock.now()) == (False, 5_000)
    clock.set(100)
    clock.advance(10)
    await task
    assert clock.now() == 110
