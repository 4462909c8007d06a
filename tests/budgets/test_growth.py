"""What grows with a run or a thread, and what must not (`docs/design.md` section 8)."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from shared.adapters.sqlite import SqliteCoordinator
from shared.core import entries, keys
from shared.ports import Put
from tests.budgets.stand import Stand, Steps
from tests.crash.world import THREAD

if TYPE_CHECKING:
    from pathlib import Path

    from shared.core.model import ModelRequest
    from shared.core.tool import ToolContext
    from tests.budgets.counting import Trace

P = keys.partition(THREAD, 1)
STORED = ("put", "commit")
CONTINUE = {"acquire": 1, "last": 1, "get": 2, "put": 1}
LARGE = 600_000
PAGE, ENTRY = 100, 400
"""Entries that are read at a time, and the bytes of a small one."""


# ---- long runs -------------------------------------------------------------------------------


async def test_each_of_1000_steps_costs_the_same(tmp_path: Path) -> None:
    stand = Stand(tmp_path / "stand", Steps(steps=1_000), settings={"slice_steps": 10_000})
    steps = (await stand.run()).between("model")
    assert len(steps) == 1_000
    assert [step.counts() for step in steps] == [{"query": 1, "put": 2}] * 1_000
    assert {step.read for step in steps} == {0}
    written = [step.of(*STORED).written for step in steps]
    told = [step.of("append").written for step in steps[2:]]  # what is told when, may shift a bit
    assert max(written) - min(written) <= 32, "positions and counters get more digits"
    assert max(written) <= 800
    assert sum(told[-100:]) <= 1.1 * sum(told[:100])
    assert max(step.count("append") for step in steps) <= 5


async def test_80_tool_steps_write_at_most_8_5_times_what_10_do(tmp_path: Path) -> None:
    written = {}
    for steps in (10, 80):
        stand = Stand(tmp_path / str(steps), Steps(steps))
        written[steps] = (await stand.run()).written
    assert written[80] <= 8.5 * written[10]


async def test_the_worker_keeps_nothing_of_a_run_but_its_prompt(tmp_path: Path) -> None:
    """Between step 200 and step 1,000 only what the model is shown grows."""
    seen: list[tuple[int, int]] = []

    def look(request: ModelRequest) -> None:
        if len(request.messages) in (401, 2_001):
            gc.collect()
            seen.append((tracemalloc.get_traced_memory()[0], _deep(request.messages, set())))

    stand = Stand(tmp_path / "stand", Steps(steps=1_000), settings={"slice_steps": 10_000})
    stand.model.on_call = look
    await stand.say("m1")
    tracemalloc.start()
    try:
        await stand.work(stand.bare())
    finally:
        tracemalloc.stop()
    (early, prompt), (late, longer) = seen
    beyond = (late - early) - (longer - prompt)
    assert beyond <= 100_000, f"{beyond} bytes beyond the prompt's {longer - prompt}"
    assert longer - prompt <= 800 * 2_500


async def test_the_worker_holds_large_results_once(tmp_path: Path) -> None:
    """A run that was handed over is read whole, for its prompt; no second copy stays."""
    seen: list[tuple[int, int]] = []

    def act(ctx: ToolContext) -> str:
        return ctx.call_id + "x" * LARGE

    stand = Stand(tmp_path / "stand", Steps(steps=25), act=act, settings={"slice_steps": 25})
    await stand.say("m1")
    await stand.one()

    def look(request: ModelRequest) -> None:
        seen.append((tracemalloc.get_traced_memory()[0], _deep(request.messages, set())))

    stand.model.on_call = look
    tracemalloc.start()
    try:
        await stand.work(stand.bare())
    finally:
        tracemalloc.stop()
    ((held, prompt),) = seen
    assert prompt > 25 * LARGE
    assert held - prompt <= 5 * LARGE, f"{held} bytes held for a prompt of {prompt}"


def _deep(value: Any, seen: set[int]) -> int:
    """The bytes of a value with all that it refers to."""
    if id(value) in seen or isinstance(value, type):
        return 0
    seen.add(id(value))
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(_deep(k, seen) + _deep(v, seen) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return size + sum(_deep(v, seen) for v in value)
    if is_dataclass(value):
        return size + sum(_deep(getattr(value, f.name), seen) for f in fields(value))
    return size


async def test_a_handed_over_slice_reads_the_run_once_in_pages(tmp_path: Path) -> None:
    """What it reads is what its prompt needs: all of the run, and at most one page more."""
    stand = Stand(tmp_path / "stand", Steps(steps=400), settings={"slice_steps": 50})
    await stand.say("m1")
    slices: list[Trace] = []
    for _ in range(9):
        slices.append(await stand.one())
    assert (await stand.chunks())[-1]["type"] == "finish"
    written = stored = 0
    for before, each in pairwise(slices):
        written += before.of(*STORED).written
        stored += before.count("put") + before.count("commit")
        opening = each.upto("model")
        assert opening.over(**CONTINUE, query=3 + stored // PAGE) == []
        assert opening.read <= written + PAGE * ENTRY


async def test_ten_times_the_hand_overs_cost_no_more_requests_a_step(tmp_path: Path) -> None:
    """A slice of one step is the worst case: a claim, its reads, and its step."""
    stand = Stand(tmp_path / "stand", Steps(steps=30), settings={"slice_steps": 1})
    await stand.say("m1")
    slices = [await stand.one() for _ in range(31)]
    requests = [sum(each.counts().values()) for each in slices[1:-1]]
    assert max(requests) == min(requests) <= 16


# ---- large things ----------------------------------------------------------------------------

TEXTS = ["漢字かな" * 50_000, "é" * 300_000, "\U0001f600" * 150_000]


@pytest.mark.parametrize("text", TEXTS, ids=["3 bytes", "2 bytes", "4 bytes"])
async def test_a_result_of_600_kb_that_is_not_ascii_is_written_once(
    tmp_path: Path, text: str
) -> None:
    async def act(ctx: ToolContext) -> str:
        return text

    shown: list[ModelRequest] = []
    stand = Stand(tmp_path / "stand", Steps(steps=2), act=act)
    stand.model.on_call = shown.append
    used = await stand.run()
    results = [call.written for call in used.calls if str(call) == "put result"]
    assert len(results) == 2
    assert max(results) <= 600_000 + 1_000
    others = used.of(*STORED).written - sum(results)
    assert others <= 10_000
    assert used.of("append").written <= 2 * 600_000 + 20_000
    assert shown[-1].messages[2].results[0].output == text  # type: ignore[union-attr]
    told = [c for c in await stand.chunks() if c["type"] == "tool-result"]
    assert [chunk["payload"]["result"] for chunk in told] == [text] * 2
    parts = (await stand.transcript())[-1]["parts"]
    assert parts[0]["toolInvocation"]["result"] == text


# ---- long threads ----------------------------------------------------------------------------


async def lengthen(stand: Stand, messages: int) -> None:
    """Put a history in front of the thread's one run, as if it had run so before."""
    stored = await stand.table.query(P, keys.STEP_PREFIX)
    read = [entries.read(item.body) for item in stored]
    start, _ = keys.start_and_position(stored[0].sort)
    runs = messages // 2 - 1
    puts = []
    for back in range(runs, -1, -1):
        for position, entry in enumerate(read):
            changes: dict[str, Any] = {
                "at": entry.at - back * 1_000,
                "rows": entry.rows + 2 * (runs - back),
            }
            sort = keys.step(start - back * 1_000, position)
            puts.append(Put(P, sort, entry.model_copy(update=changes).body()))
    for first in range(0, len(puts), 99):
        await stand.table.commit(puts[first : first + 99])


async def test_a_thread_of_5000_messages_starts_a_run_as_one_of_50_does(tmp_path: Path) -> None:
    """The same requests; it reads a page of the journal, which 50 messages do not quite fill."""
    used: dict[int, Trace] = {}
    for messages in (50, 200, 5_000):
        stand = Stand(tmp_path / str(messages))
        await stand.run("m1")
        await lengthen(stand, messages)
        assert (await stand.outside.threads.messages(THREAD, None, 0, 10)).total == messages
        used[messages] = await stand.run("m2")
    few, more, many = used.values()
    assert [str(call) for call in many.calls] == [str(call) for call in few.calls]
    assert many.read <= 1.02 * more.read
    assert many.read <= few.read + PAGE * ENTRY / 4
    assert many.written <= 1.02 * few.written


async def test_a_page_of_a_long_thread_reads_no_more_than_of_a_short_one(tmp_path: Path) -> None:
    used: dict[int, Trace] = {}
    for messages in (200, 5_000):
        stand = Stand(tmp_path / str(messages))
        await stand.run("m1")
        await lengthen(stand, messages)
        stand.trace.take()
        page = await stand.counted.threads.messages(THREAD, None, 0, 20)
        assert len(page.items) == 20
        used[messages] = stand.trace.take()
    assert used[5_000].counts() == used[200].counts()
    assert used[5_000].read <= 1.02 * used[200].read


# ---- long streams ----------------------------------------------------------------------------

CHUNKS = 10_000


@pytest.mark.parametrize("followed", [True, False])
async def test_p61_a_run_of_10000_chunks_is_told_in_few_appends(
    tmp_path: Path, followed: bool
) -> None:
    """Followed: one append per 20 ms or 16 KB; else one per 2 s. At most 2.5 MB in the log."""
    settings = {"flush_pause": 20, "lease": 60_000, "heartbeat": 20_000}
    stand = Stand(tmp_path / "stand", Steps(words=CHUNKS), followed=followed, settings=settings)
    loop = asyncio.get_running_loop()
    began = loop.time()
    used = await stand.run()
    seconds = loop.time() - began
    told = used.of("append")
    events = len(await stand.chunks())
    assert events >= CHUNKS
    pause = 0.02 if followed else 2.0
    by_size = told.written / 16_384 if followed else 0
    assert len(told.calls) <= by_size + seconds / pause + 3
    assert told.written <= 250 * events
    assert used.of(*STORED).written <= 3 * 5 * CHUNKS + 10_000, "not the chunks but the text"
    assert used.counts()["put"] + used.counts()["commit"] == 4
    assert used.counts()["query"] <= 6


async def test_p61_logs_are_trimmed(tmp_path: Path) -> None:
    """A log keeps a bounded number of events, and forgets old runs when another begins."""
    stand = Stand(tmp_path / "stand", Steps(words=CHUNKS))
    stand.coordinator = SqliteCoordinator(stand.database, stand.clock, stand.notices, cap=1_000)
    process = stand.process_counted()
    await stand.say("m1")
    await stand.work(process)
    events = await stand.coordinator.read(P, None, limit=CHUNKS)
    assert 900 <= len(events) <= 1_000
    assert '"finish"' in events[-1].json
    stand.clock.advance(25 * 3_600_000)
    stand.model.words = 1
    await stand.say("m2")
    await stand.work(process)
    events = await stand.coordinator.read(P, None, limit=CHUNKS)
    assert len(events) < 10
    assert stand.database.rows("SELECT count(*) FROM events")[0][0] == len(events)
