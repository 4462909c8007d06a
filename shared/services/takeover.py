"""What a new owner does first: tell what was committed but not told, and claim a live run.

`docs/protocols.md` B2, B4, D4, D5.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shared.core import entries, keys, run, telling
from shared.core.events import K_MAX, EventId
from shared.core.records import Active, Run
from shared.core.run import Cancelled, Resumed
from shared.services import journal
from shared.services.context import Running
from shared.services.history import prompt_of_past, rows_wanted
from shared.services.journal import Again, RunLost

if TYPE_CHECKING:
    from shared.core.entries import AnyEntry
    from shared.core.prompt import Prompt
    from shared.core.run import Happening, RunState
    from shared.ports import Item
    from shared.services.context import Backend, Owner
    from shared.services.inbox import Inbox

log = logging.getLogger(__name__)

RESYNC_INDEX = 1_000_000
RESYNC = "resync"
NOTHING = EventId(0, 0, 0)


async def tell_missing(backend: Backend, owner: Owner, tail: list[Item]) -> None:
    """Bring the log up to the journal's end; returns when the log has acknowledged.

    A log that lost everything is told nothing old: `resync` sends readers to the journal (D5).
    """
    last = owner.beat.lease.last or (NOTHING if is_first(tail) else None)
    if not tail or last is None or _is_told(tail[-1], last):
        return
    state: RunState | None = None
    begin = last.start or keys.start_and_position(tail[0].sort)[0]
    async for start, position, entry in journal.since(backend.table, owner.partition, begin):
        before = state if position else None
        _tell_entry(owner, EventId(start, position, 0), before, entry, last)
        state = run.fold(before, entry) if before else run.begin(entry, start)
    await owner.publisher.flush()


def is_first(tail: list[Item]) -> bool:
    """Tell whether the thread's first run has just begun: then nothing can have been lost.

    Telling its entry again does no harm, since the ids are the same.
    """
    if len(tail) != 1:
        return False
    _, position = keys.start_and_position(tail[0].sort)
    return position == 0 and not entries.rows_before(entries.read(tail[0].body))


def _is_told(newest: Item, last: EventId) -> bool:
    """Tell whether the log reaches the newest entry's end; a silent claim leaves it open."""
    start, position = keys.start_and_position(newest.sort)
    k1 = int(newest.body["k1"])
    return k1 > 0 and last >= EventId(start, position, k1 - 1)


def _tell_entry(
    owner: Owner, place: EventId, state: RunState | None, entry: AnyEntry, last: EventId
) -> None:
    """Tell what is missing of one entry: what follows it, or all of it (D4)."""
    if state and entry.k0 and last < place._replace(k=entry.k0 - 1):
        seen, chunks = 0, telling.whole(state, entry, step_open=last < place)
    else:
        chunks = telling.told(state, entry) if state else telling.opening(entry)
        seen = _seen(place, entry, last, len(chunks))
    if chunks[seen:]:
        index = max(entry.index0 + seen, _next_index(owner, place.start))
        owner.publisher.place(place.start, place.position, entry.k0 + seen, index)
        owner.publisher.tell(chunks[seen:])


def _seen(place: EventId, entry: AnyEntry, last: EventId, told: int) -> int:
    """Count the chunks after an entry that the log holds already."""
    if last[:2] == place[:2]:
        return max(last.k + 1 - entry.k0, 0)
    return told if last > place else 0


def _next_index(owner: Owner, start: int) -> int:
    """The first index of this run that is above all that was logged or told."""
    lease, publisher = owner.beat.lease, owner.publisher
    logged = lease.last_index + 1 if lease.last and lease.last.start == start else 0
    return max(logged, publisher.index if publisher.start == start else 0)


def resync_idle(owner: Owner, tail: list[Item]) -> None:
    """Before a start: send readers of a log that was lost to the journal (D5)."""
    if is_first(tail):
        return
    newest = tail[-1]
    start, position = keys.start_and_position(newest.sort)
    entry = entries.read(newest.body)
    owner.publisher.place(start, position, K_MAX, entry.index0 + RESYNC_INDEX)
    owner.publisher.tell([{"type": RESYNC}])


async def claim(
    backend: Backend, owner: Owner, active: Item, tail: list[Item], inbox: Inbox
) -> Running:
    """Take a live run over by writing a claim at its next position (B4).

    `tail`: the run's entries; `inbox`: as it was read before them. A cancel comes before all else.

    Raises:
        Again: the run has ended meanwhile.
        RunLost: it has no records any more.
    """
    held = Active.of(active.body)
    head_item = await backend.table.get(keys.run(held.run), keys.RUN)
    if held.start is None or head_item is None:
        raise RunLost(f"run {held.run} has no records")
    head = Run.of(head_item.body)
    state, own, claimed = await _write_claim(backend, owner, held.start, head, tail)
    if _lost_log(owner, state):
        owner.publisher.place(state.start, state.position, K_MAX, claimed.index0 - 1)
        owner.publisher.tell([{"type": RESYNC, "runId": state.run}])
    else:
        await _tell_late(owner, state.start, own)
    state = run.fold(state, claimed)
    owner.publisher.place(state.start, state.position, 0, state.index)
    first = _first(state, inbox)
    return Running(
        state=state,
        run=head,
        run_version=head_item.version,
        active=held,
        active_version=active.version,
        prompt=await _prompt(backend, owner, state, own),
        begin_with=first,
        inbox=None if first else inbox,  # it is out of date once tools have run
    )


async def _write_claim(
    backend: Backend, owner: Owner, start: int, head: Run, tail: list[Item]
) -> tuple[RunState, list[AnyEntry], entries.Claim]:
    """Write the claim; refused, read again and try one position on, never after a finish."""
    while True:
        own = [entries.read(item.body) for item in tail]
        if not own:
            raise RunLost(f"run {head.run} has no records")
        state = run.begin(own[0], start)
        for entry in own[1:]:
            state = run.fold(state, entry)
        if state.status != "running":
            raise Again(f"run {head.run} has ended meanwhile")
        claimed = _claim_entry(backend, owner, state, calm=head.paused_at == state.position)
        try:
            await owner.journal.write(state.start, state.position, claimed)
        except RunLost:
            log.info("%s: another owner was at %d; one position on", head.run, state.position)
            tail = await journal.of_run(backend.table, owner.partition, start)
        else:
            return state, own, claimed


def _first(state: RunState, inbox: Inbox) -> Happening | None:
    """Say with what the loop begins; None: with what the inbox holds for the run."""
    if inbox.asks_to_stop(state.run):
        return Cancelled()
    return Resumed() if state.open_calls else None


async def _prompt(backend: Backend, owner: Owner, state: RunState, own: list[AnyEntry]) -> Prompt:
    """Rebuild what the run's model was shown: history up to its start, then its own entries."""
    page: list[Item] = []
    if own[0].rows and rows_wanted(backend, state.agent):
        page = await journal.before(backend.table, owner.partition, state.start)
    prompt = await prompt_of_past(backend, owner.partition, page, state.agent)
    for entry in own:
        prompt.add(entry, past=False)
    return prompt


async def _tell_late(owner: Owner, start: int, stored: list[AnyEntry]) -> None:
    """Tell what landed between the telling and the claim: the dead owner's last put."""
    last = owner.publisher.last
    if last is None:
        return
    state: RunState | None = None
    for position, entry in enumerate(stored):
        _tell_entry(owner, EventId(start, position, 0), state, entry, last)
        state = run.fold(state, entry) if state else run.begin(entry, start)
    if owner.publisher.last != last:
        await owner.publisher.flush()


def _lost_log(owner: Owner, state: RunState) -> bool:
    """Tell whether the log has nothing although this run was told, now or before."""
    return owner.beat.lease.last is None and owner.publisher.start != state.start


def _claim_entry(backend: Backend, owner: Owner, state: RunState, *, calm: bool) -> entries.Claim:
    """Count what the owner before had streamed at this position."""
    last = owner.beat.lease.last
    k = last.k + 1 if last and last[:2] == (state.start, state.position) else 0
    index = max(state.index, _next_index(owner, state.start))
    if _lost_log(owner, state):
        index = state.index + RESYNC_INDEX
    at = max(backend.clock.now(), state.at + 1)
    return entries.Claim(
        at=at,
        rows=state.rows,
        k0=k,
        k1=k,
        index0=index,
        half_told=k > 0 or last is None,
        calm=calm,
    )
