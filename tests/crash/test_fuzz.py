"""Many faults in one life, at places drawn at random; then a recovery, and all must be as ever.

`docs/design.md` 7.1, 7.2, 7.4, 7.5, 7.7, 7.9. More seeds: `FUZZ_SEEDS=1000`, from `FUZZ_FIRST` on.
A failure names the scenario, its seed and what was done to it. The flushes and the heartbeat come
when they come, so a seed that failed may need a few tries to fail again.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from shared.core import keys
from shared.core.errors import WakelineError
from tests.contract.faults import Fault, Faults
from tests.crash.scenarios import SCENARIOS, Scenario, say
from tests.crash.world import SETTINGS, THREAD, World, superseded
from tests.logs import whole_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from shared.bootstrap import System
    from tests.contract.faults import Rival

    Lives = Callable[[World, random.Random, list[str]], Coroutine[Any, Any, None]]

pytestmark = pytest.mark.anyio

FIRST = int(os.environ.get("FUZZ_FIRST", "0"))
SEEDS = int(os.environ.get("FUZZ_SEEDS", "3"))
LIMIT = 30
"""Seconds for one seed."""

AGE = SETTINGS.lease + SETTINGS.tick + 1
KILLS = (Fault.KILL_BEFORE, Fault.KILL_AFTER)
NO_ANSWER = (Fault.REFUSED, Fault.CUT)


class Drawn(Faults):
    """Each call may get no answer; `done` is told which. And the process may die, at one call."""

    def __init__(self, draw: random.Random, done: list[str], *, often: float, dies: bool) -> None:
        super().__init__({draw.randint(1, 60): draw.choice(KILLS)} if dies else {})
        self._draw, self._told, self._often = draw, done, often

    def _next(self, name: str) -> Fault | Rival | None:
        fault = super()._next(name)
        # Without a lease or the first message there is no life to disturb.
        spared = name == "acquire" or len(self.calls) == 1
        if fault is None and not spared and self._draw.random() < self._often:
            fault = self._draw.choice(NO_ANSWER)
        if isinstance(fault, Fault):
            self._told.append(f"{fault.name} {len(self.calls)} {name}")
        return fault


async def live(world: World, process: System, *, first: bool) -> None:
    """What a process does as long as it lives: the message, wake-ups and ticks, whatever fails."""
    if first:
        with suppress(WakelineError):
            await say(process, "m1", "go")
    for _ in range(4):
        with suppress(WakelineError):
            await world.work(process)
        world.clock.advance(AGE)
        with suppress(WakelineError):
            await process.recover.tick()


async def kills(world: World, draw: random.Random, done: list[str]) -> None:
    """One to three processes die, each anywhere."""
    for number in range(draw.randint(1, 3)):
        faults = Drawn(draw, done, often=0, dies=True)
        await world.die_in(faults, lambda p, number=number: live(world, p, first=number == 0))  # type: ignore[misc]
        world.clock.advance(AGE)


async def no_answers(world: World, draw: random.Random, done: list[str]) -> None:
    """One process, of whose calls every eighth gets no answer."""
    await live(world, world.process(Drawn(draw, done, often=0.12, dies=False)), first=True)


async def anything(world: World, draw: random.Random, done: list[str]) -> None:
    """Processes that die, calls without an answer, doubled wake-ups, and a log that is lost."""
    for number in range(draw.randint(1, 4)):
        faults = Drawn(draw, done, often=draw.choice([0, 0.05, 0.1]), dies=draw.random() < 0.8)
        await world.die_in(faults, lambda p, number=number: live(world, p, first=number == 0))  # type: ignore[misc]
        if draw.random() < 0.2:
            done.append("the log is lost")
            with world.database.transaction() as connection:
                connection.execute("DELETE FROM events")
                connection.execute("DELETE FROM logs")
        world.clock.advance(draw.choice([1, SETTINGS.tick, AGE]))


@asynccontextmanager
async def lived(
    scenario: Scenario, path: Path, lives: Lives, draw: random.Random, done: list[str]
) -> AsyncIterator[World]:
    """A world after some lives, a repeat of the message, and a recovery."""
    world = World(path, scenario.app)
    try:
        async with world.time_passes(), asyncio.timeout(LIMIT):
            await lives(world, draw, done)
            await say(world.outside, "m1", "go")
            await world.recover()
        yield world
    finally:
        world.database.close()


async def undisturbed(world: World, draw: random.Random, done: list[str]) -> None:
    """Nothing happens."""
    await live(world, world.process(), first=True)


async def problems(scenario: Scenario, world: World, expected: World) -> list[str]:
    """Give what does not hold."""
    found = []
    transcript = await world.transcript()
    if transcript != await expected.transcript():
        found.append(f"transcript: {transcript}")
    if waiting := await world.inbox():
        found.append(f"inbox: {waiting}")
    receipts = await world.receipts()
    if receipts != dict.fromkeys(scenario.signals, "delivered"):
        found.append(f"receipts: {receipts}")
    if await world.table.index(keys.due_runs(keys.shard(THREAD)), high=None):
        found.append("a run is still due")
    chunks = await world.chunks()
    if not any(chunk["type"] == "resync" for chunk in chunks):
        found += await told_wrongly(scenario, world, chunks, transcript)
    return found


async def told_wrongly(
    scenario: Scenario, world: World, chunks: list[dict[str, Any]], transcript: list[Any]
) -> list[str]:
    """Give what readers of a log without a gap were told wrongly."""
    found = []
    highest: dict[int, int] = {}
    for event in await whole_log(world.coordinator, keys.partition(THREAD, 1)):
        if event.index <= highest.get(event.id.start, -1):
            found.append(f"index {event.index} of {event.id} after {highest[event.id.start]}")
        highest[event.id.start] = event.index
    kept = superseded(chunks)
    shown = "".join(c["payload"]["text"] for c in kept if c["type"] == "text-delta")
    stored = "".join(
        part["text"]
        for row in transcript
        if row["role"] == "assistant"
        for part in row["parts"]
        if part["type"] == "text"
    )
    if shown != stored:
        found.append(f"shown {shown!r}, stored {stored!r}")
    types = Counter(c["type"] for c in kept)
    ends = {type: types[type] for type in ("finish", "abort", "error") if types[type]}
    if ends != Counter(scenario.ends):
        found.append(f"ends: {ends}")
    for type in ("tool-call", "tool-result"):
        ids = Counter(c["payload"]["toolCallId"] for c in chunks if c["type"] == type)
        if any(count > 1 for count in ids.values()):
            found.append(f"{type}: {ids}")
    return found


@pytest.mark.parametrize("lives", [kills, no_answers, anything], ids=lambda f: f.__name__)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
@pytest.mark.timeout(60 + SEEDS * 2)
async def test_after_any_faults_all_is_as_ever(
    scenario: Scenario, lives: Lives, tmp_path: Path
) -> None:
    """Each seed is another interleaving."""
    wrong = []
    none = random.Random(0)  # noqa: S311 - it draws nothing
    async with lived(scenario, tmp_path / "undisturbed", undisturbed, none, []) as expected:
        for seed in range(FIRST, FIRST + SEEDS):
            draw = random.Random(f"{scenario.name} {lives.__name__} {seed}")  # noqa: S311
            done: list[str] = []
            try:
                async with lived(scenario, tmp_path / f"{seed}", lives, draw, done) as world:
                    found = await problems(scenario, world, expected)
            except Exception as error:
                found = [repr(error)]
            if found:
                wrong.append(f"seed {seed}: {'; '.join(found)}; after {', '.join(done)}")
    assert not wrong, f"{len(wrong)} of {SEEDS}:\n" + "\n".join(wrong[:5])
