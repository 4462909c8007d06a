"""Step (docs/protocols.md E). E5 and `on_interrupt` are of things not built yet."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from shared.core.entries import Result
from shared.core.limits import DRAIN_BYTES, DRAIN_COMMITS, DRAIN_ITEMS
from shared.core.model import AssistantMessage, ToolMessage, UserMessage
from shared.core.tool import ToolContext, tool
from shared.ports import ABSENT, Put
from tests.apps.script import C, T
from tests.contract.faults import Fault
from tests.crash.world import RESOURCE, THREAD
from tests.protocol.making import item
from tests.protocol.stage import OTHER, PERSIST, Hooks, P, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.model import Message
    from shared.core.tool import Tool
    from tests.protocol.conftest import MakeStage

pytestmark = pytest.mark.anyio

CALL = C(("c1", "none", {}))
PAIR = C(("c1", "act", {"n": 1}), ("c2", "act", {"n": 2}))


async def drained(world: Stage, *, before_call: int) -> list[tuple[str, int]]:
    """The drains, with what each took, between the model call before and this one."""
    found: list[tuple[str, int]] = []
    calls = 0
    for entry in await world.journal():
        calls += entry.kind == "model"
        if entry.kind in ("signals", "note") and calls == before_call:
            found.append((entry.kind, len(getattr(entry, "signals", []))))
    return found


async def test_e1_a_drain_has_at_most_thirty_items_in_a_commit(stage: MakeStage) -> None:
    world = stage(CALL, T("done"))
    await world.say("m0")

    async def many(_: object) -> None:
        for n in range(DRAIN_ITEMS + 1):
            await world.say(f"m{n + 1:03}")

    await world.settle(Hooks(before={"model": many}))
    assert await drained(world, before_call=1) == [("signals", DRAIN_ITEMS), ("signals", 1)]


async def test_e1_a_drain_has_at_most_one_megabyte_in_a_commit(stage: MakeStage) -> None:
    world = stage(CALL, T("done"))
    await world.say("m0")
    sizes = [DRAIN_BYTES * 2, 400_000, 400_000, 400_000]

    async def large(_: object) -> None:
        for n, size in enumerate(sizes):
            await world.say(f"m{n + 1}", "x" * size)

    await world.settle(Hooks(before={"model": large}))
    assert await drained(world, before_call=1) == [("signals", n) for n in (1, 2, 1)]


@pytest.mark.parametrize("kind", ["signals", "note"])
async def test_e1_at_most_five_commits_before_the_model_call(stage: MakeStage, kind: str) -> None:
    """Whoever writes without end cannot keep the run from its next call."""
    world = stage(CALL, T("done"), T("more"), T("more"), T("more"))
    await world.say("m0")
    behaviour = PERSIST if kind == "note" else None

    async def too_many(_: object) -> None:
        for n in range(DRAIN_ITEMS * (DRAIN_COMMITS + 2)):
            await world.say(f"m{n + 1:03}", behaviour=behaviour)

    await world.settle(Hooks(before={"model": too_many}))
    assert await drained(world, before_call=1) == [(kind, DRAIN_ITEMS)] * DRAIN_COMMITS
    receipts = await world.receipts()
    assert set(list(receipts.values())[1:]) == {"persisted" if kind == "note" else "delivered"}
    assert await world.inbox() == []


async def test_e1_a_drain_takes_what_came_for_a_run_that_is_over(stage: MakeStage) -> None:
    """The sender read the first run, and commits when the second one runs already."""
    world = stage(T("one"), CALL, T("two"))
    await world.say("m1")
    first = await world.active()
    assert first
    await world.settle()
    await world.say("m2")

    async def comes(_: object) -> None:
        await land(world, "late", first.run)

    await world.settle(Hooks(before={"model": comes}))
    assert await world.kinds() == [
        *("input", "model", "finish"),
        *("input", "model", "result", "signals", "model", "finish"),
    ]
    assert await world.receipts() == dict.fromkeys(["m1", "m2"], "delivered")
    assert await world.inbox() == []


async def land(world: Stage, id: str, run: str, agent: str = "agent") -> None:
    """Put an inbox item of a sender that read the thread long ago."""
    body = item("deliver", run, id, agent=agent, thread=THREAD, resource=RESOURCE)
    body = body.model_copy(update={"receipt": None})
    await world.table.commit([Put(P, f"IN#1#{id}", body.body(), ABSENT)])


async def test_e1_a_drain_takes_nothing_that_was_sent_to_another_agent(stage: MakeStage) -> None:
    """The late signal was for the other agent's run; this agent must not answer it."""
    world = stage(CALL, T("mine"))
    other = await world.say("m1", agent=OTHER)
    await world.settle()
    await world.say("m2")

    async def comes(_: object) -> None:
        await land(world, "late", other.run, OTHER)

    await world.settle(Hooks(before={"model": comes}))
    await world.heal()
    runs = [entry for entry in await world.journal() if entry.kind == "input"]
    assert [getattr(entry, "agent", "") for entry in runs] == [OTHER, "agent", OTHER]


async def test_e1_a_drain_takes_nothing_of_a_prepared_run(stage: MakeStage) -> None:
    world = stage(CALL, T("one"), T("two"))
    await world.say("m1")

    async def queued(_: object) -> None:
        next_one = await world.say("m2", queue=True)
        await land(world, "for-m2", next_one.run)

    await world.settle(Hooks(before={"model": queued}))
    assert await world.kinds() == [
        *("input", "model", "result", "model", "finish"),
        *("input", "model", "finish"),
    ]
    last = [e for e in await world.journal() if e.kind == "input"][-1]
    assert [s["id"] for s in getattr(last, "signals", [])] == ["m2", "for-m2"]


async def test_e1_a_cancel_counts_before_what_waits(stage: MakeStage) -> None:
    world = stage(CALL, T("of m2"))
    await world.say("m1")

    async def both(_: object) -> None:
        await world.say("m2")
        await world.outside.accept.abort(THREAD, RESOURCE)

    await world.settle(Hooks(after={"result": both}))
    assert [t for t in await world.told() if t in ("abort", "finish")] == ["abort", "finish"]
    assert await world.kinds() == [
        *("input", "model", "result", "finish"),
        *("input", "model", "finish"),
    ]


def roles(messages: Sequence[Message]) -> list[str]:
    names = {UserMessage: "user", AssistantMessage: "assistant", ToolMessage: "tool"}
    return [names[type(message)] for message in messages]


def acting(ran: list[str]) -> Tool:
    @tool
    async def act(n: int, ctx: ToolContext) -> int:
        ran.append(ctx.idempotency_key)
        return n

    return act


async def test_e2_each_signal_is_its_own_message_after_all_results(stage: MakeStage) -> None:
    world = stage(PAIR, T("done"), tools=[acting([])])
    await world.say("m1", "go")

    async def between(_: object) -> None:
        await world.say("m2", "also")
        await world.say("m3", "and this")

    await world.settle(Hooks(after={"result": between}))  # after the first of the two results
    messages = world.model.requests[1].messages
    assert roles(messages) == ["user", "assistant", "tool", "user", "user"]
    assert [m.text for m in messages if isinstance(m, UserMessage)] == ["go", "also", "and this"]


async def test_e2_a_keep_is_stored_and_shown_from_the_next_run_on(stage: MakeStage) -> None:
    world = stage(CALL, T("one"), T("two"))
    await world.say("m1", "go")

    async def keep(_: object) -> None:
        await world.say("k1", "kept", behaviour=PERSIST)

    await world.settle(Hooks(after={"result": keep}))
    assert "note" in await world.kinds()
    await world.say("m2", "next")
    await world.settle()
    texts = [
        [m.text for m in r.messages if isinstance(m, UserMessage)] for r in world.model.requests
    ]
    assert texts == [["go"], ["go"], ["go", "kept", "next"]]
    assert await world.counts_its_rows()


async def test_e3_an_answer_is_stored_before_its_tools_run(stage: MakeStage) -> None:
    ran: list[str] = []
    world = stage(PAIR, T("done"), tools=[acting(ran)])
    await world.say("m1")
    seen: list[int] = []

    async def look(_: object) -> None:
        seen.append(len(ran))

    await world.settle(Hooks(before={"model": look}, after={"model": look}))
    assert seen == [0, 0]
    assert len(ran) == 2


async def test_e3_each_result_is_its_own_entry_and_told_once_it_is_stored(stage: MakeStage) -> None:
    world = stage(PAIR, T("done"), tools=[acting([])])
    await world.say("m1")
    told: list[int] = []

    async def look(_: object) -> None:
        await asyncio.sleep(0)
        told.append((await world.told()).count("tool-result"))

    await world.settle(Hooks(before={"result": look}))
    assert told == [0]
    assert await world.kinds() == ["input", "model", "result", "result", "model", "finish"]
    assert (await world.told()).count("tool-result") == 2


@pytest.mark.parametrize("when", ["before", "after"])
async def test_e4_a_finished_call_never_runs_again_and_a_cut_one_with_the_same_key(
    stage: MakeStage, when: str
) -> None:
    """Killed around the commit of the first result: the second one has none yet."""
    ran: list[str] = []
    world = stage(PAIR, T("done"), tools=[acting(ran)])
    sent = await world.say("m1")
    await world.die(Hooks.killing(**{when: "result"}))
    await world.revive()
    results = [e.call_id for e in await world.journal() if isinstance(e, Result)]
    assert sorted(results) == ["c1", "c2"]
    again = results if when == "before" else results[1:]  # the first one that was stored is done
    assert sorted(ran) == sorted(f"{sent.run}:0:{id}" for id in ["c1", "c2", *again])
    assert world.model.played == {0: 1, 1: 1}


async def test_e4_a_model_call_is_made_again_only_if_its_answer_was_not_stored(
    stage: MakeStage,
) -> None:
    world = stage(PAIR, T("done"), tools=[acting([])])
    await world.say("m1")
    await world.die(Hooks({("commit", 2): Fault.KILL_AFTER}))
    await world.revive()
    assert world.model.played == {0: 1, 1: 1}


async def test_e4_sync_tools_run_in_threads_of_their_own(stage: MakeStage) -> None:
    where: list[bool] = []
    together = threading.Barrier(2, timeout=10)

    @tool
    def act(n: int) -> int:
        together.wait()  # both are at work at the same time
        where.append(threading.current_thread() is threading.main_thread())
        return n

    world = stage(PAIR, T("done"), tools=[act])
    await world.say("m1")
    await world.settle()
    assert where == [False, False]
    assert (await world.told()).count("tool-result") == 2
