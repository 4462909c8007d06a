"""Readers that read slowly, or from far back: what the server keeps for them is bounded."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.readers.clients import Client
from tests.readers.serving import RESOURCE, THREAD, Teller, machine, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.readers.clients import Chunk, Form

EVENTS, SIZE = 10_000, 1_000
SMALL = 65_536
PAGE = 500
LARGE = 600_000


@dataclass
class Memory:
    """The most that was held at any time, beyond what was held before."""

    peak: int = 0


@contextmanager
def measured() -> Iterator[Memory]:
    memory = Memory()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        yield memory
        memory.peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", ["subscribe", "events-header"])
async def test_a_run_of_10000_events_is_read_from_its_start_in_pages(
    tmp_path: Path, form: Form
) -> None:
    async with machine(tmp_path, works=False) as made, serving(made):
        teller = await Teller(made).begin()
        for _ in range(EVENTS // 100):
            await teller.tell(100, SIZE)
        made.trace.take()
        with measured() as memory:
            async with Client(made.url, form, keep=False) as client:
                await client.has(EVENTS + 1)
        used = made.trace.take().of("look", "read")
    assert used.count("look") <= EVENTS // PAGE + 2
    assert max(call.read for call in used.calls) <= 1.3 * PAGE * SIZE
    assert memory.peak <= 10 * PAGE * SIZE, f"{memory.peak} bytes for {EVENTS * SIZE}"


async def test_a_slow_reader_holds_up_nobody_and_is_read_for_only_as_fast_as_it_reads(
    tmp_path: Path,
) -> None:
    """It is behind a run of 10,000 events; the server has read one page or two for it."""
    async with machine(tmp_path, works=False) as made, serving(made, buffer=SMALL):
        teller = await Teller(made).begin()
        for _ in range(EVENTS // 100):
            await teller.tell(100, SIZE)
        async with Client(made.url, keep=False, buffer=SMALL) as slow:
            slow.reading.clear()
            made.trace.take()
            pages = EVENTS // PAGE
            for _ in range(3):
                async with Client(made.url, keep=False) as quick:
                    await quick.has(EVENTS + 1)
            looks = made.trace.take().count("look")
            assert looks <= 3 * (pages + 2) + 3
            slow.reading.set()
            await slow.has(EVENTS + 1)
            assert slow.connections == 1


async def test_a_slow_reader_of_a_live_run_catches_up_from_the_log(tmp_path: Path) -> None:
    """It lags by more batches than are kept for it, and sees each event once all the same."""
    batches, number, size = 600, 20, 2_000
    async with machine(tmp_path, works=False) as made, serving(made, buffer=SMALL):
        teller = await Teller(made).begin()
        async with (
            Client(made.url, keep=False, buffer=SMALL) as slow,
            Client(made.url, keep=False) as quick,
            Client(made.url, "events-header", keep=False) as other,
        ):
            clients = (slow, quick, other)
            cursors: list[list[str]] = [[], [], []]
            for client, seen in zip(clients, cursors, strict=True):
                await client.has(1)
                client.on_chunk = partial(_note, seen)
            slow.reading.clear()
            with measured() as memory:
                for batch in range(1, batches + 1):
                    await teller.tell(number, size)
                    await quick.has(number * batch + 1)
            behind = slow.count
            slow.reading.set()
            await teller.finish()
            for client in clients:
                await client.has(batches * number + 2)
                assert client.connections == 1
    assert behind < batches * number / 2
    assert cursors[0] == cursors[1] == cursors[2]
    assert memory.peak <= (256 * number + 10 * PAGE) * size, f"{memory.peak} bytes"


def _note(cursors: list[str], chunk: Chunk) -> None:
    cursors.append(chunk["cursor"])


async def test_large_events_are_not_read_by_the_hundred(tmp_path: Path) -> None:
    """A run of tool results of 600 KB: a page is bounded by its bytes, not only by its number."""
    async with machine(tmp_path, works=False) as made, serving(made):
        teller = await Teller(made).begin()
        for _ in range(60):
            await teller.tell(1, LARGE)
        with measured() as memory:
            async with Client(made.url, keep=False) as client:
                await client.has(61)
    assert memory.peak <= 20 * LARGE, f"{memory.peak} bytes for {60 * LARGE}"


async def test_large_batches_are_not_kept_by_the_hundred_for_a_slow_reader(tmp_path: Path) -> None:
    """What waits for a reader is bounded by its bytes, not only by the number of batches."""
    async with machine(tmp_path, works=False) as made:
        teller = await Teller(made).begin()
        following = await made.system.follow.open(THREAD, RESOURCE, None)
        async with aclosing(following.batches(1_000)) as batches:
            seen = len(await anext(batches))
            live = asyncio.ensure_future(anext(batches))
            await teller.tell(1)
            seen += len(await live)
            with measured() as memory:
                for _ in range(100):
                    await teller.tell(1, LARGE)
                    await _tail_reads()
            while seen < 102:
                seen += len(await anext(batches))
    assert memory.peak <= 16 * LARGE, f"{memory.peak} bytes for {100 * LARGE}"


async def _tail_reads() -> None:
    """Let this process's tail of the log read."""
    for _ in range(20):
        await asyncio.sleep(0)
