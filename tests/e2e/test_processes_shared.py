"""Two servers on one database file: whoever owns a run, both serve it."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.servers import (
    Machine,
    in_order,
    machine_in,
    send,
    until,
    until_stored,
)
from tests.logs import text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.e2e.servers import Server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

LEASE, TICK, MARGIN = 5.0, 2.0, 3.0


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with machine_in(tmp_path) as machine:
        yield machine


async def two(machine: Machine, **pauses: int) -> tuple[Server, Server]:
    first, second = await asyncio.gather(machine.start(**pauses), machine.start(**pauses))
    return first, second


async def test_what_one_server_is_sent_is_seen_on_the_other(machine: Machine) -> None:
    one, other = await two(machine, DELTA_MS=30, TOOL_MS=50)
    names = [f"thread {n}" for n in range(5)]
    readers = {name: await machine.reader(name, other).connected() for name in names}
    for text in ("steps 1", "steps 2", "steps 3"):
        sent = await asyncio.gather(*(machine.send(name, text, "slow", one) for name in names))
        for name, answer in zip(names, sent, strict=True):
            await readers[name].end(answer["runId"])
    for name, reader in readers.items():
        log = await machine.store.log(name)
        await reader.reaches(log[-1]["cursor"])
        assert reader.chunks == log, "each event once, in order, and nothing left out"
        assert in_order(log)
        assert [end["type"] for end in reader.ends()] == ["finish"] * 3
        assert len(machine.calls(name)) == len(set(machine.calls(name))) == 6


async def test_a9_a_run_is_stopped_through_any_server_within_two_seconds(machine: Machine) -> None:
    one, other = await two(machine, TOOL_MS=30_000, DELTA_MS=30_000)
    agents = {f"thread {n}": "tool" if n % 2 else "echo" for n in range(6)}
    readers = {name: await machine.reader(name, one).connected() for name in agents}
    for name, agent in agents.items():
        await machine.send(name, "call wait", agent, other if name > "thread 2" else one)
        await until(lambda: readers[name].count("step-start"), f"{name} is under way")  # noqa: B023
    async with other.client() as client:
        for name, agent in agents.items():
            url, body = f"/api/agents/{agent}/threads/abort", {"threadId": name}
            asked = time.monotonic()
            assert (await client.post(url, json=body)).json() == {"aborted": True}
            assert (await readers[name].end())["type"] == "abort"
            assert time.monotonic() - asked < 2 + 1.5
    for name in agents:
        assert (await machine.store.kinds(name))[-1] == "finish"
        assert await machine.store.inbox(name) == []


async def test_h1_when_the_owner_is_killed_the_other_server_takes_over(machine: Machine) -> None:
    first, second = await machine.start_two(DELTA_MS=500)
    reader = await machine.reader("thread", first).connected()
    run = (await machine.send("thread", "hello brave new world", server=first))["runId"]
    await until(lambda: reader.count("text-delta"), "an answer under way")
    second.thaw()
    watcher = await machine.reader("thread", second).connected()
    assert "claim" not in await machine.store.kinds("thread"), "the first server still has it"
    first.kill()
    killed = time.monotonic()

    async def claimed() -> bool:
        return "claim" in await machine.store.kinds("thread")

    await until_stored(claimed, "the other server takes over")
    assert time.monotonic() - killed < LEASE + TICK + MARGIN
    await watcher.end(run)
    log = await machine.store.log("thread")
    assert watcher.chunks == log
    assert in_order(log)
    assert [end["type"] for end in watcher.ends()] == ["finish"]
    assert text_of(log) == "echo: hello brave new world"


async def test_twenty_senders_over_four_servers(machine: Machine) -> None:
    servers = [*await two(machine, TOOL_MS=30), *await two(machine, TOOL_MS=30)]
    readers = [await machine.reader("thread", server).connected() for server in servers]
    acked: list[tuple[str, dict[str, Any]]] = []

    async def sender(number: int) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(each.client()) for each in servers]
            for turn in range(5):
                client = clients[(number + turn) % len(clients)]
                text = f"{number}/{turn}"
                acked.append((text, await send(client, "thread", text, "slow")))

    await asyncio.gather(*(sender(number) for number in range(20)))
    runs = {answer["runId"] for _, answer in acked}
    for run in runs:
        for reader in readers:
            await reader.end(run)

    await until_stored(lambda: machine.store.is_idle("thread"), "an idle thread")
    log = await machine.store.log("thread")
    assert in_order(log)
    for reader in readers:
        await reader.reaches(log[-1]["cursor"])
        assert reader.chunks == log
    ends = [(end["type"], end["runId"]) for end in readers[0].ends()]
    assert len(ends) == len(set(ends))
    assert {kind for kind, _ in ends} == {"finish"}
    receipts = await machine.store.receipts("thread")
    assert receipts == {answer["signal"]["id"]: "delivered" for _, answer in acked}

    final = max(machine.prompts(), key=len)
    assert sorted(final) == sorted(text for text, _ in acked), "each message exactly once"
    for prompt in machine.prompts():
        assert prompt == final[: len(prompt)], "what was said stays where it was"
    for number in range(20):
        said = [text for text in final if text.startswith(f"{number}/")]
        assert said == sorted(said), "one sender's messages stay in order"
