"""The fault injection itself: a test that relies on it must be able to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.core.errors import ConditionFailed, Unavailable
from shared.ports import ABSENT, Check, Index, Put, WakeUp
from tests.contract.faults import (
    Fault,
    Faults,
    FaultyCoordinator,
    FaultyQueue,
    FaultyTable,
    Killed,
)

if TYPE_CHECKING:
    from shared.ports import Coordinator, Table, WakeQueue
    from tests.contract.backends import Ports


def as_table(table: FaultyTable) -> Table:
    return table  # the type checker sees that it is one


def as_coordinator(coordinator: FaultyCoordinator) -> Coordinator:
    return coordinator


def as_queue(queue: FaultyQueue) -> WakeQueue:
    return queue


@pytest.mark.parametrize(
    ("fault", "error", "applied"),
    [
        (Fault.REFUSED, Unavailable, False),
        (Fault.CUT, Unavailable, True),
        (Fault.KILL_BEFORE, Killed, False),
        (Fault.KILL_AFTER, Killed, True),
    ],
)
async def test_a_call_fails_before_or_after(
    ports: Ports, fault: Fault, error: type[BaseException], applied: bool
) -> None:
    faults = Faults({2: fault})
    table = as_table(FaultyTable(ports.table, faults))
    await table.commit([Put("p", "one", {})])
    with pytest.raises(error):
        await table.commit([Put("p", "two", {})])

    assert (await ports.table.get("p", "two") is not None) == applied
    assert faults.calls == ["commit", "commit"]


async def test_a_dead_process_calls_nothing(ports: Ports) -> None:
    faults = Faults({("acquire", 1): Fault.KILL_AFTER})
    coordinator = as_coordinator(FaultyCoordinator(ports.coordinator, faults))
    with pytest.raises(Killed):
        await coordinator.acquire("log", "token", 1_000)
    with pytest.raises(Killed):
        await as_queue(FaultyQueue(ports.queue, faults)).send(WakeUp("t", 1))

    assert await ports.coordinator.held("log")
    assert await ports.source.receive(limit=1, wait=0, hold=1_000) == []


async def test_a_conflict_meets_what_a_rival_wrote(ports: Ports) -> None:
    await ports.table.commit([Put("p", "s", {"n": 1}, index=Index("g", 1))])
    table = FaultyTable(ports.table, Faults({1: Fault.CONFLICT, 3: Fault.CONFLICT}))
    with pytest.raises(ConditionFailed) as caught:
        await table.commit([Put("p", "t", {}, expect=ABSENT), Check("p", "s", expect=1)])

    stored = await ports.table.get("p", "s")
    assert stored is not None
    assert (stored.version, stored.index) == (2, Index("g", 1))
    assert [failure.stored for failure in caught.value.failures] == [stored]

    await table.commit([Check("p", "s", expect=2)])
    with pytest.raises(ConditionFailed):
        await table.commit([Put("p", "t", {}, expect=ABSENT)])
    assert await ports.table.get("p", "t") is None


async def test_a_rival_acts_just_before_the_call(ports: Ports) -> None:
    async def rival() -> None:
        await ports.table.commit([Put("p", "s", {"by": "rival"})])

    table = FaultyTable(ports.table, Faults({("get", 2): rival}))

    assert await table.get("p", "s") is None
    assert await table.get("p", "s") is not None


async def test_a_late_index(ports: Ports) -> None:
    table = FaultyTable(ports.table, Faults(), lag=2)

    async def indexed() -> list[tuple[str, int]]:
        return [(item.sort, item.version) for item in await table.index("g")]

    seen = []
    for order in (4, 3, 2):
        await table.commit([Put("p", "s", {}, index=Index("g", order))])
        seen.append(await indexed())
    await table.commit([Put("p", "s", {}), Put("p", "t", {}, index=Index("g", 1))])
    seen.append(await indexed())
    table.catch_up()

    assert seen == [[], [], [("s", 1)], [("s", 2)]]
    assert await indexed() == [("t", 1)]
