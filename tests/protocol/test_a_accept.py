"""Accept (docs/protocols.md A; A8 is beside). A10 and deletions by `keep` are not built yet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shared.core import keys
from shared.core.errors import BadRequest, Conflict, Forbidden, NotFound, TooLarge, Unavailable
from shared.core.limits import MAX_BODY, MAX_ID
from shared.core.signals import Signal
from shared.ports import Put
from shared.services.accept import Behaviour, Target
from tests.apps.script import HANG, C, Gate, T
from tests.contract.faults import Fault, Faults
from tests.crash.world import RESOURCE, SETTINGS, THREAD
from tests.protocol.making import record
from tests.protocol.stage import AGENT, OTHER, PERSIST, WAKE, Hooks

if TYPE_CHECKING:
    from shared.bootstrap import System
    from tests.protocol.conftest import MakeStage

pytestmark = pytest.mark.anyio

LONG = "x" * (MAX_ID + 1)
HELLO = Signal.from_record(record("m1"))

INVALID: list[tuple[Target, type[Exception]]] = [
    (Target("nobody", THREAD, RESOURCE), NotFound),
    (Target(AGENT, None, RESOURCE), BadRequest),
    (Target(AGENT, "", RESOURCE), BadRequest),
    (Target(AGENT, LONG, RESOURCE), BadRequest),
    (Target(AGENT, "a\nb", RESOURCE), BadRequest),
    (Target(AGENT, "\ud800", RESOURCE), BadRequest),
    (Target(AGENT, THREAD, None), BadRequest),
    (Target(AGENT, THREAD, LONG), BadRequest),
    (Target(AGENT, THREAD, RESOURCE, run=LONG), BadRequest),
    (Target(AGENT, LONG, RESOURCE, run="run"), BadRequest),
    (Target(AGENT, THREAD, LONG, run="run"), BadRequest),
]


@pytest.mark.parametrize(("target", "error"), INVALID, ids=lambda value: ascii(value)[:60])
async def test_a1_all_is_validated_before_anything_is_read(
    stage: MakeStage, target: Target, error: type[Exception]
) -> None:
    world, faults = stage(), Faults()
    with pytest.raises(error):
        await world.process(faults).accept.send(target, HELLO)
    assert faults.calls == []


async def test_a1_what_is_too_large_is_refused_before_anything_is_read(stage: MakeStage) -> None:
    world, faults = stage(), Faults()
    process = world.process(faults)
    large = replace(HELLO, contents="x" * MAX_BODY)
    with pytest.raises(TooLarge):
        await process.accept.send(Target(AGENT, THREAD, RESOURCE), large)
    grown = Behaviour(active_attributes={"a": "x" * MAX_BODY})  # even if that branch is not taken
    with pytest.raises(TooLarge):
        await process.accept.send(Target(AGENT, THREAD, RESOURCE), HELLO, grown)
    assert faults.calls == []


async def test_a1_then_ownership(stage: MakeStage) -> None:
    world = stage(T("hi"))
    sent = await world.say("m1")
    before = world.everything()
    with pytest.raises(Forbidden):
        await world.say("m2", resource="somebody else")
    with pytest.raises(Forbidden):
        await world.outside.accept.send(Target(AGENT, None, "somebody else", sent.run), HELLO)
    with pytest.raises(Forbidden):
        await world.outside.accept.abort(THREAD, "somebody else")
    assert world.everything() == before


async def test_a2_a_reserved_run_counts_as_active(stage: MakeStage) -> None:
    world = stage(T("hi"))
    branches = Behaviour(active_attributes={"b": "active"}, idle_attributes={"b": "idle"})
    first = await world.say("m1", behaviour=branches)
    second = await world.say("m2", behaviour=branches)  # nobody has worked yet
    assert (first.action, second.action) == ("wake", "deliver")
    assert first.run == second.run
    assert [s.signal.attributes for s in (first, second)] == [{"b": "idle"}, {"b": "active"}]
    assert await world.active_status() == "reserved"


async def test_a2_active_is_read_again_for_a_later_incarnation(stage: MakeStage) -> None:
    world = stage(T("hi"))
    await world.say("m1")  # incarnation 1 keeps its ACTIVE: late writers write where nobody reads
    known = await world.table.get(keys.thread(THREAD), keys.THREAD)
    assert known
    await world.table.commit([Put(known.partition, known.sort, {**known.body, "incarnation": 2})])
    faults = Faults()
    anew = await world.say("m2", via=world.process(faults))
    assert anew.action == "wake"
    assert faults.calls[:4] == ["get", "get", "get", "commit"]
    assert (await world.say("m3")).run == anew.run
    assert len(await world.table.query(keys.partition(THREAD, 2), "IN#")) == 2


async def test_a3_accept_is_one_commit_and_one_wake_up(stage: MakeStage) -> None:
    world, hooks = stage(), Hooks()
    sent = await world.say("m1", keys=["k"], via=world.process(hooks))
    assert sorted(hooks.calls) == ["commit", "get", "get", "send"]
    assert hooks.calls[-1] == "send"
    (writes,) = hooks.commits
    assert [write.sort.split("#")[0] for write in writes] == [
        *("SIG", "KEY", "THREAD", "IN", "RUN", "ACTIVE")
    ]
    assert {write.expect for write in writes} == {"absent"}
    head = await world.head(sent.run)
    assert (head.body["status"], head.index) == ("prepared", None)
    assert [when for _, when in await world.due("inbox")] == [world.clock.now() + SETTINGS.tick]


async def test_a3_a_crash_before_the_wake_up_is_found_by_the_tick(stage: MakeStage) -> None:
    world = stage(T("hi"))

    async def life(process: System) -> None:
        await world.say("m1", via=process)

    assert await world.die_in(Faults({("send", 1): Fault.KILL_BEFORE}), life)
    assert world.wakes() == []
    assert await world.outside.recover.tick() == 0  # it is not due yet
    world.clock.advance(SETTINGS.tick)
    assert await world.outside.recover.tick() == 1
    await world.settle()
    assert await world.receipts() == {"m1": "delivered"}


async def test_a3_a_crash_before_the_commit_leaves_nothing(stage: MakeStage) -> None:
    world = stage()
    before = world.everything()

    async def life(process: System) -> None:
        await world.say("m1", via=process)

    assert await world.die_in(Faults({("commit", 1): Fault.KILL_BEFORE}), life)
    assert world.everything() == before


LOSERS: list[tuple[str, Behaviour, str]] = [
    (AGENT, Behaviour(), "deliver"),
    (OTHER, Behaviour(), "queue"),
    (AGENT, Behaviour(if_active="persist"), "keep"),
    (AGENT, Behaviour(if_active="discard"), ""),
]


@pytest.mark.parametrize(
    ("agent", "behaviour", "kind"), LOSERS, ids=["same", "other", "keep", "no"]
)
async def test_a4_who_loses_the_thread_decides_again(
    stage: MakeStage, agent: str, behaviour: Behaviour, kind: str
) -> None:
    """Both read an idle thread; the other one commits first."""
    world = stage()
    runs: list[str] = []

    async def rival() -> None:
        runs.append((await world.say("first")).run)

    process = world.process(Faults({("commit", 1): rival}))
    sent = await world.say("second", via=process, agent=agent, behaviour=behaviour)
    active = await world.active()
    assert active
    assert active.run == runs[0]
    kinds = {body["signal"]["id"]: body["kind"] for body in await world.inbox()}
    assert kinds == {"first": "wake"} | ({"second": kind} if kind else {})
    assert (sent.run == runs[0]) == (kind == "deliver")


async def test_a4_a_thread_that_another_resource_makes_first_is_not_ours(stage: MakeStage) -> None:
    world = stage()

    async def rival() -> None:
        await world.say("first", resource="somebody else")

    with pytest.raises(Forbidden):
        await world.say("second", via=world.process(Faults({("commit", 1): rival})))
    assert await world.receipts() == {"first": "accepted"}


async def test_a5_a_repeat_gets_the_first_answer_and_another_body_409(stage: MakeStage) -> None:
    world = stage(T("hi"), T("again"))
    first = await world.say("m1", keys=["k"])
    at_once = await world.say("m1", keys=["k"])  # the thread is active now: a deliver otherwise
    await world.settle()
    later = await world.say("m1", keys=["k"])  # and idle again
    assert {(a.action, a.run, a.signal.id) for a in (first, at_once, later)} == {
        ("wake", first.run, "m1")
    }
    with pytest.raises(Conflict):
        await world.say("m1", "another text")
    with pytest.raises(Conflict):
        await world.say("m2", "another text", keys=["k"])
    await world.settle()
    assert await world.receipts() == {"m1": "delivered"}
    assert world.model.played == {0: 1}


async def test_a5_what_happened_is_kept_apart_from_what_was_answered(stage: MakeStage) -> None:
    """m2 was answered with a run that was over when it came; its receipt tells where it went."""
    gate = Gate()
    world = stage(HANG(gate, T("one")), T("two"))
    first = await world.say("m1")

    async def late(_: object) -> None:
        assert (await world.say("m2")).run == first.run

    async with world.time_passes():
        gate.open()
        await world.work(world.process(Hooks(before={"finish": late})))
    receipt = (await world.one(keys.receipt("m2"))).body
    assert (receipt["answered_run"], receipt["state"]) == (first.run, "delivered")
    assert receipt["run"] != first.run
    assert (await world.say("m2")).run == first.run


async def test_a5_expiries(stage: MakeStage) -> None:
    world = stage(T("hi"))
    sent = await world.say("m1", keys=["k"])
    accepted, key = world.clock.now(), keys.idempotency("k")
    lasting = [await world.one(keys.receipt("m1")), await world.head(sent.run)]
    assert [item.expires for item in lasting] == [None, None]
    fixed = await world.one(key)
    assert fixed.expires == accepted + SETTINGS.receipt_ttl
    world.clock.advance(1_000)
    await world.settle()
    terminal = [await world.one(keys.receipt("m1")), await world.head(sent.run)]
    assert all(item.expires and item.expires > accepted for item in terminal)
    assert await world.one(key) == fixed


@pytest.mark.parametrize("queue", [False, True])
async def test_a6_a_lost_reply_is_a_success(stage: MakeStage, queue: bool) -> None:
    """The repeat meets its own receipt, key, RUN and ACTIVE."""
    world = stage(T("hi"))
    process = world.process(Faults({("commit", 1): Fault.CUT}))
    async with world.time_passes():
        sent = await world.say("m1", via=process, keys=["k"], queue=queue)
    assert sent.action == "wake"
    assert len(await world.inbox()) == 1
    assert len(world.wakes()) == 1
    await world.settle()
    assert await world.status(sent.run) == "completed"


async def test_a6_a_lost_reply_still_wakes(stage: MakeStage) -> None:
    """The repeat finds its own run active and would do nothing now; the first one's is to do."""
    world = stage(T("hi"))
    process = world.process(Faults({("commit", 1): Fault.CUT}))
    async with world.time_passes():
        sent = await world.say("m1", via=process, behaviour=Behaviour(if_active="discard"))
    assert sent.action == "wake"
    assert len(world.wakes()) == 1


async def test_a6_no_answer_is_tried_again(stage: MakeStage) -> None:
    world = stage()
    process = world.process(Faults({("commit", 1): Fault.REFUSED, ("commit", 2): Fault.REFUSED}))
    async with world.time_passes():
        await world.say("m1", via=process)
    assert len(await world.inbox()) == 1


async def test_a6_another_request_with_the_same_key_at_the_same_time_is_no_success(
    stage: MakeStage,
) -> None:
    world = stage()

    async def rival() -> None:
        await world.say("first", keys=["k"])

    with pytest.raises(Conflict):
        await world.say("second", keys=["k"], via=world.process(Faults({("commit", 1): rival})))


async def test_a7_persist_on_an_idle_thread_is_written_by_an_owner(stage: MakeStage) -> None:
    world, hooks = stage(), Hooks()
    sent = await world.say("m1", behaviour=PERSIST, via=world.process(hooks))
    assert sent.action == "persist"
    (waiting,) = await world.inbox()
    assert (waiting["kind"], len(world.wakes())) == ("keep", 1)
    assert await world.kinds() == []
    await world.settle()
    assert (await world.kinds(), await world.inbox()) == (["note"], [])
    assert await world.receipts() == {"m1": "persisted"}
    assert await world.told() == ["start", "data-user-message", "finish"]
    assert await world.active() is None
    assert world.model.requests == []


async def test_a7_persist_in_mid_run_becomes_a_note_of_the_run(stage: MakeStage) -> None:
    gate = Gate()
    world = stage(HANG(gate, T("one")))
    await world.say("m1")

    async def keep(_: object) -> None:
        await world.say("m2", "kept", behaviour=PERSIST)

    gate.open()
    await world.settle(Hooks(before={"model": keep}))
    assert await world.kinds() == ["input", "model", "note", "finish"]
    assert await world.receipts() == {"m1": "delivered", "m2": "persisted"}


async def test_a7_a_kept_signal_whose_telling_was_cut_is_told_by_a_later_tick(
    stage: MakeStage,
) -> None:
    """No answer from the log until the lease is over: the wake-up is done with, the note untold."""
    world = stage(T("one"))
    await world.say("m1")
    await world.settle()

    async def no_answer() -> None:
        world.clock.advance(SETTINGS.lease + 1)
        raise Unavailable("injected")

    await world.say("m2", behaviour=PERSIST)
    await world.settle(Faults({("append", n): no_answer for n in range(1, 9)}))
    assert await world.kinds() == ["input", "model", "finish", "note"]
    await world.heal()
    assert (await world.told())[-3:] == ["start", "data-user-message", "finish"]


async def test_a7_a_transient_signal_cannot_be_kept(stage: MakeStage) -> None:
    world = stage()
    sent = await world.say("m1", behaviour=PERSIST, transient=True)
    assert (sent.action, await world.inbox()) == ("discard", [])


async def abort(world: Any, via: System | None = None) -> bool:
    done = await (via or world.outside).accept.abort(THREAD, RESOURCE)
    return bool(done)


async def test_a9_a_cancel_is_an_inbox_item_and_a_flag(stage: MakeStage) -> None:
    world = stage(HANG(Gate()))
    sent = await world.say("m1")
    async with world.time_passes():
        process = world.process()

        async def cancel(_: object) -> None:
            assert await abort(world)
            item = await world.one(keys.cancel(sent.run))
            assert (item.body["kind"], item.body["run"]) == ("cancel", sent.run)

        process = world.process(Hooks(after={"input": cancel}))
        await world.work(process)  # the model hangs until it is cut
    assert await world.status(sent.run) == "cancelled"
    assert (await world.told())[-1] == "abort"
    assert await world.inbox() == []
    assert world.model.cut == {0: 1}


async def test_a9_a_wake_up_that_finds_the_lease_held_sets_the_flag_again(stage: MakeStage) -> None:
    """The flag could not be set, and the model hangs: the owner would not look for long."""
    gate = Gate()
    world = stage(HANG(gate))
    sent = await world.say("m1")
    flags: list[str] = []
    real = world.coordinator.ask_to_stop

    async def noted(log: str, run: str) -> None:
        flags.append(run)
        await real(log, run)

    world.coordinator.ask_to_stop = noted  # type: ignore[method-assign]

    async def cancel(_: object) -> None:
        canceller = world.process(Faults({("ask_to_stop", 1): Fault.REFUSED}))
        assert await abort(world, canceller)
        assert flags == []
        await world.process().advance.advance(WAKE)  # the cancel's wake-up, in another process
        gate.open()  # whatever comes of it, the test ends

    await world.settle(Hooks(after={"input": cancel}))
    assert flags == [sent.run]


async def test_a9_a_cancel_of_a_prepared_run_ends_it_as_it_starts(stage: MakeStage) -> None:
    world = stage(T("never said"), T("next"))
    sent = await world.say("m1")
    assert await abort(world)
    behind = await world.say("m2", queue=True)
    await world.settle()
    assert await world.status(sent.run) == "cancelled"
    assert await world.status(behind.run) == "completed"
    assert await world.told() == [
        *("start", "data-user-message", "abort"),
        *("start", "data-user-message", "step-start", "step-finish", "finish"),
    ]


async def test_a9_a_cancel_that_comes_too_late_is_discarded(stage: MakeStage) -> None:
    world = stage(T("hi"), T("next"))
    await world.say("m1")

    async def cancel(_: object) -> None:
        assert await abort(world)

    await world.settle(Hooks(before={"finish": cancel}))
    assert (await world.told())[-1] == "finish"
    assert await world.inbox() == []
    second = await world.say("m2")
    await world.settle()
    assert await world.status(second.run) == "completed"
    assert await abort(world) is False


async def test_a9_only_the_expected_run_is_cancelled(stage: MakeStage) -> None:
    world = stage(T("hi"))
    await world.say("m1")
    before = world.everything()
    assert not await world.outside.accept.abort(THREAD, RESOURCE, "another run")
    assert not await world.outside.accept.abort("no thread", RESOURCE)
    assert world.everything() == before


async def test_a9_what_waits_survives_a_cancel(stage: MakeStage) -> None:
    world = stage(C(("c1", "none", {})), T("second"))
    await world.say("m1")

    async def cancel(_: object) -> None:
        await world.say("m2", "also")
        assert await abort(world)

    await world.settle(Hooks(after={"model": cancel}))
    assert await world.receipts() == {"m1": "delivered", "m2": "delivered"}
    assert [t for t in await world.told() if t in ("abort", "finish")] == ["abort", "finish"]
