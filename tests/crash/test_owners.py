"""Many owners at once, with a lease and without (`docs/design.md` 7.3, 7.4, 7.6)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shared.ports import Lease
from tests.apps.script import C, T
from tests.contract.faults import Faults
from tests.crash.world import SETTINGS
from tests.protocol.stage import WAKE, Lying, Stage

if TYPE_CHECKING:
    from shared.bootstrap import System
    from tests.protocol.conftest import MakeStage

pytestmark = pytest.mark.anyio


class Generous(Lying):
    """A Coordinator that gives the lease to everybody."""

    async def acquire(self, log: str, token: str, ttl: int) -> Lease | None:
        return Lease(log, token, 1, await self._coordinator.last(log), -1)


def _owner(world: Stage) -> System:
    backend = world.process().backend
    return world.over(replace(backend, coordinator=Generous(world.coordinator, Faults())))


@pytest.mark.parametrize("honest", [True, False], ids=["10 owners", "3 owners, all with a lease"])
async def test_parallel_owners_make_one_run(stage: MakeStage, honest: bool) -> None:
    """Where Redis lies to all of them, the journal alone decides who goes on, at every position.

    More than five that take over from one another without getting any further would end the run
    (B4). What the liars told went nowhere: the recovery sends readers to the journal.
    """
    world = stage(C(("c1", "none", {})), C(("c2", "none", {})), T("done"))
    sent = await world.say("m1")
    owners = [world.process() for _ in range(10)] if honest else [_owner(world) for _ in range(3)]
    async with world.time_passes():
        for _ in range(3):
            await asyncio.gather(*(owner.advance.advance(WAKE) for owner in owners))
    world.clock.advance(SETTINGS.lease + 1)
    await world.heal()
    kinds = [kind for kind in await world.kinds() if kind != "claim"]
    assert kinds == ["input", "model", "result", "model", "result", "model", "finish"]
    assert not honest or "claim" not in await world.kinds()
    assert await world.status(sent.run) == "completed"
    assert await world.receipts() == {"m1": "delivered"}
    told = await world.told()
    assert told.count("finish") == 1 if honest else told == ["resync"]
