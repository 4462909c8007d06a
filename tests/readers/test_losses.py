"""Logs that lose events, or never had those that a cursor names (`docs/protocols.md` D5, I1)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from shared.core.events import Cursor, EventId
from shared.core.tool import tool
from tests.apps.script import HANG, C, Gate, ScriptModel, T
from tests.readers.clients import Client, read_in, stored_in
from tests.readers.serving import RESOURCE, THREAD, Machine, Teller, machine, serving

if TYPE_CHECKING:
    from pathlib import Path

    from shared.core.events import LogEvent
    from tests.apps.script import Turn
    from tests.readers.clients import Form

FIRST, HALF, REST, LAST = "the first step ", "half of the second ", "and its rest ", "the last"


@tool
async def add(a: int, b: int) -> int:
    return a + b


def turns(gate: Gate) -> list[Turn]:
    """Three steps with text; the run hangs in the middle of the second one."""
    return [
        C(("c1", "add", {"a": 1, "b": 2}), text=FIRST),
        HANG(gate, C(("c2", "add", {"a": 3, "b": 4}), text=REST), before=HALF),
        T(LAST),
    ]


class Losing:
    """A run that hangs in its second step, where readers saw half of what it says."""

    def __init__(self, folder: Path) -> None:
        self.gate = Gate()
        model = ScriptModel(turns(self.gate))
        self.machine = machine(folder, model, tools=(add,))

    async def begin(self, made: Machine, client: Client) -> None:
        await made.say()
        await self.gate.reached.wait()
        await client.sees("text-delta", len(FIRST.split()) + len(HALF.split()))

    async def lose(self, made: Machine, what: str) -> None:
        """Lose all that the Coordinator has, or the events of this one log."""
        if what == "all":
            made.lose_the_coordinator()
        else:
            await made.lose_the_log()


async def all_read(made: Machine, clients: list[Client]) -> None:
    """Everybody's view is the transcript."""
    for client in clients:
        await client.sees("finish")
    rows = stored_in(await made.rows())
    kinds = [kind for kind, _ in rows]
    assert kinds == ["user", "text", "result", "text", "text", "result", "text"]
    for number, client in enumerate(clients):
        assert read_in(client.chunks) == rows, f"client {number}: {client.types}"


def place_of(client: Client, type: str, times: int = 1) -> str:
    """The cursor of the n-th chunk of a type."""
    return [str(c["cursor"]) for c in client.chunks if c["type"] == type][times - 1]


async def test_a_run_outlives_the_loss_of_all_logs_and_leases(tmp_path: Path) -> None:
    """The owner loses the run; who takes it over tells `resync`. Readers of all kinds agree."""
    losing = Losing(tmp_path)
    async with losing.machine as made, serving(made), Client(made.url) as live:
        await losing.begin(made, live)
        made.lose_the_coordinator()
        losing.gate.open()
        await live.sees("finish")
        assert live.types.count("resync") == 1
        await all_read(made, [live])


PLACES = ["start", "a first text", "its result", "the second step", "half a text", "the end"]


@pytest.mark.parametrize("lost", ["all", "events"])
@pytest.mark.parametrize("when", ["at once", "when it is over"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_reader_that_comes_back_after_the_loss_reads_the_same_in_the_end(
    tmp_path: Path, lost: str, when: str, place: str
) -> None:
    """Its cursor lies before the lost events, among them, or at their end."""
    losing = Losing(tmp_path)
    async with losing.machine as made, serving(made), Client(made.url) as live:
        await losing.begin(made, live)
        cursor = {
            "start": place_of(live, "start"),
            "a first text": place_of(live, "text-delta", 2),
            "its result": place_of(live, "tool-result"),
            "the second step": place_of(live, "step-start", 2),
            "half a text": place_of(live, "text-delta", len(FIRST.split()) + 1),
            "the end": live.chunks[-1]["cursor"],
        }[place]
        before = live.chunks[: live.cursors.index(cursor) + 1]
        await losing.lose(made, lost)
        if when == "when it is over":
            losing.gate.open()
            await live.sees("finish")
        async with Client(made.url, cursor=cursor) as back:
            back.chunks[:0] = before
            await back.sees("resync")
            losing.gate.open()
            await all_read(made, [back])


@pytest.mark.parametrize("lost", ["all", "events"])
async def test_a_reader_that_joins_after_the_loss_reads_the_active_run(
    tmp_path: Path, lost: str
) -> None:
    losing = Losing(tmp_path)
    async with losing.machine as made, serving(made), Client(made.url) as live:
        await losing.begin(made, live)
        await losing.lose(made, lost)
        async with Client(made.url) as late:
            await late.sees("tool-result")
            losing.gate.open()
            await all_read(made, [late])


async def test_a_live_reader_does_not_notice_that_events_it_has_read_are_lost(
    tmp_path: Path,
) -> None:
    losing = Losing(tmp_path)
    async with losing.machine as made, serving(made), Client(made.url) as live:
        await losing.begin(made, live)
        await made.lose_the_log()
        losing.gate.open()
        await all_read(made, [live])


async def test_a_log_that_is_lost_between_two_runs(tmp_path: Path) -> None:
    """Who was there goes on; who comes back is sent to the journal, and then goes on."""
    model = ScriptModel([T("one"), T("two")])
    async with machine(tmp_path, model) as made, serving(made), Client(made.url) as live:
        await made.say("first")
        await live.sees("finish")
        middle = place_of(live, "text-delta")
        seen = live.chunks[: live.cursors.index(middle) + 1]
        made.lose_the_coordinator()
        async with Client(made.url, cursor=middle) as back:
            back.chunks[:0] = seen
            await made.say("second")
            await live.sees("finish", 2)
            await back.sees("finish", 2)
            rows = stored_in(await made.rows())
            assert read_in(back.chunks) == rows
            assert read_in(live.chunks) == rows


# ---- trimmed logs ----------------------------------------------------------------------------


async def test_an_old_cursor_of_a_trimmed_log_is_served_from_the_journal(tmp_path: Path) -> None:
    """The log keeps 400 events; the run has said twice as much, and goes on after the reader."""
    gate = Gate()
    said = "word " * 400
    model = ScriptModel(
        [
            C(("c1", "add", {"a": 1, "b": 2}), text=said),
            C(("c2", "add", {"a": 1, "b": 2}), text=said),
            HANG(gate, T(REST), before=HALF),
        ]
    )
    async with (
        machine(tmp_path, model, tools=(add,), cap=400) as made,
        serving(made),
        Client(made.url) as live,
    ):
        await made.say()
        await gate.reached.wait()
        await live.sees("tool-result", 2)
        old = live.chunks[10]["cursor"]
        assert old not in str(await made.log())
        async with Client(made.url, cursor=old) as back, Client(made.url) as late:
            back.chunks[:0] = live.chunks[:11]
            for client in (back, late):
                await client.sees("tool-result", 2)
            gate.open()
            for client in (back, late, live):
                await client.sees("finish")
            rows = stored_in(await made.rows())
            for client in (back, late, live):
                assert read_in(client.chunks) == rows
            assert back.types.count("resync") == late.types.count("resync") == 1
            assert back.types.count("text-delta") < 50


@pytest.mark.parametrize("who", ["the reader", "the tail"])
async def test_who_is_behind_by_more_than_the_log_keeps_is_told_so(
    tmp_path: Path, who: str
) -> None:
    """A gap must not pass for the whole: neither for one reader, nor for all of this process."""
    async with machine(tmp_path, works=False, cap=1_000) as made:
        teller = await Teller(made).begin()
        following = await made.system.follow.open(THREAD, RESOURCE, None)
        seen: list[LogEvent] = []
        async with aclosing(following.batches(1_000)) as batches:
            seen += await anext(batches)
            live = asyncio.ensure_future(anext(batches))
            await teller.tell(10)
            seen += await live  # then it reads no more for a while
            for _ in range(600):
                await teller.tell(10)
                if who == "the reader":
                    for _ in range(10):
                        await asyncio.sleep(0)
            await teller.finish()
            while '"finish"' not in seen[-1].json:
                seen += await anext(batches)
    texts = [event for event in seen if '"text-delta"' in event.json]
    assert len(texts) == 6_010 or any('"resync"' in event.json for event in seen)


# ---- cursors of elsewhere --------------------------------------------------------------------


async def two_threads(made: Machine) -> tuple[str, str]:
    """Two threads with a run each; the last cursor of each."""
    cursors = []
    for thread in (THREAD, "other"):
        async with Client(made.url, thread=thread) as client:
            await made.say(f"in {thread}", thread=thread)
            await client.sees("finish")
            cursors.append(client.chunks[-2]["cursor"])
    return cursors[0], cursors[1]


@pytest.mark.parametrize("form", ["subscribe", "events-header", "events-query"])
async def test_a_cursor_of_another_thread_shows_nothing_of_that_thread(
    tmp_path: Path, form: Form
) -> None:
    async with machine(tmp_path, ScriptModel([T("one"), T("two")])) as made, serving(made):
        mine, others = await two_threads(made)
        for cursor, thread in ((others, THREAD), (mine, "other")):
            async with Client(made.url, form, thread=thread, cursor=cursor) as client:
                await made.say("again", thread=thread)
                await client.reads("again")
                foreign = "in other" if thread == THREAD else f"in {THREAD}"
                assert foreign not in str(client.chunks)
                assert client.types[0] == "resync"


async def test_a_cursor_of_the_future_is_a_loss_and_hides_nothing(tmp_path: Path) -> None:
    """What comes after it is seen, once, although its ids are below the cursor."""
    async with machine(tmp_path, ScriptModel([T("one"), T("two")])) as made, serving(made):
        await two_threads(made)
        future = EventId(made.system.clock.now() + 3_600_000, 5, 7)
        async with Client(made.url, cursor=str(Cursor(1, future))) as client:
            await client.sees("resync")
            await made.say("again")
            await client.reads("again")
            fresh = [c for c in client.chunks if c["type"] != "resync"]
            assert len({c["cursor"] for c in fresh}) == len(fresh)


async def test_a_cursor_of_an_older_incarnation_is_no_cursor(tmp_path: Path) -> None:
    gate = Gate()
    model = ScriptModel([T("one"), HANG(gate, T("never")), T("three")])
    async with machine(tmp_path, model) as made, serving(made):
        async with Client(made.url) as client:
            await made.say("first")
            await client.sees("finish")
            old = client.chunks[2]["cursor"]
            await made.system.deletion.delete(THREAD, RESOURCE)
            await client.sees("thread-deleted")
            await made.say("second")
            await client.sees("finish", 2)
        assert old.startswith("1.")
        async with Client(made.url, cursor=old) as back:
            await made.say("third")
            await gate.reached.wait()
            gate.open()
            await back.sees("finish")
            assert "first" not in str(back.chunks)
            assert "resync" not in back.types
            assert all(cursor.startswith("2.") for cursor in back.cursors)
