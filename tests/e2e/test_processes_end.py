"""A server is told to end in mid-run: it ends at once, and another one goes on (`F4`)."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.e2e.servers import Machine, in_order, machine_in, until, until_stored
from tests.logs import text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

ENDS_WITHIN = 3.0
GOES_ON_WITHIN = 3.5
"""Seconds after the first server's end; its lease, if it were still held, would last 4 at least."""


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with machine_in(tmp_path) as machine:
        yield machine


@pytest.mark.parametrize(
    ("pauses", "agent", "text", "answer", "starts"),
    [
        pytest.param({"DELTA_MS": 1_000}, "echo", "hi there", "echo: hi there", (), id="model"),
        pytest.param({"TOOL_MS": 4_000}, "tool", "call wait", 'answer: {"n":0}', (2,), id="tool"),
        pytest.param(
            {"TOOL_MS": 500}, "slow", "steps 4", 'seen: ["steps 4"]', (1, 1, 1, 1), id="steps"
        ),
    ],
)
async def test_f4_a_run_is_handed_over_when_its_server_is_told_to_end(
    machine: Machine,
    pauses: dict[str, int],
    agent: str,
    text: str,
    answer: str,
    starts: tuple[int, ...],
) -> None:
    first, second = await machine.start_two(**pauses)
    own = await machine.reader("thread", first).connected()
    run = (await machine.send("thread", text, agent, first))["runId"]
    await until(lambda: own.count("text-delta") or machine.calls("thread"), "work under way")
    second.thaw()
    reader = await machine.reader("thread", second).connected()
    assert "claim" not in await machine.store.kinds("thread"), "the first server still has it"

    assert await first.terminate() < ENDS_WITHIN
    ended = time.monotonic()

    async def claimed() -> bool:
        return "claim" in await machine.store.kinds("thread")

    await until_stored(claimed, f"{second.url} goes on")
    went_on = time.monotonic() - ended
    await reader.end(run)
    log = await machine.store.log("thread")
    await reader.reaches(log[-1]["cursor"])
    assert reader.chunks == log
    assert in_order(log)
    assert [end["type"] for end in reader.ends()] == ["finish"]
    assert text_of(log) == answer
    assert tuple(Counter(machine.calls("thread")).values()) == starts
    assert went_on < GOES_ON_WITHIN


async def test_a_tool_that_blocks_a_thread_does_not_delay_the_end(machine: Machine) -> None:
    server = await machine.start(BLOCK_MS=30_000)
    await machine.send("thread", "call block_thread", "tool")
    await until(lambda: machine.calls("thread"), "the tool blocks")
    assert await server.terminate() < ENDS_WITHIN


async def test_open_streams_and_idle_threads_do_not_delay_the_end(machine: Machine) -> None:
    server = await machine.start()
    readers = [await machine.reader(f"thread {n}").connected() for n in range(20)]
    await machine.send("thread 0", "hello")
    await readers[0].end()
    assert await server.terminate() < ENDS_WITHIN
