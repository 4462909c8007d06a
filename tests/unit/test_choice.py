"""What an owner takes from the inbox next (docs/protocols.md B5, E1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.core.choice import (
    Choice,
    Discard,
    Keep,
    Leftovers,
    Owned,
    Taken,
    Waiting,
    drain,
    fitting,
    next_start,
)
from shared.core.limits import DRAIN_BYTES, DRAIN_ITEMS
from tests.protocol.making import AGENT, inbox, item, owned_by

CANCEL_OVER = item("cancel", "over")
CANCEL_NEXT = item("cancel", "next")
KEEP = item("keep", "over", "kept")
FOR_OVER = item("deliver", "over", "late")
FOR_NEXT = item("deliver", "next", "early")
FOR_OLDER = item("deliver", "older", "later")
WAKE = item("wake", "next", "first")
QUEUE = item("queue", "after", "second")


def chosen(waiting: list[Waiting]) -> Choice | None:
    return next_start(waiting, owned_by(waiting))


def names(items: object) -> list[str]:
    assert isinstance(items, list)
    return [w.item.signal["id"] if w.item.signal else w.item.kind for w in items]


def test_b5_first_cancels_of_runs_that_are_over_are_discarded() -> None:
    everything = inbox(CANCEL_NEXT, CANCEL_OVER, KEEP, FOR_OVER, WAKE, QUEUE)
    choice = chosen(everything)
    assert isinstance(choice, Discard)
    assert [w.item.run for w in choice.items] == ["over"]


def test_b5_then_signals_that_cannot_be_read_fail() -> None:
    waiting = [replace(w, broken=w.item.kind != "wake") for w in inbox(KEEP, FOR_OVER, WAKE)]
    choice = chosen(waiting)
    assert isinstance(choice, Discard)
    assert (names(choice.items), choice.state) == (["kept", "late"], "failed")


def test_b5_then_keeps_are_stored_one_by_one() -> None:
    second = item("keep", "over", "kept too")
    choice = chosen(inbox(CANCEL_NEXT, FOR_OVER, KEEP, second, WAKE))
    assert isinstance(choice, Keep)
    assert names([choice.item]) == ["kept"]


def test_b5_then_the_signals_of_the_oldest_run_that_is_over() -> None:
    choice = chosen(inbox(FOR_NEXT, FOR_OVER, FOR_OLDER, FOR_OVER, WAKE))
    assert isinstance(choice, Leftovers)
    assert choice.run == "over"
    assert names(choice.items) == ["late", "late"]


def test_b5_then_the_oldest_owner_with_what_waits_for_its_run() -> None:
    choice = chosen(inbox(FOR_NEXT, WAKE, QUEUE))
    assert isinstance(choice, Owned)
    assert (names(choice.items), choice.more) == (["first", "early"], False)
    assert choice.owner.item.run == "next"
    after = chosen(inbox(QUEUE))
    assert isinstance(after, Owned)
    assert names(after.items) == ["second"]


def test_b5_nothing_is_startable_in_an_empty_inbox() -> None:
    assert next_start([], frozenset()) is None


def test_a9_a_cancel_of_a_run_that_waits_is_kept_for_its_start() -> None:
    choice = chosen(inbox(CANCEL_NEXT, WAKE))
    assert isinstance(choice, Owned)
    assert choice.more


def test_e1_a_start_takes_one_drains_worth() -> None:
    many = [item("deliver", "next", f"d{n}") for n in range(DRAIN_ITEMS + 5)]
    choice = chosen(inbox(WAKE, *many))
    assert isinstance(choice, Owned)
    assert (len(choice.items), choice.more) == (DRAIN_ITEMS, True)
    exact = chosen(inbox(WAKE, *many[: DRAIN_ITEMS - 1]))
    assert isinstance(exact, Owned)
    assert (len(exact.items), exact.more) == (DRAIN_ITEMS, False)
    over = chosen(inbox(*[item("deliver", "over", f"o{n}") for n in range(DRAIN_ITEMS + 5)]))
    assert isinstance(over, Leftovers)
    assert len(over.items) == DRAIN_ITEMS


# ---- drains ----------------------------------------------------------------------------------


def drained(waiting: list[Waiting], *, takes: bool = True) -> Taken:
    return drain(waiting, "mine", AGENT, owned_by(waiting), takes=takes)


def test_e1_a_drain_takes_what_is_for_this_run_or_for_one_that_is_over() -> None:
    mine, kept = item("deliver", "mine", "now"), item("keep", "mine", "kept")
    taken = drained(inbox(item("cancel", "mine"), CANCEL_OVER, CANCEL_NEXT, mine, FOR_OVER, kept))
    assert {w.item.run for w in taken.cancels} == {"mine", "over", "next"}
    assert (names(list(taken.signals)), names(list(taken.notes))) == (["now", "late"], ["kept"])
    assert taken.heir is None


def test_e1_a_drain_takes_nothing_of_a_run_that_has_yet_to_start() -> None:
    waiting = inbox(CANCEL_NEXT, FOR_NEXT, item("keep", "next", "k"), WAKE, QUEUE)
    taken = drained(waiting)
    assert (taken.cancels, taken.signals, taken.notes) == ([], [], [])
    assert taken.heir
    assert taken.heir.item.run == "next"


def test_a_run_that_takes_no_more_still_sees_cancels_and_its_heir() -> None:
    taken = drained(inbox(item("cancel", "mine"), item("deliver", "mine"), KEEP, WAKE), takes=False)
    assert (taken.signals, taken.notes, taken.more) == ((), (), False)
    assert [w.item.run for w in taken.cancels] == ["mine"]
    assert taken.heir
    assert taken.heir.item.run == "next"


def test_e1_a_drain_takes_nothing_that_was_sent_to_another_agent() -> None:
    others = [item("deliver", "over", agent="other"), item("keep", "mine", agent="other")]
    taken = drained(inbox(*others))
    assert (taken.signals, taken.notes) == ([], [])


def test_b5_what_cannot_be_read_is_never_drained() -> None:
    broken = [replace(w, broken=True) for w in inbox(item("deliver", "mine"), KEEP)]
    taken = drained(broken)
    assert (taken.signals, taken.notes) == ([], [])


@pytest.mark.parametrize(("count", "takes", "more"), [(30, 30, False), (31, 30, True)])
def test_e1_at_most_thirty_items(count: int, takes: int, more: bool) -> None:
    taken = drained(inbox(*[item("deliver", "mine", f"d{n}") for n in range(count)]))
    assert (len(taken.signals), taken.more) == (takes, more)


KB = 1_000


@pytest.mark.parametrize(
    ("sizes", "takes"),
    [
        ([], 0),
        ([400 * KB, 400 * KB, 400 * KB], 2),
        ([2_000 * KB, 1], 1),  # a larger single one goes alone
        ([1, 2_000 * KB], 1),
        ([999 * KB], 1),
    ],
)
def test_e1_at_most_one_megabyte(sizes: list[int], takes: int) -> None:
    waiting = inbox(*[item("deliver", "mine", f"d{n}", size=s) for n, s in enumerate(sizes)])
    assert len(fitting(waiting)) == takes


@given(count=st.integers(0, 100), large=st.sets(st.integers(0, 99), max_size=3))
@settings(max_examples=25, deadline=None)
def test_e1_drains_take_everything_in_order(count: int, large: set[int]) -> None:
    sizes = [DRAIN_BYTES if n in large else 10 for n in range(count)]
    left = inbox(*[item("deliver", "mine", f"d{n}", size=s) for n, s in enumerate(sizes)])
    expected, seen = names(left), list[str]()
    while left:
        taken = fitting(left)
        assert 1 <= len(taken) <= DRAIN_ITEMS
        seen, left = seen + names(taken), left[len(taken) :]
    assert seen == expected
