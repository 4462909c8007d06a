"""Telling from the journal what the event log has lost (`docs/protocols.md` I1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.core import keys, run, telling
from shared.core.events import K_MAX, EventId, LogEvent
from shared.services import journal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.core.entries import AnyEntry
    from shared.core.events import Chunk
    from shared.core.run import RunState
    from shared.services.context import Backend


async def rebuild(
    backend: Backend,
    thread: str,
    incarnation: int,
    lost: EventId,
    *,
    seen: bool,
    until: EventId | None = None,
) -> AsyncIterator[tuple[EventId | None, list[LogEvent]]]:
    """Give `resync`, then the committed content after `lost`: a batch an entry, and its end.

    `seen`: the reader has the event at `lost`. `until`: the last place to tell. A batch's last
    event has the id at which to go on; the ones before it that of the entry before, so that a cut
    inside a batch repeats all of it.
    """
    partition = keys.partition(thread, incarnation)
    place = lost
    yield None, [LogEvent.make(incarnation, lost, 0, {"type": "resync"})]
    state: RunState | None = None
    index = 0
    async for start, position, entry in journal.since(backend.table, partition, lost.start):
        unseen = not seen or lost < EventId(start, position, 0)
        before = state if position else None
        chunks = _chunks(before, entry, step_open=unseen)
        state = run.fold(before, entry) if before else run.begin(entry, start)
        end = EventId(start, position, K_MAX)
        if until and end > until:
            return
        if not chunks or _has(lost, start, position, entry, seen=seen):
            yield end, []
        else:
            # What the entry had streamed comes before what was told after it.
            streamed = len(chunks) - (entry.k1 - entry.k0)
            index = max(entry.index0 - streamed, index)
            yield end, _events(incarnation, place, end, index, chunks)
        index = max(index + len(chunks), entry.index0 + entry.k1 - entry.k0) if position else 0
        place = end


def _chunks(state: RunState | None, entry: AnyEntry, *, step_open: bool) -> list[Chunk]:
    if state is None:
        return telling.opening(entry)
    return telling.whole(state, entry, step_open=step_open)


def _has(lost: EventId, start: int, position: int, entry: AnyEntry, *, seen: bool) -> bool:
    """Tell whether the reader has all of an entry."""
    if (start, position) != lost[:2]:
        return (start, position) < lost[:2]
    return seen and lost.k >= entry.k1 - 1


def _events(
    incarnation: int, place: EventId, end: EventId, index: int, chunks: list[Chunk]
) -> list[LogEvent]:
    ids = [place] * (len(chunks) - 1) + [end]
    return [
        LogEvent.make(incarnation, id, index + number, chunk)
        for number, (id, chunk) in enumerate(zip(ids, chunks, strict=True))
    ]
