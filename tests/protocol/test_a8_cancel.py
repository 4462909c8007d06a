"""Taking back what waits, and cancels by run (docs/protocols.md A8, A9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.core import keys
from shared.core.errors import BadRequest, Conflict, Forbidden, NotFound
from shared.core.limits import MAX_ID
from shared.core.model import UserMessage
from shared.core.records import Active
from tests.apps.script import HANG, C, Gate, T
from tests.contract.faults import Fault, Faults
from tests.crash.world import RESOURCE, SETTINGS, THREAD
from tests.protocol.stage import PERSIST, WAKE, Hooks, P

if TYPE_CHECKING:
    from shared.bootstrap import System
    from tests.protocol.conftest import MakeStage
    from tests.protocol.stage import Stage

pytestmark = pytest.mark.anyio

CALLS = 8
"""Port calls of a cancel that hands a reserved thread on."""


async def cancel(world: Stage, id: str, via: System | None = None) -> bool:
    return await (via or world.outside).accept.cancel_waiting(THREAD, RESOURCE, id)


async def users(world: Stage) -> list[str]:
    """What the model was shown last, of users."""
    return (await said(world))[-1]


async def said(world: Stage) -> list[list[str]]:
    """What each model call was shown of users."""
    return [
        [m.text for m in request.messages if isinstance(m, UserMessage)]
        for request in world.model.requests
    ]


async def test_a8_a_queued_message_is_taken_back_in_one_commit(stage: MakeStage) -> None:
    world, hooks = stage(T("one"), T("three")), Hooks()
    await world.say("m1", "first")
    second = await world.say("m2", "second", queue=True)
    await world.say("m3", "third", queue=True)
    before = await world.one(keys.ACTIVE)
    assert await cancel(world, "m2", world.process(hooks))
    (writes,) = hooks.commits
    assert [write.sort.split("#")[0] for write in writes] == ["IN", "SIG", "RUN", "ACTIVE"]
    assert all(write.expect == 1 for write in writes)
    assert hooks.calls.count("send") == 1
    receipt = await world.one(keys.receipt("m2"))
    assert receipt.body["state"] == "cancelled"
    assert receipt.expires == world.clock.now() + SETTINGS.receipt_ttl
    head = await world.head(second.run)
    assert (head.body["status"], head.index, head.expires) == ("cancelled", None, receipt.expires)
    assert await world.one(keys.ACTIVE) == before  # it is the first one's
    await world.settle()
    assert await users(world) == ["first", "third"]
    assert await world.receipts() == {"m1": "delivered", "m2": "cancelled", "m3": "delivered"}


async def test_a8_a_reserved_thread_goes_to_its_next_owner(stage: MakeStage) -> None:
    world, hooks = stage(T("two")), Hooks()
    await world.say("m1", "first")
    second = await world.say("m2", "second", queue=True)
    assert await cancel(world, "m1", world.process(hooks))
    (writes,) = hooks.commits
    assert [type(write).__name__ for write in writes] == ["Delete", "Put", "Put", "Put", "Check"]
    active = await world.active()
    assert active is not None
    assert (active.run, active.status) == (second.run, "reserved")
    assert active.item is not None
    assert (await world.one(active.item)).body["run"] == second.run
    await world.settle()
    assert await said(world) == [["second"]]
    assert await world.active() is None


async def test_a8_without_another_owner_the_thread_is_idle(stage: MakeStage) -> None:
    world = stage(T("two"))
    await world.say("m1")
    assert await cancel(world, "m1")
    assert (await world.active(), await world.inbox()) == (None, [])
    await world.settle()
    assert await world.kinds() == []
    assert (await world.say("m2", "second")).action == "wake"
    await world.settle()
    assert await said(world) == [["second"]]


async def test_a8_what_is_for_a_run_is_taken_back_alone(stage: MakeStage) -> None:
    """Item and receipt; the run that it was for goes on."""
    gate = Gate()
    world = stage(HANG(gate, C(("c1", "none", {}))), T("done"))
    hooks = Hooks()

    async def change(_: object) -> None:
        await world.say("m2", "deliver")
        await world.say("m3", "stays")
        await world.say("m4", "keep", behaviour=PERSIST)
        assert await cancel(world, "m2", world.process(hooks))
        assert await cancel(world, "m4")

    await world.say("m1", "first")
    gate.open()
    await world.settle(Hooks(before={"model": change}))
    assert [write.sort.split("#")[0] for write in hooks.commits[0]] == ["IN", "SIG"]
    assert await world.receipts() == {
        **{"m1": "delivered", "m2": "cancelled", "m3": "delivered", "m4": "cancelled"}
    }
    assert await users(world) == ["first", "stays"]


async def test_a8_a_kept_signal_of_an_idle_thread_is_taken_back(stage: MakeStage) -> None:
    world = stage()
    await world.say("m1", behaviour=PERSIST)
    assert await cancel(world, "m1")
    await world.settle()
    assert (await world.kinds(), await world.inbox()) == ([], [])


async def test_a8_what_stands_behind_is_neither_overtaken_nor_lost(stage: MakeStage) -> None:
    """The second was for the first one's run; it gets one of its own, before those after it."""
    world = stage(T("a"), T("b"), T("c"))
    first = await world.say("m1", "first")
    second = await world.say("m2", "second")
    assert second.run == first.run
    third = await world.say("m3", "third", queue=True)
    await world.say("m4", "kept", behaviour=PERSIST)
    assert await cancel(world, "m1")
    fourth = await world.say("m5", "fourth")
    assert (fourth.action, fourth.run) == ("deliver", third.run)
    await world.settle()
    assert await users(world) == ["kept", "second", "third", "fourth"]
    assert await world.receipts() == {
        **{"m1": "cancelled", "m2": "delivered", "m3": "delivered"},
        **{"m4": "persisted", "m5": "delivered"},
    }
    assert await world.inbox() == []


async def test_a8_what_was_for_a_cancelled_run_runs_although_nobody_owns_one(
    stage: MakeStage,
) -> None:
    world = stage(T("a"), T("b"))
    await world.say("m1", "first")
    await world.say("m2", "second")
    assert await cancel(world, "m1")
    assert (await world.say("m3", "third")).action == "wake"
    await world.settle()
    assert await said(world) == [["second"], ["second", "third"]]


async def test_a8_of_cancel_and_start_exactly_one_wins(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    sent = await world.say("m1", "first")
    await world.say("m2", "second", queue=True)

    async def too_early(_: object) -> None:
        assert await cancel(world, "m1")

    await world.settle(Hooks(before={"input": too_early}))
    assert await world.status(sent.run) == "cancelled"
    assert await said(world) == [["second"]]

    late = await world.say("m3", "third")

    async def too_late(_: object) -> None:
        assert not await cancel(world, "m3")

    await world.settle(Hooks(after={"input": too_late}))
    assert await world.status(late.run) == "completed"


async def test_a8_of_cancel_and_drain_exactly_one_wins(stage: MakeStage) -> None:
    world = stage(C(("c1", "none", {})), T("done"))
    await world.say("m1", "first")

    async def more(_: object) -> None:
        await world.say("m2", "second")
        await world.say("m3", "third")

    async def too_early(_: object) -> None:
        assert await cancel(world, "m2")

    async def too_late(_: object) -> None:
        assert not await cancel(world, "m3")

    hooks = Hooks(before={"model": more, "signals": too_early}, after={"signals": too_late})
    await world.settle(hooks)
    assert await users(world) == ["first", "third"]


async def test_a8_a_start_between_look_and_commit_wins(stage: MakeStage) -> None:
    world = stage(T("one"))
    await world.say("m1")
    canceller = world.process(Faults({("commit", 1): world.settle}))
    assert not await cancel(world, "m1", canceller)
    assert await world.receipts() == {"m1": "delivered"}


async def test_a8_the_thread_that_a_finish_reserves_meanwhile_is_handed_on(
    stage: MakeStage,
) -> None:
    """The owner dies right after it reserved the thread for the run that is cancelled."""
    world = stage(T("one"), T("three"))
    await world.say("m1", "first")
    second = await world.say("m2", "second", queue=True)
    third = await world.say("m3", "third", queue=True)

    async def finish() -> None:
        await world.die(Hooks.killing(after="finish"))
        active = await world.active()
        assert active is not None
        assert (active.run, active.status) == (second.run, "reserved")

    assert await cancel(world, "m2", world.process(Faults({("commit", 1): finish})))
    active = await world.active()
    assert active is not None
    assert (active.run, active.status) == (third.run, "reserved")
    await world.revive()
    assert await users(world) == ["first", "third"]


async def test_a8_a_finish_looks_again_if_its_heir_is_cancelled(stage: MakeStage) -> None:
    world = stage(T("one"), T("three"))
    await world.say("m1", "first")
    await world.say("m2", "second", queue=True)
    third = await world.say("m3", "third", queue=True)

    async def gone(_: object) -> None:
        assert await cancel(world, "m2")

    async def given(_: object) -> None:
        active = await world.active()
        assert active is not None
        assert (active.run, active.status) == (third.run, "reserved")

    await world.settle(Hooks(before={"finish": gone}, after={"finish": given}))
    assert await users(world) == ["first", "third"]


async def test_a8_a_tick_that_puts_the_item_off_meanwhile_does_no_harm(stage: MakeStage) -> None:
    world = stage(T("one"))
    await world.say("m1")
    process = world.process(Faults({("commit", 1): Fault.CONFLICT}))
    assert await cancel(world, "m1", process)
    assert await world.receipts() == {"m1": "cancelled"}


@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER])
@pytest.mark.parametrize("number", range(1, CALLS + 1))
async def test_a8_a_kill_leaves_all_or_nothing(stage: MakeStage, number: int, fault: Fault) -> None:
    world, faults = stage(T("a"), T("b"), T("c")), Faults({number: fault})
    first = await world.say("m1", "first")
    await world.say("m2", "second")
    await world.say("m3", "third", queue=True)

    async def life(process: System) -> None:
        await cancel(world, "m1", process)

    assert await world.die_in(faults, life), faults.calls
    commit = faults.calls.index("commit") + 1 if "commit" in faults.calls else number + 1
    done = number > commit or (number == commit and fault is Fault.KILL_AFTER)
    assert (await world.receipts())["m1"] == ("cancelled" if done else "accepted")
    assert await world.status(first.run) == ("cancelled" if done else "prepared")
    await world.heal()
    rest = ["second", "third"]
    assert await users(world) == (rest if done else ["first", *rest])
    assert (await world.inbox(), await world.active()) == ([], None)
    assert await cancel(world, "m1") is done


async def test_a8_the_kills_were_at_every_call(stage: MakeStage) -> None:
    world, faults = stage(), Faults()
    await world.say("m1")
    await world.say("m2", queue=True)
    assert await cancel(world, "m1", world.process(faults))
    assert len(faults.calls) == CALLS


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.CUT])
@pytest.mark.parametrize("number", range(1, CALLS + 1))
async def test_a8_every_call_may_be_refused_or_lose_its_reply(
    stage: MakeStage, number: int, fault: Fault
) -> None:
    world = stage(T("two"))
    await world.say("m1", "first")
    await world.say("m2", "second", queue=True)
    async with world.time_passes():
        assert await cancel(world, "m1", world.process(Faults({number: fault})))
    await world.heal()
    assert await said(world) == [["second"]]


async def test_a8_a_repeat_is_a_success_and_what_is_not_there_is_not_cancelled(
    stage: MakeStage,
) -> None:
    world = stage(T("one"))
    await world.say("m1", keys=["k"])
    assert await cancel(world, "m1")
    before = world.everything()
    assert await cancel(world, "m1")
    assert not await cancel(world, "no such signal")
    again = await world.say("m1", keys=["k"])  # the first answer: it does not come back
    assert again.action == "wake"
    assert world.everything() == before
    await world.say("m2")
    await world.settle()
    assert not await cancel(world, "m2")


async def test_a8_only_the_owner_takes_back(stage: MakeStage) -> None:
    world = stage()
    await world.say("m1")
    before = world.everything()
    take_back = world.outside.accept.cancel_waiting
    with pytest.raises(Forbidden):
        await take_back(THREAD, "somebody else", "m1")
    with pytest.raises(NotFound):
        await take_back("no such thread", RESOURCE, "m1")
    for thread, signal in (("", "m1"), (THREAD, ""), (THREAD, "x" * (MAX_ID + 1))):
        with pytest.raises(BadRequest):
            await take_back(thread, RESOURCE, signal)
    assert world.everything() == before


async def test_a8_a_thread_that_is_deleted_meanwhile_is_not_found(stage: MakeStage) -> None:
    world = stage()
    await world.say("m1")

    async def gone() -> None:
        await world.outside.deletion.delete(THREAD, RESOURCE)

    with pytest.raises(NotFound):
        await cancel(world, "m1", world.process(Faults({("commit", 1): gone})))
    assert Active.of((await world.one(keys.ACTIVE)).body).status == "deleted"


# ---- cancels by run (A9) -------------------------------------------------------------------


async def test_a9_a_run_is_cancelled_by_its_id(stage: MakeStage) -> None:
    gate = Gate()
    world = stage(HANG(gate))
    sent = await world.say("m1")

    async def stop(_: object) -> None:
        await world.outside.accept.cancel_run(sent.run, RESOURCE)

    await world.settle(Hooks(after={"input": stop}))
    assert await world.status(sent.run) == "cancelled"
    with pytest.raises(Conflict):
        await world.outside.accept.cancel_run(sent.run, RESOURCE)


async def test_a9_a_run_that_waits_is_cancelled_by_its_id_as_it_starts(stage: MakeStage) -> None:
    world = stage(T("one"), T("never"))
    first = await world.say("m1")
    second = await world.say("m2", queue=True)
    await world.outside.accept.cancel_run(second.run, RESOURCE)
    await world.outside.accept.cancel_run(second.run, RESOURCE)
    await world.settle()
    assert await world.status(first.run) == "completed"
    assert await world.status(second.run) == "cancelled"
    assert len(world.model.requests) == 1
    assert await world.inbox() == []


async def test_a9_a_cancel_of_a_run_that_waits_keeps_the_active_ones_flag(
    stage: MakeStage,
) -> None:
    """There is one flag: it is set, and set again, for the run that can see it."""
    gate = Gate()
    world = stage(HANG(gate), T("never"))
    first = await world.say("m1")
    queued = [(await world.say(f"q{n}", queue=True)).run for n in range(3)]
    flags: list[str] = []

    async def noted(log: str, run: str) -> None:
        flags.append(run)

    real, world.coordinator.ask_to_stop = world.coordinator.ask_to_stop, noted  # type: ignore[method-assign]

    async def stop(_: object) -> None:
        for run in queued:
            await world.outside.accept.cancel_run(run, RESOURCE)
        await world.process().advance.advance(WAKE)  # finds the lease held
        assert flags == []
        await world.outside.accept.abort(THREAD, RESOURCE)
        await world.process().advance.advance(WAKE)
        assert flags == [first.run] * 2
        world.coordinator.ask_to_stop = real  # type: ignore[method-assign]
        await real(P, first.run)

    await world.settle(Hooks(after={"input": stop}))
    assert [await world.status(run) for run in (first.run, *queued)] == ["cancelled"] * 4


async def test_a9_only_the_owner_cancels_a_run(stage: MakeStage) -> None:
    world = stage()
    sent = await world.say("m1")
    with pytest.raises(Forbidden):
        await world.outside.accept.cancel_run(sent.run, "somebody else")
    with pytest.raises(NotFound):
        await world.outside.accept.cancel_run("no such run", RESOURCE)
    await world.outside.deletion.delete(THREAD, RESOURCE)
    with pytest.raises(NotFound):
        await world.outside.accept.cancel_run(sent.run, RESOURCE)
