"""What belongs to another resource stays there (`docs/protocols.md` I2, J1; `docs/design.md` 7.10).

The plain ways are in `tests/protocol`, `tests/readers` and `tests/e2e`; these are the roundabout
ones, over crashes and ids that a caller may choose.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from shared.core import keys
from shared.core.errors import Forbidden
from shared.core.signal_input import parse_signal
from shared.core.tool import tool
from shared.services.accept import Target
from tests.apps.script import HANG, C, Gate, T
from tests.contract.faults import Fault
from tests.crash.beside import beside
from tests.crash.world import THREAD
from tests.protocol.stage import AGENT, NOW, PERSIST, Hooks

if TYPE_CHECKING:
    from shared.services.follow import Following
    from tests.crash.conftest import MakeStage

pytestmark = pytest.mark.anyio


async def test_a_log_that_was_never_told_shows_nothing_to_a_stranger(stage: MakeStage) -> None:
    """I2, D5: somebody follows a thread id that does not exist yet, and another resource takes it.

    The Coordinator takes no event until the run's owner dies, so the first that the log holds is
    the new owner's `resync`: not a `start`, at which followers are checked. What it sends to the
    journal for is checked all the same.
    """

    @tool
    async def act() -> str:
        return "a result of B"

    world = stage(C(("c1", "act", {})), T("the secret of B"), tools=[act])
    stranger = await world.outside.follow.open(THREAD, "mallory", None)
    await world.say("m1", "a message of B")
    unheard = {("append", n): Fault.REFUSED for n in range(1, 50)}
    await world.die(Hooks.killing(before="finish", plan=unheard))
    assert await world.events() == []
    await world.heal()
    assert (await world.told())[0] == "resync"
    shown: list[str] = []
    with pytest.raises(Forbidden):
        await follow(stranger, shown)
    assert " of B" not in "".join(shown)


async def follow(following: Following, shown: list[str]) -> None:
    async with aclosing(following.batches(0)) as batches:
        async for batch in batches:
            shown += [event.json for event in batch]


async def test_a_purge_leaves_the_runs_of_other_threads(stage: MakeStage) -> None:
    """J1: a kept signal whose id, which its sender chooses, is the name of somebody else's run.

    The sender deletes its own thread: what the purge clears away goes by the runs of that thread,
    not by what its records say.
    """
    gate = Gate()
    world = stage(HANG(gate))
    victim = await world.say("m1")
    async with world.time_passes(), beside(world.work(world.outside)):
        await gate.reached.wait()
        signal = parse_signal(
            {"id": victim.run, "type": "user", "contents": "x"}, id=victim.run, now=NOW
        )
        mine = Target(AGENT, "mine", "mallory")
        await world.outside.accept.send(mine, signal, PERSIST)
        await world.work(world.process())
        await world.outside.deletion.delete("mine", "mallory")
        await world.process().recover.tick()
        assert await world.table.query(keys.partition("mine", 1), keys.STEP_PREFIX) == []
        assert await world.table.get(keys.run(victim.run), keys.RUN)
        gate.open()
    assert await world.status(victim.run) == "completed"
