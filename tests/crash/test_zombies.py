"""Who was given up and comes back: a frozen owner's commit, a model client that does not stop.

`docs/protocols.md` B4, C2, F2; `docs/design.md` 7.3, 7.6.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from shared.core.model import Finished, TextDelta, TextEnded, TextStarted
from shared.ports import WakeUp
from shared.services import model_call
from tests.apps.script import T
from tests.contract.faults import Faults
from tests.crash.beside import beside
from tests.crash.world import RESOURCE, SETTINGS, THREAD
from tests.protocol.stage import AGENT, WAKE, Deaf, Hooks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from shared.core.model import ModelPart, ModelRequest
    from shared.ports import Write
    from tests.crash.conftest import MakeStage
    from tests.protocol.stage import Stage

pytestmark = pytest.mark.anyio


class FrozenFinish:
    """An owner that is frozen while its finish commit is on its way; the lease runs out."""

    def __init__(self, world: Stage) -> None:
        self._world = world
        self._go, self._landed = asyncio.Event(), asyncio.Event()

    async def begin(self) -> str:
        """Get there; give the run."""
        world, reached = self._world, asyncio.Event()
        sent = await world.say("m1")

        async def hold(_: Sequence[Write]) -> None:
            reached.set()
            await self._go.wait()

        async def landed(_: Sequence[Write]) -> None:
            self._landed.set()

        hooks = Hooks(before={"finish": hold}, after={"finish": landed})
        frozen = world.frozen(hooks, Deaf)
        self._task = asyncio.create_task(frozen.advance.advance(WAKE))
        await reached.wait()
        world.clock.advance(SETTINGS.lease + 1)
        return sent.run

    async def lands(self) -> None:
        """The held commit arrives, now."""
        self._go.set()
        waits = {self._task, asyncio.ensure_future(self._landed.wait())}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits - {self._task}:
            each.cancel()

    async def end(self) -> None:
        """Let it go on, if it has not."""
        self._go.set()
        await self._task


async def test_a_finish_that_lands_between_any_two_calls_of_the_next_owner(
    stage: MakeStage,
) -> None:
    """The old owner's finish lands just before the n-th call of the new one, for each n.

    B4: no claim is ever written after a finish. F2: a finish that nobody told keeps its run in the
    index, so that a tick finds it, also if the new owner read ACTIVE before it and the journal
    after it, or the other way round, or was told the run's name by the tick.
    """
    world = stage(T("done"))
    frozen = FrozenFinish(world)
    run = await frozen.begin()
    plain = Faults()
    async with world.time_passes():
        await world.process(plain).advance.advance(WakeUp(THREAD, 1, run))
    await frozen.end()
    for number, name in enumerate(plain.calls, 1):
        where = f"{number} ({name})"
        world = stage(T("done"))
        frozen = FrozenFinish(world)
        run = await frozen.begin()
        process = world.process(Faults({number: frozen.lands}))
        async with world.time_passes():
            await process.advance.advance(WakeUp(THREAD, 1, run))
        await frozen.end()
        stored = await world.kinds()
        assert stored.count("finish") == 1, where
        assert stored[-1] == "finish", where
        told = "finish" in await world.told()
        assert told or await world.due("runs"), f"{where}: untold, and out of the index"
        await world.heal()
        assert (await world.told()).count("finish") == 1, where
        assert await world.due("runs") == [], where
        assert len(world.model.requests) == 1, where


class Stubborn:
    """A model client that goes on after it was cut, until the next call is under way."""

    name = "script/stubborn"

    def __init__(self) -> None:
        self.calls = 0
        self.started, self._next, self._said = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        self.calls += 1
        if self.calls > 1:
            yield TextStarted("t")
            yield TextDelta("t", "second")
            self._next.set()
            await self._said.wait()
            yield TextEnded("t")
            yield Finished("stop")
            return
        yield TextStarted("t")
        yield TextDelta("t", "first")
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await self._next.wait()  # a shielded close of its connection; then what was buffered
        self._said.set()
        yield TextDelta("t", " ZOMBIE")
        yield Finished("stop")


async def test_a_model_client_that_does_not_stop_tells_nothing(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C2: a run is cancelled and its model call cut; the client yields on during the next run.

    What it says must not be told at that run's place, nor stored there.
    """
    monkeypatch.setattr(model_call, "CLOSING", 0.01)
    model = Stubborn()
    world = stage()
    world.app.agent(AGENT).model = model
    await world.say("m1")
    async with beside(world.settle()):
        await model.started.wait()
        await world.say("m2", queue=True)
        assert await world.outside.accept.abort(THREAD, RESOURCE)
    assert await world.told_texts() == ["first", "second"]
    assert "ZOMBIE" not in world.everything()
    assert [t for t in await world.told() if t in ("abort", "finish")] == ["abort", "finish"]
