"""Threads that are made and changed, beside sends and deletions (docs/protocols.md J1, J2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.core import keys
from shared.core.errors import Conflict, Forbidden, NotFound, Unavailable
from shared.core.records import Thread
from shared.services.accept import Target
from tests.apps.script import HANG, Gate, T
from tests.contract.faults import ALL, Fault, Faults
from tests.crash.world import RESOURCE, THREAD
from tests.protocol.making import record
from tests.protocol.stage import AGENT, PERSIST, Hooks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shared.services.editing import Editing
    from tests.protocol.conftest import MakeStage
    from tests.protocol.stage import Stage

pytestmark = pytest.mark.anyio


def editing(world: Stage, *, before_commit: Callable[[], Awaitable[None]]) -> Editing:
    return world.process(Faults({("commit", 1): before_commit})).editing


async def stored(world: Stage) -> Thread:
    found = await world.table.get(keys.thread(THREAD), keys.THREAD)
    assert found
    return Thread.of(found.body)


async def done(world: Stage) -> None:
    await world.say("m1")
    await world.settle()


async def test_j2_no_change_brings_a_deleted_thread_back(stage: MakeStage) -> None:
    world = stage(T("one"))
    await done(world)

    async def gone() -> None:
        await world.outside.deletion.delete(THREAD, RESOURCE)

    with pytest.raises(NotFound):
        await editing(world, before_commit=gone).update(THREAD, RESOURCE, "new")
    found = await stored(world)
    assert (found.deleted, found.title, found.incarnation) == (True, "", 2)
    with pytest.raises(NotFound):
        await world.outside.editing.transfer(THREAD, RESOURCE, "another")


async def test_j2_no_transfer_brings_a_deleted_thread_back(stage: MakeStage) -> None:
    world = stage(T("one"))
    await done(world)

    async def gone() -> None:
        await world.outside.deletion.delete(THREAD, RESOURCE)

    with pytest.raises(NotFound):
        await editing(world, before_commit=gone).transfer(THREAD, RESOURCE, "another")
    assert (await stored(world)).deleted


async def test_j1_a_thread_may_be_made_in_the_place_of_a_deleted_one(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    await done(world)

    async def gone() -> None:
        await world.outside.deletion.delete(THREAD, RESOURCE)

    made = await editing(world, before_commit=gone).create(THREAD, RESOURCE, "new")
    assert (made.incarnation, made.title, made.deleted) == (2, "new", False)
    await world.say("m1")
    rows = (await world.outside.threads.messages(THREAD, RESOURCE, 0, 10)).total
    assert rows == 0  # nothing of the old one
    taken = await world.outside.threads.list(RESOURCE, 0, 10)
    assert [t.title for t in taken.items] == ["new"]


async def test_j2_two_changes_at_once_both_count(stage: MakeStage) -> None:
    world = stage(T("one"))
    await done(world)

    async def rival() -> None:
        await world.outside.editing.update(THREAD, RESOURCE, metadata={"by": "rival"})

    await editing(world, before_commit=rival).update(THREAD, RESOURCE, "new")
    found = await stored(world)
    assert (found.title, found.metadata) == ("new", {"by": "rival"})


async def test_j2_a_send_that_makes_the_thread_meanwhile_and_a_create_both_count(
    stage: MakeStage,
) -> None:
    world = stage(T("one"))

    async def send() -> None:
        await world.say("m1")

    made = await editing(world, before_commit=send).create(THREAD, RESOURCE, "new")
    assert made.title == "new"
    await world.settle()
    assert await world.receipts() == {"m1": "delivered"}

    async def theirs() -> None:
        await world.outside.editing.create("other", "another", "theirs")

    with pytest.raises(Forbidden):
        await editing(world, before_commit=theirs).create("other", RESOURCE, "mine")


async def test_a_transfer_waits_for_what_runs_and_for_what_waits(stage: MakeStage) -> None:
    gate = Gate()
    world = stage(HANG(gate), T("two"))
    await world.say("m1")
    transfer = world.outside.editing.transfer

    async def refused(_: object = None) -> None:
        with pytest.raises(Conflict):
            await transfer(THREAD, RESOURCE, "another")

    await refused()  # reserved
    gate.open()
    await world.settle(Hooks(after={"input": refused, "model": refused}))
    await world.say("m2", behaviour=PERSIST)
    await refused()  # something waits
    await world.settle()
    given = await transfer(THREAD, RESOURCE, "another")
    assert given.resource == "another"
    assert await transfer(THREAD, None, "another") == given
    with pytest.raises(Forbidden):
        await transfer(THREAD, RESOURCE, RESOURCE)


async def test_a_send_that_wakes_the_thread_before_a_transfer_commits_wins(
    stage: MakeStage,
) -> None:
    world = stage(T("one"), T("two"))
    await done(world)

    async def wake() -> None:
        await world.say("m2")

    with pytest.raises(Conflict):
        await editing(world, before_commit=wake).transfer(THREAD, RESOURCE, "another")
    assert (await stored(world)).resource == RESOURCE


async def test_the_runs_of_a_thread_go_with_it(stage: MakeStage) -> None:
    world = stage(T("one"), T("two"))
    sent = await world.say("m1")
    await world.settle()
    await world.outside.editing.transfer(THREAD, RESOURCE, "another")
    with pytest.raises(Forbidden):
        await world.outside.threads.run(sent.run, RESOURCE)
    with pytest.raises(Forbidden):
        await world.say("m2")
    head, thread = await world.outside.threads.run(sent.run, "another")
    assert (head.run, thread.resource) == (sent.run, "another")
    signal = (await world.say("m3", resource="another")).signal
    assert signal.id == "m3"
    for resource, allowed in (("another", True), (RESOURCE, False), ("third", False)):
        target = Target(AGENT, None, resource, sent.run)
        again = type(signal).from_record(record(f"by {resource}"))
        if allowed:
            await world.outside.accept.send(target, again)
        else:
            with pytest.raises(Forbidden):
                await world.outside.accept.send(target, again)


async def test_without_an_answer_a_change_says_so(stage: MakeStage) -> None:
    world = stage(T("one"))
    await done(world)
    faults = Faults({("commit", 1): Fault.REFUSED})
    with pytest.raises(Unavailable):
        await world.process(faults).editing.update(THREAD, RESOURCE, "new")
    always = Faults({("commit", n): Fault.CONFLICT for n in range(1, 30)})
    with pytest.raises(Unavailable):
        await world.process(always).editing.update(THREAD, RESOURCE, "new")
    assert ALL > len(always.calls) > 20
    assert (await stored(world)).title == ""
