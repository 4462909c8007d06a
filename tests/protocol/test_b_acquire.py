"""Acquire, start, let go (docs/protocols.md B)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.core import keys
from shared.core.entries import Input, Note
from shared.core.errors import Unavailable
from shared.core.limits import DRAIN_ITEMS, MAX_CLAIMS
from shared.core.records import Active, InboxItem
from shared.ports import ABSENT, Put
from shared.services.accept import Behaviour
from shared.services.journal import PAGE
from tests.apps.script import HANG, C, Gate, T
from tests.contract.faults import Fault, Faults
from tests.crash.world import RESOURCE, SETTINGS, THREAD
from tests.protocol.making import record
from tests.protocol.stage import AGENT, OTHER, PERSIST, WAKE, Hooks, P, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.bootstrap import System
    from shared.ports import Write
    from tests.protocol.conftest import MakeStage

pytestmark = pytest.mark.anyio

REPLY = ["start", "data-user-message", "step-start", "step-finish", "finish"]


async def run_of(world: Stage, id: str) -> str:
    return str((await world.one(keys.receipt(id))).body["run"])


async def test_b1_no_lease_no_work(stage: MakeStage) -> None:
    """No answer from the Coordinator: nothing is read or written, and it is tried again later."""
    world, faults = stage(T("hi")), Faults({("acquire", 1): Fault.REFUSED})
    await world.say("m1")
    before = world.everything()
    await world.process(faults).advance.advance(WAKE)
    assert faults.calls == ["acquire", "send"]
    assert world.everything() == before
    assert [due - world.clock.now() for due, _ in world.wakes()] == [0, 2_000]


async def test_b1_a_lease_whose_reply_was_lost_is_not_used(stage: MakeStage) -> None:
    world, faults = stage(T("hi")), Faults({("acquire", 1): Fault.CUT})
    await world.say("m1")
    await world.process(faults).advance.advance(WAKE)
    assert faults.calls == ["acquire", "send"]
    await world.heal()
    assert await world.told() == REPLY


async def test_b1_a_wake_up_is_dropped_while_another_holds_the_lease(stage: MakeStage) -> None:
    world, faults = stage(T("hi")), Faults()
    await world.say("m1")
    assert await world.coordinator.acquire(P, "another", SETTINGS.lease)
    before = world.everything()
    await world.process(faults).advance.advance(WAKE)
    assert set(faults.calls) <= {"acquire", "query", "get"}  # a cancel may wait there (A9)
    assert world.everything() == before


async def test_b1_each_acquisition_has_its_own_token_and_a_higher_fence(stage: MakeStage) -> None:
    world, seen = stage(), list[tuple[str, int]]()

    async def look() -> None:
        seen.extend(world.database.rows("SELECT token, fence FROM logs"))

    process = world.process(Faults({("query", 1): look, ("query", 4): look}))
    for _ in range(2):
        await process.advance.advance(WAKE)
    assert len(seen) == len({token for token, _ in seen}) == 2
    assert seen[0][1] < seen[1][1]


async def test_b2_tells_before_it_starts(stage: MakeStage) -> None:
    """A finish was committed but not told; the next run waits until the log has it."""
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.say("m2", queue=True)
    await world.die(Hooks.killing(after="finish"))
    assert await world.told() == REPLY[:-2]
    hooks = Hooks()
    await world.revive(hooks)
    assert hooks.calls.index("append") < hooks.calls.index("commit")
    assert await world.told() == [*REPLY, *REPLY]


async def test_b2_starts_nothing_while_the_log_does_not_answer(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.say("m2", queue=True)
    await world.die(Hooks.killing(after="finish"))
    before = await world.kinds()

    async def no_answer() -> None:
        world.clock.advance(SETTINGS.lease + 1)
        raise Unavailable("injected")

    await world.revive(Faults({("append", n): no_answer for n in range(1, 9)}))
    assert await world.kinds() == before
    await world.heal()
    assert await world.told() == [*REPLY, *REPLY]


async def test_b2_tells_a_kept_signal_before_it_starts_the_next_run(stage: MakeStage) -> None:
    """Two kept signals and a run's input are committed in one go, before the log has any."""
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.settle()
    await world.say("k1", behaviour=PERSIST)
    await world.say("k2", behaviour=PERSIST)
    await world.say("m2")
    refused = {("append", n): Fault.REFUSED for n in range(1, 9)}
    await world.die(Hooks.killing(after="input", plan=refused))
    assert (await world.kinds())[3:] == ["note", "note", "input"]
    await world.revive()
    note = ["start", "data-user-message", "finish"]
    assert await world.told() == [*REPLY, *note, *note, *REPLY]


async def test_b3_a_reserved_or_idle_thread_starts_anything(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.say("m2", queue=True)
    assert (await world.active_status()) == "reserved"
    await world.settle()
    assert await world.kinds() == ["input", "model", "finish"] * 2
    assert (await world.active_status()) is None


async def test_b3_a_running_run_is_claimed_and_nothing_else_started(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.die(Hooks.killing(after="input"))
    await world.say("m2", queue=True)
    hooks = Hooks()
    await world.revive(hooks)
    assert (await world.kinds())[:4] == ["input", "claim", "model", "finish"]


async def test_b3_a_suspended_thread_starts_nothing(stage: MakeStage) -> None:
    world = stage(T("one"))
    sent = await world.say("m1")
    suspended = Active(run=sent.run, agent=AGENT, status="suspended", start=1)
    await world.table.commit([Put(P, keys.ACTIVE, suspended.body())])
    before = world.everything()
    hooks = Hooks()
    await world.settle(hooks)
    assert (world.everything(), world.wakes()) == (before, [])


async def test_b4_a_takeover_writes_a_claim_with_a_nonce_of_its_own(stage: MakeStage) -> None:
    world = stage(T("one"))
    await world.say("m1")
    await world.die(Hooks.killing(after="input"))
    await world.revive()
    stored = await world.journal()
    assert [entry.kind for entry in stored] == ["input", "claim", "model", "finish"]
    assert stored[0].nonce not in {entry.nonce for entry in stored[1:]}


async def test_b4_the_same_process_claims_what_it_began(stage: MakeStage) -> None:
    """Whatever a process remembers of a run, another may have had it in between."""
    world = stage(T("one"))
    await world.say("m1")
    process = world.process(Faults({("append", 1): Fault.REFUSED}))
    slice = process.advance.slice()
    slice.stopping = True
    async with world.time_passes():
        await process.advance.advance(WAKE, slice)
        await process.advance.advance(WAKE)
    assert await world.kinds() == ["input", "claim", "model", "finish"]


async def test_b4_five_claims_without_progress_fail_the_run(stage: MakeStage) -> None:
    world = stage(HANG(Gate()))
    sent = await world.say("m1")

    async def starves(process: System) -> None:
        world.clock.advance(SETTINGS.lease + 1)
        await process.advance.advance(WAKE)

    await world.die(Hooks.killing(after="input"))
    for _ in range(MAX_CLAIMS - 1):
        assert await world.die_in(Hooks.killing(after="claim"), starves)
    assert await world.status(sent.run) == "running"
    await world.revive()
    assert await world.kinds() == ["input", *["claim"] * MAX_CLAIMS, "finish"]
    head = (await world.head(sent.run)).body
    assert (head["status"], head["error"]["name"]) == ("failed", "RecoveryExhausted")
    assert (await world.told())[-1] == "error"
    assert world.model.requests == []


async def test_b4_progress_between_claims_lets_the_run_go_on(stage: MakeStage) -> None:
    steps = MAX_CLAIMS + 2
    world = stage(*[C((f"c{n}", "none", {})) for n in range(steps)], T("done"))
    sent = await world.say("m1")

    async def one_step(process: System) -> None:
        world.clock.advance(SETTINGS.lease + 1)
        await process.advance.advance(WAKE)

    for _ in range(steps):
        async with world.time_passes():
            assert await world.die_in(Hooks.killing(after="result"), one_step)
    await world.revive()
    assert (await world.kinds()).count("claim") == steps
    assert await world.status(sent.run) == "completed"


async def test_b4_a_refused_claim_reads_again_and_tries_one_position_on(stage: MakeStage) -> None:
    """The dead owner's put was still on its way, and lands after the new owner read the journal."""
    world = stage(C(("c1", "none", {})), T("done"))
    await world.say("m1")
    late: list[Sequence[Write]] = []
    dead = Hooks()

    async def cut(writes: Sequence[Write]) -> None:
        late.append(writes)
        await dead.kill()

    dead.actions["before", "model"] = cut
    await world.die(dead)

    async def lands(_: object) -> None:
        await world.table.commit(late[0])

    await world.revive(Hooks(before={"claim": lands}))
    assert (await world.kinds())[:3] == ["input", "model", "claim"]
    assert (await world.kinds())[-1] == "finish"
    assert world.model.played == {0: 1, 1: 1}
    told = await world.told()  # what landed is told as well (B2)
    assert [told.count(type) for type in ("tool-call", "tool-error", "finish")] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["input", "claim"])
async def test_b4_starts_and_claims_need_a_lease_renewed_in_time(
    stage: MakeStage, kind: str
) -> None:
    """The process froze between its last read and the commit: by then the lease is another's."""
    world = stage(T("one"))
    await world.say("m1")
    if kind == "claim":
        await world.die(Hooks.killing(after="input"))
    before = await world.kinds()

    async def freeze() -> None:
        world.clock.advance(SETTINGS.lease + 1)

    # The last read before a start is of RUN, before a claim too.
    await world.revive(Faults({("get", 2): freeze}))
    assert await world.kinds() == before
    await world.heal()
    assert (await world.kinds())[-1] == "finish"


def put(world: Stage, cls: int, name: str, kind: str, run: str, **more: object) -> Put:
    """An inbox item of a run, as if it had come when its run was still there."""
    signal = {"id": name, "type": "user", "tag_name": "user", "contents": name, "created_at": 1}
    body = InboxItem.model_validate(
        {
            "kind": kind,
            "run": run,
            "agent": AGENT,
            "thread": THREAD,
            "resource": RESOURCE,
            "incarnation": 1,
            "accepted_at": world.clock.now(),
            "signal": None if kind == "cancel" else signal,
            **more,
        }
    )
    return Put(P, keys.inbox(cls, name), body.body(), ABSENT)


async def test_b5_the_order_of_taking(stage: MakeStage) -> None:
    """Cancels of over runs, keeps, signals of over runs (oldest first, together), owners."""
    world = stage(*[T(str(n)) for n in range(5)], max_steps=1)
    first = await world.say("m1")
    await world.settle()
    await world.say("q1")
    await world.say("q2", queue=True)
    await world.table.commit(
        [
            put(world, 0, "cancel#gone", "cancel", "gone"),
            put(world, 1, "0-a", "deliver", first.run),
            put(world, 1, "0-b", "deliver", "older"),
            put(world, 1, "0-c", "deliver", first.run),
            put(world, 1, "0-k", "keep", "gone"),
        ]
    )
    hooks = Hooks()
    await world.settle(hooks)
    runs = [
        [signal["id"] for signal in entry.signals]
        for entry in (await world.journal())[3:]
        if isinstance(entry, Input | Note)
    ]
    assert runs == [["0-k"], ["0-a", "0-c"], ["0-b"], ["q1"], ["q2"]]
    assert [write.sort for write in hooks.commits[0]] == ["IN#0#cancel#gone"]


async def test_b5_leftovers_run_with_the_agent_of_their_run(stage: MakeStage) -> None:
    world = stage(T("one"))
    await world.say("m1", agent=OTHER)

    async def late(_: object) -> None:
        await world.say("m2", agent=OTHER)

    await world.settle(Hooks(before={"finish": late}))
    assert [e.agent for e in await world.journal() if isinstance(e, Input)] == [OTHER, OTHER]


async def test_b5_leftovers_run_with_their_runs_options(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    await world.say("m1", behaviour=Behaviour(options={"instructions": "be brief"}))

    async def late(_: object) -> None:
        await world.say("m2")

    await world.settle(Hooks(before={"finish": late}))
    assert [r.instructions for r in world.model.requests] == ["be brief", "be brief"]


async def test_b5_a_start_takes_one_drains_worth(stage: MakeStage) -> None:
    world = stage(T("one"))
    for n in range(DRAIN_ITEMS + 5):
        await world.say(f"m{n:02}")
    await world.settle()
    taken = [len(e.signals) for e in await world.journal() if e.kind in ("input", "signals")]
    assert taken == [DRAIN_ITEMS, 5]
    assert len(world.model.requests) == 1


async def test_b5_a_keep_is_written_only_while_no_run_is_live(stage: MakeStage) -> None:
    """Its commit checks ACTIVE: another owner started a run after this one read the inbox."""
    world = stage(T("one"))
    await world.say("k1", behaviour=PERSIST)

    async def rival(_: object) -> None:
        await world.say("m1")

    await world.settle(Hooks(before={"note": rival}))
    stored = await world.journal()
    assert [entry.kind for entry in stored] == ["note", "input", "model", "finish"]
    assert await world.counts_its_rows()


async def test_b5_an_agent_that_is_gone_ends_as_a_failed_run(stage: MakeStage) -> None:
    world = stage(T("one"))
    await world.say("m1")
    sort = (await world.table.query(P, "IN#"))[0]
    await world.table.commit([Put(P, sort.sort, {**sort.body, "agent": "gone"})])
    behind = await world.say("m2", queue=True)
    await world.settle()
    assert [t for t in await world.told() if t in ("error", "finish")] == ["error", "finish"]
    assert (await world.head(await run_of(world, "m1"))).body["error"]["name"] == "AgentNotFound"
    assert await world.status(behind.run) == "completed"


async def test_b5_what_cannot_be_read_ends_as_a_failed_run(stage: MakeStage) -> None:
    """A signal that this version cannot read must not stop the thread for ever."""
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.say("m2", queue=True)
    item = (await world.table.query(P, "IN#"))[0]
    signal = {**item.body["signal"], "contents": None, "tag_name": None, "of a later version": 1}
    await world.table.commit([Put(P, item.sort, {**item.body, "signal": signal})])
    await world.settle()
    assert [t for t in await world.told() if t in ("error", "finish")] == ["error", "finish"]


async def test_b6_a_start_is_one_commit(stage: MakeStage) -> None:
    world, hooks = stage(T("one")), Hooks()
    sent = await world.say("m1")
    await world.say("m2")
    await world.die(hooks_dying_after(hooks, "input"))
    begins = [f"{type(w).__name__} {w.sort.split('#')[0]}" for w in hooks.commits[0]]
    assert sorted(begins) == sorted(
        ["Put STEP", "Put ACTIVE", "Put RUN", *["Delete IN", "Put SIG"] * 2]
    )
    active = await world.active()
    assert active
    assert (active.run, active.status) == (sent.run, "running")
    assert await world.status(sent.run) == "running"
    assert await world.receipts() == {"m1": "delivered", "m2": "delivered"}
    assert await world.inbox() == []
    assert [sort for sort, _ in await world.due("runs")] == [keys.RUN]


def hooks_dying_after(hooks: Hooks, kind: str) -> Hooks:
    hooks.actions["after", kind] = hooks.kill
    return hooks


async def test_b6_a_run_starts_before_its_history_is_loaded(stage: MakeStage) -> None:
    """A history that kills the worker is met as a run that was taken over too often."""
    world = stage(T("one"))
    sent = await world.say("m1")

    async def dies(process: System) -> None:
        world.clock.advance(SETTINGS.lease + 1)
        await process.advance.advance(WAKE)

    hooks = Hooks()
    started = hooks.calls

    async def history() -> None:
        assert started.count("commit") == 1
        await hooks.kill()

    # What reads history before the first call: the query after the start, or before the claim.
    world.app.agent(AGENT).last_messages = 500
    hooks.plan[("query", 3)] = history
    for number in range(PAGE + 5):  # make the thread longer than a page of history
        await world.table.commit(
            [Put(P, keys.step(1_000 + number, 0), _lone(number).body(), ABSENT)]
        )
    assert await world.die_in(hooks, dies)
    assert (await world.kinds())[-1] == "input"
    assert await world.status(sent.run) == "running"


def _lone(number: int) -> Note:
    return Note(
        run=f"n{number}",
        agent=AGENT,
        signals=[record(f"n{number}")],
        at=1_000 + number,
        rows=number + 1,
        k1=3,
    )


async def test_b7_releases_then_looks_at_the_inbox_once_more(stage: MakeStage) -> None:
    """A message comes after the last look; its wake-up finds the lease held and is dropped."""
    world = stage(T("one"), T("two"))
    await world.say("m1")

    async def comes() -> None:
        await world.say("m2")
        await world.work(world.process())
        assert len(await world.inbox()) == 1

    faults = Faults({("release", 1): comes})
    await world.work_once(faults)
    after = faults.calls[faults.calls.index("release") :]
    assert after.index("query") < after.index("send")
    await world.settle()
    assert await world.receipts() == {"m1": "delivered", "m2": "delivered"}
    assert await world.told() == [*REPLY, *REPLY]


async def test_b7_an_idle_thread_is_not_woken(stage: MakeStage) -> None:
    world, faults = stage(T("one")), Faults()
    await world.say("m1")
    await world.work_once(faults)
    assert "send" not in faults.calls
    assert world.wakes() == []


async def test_b7_the_lease_is_free_after_each_way_to_end(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.settle(Faults({("release", 1): Fault.REFUSED}))
    assert await world.coordinator.held(P)  # it runs out
    await world.heal()
    await world.say("m2")
    await world.settle()
    assert not await world.coordinator.held(P)
