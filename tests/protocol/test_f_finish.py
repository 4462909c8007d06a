"""Finish, hand over (docs/protocols.md F). F3 is of suspensions, not built yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.core import keys
from shared.ports import Check, Delete, Put
from tests.apps.script import C, E, T, Tries
from tests.contract.faults import Fault, Faults
from tests.crash.world import SETTINGS
from tests.protocol.stage import OTHER, WAKE, Hooks, P

if TYPE_CHECKING:
    from shared.bootstrap import System
    from shared.services.context import Slice
    from tests.protocol.conftest import MakeStage

pytestmark = pytest.mark.anyio

CALL = C(("c1", "none", {}))


async def test_f1_a_last_look_lets_the_run_go_on(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    sent = await world.say("m1")

    async def comes(_: object) -> None:
        assert (await world.say("m2")).run == sent.run

    await world.settle(Hooks(before={"model": comes}))
    assert await world.kinds() == ["input", "model", "signals", "model", "finish"]


async def test_f1_what_comes_after_the_last_look_is_a_run_of_its_own(stage: MakeStage) -> None:
    """It was accepted for this run, and is neither lost nor seen twice."""
    world = stage(T("one"), T("two"))
    await world.say("m1", "one?")

    async def comes(_: object) -> None:
        await world.say("m2", "two?")

    await world.settle(Hooks(before={"finish": comes}))
    assert await world.kinds() == ["input", "model", "finish"] * 2
    assert await world.receipts() == {"m1": "delivered", "m2": "delivered"}
    assert len(world.model.requests) == 2


async def test_f1_a_finish_is_one_commit(stage: MakeStage) -> None:
    world, hooks = stage(T("one")), Hooks()
    sent = await world.say("m1")
    hooks.actions["after", "finish"] = hooks.kill
    await world.die(hooks)
    finish = [f"{type(write).__name__} {write.sort.split('#')[0]}" for write in hooks.commits[-1]]
    assert finish == ["Put STEP", "Put RUN", "Delete ACTIVE"]
    head = await world.head(sent.run)
    assert head.body["status"] == "completed"
    assert head.index  # still: its end is not told
    assert await world.active() is None


async def test_f1_the_thread_is_handed_to_the_next_owner(stage: MakeStage) -> None:
    """In the same commit, which checks that its item is still there."""
    world, hooks = stage(T("one"), T("two")), Hooks()
    await world.say("m1")
    second = await world.say("m2", queue=True)
    await world.say("m3", queue=True, agent=OTHER)
    hooks.actions["after", "finish"] = hooks.kill
    await world.die(hooks)
    active = await world.active()
    assert active
    assert (active.run, active.status) == (second.run, "reserved")
    checks = [write for write in hooks.commits[-1] if isinstance(write, Check)]
    assert [write.sort for write in checks] == [active.item]
    late = await world.say("m4")  # no idle moment: it goes to the next run
    assert (late.action, late.run) == ("deliver", second.run)


async def test_f1_an_heir_that_went_meanwhile_is_passed_over(stage: MakeStage) -> None:
    world = stage(T("one"), T("three"))
    await world.say("m1")
    await world.say("m2", queue=True)
    third = await world.say("m3", queue=True)

    async def removed(_: object) -> None:
        first = (await world.table.query(P, "IN#2"))[0]
        await world.table.commit([Delete(first.partition, first.sort)])

    hooks = Hooks(before={"finish": removed})
    await world.settle(hooks)
    assert await world.status(third.run) == "completed"
    assert await world.kinds() == ["input", "model", "finish"] * 2


async def test_f1_a_postponed_heir_does_not_stop_the_finish(stage: MakeStage) -> None:
    """A tick wrote the heir's item anew between the look and the commit."""
    world = stage(T("one"), T("two"))
    sent = await world.say("m1")
    await world.say("m2", queue=True)

    async def tick(_: object) -> None:
        world.clock.advance(SETTINGS.tick)
        assert await world.outside.recover.tick() == 0

    await world.settle(Hooks(before={"finish": tick}))
    assert await world.status(sent.run) == "completed"
    assert await world.inbox() == []


async def test_f2_a_run_leaves_the_index_last(stage: MakeStage) -> None:
    """Told, released, looked at the inbox, and only then out of the index."""
    world, hooks = stage(T("one")), Hooks()
    sent = await world.say("m1")
    await world.settle(hooks)
    calls = hooks.calls
    told = len(calls) - calls[::-1].index("append")
    after = calls[told:]
    assert [name for name in after if name not in ("query", "get")] == ["release", "commit"]
    assert "query" in after[after.index("release") :]
    (put,) = hooks.commits[-1]
    assert isinstance(put, Put)
    assert (put.sort, put.index) == (keys.RUN, None)
    assert put.expires == world.clock.now() + SETTINGS.receipt_ttl
    assert (await world.head(sent.run)).index is None
    assert await world.due("runs") == []


@pytest.mark.parametrize("point", ["append", "release", "last"])
async def test_f2_a_cut_telling_is_found_by_the_tick(stage: MakeStage, point: str) -> None:
    """Killed after the finish: before the telling, the release, or the leaving of the index."""
    world = stage(T("one"))
    sent = await world.say("m1")
    hooks = Hooks()

    async def arm(_: object) -> None:
        count = {name: hooks.calls.count(name) for name in ("append", "release", "commit")}
        name = "commit" if point == "last" else point
        hooks.plan[(name, count[name] + 1)] = Fault.KILL_BEFORE

    hooks.actions["after", "finish"] = arm
    await world.die(hooks)
    assert ("finish" in await world.told()) == (point != "append")
    assert await world.due("runs")
    world.forget_wakes()  # the queue lost it: only the tick is left
    world.clock.advance(SETTINGS.lease + SETTINGS.tick)
    assert await world.outside.recover.tick() == 1
    assert [run for _, run in world.wakes()] == [sent.run]
    await world.settle()
    assert (await world.told()).count("finish") == 1
    assert await world.due("runs") == []
    assert await world.outside.recover.tick() == 0


async def test_f2_the_next_run_starts_after_the_end_is_told(stage: MakeStage) -> None:
    world, hooks = stage(T("one"), T("two")), Hooks()
    await world.say("m1")
    await world.say("m2", queue=True)
    seen: list[str] = []

    async def look(_: object) -> None:
        async def second(_: object) -> None:
            seen.append((await world.told())[-1])

        hooks.actions["before", "input"] = second

    hooks.actions["after", "finish"] = look
    await world.settle(hooks)
    assert seen == ["finish"]


def slice_of(process: System, steps: int) -> Slice:
    made = process.advance.slice()
    made.steps_left = steps
    return made


async def test_f4_hand_over_between_steps(stage: MakeStage) -> None:
    """After the slice's steps: release, then a wake-up; the next owner goes on where it ended."""
    world = stage(*[C((f"c{n}", "none", {})) for n in range(3)], T("done"))
    sent = await world.say("m1")
    (got,) = await world.queue.receive(limit=1, wait=0, hold=1)
    await world.queue.acknowledge(got)
    for steps in range(1, 4):
        faults = Faults()
        process = world.process(faults)
        await process.advance.advance(WAKE, slice_of(process, 1))
        assert len(world.model.requests) == steps
        assert faults.calls[-2:] == ["release", "send"]
        assert [(due - world.clock.now(), run) for due, run in world.wakes()] == [(0, "")]
        assert not await world.coordinator.held(P)
        assert (await world.kinds())[-1] == "result"
    await world.settle()
    assert await world.status(sent.run) == "completed"
    assert [event.index for event in await world.events()] == list(range(len(await world.events())))
    assert await world.attempts() == [0, 0, 0, 0]


async def test_f4_no_step_starts_when_time_is_over(stage: MakeStage) -> None:
    world = stage(CALL, T("done"))
    await world.say("m1")
    process = world.process()
    slice = process.advance.slice()

    async def later(_: object) -> None:
        slice.ends_at = world.clock.now()

    process = world.process(Hooks(after={"result": later}))
    await process.advance.advance(WAKE, slice)
    assert await world.kinds() == ["input", "model", "result"]
    assert len(world.model.requests) == 1


async def test_f4_a_long_pause_is_handed_over_with_a_delay(stage: MakeStage) -> None:
    pause = SETTINGS.longest_pause + 5_000
    world = stage(Tries(E("busy", retryable=True, retry_after=pause), T("done")))
    sent = await world.say("m1")
    await world.settle()
    assert [due - world.clock.now() for due, _ in world.wakes()] == [pause]
    assert not await world.coordinator.held(P)
    world.clock.advance(pause)
    await world.settle()
    assert await world.status(sent.run) == "completed"
