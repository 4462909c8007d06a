"""A server is killed with kill -9 at the worst moments, and started again: nobody notices.

`docs/design.md` 7.1, 7.2, 7.4, 7.5, 7.7, with real processes and HTTP.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.e2e.servers import Machine, Reader, in_order, machine_in, until, until_stored
from tests.logs import text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

PAUSES = {"DELTA_MS": 400, "TOOL_MS": 2_000}
RESUMED_WITHIN = 5 + 2 + 3
"""Seconds: a lease, a tick, and a busy machine."""


@dataclass
class Talk:
    """What goes on in one thread, until somebody kills the server."""

    machine: Machine
    thread: str
    reader: Reader
    die: Callable[[], Awaitable[None]]

    async def say(self, agent: str, text: str) -> None:
        await self.machine.send(self.thread, text, agent)

    async def tool_starts(self, count: int) -> None:
        calls = self.machine.calls
        await until(lambda: len(calls(self.thread)) >= count, f"{count} tool calls")

    async def deltas(self, count: int) -> None:
        await until(lambda: self.reader.count("text-delta") >= count, f"{count} deltas")


async def in_the_model_call(talk: Talk) -> None:
    await talk.say("echo", "hello brave new world")
    await talk.deltas(2)
    await talk.die()


async def twice_in_the_model_call(talk: Talk) -> None:
    await talk.say("echo", "hello brave new world")
    await talk.deltas(3)
    await talk.die()
    await talk.deltas(5)
    await talk.die()


async def as_soon_as_a_message_is_accepted(talk: Talk) -> None:
    await talk.say("echo", "hello brave new world")
    await talk.die()


async def in_the_tool(talk: Talk) -> None:
    await talk.say("tool", "call wait")
    await talk.tool_starts(1)
    await talk.die()


async def in_the_model_call_after_the_tool(talk: Talk) -> None:
    await talk.say("tool", "call wait")
    await talk.deltas(1)
    await talk.die()


async def in_the_second_tool_of_three(talk: Talk) -> None:
    await talk.say("slow", "steps 3")
    await talk.tool_starts(2)
    await talk.die()


async def with_a_message_in_mid_run(talk: Talk) -> None:
    await talk.say("slow", "steps 2")
    await talk.tool_starts(1)
    await talk.say("slow", "and this")
    await talk.die()


@dataclass(frozen=True)
class Case:
    life: Callable[[Talk], Awaitable[None]]
    answer: str
    calls: tuple[int, ...] = ()
    """How often each tool call was started, in the order of the calls."""

    signals: int = 1


HELLO = "echo: hello brave new world"
CASES = (
    Case(in_the_model_call, HELLO),
    Case(twice_in_the_model_call, HELLO),
    Case(as_soon_as_a_message_is_accepted, HELLO),
    Case(in_the_tool, 'answer: {"n":0}', (2,)),
    Case(in_the_model_call_after_the_tool, 'answer: {"n":0}', (1,)),
    Case(in_the_second_tool_of_three, 'seen: ["steps 3"]', (1, 2, 1)),
    Case(with_a_message_in_mid_run, 'seen: ["steps 2","and this"]', (2, 1), signals=2),
)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with machine_in(tmp_path) as machine:
        yield machine


async def nothing() -> None:
    """Happens in an undisturbed life."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.life.__name__)
async def test_a_run_goes_on_by_itself_after_kill_9(machine: Machine, case: Case) -> None:
    server = await machine.start(**PAUSES)
    before = await machine.reader("hurt").connected()
    after: list[Reader] = []

    async def die() -> None:
        nonlocal server
        server.kill()
        seen = len(await machine.store.journal("hurt"))

        async def goes_on() -> bool:
            return len(await machine.store.journal("hurt")) > seen

        server = await machine.start(**PAUSES)
        after.append(await machine.reader("hurt").connected())
        await until_stored(goes_on, "the run goes on by itself", RESUMED_WITHIN)
        await before.connected()

    await case.life(Talk(machine, "hurt", before, die))
    await before.end()

    log = await machine.store.log("hurt")
    for reader in (before, *after):
        await reader.reaches(log[-1]["cursor"])
        assert in_order(reader.chunks)
        assert reader.chunks == log, "each event once, from the run's start to its end"
        assert text_of(reader.chunks) == case.answer
        assert [end["type"] for end in reader.ends()] == ["finish"]
    assert before.connections == 1 + len(after)
    late = await machine.reader("hurt", cursor=log[0]["cursor"]).end()
    assert late == log[-1]

    started, ended = Counter(machine.calls("hurt")), Counter(machine.calls("hurt", "end"))
    assert tuple(started.values()) == case.calls
    assert ended == dict.fromkeys(started, 1)
    assert list((await machine.store.receipts("hurt")).values()) == ["delivered"] * case.signals
    assert await machine.store.inbox("hurt") == []
    assert (await machine.store.kinds("hurt")).count("finish") == 1

    calm = await machine.reader("calm").connected()
    await case.life(Talk(machine, "calm", calm, nothing))
    await calm.end()
    assert await machine.transcript("hurt") == await machine.transcript("calm")
