"""Scenarios from the field about who advances a thread, and what becomes of messages meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from shared.core import entries
from shared.ports import WakeUp
from tests.apps.script import HANG, C, Gate, T, Tries
from tests.contract.faults import Fault
from tests.crash.world import THREAD
from tests.scenarios.scene import Life, P, lines, until, until_stored

if TYPE_CHECKING:
    from shared.bootstrap import System
    from tests.apps.script import Turn
    from tests.contract.faults import Rival
    from tests.scenarios.conftest import MakeScene
    from tests.scenarios.scene import Scene

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("when", ["before both results", "between the results"])
async def test_p01_a_message_is_shown_after_all_results_of_the_turn(
    scene: MakeScene, when: str
) -> None:
    """Given a turn with two calls whose tools run; when a message comes before the first result,
    or between the two; then the model sees it after both of them, and no call lacks its result.
    """
    world = scene(C(("c1", "t1", {}), ("c2", "t2", {})), T("stopped"))

    async def send() -> None:
        if when == "between the results":

            async def answered() -> bool:
                return "result" in await world.kinds()

            await until_stored(answered, "the first result")
        await world.say("m2", "stop at 3")

    world.in_tool["c2" if when == "between the results" else "c1"] = send
    await world.say("m1")
    await world.settle()
    assert world.prompts() == [
        ["user go"],
        ["user go", "calls c1,c2", "results c1,c2", "user stop at 3"],
    ]
    assert await world.kinds() == [
        "input",
        "model",
        "result",
        "result",
        "signals",
        "model",
        "finish",
    ]
    assert await world.ends() == ["finish"]


async def test_p05_a_lease_outlives_a_long_model_call(scene: MakeScene) -> None:
    """Given leases of 2 s and a model call that takes 7; when a tick comes each second and another
    worker handles what it sends; then there is one model call, no claim, and one answer.
    """
    gate = Gate()
    world = scene(HANG(gate, T("at last")), lease=2_000)
    await world.say("m1")
    owner = asyncio.create_task(world.work(world.process()))
    await gate.reached.wait()
    other = world.process()
    for _ in range(7):
        world.clock.advance(1_000)
        now = world.clock.now()
        sql = "SELECT 1 FROM logs WHERE expires > ?"
        await until(lambda: world.database.rows(sql, (now + 1_000,)), "the heartbeat")  # noqa: B023
        await other.recover.tick()
        await world.queue.send(WakeUp(THREAD, 1))
        await world.work(other)
    gate.open()
    await owner
    await world.settle()
    assert world.model.played == {0: 1}
    assert await world.kinds() == ["input", "model", "finish"]
    assert await world.said() == [("user", "go"), ("assistant", "at last")]


async def test_p05_without_a_heartbeat_the_first_owner_writes_nothing_more(
    scene: MakeScene,
) -> None:
    """Given an owner whose heartbeat is blocked, in a model call longer than its lease; when the
    tick lets another one take the run over and the first one's call ends; then only the second
    one's answer is stored and told.
    """
    gate, life = Gate(), Life()
    world = scene(Tries(HANG(gate, T("the first's"), before="thinking"), T("the second's")))
    await world.say("m1")
    owner = asyncio.create_task(world.work(world.frozen(life)))
    await gate.reached.wait()
    await world.recover()
    before = world.everything()
    gate.open()
    await owner
    assert world.everything() == before
    assert await world.said() == [("user", "go"), ("assistant", "the second's")]
    assert await world.ends() == ["finish"]


def _three_steps() -> list[Turn]:
    return [C(("c1", "t1", {})), C(("c2", "t2", {})), T("all done")]


async def test_p06_an_owner_that_thaws_after_the_takeover_changes_nothing(
    scene: MakeScene,
) -> None:
    """Given an owner that is frozen anywhere in a run of three steps; when its lease runs out,
    another one ends the run, and the first one goes on; then it changes no record and no event,
    each step is there once, and the run has one end.
    """
    calm = scene(*_three_steps())
    await calm.say("m1")
    life = Life()
    await calm.settle(calm.process(life))
    calls = len(life.calls)
    assert calls > 15
    for number in range(2, calls + 1):  # before the first call nothing is held
        world, gate = scene(*_three_steps()), Gate()
        await world.say("m1")
        life = Life({number: gate.pass_through})
        owner = asyncio.create_task(world.work(world.frozen(life)))
        await gate.reached.wait()
        where = f"frozen at call {number} of {calls}: {life.calls[-1]}"
        await world.recover()
        before = world.everything()
        gate.open()
        await owner
        assert world.everything() == before, where
        assert await world.transcript() == await calm.transcript(), where
        assert await world.ends() == ["finish"], where
        answers = [e for e in await world.journal() if isinstance(e, entries.ModelAnswer)]
        assert len(answers) == 3, where


@pytest.mark.parametrize("place", ["in the tool", "in the model call"])
async def test_p06_an_owner_frozen_inside_its_work_changes_nothing(
    scene: MakeScene, place: str
) -> None:
    """Given an owner frozen inside step 2; when another one ends the run and the first one's tool
    or model answers; then that answer is dropped, and nothing more is called.
    """
    gate, life = Gate(), Life()
    world = scene(*_three_steps())
    if place == "in the tool":
        world.in_tool["c2"] = gate.pass_through
    else:
        world.model.on[1, 0] = gate.pass_through
    await world.say("m1")
    owner = asyncio.create_task(world.work(world.frozen(life)))
    await gate.reached.wait()
    await world.recover()
    before, played, ran = world.everything(), world.model.played.copy(), list(world.ran)
    gate.open()
    await owner
    assert world.everything() == before
    assert (world.model.played, world.ran) == (played, ran)
    assert await world.kinds() == [
        *("input", "model", "result"),
        *(("model", "claim") if place == "in the tool" else ("claim", "model")),
        *("result", "model", "finish"),
    ]


async def test_p08_a_message_in_the_final_chunk_is_answered(scene: MakeScene) -> None:
    """Given a model that streams its final text; when a message comes before the last part of it;
    then the run goes on with it, and nothing else is needed.
    """
    world = scene(T("bye now"), T("still here"))
    last = 4  # text-start, two words, text-end, finished

    async def send() -> None:
        await world.say("m2", "wait")

    world.model.on[0, last] = send
    await world.say("m1")
    await world.settle()
    assert world.prompts()[1:] == [["user go", "assistant bye now", "user wait"]]
    assert await world.ends() == ["finish"]


async def _sent_at(world: Scene, number: int) -> Life:
    """A life in which a second message comes before a port call; its wake-up is used up at once."""

    async def send() -> None:
        await world.say("m2", "wait")
        await world.work(world.process())

    life = Life({number: send})
    await world.say("m1")
    await world.settle(world.process(life))
    return life


async def test_p08_a_message_at_any_moment_of_a_run_is_answered(scene: MakeScene) -> None:
    """Given a run; when a message comes before any port call of its owner, the ones after the last
    look into the inbox included, and its own wake-up finds the thread taken; then it is answered,
    in this run or the next, without a tick.
    """
    calls = 1
    number = 0
    while number < calls:
        number += 1
        world = scene(T("bye now"), T("still here"))
        life = await _sent_at(world, number)
        calls = max(calls, len(life.calls)) if number == 1 else len(life.calls)
        where = f"at call {number} of {calls}: {life.calls[min(number, len(life.calls)) - 1]}"
        assert await world.receipts() == {"m1": "delivered", "m2": "delivered"}, where
        assert await world.inbox() == [], where
        assert set(await world.ends()) == {"finish"}, where
        said = " ".join(text for _, text in await world.said())
        assert said.endswith(("go wait bye now", "wait still here")), (where, said)
    assert number > 12


async def test_p33_a_message_to_an_owner_that_dies_is_taken_by_the_next(scene: MakeScene) -> None:
    """Given a message that another process accepted for the run of owner A; when A dies unread and
    B takes over; then B shows it to the model once, and it is in the journal once.
    """
    gate, life = Gate(), Life()
    world = scene(Tries(HANG(gate), T("first")), T("second"))
    await world.say("m1")
    dying = asyncio.create_task(world.live(life))
    await gate.reached.wait()
    sent = await world.say("m2", "me too", via=world.elsewhere())
    assert sent.action == "deliver"
    world.model.on[0, 0] = life.die
    gate.open()
    assert await dying
    await world.recover()
    shown = [prompt for prompt in world.prompts() if "user me too" in prompt]
    assert shown
    assert all(prompt.count("user me too") == 1 for prompt in shown)
    assert [s["id"] for e in await world.journal() for s in getattr(e, "signals", [])] == [
        "m1",
        "m2",
    ]
    assert await world.receipts() == {"m1": "delivered", "m2": "delivered"}


async def test_p35_a_lease_that_cannot_be_read_starts_no_second_run(scene: MakeScene) -> None:
    """Given a run whose owner lives; when a message comes, and the worker of its wake-up and the
    tick get no answer from the Coordinator; then the message is kept, no other owner begins, and
    the run takes it in.
    """
    gate = Gate()
    world = scene(HANG(gate, T("first")), T("second"))
    await world.say("m1")
    owner = asyncio.create_task(world.settle())
    await gate.reached.wait()
    assert (await world.say("m2", "me too")).action == "deliver"
    life = Life({("acquire", 1): Fault.REFUSED, ("held", 1): Fault.REFUSED})
    blind = world.process(life)
    world.clock.advance(world.settings.tick)
    await world.work(blind)
    await blind.recover.tick()
    assert {"acquire", "held"} <= set(life.calls)
    assert await world.kinds() == ["input"]
    gate.open()
    await owner
    await world.recover()
    assert await world.kinds() == ["input", "model", "signals", "model", "finish"]
    assert len(world.prompts()) == 2


async def test_p35_an_idle_thread_waits_for_the_lease_to_answer(scene: MakeScene) -> None:
    """Given an idle thread; when a message comes and the lease cannot be had for lack of an answer;
    then nothing starts without it, and a later wake-up starts one run.
    """
    world = scene(T("hi"))
    await world.say("m1")
    await world.work(world.process(Life({("acquire", 1): Fault.REFUSED})))
    assert await world.kinds() == []
    assert world.wakes() == 1
    world.clock.advance(2_000)
    await world.settle()
    assert await world.kinds() == ["input", "model", "finish"]


async def test_p44_a_steering_message_goes_in_and_queued_ones_wait_in_order(
    scene: MakeScene,
) -> None:
    """Given a run; when A and B are queued and S is sent; then S goes into the running loop, and A
    and B get runs of their own after it, in that order.
    """
    world = scene(C(("c1", "t1", {})), T("steered"), T("did A"), T("did B"))

    async def send() -> None:
        queued = [await world.say(id, id, queue=True) for id in ("A", "B")]
        steered = await world.say("S", "S")
        assert steered.run == first.run
        assert len({first.run, *(each.run for each in queued)}) == 3

    world.in_tool["c1"] = send
    first = await world.say("m1")
    await world.settle()
    assert await world.said() == [
        *(("user", "go"), ("assistant", ""), ("user", "S"), ("assistant", "steered")),
        *(("user", "A"), ("assistant", "did A"), ("user", "B"), ("assistant", "did B")),
    ]
    assert await world.ends() == ["finish"] * 3
    assert "user A" not in world.prompts()[1]
    assert "user B" not in world.prompts()[2]


async def test_p44_a_cancel_does_not_take_queued_messages_with_it(scene: MakeScene) -> None:
    """Given a run with A and B queued behind it; when the run is cancelled; then A and B still get
    their runs, in order.
    """
    gate = Gate()
    world = scene(Tries(HANG(gate), T("did A")), T("did B"))
    first = await world.say("m1")
    owner = asyncio.create_task(world.settle())
    await gate.reached.wait()
    queued = [await world.say(id, id, queue=True) for id in ("A", "B")]
    assert await world.outside.accept.abort(THREAD, None, first.run)
    await owner
    assert await world.ends() == ["abort", "finish", "finish"]
    assert [await world.status(s.run) for s in (first, *queued)] == [
        *("cancelled", "completed", "completed")
    ]
    assert (await world.said())[-4:] == [
        *(("user", "A"), ("assistant", "did A"), ("user", "B"), ("assistant", "did B"))
    ]


async def test_p49_nothing_that_matters_is_left_to_a_task_behind_the_reply(
    scene: MakeScene,
) -> None:
    """Given a request that is answered, and an invocation that returns; when the process vanishes
    at that moment; then no task of it is left over, and what it promised happens elsewhere.
    """
    world = scene(C(("c1", "t1", {})), T("done"))
    before = asyncio.all_tasks()
    await world.say("m1", via=world.process())
    assert asyncio.all_tasks() == before, "the reply leaves no task"
    assert world.wakes() == 1
    (got,) = await world.queue.receive(limit=1, wait=0, hold=30_000)
    process = world.process(slice_steps=1)
    await process.advance.advance(got.wake)
    await world.queue.acknowledge(got)
    assert asyncio.all_tasks() == before, "nor does the slice"
    assert not await world.coordinator.held(P)
    assert world.wakes() == 1, "what is left is announced by a durable wake-up"
    await world.work(world.process())
    assert await world.said() == [("user", "go"), ("assistant", "done")]


async def test_p49_a_process_that_dies_with_its_reply_has_kept_its_word(scene: MakeScene) -> None:
    """Given a request whose commit is done; when the process dies before it sends the wake-up; then
    the tick finds the message, and it is answered.
    """
    world, life = scene(T("hi")), Life({("send", 1): Fault.KILL_BEFORE})

    async def answer(process: System) -> None:
        await world.say("m1", via=process)

    assert await world.die_in(life, answer)
    assert world.wakes() == 0
    await world.recover()
    assert await world.said() == [("user", "go"), ("assistant", "hi")]


def _forty() -> list[Turn]:
    return [*(C((f"c{n}", "t1", {})) for n in range(39)), T("forty steps")]


@pytest.mark.parametrize("cap", [1, 3])
async def test_p51_forty_steps_in_slices_of_a_few(scene: MakeScene, cap: int) -> None:
    """Given a run of 40 steps and slices of one or three; when each slice hands over to the next by
    a wake-up; then the run completes, each step once, without a tick.
    """
    world, acquired = scene(*_forty(), slice_steps=cap), Life()
    sent = await world.say("m1")
    await world.settle(world.process(acquired))
    assert await world.status(sent.run) == "completed"
    assert world.model.played == dict.fromkeys(range(40), 1)
    assert world.ran == [f"c{n}" for n in range(39)]
    assert acquired.calls.count("acquire") >= 40 // cap
    assert await world.ends() == ["finish"]
    assert lines(world.model.requests[-1])[-2:] == ["calls c38", "results c38"]


async def test_p51_a_chain_that_was_stopped_is_picked_up(scene: MakeScene) -> None:
    """Given slices of one step, of which some wake-ups are lost, as by a stop of recursive calls;
    when the tick comes; then it picks the chain up each time, and the run completes.
    """
    world = scene(*_forty()[29:], slice_steps=1)
    sent = await world.say("m1")
    plan: dict[int | tuple[str, int], Fault | Rival] = {
        ("send", number): Fault.REFUSED for number in (2, 5, 6)
    }
    process = world.process(Life(plan))
    ticks = 0
    await world.settle(process)
    while await world.status(sent.run) != "completed":
        assert world.wakes() == 0, "the chain has stopped"
        world.clock.advance(world.settings.tick + 1)
        assert await world.outside.recover.tick() == 1
        ticks += 1
        await world.settle(process)
    assert ticks == len(plan)
    assert world.model.played == dict.fromkeys(range(11), 1)
    assert await world.ends() == ["finish"]
