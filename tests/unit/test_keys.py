"""No two records have one key, whatever callers call their things (docs/design.md 4)."""

from __future__ import annotations

import hashlib
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.core import keys
from shared.core.limits import MAX_ID

IDS = st.text(st.sampled_from("ab#%~1235é\N{ROCKET}"), min_size=1, max_size=8) | st.text(min_size=1)
MAKERS = {
    "thread": keys.thread,
    "partition": lambda id: keys.partition(id, 1),
    "run": keys.run,
    "cancel": keys.cancel,
    "receipt": keys.receipt,
    "idempotency": keys.idempotency,
    "threads_of": keys.threads_of,
}


def utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("name", MAKERS)
@given(one=IDS.map(utf8), other=IDS.map(utf8))
@settings(max_examples=30, deadline=None)
def test_two_ids_never_give_one_key(name: str, one: str, other: str) -> None:
    assert (MAKERS[name](one) == MAKERS[name](other)) == (one == other)


TRICKY = [
    "a",
    "a#",
    "a#1",
    "a%23",
    "a%23#",
    "a%2523",
    "a%",
    "a%25",
    "#",
    "%",
    "##",
    "#1",
    "THREAD#a",
    "cancel#a",
    "~",
    "\N{ROCKET}" * MAX_ID,
    "\N{ROCKET}" * (MAX_ID - 1),
    "#" * MAX_ID,
    "%" * MAX_ID,
]


@pytest.mark.parametrize("name", MAKERS)
def test_tricky_ids(name: str) -> None:
    for one, other in combinations(TRICKY, 2):
        assert MAKERS[name](one) != MAKERS[name](other), (one, other)


@pytest.mark.parametrize("id", ["\N{ROCKET}" * MAX_ID, "\N{ROCKET}" * 226])
def test_no_id_gives_the_key_of_a_longer_one(id: str) -> None:
    """What a long id is shortened to can be sent as an id of its own."""
    shortened = keys.receipt(id).removeprefix("SIG#")
    assert len(shortened) <= MAX_ID
    assert keys.receipt(shortened) != keys.receipt(id)


def test_a_thread_is_no_part_of_another() -> None:
    """A partition of one thread is not the record of another, nor of another incarnation."""
    threads = ["a", "a#1", "a#12", "a%231", "1", "#"]
    places = [keys.thread(t) for t in threads]
    places += [keys.partition(t, n) for t in threads for n in (1, 2, 12)]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("id", ["\N{ROCKET}" * MAX_ID, "#" * MAX_ID, "%" * MAX_ID, "a" * MAX_ID])
def test_every_key_of_an_allowed_id_can_be_stored(id: str) -> None:
    for partition in (keys.thread(id), keys.partition(id, 10**9), keys.run(id)):
        assert len(partition.encode()) <= 2048
    for sort in (keys.receipt(id), keys.idempotency(id)):
        assert len(sort.encode()) <= 1024


@given(
    start=st.integers(0, 10**14 - 1),
    position=st.integers(0, 10**7 - 1),
    other_start=st.integers(0, 10**14 - 1),
    other_position=st.integers(0, 10**7 - 1),
)
def test_entries_sort_by_start_and_position(
    start: int, position: int, other_start: int, other_position: int
) -> None:
    one, other = keys.step(start, position), keys.step(other_start, other_position)
    assert (one < other) == ((start, position) < (other_start, other_position))
    assert keys.start_and_position(one) == (start, position)
    assert one.startswith(keys.run_steps(start))
    assert keys.run_steps(start)[:-1] < keys.step(start, 0)


def test_the_inbox_is_in_order_of_class_then_name() -> None:
    made = [keys.cancel("z"), keys.inbox(1, "2"), keys.inbox(2, "1")]
    assert made == sorted(made)
    assert all(key.startswith(keys.INBOX_PREFIX) for key in made)


def test_a_cancel_is_one_however_often_it_is_asked() -> None:
    assert keys.cancel("r") == keys.cancel("r") != keys.cancel("r2")


def test_idempotency_keys_are_hashed() -> None:
    assert keys.idempotency("k") == f"KEY#{hashlib.sha256(b'k').hexdigest()}"


@given(id=IDS.map(utf8))
def test_every_thread_has_a_shard(id: str) -> None:
    assert 0 <= keys.shard(id) < keys.SHARDS
    assert keys.due_runs(keys.shard(id)) != keys.due_inbox(keys.shard(id))


def test_threads_spread_over_all_shards() -> None:
    assert {keys.shard(f"thread-{n}") for n in range(500)} == set(range(keys.SHARDS))
