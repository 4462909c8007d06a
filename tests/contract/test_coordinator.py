"""What every Coordinator adapter does (`docs/protocols.md` B1, D1, D3)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shared.core.errors import LeaseLost
from shared.core.events import K_MAX, EventId, LogEvent
from shared.ports import Lease
from tests.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.ports import Coordinator
    from tests.contract.backends import Backend, Ports

LOG = "THREAD#t#1700000000000"
START = 1_700_000_000_000


@pytest.fixture
def coordinator(ports: Ports) -> Coordinator:
    return ports.coordinator


@pytest.fixture
def ttl(backend: Backend) -> int:
    return 10 * backend.unit


@pytest.fixture
async def lease(coordinator: Coordinator, ttl: int) -> Lease:
    return await take(coordinator, "owner", ttl)


async def take(coordinator: Coordinator, token: str, ttl: int, log: str = LOG) -> Lease:
    lease = await coordinator.acquire(log, token, ttl)
    assert lease is not None
    return lease


def event(position: int, k: int = 0, start: int = START) -> LogEvent:
    chunk = {"type": "text-delta", "payload": {"text": f"naïve ☃ {position}.{k}"}}
    return LogEvent.make(START, EventId(start, position, k), 100 * position + k, chunk)


def numbered(*ks: int) -> list[LogEvent]:
    return [event(1, k) for k in ks]


async def everything(coordinator: Coordinator, log: str = LOG) -> list[LogEvent]:
    return await coordinator.read(log, None)


# ---- the lease -----------------------------------------------------------------------------


async def test_a_lease_excludes_other_tokens(
    coordinator: Coordinator, lease: Lease, ttl: int
) -> None:
    assert lease == Lease(LOG, "owner", lease.fence, None, -1)
    assert await coordinator.held(LOG)
    assert await coordinator.acquire(LOG, "other", ttl) is None
    assert not await coordinator.held("another log")
    assert await coordinator.acquire("another log", "other", ttl) is not None


async def test_only_one_of_many_gets_the_lease(coordinator: Coordinator, ttl: int) -> None:
    leases = await asyncio.gather(*(coordinator.acquire(LOG, str(n), ttl) for n in range(20)))

    assert sum(lease is not None for lease in leases) == 1


async def test_the_owner_may_acquire_again(
    coordinator: Coordinator, lease: Lease, ttl: int, ports: Ports
) -> None:
    await ports.elapse(ttl // 2)
    assert await coordinator.acquire(LOG, "owner", ttl) == lease
    await ports.elapse(ttl // 2)
    assert await coordinator.held(LOG)


async def test_fences_grow_from_the_clock_on(
    coordinator: Coordinator, ttl: int, ports: Ports
) -> None:
    fences = [0]
    for n in range(6):
        now = ports.clock.now()
        lease = await take(coordinator, str(n), ttl)
        assert lease.fence >= max(now, fences[-1] + 1)
        fences.append(lease.fence)
        await coordinator.release(lease)
        if n % 2:
            await ports.elapse(ttl // 10)


async def test_a_lease_ends_with_its_time(
    coordinator: Coordinator, lease: Lease, ttl: int, ports: Ports
) -> None:
    await ports.elapse(ttl)
    assert not await coordinator.held(LOG)

    later = await take(coordinator, "owner", ttl)
    assert later.fence > lease.fence


async def test_a_renewal_extends_the_lease(
    coordinator: Coordinator, lease: Lease, ttl: int, ports: Ports
) -> None:
    for _ in range(3):
        await ports.elapse(ttl // 2)
        assert coordinator.renew(lease, ttl) is None
    assert await coordinator.held(LOG)


async def test_a_renewal_from_another_thread(
    coordinator: Coordinator, lease: Lease, ttl: int, ports: Ports
) -> None:
    await ports.elapse(ttl // 2)
    await coordinator.ask_to_stop(LOG, "run")
    assert await asyncio.to_thread(coordinator.renew, lease, ttl) == "run"
    await ports.elapse(ttl // 2)
    assert await coordinator.held(LOG)


async def test_a_renewal_never_makes_a_lease(
    coordinator: Coordinator, lease: Lease, ttl: int, ports: Ports
) -> None:
    await ports.elapse(ttl)
    with pytest.raises(LeaseLost):
        coordinator.renew(lease, ttl)
    assert not await coordinator.held(LOG)

    with pytest.raises(LeaseLost):
        coordinator.renew(replace(lease, log="a log never seen"), ttl)
    assert not await coordinator.held("a log never seen")


async def test_a_released_lease_is_free_at_once(
    coordinator: Coordinator, lease: Lease, ttl: int
) -> None:
    await coordinator.release(lease)
    assert not await coordinator.held(LOG)
    with pytest.raises(LeaseLost):
        coordinator.renew(lease, ttl)

    other = await take(coordinator, "other", ttl)
    assert other.fence > lease.fence
    await coordinator.release(other)
    await coordinator.release(other)


async def test_who_lost_the_lease_cannot_touch_it(
    coordinator: Coordinator, lease: Lease, ttl: int, ports: Ports
) -> None:
    await ports.elapse(ttl)
    other = await take(coordinator, "other", ttl)

    await coordinator.release(lease)
    with pytest.raises(LeaseLost):
        coordinator.renew(lease, ttl)
    with pytest.raises(LeaseLost):
        coordinator.renew(replace(other, fence=lease.fence), ttl)
    await coordinator.release(replace(other, token="owner"))
    await coordinator.release(replace(other, fence=lease.fence))

    assert await coordinator.held(LOG)
    assert coordinator.renew(other, ttl) is None


@pytest.fixture
def stepping(ports: Ports) -> VirtualClock:
    if not isinstance(ports.clock, VirtualClock):
        pytest.skip("the time of day of this backend cannot be set")
    return ports.clock


async def test_a_dead_owners_lease_is_free_after_the_clock_stepped_back(
    coordinator: Coordinator, lease: Lease, ttl: int, stepping: VirtualClock
) -> None:
    """B1: it ends later than any lease could, so its owner has not renewed it since.

    Otherwise the thread would be locked for as long as the step was. The fence keeps it safe.
    """
    stepping.set(stepping.now() - 360 * ttl)
    assert not await coordinator.held(LOG)

    other = await take(coordinator, "other", ttl)
    assert other.fence > lease.fence
    assert await coordinator.held(LOG)
    assert await coordinator.acquire(LOG, "a third", ttl) is None
    with pytest.raises(LeaseLost):
        coordinator.renew(lease, ttl)
    with pytest.raises(LeaseLost):
        await coordinator.append(lease, numbered(1), ttl)


async def test_a_live_owner_keeps_its_lease_when_the_clock_steps_back(
    coordinator: Coordinator, lease: Lease, ttl: int, stepping: VirtualClock
) -> None:
    """B1: by a little, at once; by more, once it has renewed it or told something."""
    stepping.set(stepping.now() - ttl // 2)
    assert await coordinator.held(LOG)
    assert await coordinator.acquire(LOG, "other", ttl) is None
    stepping.set(stepping.now() - 360 * ttl)
    assert coordinator.renew(lease, ttl) is None
    assert await coordinator.held(LOG)
    assert await coordinator.acquire(LOG, "other", ttl) is None
    stepping.set(stepping.now() - 360 * ttl)
    await coordinator.append(lease, numbered(1), ttl)
    assert await coordinator.held(LOG)
    assert await coordinator.acquire(LOG, "other", ttl) is None


# ---- append --------------------------------------------------------------------------------


async def test_events_are_read_as_they_were_appended(
    coordinator: Coordinator, lease: Lease, ttl: int
) -> None:
    events = [event(0), event(0, 1), event(1), event(2, K_MAX), event(0, 0, START + 1)]
    for part in (events[:2], events[2:]):
        appended = await coordinator.append(lease, part, ttl)
        assert appended.cancelled is None
        assert await coordinator.last(LOG) == part[-1].id

    assert await everything(coordinator) == events
    assert await everything(coordinator, "another log") == []
    assert await coordinator.last("another log") is None


@pytest.mark.parametrize(
    ("batches", "kept"),
    [
        ([(1, 2), (1, 2)], (1, 2)),  # the reply to the first was lost
        ([(1, 2), (1, 2, 3)], (1, 2, 3)),
        ([(3,), (1, 2, 3, 4)], (3, 4)),
        ([(1, 3, 2, 4)], (1, 3, 4)),
        ([(1, 1)], (1,)),
        ([(2,), (1,)], (2,)),
    ],
)
async def test_ids_that_are_not_above_the_last_are_skipped(
    coordinator: Coordinator, ttl: int, batches: Sequence[tuple[int, ...]], kept: tuple[int, ...]
) -> None:
    lease = await take(coordinator, "owner", ttl)
    for batch in batches:
        await coordinator.append(lease, numbered(*batch), ttl)

    assert await everything(coordinator) == numbered(*kept)
    assert await coordinator.last(LOG) == EventId(START, 1, kept[-1])


async def test_the_next_owner_learns_where_the_log_ends(
    coordinator: Coordinator, lease: Lease, ttl: int
) -> None:
    await coordinator.append(lease, [event(0, 5), event(3, 7)], ttl)
    await coordinator.release(lease)

    other = await take(coordinator, "other", ttl)

    assert (other.last, other.last_index) == (EventId(START, 3, 7), 307)


async def test_who_lost_the_lease_appends_nothing(
    coordinator: Coordinator, lease: Lease, ttl: int, ports: Ports
) -> None:
    await coordinator.append(lease, numbered(1), ttl)
    await ports.elapse(ttl)
    other = await take(coordinator, "other", ttl)

    for loser in (lease, replace(other, fence=lease.fence), replace(lease, fence=other.fence)):
        with pytest.raises(LeaseLost):
            await coordinator.append(loser, numbered(2, 3), ttl)

    assert await everything(coordinator) == numbered(1)
    await coordinator.append(other, numbered(2), ttl)
    assert await everything(coordinator) == numbered(1, 2)


async def test_a_released_lease_appends_nothing(
    coordinator: Coordinator, lease: Lease, ttl: int
) -> None:
    await coordinator.release(lease)
    with pytest.raises(LeaseLost):
        await coordinator.append(lease, numbered(1), ttl)
    with pytest.raises(LeaseLost):
        await coordinator.append(replace(lease, log="a log never seen"), numbered(1), ttl)

    assert await everything(coordinator) == []


@pytest.mark.parametrize("events", [numbered(1), []], ids=["one", "none"])
async def test_an_append_renews_the_lease(
    coordinator: Coordinator, ttl: int, ports: Ports, events: list[LogEvent]
) -> None:
    lease = await take(coordinator, "owner", ttl)
    await ports.elapse(ttl // 2)
    await coordinator.append(lease, events, ttl)
    await ports.elapse(ttl // 2)

    assert await coordinator.held(LOG)


async def test_a_lease_that_ran_out_but_was_not_taken_still_appends(
    coordinator: Coordinator, lease: Lease, ttl: int, ports: Ports
) -> None:
    await ports.elapse(2 * ttl)
    await coordinator.append(lease, numbered(1), ttl)

    assert await everything(coordinator) == numbered(1)
    assert await coordinator.held(LOG)


async def test_a_reader_sees_a_batch_whole(
    coordinator: Coordinator, lease: Lease, ttl: int
) -> None:
    async def write() -> None:
        for position in range(1, 30):
            await coordinator.append(lease, [event(position, k) for k in range(10)], ttl)

    writing = asyncio.create_task(write())
    seen: list[LogEvent] = []
    while len(seen) < 290:
        after = seen[-1].id if seen else None
        batch = await coordinator.read(LOG, after, wait=1_000)
        assert len(batch) % 10 == 0
        seen += batch
        await asyncio.sleep(0)
    await writing

    assert seen == [event(position, k) for position in range(1, 30) for k in range(10)]


# ---- the cancel flag -----------------------------------------------------------------------


async def test_the_owner_learns_which_run_was_asked_to_stop(
    coordinator: Coordinator, lease: Lease, ttl: int
) -> None:
    assert coordinator.renew(lease, ttl) is None
    await coordinator.ask_to_stop(LOG, "run 1")
    assert coordinator.renew(lease, ttl) == "run 1"
    await coordinator.ask_to_stop(LOG, "run 2")

    assert (await coordinator.append(lease, numbered(1), ttl)).cancelled == "run 2"
    assert (await coordinator.append(lease, [], ttl)).cancelled == "run 2"


async def test_the_cancel_flag_does_not_need_an_owner_and_survives_one(
    coordinator: Coordinator, ttl: int
) -> None:
    await coordinator.ask_to_stop(LOG, "run")
    assert not await coordinator.held(LOG)
    assert await coordinator.last(LOG) is None
    for token in ("one", "two"):
        lease = await take(coordinator, token, ttl)
        assert (lease.last, lease.last_index) == (None, -1)
        assert coordinator.renew(lease, ttl) == "run"
        await coordinator.release(lease)

    elsewhere = await take(coordinator, "one", ttl, "another log")
    assert coordinator.renew(elsewhere, ttl) is None


# ---- forget --------------------------------------------------------------------------------


async def test_a_forgotten_log_is_empty_but_its_fences_go_on(
    coordinator: Coordinator, lease: Lease, ttl: int
) -> None:
    other = await take(coordinator, "owner", ttl, "another log")
    for each in (lease, other):
        await coordinator.append(each, numbered(5), ttl)
        await coordinator.ask_to_stop(each.log, "run")
    await coordinator.forget(LOG)
    await coordinator.forget(LOG)
    await coordinator.forget("a log never seen")

    assert await everything(coordinator) == []
    assert await coordinator.last(LOG) is None
    assert await everything(coordinator, "another log") == numbered(5)
    assert (await coordinator.append(other, [], ttl)).cancelled == "run"
    await coordinator.release(lease)
    later = await take(coordinator, "later", ttl)
    assert (later.last, later.last_index) == (None, -1)
    assert later.fence > lease.fence
    assert (await coordinator.append(later, numbered(1), ttl)).cancelled is None
    assert await everything(coordinator) == numbered(1)


# ---- read ----------------------------------------------------------------------------------


async def test_a_read_goes_on_after_an_id(coordinator: Coordinator, lease: Lease, ttl: int) -> None:
    events = [event(0, 1), event(0, 3), event(1, 0), event(0, 0, START + 5)]
    await coordinator.append(lease, events, ttl)

    for n, each in enumerate(events):
        assert await coordinator.read(LOG, each.id) == events[n + 1 :]
        assert await coordinator.read(LOG, each.id, inclusive=True) == events[n:]
    for inclusive in (False, True):
        between = EventId(START, 0, 2)
        assert await coordinator.read(LOG, between, inclusive=inclusive) == events[1:]
    assert await coordinator.read(LOG, None, limit=2) == events[:2]
    assert await coordinator.read(LOG, events[0].id, limit=2) == events[1:3]


async def test_a_waiting_reader_gets_what_is_appended(
    coordinator: Coordinator, lease: Lease, ttl: int
) -> None:
    await coordinator.append(lease, numbered(1), ttl)
    after = EventId(START, 1, 1)
    readers = [asyncio.create_task(coordinator.read(LOG, after, wait=60_000)) for _ in range(3)]
    await asyncio.sleep(0)

    elsewhere = await take(coordinator, "owner", ttl, "another log")
    await coordinator.append(elsewhere, numbered(7), ttl)
    appended = await coordinator.append(lease, numbered(2, 3), ttl)

    assert await asyncio.gather(*readers) == [numbered(2, 3)] * 3
    assert appended.followed


async def test_a_waiting_reader_gives_up_after_its_time(
    coordinator: Coordinator, backend: Backend, ports: Ports
) -> None:
    reader = asyncio.create_task(coordinator.read(LOG, None, wait=backend.unit))
    await ports.elapse(backend.unit)

    assert await asyncio.wait_for(reader, 10) == []


async def test_a_reader_that_is_cut_off_does_no_harm(
    coordinator: Coordinator, lease: Lease, ttl: int
) -> None:
    readers = [asyncio.create_task(coordinator.read(LOG, None, wait=60_000)) for _ in range(2)]
    await asyncio.sleep(0)
    readers[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await readers[0]

    await coordinator.append(lease, numbered(1), ttl)

    assert await readers[1] == numbered(1)
