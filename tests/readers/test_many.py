"""Many followers of one thread in one process: one reads for all of them (design 8)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any

import pytest

from tests.readers.clients import Client
from tests.readers.serving import LIMIT, RESOURCE, THREAD, Teller, machine, serving

if TYPE_CHECKING:
    from pathlib import Path

    from shared.core.events import EventId
    from shared.services.follow import Following

MANY = 1_000
BATCHES, SIZE = 30, 10
TOLD = BATCHES * SIZE


class Crowd:
    """Followers, as the routes have them."""

    def __init__(self) -> None:
        self.seen: list[list[EventId]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._more = asyncio.Event()

    def add(self, following: Following, *, wait: int = 60_000) -> None:
        ids: list[EventId] = []
        self.seen.append(ids)
        self.tasks.append(asyncio.create_task(self._follow(following, ids, wait)))

    async def all_have(self, number: int) -> None:
        """Return when everybody has seen so many events."""
        async with asyncio.timeout(LIMIT):
            while not all(len(ids) >= number for ids in self.seen):
                self._more.clear()
                await self._more.wait()

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _follow(self, following: Following, ids: list[EventId], wait: int) -> None:
        async with aclosing(following.batches(wait)) as batches:
            async for batch in batches:
                ids += [event.id for event in batch]
                self._more.set()


async def test_1000_followers_cost_one_read_per_batch(tmp_path: Path) -> None:
    async with machine(tmp_path, works=False) as made:
        teller = await Teller(made).begin()
        crowd = Crowd()
        for _ in range(MANY):
            crowd.add(await made.system.follow.open(THREAD, RESOURCE, None))
        await crowd.all_have(1)
        made.trace.take()
        for number in range(BATCHES):
            await teller.tell(SIZE)
            await crowd.all_have(1 + (number + 1) * SIZE)
        used = made.trace.take()
        log = [event.id for event in await made.log()]
        await crowd.leave()
    assert used.counts() == {"read": BATCHES}
    assert [ids == log for ids in crowd.seen] == [True] * MANY


async def test_the_owner_is_checked_once_a_run_for_all_followers(tmp_path: Path) -> None:
    """I2 asks for a check at each run; not for one by each follower of this process."""
    async with machine(tmp_path, works=False) as made:
        crowd = Crowd()
        for _ in range(100):
            crowd.add(await made.system.follow.open(THREAD, RESOURCE, None))
        await _settled()  # all of them wait before the run begins
        made.trace.take()
        await Teller(made).begin()
        await crowd.all_have(1)
        used = made.trace.take()
        await crowd.leave()
    assert used.count("get") <= 1, f"{used.count('get')} reads of the thread's record"


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    others = tasks - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)


async def _settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_follower_that_waits_asks_for_nothing(tmp_path: Path) -> None:
    """Heartbeats come from a timer; the log is asked once in 20 s, however many there are."""
    async with machine(tmp_path, works=False) as made:
        await Teller(made).begin()
        beats = 0
        following = await made.system.follow.open(THREAD, RESOURCE, None)
        async with aclosing(following.batches(10)) as batches:
            assert len(await anext(batches)) == 1
            made.trace.take()
            while beats < 20:
                beats += not await anext(batches)
            assert str(made.trace.take()) == ""


async def test_100_followers_over_http_cost_one_read_per_batch(tmp_path: Path) -> None:
    async with machine(tmp_path, works=False) as made, serving(made), AsyncExitStack() as stack:
        teller = await Teller(made).begin()
        clients = [await stack.enter_async_context(Client(made.url)) for _ in range(100)]
        for client in clients:
            await client.sees("start")
        made.trace.take()
        for number in range(BATCHES):
            await teller.tell(SIZE)
            for client in clients:
                await client.has(1 + (number + 1) * SIZE)
        used = made.trace.take()
        assert used.counts() == {"read": BATCHES}
        assert len({tuple(client.cursors) for client in clients}) == 1
        assert len(clients[0].chunks) == TOLD + 1


async def test_whoever_leaves_is_read_for_no_more(tmp_path: Path) -> None:
    async with machine(tmp_path, works=False) as made, serving(made):
        teller = await Teller(made).begin()
        async with Client(made.url) as client:
            await client.sees("start")
        before = asyncio.all_tasks()
        async with Client(made.url) as client:
            await client.sees("start")
            await teller.tell(1)
            await client.sees("text-delta")
        await asyncio.wait_for(_ended(asyncio.all_tasks() - before), LIMIT)
        made.trace.take()
        await teller.tell(1)
        await _settled()
        assert str(made.trace.take()) == ""


@pytest.mark.parametrize("batch", [1, 600])
async def test_followers_that_join_in_between_see_all_once(tmp_path: Path, batch: int) -> None:
    """They come while batches are told, so that the log and the tail overlap."""
    async with machine(tmp_path, works=False) as made:
        teller = await Teller(made).begin()
        crowd = Crowd()
        for _ in range(15):
            crowd.add(await made.system.follow.open(THREAD, RESOURCE, None))
            await teller.tell(batch)
            await asyncio.sleep(0)
        await crowd.all_have(15 * batch + 1)
        log = [event.id for event in await made.log()]
        await crowd.leave()
    assert [ids == log for ids in crowd.seen] == [True] * 15
