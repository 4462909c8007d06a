"""Follow (docs/protocols.md I)."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shared.core import keys
from shared.core.errors import Forbidden
from shared.core.events import Cursor, EventId
from shared.ports import Put
from tests.apps.script import HANG, C, Gate, T
from tests.contract.faults import Faults, FaultyCoordinator
from tests.crash.world import RESOURCE, THREAD
from tests.protocol.stage import WAKE, Hooks, Stage

if TYPE_CHECKING:
    from shared.bootstrap import System
    from shared.core.events import LogEvent
    from shared.services.follow import Following
    from tests.protocol.conftest import MakeStage

pytestmark = pytest.mark.anyio

SILENCE = 20
"""Empty batches in a row, after which nothing more can come."""
CALL = C(("c1", "none", {}))
RUN_OF_A_CALL = [
    *("start", "data-user-message", "step-start", "tool-call", "tool-error", "step-finish"),
    *("step-start", "step-finish", "finish"),
]
RUN = ["start", "data-user-message", "step-start", "step-finish", "finish"]


def types(events: list[LogEvent]) -> list[str]:
    found = [json.loads(event.json)["type"] for event in events]
    return [type for type in found if not type.startswith("text-")]


async def follow(
    world: Stage,
    cursor: Cursor | None = None,
    *,
    via: System | None = None,
    resource: str = RESOURCE,
    until: str = "",
) -> list[LogEvent]:
    """What a follower gets up to the first chunk of this type; by default, all that there is."""
    following = await (via or world.outside).follow.open(THREAD, resource, cursor)
    return await gather(world, following, until)


async def gather(world: Stage, following: Following, until: str = "") -> list[LogEvent]:
    seen: list[LogEvent] = []
    silent = 0
    async with world.time_passes(), aclosing(following.batches(20_000 if until else 0)) as batches:
        async for batch in batches:
            seen += batch
            silent = 0 if batch else silent + 1
            if until in types(batch) or silent > SILENCE:
                break
    return seen


def cursor_of(event: LogEvent) -> Cursor:
    return Cursor.parse(json.loads(event.json)["cursor"])


async def lived(world: Stage) -> list[LogEvent]:
    """A finished run, and all its events."""
    await world.say("m1")
    await world.settle()
    return await world.events()


async def test_i1_without_a_cursor_the_active_run_is_seen_from_its_start(stage: MakeStage) -> None:
    """And nothing of the run before it; then what comes."""
    gate = Gate()
    world = stage(T("one"), HANG(gate, T("two"), before="half "))
    await lived(world)
    await world.say("m2")
    working = asyncio.create_task(world.process().advance.advance(WAKE))
    await gate.reached.wait()
    following = asyncio.create_task(follow(world, until="finish"))
    await turns()
    gate.open()
    seen = await following
    await working
    events = await world.events()
    assert types(seen) == RUN
    assert [e.id for e in seen] == [e.id for e in events if e.id.start == events[-1].id.start]


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_i1_without_a_cursor_an_idle_thread_shows_what_comes(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    await lived(world)
    following = asyncio.create_task(follow(world, until="finish"))
    await turns()
    await world.say("m2")
    await world.settle()
    seen = await following
    assert types(seen) == RUN
    assert len({event.id for event in seen}) == len(seen)


async def test_i1_a_run_that_begins_while_a_follower_opens_is_seen_whole(stage: MakeStage) -> None:
    """The log's end is noted before ACTIVE is read: a run between the two is after the end."""
    world = stage(T("one"), T("two"))
    await lived(world)

    async def a_run() -> None:
        await world.say("m2")
        await world.settle()

    # `open` reads the thread, then the end of the log, then ACTIVE.
    assert types(await follow(world, via=world.process(Faults({("get", 2): a_run})))) == RUN


async def test_i1_a_run_that_ends_while_a_follower_opens_is_seen_to_its_end(
    stage: MakeStage,
) -> None:
    """ACTIVE was read, and by the time that the log is read the run is over, the next one too."""
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.die(Hooks.killing(after="input"))

    async def ends() -> None:
        await world.revive()
        await world.say("m2")
        await world.settle()

    seen = await follow(world, via=world.process(Faults({("read", 1): ends})))
    assert types(seen) == [*RUN, *RUN]


async def test_i1_with_a_cursor_exactly_what_came_after_it(stage: MakeStage) -> None:
    world = stage(CALL, T("done"), T("again"))
    events = await lived(world)
    await world.say("m2")
    await world.settle()
    events = await world.events()
    for place, event in enumerate(events):
        assert await follow(world, cursor_of(event)) == events[place + 1 :]


@pytest.mark.parametrize("mode", ["lost", "trimmed"])
async def test_i1_what_the_log_has_lost_is_told_from_the_journal(
    stage: MakeStage, mode: str
) -> None:
    """`resync`, the committed content after the cursor, then the log's first event above it."""
    world = stage(CALL, T("done"), T("again"))
    first = await lived(world)
    cursor = cursor_of(first[1])  # has seen `start` and the message
    if mode == "lost":
        world.lose_the_log()
    else:
        with world.database.transaction() as connection:
            connection.execute("DELETE FROM events")
    await world.say("m2")
    await world.settle()
    seen = await follow(world, cursor)
    told = [type for type in types(seen) if type != "resync"]
    assert types(seen)[0] == "resync"
    assert told == [*RUN_OF_A_CALL[2:], *RUN]
    text = "".join(
        chunk["payload"]["text"]
        for chunk in (json.loads(event.json) for event in seen)
        if chunk["type"] == "text-delta"
    )
    assert text == "doneagain"


async def test_i1_a_cut_reading_of_the_journal_goes_on(stage: MakeStage) -> None:
    """From any cursor of the rebuilt events, nothing that was committed is missed."""
    world = stage(CALL, T("done"))
    first = await lived(world)
    world.lose_the_log()
    whole = await follow(world, cursor_of(first[1]))
    for event in whole[1:-1]:
        rest = types(await follow(world, cursor_of(event)))
        place = whole.index(event)
        assert set(types(whole[place + 1 :])) <= set(rest)
        assert rest[-1] == "finish"


async def test_i1_a_cursor_of_a_step_that_never_committed(stage: MakeStage) -> None:
    """The reader saw half an answer; its owner died, and so did the log."""
    gate = Gate()
    world = stage(HANG(gate, T("lost"), before="half "))
    await world.say("m1")
    dying = asyncio.create_task(world.die(hooks := Hooks()))
    await gate.reached.wait()
    await turns()
    half = (await world.events())[-1]
    hooks.actions["before", "model"] = hooks.kill
    gate.open()
    await dying
    world.lose_the_log()
    world.model.turns[0] = T("whole")
    await world.revive()
    seen = await follow(world, cursor_of(half))
    assert types(seen)[0] == "resync"
    assert types(seen)[-1] == "finish"
    texts = [
        c["payload"]["text"]
        for c in map(json.loads, (e.json for e in seen))
        if "delta" in c["type"]
    ]
    assert texts[-1] == "whole"


async def test_i1_a_loss_is_doubted_once(stage: MakeStage) -> None:
    """A replica that lags lacks the event at first; nothing was lost."""
    world = stage(CALL, T("done"))
    events = await lived(world)

    class Lagging(FaultyCoordinator):
        asked = 0

        async def read(self, log: str, after: EventId | None, **options: Any) -> list[LogEvent]:
            if options.get("inclusive"):
                Lagging.asked += 1
                if Lagging.asked == 1:
                    return []
            return await super().read(log, after, **options)

    process = world.process()
    lagging = Lagging(world.coordinator, Faults())
    seen = await follow(
        world, cursor_of(events[1]), via=world.over(replace(process.backend, coordinator=lagging))
    )
    assert "resync" not in types(seen)
    assert seen == events[2:]


async def test_i1_a_log_that_is_lost_under_a_live_follower(stage: MakeStage) -> None:
    world = stage(CALL, T("done"))
    await world.say("m1")
    following = asyncio.create_task(follow(world, until="finish"))
    await turns()
    await world.die(Hooks.killing(after="result"))
    await turns()
    world.lose_the_log()
    await world.revive()
    seen = types(await following)
    kept = [type for type in seen if type != "resync"]
    assert "resync" in seen
    assert set(kept) >= set(RUN_OF_A_CALL)
    assert kept.count("finish") == 1


async def test_i2_a_follower_is_bound_to_its_resource(stage: MakeStage) -> None:
    world = stage(T("one"))
    events = await lived(world)
    for cursor in (None, cursor_of(events[0]), Cursor(9, EventId(1, 0, 0))):
        with pytest.raises(Forbidden):
            await world.outside.follow.open(THREAD, "somebody else", cursor)


async def test_i2_a_thread_that_does_not_exist_yet_is_bound_when_it_is_made(
    stage: MakeStage,
) -> None:
    """Somebody waits for a thread id that another resource then takes."""
    world = stage(T("one"))
    stranger = asyncio.create_task(follow(world, resource="somebody else", until="finish"))
    owner = asyncio.create_task(follow(world, until="finish"))
    await turns()
    await world.say("m1")
    await world.settle()
    assert types(await owner) == RUN
    with pytest.raises(Forbidden):
        await stranger


async def test_i2_a_lost_log_does_not_unbind(stage: MakeStage) -> None:
    """What is told from the journal is checked as well: the stranger's first event is `resync`."""
    world = stage(CALL, T("one"), T("two"))
    following = await world.outside.follow.open(THREAD, "somebody else", None)
    await world.say("m1")
    await world.die(Hooks.killing(after="result"))
    world.lose_the_log()
    await world.revive()
    with pytest.raises(Forbidden):
        await gather(world, following)


async def test_i2_is_checked_again_at_each_run(stage: MakeStage) -> None:
    """The thread was made anew by another resource while somebody followed it."""
    world = stage(T("one"), T("two"))
    await lived(world)
    following = asyncio.create_task(follow(world, until="finish"))
    await turns()
    known = await world.table.get(keys.thread(THREAD), keys.THREAD)
    assert known
    body = {**known.body, "resource": "somebody else"}
    await world.table.commit([Put(known.partition, known.sort, body)])
    await world.say("m2", resource="somebody else")
    await world.settle()
    with pytest.raises(Forbidden):
        await following
