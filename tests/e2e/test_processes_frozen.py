"""An owner that was frozen beyond its lease thaws after another server took its run over (C2)."""

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

LEASE, TICK, MARGIN = 5.0, 2.0, 3.0


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with machine_in(tmp_path) as machine:
        yield machine


@pytest.mark.parametrize(
    ("agent", "text", "answer", "starts"),
    [
        pytest.param(
            "echo", "hello brave new world", "echo: hello brave new world", (), id="model"
        ),
        pytest.param("slow", "steps 2", 'seen: ["steps 2"]', (2, 1), id="tool"),
    ],
)
@pytest.mark.parametrize("when", ["meanwhile", "afterwards"])
async def test_c2_a_frozen_owner_that_thaws_changes_nothing(
    machine: Machine, agent: str, text: str, answer: str, starts: tuple[int, ...], when: str
) -> None:
    frozen, other = await machine.start_two(DELTA_MS=500, TOOL_MS=2_000)
    own = await machine.reader("thread", frozen).connected()
    run = (await machine.send("thread", text, agent, frozen))["runId"]
    await until(lambda: own.count("text-delta") or machine.calls("thread"), "work under way")
    other.thaw()
    reader = await machine.reader("thread", other).connected()
    assert "claim" not in await machine.store.kinds("thread"), "the first server still has it"

    frozen.freeze(machine.store)
    began = time.monotonic()

    async def claimed() -> bool:
        return "claim" in await machine.store.kinds("thread")

    await until_stored(claimed, "the other server takes over")
    assert time.monotonic() - began < LEASE + TICK + MARGIN
    if when == "afterwards":
        await reader.end(run)
    frozen.thaw()
    await reader.end(run)
    journal, log = await machine.store.journal("thread"), await machine.store.log("thread")
    transcript = await machine.transcript("thread", other)

    # The thawed server has nobody beside it now: what it answers, it has worked out itself.
    await other.terminate()
    healthy = await machine.reader("next", frozen).connected()
    sent = await machine.send("next", "steps 1", "slow", frozen)
    assert (await healthy.end(sent["runId"]))["type"] == "finish"
    await own.reaches(log[-1]["cursor"])

    assert await machine.store.journal("thread") == journal
    assert await machine.store.log("thread") == log
    assert await machine.transcript("thread", frozen) == transcript
    claim = [entry.kind for entry in journal].index("claim")
    owners = [entry.nonce.partition(".")[0] for entry in journal]
    assert len(set(owners[claim:])) == 1, "all that followed is of one owner"
    assert owners[claim] != owners[claim - 1]
    for chunks in (log, own.chunks, reader.chunks):
        assert in_order(chunks)
        assert chunks == log
    assert [end["type"] for end in own.ends()] == ["finish"]
    assert text_of(log) == answer
    assert tuple(Counter(machine.calls("thread")).values()) == starts

    again = await machine.send("thread", "steps 1", "slow", frozen)
    assert (await own.end(again["runId"]))["type"] == "finish"
