"""A provider that asks for a pause: it gets it, nobody counts it as a crash, a cancel ends it.

`docs/protocols.md` F4, B4, A9; `docs/design.md` 9.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from shared.core.limits import MAX_CLAIMS
from tests.apps.script import E, T, Tries
from tests.contract.waiting import until
from tests.crash.world import RESOURCE, SETTINGS, THREAD
from tests.protocol.stage import WAKE, Hooks

if TYPE_CHECKING:
    from tests.crash.conftest import MakeStage

pytestmark = pytest.mark.anyio

PAUSE = SETTINGS.longest_pause + 40_000
BUSY = E("slow down", retryable=True, retry_after=PAUSE)


async def test_a_provider_is_left_alone_for_as_long_as_it_asked(stage: MakeStage) -> None:
    """F4, H1: the run is handed over with a delayed wake-up, but a tick finds it due before."""
    world = stage(Tries(BUSY, T("done")))
    sent = await world.say("m1")
    await world.settle()
    assert world.model.played[0] == 1
    begun = world.clock.now()
    while world.clock.now() + SETTINGS.tick < begun + PAUSE:
        world.clock.advance(SETTINGS.tick)
        assert await world.outside.recover.tick() == 0
        await world.settle()
    assert world.model.played[0] == 1
    world.forget_wakes()  # of the two, the tick alone is enough
    world.clock.advance(SETTINGS.tick)
    assert await world.outside.recover.tick() == 1
    await world.settle()
    assert await world.status(sent.run) == "completed"


@pytest.mark.parametrize("by", ["queue", "tick"])
async def test_patience_is_no_crash(stage: MakeStage, by: str) -> None:
    """B4: each hand-over is followed by a claim, without any progress; no worker has died."""
    world = stage(Tries(*[BUSY] * (MAX_CLAIMS + 2), T("done")))
    sent = await world.say("m1")
    for _ in range(MAX_CLAIMS + 3):
        await world.settle()
        world.clock.advance(PAUSE)
        if by == "tick":
            world.forget_wakes()
            await world.outside.recover.tick()
    assert await world.status(sent.run) == "completed"
    assert (await world.kinds()).count("claim") == MAX_CLAIMS + 2


async def test_crashes_between_hand_overs_still_count(stage: MakeStage) -> None:
    """B4: the owner paused once; whoever takes over dies, five times, at the same place."""
    world = stage(Tries(BUSY, T("done")))
    sent = await world.say("m1")
    await world.settle()
    world.clock.advance(PAUSE)
    for _ in range(MAX_CLAIMS):
        await world.die_in_other(world.process(Hooks.killing(after="claim")))
        world.clock.advance(SETTINGS.lease + 1)
    await world.heal()
    assert await world.status(sent.run) == "failed"
    assert world.model.played[0] == 1


async def test_a_cancel_ends_a_pause(stage: MakeStage) -> None:
    """A9: seen within 2 s, also while the loop waits for up to 20 s before its next attempt."""
    world = stage(Tries(E("busy", retryable=True, retry_after=19_000), T("done")))
    await world.say("m1")
    owner = asyncio.create_task(world.outside.advance.advance(WAKE))

    async def sleepers() -> int:
        return world.clock.sleepers

    await until(sleepers, 1)
    assert await world.process().accept.abort(THREAD, RESOURCE)
    await asyncio.wait_for(owner, 10)  # though the clock stands still
    assert (await world.told())[-1] == "abort"
    assert world.model.played[0] == 1


async def test_a_cancel_ends_a_pause_that_was_handed_over(stage: MakeStage) -> None:
    """A9, F4: nobody has the thread while it waits; the cancel's wake-up takes it, and ends it."""
    world = stage(Tries(BUSY, T("done")))
    await world.say("m1")
    await world.settle()
    assert await world.outside.accept.abort(THREAD, RESOURCE)
    await world.settle()
    assert (await world.told())[-1] == "abort"
    assert world.model.played[0] == 1
