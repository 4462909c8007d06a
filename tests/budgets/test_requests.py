"""How many requests each thing costs, counted at the ports (`docs/design.md` section 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.core import keys
from shared.services.accept import Behaviour
from tests.budgets.stand import Stand, Steps
from tests.crash.world import RESOURCE, THREAD

if TYPE_CHECKING:
    from pathlib import Path

    from shared.core.tool import ToolContext

P = keys.partition(THREAD, 1)
HOUR = 3_600_000


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path / "stand")


# ---- accept ----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["new", "idle", "active"])
@pytest.mark.parametrize("queue", [False, True], ids=["send", "queue"])
async def test_an_accept_is_two_reads_in_parallel_a_commit_and_a_wake_up(
    stand: Stand, state: str, queue: bool
) -> None:
    if state != "new":
        await stand.say("before")
    if state == "idle":
        await stand.settle()
    stand.trace.take()
    await stand.say("m1", process=stand.counted, queue=queue, keys=["k1", "k2"])
    used = stand.trace.take()
    assert used.over(get=2, commit=1, send=1) == []
    assert used.widest == 2


async def test_an_accept_that_names_a_run_reads_once_more(stand: Stand) -> None:
    run = (await stand.say("before")).run
    await stand.say("m1", process=stand.counted, run=run)
    assert stand.trace.take().over(get=3, commit=1, send=1) == []


@pytest.mark.parametrize("what", ["persist", "discard"])
async def test_what_wakes_nobody_costs_no_more(stand: Stand, what: str) -> None:
    behaviour = Behaviour(if_idle=what)  # type: ignore[arg-type]
    await stand.say("m1", process=stand.counted, behaviour=behaviour)
    sends = 1 if what == "persist" else 0
    assert stand.trace.take().over(get=2, commit=1, send=sends) == []


async def test_a_repeat_is_told_by_its_commit(stand: Stand) -> None:
    for _ in range(2):
        stand.trace.take()
        await stand.say("m1", process=stand.counted, keys=["k1"])
        assert stand.trace.take().over(get=2, commit=1, send=1) == []


async def test_a_cancel_asks_the_coordinator_once(stand: Stand) -> None:
    await stand.say("m1")
    assert await stand.counted.accept.abort(THREAD, RESOURCE)
    assert stand.trace.take().over(get=2, put=1, send=1, ask_to_stop=1) == []


# ---- wake-ups --------------------------------------------------------------------------------

LEASE_AND_LAST = {"acquire": 1, "last": 1}
START = {**LEASE_AND_LAST, "get": 2, "query": 2, "commit": 1}
CONTINUE = {**LEASE_AND_LAST, "get": 2, "query": 3, "put": 1}


async def test_a_wake_up_that_starts_the_first_run(stand: Stand) -> None:
    used = (await stand.run()).upto("model")
    assert used.over(**START) == []


@pytest.mark.parametrize("runs", [1, 4, 10])
@pytest.mark.parametrize("steps", [0, 1, 4])
async def test_a_wake_up_that_starts_a_run_after_others(
    tmp_path: Path, runs: int, steps: int
) -> None:
    """The last 10 messages are those of 5 turns; a turn of 4 tool steps is nothing rare."""
    stand = Stand(tmp_path / "stand", Steps(steps))
    for number in range(runs):
        await stand.run(f"m{number}")
    used = (await stand.run("last")).upto("model")
    assert used.over(**START) == []


async def test_a_wake_up_that_continues_a_run(tmp_path: Path) -> None:
    stand = Stand(tmp_path / "stand", Steps(steps=6), settings={"slice_steps": 3})
    await stand.say("m1")
    await stand.one()
    used = (await stand.one()).upto("model")
    assert used.over(**CONTINUE) == []


async def test_a_hand_over_is_a_release_and_a_wake_up(tmp_path: Path) -> None:
    stand = Stand(tmp_path / "stand", Steps(steps=6), settings={"slice_steps": 3})
    await stand.say("m1")
    used = (await stand.one()).after("put result")
    assert used.over(query=1, release=1, send=1) == []


async def test_a_wake_up_for_nothing(stand: Stand) -> None:
    """A doubled wake-up finds the thread idle."""
    await stand.run()
    await stand.say("m2")
    wake = (await stand.queue.receive(limit=1, wait=0, hold=0))[0].wake
    await stand.settle()
    await stand.counted.advance.advance(wake)
    used = stand.trace.take()
    assert used.over(**LEASE_AND_LAST, get=1, query=3, release=1) == []


async def test_a_wake_up_that_finds_an_owner_looks_for_a_cancel_and_goes(stand: Stand) -> None:
    await stand.say("m1")
    assert await stand.coordinator.acquire(P, "somebody", 60_000)
    assert (await stand.one()).over(acquire=1, query=1) == []


# ---- steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [1, 2, 5])
async def test_a_step_with_k_tool_calls_is_a_query_and_1_plus_k_puts(
    tmp_path: Path, calls: int
) -> None:
    stand = Stand(tmp_path / "stand", Steps(steps=4, calls=calls))
    steps = (await stand.run()).between("model")
    assert [step.counts() for step in steps] == [{"query": 1, "put": 1 + calls}] * 4


async def test_a_plain_step_is_a_query_and_a_put(tmp_path: Path) -> None:
    """A message comes while the model speaks: its own commit, and the step as any other."""
    spoken = Steps()
    busy = Stand(tmp_path / "stand", spoken)
    said = iter(["m2", "m3", "m4"])

    async def speak() -> None:
        more = next(said, None)
        if more:
            await busy.say(more)

    spoken.while_speaking = speak
    steps = (await busy.run()).between("model")
    assert [step.counts() for step in steps] == [{"put": 1, "query": 1, "commit": 1}] * 3


@pytest.mark.parametrize(("waiting", "commits"), [(1, 1), (30, 1), (31, 2), (65, 3)])
async def test_drained_signals_are_one_commit_per_30(
    tmp_path: Path, waiting: int, commits: int
) -> None:
    async def act(ctx: ToolContext) -> str:
        for number in range(waiting):
            await busy.say(f"{ctx.call_id}-{number}")
        return "sent"

    busy = Stand(tmp_path / "stand", Steps(steps=1), act=act)
    await busy.say("m1")
    step = (await busy.one()).between("model")[0]
    assert step.counts() == {"put": 2, "query": commits, "commit": commits}


# ---- the end ---------------------------------------------------------------------------------


async def test_a_finish_is_two_queries_a_commit_and_a_put(stand: Stand) -> None:
    used = (await stand.run()).after("put model")
    assert used.over(query=2, commit=1, put=1, release=1) == []


async def test_a_finish_with_an_heir_starts_it_at_once(stand: Stand) -> None:
    """What is between two runs: the finish of the one, and the start of the other."""
    await stand.say("m1")
    await stand.say("m2", queue=True)
    used = (await stand.one()).between("model")[0].after("put model")
    # a drain, the finish's commit; ACTIVE and RUN, inbox and history, the start's commit
    assert used.over(query=3, get=2, commit=2) == []


async def test_an_idle_thread_costs_nothing(stand: Stand) -> None:
    await stand.run()
    await stand.recover()
    stand.trace.take()
    for _ in range(3):
        stand.clock.advance(HOUR)
        await stand.counted.recover.tick()
        used = stand.trace.take()
        assert used.over(index=2 * keys.SHARDS + 1) == []
        assert used.read == 0


async def test_an_item_that_waits_is_put_about_once_an_hour(stand: Stand) -> None:
    """It waits for a lease that somebody holds for long: the pauses double up to an hour."""
    await stand.say("m1")
    assert await stand.coordinator.acquire(P, "somebody", 100 * HOUR)
    await stand.one()
    puts = []
    for _ in range(10):
        for _ in range(60):
            stand.clock.advance(60_000)
            await stand.counted.recover.tick()
        used = stand.trace.take()
        assert used.count("send") == 0
        puts.append(used.count("put"))
    assert puts[0] <= 8
    assert set(puts[2:]) <= {1}
