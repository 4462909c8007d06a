"""The transcript as clients read it (docs/spec/signals.md 1.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings

from shared.core import entries
from shared.core.entries import Note, Signals
from shared.core.rows import rows
from shared.core.signals import iso
from tests.clock import START
from tests.protocol.making import (
    MESSAGE,
    Book,
    answer,
    begun,
    books,
    call,
    finish,
    record,
    result,
    text,
)

if TYPE_CHECKING:
    from shared.core.entries import AnyEntry


def fold(*stored: AnyEntry) -> list[dict[str, Any]]:
    return rows(stored, "t", "r")


def parts(row: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = row["content"]["parts"]
    return found


def invocation(part: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = part["toolInvocation"]
    return found


def test_one_assistant_row_over_all_tool_steps() -> None:
    made = fold(
        begun(record("m1", "go"), at=START),
        answer(text("so"), call("c1", a=1), at=START + 1, model_id="m-1"),
        result("c1", {"sum": 3}),
        answer(text("3"), model_id="m-1"),
        finish(),
    )
    assert [(row["id"], row["role"]) for row in made] == [("m1", "signal"), (MESSAGE, "assistant")]
    called = {"toolCallId": "c1", "toolName": "add", "args": {"a": 1}}
    assert made[1] == {
        "id": MESSAGE,
        "role": "assistant",
        "type": "text",
        "createdAt": iso(START + 1),
        "threadId": "t",
        "resourceId": "r",
        "content": {
            "format": 2,
            "parts": [
                {"type": "text", "text": "so"},
                {
                    "type": "tool-invocation",
                    "toolInvocation": {"state": "result", **called, "result": {"sum": 3}},
                },
                {"type": "text", "text": "3"},
            ],
            "metadata": {"modelId": "m-1"},
        },
    }


def test_a_signal_between_two_answers_parts_them() -> None:
    taken = Signals(message_id="next", signals=[record("s")])
    second = answer(text("two"), message_id="next")
    made = fold(begun(), answer(text("one")), taken, second, finish(message_id="next"))
    assert [row["id"] for row in made] == ["m1", MESSAGE, "s", "next"]


def test_several_signals_are_rows_one_ms_apart() -> None:
    made = fold(begun(record("a"), record("b"), at=START))
    assert [row["createdAt"] for row in made] == [iso(START), iso(START + 1)]


def test_a_note_in_mid_run_takes_nothing_from_the_answer() -> None:
    made = Book().play(["input", "one call", "result", "note", "answer", "finish"]).entries
    said = [part for row in fold(*made) if row["role"] == "assistant" for part in parts(row)]
    assert [part["type"] for part in said] == ["tool-invocation", "text"]
    assert invocation(said[0])["state"] == "result"
    assert all(row["id"] for row in fold(*made))


def test_transient_signals_have_no_row() -> None:
    assert [row["id"] for row in fold(begun(record("a", transient=True), record("b")))] == ["b"]


def test_1_9_8_a_failure_is_a_part() -> None:
    made = fold(begun(), finish("failed", parts=[text("half")]))
    error = {"type": "error", "error": {"name": "ModelFailed", "message": "it broke"}}
    assert parts(made[1]) == [{"type": "text", "text": "half"}, error]


def test_a_cancel_without_words_leaves_no_row() -> None:
    assert [row["id"] for row in fold(begun(), finish("cancelled"))] == ["m1"]
    made = fold(begun(), finish("cancelled", parts=[text("half")]))
    assert parts(made[1]) == [{"type": "text", "text": "half"}]


def test_states_of_tool_calls() -> None:
    failed = result("c2", error=entries.Fault(name="ValueError", message="no"))
    made = fold(begun(), answer(call("c1"), call("c2"), call("c3")), result("c1"), failed)
    states = [invocation(part)["state"] for part in parts(made[1])]
    assert states == ["result", "output-error", "call"]
    assert invocation(parts(made[1])[1])["errorText"] == "no"


def test_thoughts() -> None:
    made = fold(begun(), answer(entries.Reasoning(id="r", text="hm", signature="sig")))
    details = [{"type": "text", "text": "hm"}]
    assert parts(made[1]) == [{"type": "reasoning", "reasoning": "hm", "details": details}]


def test_calls_of_two_steps_with_one_id_keep_their_own_results() -> None:
    """Some providers number the calls of each answer anew; both steps are in one row."""
    made = fold(
        begun(),
        answer(call("call_0", n=1)),
        result("call_0", "first"),
        answer(call("call_0", n=2)),
        result("call_0", "second"),
        finish(),
    )
    assert [invocation(part)["result"] for part in parts(made[1])] == ["first", "second"]


def test_runs_of_a_thread_follow_one_another() -> None:
    lone = Note(run="n", agent="agent", signals=[record("n")])
    second = begun(record("m2"), run="run-2", message_id="message-2")
    two = answer(text("2"), message_id="message-2")
    made = fold(begun(), answer(text("1")), finish(), lone, second, two, finish())
    assert [row["id"] for row in made] == ["m1", MESSAGE, "n", "m2", "message-2"]


@given(book=books())
@settings(max_examples=40, deadline=None)
def test_entries_count_the_rows_that_folding_gives(book: Book) -> None:
    for end, entry in enumerate(book.entries, 1):
        assert entry.rows == len(rows(book.entries[:end], "t", "r"))
