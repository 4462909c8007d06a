"""What every Table adapter does (`docs/design.md` section 3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from shared.adapters.limits import MAX_COMMIT, MAX_PARTITION, MAX_SORT, MAX_WRITES
from shared.core.errors import BadRequest, ConditionFailed, TooLarge
from shared.ports import ABSENT, Check, Delete, Failure, Index, Item, Put
from tests.contract.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.ports import Table, Write
    from tests.contract.backends import Backend, Ports

BODY = {
    "text": "naïve ☃ 𝄞 \u0000 \n",
    "numbers": [0, -1, 1.5, 2**53, 1e-9],
    "nested": {"empty": {}, "list": [], "none": None, "yes": True},
    "": "an empty key",
}


@pytest.fixture
def table(ports: Ports) -> Table:
    return ports.table


async def refused(table: Table, writes: Sequence[Write]) -> tuple[Failure, ...]:
    """Commit, expecting that it fails; return the failures."""
    with pytest.raises(ConditionFailed) as caught:
        await table.commit(writes)
    return caught.value.failures


async def sorts(table: Table, **options: Any) -> list[str]:
    return [item.sort for item in await table.query("p", **options)]


# ---- one item ------------------------------------------------------------------------------


async def test_what_is_put_is_read_back_whole(table: Table, ports: Ports) -> None:
    later = ports.clock.now() + 3_600_000
    await table.commit([Put("p", "s", BODY, index=Index("g", 7), expires=later)])

    stored = await table.get("p", "s")

    assert stored == Item("p", "s", 1, BODY, Index("g", 7), later)


async def test_nothing_is_read_where_nothing_is(table: Table) -> None:
    assert await table.get("p", "s") is None
    assert await table.query("p") == []
    assert await table.index("g") == []


async def test_a_body_over_the_size_of_a_dynamodb_item_is_kept(table: Table) -> None:
    body = {"text": "é" * 700_000, "n": 1}
    await table.commit([Put("p", "s", body)])
    await table.commit([Put("p", "s", {**body, "n": 2}, expect=1), Put("p", "t", {})])

    stored = await table.get("p", "s")

    assert stored is not None
    assert stored.body == {**body, "n": 2}
    assert await sorts(table) == ["s", "t"]


async def test_a_large_body_becomes_small_again(table: Table) -> None:
    await table.commit([Put("p", "s", {"text": "x" * 900_000})])
    await table.commit([Put("p", "s", {"text": "y"}, expect=1)])

    assert await table.query("p") == [Item("p", "s", 2, {"text": "y"})]

    await table.commit([Delete("p", "s", expect=2)])
    assert await table.query("p") == []


async def test_every_put_adds_one_to_the_version(table: Table) -> None:
    versions = []
    for expect in (ABSENT, None, 2, None):
        await table.commit([Put("p", "s", {}, expect=expect)])
        stored = await table.get("p", "s")
        assert stored is not None
        versions.append(stored.version)

    assert versions == [1, 2, 3, 4]


async def test_an_item_made_again_begins_at_version_1(table: Table) -> None:
    await table.commit([Put("p", "s", {})])
    await table.commit([Put("p", "s", {})])
    await table.commit([Delete("p", "s", expect=2)])
    await table.commit([Put("p", "s", {"n": 2})])

    assert await table.get("p", "s") == Item("p", "s", 1, {"n": 2})


async def test_a_put_replaces_the_whole_item(table: Table, ports: Ports) -> None:
    later = ports.clock.now() + 3_600_000
    await table.commit([Put("p", "s", {"a": 1, "b": 2}, index=Index("g", 1), expires=later)])
    await table.commit([Put("p", "s", {"a": 3})])

    assert await table.get("p", "s") == Item("p", "s", 2, {"a": 3})


async def test_neither_caller_nor_reader_can_change_what_is_stored(table: Table) -> None:
    body: dict[str, Any] = {"list": [1]}
    await table.commit([Put("p", "s", body)])
    body["list"].append(2)
    read = await table.get("p", "s")
    assert read is not None
    read.body["list"].append(3)

    assert await table.get("p", "s") == Item("p", "s", 1, {"list": [1]})


# ---- expectations --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        Put("p", "s", {"n": 2}, expect=ABSENT),
        Put("p", "s", {"n": 2}, expect=2),
        Delete("p", "s", expect=2),
        Delete("p", "s", expect=ABSENT),
        Check("p", "s", expect=ABSENT),
        Check("p", "s", expect=2),
    ],
)
async def test_an_expectation_that_does_not_hold(table: Table, write: Write) -> None:
    await table.commit([Put("p", "s", {"n": 1}, index=Index("g", 1))])
    stored = Item("p", "s", 1, {"n": 1}, Index("g", 1))

    assert await refused(table, [write]) == (Failure(write, stored),)
    assert await table.get("p", "s") == stored


@pytest.mark.parametrize(
    "write",
    [Put("p", "s", {}, expect=1), Delete("p", "s", expect=1), Check("p", "s", expect=1)],
)
async def test_no_version_is_there_without_an_item(table: Table, write: Write) -> None:
    assert await refused(table, [write]) == (Failure(write, None),)
    assert await table.get("p", "s") is None


async def test_expectations_that_hold(table: Table) -> None:
    await table.commit([Delete("p", "s"), Check("p", "t", expect=ABSENT)])
    await table.commit([Put("p", "s", {}, expect=ABSENT), Delete("p", "t", expect=ABSENT)])
    await table.commit([Check("p", "s", expect=1), Put("p", "t", {})])
    await table.commit([Delete("p", "s", expect=1), Check("p", "t", expect=1)])

    assert await sorts(table) == ["t"]


async def test_a_check_alone_changes_nothing(table: Table) -> None:
    await table.commit([Put("p", "s", {})])
    await table.commit([Check("p", "s", expect=1)])
    await table.commit([Check("p", "s", expect=1), Check("p", "t", expect=ABSENT)])

    assert await table.query("p") == [Item("p", "s", 1, {})]


async def test_a_failed_commit_tells_every_failure_and_keeps_nothing(table: Table) -> None:
    await table.commit([Put("p", "a", {"n": 1}), Put("q", "b", {"n": 2}, index=Index("g", 1))])
    before = [*await table.query("p"), *await table.query("q")]
    taken, gone = Put("p", "a", {}, expect=ABSENT), Check("p", "none", expect=4)
    old = Delete("q", "b", expect=9)
    new, touched = Put("p", "new", {}, index=Index("g", 2)), Put("q", "touched", {}, expect=ABSENT)

    failures = await refused(table, [new, taken, touched, gone, old])

    assert failures == (Failure(taken, before[0]), Failure(gone, None), Failure(old, before[1]))
    assert [*await table.query("p"), *await table.query("q")] == before


async def test_an_empty_commit_does_nothing(table: Table) -> None:
    await table.commit([])


async def test_concurrent_conditional_writers_lose_nothing(table: Table) -> None:
    async def add() -> None:
        while True:
            stored = await table.get("p", "counter")
            body = {"n": stored.body["n"] + 1 if stored else 1}
            try:
                if stored:
                    await table.commit([Put("p", "counter", body, expect=stored.version)])
                else:
                    await table.commit([Put("p", "counter", body, expect=ABSENT)])
            except ConditionFailed:
                continue
            return

    await asyncio.gather(*(add() for _ in range(20)))

    assert await table.get("p", "counter") == Item("p", "counter", 20, {"n": 20})


# ---- expiry --------------------------------------------------------------------------------


@pytest.fixture
async def expired(ports: Ports, backend: Backend) -> Item:
    """An item at version 2 that expired just now."""
    at = ports.clock.now() + backend.unit
    index = Index("g", 1)
    for _ in range(2):
        await ports.table.commit([Put("p", "s", {"old": 1}, index=index, expires=at)])
    item = Item("p", "s", 2, {"old": 1}, index, at)
    assert await ports.table.get("p", "s") == item
    await ports.elapse(backend.unit)
    return item


@pytest.mark.usefixtures("expired")
async def test_an_expired_item_is_hidden_from_every_read(table: Table) -> None:
    assert await table.get("p", "s") is None
    assert await table.query("p") == []
    assert await table.query("p", "s", reverse=True, limit=1) == []
    assert await table.index("g") == []


async def test_hidden_items_do_not_count_towards_a_limit(table: Table, expired: Item) -> None:
    await table.commit([Put("p", "t", {}, index=Index("g", 2))])

    assert expired.sort < "t"
    assert await sorts(table, limit=1) == ["t"]
    assert [item.sort for item in await table.index("g", limit=1)] == ["t"]


@pytest.mark.usefixtures("expired")
async def test_an_expired_item_is_absent(table: Table) -> None:
    await table.commit([Check("p", "s", expect=ABSENT)])
    await table.commit([Put("p", "s", {"new": 1}, expect=ABSENT)])

    assert await table.get("p", "s") == Item("p", "s", 1, {"new": 1})
    assert await table.index("g") == []


@pytest.mark.parametrize("kind", [Put, Delete, Check])
async def test_an_expired_item_has_no_version(table: Table, expired: Item, kind: type) -> None:
    write: Write = (
        Put("p", "s", {}, expect=expired.version)
        if kind is Put
        else kind("p", "s", expect=expired.version)
    )

    assert await refused(table, [write]) == (Failure(write, None),)


@pytest.mark.usefixtures("expired")
async def test_an_expired_item_may_be_put_and_deleted(table: Table) -> None:
    await table.commit([Put("p", "s", {"new": 1})])
    stored = await table.get("p", "s")
    assert stored is not None
    assert (stored.body, stored.index, stored.expires) == ({"new": 1}, None, None)

    await table.commit([Delete("p", "s")])
    assert await table.get("p", "s") is None


# ---- query ---------------------------------------------------------------------------------

SORTS = [
    "A",
    "A#1",
    "A#10",
    "A#2",
    "A#é",
    "A#\ud7ff",
    "A#\ud7ff1",
    "A#ﬀ",
    "A#\U0001d11e",
    "A#\U0010ffff",
    "A$",
    "B",
]
"""In the order of their UTF-8 bytes."""


@pytest.fixture
async def filled(table: Table) -> None:
    assert sorted(SORTS, key=str.encode) == SORTS
    await table.commit([Put("p", sort, {"sort": sort}) for sort in reversed(SORTS)])
    await table.commit([Put("o", "A#1", {}), Put("pp", "A#1", {}), Put("p\0", "A#1", {})])


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("prefix", ["", "A", "A#", "A#1", "A#\ud7ff", "A#\U0010ffff", "C"])
async def test_a_query_reads_what_has_the_prefix_in_order(
    table: Table, prefix: str, reverse: bool
) -> None:
    expected = sorted(filter(lambda s: s.startswith(prefix), SORTS), reverse=reverse)

    assert await sorts(table, prefix=prefix, reverse=reverse) == expected
    assert await sorts(table, prefix=prefix, reverse=reverse, limit=2) == expected[:2]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("after", ["", "0", "A#1", "A#15", "A#\U0010ffff", "A$", "Z"])
@pytest.mark.parametrize("prefix", ["", "A#", "A#1"])
async def test_a_query_goes_on_after_a_key(table: Table, prefix: str, after: str) -> None:
    hits = [sort for sort in SORTS if sort.startswith(prefix)]

    assert await sorts(table, prefix=prefix, after=after) == [s for s in hits if s > after]
    assert await sorts(table, prefix=prefix, after=after, reverse=True) == [
        s for s in reversed(hits) if s < after
    ]


async def test_many_large_items_are_all_read(table: Table) -> None:
    for number in range(12):
        await table.commit([Put("p", f"{number:02}", {"text": "x" * 200_000})])

    assert len(await table.query("p")) == 12
    assert await sorts(table, limit=10, reverse=True) == [f"{n:02}" for n in range(11, 1, -1)]


# ---- index ---------------------------------------------------------------------------------

NOTHING: list[str] = []


async def indexed(table: Table, group: str = "g", **options: Any) -> list[str]:
    return [item.partition + item.sort for item in await table.index(group, **options)]


async def test_an_index_is_ordered_by_order_then_key(table: Table) -> None:
    await table.commit(
        [
            Put("q", "a", {}, index=Index("g", 5)),
            Put("p", "b", {}, index=Index("g", 5)),
            Put("p", "a", {}, index=Index("g", 5)),
            Put("p", "c", {}, index=Index("g", 1_700_000_000_000)),
            Put("z", "z", {}, index=Index("g", 0)),
            Put("p", "d", {}, index=Index("other", 5)),
            Put("p", "e", {}),
        ]
    )
    everything = ["zz", "pa", "pb", "qa", "pc"]

    await until(lambda: indexed(table), everything)
    assert await indexed(table, reverse=True) == everything[::-1]
    assert await indexed(table, limit=2) == ["zz", "pa"]
    assert await indexed(table, limit=2, reverse=True) == ["pc", "qa"]
    assert await indexed(table, low=1) == everything[1:]
    assert await indexed(table, high=5) == everything[:4]
    assert await indexed(table, low=5, high=5) == ["pa", "pb", "qa"]
    assert await indexed(table, low=6, high=5) == []


async def test_an_index_entry_goes_with_its_item(table: Table) -> None:
    await table.commit([Put("p", "s", {"n": 1}, index=Index("g", 1))])
    await until(lambda: indexed(table), ["ps"])

    await table.commit([Put("p", "s", {"n": 2}, index=Index("h", 2))])
    await until(lambda: indexed(table), NOTHING)
    await until(lambda: table.index("h"), [Item("p", "s", 2, {"n": 2}, Index("h", 2))])

    await table.commit([Put("p", "s", {"n": 3})])
    await until(lambda: indexed(table, "h"), NOTHING)

    await table.commit([Put("p", "s", {"n": 4}, index=Index("h", 3))])
    await until(lambda: indexed(table, "h"), ["ps"])
    await table.commit([Delete("p", "s")])
    await until(lambda: indexed(table, "h"), NOTHING)


async def test_an_index_read_gives_bodies_of_any_size(table: Table) -> None:
    body = {"text": "x" * 900_000}
    await table.commit([Put("p", "s", body, index=Index("g", 1))])

    await until(lambda: table.index("g"), [Item("p", "s", 1, body, Index("g", 1))])


async def test_promptness_of_the_index(table: Table, backend: Backend) -> None:
    if not backend.prompt_index:
        pytest.skip("its index may lag")
    await table.commit([Put("p", "s", {}, index=Index("g", 1))])

    assert await indexed(table) == ["ps"]


# ---- limits --------------------------------------------------------------------------------

OVER = {
    "writes": [Put("p", str(n), {}) for n in range(MAX_WRITES + 1)],
    "one key twice": [Put("p", "s", {}), Check("p", "s", expect=ABSENT)],
    "sort key": [Put("p", "é" * (MAX_SORT // 2) + "x", {})],
    "partition key": [Put("p" * (MAX_PARTITION + 1), "s", {})],
    "empty sort key": [Put("p", "", {})],
    "empty partition key": [Delete("", "s")],
    "empty group": [Put("p", "s", {}, index=Index("", 1))],
    "negative order": [Put("p", "s", {}, index=Index("g", -1))],
    "huge order": [Put("p", "s", {}, index=Index("g", 2**63))],
    "no unicode": [Put("p\ud800", "s", {})],
    "no unicode inside": [Put("p", "s", {"text": "\ud800"})],
    "no JSON": [Put("p", "s", {"object": object()})],
}


@pytest.mark.parametrize("writes", OVER.values(), ids=OVER.keys())
async def test_a_commit_beyond_a_limit_is_refused(table: Table, writes: list[Write]) -> None:
    with pytest.raises(BadRequest):
        await table.commit([Put("other", "other", {}), *writes])

    assert await table.get("other", "other") is None


async def test_a_commit_of_over_4_mb_is_refused(table: Table) -> None:
    half = "x" * (MAX_COMMIT // 2)
    with pytest.raises(TooLarge):
        await table.commit([Put("p", "a", {"t": half}), Put("p", "b", {"t": half})])

    assert await table.query("p") == []


async def test_keys_count_towards_the_4_mb(table: Table) -> None:
    partition, text = "p" * MAX_PARTITION, "x" * (MAX_COMMIT // MAX_WRITES - 1_000)
    with pytest.raises(TooLarge):
        await table.commit([Put(partition, str(n), {"t": text}) for n in range(MAX_WRITES)])


async def test_a_commit_at_its_limits_is_accepted(table: Table) -> None:
    partition, sort = "p" * MAX_PARTITION, "é" * (MAX_SORT // 2)
    writes = [Put(partition, f"{n:03}", {"n": n}) for n in range(MAX_WRITES - 1)]
    await table.commit([*writes, Put(partition, sort, {})])

    assert len(await table.query(partition)) == MAX_WRITES
    assert await table.get(partition, sort) is not None
