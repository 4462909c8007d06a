"""Scenarios for durable runs: events, aborts, several runs of a thread, sizes."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from pydantic_core import to_json

from shared.settings import Settings
from tests.apps.script import HANG, C, E, Gate, T, Tries
from tests.contract.faults import Fault
from tests.crash.world import RESOURCE, THREAD
from tests.logs import text_of
from tests.scenarios.scene import OTHER, Life, P, Reader

if TYPE_CHECKING:
    from tests.scenarios.conftest import MakeScene

pytestmark = pytest.mark.anyio

# ---- events --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
async def test_c1_readers_that_come_at_any_time_get_each_word_once(
    scene: MakeScene, seed: int
) -> None:
    """Given a run of 200 deltas; when ten readers attach at random moments, while it goes on; then
    each has read the text exactly, and its indexes go up by one.
    """
    words = " ".join(f"w{n}" for n in range(200))
    world = scene(T(words))
    readers: list[Reader] = []
    async with AsyncExitStack() as stack:

        async def attach() -> None:
            reader = Reader(world.outside, "")
            readers.append(reader)
            stack.push_async_callback(reader.stop)

        for part in random.Random(seed).sample(range(190), 10):  # noqa: S311 - not a secret
            world.model.on[0, part] = attach
        await world.say("m1")
        await world.settle()
        assert len(readers) == 10
        for reader in readers:
            await reader.sees_end()
            assert text_of(reader.chunks) == words
            assert reader.indexes == list(range(len(reader.indexes)))
            assert reader.chunks == await world.chunks()


async def test_c3_a_late_observer_in_another_process_sees_the_earlier_events(
    scene: MakeScene,
) -> None:
    """Given a producer that has told ten events; when an observer attaches that shares nothing with
    it but the store; then it gets those ten, and then the rest.
    """
    gate = Gate()
    world = scene(T("one two three four five six seven eight nine ten"))
    world.model.on[0, 7] = gate.pass_through  # `start`, the message, `step-start`, and 7 parts
    await world.say("m1")
    producer = asyncio.create_task(world.settle())
    await gate.reached.wait()
    async with world.following(via=world.elsewhere()) as observer:
        await observer.sees(10)
        assert observer.indexes == list(range(10))
        gate.open()
        await producer
        await observer.sees_end()
        assert observer.chunks == await world.chunks()


async def test_c5_the_event_log_holds_what_readers_are_told_and_no_more(scene: MakeScene) -> None:
    """Given a run with ten tool results of 1 MB, and a Coordinator that loses a reply and does not
    answer another call; when it has run; then the log has at most twice the bytes of the chunks,
    each chunk once, and the run completed.
    """
    steps = [C((f"c{n}", "t1", {})) for n in range(10)]
    world = scene(*steps, T("done"))
    world.outputs = {f"c{n}": "x" * 1_000_000 for n in range(10)}
    life = Life({("append", 4): Fault.CUT, ("append", 9): Fault.REFUSED})
    sent = await world.say("m1")
    await world.settle(world.process(life))
    assert await world.status(sent.run) == "completed"
    chunks = await world.chunks()
    assert sum(c["type"] == "tool-result" for c in chunks) == 10
    told = sum(len(to_json({k: v for k, v in c.items() if k != "cursor"})) for c in chunks)
    ((logged,),) = world.database.rows("SELECT sum(length(json)) FROM events")
    assert told > 10_000_000
    assert logged <= 2 * told
    assert logged <= 1.01 * told, "in fact no more than the cursors"


async def test_c7_each_step_tells_whether_the_run_goes_on(scene: MakeScene) -> None:
    """Given a turn with a tool call, and one with text; when their ends are told; then the first
    says that the run goes on, and the second that it does not.
    """
    world = scene(C(("c1", "t1", {})), T("done"))
    await world.say("m1")
    await world.settle()
    ends = [c["payload"] for c in await world.chunks() if c["type"] == "step-finish"]
    assert [end["stepResult"]["isContinued"] for end in ends] == [True, False]
    assert [end["stepResult"]["reason"] for end in ends] == ["tool-calls", "stop"]


async def test_c9_messages_from_the_future_do_not_move_in_front_of_results(
    scene: MakeScene,
) -> None:
    """Given messages whose senders' clocks are a minute ahead; when the model is called for the
    second time; then its prompt ends with its own call and the result, and it does not call again.
    """
    ahead = "2023-11-14T22:14:20.000Z"
    world = scene(C(("c1", "t1", {})), T("done"), T("again"))
    await world.say("m1", createdAt=ahead)
    await world.say("m2", "and this", createdAt=ahead)
    await world.settle()
    assert world.prompts()[1] == ["user go", "user and this", "calls c1", "results c1"]
    assert world.ran == ["c1"]
    await world.say("m3", "next")
    await world.settle()
    assert world.prompts()[2][-2:] == ["assistant done", "user next"]
    times = [m["createdAt"] for m in await world.messages()]
    assert times == sorted(times)


# ---- aborts --------------------------------------------------------------------------------


async def test_d1_an_abort_in_another_process_cuts_the_model_call(scene: MakeScene) -> None:
    """Given a run in a worker, and two readers of whom one goes away; when a process that shares
    nothing with it but the store aborts; then the model's stream is cut by the owner's next
    heartbeat, which comes within 2 s, and the reader sees the abort; the leaving alone stopped
    nothing.
    """
    gate = Gate()
    world = scene(HANG(gate, before="I was just"))
    sent = await world.say("m1")
    async with world.following() as stays:
        async with world.following() as leaves:
            owner = asyncio.create_task(world.settle())
            await gate.reached.wait()
            await leaves.sees(5)
        assert not owner.done()
        assert world.model.cut[0] == 0
        assert await world.elsewhere().accept.abort(THREAD, RESOURCE)
        await owner
        await stays.sees_end()
        assert stays.ends() == ["abort"]
    assert world.model.cut[0] == 1
    assert await world.status(sent.run) == "cancelled"
    assert Settings().heartbeat <= 2_000


async def test_d1_readers_that_go_away_stop_nothing(scene: MakeScene) -> None:
    """Given a run whose only reader goes away in its middle; when the model goes on; then the run
    completes.
    """
    gate = Gate()
    world = scene(HANG(gate, T("to the end")))
    sent = await world.say("m1")
    async with world.following() as reader:
        owner = asyncio.create_task(world.settle())
        await gate.reached.wait()
        await reader.sees(3)
    gate.open()
    await owner
    assert await world.status(sent.run) == "completed"


async def test_d3_an_abort_before_the_start_is_kept(scene: MakeScene) -> None:
    """Given a run that is prepared and not begun; when it is aborted, and a worker starts it then;
    then no model is called, and the run ends as aborted.
    """
    world = scene(T("never said"))
    sent = await world.say("m1")
    assert await world.status(sent.run) == "prepared"
    assert await world.outside.accept.abort(THREAD, RESOURCE, sent.run)
    await world.settle()
    assert world.model.requests == []
    assert await world.ends() == ["abort"]
    assert await world.status(sent.run) == "cancelled"
    assert await world.inbox() == []


async def test_d5_text_that_was_streamed_before_an_abort_is_kept(scene: MakeScene) -> None:
    """Given a model that has streamed three of its ten words; when the run is aborted; then the
    transcript has those three, and the stream no more than they.
    """
    gate = Gate()
    world = scene(T("one two three four five six seven eight nine ten"))
    world.model.on[0, 4] = gate.pass_through
    await world.say("m1")
    owner = asyncio.create_task(world.settle())
    await gate.reached.wait()
    assert await world.outside.accept.abort(THREAD, RESOURCE)
    await owner
    assert await world.said() == [("user", "go"), ("assistant", "one two three")]
    assert text_of(await world.chunks()) == "one two three"
    assert await world.ends() == ["abort"]


# ---- several runs of a thread --------------------------------------------------------------


async def test_e1_runs_of_two_agents_on_one_thread_do_not_interleave(scene: MakeScene) -> None:
    """Given agent A, streaming in a thread; when agent B is called there and another process takes
    up its wake-up; then B's first model call begins after A's end and has A's messages.
    """
    gate = Gate()
    world = scene(HANG(gate, T("says A")), other=[T("unused"), T("says B")])
    await world.say("m1", "to A")
    owner = asyncio.create_task(world.settle())
    await gate.reached.wait()
    await world.say("m2", "to B", agent=OTHER)
    await world.work(world.process())
    assert world.other_model.requests == []
    gate.open()
    await owner
    assert world.prompts(world.other_model) == [["user to A", "assistant says A", "user to B"]]
    chunks = [c for c in await world.chunks() if c["type"] in ("start", "finish")]
    assert [c["type"] for c in chunks] == ["start", "finish"] * 2
    assert len({c["runId"] for c in chunks}) == 2


async def test_e3_queued_messages_survive_a_run_that_fails(scene: MakeScene) -> None:
    """Given a run that fails after it hung, and two messages queued meanwhile; when it has failed;
    then both are processed in order, and the lease is free at the end.
    """
    gate = Gate()
    world = scene(Tries(HANG(gate, E("x")), T("did A")), T("did B"))
    sent = await world.say("m1")
    owner = asyncio.create_task(world.settle())
    await gate.reached.wait()
    queued = [await world.say(id, id, queue=True) for id in ("A", "B")]
    gate.open()
    await owner
    assert await world.status(sent.run) == "failed"
    assert [await world.status(each.run) for each in queued] == ["completed"] * 2
    assert await world.ends() == ["error", "finish", "finish"]
    texts = [text for _, text in await world.said()]
    assert texts == ["go", "", "A", "did A", "B", "did B"]
    assert not await world.coordinator.held(P)
    assert await world.inbox() == []


@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER], ids=lambda f: f.name)
@pytest.mark.parametrize("commit", range(1, 7))
async def test_e5_a_retained_message_is_consumed_once_after_a_takeover(
    scene: MakeScene, fault: Fault, commit: int
) -> None:
    """Given a message that came in from another process while A's tool ran; when A is killed before
    or after any of its commits, and B takes over; then the message is in the journal once, and no
    prompt has it twice.
    """
    world = scene(C(("c1", "t1", {})), T("first"), T("second"))

    async def forward() -> None:
        await world.say("m2", "me too", via=world.elsewhere())

    world.in_tool["c1"] = forward
    await world.say("m1")
    assert await world.live(Life({("commit", commit): fault}))
    await world.recover()
    signals = [s["id"] for e in await world.journal() for s in getattr(e, "signals", [])]
    assert signals == ["m1", "m2"]
    assert all(prompt.count("user me too") <= 1 for prompt in world.prompts())
    assert "user me too" in world.prompts()[-1]
    assert await world.receipts() == {"m1": "delivered", "m2": "delivered"}


async def test_e9_a_kept_signal_before_a_message_spins_nothing(scene: MakeScene) -> None:
    """Given a signal that is only to be kept; when a message follows at once; then both are done,
    in a bounded number of calls, and nobody is woken any more.
    """
    world, life = scene(T("hi")), Life()
    kept = await world.say("k1", "for later", persist=True)
    assert kept.action == "persist"
    await world.say("m1")
    process = world.process(life)
    await world.settle(process)
    assert await world.receipts() == {"k1": "persisted", "m1": "delivered"}
    assert world.prompts() == [["user for later", "user go"]]
    assert len(life.calls) < 45
    assert world.wakes() == 0
    done = len(life.calls)
    await world.settle(process)
    assert len(life.calls) == done
    await process.recover.tick()
    assert world.wakes() == 0


# ---- sizes ---------------------------------------------------------------------------------


async def _grown(scene: MakeScene, steps: int) -> tuple[int, int, int]:
    """Give bytes after so many steps with results of 10 KB: largest record, all, transcript."""
    world = scene(*(C((f"c{n}", "t1", {})) for n in range(steps)), T("done"))
    world.outputs = {f"c{n}": f"{n} " + "x" * 10_000 for n in range(steps)}
    await world.say("m1")
    await world.settle()
    assert len(world.ran) == steps
    (found,) = world.database.rows("SELECT max(length(body)), sum(length(body)) FROM items")
    return *found, len(to_json(await world.messages()))


async def test_f1_the_journal_grows_with_what_was_said(scene: MakeScene) -> None:
    """Given runs of 25 and of 50 steps with results of 10 KB; when they are over; then no record is
    over 350 KB, all together are below three times the transcript, and twice the steps are twice
    the bytes.
    """
    _, half, _ = await _grown(scene, 25)
    largest, total, transcript = await _grown(scene, 50)
    assert transcript > 500_000
    assert largest < 350_000
    assert total < 3 * transcript
    assert largest < 12_000, "in fact no record holds more than one result"
    assert total < 2.1 * half


async def test_f3_between_two_steps_there_are_few_requests(scene: MakeScene) -> None:
    """Given nine steps of an agent with 50 tools, in a thread with a history of 30,000 tokens; when
    one model call has ended and until the next one starts; then the requests are one put for the
    answer, one for the result, one look into the inbox, and what tells them: the same each time.
    """
    history = [T("words " * 2_500) for _ in range(8)]
    turns = [C((f"c{n}", f"tool{n}", {})) for n in range(9)]
    world = scene(*history, *turns, T("done"), names=[f"tool{n}" for n in range(50)])
    for n in range(len(history)):
        await world.say(f"h{n}")
        await world.settle()
    life, marks = Life(), dict[tuple[int, str], int]()

    def mark(turn: int, what: str) -> None:
        async def note() -> None:
            marks[turn, what] = len(life.calls)

        world.model.on[turn, 0 if what == "begins" else 1] = note

    for turn in range(len(history), len(history) + 9):
        mark(turn, "ends")
        mark(turn + 1, "begins")
    await world.say("m1")
    await world.settle(world.process(life))
    assert len(world.ran) == 9
    assert len(world.model.requests[-1].tools) == 50
    gaps = [
        life.calls[marks[turn, "ends"] : marks[turn + 1, "begins"]]
        for turn in range(len(history), len(history) + 9)
    ]
    for gap in gaps:
        assert gap.count("commit") == 2
        assert gap.count("query") == 1
        assert set(gap) <= {"commit", "query", "append"}
        assert gap.count("append") <= 4
    assert len(life.calls) < 9 * 8 + 20
