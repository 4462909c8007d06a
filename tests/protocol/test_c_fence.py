"""Journal and fence (docs/protocols.md C)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from shared.core import keys
from shared.core.tool import ToolContext, tool
from shared.ports import Check, Delete, Put
from tests.apps.script import HANG, SE, C, Gate, T, Tries
from tests.contract.faults import Fault, Faults, FaultyCoordinator
from tests.crash.world import SETTINGS, THREAD
from tests.protocol.stage import PERSIST, WAKE, Deaf, Hooks, Lying, P, Stage, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.ports import Write
    from tests.protocol.conftest import MakeStage

pytestmark = pytest.mark.anyio

FOUR = [(f"c{n}", "act", {"n": n}) for n in range(4)]


async def test_c1_one_put_is_in_flight_and_parallel_results_queue_for_it(stage: MakeStage) -> None:
    @tool
    async def act(n: int) -> int:
        return n

    world = stage(C(*FOUR), T("done"), tools=[act])
    await world.say("m1")
    flying, most = [0], [0]
    hooks = Hooks()
    process = world.process(hooks)
    table = process.backend.table
    real = table.commit

    async def slow(writes: Sequence[Write]) -> None:
        flying[0] += 1
        most[0] = max(most[0], flying[0])
        for _ in range(5):
            await asyncio.sleep(0)
        await real(writes)
        flying[0] -= 1

    table.commit = slow  # type: ignore[method-assign]
    async with world.time_passes():
        await process.advance.advance(WAKE)
    assert most == [1]
    sorts = [item.sort for item in await world.table.query(P, "STEP#")]
    places = [keys.start_and_position(sort)[1] for sort in sorts]
    assert places == list(range(8))
    steps = [[w for w in c if w.sort.startswith("STEP#")] for c in hooks.commits]
    assert all(w.expect == "absent" for step in steps for w in step)
    assert max(map(len, steps)) == 1


@pytest.mark.parametrize("coordinator", [Deaf, Lying])
@pytest.mark.parametrize("turn", [T("late words"), C(("c1", "none", {}))], ids=["text", "call"])
async def test_c2_a_frozen_owner_writes_nothing(
    stage: MakeStage, coordinator: type[FaultyCoordinator], turn: T | C
) -> None:
    """It thaws after the takeover, with a clock that tells it that its lease is good.

    `Deaf`: the fence of the log stops it. `Lying`: even the Coordinator says that it is the owner.
    """
    gate = Gate()
    world = stage(Tries(HANG(gate, turn, before="half"), T("the answer")), T("next"))
    await world.say("m1")
    hooks = Hooks()
    frozen = world.frozen(hooks, coordinator)
    task = asyncio.create_task(frozen.advance.advance(WAKE))
    await gate.reached.wait()
    await world.revive()
    assert (await world.kinds())[-1] == "finish"
    before, count = world.everything(), len(hooks.commits)
    gate.open()
    await task
    assert world.everything() == before
    assert [kind_of(writes) for writes in hooks.commits[count:]] in ([], ["model"])


async def test_c2_a_frozen_owner_tells_nothing(stage: MakeStage) -> None:
    """The new owner has claimed and told nothing yet: no id in the log stops the old one's events.

    It is the fence that does.
    """
    gate = Gate()
    world = stage(HANG(gate, T("late words"), before="half"))
    await world.say("m1")
    frozen = world.frozen(Hooks(), Deaf)
    task = asyncio.create_task(frozen.advance.advance(WAKE))
    await gate.reached.wait()
    world.clock.advance(SETTINGS.lease + 1)
    await world.die_in_other(world.process(Hooks.killing(after="claim")))
    before = world.everything()
    gate.open()
    await task
    assert world.everything() == before


async def test_c2_an_owner_that_lost_stops_at_the_first_put(stage: MakeStage) -> None:
    """Another owner's entry stands at its position: no tool runs, and nothing more is tried."""
    ran: list[str] = []

    @tool
    async def act(n: int) -> int:
        ran.append("tool")
        return n

    world = stage(C(*FOUR), T("done"), tools=[act])
    await world.say("m1")

    async def taken_over(_: object) -> None:
        other = world.process(Hooks.killing(after="claim"))
        world.clock.advance(SETTINGS.lease + 1)
        await world.die_in_other(other)

    hooks = Hooks(before={"model": taken_over})
    process = world.frozen(hooks, Lying)
    await process.advance.advance(WAKE)
    assert await world.kinds() == ["input", "claim"]
    assert ran == []
    assert [kind_of(writes) for writes in hooks.commits] == ["input", "model"]


async def test_c2_its_own_nonce_is_a_success(stage: MakeStage) -> None:
    """Each entry's put is applied, but its reply is lost."""

    @tool
    async def act(n: int) -> int:
        return n

    world = stage(C(*FOUR), T("done"), tools=[act])
    await world.say("m1")
    await world.settle(Faults({("commit", n): Fault.CUT for n in range(1, 20)}))
    results = ["result"] * 4
    assert await world.kinds() == ["input", "model", *results, "model", "finish"]
    assert (await world.told())[-1] == "finish"


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.CONFLICT])
async def test_c2_other_failures_are_read_again_and_repeated(
    stage: MakeStage, fault: Fault
) -> None:
    world = stage(T("one"), T("two"))
    await world.say("m1")

    async def more(_: object) -> None:
        await world.say("m2")

    hooks = Hooks({("commit", n): fault for n in (2, 4, 6)}, before={"model": more})
    await world.settle(hooks)
    kinds = [kind for kind in await world.kinds() if kind != "claim"]  # it may start anew
    assert kinds == ["input", "model", "signals", "model", "finish"]
    assert await world.receipts() == {"m1": "delivered", "m2": "delivered"}


@pytest.mark.parametrize("gone", ["RUN", "ACTIVE", "other"])
async def test_c2_a_run_whose_records_are_gone_is_lost(stage: MakeStage, gone: str) -> None:
    world = stage(T("one"))
    sent = await world.say("m1")

    async def vanish(_: object) -> None:
        if gone == "other":
            active = await world.one(keys.ACTIVE)
            await world.table.commit([Put(P, keys.ACTIVE, {**active.body, "run": "another"})])
        else:
            partition = P if gone == "ACTIVE" else keys.run(sent.run)
            await world.table.commit([Delete(partition, gone)])

    await world.settle(Hooks(before={"finish": vanish}))
    assert await world.kinds() == ["input", "model"]
    assert "finish" not in await world.told()


async def test_c2_a_put_that_lands_late_is_not_taken_for_a_later_one(stage: MakeStage) -> None:
    """No answer to a put; the next one, with one signal more, meets it: what is stored counts."""
    world = stage(T("one"), T("two"), T("three"))
    await world.say("m1")
    first: list[Sequence[Write]] = []

    async def more(_: object) -> None:
        await world.say("m2")

    async def remember(writes: Sequence[Write]) -> None:
        first.append(writes)
        await world.say("m3")

    async def lands() -> None:
        await world.table.commit(first[0])

    # commit 3 takes m2 and gets no answer; commit 4 would take m2 and m3.
    plan: dict[Any, Any] = {("commit", 3): Fault.REFUSED, ("commit", 4): lands}
    await world.settle(Hooks(plan, before={"model": more, "signals": remember}))
    await world.heal()
    shown = [text for text in (await world.prompts())[-1]]
    assert await world.receipts() == dict.fromkeys(["m1", "m2", "m3"], "delivered")
    told = [c["data"]["id"] for c in await world.chunks() if c["type"] == "data-user-message"]
    assert sorted(told) == ["m1", "m2", "m3"]
    assert shown


async def test_c3_no_tool_starts_once_the_lease_ran_out(stage: MakeStage) -> None:
    """The second call waits for the first one, during which the process froze."""
    ran: list[int] = []
    box: list[Stage] = []

    @tool
    async def act(n: int) -> int:
        ran.append(n)
        if n == 0:
            box[0].clock.advance(SETTINGS.lease + 1)
        return n

    world = stage(C(*FOUR[:2]), T("done"), tools=[act], concurrency=1)
    box.append(world)
    await world.say("m1")
    hooks = Hooks()
    process = world.process(hooks)
    process.backend.coordinator.renew = lambda lease, ttl: None  # type: ignore[method-assign]
    async with world.time_passes():
        await process.advance.advance(WAKE)
    assert ran == [0]


async def test_c3_a_tool_waits_for_every_earlier_put(stage: MakeStage) -> None:
    """With one call at a time, the second one starts after the first one's result is stored."""
    seen: list[list[str]] = []
    box: list[Stage] = []

    @tool
    async def act(n: int) -> int:
        seen.append(await box[0].kinds())
        return n

    world = stage(C(*FOUR[:2]), T("done"), tools=[act], concurrency=1)
    box.append(world)
    await world.say("m1")
    await world.settle()
    assert seen == [["input", "model"], ["input", "model", "result"]]


async def test_c3_no_model_call_starts_once_the_lease_ran_out(stage: MakeStage) -> None:
    """The first call broke, and during the pause before the next one the process froze."""
    world = stage(Tries(SE("half"), T("done")))
    await world.say("m1")
    process = world.process()
    process.backend.coordinator.renew = lambda lease, ttl: None  # type: ignore[method-assign]
    task = asyncio.create_task(process.advance.advance(WAKE))
    for _ in range(1_000):
        await asyncio.sleep(0)
        if world.clock.sleepers:
            break
    world.clock.advance(SETTINGS.lease + 1)
    await task
    assert world.model.played == {0: 1}


async def test_c3_a_model_call_waits_for_the_put_before_it(stage: MakeStage) -> None:
    seen: list[int] = []
    world = stage(T("done"))
    await world.say("m1")

    async def before(_: object) -> None:
        seen.append(len(world.model.requests))

    await world.settle(Hooks(before={"input": before}, after={"input": before}))
    assert seen == [0, 0]
    assert len(world.model.requests) == 1


async def test_c4_what_is_fenced_is_written_with_a_version(stage: MakeStage) -> None:
    """RUN, IN, SIG and ACTIVE, by everybody: accept, owners, ticks, cancels."""

    @tool
    async def act(ctx: ToolContext) -> str:
        return ctx.run

    world, hooks = stage(C(("c1", "act", {})), T("one"), T("two"), T("three"), tools=[act]), Hooks()
    process = world.process(hooks)

    async def more(_: object) -> None:
        await world.say("m2", via=process)
        await world.say("m3", via=process, queue=True)
        await world.say("k1", via=process, behaviour=PERSIST)

    hooks.actions["before", "model"] = more
    await world.say("m1", via=process)
    async with world.time_passes():
        await world.work(process)
    await world.say("m4", via=process)
    assert await process.accept.abort(THREAD, None)
    world.clock.advance(SETTINGS.tick)
    assert await world.coordinator.acquire(P, "another", SETTINGS.tick)
    await process.recover.tick()
    writes = [write for commit in hooks.commits for write in commit]
    fenced = [w for w in writes if w.sort.split("#")[0] in ("RUN", "IN", "SIG", "ACTIVE", "STEP")]
    assert {type(write) for write in fenced} == {Put, Delete, Check}
    assert [write for write in fenced if write.expect is None] == []


async def test_c4_the_inbox_is_read_before_the_journal(stage: MakeStage) -> None:
    """A dead owner's put lands between the two reads: one that takes a kept signal.

    Read the other way round, the note is neither in the inbox nor in the journal that the next
    run is built on: its rows are counted wrongly, and its prompt lacks the note.
    """
    world = stage(T("one"))
    await world.say("k1", "kept", behaviour=PERSIST)
    await world.say("m1", "go")
    late: list[Sequence[Write]] = []
    dead = Hooks()

    async def cut(writes: Sequence[Write]) -> None:
        late.append(writes)
        await dead.kill()

    dead.actions["before", "note"] = cut
    await world.die(dead)

    async def lands(_: object) -> None:
        await world.table.commit(late[0])

    hooks = Hooks()
    hooks.actions["query", keys.INBOX_PREFIX] = lands
    await world.revive(hooks)
    await world.heal()
    assert await world.kinds() == ["note", "input", "model", "finish"]
    assert await world.counts_its_rows()
    assert await world.prompts() == [["kept", "go"]]
