"""History as a model may see it (docs/design.md 7.8), and where it is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.core import entries
from shared.core.entries import Note, Signals
from shared.core.model import (
    AssistantMessage,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from shared.core.prompt import INTERRUPTED, Prompt, recent
from shared.core.rows import rows
from tests.protocol.making import Book, answer, begun, books, call, finish, record, result, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.entries import AnyEntry
    from shared.core.model import Message


def prompt(*stored: AnyEntry, past: int = 0) -> tuple[Message, ...]:
    """The prompt of entries, of which the first `past` are of earlier runs."""
    made = Prompt()
    for number, entry in enumerate(stored):
        made.add(entry, past=number < past)
    return made.messages()


def check_valid(messages: Sequence[Message]) -> None:
    """Invariant 8: results follow their calls at once, each call has one, and in call order."""
    for place, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            following = messages[place + 1]
            assert isinstance(following, ToolMessage)
            asked = [each.call_id for each in message.tool_calls]
            assert [each.call_id for each in following.results] == asked
        if isinstance(message, ToolMessage):
            before = messages[place - 1] if place else None
            assert isinstance(before, AssistantMessage)
            assert before.tool_calls


# ---- any sequence ----------------------------------------------------------------------------

IDS = st.sampled_from(["c1", "c2", "c3"])
CALLS = st.lists(IDS, unique=True, max_size=3).map(lambda ids: [call(id) for id in ids])
SAID = st.sampled_from([[], [text("words")], [text("")]])
ANY_ENTRY: st.SearchStrategy[AnyEntry] = st.one_of(
    st.builds(lambda said, calls: answer(*said, *calls), SAID, CALLS),
    st.builds(result, IDS),
    st.builds(lambda said, calls: finish("cancelled", parts=said), SAID, CALLS),
    st.sampled_from(
        [
            begun(),
            begun(record("e", "")),
            Signals(message_id="m", signals=[record("s")]),
            Note(signals=[record("n")]),
            entries.Claim(),
            finish(),
        ]
    ),
)


@given(stored=st.lists(ANY_ENTRY, max_size=20), past=st.integers(0, 20), cut=st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_invariant_8_holds_for_any_entries_cut_anywhere(
    stored: list[AnyEntry], past: int, cut: int
) -> None:
    check_valid(prompt(*stored[cut:], past=past))


@given(book=books(), cut=st.data())
@settings(max_examples=40, deadline=None)
def test_invariant_8_each_call_gets_its_own_result(book: Book, cut: st.DataObject) -> None:
    stored = book.entries[cut.draw(st.integers(0, len(book.entries))) :]
    messages = prompt(*stored, past=len(stored))
    check_valid(messages)
    given = [
        (r.call_id, r.output) for m in messages if isinstance(m, ToolMessage) for r in m.results
    ]
    assert given == _answers(stored)


def _answers(stored: Sequence[AnyEntry]) -> list[tuple[str, object]]:
    """Each call with the result that stands between it and the next answer, naively."""
    found: list[tuple[str, object]] = []
    for place, entry in enumerate(stored):
        if isinstance(entry, entries.ModelAnswer):
            own: dict[str, object] = {}
            for later in stored[place + 1 :]:
                if isinstance(later, entries.ModelAnswer):
                    break
                if isinstance(later, entries.Result):
                    own[later.call_id] = later.output
            found += [(each.call_id, own.get(each.call_id, INTERRUPTED)) for each in entry.calls]
    return found


def test_invariant_8_a_result_whose_call_was_cut_off_answers_no_other() -> None:
    messages = prompt(result("c1", "of an earlier call"), answer(call("c1")), finish("failed"))
    assert messages[-1] == ToolMessage((ToolResult("c1", "add", INTERRUPTED, is_error=True),))


# ---- what it holds ---------------------------------------------------------------------------


def test_a_conversation() -> None:
    thought = entries.Reasoning(id="r", text="hm", signature="sig", provider_metadata={"p": 1})
    assert prompt(
        begun(record("m1", "go"), record("m2", "now")),
        answer(thought, text("so"), call("c1", a=1), call("c2")),
        result("c2", 2),
        result("c1", error=entries.Fault(name="ValueError", message="no")),
        Signals(message_id="m", signals=[record("m3", "also")]),
        answer(text("done")),
        finish(),
    ) == (
        UserMessage("go"),
        UserMessage("now"),
        AssistantMessage(
            (
                ReasoningPart("hm", "sig", {"p": 1}),
                TextPart("so"),
                ToolCall("c1", "add", {"a": 1}),
                ToolCall("c2", "add", {}),
            )
        ),
        ToolMessage((ToolResult("c1", "add", "no", is_error=True), ToolResult("c2", "add", 2))),
        UserMessage("also"),
        AssistantMessage((TextPart("done"),)),
    )


def test_transient_signals_are_shown_in_their_run_only() -> None:
    entry = begun(record("m1", "stays"), record("m2", "goes", transient=True))
    assert prompt(entry) == (UserMessage("stays"), UserMessage("goes"))
    assert prompt(entry, past=1) == (UserMessage("stays"),)


def test_e2_a_note_is_shown_from_the_next_run_on() -> None:
    note = Note(signals=[record("n", "kept")])
    assert prompt(begun(), answer(text("hi")), note)[-1] == AssistantMessage((TextPart("hi"),))
    assert prompt(begun(), answer(text("hi")), note, past=3)[-1] == UserMessage("kept")


def test_what_a_cut_call_had_said_is_kept() -> None:
    messages = prompt(begun(), finish("cancelled", parts=[text("half")]), past=2)
    assert messages[-1] == AssistantMessage((TextPart("half"),))


def test_empty_things_are_left_out() -> None:
    assert prompt(begun(record("m1", "")), answer(text("")), finish()) == ()


# ---- recent ----------------------------------------------------------------------------------

THREAD, RESOURCE = "t", "r"


@given(book=books(), wanted=st.integers(0, 8))
@settings(max_examples=50, deadline=None)
def test_recent_cuts_at_row_borders(book: Book, wanted: int) -> None:
    """Its rows are the last ones of the whole, and as few as hold `wanted` without a cut row."""
    whole = rows(book.entries, THREAD, RESOURCE)
    cut = rows(recent(book.entries, wanted), THREAD, RESOURCE)
    assert cut == whole[len(whole) - len(cut) :]
    assert len(cut) >= min(wanted, len(whole))


def test_recent_never_begins_inside_a_row() -> None:
    """A note in mid-run comes between the answers of one run."""
    moves = ["input", "one call", "result", "note", "answer", "finish"]
    stored = Book().play(moves).entries
    whole = rows(stored, THREAD, RESOURCE)
    for wanted in range(1, 5):
        cut = rows(recent(stored, wanted), THREAD, RESOURCE)
        assert cut == whole[-len(cut) :]


@pytest.mark.parametrize(("wanted", "first"), [(0, None), (1, 4), (2, 3), (3, 1), (4, 0), (9, 0)])
def test_recent_at_each_border(wanted: int, first: int | None) -> None:
    moves = ["input", "one call", "result", "signal", "answer", "finish"]
    stored = Book().play(moves).entries
    assert recent(stored, wanted) == ([] if first is None else stored[first:])


def test_recent_of_nothing() -> None:
    assert recent([], 5) == []
