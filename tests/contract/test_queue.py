"""What every pair of WakeQueue and WakeSource does."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from shared.ports import WakeUp

if TYPE_CHECKING:
    from shared.ports import Delivery, WakeQueue, WakeSource
    from tests.contract.backends import Backend, Ports

ONE = WakeUp("thread ☃", 1_700_000_000_000)
TWO = WakeUp("thread ☃", 1_700_000_000_000, run="run")
PATIENT = 10_000  # ms; nothing here takes so long


@pytest.fixture
def queue(ports: Ports) -> WakeQueue:
    return ports.queue


@pytest.fixture
def source(ports: Ports) -> WakeSource:
    return ports.source


@pytest.fixture
def hold(backend: Backend) -> int:
    return 5 * backend.unit


def wakes(deliveries: list[Delivery]) -> list[WakeUp]:
    return [delivery.wake for delivery in deliveries]


async def take(source: WakeSource, hold: int, limit: int = 10) -> list[Delivery]:
    return await source.receive(limit=limit, wait=0, hold=hold)


async def test_nothing_comes_from_an_empty_queue(source: WakeSource, hold: int) -> None:
    assert await take(source, hold) == []


async def test_what_is_acknowledged_never_comes_again(
    queue: WakeQueue, source: WakeSource, hold: int, ports: Ports
) -> None:
    await queue.send(ONE)
    [delivery] = await source.receive(limit=10, wait=PATIENT, hold=hold)
    assert delivery.wake == ONE
    await source.acknowledge(delivery)
    await source.acknowledge(delivery)
    await ports.elapse(hold)

    assert await take(source, hold) == []


async def test_what_is_not_acknowledged_comes_again(
    queue: WakeQueue, source: WakeSource, hold: int, ports: Ports
) -> None:
    await queue.send(TWO)
    [first] = await source.receive(limit=10, wait=PATIENT, hold=hold)
    assert await take(source, hold) == []
    await ports.elapse(hold)

    [second] = await source.receive(limit=10, wait=PATIENT, hold=hold)
    assert (first.wake, second.wake) == (TWO, TWO)
    await source.acknowledge(second)
    await ports.elapse(hold)
    assert await take(source, hold) == []


async def test_a_delayed_wake_up_comes_after_its_time(
    queue: WakeQueue, source: WakeSource, hold: int, backend: Backend, ports: Ports
) -> None:
    await queue.send(ONE, delay=2 * backend.unit)
    await ports.elapse(backend.unit)
    assert await take(source, hold) == []
    await ports.elapse(backend.unit)

    assert wakes(await source.receive(limit=10, wait=PATIENT, hold=hold)) == [ONE]


async def test_all_are_delivered_though_few_at_a_time(
    queue: WakeQueue, source: WakeSource, hold: int, backend: Backend
) -> None:
    sent = [WakeUp(f"thread {n}", n) for n in range(7)]
    for wake in sent:
        await queue.send(wake)
    received: list[WakeUp] = []
    while len(received) < len(sent):
        some = await source.receive(limit=3, wait=PATIENT, hold=hold)
        assert 0 < len(some) <= 3
        received += wakes(some)

    assert Counter(received) == Counter(sent)
    if backend.ordered_queue:
        assert received == sent


async def test_receivers_never_share_a_wake_up(
    queue: WakeQueue, source: WakeSource, hold: int
) -> None:
    sent = [WakeUp("thread", n) for n in range(20)]
    for wake in sent:
        await queue.send(wake)

    batches = await asyncio.gather(*(take(source, hold, limit=4) for _ in range(10)))

    received = [wake for batch in batches for wake in wakes(batch)]
    assert len(received) == len(set(received))


async def test_a_waiting_receiver_gets_what_is_sent(
    queue: WakeQueue, source: WakeSource, hold: int
) -> None:
    receivers = [
        asyncio.create_task(source.receive(limit=1, wait=PATIENT, hold=hold)) for _ in range(2)
    ]
    await asyncio.sleep(0)
    await queue.send(ONE)
    await queue.send(TWO)

    received = [wake for batch in await asyncio.gather(*receivers) for wake in wakes(batch)]
    assert set(received) == {ONE, TWO}


async def test_a_waiting_receiver_gets_what_becomes_due(
    queue: WakeQueue, source: WakeSource, hold: int, backend: Backend, ports: Ports
) -> None:
    receiver = asyncio.create_task(source.receive(limit=1, wait=PATIENT, hold=hold))
    await asyncio.sleep(0)
    await queue.send(ONE, delay=backend.unit)
    await ports.elapse(backend.unit)

    assert wakes(await asyncio.wait_for(receiver, 10)) == [ONE]


async def test_a_waiting_receiver_gets_what_another_one_dropped(
    queue: WakeQueue, source: WakeSource, backend: Backend, ports: Ports
) -> None:
    await queue.send(ONE)
    assert wakes(await source.receive(limit=1, wait=PATIENT, hold=backend.unit)) == [ONE]
    receiver = asyncio.create_task(source.receive(limit=1, wait=PATIENT, hold=backend.unit))
    await ports.elapse(backend.unit)

    assert wakes(await asyncio.wait_for(receiver, 10)) == [ONE]


async def test_a_waiting_receiver_gives_up_after_its_time(
    source: WakeSource, hold: int, backend: Backend, ports: Ports
) -> None:
    receiver = asyncio.create_task(source.receive(limit=1, wait=backend.unit, hold=hold))
    await ports.elapse(backend.unit)

    assert await asyncio.wait_for(receiver, 10) == []


async def test_identical_wake_ups_are_merged_while_they_wait(
    queue: WakeQueue, source: WakeSource, hold: int, backend: Backend
) -> None:
    if not backend.merges_wake_ups:
        pytest.skip("it delivers each")
    for wake in (ONE, ONE, TWO, ONE, TWO):
        await queue.send(wake)

    assert wakes(await take(source, hold)) == [ONE, TWO]


async def test_a_wake_up_sent_while_an_identical_one_is_handled_is_delivered(
    queue: WakeQueue, source: WakeSource, hold: int
) -> None:
    await queue.send(ONE)
    [handled] = await source.receive(limit=1, wait=PATIENT, hold=hold)
    await queue.send(ONE)

    assert wakes(await source.receive(limit=1, wait=PATIENT, hold=hold)) == [ONE]
    await source.acknowledge(handled)


async def test_a_wake_up_is_not_lost_with_an_identical_one_that_was_held_too_long(
    queue: WakeQueue, source: WakeSource, hold: int, backend: Backend, ports: Ports
) -> None:
    await queue.send(ONE)
    [late] = await source.receive(limit=1, wait=PATIENT, hold=backend.unit)
    await ports.elapse(backend.unit)
    await queue.send(ONE)
    await source.acknowledge(late)

    assert wakes(await source.receive(limit=1, wait=PATIENT, hold=hold)) == [ONE]


async def test_a_wake_up_is_not_swallowed_by_a_delayed_one(
    queue: WakeQueue, source: WakeSource, hold: int
) -> None:
    await queue.send(ONE, delay=PATIENT)
    await queue.send(ONE)

    assert wakes(await source.receive(limit=1, wait=PATIENT, hold=hold)) == [ONE]


async def test_a_delayed_wake_up_is_not_swallowed_by_a_waiting_one(
    queue: WakeQueue, source: WakeSource, hold: int, backend: Backend, ports: Ports
) -> None:
    await queue.send(ONE)
    await queue.send(ONE, delay=backend.unit)
    [first] = await source.receive(limit=1, wait=PATIENT, hold=hold)
    await source.acknowledge(first)
    await ports.elapse(backend.unit)

    assert wakes(await source.receive(limit=1, wait=PATIENT, hold=hold)) == [ONE]
