"""Committed, and not told: whatever goes on from there tells it first, or leaves it to the tick.

`docs/protocols.md` A7, B2, D4, F2; `docs/design.md` 7.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.core.errors import Unavailable
from shared.ports import WakeUp
from tests.apps.script import C, T
from tests.contract.faults import Fault, Faults
from tests.crash.world import SETTINGS, THREAD
from tests.protocol.stage import PERSIST, Hooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.ports import Write
    from tests.crash.conftest import MakeStage

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("fault", [Fault.KILL_BEFORE, Fault.KILL_AFTER], ids=lambda f: f.name)
@pytest.mark.parametrize("second", ["keep", "wake"])
async def test_a_kept_signal_is_told_before_the_next_run_begins(
    stage: MakeStage, second: str, fault: Fault
) -> None:
    """B2: a kept signal is a run of one entry; it is committed, and its owner dies at the append.

    Had it begun the next run before that, the log would go on above the note, which no later owner
    would miss: it looks for what is above the log's end.
    """
    world = stage(T("one"), T("two"))
    await world.say("m0")
    await world.settle()
    await world.say("k1", behaviour=PERSIST)
    await world.say("m2", behaviour=PERSIST if second == "keep" else None)
    await world.die(Faults({("append", 1): fault}))
    await world.heal()
    echoes = [c["data"]["id"] for c in await world.chunks() if c["type"] == "data-user-message"]
    assert echoes == ["m0", "k1", "m2"]
    assert (await world.told()).count("finish") == 3


async def test_a_finish_that_was_not_told_keeps_its_run_in_the_index(stage: MakeStage) -> None:
    """F2: a tick's wake-up names a run that is still live, since its owner died.

    The new owner finishes it, and from then on the log does not answer as long as the lease lasts.
    Being named by a wake-up does not mean that its end was told: only the tick is left to find it.
    """
    world = stage(C(("c1", "none", {})), T("done"))
    sent = await world.say("m1")
    await world.die(Hooks.killing(before="result"))
    world.forget_wakes()
    world.clock.advance(SETTINGS.lease + SETTINGS.tick)
    assert await world.outside.recover.tick() == 1
    assert [run for _, run in world.wakes()] == [sent.run]
    hooks = Hooks()

    async def no_answer() -> None:
        world.clock.advance(SETTINGS.lease + 1)
        raise Unavailable("injected")

    async def down(_: Sequence[Write]) -> None:
        hooks.plan.update({("append", n): no_answer for n in range(1, 99)})

    hooks.actions["after", "finish"] = down
    async with world.time_passes():
        await world.process(hooks).advance.advance(WakeUp(THREAD, 1, sent.run))
    world.forget_wakes()
    assert (await world.kinds())[-1] == "finish"
    assert "finish" not in await world.told()
    await world.heal()
    assert (await world.told()).count("finish") == 1
    assert await world.due("runs") == []
