"""Scenarios for durable runs: crashes, recovery, and what must not happen twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from shared.core import keys
from shared.core.limits import MAX_CLAIMS
from shared.core.model import ToolMessage
from shared.ports import WakeUp
from tests.apps.script import HANG, C, Gate, T, Tries
from tests.contract.faults import Fault
from tests.crash.world import THREAD
from tests.logs import text_of
from tests.scenarios.scene import Life, until_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.contract.faults import Rival
    from tests.scenarios.conftest import MakeScene
    from tests.scenarios.scene import Scene

pytestmark = pytest.mark.anyio

TURNS = (C(("c1", "t1", {})), T("done"))
DONE = [("user", "go"), ("assistant", "done")]


@dataclass(frozen=True)
class Death:
    """Where a process dies, and how often each turn was played and the tool ran in the end."""

    where: str
    played: tuple[int, int]
    ran: int
    plan: Mapping[int | tuple[str, int], Fault | Rival] = field(default_factory=dict)
    hook: Callable[[Scene, Life], None] = lambda scene, life: None


def _in_the_model(turn: int) -> Callable[[Scene, Life], None]:
    def hook(scene: Scene, life: Life) -> None:
        scene.model.on[turn, 1] = life.die

    return hook


def _in_the_tool(scene: Scene, life: Life) -> None:
    scene.in_tool["c1"] = life.die


def _between_the_steps(scene: Scene, life: Life) -> None:
    scene.model.on[1, 0] = life.die


DEATHS = (
    Death("in model call 1", (2, 1), 1, hook=_in_the_model(0)),
    Death("before the call is stored", (2, 1), 1, {("commit", 2): Fault.KILL_BEFORE}),
    Death("in the tool", (1, 1), 2, hook=_in_the_tool),
    Death("before the result is stored", (1, 1), 2, {("commit", 3): Fault.KILL_BEFORE}),
    Death("after the result is stored", (1, 1), 1, {("commit", 3): Fault.KILL_AFTER}),
    Death("between the steps", (1, 2), 1, hook=_between_the_steps),
    Death("in model call 2", (1, 2), 1, hook=_in_the_model(1)),
    Death("before the end is stored", (1, 2), 1, {("commit", 4): Fault.KILL_BEFORE}),
    Death("after the end is stored", (1, 1), 1, {("commit", 4): Fault.KILL_AFTER}),
)


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.where)
async def test_a1_a_new_process_ends_the_run(scene: MakeScene, death: Death) -> None:
    """Given a run of a tool call and an answer; when its process dies at some place, and another
    one recovers it; then the run completes with the same answer, and only what was not stored is
    done again, the tool's call under the same key.
    """
    world, life = scene(*TURNS), Life(death.plan)
    death.hook(world, life)
    sent = await world.say("m1")
    assert await world.live(life)
    await world.recover()
    assert await world.status(sent.run) == "completed"
    assert await world.said() == DONE
    assert tuple(world.model.played[turn] for turn in (0, 1)) == death.played
    assert len(world.ran) == death.ran
    assert len(world.calls) == 1, "one idempotency key"
    assert await world.ends() == ["finish"]


async def test_a1_a_recovery_that_dies_too_keeps_the_run(scene: MakeScene) -> None:
    """Given a run whose process died; when the process that recovers it dies as well; then the next
    one still finds it and completes it.
    """
    world = scene(*TURNS)
    sent = await world.say("m1")
    for _ in range(3):
        life = Life()
        world.model.on[1, 1] = life.die
        assert await world.live(life)
        world.lease_runs_out()
        await world.outside.recover.tick()
    await world.recover()
    assert await world.status(sent.run) == "completed"
    assert await world.said() == DONE
    assert world.ran == ["c1"]


async def test_a3_a_stale_worker_overwrites_nothing(scene: MakeScene) -> None:
    """Given worker A, stuck in its model call beyond its lease; when B recovers the run and stores
    its answer, and A's model answers then; then the transcript has only B's, A raises nothing, and
    readers see one end.
    """
    gate = Gate()
    world = scene(Tries(HANG(gate, T("A answer")), T("B answer")))
    async with world.following() as reader:
        await world.say("m1")
        stale = asyncio.create_task(world.work(world.frozen(Life())))
        await gate.reached.wait()
        await world.recover()
        before = world.everything()
        gate.open()
        await stale
        await reader.sees_end()
        assert world.everything() == before
        assert await world.said() == [("user", "go"), ("assistant", "B answer")]
        assert reader.chunks == await world.chunks()
        assert reader.ends() == ["finish"]
        assert text_of(reader.chunks) == "B answer"


async def _due_runs(world: Scene) -> list[str]:
    found = await world.table.index(keys.due_runs(keys.shard(THREAD)))
    return [item.partition for item in found]


@pytest.mark.parametrize("death", ["none", "after the end was told", "before it was told"])
async def test_a5_a_run_that_is_over_is_not_driven_again(scene: MakeScene, death: str) -> None:
    """Given a completed run, whose process may have died right before or after its end was told;
    when ticks come; then no run is due, none is active, and nothing was called again.
    """
    world = scene(*TURNS)
    calm = Life()
    await world.say("m1")
    if death == "none":
        await world.settle(world.process(calm))
    else:
        twin = scene(*TURNS)
        await twin.say("m1")
        await twin.settle(twin.process(calm))
        appends = calm.calls.count("append")
        fault = Fault.KILL_AFTER if death == "after the end was told" else Fault.KILL_BEFORE
        life = Life({("append", appends): fault})
        assert await world.live(life)
        ends = ["finish"] if fault is Fault.KILL_AFTER else []
        assert await world.ends() == ends
    played, ran = world.model.played.copy(), list(world.ran)
    await world.recover()
    assert await _due_runs(world) == []
    assert await world.table.get(keys.partition(THREAD, 1), keys.ACTIVE) is None
    assert (world.model.played, world.ran) == (played, ran)
    assert await world.ends() == ["finish"]
    assert await world.kinds() == ["input", "model", "result", "model", "finish"]
    before = world.everything()
    await world.recover()
    assert world.everything() == before


@pytest.mark.parametrize("when", ["before the death", "after the death"])
@pytest.mark.parametrize("end", ["finish", "error"])
async def test_a7_a_follower_of_a_dead_run_is_told_its_end(
    scene: MakeScene, when: str, end: str
) -> None:
    """Given a run whose process died in the middle of a text; when recovery completes it, or gives
    up, while somebody follows since before the death or after it; then the follower sees the end.
    """
    world = scene(T("some words here"))

    async def dies() -> bool:
        life = Life()
        world.model.on[0, 3] = life.die
        return await world.live(life)

    await world.say("m1")
    if when == "after the death":
        assert await dies()
    async with world.following() as reader:
        if when == "before the death":
            assert await dies()
        for _ in range(MAX_CLAIMS if end == "error" else 0):
            world.lease_runs_out()
            await world.outside.recover.tick()
            await dies()
        world.model.on.clear()
        await world.recover()
        await reader.sees_end()
        assert reader.ends() == [end]
        assert reader.chunks == await world.chunks()


async def test_a9_checkpoints_are_cheap(scene: MakeScene) -> None:
    """Given a run of two steps with a tool call; when it is accepted and run; then that takes at
    most 12 writes, with the default configuration.
    """
    world, accepted, life = scene(*TURNS), Life(), Life()
    await world.say("m1", via=world.process(accepted))
    await world.settle(world.process(life))
    writes = [name for name in (*accepted.calls, *life.calls) if name in ("commit", "send")]
    assert await world.said() == DONE
    assert len(writes) <= 12


@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER], ids=lambda f: f.name)
async def test_a9_a_run_can_be_recovered_from_a_death_at_any_point(
    scene: MakeScene, fault: Fault
) -> None:
    """Given a run of two steps; when its process dies before or after any port call; then recovery
    completes it, with the default configuration.
    """
    calm, life = scene(*TURNS), Life()
    await calm.say("m1")
    await calm.settle(calm.process(life))
    for number, name in enumerate(life.calls, 1):
        world = scene(*TURNS)
        sent = await world.say("m1")
        assert await world.live(Life({number: fault}))
        await world.recover()
        where = f"{fault.name} at {number}: {name}"
        assert await world.status(sent.run) == "completed", where
        assert await world.transcript() == await calm.transcript(), where
        assert await world.ends() == ["finish"], where


async def test_g1_what_was_said_is_stored_before_the_end(scene: MakeScene) -> None:
    """Given a run that dies in its second model call; when the transcript is read before anybody
    recovers it; then it has the user's message, and the first answer with its tool's result.
    """
    world, life = scene(C(("c1", "t1", {}), text="let me see"), T("done")), Life()
    world.model.on[1, 1] = life.die
    await world.say("m1")
    assert await world.live(life)
    assert await world.said() == [("user", "go"), ("assistant", "let me see")]
    (invocation,) = (
        p for p in (await world.messages())[1]["content"]["parts"] if p["type"] != "text"
    )
    assert invocation["toolInvocation"]["state"] == "result"
    assert invocation["toolInvocation"]["result"] == "ok"


async def test_h1_a_model_is_told_that_all_its_tools_failed(scene: MakeScene) -> None:
    """Given a tool that raises; when it was the only one that the model called; then the model is
    called again, sees the error, and its answer ends the run.
    """
    world = scene(C(("c1", "t1", {}), ("c2", "t9", {})), T("sorry"))
    world.outputs["c1"] = ValueError("no such place")
    sent = await world.say("m1")
    await world.settle()
    assert world.model.played == {0: 1, 1: 1}
    (results,) = (m.results for m in world.model.requests[1].messages if isinstance(m, ToolMessage))
    assert [(r.call_id, r.is_error) for r in results] == [("c1", True), ("c2", True)]
    assert "no such place" in results[0].output
    assert "t9" in results[1].output
    assert await world.said() == [("user", "go"), ("assistant", "sorry")]
    assert await world.status(sent.run) == "completed"


async def test_j1_a_wake_up_that_comes_again_completes_the_run(scene: MakeScene) -> None:
    """Given a process that dies in step 2; when only the queue hands its wake-up out again; then
    the run completes, without a tick.
    """
    world, life = scene(*TURNS, lease=5_000), Life()
    world.model.on[1, 1] = life.die
    sent = await world.say("m1")
    assert await world.live(life)
    world.clock.advance(30_000)  # for which the queue hid it
    await world.settle()
    assert await world.status(sent.run) == "completed"
    assert await world.said() == DONE
    assert (world.model.played, world.ran) == ({0: 1, 1: 2}, ["c1"])


async def test_j3_a_wake_up_that_comes_again_repeats_no_side_effect(scene: MakeScene) -> None:
    """Given a run whose tool call is done; when its wake-up is handed out twice more, once while
    its owner lives and once after that one died; then the tool ran once and the model's first step
    was not made again.
    """
    gate, life = Gate(), Life()
    world = scene(C(("c1", "t1", {})), HANG(gate, T("done"), before="hm"))
    await world.say("m1")
    dying = asyncio.create_task(world.live(life))
    await gate.reached.wait()
    await world.queue.send(WakeUp(THREAD, 1))
    await world.work(world.process())
    assert await world.kinds() == ["input", "model", "result"]
    world.model.on[1, 3] = life.die
    gate.open()
    assert await dying
    world.lease_runs_out()
    await world.queue.send(WakeUp(THREAD, 1))
    await world.settle()
    assert (world.model.played, world.ran) == ({0: 1, 1: 2}, ["c1"])
    assert await world.ends() == ["finish"]


async def test_k1_event_indexes_go_on_when_the_log_was_lost_in_mid_run(scene: MakeScene) -> None:
    """Given a run that waits between two of its slices; when its log is lost, and it goes on; then
    its first reader and a new one both get every event, and no index goes back.
    """
    world = scene(C(("c1", "t1", {}), text="let me see"), T("it is done"))
    await world.say("m1")
    (got,) = await world.queue.receive(limit=1, wait=0, hold=30_000)
    async with world.time_passes(), world.following() as first:
        await world.process(slice_steps=1).advance.advance(got.wake)
        await world.queue.acknowledge(got)
        told = await world.chunks()
        await first.sees(len(told))
        world.lose_the_log()
        async with world.following() as second:
            await world.settle()
            await asyncio.gather(first.sees_end(), second.sees_end())
            for reader in (first, second):
                kinds = Counter(chunk["type"] for chunk in reader.chunks)
                assert kinds["resync"] >= 1
                assert (kinds["start"], kinds["tool-result"], kinds["finish"]) == (1, 1, 1)
                assert text_of(reader.chunks) == "let me seeit is done"
                shown = zip(reader.chunks, reader.indexes, strict=True)
                indexes = [index for chunk, index in shown if chunk["type"] != "resync"]
                assert indexes == sorted(set(indexes))
            assert [c["type"] for c in second.chunks][:3] == [
                "resync",
                "start",
                "data-user-message",
            ]


@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER], ids=lambda f: f.name)
async def test_k5_an_accepted_message_is_somewhere_at_any_moment(
    scene: MakeScene, fault: Fault
) -> None:
    """Given a message that was accepted; when the process dies at any port call; then, before any
    recovery, the message is either in the inbox or in the transcript, and each finished step is in
    the transcript as well.
    """
    calm, life = scene(*TURNS), Life()
    await calm.say("m1")
    await calm.settle(calm.process(life))
    for number, name in enumerate(life.calls, 1):
        where = f"{fault.name} at {number}: {name}"
        world = scene(*TURNS)
        await world.say("m1")
        assert await world.live(Life({number: fault}))
        waiting = [item["signal"]["id"] for item in await world.inbox()]
        said = await world.said()
        assert (waiting, said[:1]) in ((["m1"], []), ([], DONE[:1])), where
        assert len(said) == 1 + ("model" in await world.kinds()) - bool(waiting), where


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_k7_siblings_that_are_done_are_not_run_again(
    scene: MakeScene, concurrency: int
) -> None:
    """Given a step of three calls, one at a time or all at once; when the process dies in the
    second after the first is done (and, all at once, the third); then these stay done, the second
    is run again under its key, and the third once in all.
    """
    world = scene(
        C(("a", "t1", {}), ("b", "t2", {}), ("c", "t3", {})), T("done"), concurrency=concurrency
    )
    gate, life, done = Gate(), Life(), 1 if concurrency == 1 else 2
    world.in_tool["b"] = gate.pass_through
    await world.say("m1")
    dying = asyncio.create_task(world.live(life))
    await gate.reached.wait()

    async def are_done() -> bool:
        return (await world.kinds()).count("result") == done

    await until_stored(are_done, "the siblings")
    life.end(dying)
    assert await dying
    await world.recover()
    assert Counter(world.ran) == {"a": 1, "b": 2, "c": 1}
    assert len(world.calls) == 3, "the second call has one key"
    assert await world.said() == DONE
    (results,) = (
        m.results for m in world.model.requests[-1].messages if isinstance(m, ToolMessage)
    )
    assert [r.call_id for r in results] == ["a", "b", "c"]


async def test_k9_a_second_run_of_a_thread_begins_after_the_first(scene: MakeScene) -> None:
    """Given a run; when a second one is asked for in the same thread; then it begins when the first
    is over, its prompt has the first turn, and the transcript their order.
    """
    gate = Gate()
    world = scene(HANG(gate, T("a1")), T("a2"))
    first = await world.say("m1", "u1")
    owner = asyncio.create_task(world.settle())
    await gate.reached.wait()
    second = await world.say("m2", "u2", queue=True)
    assert second.run != first.run
    await world.work(world.process())
    assert len(world.model.requests) == 1
    gate.open()
    await owner
    assert world.prompts() == [["user u1"], ["user u1", "assistant a1", "user u2"]]
    assert await world.said() == [
        *(("user", "u1"), ("assistant", "a1"), ("user", "u2"), ("assistant", "a2"))
    ]
    assert await world.ends() == ["finish"] * 2


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.CUT], ids=lambda f: f.name)
async def test_k19_a_write_that_fails_twice_is_made_again(
    scene: MakeScene, number: int, fault: Fault
) -> None:
    """Given a store that gives no answer to a commit and to the next one; when it answers again;
    then everything is stored once, and the run completes.
    """
    world = scene(*TURNS)
    sent = await world.say("m1")
    life = Life({("commit", number): fault, ("commit", number + 1): Fault.REFUSED})
    await world.settle(world.process(life))
    assert await world.status(sent.run) == "completed"
    assert await world.said() == DONE
    assert world.ran == ["c1"]
    assert await world.ends() == ["finish"]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_k19_a_store_that_never_answers_makes_no_success(
    scene: MakeScene, number: int
) -> None:
    """Given a store that takes no write any more from some commit on; when the run is worked on;
    then no end is told that is not stored; and when the store answers again, the run completes.
    """
    world = scene(*TURNS)
    plan: dict[int | tuple[str, int], Fault | Rival] = {
        ("commit", each): Fault.REFUSED for each in range(number, number + 50)
    }
    life = Life(plan)
    life.plan["commit", number + 50] = life.die
    sent = await world.say("m1")
    assert await world.live(life)
    assert len(await world.journal()) == number - 1
    assert await world.ends() == []
    assert await world.status(sent.run) in ("prepared", "running")
    await world.recover()
    assert await world.status(sent.run) == "completed"
    assert await world.said() == DONE
