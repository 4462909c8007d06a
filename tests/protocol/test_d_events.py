"""Events: ids, counters, telling what is missing, a log that was lost (docs/protocols.md D)."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from shared.core.errors import Unavailable
from shared.core.events import K_MAX, EventId
from shared.services.takeover import RESYNC_INDEX
from tests.apps.script import HANG, SE, C, Gate, T, Tries
from tests.contract.faults import Fault, Faults, FaultyCoordinator
from tests.crash.world import RESOURCE, SETTINGS, THREAD, superseded
from tests.protocol.stage import PERSIST, WAKE, Hooks, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.events import LogEvent
    from shared.ports import Appended, Lease
    from tests.apps.script import Turn
    from tests.protocol.conftest import MakeStage

pytestmark = pytest.mark.anyio

CALL = C(("c1", "none", {}))
UNHEARD: dict[Any, Any] = {("append", n): Fault.REFUSED for n in range(1, 99)}


async def placed(world: Stage) -> list[tuple[int, str]]:
    """The position of each event, and its type."""
    return [(e.id.position, json.loads(e.json)["type"]) for e in await world.events()]


async def test_d1_events_carry_the_position_of_the_entry_that_they_belong_to(
    stage: MakeStage,
) -> None:
    world = stage(CALL, T("hi"))
    await world.say("m1")
    await world.settle()
    assert await world.kinds() == ["input", "model", "result", "model", "finish"]
    assert await placed(world) == [
        (0, "start"),
        (0, "data-user-message"),
        (1, "step-start"),
        (1, "tool-call"),
        (2, "tool-error"),
        (3, "step-finish"),
        (3, "step-start"),
        (3, "text-start"),
        (3, "text-delta"),
        (3, "text-end"),
        (4, "step-finish"),
        (4, "finish"),
    ]
    starts = {event.id.start for event in await world.events()}
    assert starts == {world.clock.now()}


@pytest.mark.parametrize("step", [-3_600_000, 0])
async def test_d1_starts_grow_even_when_the_clock_steps_back(stage: MakeStage, step: int) -> None:
    world = stage(*[T(str(n)) for n in range(3)])
    for n in range(3):
        await world.say(f"m{n}")
        world.clock.set(world.clock.now() + step)
        await world.process().advance.advance(WAKE)
    await world.say("k", behaviour=PERSIST)
    await world.process().advance.advance(WAKE)
    events = await world.events()
    starts = sorted({event.id.start for event in events})
    assert starts == [starts[0] + n for n in range(4)]
    moments = [entry.at for entry in await world.journal()]
    assert moments == sorted(set(moments))


@pytest.mark.parametrize(
    "turns",
    [(T("hi"),), (CALL, Tries(SE("broken"), T("hi"))), (C(("c", "none", {}), text="so"), T("x"))],
)
async def test_d2_counters_tell_what_is_in_the_log(stage: MakeStage, turns: Sequence[Turn]) -> None:
    """k0, k1 and index0 of each entry, which were counted before its commit, are true."""
    world = stage(*turns)
    await world.say("m1")
    await world.settle()
    events = await world.events()
    assert [event.index for event in events] == list(range(len(events)))
    for position, entry in enumerate(await world.journal()):
        mine = [event for event in events if event.id.position == position]
        assert [event.id.k for event in mine] == list(range(entry.k1))
        assert [event.index for event in mine[entry.k0 :]] == list(
            range(entry.index0, entry.index0 + entry.k1 - entry.k0)
        )


async def test_d2_nothing_is_told_before_its_entry_is_stored(stage: MakeStage) -> None:
    world = stage(CALL, T("hi"))
    await world.say("m1")
    told: list[tuple[str, str]] = []

    def noting(kind: str) -> Any:
        async def note(_: object) -> None:
            await asyncio.sleep(0)
            told.append((kind, (["", *await world.told()])[-1]))

        return note

    await world.settle(Hooks(before={k: noting(k) for k in ("input", "model", "result", "finish")}))
    assert told == [
        ("input", ""),
        ("model", "step-start"),
        ("result", "tool-call"),
        ("finish", "step-start"),
    ]


async def test_d3_a_flush_that_was_applied_twice_is_told_once(stage: MakeStage) -> None:
    world = stage(CALL, T("hi"))
    await world.say("m1")
    await world.settle(Faults({("append", n): Fault.CUT for n in range(1, 3)}))
    events = await world.events()
    assert [event.index for event in events] == list(range(12))


async def test_d3_one_flush_is_in_flight(stage: MakeStage) -> None:
    flying, most = [0], [0]

    class Slow(FaultyCoordinator):
        def renew(self, lease: Lease, ttl: int) -> str | None:
            return None

        async def append(
            self, lease: Lease, events: Sequence[LogEvent], ttl: int, after: EventId | None = None
        ) -> Appended:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
            for _ in range(5):
                await asyncio.sleep(0)
            appended = await super().append(lease, events, ttl, after)
            flying[0] -= 1
            return appended

    world = stage(C(("c1", "none", {}), text="one two three"), T("four five six seven"))
    await world.say("m1")
    await world.frozen(Hooks(), Slow).advance.advance(WAKE)
    assert most == [1]
    assert (await world.told())[-1] == "finish"


async def test_d3_an_append_brings_the_cancel_flag(stage: MakeStage) -> None:
    """The heartbeat does not see it: the append does, and the model is cut."""

    class Silent(FaultyCoordinator):
        def renew(self, lease: Lease, ttl: int) -> str | None:
            raise Unavailable("injected")

    gate = Gate()
    world = stage(HANG(gate, T("never " * 500)))
    sent = await world.say("m1")
    task = asyncio.create_task(world.frozen(Hooks(), Silent).advance.advance(WAKE))
    await gate.reached.wait()
    assert await world.outside.accept.abort(THREAD, RESOURCE)
    gate.open()
    await task
    assert await world.status(sent.run) == "cancelled"
    assert world.model.cut == {0: 1}


# ---- D4: what a dead owner had not told ------------------------------------------------------


async def test_d4_an_untold_answer_is_told_whole_as_a_new_attempt(stage: MakeStage) -> None:
    """Committed, of which the log has nothing, or a part."""
    world = stage(C(("c1", "none", {}), text="one two"), T("done"))
    await world.say("m1")
    half = {number: fault for number, fault in UNHEARD.items() if number != ("append", 1)}
    await world.die(Hooks.killing(after="model", plan=half))
    await world.revive()
    assert grow((await world.attempts())[:-1])
    assert await world.kept_texts() == ["one two", "done"]
    kept = [c["type"] for c in superseded(await world.chunks()) if "text" not in c["type"]]
    assert kept == [
        *("start", "data-user-message", "step-start", "tool-call", "tool-error", "step-finish"),
        *("step-start", "step-finish", "finish"),
    ]


def grow(attempts: list[int]) -> bool:
    """Whether each attempt is above the one before, so that readers drop that one."""
    return attempts == sorted(set(attempts)) and len(attempts) > 1 and attempts[0] == 0


async def test_d4_a_half_told_answer_is_superseded_once_it_is_committed(stage: MakeStage) -> None:
    gate = Gate()
    world = stage(HANG(gate, T("two three"), before="one "))
    await world.say("m1")
    hooks = Hooks.killing(after="model")
    dying = asyncio.create_task(world.die(hooks))
    await gate.reached.wait()
    await settled(world.told_texts, ["one "])
    hooks.plan.update({("append", n): Fault.REFUSED for n in range(1, 99)})
    gate.open()
    await dying
    await world.revive()
    assert grow(await world.attempts())
    assert await world.told_texts() == ["one ", "one ", "two three"]
    assert await world.kept_texts() == ["one ", "two three"]
    ids = [event.id for event in await world.events() if event.id.position == 1]
    answer = (await world.journal())[1]
    assert ids[-1].k >= answer.k1 - 1


async def settled(look: Any, expected: object) -> None:
    """Let others run until it is as expected."""
    for _ in range(1_000):
        if await look() == expected:
            return
        await asyncio.sleep(0)
    assert await look() == expected


async def half_told(world: Stage, gate: Gate, text: str = "half ") -> None:
    """An owner dies in a model call, of which readers have seen a part."""
    dying = asyncio.create_task(world.die(hooks := Hooks()))
    await gate.reached.wait()
    await settled(world.told_texts, [text])
    hooks.plan.update({("commit", n): Fault.KILL_BEFORE for n in range(1, 99)})
    gate.open()
    await dying


async def test_d4_half_told_text_of_a_lost_step_is_superseded(stage: MakeStage) -> None:
    gate = Gate()
    world = stage(Tries(HANG(gate, T("lost"), before="half "), T("whole")))
    await world.say("m1")
    await half_told(world, gate)
    await world.revive()
    assert grow(await world.attempts())
    assert await world.kept_texts() == ["whole"]


async def test_d4_also_when_a_message_comes_in_before_the_next_try(stage: MakeStage) -> None:
    """The new owner first takes the message in; the half-told text is still to be superseded."""
    gate = Gate()
    world = stage(Tries(HANG(gate, T("lost"), before="half "), T("whole")))
    await world.say("m1")
    await half_told(world, gate)
    await world.say("m2")
    await world.revive()
    assert await world.kinds() == ["input", "claim", "signals", "model", "finish"]
    assert await world.kept_texts() == ["whole"]


async def test_d4_also_when_a_signal_is_kept_before_the_next_try(stage: MakeStage) -> None:
    gate = Gate()
    world = stage(Tries(HANG(gate, T("lost"), before="half "), T("whole")))
    await world.say("m1")
    await half_told(world, gate)
    await world.say("k1", behaviour=PERSIST)
    await world.revive()
    assert await world.kinds() == ["input", "claim", "note", "model", "finish"]
    assert await world.kept_texts() == ["whole"]


async def test_d4_also_when_a_cancel_ends_the_run_in_recovery(stage: MakeStage) -> None:
    gate = Gate()
    world = stage(Tries(HANG(gate, T("lost"), before="half "), T("whole")))
    await world.say("m1")
    await half_told(world, gate)
    assert await world.outside.accept.abort(THREAD, RESOURCE)
    await world.revive()
    assert (await world.told())[-2:] == ["step-start", "abort"]
    assert grow(await world.attempts())
    assert await world.kept_texts() == []


async def test_d4_also_when_recovery_gives_up(stage: MakeStage) -> None:
    gate = Gate()
    world = stage(Tries(HANG(gate, T("lost"), before="half "), T("whole")))
    await world.say("m1")
    await half_told(world, gate)
    for _ in range(4):
        world.clock.advance(SETTINGS.lease + 1)
        await world.die_in_other(world.process(Hooks.killing(after="claim")))
    await world.revive()
    assert (await world.told())[-2:] == ["step-start", "error"]
    assert grow(await world.attempts())
    assert await world.kept_texts() == []


async def test_d4_an_attempt_is_above_all_that_were_told(stage: MakeStage) -> None:
    """The call broke and was made again (attempt 1), and its owner died in that one."""
    gate = Gate()
    world = stage(Tries(SE("half "), HANG(gate, T("lost"), before="half "), T("whole")))
    await world.say("m1")
    dying = asyncio.create_task(world.die(hooks := Hooks()))
    await gate.reached.wait()
    await settled(world.told_texts, ["half ", "half "])
    hooks.plan.update({("commit", n): Fault.KILL_BEFORE for n in range(1, 99)})
    gate.open()
    await dying
    await world.revive()
    assert grow(await world.attempts())
    assert len(await world.attempts()) == 3


# ---- D5: a log that was lost -----------------------------------------------------------------


async def test_d5_a_lost_log_resyncs(stage: MakeStage) -> None:
    """In mid-run: after the claim only `resync`, at its place, then the run's further events."""
    world = stage(CALL, T("hi"))
    await world.say("m1")
    await world.die(Hooks.killing(after="result"))
    world.lose_the_log()
    await world.revive()
    assert await world.kinds() == ["input", "model", "result", "claim", "model", "finish"]
    events = await world.events()
    claim = (await world.journal())[3]
    assert [(e.id.position, e.id.k) for e in events[:2]] == [(3, K_MAX), (4, 0)]
    told = await world.told()
    assert told[0] == "resync"
    assert [type for type in told if type in ("start", "tool-call", "tool-error")] == []
    assert told[-3:] == ["step-start", "step-finish", "finish"]
    first = (await world.journal())[2]
    assert claim.index0 == first.index0 + first.k1 - first.k0 + RESYNC_INDEX
    assert [e.index for e in events] == [claim.index0 - 1 + n for n in range(len(events))]


async def test_d5_before_a_start_it_resyncs_at_the_newest_entry(stage: MakeStage) -> None:
    world = stage(T("hi"), T("again"))
    await world.say("m1")
    await world.settle()
    (end,) = [event.id for event in (await world.events())[-1:]]
    world.lose_the_log()
    await world.say("m2")
    await world.settle()
    events = await world.events()
    assert events[0].id == EventId(end.start, end.position, K_MAX)
    assert await world.told() == [
        *("resync", "start", "data-user-message", "step-start", "step-finish", "finish")
    ]
    assert [event.index for event in events[1:]] == list(range(len(events) - 1))


async def test_d5_a_thread_that_has_just_begun_lost_nothing(stage: MakeStage) -> None:
    world = stage(T("hi"))
    await world.say("m1")
    await world.die(Hooks.killing(after="input", plan=UNHEARD))
    await world.revive()
    assert (await world.told())[:2] == ["start", "data-user-message"]
    assert "resync" not in await world.told()


async def test_d5_a_resync_that_was_told_is_not_told_again(stage: MakeStage) -> None:
    world = stage(CALL, T("hi"))
    await world.say("m1")
    await world.die(Hooks.killing(after="result"))
    world.lose_the_log()
    world.clock.advance(SETTINGS.lease + 1)
    hooks = Hooks.killing(before="model")
    async with world.time_passes():
        await world.die_in_other(world.process(hooks))
    await world.revive()
    told = await world.told()
    assert told.count("resync") == 1
    assert told[-1] == "finish"
    indexes = [event.index for event in await world.events()]
    assert indexes == sorted(set(indexes))


# ---- D6 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [T("one"), CALL], ids=["text", "call"])
async def test_d6_the_end_of_a_step_is_told_with_the_entry_that_decides_it(
    stage: MakeStage, turn: T | C
) -> None:
    """Whether a step ended as `other` is known when the inbox was looked at, not before."""
    world = stage(turn, T("two"))
    await world.say("m1")
    seen: list[list[str]] = []

    async def more(_: object) -> None:
        await world.say("m2")

    async def look(_: object) -> None:
        seen.append(await world.told())

    await world.settle(Hooks(before={"model": more, "signals": look}))
    assert "step-finish" not in seen[0]
    (position,) = [n for n, kind in enumerate(await world.kinds()) if kind == "signals"]
    assert [type for at, type in await placed(world) if at == position] == [
        *("data-user-message", "step-finish")
    ]
    reasons = [
        chunk["payload"]["stepResult"]["reason"]
        for chunk in await world.chunks()
        if chunk["type"] == "step-finish"
    ]
    assert reasons == ["other", "stop"]


async def test_d6_cut_before_that_entry_the_end_is_still_open(stage: MakeStage) -> None:
    """The owner dies after the step, before it looked: the next one decides how the step ended."""
    world = stage(CALL, T("two"))
    await world.say("m1")
    await world.die(Hooks.killing(after="result"))
    await world.say("m2")
    await world.revive()
    told = await world.told()
    assert told[4:8] == ["tool-error", "data-user-message", "step-finish", "step-start"]
