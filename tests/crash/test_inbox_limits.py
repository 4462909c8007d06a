"""More than a page holds, and what cannot be read: nothing of it may stop anything else.

`docs/protocols.md` A3, B5, H1; `docs/design.md` 7.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.core import keys
from shared.core.signal_input import parse_signal
from shared.ports import Index, Put
from shared.services.accept import Target
from shared.services.inbox import PAGE
from shared.services.recover import PAGE as DUE_PAGE
from tests.apps.script import T
from tests.crash.world import RESOURCE, SETTINGS, THREAD
from tests.protocol.stage import AGENT, NOW, P

if TYPE_CHECKING:
    from tests.crash.conftest import MakeStage

pytestmark = pytest.mark.anyio

BURST = [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 5]


@pytest.mark.parametrize("queued", [False, True], ids=["first", "behind a queued one"])
@pytest.mark.parametrize("count", BURST)
async def test_a_burst_for_a_run_that_has_yet_to_start(
    stage: MakeStage, count: int, queued: bool
) -> None:
    """B5: class 1 sorts before class 2, so the messages for a reserved run fill the page.

    The item that owns the run lies behind them; without it, nothing would be startable, and the
    messages would pass for those of a run that is over.
    """
    world = stage(*[T(str(n)) for n in range(12)], max_steps=12)
    await world.say("m0")
    for number in range(count):
        await world.say(f"d{number:03}")
    if queued:
        await world.say("q1", queue=True)
    await world.settle()
    await world.heal()
    receipts = await world.receipts()
    assert len(receipts) == 1 + count + queued
    assert set(receipts.values()) == {"delivered"}
    assert await world.inbox() == []
    first = (await world.prompts())[0]
    assert len(first) > 1
    stored = [s["id"] for e in await world.journal() for s in getattr(e, "signals", [])]
    assert len(stored) == len(set(stored)) == len(receipts)


def unreadable(number: int, shard: int, *, what: str) -> Put:
    """A due record of a version that this one does not know."""
    if what == "run":
        group, partition, sort = keys.due_runs(shard), f"RUN#bad{number}", keys.RUN
    else:
        group, partition, sort = keys.due_inbox(shard), f"THREAD#bad{number}#1", "IN#0#x"
    return Put(partition, sort, {"of": "a newer version"}, index=Index(group, 1))


@pytest.mark.parametrize("what", ["run", "item"])
@pytest.mark.parametrize("where", ["a shard before", "the same shard"])
async def test_a_record_that_cannot_be_read_does_not_stop_the_tick(
    stage: MakeStage, what: str, where: str
) -> None:
    """H1: one record that no code here can read, before a thread whose wake-up was lost."""
    name = next(f"t{n}" for n in range(1_000) if keys.shard(f"t{n}") > 0)
    shard = 0 if where == "a shard before" else keys.shard(name)
    world = stage(T("one"))
    signal = parse_signal({"id": "m1", "type": "user", "contents": "hi"}, id="m1", now=NOW)
    await world.outside.accept.send(Target(AGENT, name, RESOURCE), signal)
    await world.table.commit([unreadable(1, shard, what=what)])
    world.forget_wakes()
    world.clock.advance(SETTINGS.tick)
    assert await world.outside.recover.tick() == 1
    assert len(world.wakes()) == 1


async def test_a_page_of_records_that_cannot_be_read_does_not_starve_their_shard(
    stage: MakeStage,
) -> None:
    """H1: the tick reads the page of a shard that is due first; what it cannot look after is
    postponed like anything else, or it stays there, before all others, for ever."""
    world = stage(T("one"))
    shard = keys.shard(THREAD)
    for number in range(DUE_PAGE):
        both = [unreadable(number, shard, what=what) for what in ("run", "item")]
        await world.table.commit(both)
    await world.say("m1")
    world.forget_wakes()
    await world.heal()
    assert await world.receipts() == {"m1": "delivered"}


@pytest.mark.parametrize("sort", ["IN#0#decision", "IN#1#0", "IN#2#0"])
async def test_an_item_that_cannot_be_read_does_not_block_its_thread(
    stage: MakeStage, sort: str
) -> None:
    """B5: an item of a later version, in front of a message; it stays for those who can read it."""
    world = stage(T("one"))
    item: dict[str, Any] = {"kind": "decision", "run": "r"}
    await world.table.commit([Put(P, sort, item, index=Index(keys.due_inbox(0), 1))])
    await world.say("m1")
    await world.settle()
    await world.heal()
    assert await world.receipts() == {"m1": "delivered"}
    assert await world.inbox() == [item]
