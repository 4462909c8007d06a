"""Every port call of a scenario is a fault point: killed before or after it, refused, reply lost.

Then one recovery, and the same transcript as without the fault.

`docs/design.md` 7.1, 7.2, 7.4, 7.5, 7.7, 7.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.faults import Fault, Faults
from tests.crash.scenarios import SCENARIOS, Scenario, say
from tests.crash.world import World, superseded

if TYPE_CHECKING:
    from pathlib import Path

    from shared.bootstrap import System

FAULTS = (Fault.KILL_BEFORE, Fault.KILL_AFTER, Fault.REFUSED, Fault.CUT)
pytestmark = pytest.mark.anyio


async def _live(scenario: Scenario, path: Path, faults: Faults) -> World:
    """One life of a process, then the repeat of the message, and a recovery."""
    world = World(path, scenario.app)

    async def life(process: System) -> None:
        await scenario.life(world, process)

    async with world.time_passes():
        await world.die_in(faults, life)
        await say(world.outside, "m1", "go")
    async with world.time_passes():
        await world.recover()
    return world


def _shape(chunks: list[dict[str, Any]]) -> list[str]:
    kinds = [c["type"] for c in superseded(chunks)]
    return [kind for kind in kinds if kind not in ("text-delta", "text-start", "text-end")]


async def _check(scenario: Scenario, world: World, expected: World, where: str) -> None:
    assert await world.transcript() == await expected.transcript(), where
    assert await world.inbox() == [], where
    receipts = await world.receipts()
    assert receipts == dict.fromkeys(scenario.signals, "delivered"), where
    chunks = await world.chunks()
    ends = tuple(c["type"] for c in chunks if c["type"] in ("finish", "abort", "error"))
    assert ends == scenario.ends, where
    assert max(world.calls.values(), default=0) <= 2, (where, world.calls)
    assert sorted(_shape(chunks)) == sorted(_shape(await expected.chunks())), where


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
async def test_every_port_call_may_fail(scenario: Scenario, fault: Fault, tmp_path: Path) -> None:
    faults = Faults()
    undisturbed = await _live(scenario, tmp_path / "undisturbed", faults)
    names = list(faults.calls)
    assert max(undisturbed.calls.values(), default=1) == 1
    for number, name in enumerate(names, 1):
        where = f"{scenario.name}: {fault.name} at {number} ({name}) of {len(names)}"
        world = await _live(scenario, tmp_path / f"{number}", Faults({number: fault}))
        await _check(scenario, world, undisturbed, where)
    print(f"{scenario.name}: {len(names)} points {fault.name}")
