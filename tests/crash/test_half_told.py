"""What readers hold of a step that never committed, or of a log that is gone.

`docs/protocols.md` D4, D5, I1; `docs/design.md` 7.4, 7.7.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from shared.core.events import Cursor
from tests.apps.script import HANG, C, E, Gate, T, Tries
from tests.contract.faults import Fault
from tests.contract.waiting import until
from tests.crash.world import RESOURCE, SETTINGS, THREAD, superseded
from tests.protocol.stage import Hooks, Stage, texts_of

if TYPE_CHECKING:
    from shared.services.follow import Following
    from tests.crash.conftest import MakeStage

pytestmark = pytest.mark.anyio

CALL = C(("c1", "none", {}))
LAST = 20
"""Empty batches in a row, after which nothing more can come."""


async def read_on(following: Following, shown: list[dict[str, Any]], wait: int = 0) -> None:
    """Gather what a follower gets; without a wait, all that there is."""
    silent = 0
    async with aclosing(following.batches(wait)) as batches:
        async for batch in batches:
            shown += [json.loads(event.json) for event in batch]
            silent = 0 if batch else silent + 1
            if not wait and silent > LAST:
                return


async def die_half_told(world: Stage, gate: Gate, text: str) -> None:
    """The owner dies in a model call, of which the log has a part."""
    dying = asyncio.create_task(world.die(hooks := Hooks()))
    await gate.reached.wait()
    await until(world.told_texts, [text])
    hooks.plan.update({("commit", n): Fault.KILL_BEFORE for n in range(1, 99)})
    gate.open()
    await dying


async def test_a_first_run_that_was_half_told_and_whose_log_is_lost(stage: MakeStage) -> None:
    """D5: the thread has one entry, so its log "cannot have lost anything"; it can.

    Text was streamed after entry 0. A live reader holds it, the owner dies, the log goes: the
    reader must learn that what it holds is superseded, or it shows "Half Half Hello."
    """
    gate = Gate()
    world = stage(HANG(gate, T("Hello."), before="Half "))
    following = await world.outside.follow.open(THREAD, RESOURCE, None)
    shown: list[dict[str, Any]] = []
    reading = asyncio.create_task(read_on(following, shown, wait=20_000))
    await world.say("m1")
    await die_half_told(world, gate, "Half ")

    async def has_read() -> bool:
        return texts_of(shown) == await world.told_texts()

    await until(has_read, expected=True)
    world.lose_the_log()
    await world.heal()

    async def is_over() -> bool:
        return any(chunk["type"] == "finish" for chunk in shown)

    await until(is_over, expected=True)
    reading.cancel()
    types = [chunk["type"] for chunk in shown]
    kept = shown[types.index("resync") :] if "resync" in types else superseded(shown)
    assert "".join(texts_of(kept)) == "Half Hello."


async def test_attempts_grow_over_a_hand_over(stage: MakeStage) -> None:
    """D4: attempt 1 was told, then the provider asked for a pause, and another owner tries again.

    Its number must be above all that were told, or readers keep both texts.
    """
    pause = SETTINGS.longest_pause + 1
    world = stage(
        Tries(E("a", retryable=True), E("b", retryable=True, retry_after=pause), T("done"))
    )
    await world.say("m1")
    await world.settle()
    world.clock.advance(pause)
    await world.settle()
    attempts = await world.attempts()
    assert len(attempts) == 3
    assert attempts == sorted(set(attempts))


@pytest.mark.parametrize(("turns", "cap"), [([T("done")], 20), ([CALL], 1)], ids=["answer", "cap"])
async def test_a_step_that_ended_is_not_taken_for_half_told(
    stage: MakeStage, turns: list[T | C], cap: int
) -> None:
    """D4, invariant 4: the last step is committed, its owner dies, and the log is lost.

    The new owner cannot know what readers have seen after it; but nothing followed it, as the run
    was to end: no further model call may be made.
    """
    world = stage(*turns, T("one too many"), max_steps=cap)
    await world.say("m1")
    await world.die(Hooks.killing(before="finish"))
    world.lose_the_log()
    await world.revive()
    assert len(world.model.requests) == 1
    assert (await world.kinds())[-2:] == ["claim", "finish"]


async def test_the_end_of_a_step_is_not_shown_twice(stage: MakeStage) -> None:
    """I1, D6: the reader's last event lies inside step 2, so it has seen the end of step 1.

    The log is lost, and the journal tells step 2 whole: without the end of the step before it.
    """
    world = stage(CALL, T("the end of it"))
    await world.say("m1")
    await world.settle()
    chunks = await world.chunks()
    for place, chunk in enumerate(chunks):
        if chunk["type"] in ("step-start", "text-start", "text-delta") and place > 4:
            cursor = Cursor.parse(chunk["cursor"])
            world_after = chunks[: place + 1]
            shown = await _without_log(world, cursor)
            types = [c["type"] for c in [*world_after, *shown]]
            assert types.count("step-finish") == 2, (place, types)
            assert types.count("finish") == 1


async def _without_log(world: Stage, cursor: Cursor) -> list[dict[str, Any]]:
    world.lose_the_log()
    shown: list[dict[str, Any]] = []
    following = await world.outside.follow.open(THREAD, RESOURCE, cursor)
    async with world.time_passes():
        await read_on(following, shown)
    return shown


async def test_a_log_that_lost_its_newest_runs(stage: MakeStage) -> None:
    """D4: Redis failed over to a replica that lagged by more than a run.

    Not only the newest run, every run above the log's end is told before the next one begins.
    """
    world = stage(T("one"), T("two"), T("three"), T("four"))
    for number in range(3):
        await world.say(f"m{number}")
        await world.settle()
    cut = (await world.events())[3]
    with world.database.transaction() as connection:
        connection.execute(
            "DELETE FROM events WHERE (start, sequence) > (?, ?)", (cut.id.start, cut.id.sequence)
        )
        connection.execute(
            "UPDATE logs SET last_start = ?, last_sequence = ?, last_index = ?",
            (cut.id.start, cut.id.sequence, cut.index),
        )
    await world.say("m3")
    await world.settle()
    told = await world.told()
    assert told.count("finish") == told.count("start") == 4
    ids = [c["data"]["id"] for c in await world.chunks() if c["type"] == "data-user-message"]
    assert ids == ["m0", "m1", "m2", "m3"]
    assert await world.kept_texts() == ["one", "two", "three", "four"]
