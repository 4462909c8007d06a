"""Scenarios from the field about readers, and about what is stored for them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from pydantic_core import to_json

from shared.adapters.sqlite import SqliteCoordinator
from shared.adapters.sqlite.coordinator import RETENTION
from shared.core import keys
from shared.core.errors import BadRequest
from shared.core.events import Cursor, EventId
from shared.core.limits import MAX_CLAIMS
from shared.core.model import ToolMessage
from tests.apps.script import HANG, SE, C, Gate, T, Tries
from tests.crash.world import RESOURCE, THREAD
from tests.logs import text_of
from tests.scenarios.scene import Life, P, until_stored

if TYPE_CHECKING:
    from shared.ports import Item
    from tests.scenarios.conftest import MakeScene
    from tests.scenarios.scene import Scene

pytestmark = pytest.mark.anyio

WORDS = " ".join(f"w{n}" for n in range(60))
BEFORE_TEXT = 3
"""Events of a run before the first delta's: `start`, the message, `step-start`; the model's part n
is event n + 3."""


async def test_p36_a_reader_gets_what_came_after_its_place_once_and_in_order(
    scene: MakeScene,
) -> None:
    """Given a live run with 30 events; when a reader asks for what came after the eleventh while 20
    more are made; then it gets events 12 to 50, and all later ones, once each and ascending.
    """
    world, first, second = scene(T(WORDS)), Gate(), Gate()
    world.model.on[0, 30 - BEFORE_TEXT] = first.pass_through
    world.model.on[0, 50 - BEFORE_TEXT] = second.pass_through
    await world.say("m1")
    run = asyncio.create_task(world.settle())
    await first.reached.wait()

    async def logged(count: int) -> bool:
        return len(await world.chunks()) == count

    await until_stored(lambda: logged(30), "30 events")
    eleventh = (await world.chunks())[10]["cursor"]
    async with world.following(eleventh) as reader:
        first.open()
        await second.reached.wait()
        await reader.sees(39)
        assert reader.indexes == list(range(11, 50))
        second.open()
        await reader.sees_end()
        assert reader.indexes == list(range(11, len(await world.chunks())))
        assert reader.chunks == (await world.chunks())[11:]
    await run


async def _two_runs(scene: MakeScene) -> Scene:
    world = scene(T("the first answer"), C(("c1", "t1", {}), text="let me see"), T("the second"))
    for id in ("m1", "m2"):
        await world.say(id, id)
        await world.settle()
    return world


async def _read_from(world: Scene, cursor: str) -> list[dict[str, object]]:
    """What somebody is shown who comes with a cursor, up to the thread's newest run's end."""
    async with world.time_passes(), world.following(cursor) as reader:
        await world.say("last", "last")
        await world.settle()
        newest = (await world.chunks())[-1]
        await until_stored(lambda: _has(reader.chunks, newest), "the newest event")
        return reader.chunks


async def _has(chunks: list[dict[str, object]], chunk: dict[str, object]) -> bool:
    return chunk in chunks


async def test_p38_a_cursor_whose_event_was_trimmed_gets_a_resync(scene: MakeScene) -> None:
    """Given a reader that comes back with the cursor of an event that was trimmed meanwhile; when
    it reads; then a `resync` comes first, then what it missed, from what is stored, and nothing of
    what it had, and then what is live.
    """
    world = await _two_runs(scene)
    cursor = (await world.chunks())[4]["cursor"]
    with world.database.transaction() as connection:
        connection.execute(
            "DELETE FROM events WHERE (start, sequence) < (SELECT last_start, 0 FROM logs)"
        )
    world.model.turns.append(T("the third"))
    shown = await _read_from(world, cursor)
    assert shown[0]["type"] == "resync"
    assert [c["type"] for c in shown].count("resync") == 1
    said = [c["data"]["id"] for c in shown if c["type"] == "data-user-message"]  # type: ignore[index]
    assert said == ["m2", "last"], "m1 was before the cursor"
    assert text_of(shown).endswith("let me seethe secondthe third")
    ends = [c["runId"] for c in shown if c["type"] == "finish"]
    assert len(ends) == len(set(ends))


@pytest.mark.parametrize(
    ("start", "what"), [(-1_000_000, "older"), (1, "between"), (1_000_000, "newer")]
)
async def test_p38_a_cursor_of_another_stream_gets_a_resync(
    scene: MakeScene, start: int, what: str
) -> None:
    """Given the cursor of another thread's event; when somebody reads this thread with it; then a
    `resync` comes first, each event at most once, and the live ones for certain.
    """
    world = await _two_runs(scene)
    place = Cursor.parse((await world.chunks())[0]["cursor"])
    foreign = Cursor(place.incarnation, EventId(place.id.start + start, 77, 5))
    world.model.turns.append(T("the third"))
    shown = await _read_from(world, str(foreign))
    assert shown[0]["type"] == "resync", what
    assert "the third" in text_of(shown)
    ends = [c["runId"] for c in shown if c["type"] == "finish"]
    assert ends
    assert len(ends) == len(set(ends))


@pytest.mark.parametrize("text", ["", "1", "x.1-2", "1.2", "1.2-x", "-1.2-3", "1.2-3-4", "9" * 400])
async def test_p38_a_malformed_cursor_is_refused(text: str) -> None:
    """Given a text that is no cursor; when somebody reads with it; then the answer is 400."""
    with pytest.raises(BadRequest) as refused:
        Cursor.parse(text)
    assert refused.value.http_status == 400


async def _agrees(world: Scene) -> None:
    """A fresh subscriber and the transcript tell the same."""
    first = (await world.chunks())[0]["cursor"]
    async with world.following(first) as reader:
        await reader.sees_end()
        told = text_of(reader.chunks)
    rows = await world.said()
    assert told == "".join(text for who, text in rows if who == "assistant")


async def test_p40_half_an_answer_of_a_failed_run_is_marked_as_such(scene: MakeScene) -> None:
    """Given a model whose stream breaks for good in the middle of its text; when somebody reads the
    run from its start; then the text is followed by an error, and the transcript has the same.
    """
    world = scene(SE("half an", "it broke", retryable=False))
    sent = await world.say("m1")
    await world.settle()
    assert await world.status(sent.run) == "failed"
    assert await world.ends() == ["error"]
    await _agrees(world)
    parts = (await world.messages())[-1]["content"]["parts"]
    assert [part["type"] for part in parts] == ["text", "error"]


async def test_p40_half_an_answer_that_was_begun_anew_is_superseded(scene: MakeScene) -> None:
    """Given an owner that dies in the middle of a text; when the next one makes the call again and
    gets another text; then a reader of the whole run is told that the first is void.
    """
    world, life = scene(Tries(T("never meant to be"), T("what was said"))), Life()
    world.model.on[0, 3] = life.die
    await world.say("m1")
    assert await world.live(life)
    assert text_of(await world.chunks()) == "never meant"
    await world.recover()
    assert text_of(await world.chunks()) == "what was said"
    await _agrees(world)


async def test_p40_half_an_answer_is_superseded_when_recovery_gives_up(scene: MakeScene) -> None:
    """Given a run whose every owner dies in the middle of a text; when recovery gives up and ends
    the run; then stream and transcript agree: none of these texts was said (D4).
    """
    world = scene(T("never meant to be"))
    sent = await world.say("m1")
    for _ in range(1 + MAX_CLAIMS):
        life = Life()
        world.model.on[0, 3] = life.die
        if not await world.live(life):
            break
        world.lease_runs_out()
        await world.outside.recover.tick()
    await world.recover()
    assert await world.status(sent.run) == "failed"
    assert await world.ends() == ["error"]
    await _agrees(world)


async def test_p40_half_an_answer_is_superseded_when_the_run_is_cancelled(
    scene: MakeScene,
) -> None:
    """Given an owner that dies in the middle of a text; when the run is cancelled before another
    one comes; then stream and transcript agree about that text (D4).
    """
    world, life = scene(T("never meant to be")), Life()
    world.model.on[0, 3] = life.die
    await world.say("m1")
    assert await world.live(life)
    assert await world.outside.accept.abort(THREAD, RESOURCE)
    await world.recover()
    assert await world.ends() == ["abort"]
    await _agrees(world)


@pytest.mark.parametrize("life", ["undisturbed", "handed over", "killed"])
async def test_p46_a_tool_result_of_600_kb_survives(scene: MakeScene, life: str) -> None:
    """Given a tool result of 600 KB that is not ASCII; when the run goes on, in this process or in
    another one; then model and transcript get it back the same.
    """
    text = "größer 語 😀 " * 40_000
    assert len(text.encode()) > 600_000
    assert len(text.encode()) > 1.4 * len(text)
    world = scene(C(("c1", "t1", {})), T("done"), slice_steps=1 if life == "handed over" else 100)
    world.outputs["c1"] = {"text": text}
    dying = Life()
    if life == "killed":
        world.model.on[1, 0] = dying.die
    await world.say("m1")
    assert await world.live(dying) == (life == "killed")
    await world.recover()
    for request in world.model.requests[1:]:
        (answer,) = (m for m in request.messages if isinstance(m, ToolMessage))
        assert answer.results[0].output == {"text": text}
    (part, last) = (await world.messages())[-1]["content"]["parts"]
    assert part["toolInvocation"]["result"] == {"text": text}
    assert last["text"] == "done"
    (told,) = (c for c in await world.chunks() if c["type"] == "tool-result")
    assert told["payload"]["result"] == {"text": text}


async def _rows(world: Scene, sort: str) -> int:
    """How many rows there are of a kind, hidden ones included."""
    sql = "SELECT count(*) FROM items WHERE sort LIKE ?"
    return int(world.database.rows(sql, (sort,))[0][0])


async def test_p48_a_lease_that_ran_out_counts_for_nothing(scene: MakeScene) -> None:
    """Given the lease of a dead owner, still stored; when its time is over; then another one gets
    it; and not a moment before.
    """
    world, life = scene(T("hi")), Life()
    world.model.on[0, 1] = life.die
    await world.say("m1")
    assert await world.live(life)
    (expires,) = world.database.rows("SELECT expires FROM logs")[0]
    world.clock.set(expires - 1)
    assert await world.coordinator.held(P)
    assert await world.coordinator.acquire(P, "another", 1_000) is None
    world.clock.set(expires)
    assert not await world.coordinator.held(P)
    assert await world.coordinator.acquire(P, "another", 1_000)


async def test_p48_an_expired_key_counts_for_nothing_and_a_live_one_is_kept(
    scene: MakeScene,
) -> None:
    """Given an idempotency key and a receipt with an expiry; when the same key comes again before
    it, then it gets the first answer, whatever else was cleared away; when after it, though the
    rows are still stored, then it is a new request.
    """
    world = scene(T("one"), T("two"), T("three"))
    first = await world.say("m1", keys=["k"])
    await world.settle()
    ttl = world.settings.receipt_ttl
    world.clock.advance(ttl - 1_000)
    await world.say("m2", "a commit that also sweeps")
    await world.settle()
    again = await world.say("m1", keys=["k"])
    assert (again.run, again.action) == (first.run, "wake")
    assert await _rows(world, "KEY#%") == 1
    world.clock.advance(2_000)
    assert await _rows(world, "KEY#%") == 1, "still stored"
    assert await world.table.get(P, keys.idempotency("k")) is None
    assert await world.table.query(P, "KEY#") == []
    anew = await world.say("m1", keys=["k"])
    await world.settle()
    assert anew.run != first.run
    assert [who for who, _ in await world.said()] == ["user", "assistant"] * 3


async def test_p48_a_due_time_is_compared_and_not_trusted(
    scene: MakeScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an index that still shows an item as due which was looked after meanwhile; when the
    tick reads it; then it looks at the item itself, and sends nothing.
    """
    world = scene(T("hi"))
    await world.say("m1")
    world.clock.advance(world.settings.tick)
    process = world.process()
    stale: dict[str, list[Item]] = {}
    look = world.table.index

    async def remembered(group: str, **options: Any) -> list[Item]:
        stale.setdefault(group, await look(group, **options))
        return stale[group]

    monkeypatch.setattr(world.table, "index", remembered)
    await process.recover.tick()
    await world.settle()
    sent = world.wakes()
    assert any(stale.values())
    assert await process.recover.tick() == 0
    assert world.wakes() == sent


async def test_p61_ten_thousand_chunks_are_told_in_few_commands(scene: MakeScene) -> None:
    """Given a run of 10,000 deltas; when it is told; then the commands that append them are bounded
    by its bytes, the bytes by its deltas, and the log holds no more than its cap.
    """
    hour = 3_600_000  # so that time alone flushes nothing, and the count does not depend on it
    world, life = scene(T("word " * 10_000), flush_pause=hour), Life()
    await world.say("m1")
    await world.settle(world.process(life))
    chunks = await world.chunks()
    assert sum(c["type"] == "text-delta" for c in chunks) == 10_000
    total = sum(len(to_json(chunk)) for chunk in chunks)
    assert life.calls.count("append") <= total / world.settings.flush_bytes + 8
    assert total < 10_000 * 250
    assert len(life.calls) < life.calls.count("append") + 25


async def test_p61_a_log_keeps_no_more_than_its_cap_and_its_time(scene: MakeScene) -> None:
    """Given a log that may hold 1,000 events; when a run tells 3,000, then the oldest are gone;
    when its time is over and another run begins, then all of the first are.
    """
    world = scene(T("word " * 3_000), T("later"))
    world.coordinator = SqliteCoordinator(world.database, world.clock, world.notices, cap=1_000)
    await world.say("m1")
    await world.settle(world.process())
    chunks = await world.chunks()
    assert len(chunks) <= 1_000
    assert chunks[-1]["type"] == "finish"
    world.clock.advance(RETENTION + 1)
    await world.say("m2")
    await world.settle(world.process())
    kept = await world.chunks()
    assert {chunk["runId"] for chunk in kept} == {kept[-1]["runId"]}
    assert kept[0]["type"] == "start"


async def test_p61_a_hundred_followers_leave_nothing_behind(scene: MakeScene) -> None:
    """Given a hundred followers of one thread; when a run is told and they go; then the store holds
    the run's events once, and nothing of them.
    """
    gate = Gate()
    world = scene(HANG(gate, T("hi")))
    await world.say("m1")
    run = asyncio.create_task(world.settle())
    await gate.reached.wait()
    before = _stored(world)
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(world.following()) for _ in range(100)]
        assert _stored(world) == before
        gate.open()
        for reader in readers:
            await reader.sees_end()
        await run
        log = await world.chunks()
        assert all(reader.chunks == log for reader in readers)
        after = _stored(world)
    assert _stored(world) == after
    assert after["events"] == len(log)


def _stored(world: Scene) -> dict[str, int]:
    """How many rows each table has."""
    tables = world.database.rows("SELECT name FROM sqlite_master WHERE type = 'table'")
    count = "SELECT count(*) FROM {}"
    return {name: world.database.rows(count.format(name))[0][0] for (name,) in tables}
