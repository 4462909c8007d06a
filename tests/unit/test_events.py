"""Places in a log (docs/protocols.md D1)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.core.errors import BadRequest
from shared.core.events import K_BITS, K_MAX, Cursor, EventId, LogEvent

STARTS = st.integers(0, 10**14)
POSITIONS = st.integers(0, 10**7 - 1)
KS = st.integers(0, K_MAX)
IDS = st.builds(EventId, STARTS, POSITIONS, KS)


@given(id=IDS)
@settings(max_examples=50, deadline=None)
def test_ids_round_trip_through_the_stream_id(id: EventId) -> None:
    start, _, sequence = str(id).partition("-")
    assert (int(start), int(sequence)) == (id.start, id.sequence)
    assert EventId.of(id.start, id.sequence) == id


@given(one=IDS, other=IDS)
@settings(max_examples=50, deadline=None)
def test_d1_ids_sort_as_redis_sorts_them(one: EventId, other: EventId) -> None:
    pairs = [(id.start, id.sequence) for id in (one, other)]
    assert (one < other) == (pairs[0] < pairs[1])
    assert (one == other) == (pairs[0] == pairs[1])


def test_d1_the_form_of_an_id() -> None:
    assert str(EventId(1_700_000_000_000, 3, 5)) == f"1700000000000-{3 * 2**20 + 5}"
    assert K_MAX == 2**20 - 1


def test_d1_an_entry_ends_before_the_next_one_begins() -> None:
    ids = [EventId(7, 2, 0), EventId(7, 2, K_MAX), EventId(7, 3, 0), EventId(8, 0, 0)]
    assert ids == sorted(ids)
    assert ids[2].sequence == ids[1].sequence + 1 == 3 << K_BITS


@given(incarnation=st.integers(1, 10**8), id=IDS)
def test_cursors_round_trip(incarnation: int, id: EventId) -> None:
    cursor = Cursor(incarnation, id)
    assert Cursor.parse(str(cursor)) == cursor
    assert Cursor.parse(f" {cursor}\n") == cursor


BAD = [
    "",
    "1",
    "5-6",
    "1.5",
    "1.5-",
    "1.-5-6",
    "1.5-6-7",
    "a.5-6",
    "1.5-6 x",
    "1 .5-6",
    "-1.5-6",
    "1.5-" + "9" * 19,
    "9" * 10 + ".5-6",
    "1." + "9" * 16 + "-6",
    "1.5-6\x00",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_cursor(text: str) -> None:
    with pytest.raises(BadRequest, match="not a cursor"):
        Cursor.parse(text)


@given(text=st.text(max_size=40))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    try:
        cursor = Cursor.parse(text)
    except BadRequest:
        return
    assert Cursor.parse(str(cursor)) == cursor


@given(sequence=st.integers(0, 10**18 - 1), start=st.integers(0, 10**15 - 1))
def test_every_cursor_can_be_stored(sequence: int, start: int) -> None:
    id = Cursor.parse(f"1.{start}-{sequence}").id
    assert id.start < 2**63 > id.sequence + 1


def test_an_event_carries_its_cursor() -> None:
    event = LogEvent.make(2, EventId(5, 1, 3), 9, {"type": "finish", "payload": {"é": 1}})
    expected = {"type": "finish", "payload": {"é": 1}, "cursor": f"2.5-{2**20 + 3}"}
    assert json.loads(event.json) == expected
    assert (event.id, event.index) == (EventId(5, 1, 3), 9)
