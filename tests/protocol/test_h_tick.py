"""Recover (docs/protocols.md H1)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shared.core import keys
from shared.ports import Put
from shared.services.recover import LONGEST_POSTPONE
from tests.apps.script import T
from tests.contract.faults import Fault, Faults, FaultyTable
from tests.crash.world import SETTINGS, THREAD
from tests.protocol.stage import Hooks, P, Stage

if TYPE_CHECKING:
    from shared.bootstrap import System
    from tests.protocol.conftest import MakeStage

pytestmark = pytest.mark.anyio

HOUR = 3_600_000


async def begun(world: Stage) -> str:
    """A run whose owner is dead, and whose wake-up is lost."""
    sent = await world.say("m1")
    await world.die(Hooks.killing(after="input"))
    world.forget_wakes()
    return sent.run


async def test_h1_a_run_whose_owner_died_is_announced_by_name(stage: MakeStage) -> None:
    world = stage(T("one"))
    run = await begun(world)
    assert await world.outside.recover.tick() == 0  # not due
    world.clock.advance(SETTINGS.lease)
    assert await world.outside.recover.tick() == 1
    assert [named for _, named in world.wakes()] == [run]
    await world.settle()
    assert await world.status(run) == "completed"


async def test_h1_a_run_whose_owner_lives_is_looked_at_later(stage: MakeStage) -> None:
    world = stage(T("one"))
    run = await begun(world)
    world.clock.advance(SETTINGS.lease)
    assert await world.coordinator.acquire(P, "alive", SETTINGS.lease)
    before = await world.head(run)
    assert await world.outside.recover.tick() == 0
    after = await world.head(run)
    assert after.index
    assert (after.index.order, after.body) == (world.clock.now() + SETTINGS.tick, before.body)
    assert after.version == before.version + 1
    assert world.wakes() == []


async def test_h1_a_push_never_overwrites_what_the_owner_wrote(stage: MakeStage) -> None:
    """The run ends between the tick's read and its write, which expects the version read."""
    world = stage(T("one"))
    run = await begun(world)
    world.clock.advance(SETTINGS.lease)
    assert await world.coordinator.acquire(P, "alive", SETTINGS.lease)

    async def ends() -> None:
        head = await world.head(run)
        await world.table.commit(
            [Put(head.partition, head.sort, {**head.body, "status": "completed"}, head.version)]
        )

    await world.process(Faults({("commit", 1): ends})).recover.tick()
    head = await world.head(run)
    assert (head.body["status"], head.index) == ("completed", None)


async def test_h1_an_item_without_an_owner_is_announced(stage: MakeStage) -> None:
    world = stage(T("one"))
    await world.say("m1")
    world.forget_wakes()
    world.clock.advance(SETTINGS.tick)
    assert await world.outside.recover.tick() == 1
    assert [run for _, run in world.wakes()] == [""]
    await world.settle()
    assert await world.receipts() == {"m1": "delivered"}


@pytest.mark.parametrize(
    ("age", "pause"),
    [(SETTINGS.tick, SETTINGS.tick), (60_000, 60_000), (HOUR, HOUR), (30 * HOUR, LONGEST_POSTPONE)],
)
async def test_h1_an_item_with_an_owner_is_postponed_by_its_age(
    stage: MakeStage, age: int, pause: int
) -> None:
    world = stage()
    await world.say("m1")
    world.forget_wakes()
    world.clock.advance(age)
    assert await world.coordinator.acquire(P, "alive", SETTINGS.lease)
    assert await world.outside.recover.tick() == 0
    assert [order - world.clock.now() for _, order in await world.due("inbox")] == [pause]
    assert world.wakes() == []


async def test_h1_an_item_behind_a_suspended_run_is_postponed(stage: MakeStage) -> None:
    world = stage()
    await world.say("m1")
    active = await world.one(keys.ACTIVE)
    body = {**active.body, "status": "suspended", "start": 1}
    await world.table.commit([Put(P, keys.ACTIVE, body)])
    world.forget_wakes()
    world.clock.advance(SETTINGS.tick)
    assert await world.outside.recover.tick() == 0
    assert (await world.due("inbox"))[0][1] > world.clock.now()


async def test_h1_without_the_coordinator_nothing_is_sent_or_postponed(stage: MakeStage) -> None:
    world = stage()
    await begun(world)
    await world.say("m2")
    world.forget_wakes()
    world.clock.advance(SETTINGS.lease + SETTINGS.tick)
    before = world.everything()
    faults = Faults({("held", n): Fault.REFUSED for n in range(1, 9)})
    assert await world.process(faults).recover.tick() == 0
    assert (world.everything(), world.wakes()) == (before, [])
    assert await world.outside.recover.tick() == 1


async def test_h1_a_shard_without_an_answer_does_not_hide_the_others(stage: MakeStage) -> None:
    world = stage(T("one"))
    await world.say("m1")
    world.forget_wakes()
    world.clock.advance(SETTINGS.tick)
    place = keys.shard(THREAD) * 2 + 1  # two looks at the index for each shard
    other = 1 if place > 2 else place + 4
    faults = Faults({("index", other): Fault.REFUSED})
    assert await world.process(faults).recover.tick() == 1


async def test_h1_overlapping_ticks_are_harmless(stage: MakeStage) -> None:
    """Five ticks at once over the same due run and items, then once more after the work."""
    world = stage(T("one"), T("two"))
    run = await begun(world)
    await world.say("m2", queue=True)
    world.forget_wakes()
    world.clock.advance(SETTINGS.lease + SETTINGS.tick)
    processes: list[System] = [world.process() for _ in range(5)]
    await asyncio.gather(*(process.recover.tick() for process in processes))
    async with world.time_passes():
        await asyncio.gather(*(world.work(process) for process in processes))
    await world.heal()
    assert await world.status(run) == "completed"
    ends = [type for type in await world.told() if type in ("finish", "error", "abort")]
    assert ends == ["finish", "finish"]
    assert (await world.kinds()).count("claim") == 1
    assert await world.receipts() == {"m1": "delivered", "m2": "delivered"}
    assert (await world.due("runs"), await world.due("inbox")) == ([], [])


async def test_h1_overlapping_ticks_push_once(stage: MakeStage) -> None:
    """Both read the same version; the second one's write is refused, and that is fine."""
    world = stage()
    await world.say("m1")
    world.forget_wakes()
    world.clock.advance(SETTINGS.tick)
    assert await world.coordinator.acquire(P, "alive", SETTINGS.lease)
    sort = (await world.table.query(P, "IN#"))[0].sort
    version = (await world.one(sort)).version

    async def other() -> None:
        assert await world.outside.recover.tick() == 0

    assert await world.process(Faults({("commit", 1): other})).recover.tick() == 0
    assert (await world.one(sort)).version == version + 1


async def test_h1_a_late_index_is_read_again_before_anything_is_done(stage: MakeStage) -> None:
    """The index still shows a run as due that has ended, and an item that was taken."""
    world = stage(T("one"))
    faults = Faults()
    process = world.process()
    table = FaultyTable(world.table, faults, lag=50)
    late = world.over(replace(process.backend, table=table))
    await world.say("m1", via=late)
    table.catch_up()
    async with world.time_passes():
        await world.work(late)
    world.clock.advance(SETTINGS.lease + SETTINGS.tick)
    before = world.everything()
    assert await table.index(keys.due_inbox(keys.shard(THREAD)))  # that is what it sees
    assert await late.recover.tick() == 0
    assert (world.everything(), world.wakes()) == (before, [])


async def test_h1_a_late_index_does_not_undo_a_push(stage: MakeStage) -> None:
    """It shows the place that the item had before the tick before."""
    world = stage()
    process = world.process()
    table = FaultyTable(world.table, Faults(), lag=1)
    late = world.over(replace(process.backend, table=table))
    await world.say("m1")
    world.forget_wakes()
    world.clock.advance(60_000)
    lease = await world.coordinator.acquire(P, "alive", SETTINGS.lease)
    assert lease
    assert await late.recover.tick() == 0
    pushed = await world.due("inbox")
    await world.coordinator.release(lease)
    assert await table.index(keys.due_inbox(keys.shard(THREAD)), high=world.clock.now())
    assert await late.recover.tick() == 0
    assert (await world.due("inbox"), world.wakes()) == (pushed, [])
