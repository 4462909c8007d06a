"""Delete (docs/protocols.md J)."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from shared.core import keys
from shared.core.errors import Forbidden, NotFound
from shared.core.events import Cursor
from shared.core.records import Active
from shared.core.signal_input import parse_signal
from shared.ports import WakeUp
from shared.services.accept import Target
from shared.services.deletion import LATER
from tests.apps.script import HANG, Gate, T
from tests.contract.faults import Faults
from tests.crash.world import RESOURCE, SETTINGS, THREAD
from tests.protocol.stage import AGENT, OTHER, P

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.services.follow import Following
    from tests.protocol.conftest import MakeStage
    from tests.protocol.stage import Stage

pytestmark = pytest.mark.anyio

SECOND = keys.partition(THREAD, 2)


async def _shown(following: Following) -> list[dict[str, Any]]:
    """What a follower is shown until nothing comes."""
    shown: list[dict[str, Any]] = []
    async with aclosing(following.batches(20)) as batches:
        async for batch in batches:
            if not batch:
                return shown
            shown += [json.loads(event.json) for event in batch]
    return shown


@asynccontextmanager
async def _working(world: Stage, gate: Gate) -> AsyncIterator[None]:
    """While the model is at the gate; at the end the run must end by itself."""
    working = asyncio.create_task(world.work(world.process()))
    await gate.reached.wait()
    yield
    await asyncio.wait_for(working, 10)


async def _purge(world: Stage) -> None:
    for wait in (SETTINGS.lease + SETTINGS.tick, LATER + 1, LATER + 1):
        world.clock.advance(wait)
        await world.outside.recover.tick()


async def test_j1_a_thread_that_is_deleted_is_not_there(stage: MakeStage) -> None:
    world = stage(T("one"))
    await world.say("m1")
    await world.settle()
    await world.outside.deletion.delete(THREAD, RESOURCE)
    assert await world.outside.threads.get(THREAD) is None
    with pytest.raises(NotFound):
        await world.outside.threads.messages(THREAD, RESOURCE, 0, 10)
    assert (await world.outside.threads.list(RESOURCE, 0, 10)).items == []
    with pytest.raises(NotFound):
        await world.outside.deletion.delete(THREAD, RESOURCE)


async def test_j1_a_thread_made_anew_has_nothing_of_the_old_one(stage: MakeStage) -> None:
    """Its lease, log and records have other names; a cursor of the old one is none of it."""
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.settle()
    old = Cursor(1, (await world.coordinator.last(P)) or pytest.fail("no log"))
    await world.outside.deletion.delete(THREAD, RESOURCE)
    await world.say("m1")  # the same id: the old receipt is not its own
    await world.settle()
    rows = (await world.outside.threads.messages(THREAD, RESOURCE, 0, 10)).items
    assert [row["role"] for row in rows] == ["signal", "assistant"]
    following = await world.outside.follow.open(THREAD, RESOURCE, old)
    assert following.incarnation == 2
    assert await _shown(following) == []


async def test_j1_another_resource_may_take_the_name(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.settle()
    with pytest.raises(Forbidden):
        await world.outside.deletion.delete(THREAD, "another")
    await world.outside.deletion.delete(THREAD, RESOURCE)
    await world.say("m2", resource="another")
    found = await world.outside.threads.get(THREAD)
    assert found is not None
    assert (found.resource, found.incarnation) == ("another", 2)


async def test_j1_a_run_of_a_deleted_thread_is_not_there(stage: MakeStage) -> None:
    """Its record is there until the purge; a message for it must not make the thread anew."""
    world = stage(T("one"))
    sent = await world.say("m1")
    await world.settle()
    await world.outside.deletion.delete(THREAD, RESOURCE)
    signal = parse_signal({"type": "user", "contents": "hi"}, id="m2", now=world.clock.now())
    with pytest.raises(NotFound):
        await world.outside.accept.send(Target(AGENT, None, None, run=sent.run), signal)
    assert await world.outside.threads.get(THREAD) is None


async def test_j1_a_late_wake_up_does_nothing(stage: MakeStage) -> None:
    """The queue still holds a wake-up of before the deletion, and a message that waited."""
    world = stage(T("one"))
    await world.say("m1")
    await world.outside.deletion.delete(THREAD, RESOURCE)
    await world.outside.advance.advance(WakeUp(THREAD, 1))
    await world.settle()
    assert world.model.requests == []


async def test_j2_a_deletion_is_one_commit(stage: MakeStage) -> None:
    """Tombstone with the next incarnation, what is to purge, and a cancel for the active run."""
    gate = Gate()
    world = stage(HANG(gate))
    sent = await world.say("m1")
    async with _working(world, gate):
        await world.outside.deletion.delete(THREAD, RESOURCE)
        thread = await world.table.get(keys.thread(THREAD), keys.THREAD)
        assert thread is not None
        assert (thread.body["deleted"], thread.body["incarnation"], thread.index) == (True, 2, None)
        due = await world.table.index(keys.DUE_PURGE)
        assert [(item.partition, item.sort) for item in due] == [
            (keys.thread(THREAD), keys.purge(1))
        ]
        assert await world.table.get(P, keys.cancel(sent.run)) is not None
    assert (await world.kinds())[-1] == "finish"
    assert "abort" in await world.told()


async def test_j2_nothing_starts_in_a_deleted_thread(stage: MakeStage) -> None:
    """What was queued behind the run that is cut never runs."""
    gate = Gate()
    world = stage(HANG(gate), T("two"))
    await world.say("m1")
    await world.say("m2", queue=True)
    async with _working(world, gate):
        await world.outside.deletion.delete(THREAD, RESOURCE)
    await world.settle()
    assert len(world.model.requests) == 1
    active = await world.one(keys.ACTIVE)
    assert Active.of(active.body).status == "deleted"


async def test_j2_a_send_that_overlaps_counts_as_before_it(stage: MakeStage) -> None:
    """It read the thread, then the thread was deleted: its commit fails, and it makes it anew."""
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.settle()

    async def gone() -> None:
        await world.outside.deletion.delete(THREAD, RESOURCE)

    sender = world.process(Faults({("commit", 1): gone}))
    await world.say("m2", via=sender)
    await world.settle()
    new = await world.table.query(SECOND, keys.STEP_PREFIX)
    assert [item.body["kind"] for item in new] == ["input", "model", "finish"]


async def test_j2_all_is_cleared_away_twice_and_its_own_record_last(stage: MakeStage) -> None:
    world = stage(T("one"))
    sent = await world.say("m1")
    await world.settle()
    await world.outside.deletion.delete(THREAD, RESOURCE)
    world.clock.advance(SETTINGS.lease + 1)
    await world.outside.recover.tick()
    assert [item.sort for item in await world.table.query(P)] == [keys.ACTIVE]
    assert len(await world.table.query(keys.thread(THREAD), "PURGE#")) == 1
    await _purge(world)
    assert await world.table.query(P) == []
    assert await world.table.query(keys.thread(THREAD), "PURGE#") == []
    assert await world.table.get(keys.run(sent.run), keys.RUN) is None
    assert await world.coordinator.last(P) is None


async def test_j2_the_purge_waits_for_the_lease(stage: MakeStage) -> None:
    world = stage(T("one"))
    await world.say("m1")
    await world.settle()
    held = await world.coordinator.acquire(P, "somebody", 60_000)
    await world.outside.deletion.delete(THREAD, RESOURCE)
    world.clock.advance(SETTINGS.tick + 1)
    await world.outside.recover.tick()
    assert await world.kinds() == ["input", "model", "finish"]
    assert held is not None
    await world.coordinator.release(held)
    await _purge(world)
    assert await world.kinds() == []


async def test_j2_followers_get_an_end_marker_and_go_on_with_the_next(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.settle()
    following = await world.outside.follow.open(THREAD, RESOURCE, None)
    await world.outside.deletion.delete(THREAD, RESOURCE)
    world.clock.advance(SETTINGS.lease + 1)
    await world.outside.recover.tick()
    await world.say("m2")
    await world.settle()
    types = [chunk["type"] for chunk in await _shown(following)]
    assert types[:2] == ["thread-deleted", "start"]
    assert types[-1] == "finish"


async def test_j2_a_follower_is_let_go_when_another_resource_takes_the_name(
    stage: MakeStage,
) -> None:
    world = stage(T("one"), T("two"))
    await world.say("m1")
    await world.settle()
    following = await world.outside.follow.open(THREAD, RESOURCE, None)
    await world.outside.deletion.delete(THREAD, RESOURCE)
    await world.say("m2", resource="another", agent=OTHER)
    world.clock.advance(SETTINGS.lease + 1)
    await world.outside.recover.tick()
    with pytest.raises(Forbidden):
        await _shown(following)
