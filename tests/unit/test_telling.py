"""What readers are told, in the exact sequences of docs/spec/signals.md 5.4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.core import chunks, entries, model, run, telling
from shared.core.entries import Note, Signals
from shared.core.signals import iso
from tests.clock import START
from tests.protocol.making import (
    AGENT,
    MESSAGE,
    RUN,
    answer,
    begun,
    call,
    finish,
    record,
    result,
    state_after,
    text,
)

if TYPE_CHECKING:
    from shared.core.entries import AnyEntry, ModelAnswer
    from shared.core.events import Chunk
    from shared.core.run import RunState

ONE_USE = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}
WORDS = ["step-start", "text-start", "text-delta", "text-end"]
BEGINNING = ["start", "data-user-message"]


def streamed(state: RunState, entry: AnyEntry) -> list[Chunk]:
    """What a model call told before its answer was committed."""
    if not isinstance(entry, entries.ModelAnswer):
        return []
    shown = [each for part in entry.parts for each in chunks.stored(RUN, part)]
    return [*telling.before_step(state, START, state.attempt), *shown]


def live(*stored: AnyEntry) -> list[Chunk]:
    """All that a follower sees of a run that nothing disturbs."""
    seen = telling.opening(stored[0])
    state = state_after(stored[0])
    for entry in stored[1:]:
        seen += [*streamed(state, entry), *telling.told(state, entry)]
        state = run.fold(state, entry)
    return seen


def kinds(seen: list[Chunk]) -> list[str]:
    return [chunk["type"] for chunk in seen]


def reasons(seen: list[Chunk]) -> list[tuple[str, bool]]:
    steps = [c["payload"]["stepResult"] for c in seen if c["type"] in ("step-finish", "finish")]
    return [(step["reason"], step["isContinued"]) for step in steps]


def messages(seen: list[Chunk], kind: str) -> list[str]:
    return [chunk["payload"]["messageId"] for chunk in seen if chunk["type"] == kind]


def test_5_4_a_plain_reply() -> None:
    seen = live(begun(), answer(text("hello")), finish())
    assert kinds(seen) == [*BEGINNING, *WORDS, "step-finish", "finish"]
    assert reasons(seen) == [("stop", False), ("stop", False)]


def test_5_4_a_tool_step() -> None:
    calls = answer(call("c1"), call("c2"))
    seen = live(begun(), calls, result("c2"), result("c1"), answer(text("sum")), finish())
    step = ["step-start", "tool-call", "tool-call", "tool-result", "tool-result", "step-finish"]
    assert kinds(seen) == [*BEGINNING, *step, *WORDS, "step-finish", "finish"]
    assert reasons(seen) == [("tool-calls", True), ("stop", False), ("stop", False)]
    assert set(messages(seen, "step-start")) == {MESSAGE}


def test_5_4_a_follow_up_in_the_same_run() -> None:
    taken = Signals(message_id="next", signals=[record("a"), record("b")])
    seen = live(begun(), answer(text("one")), taken, answer(text("two")), finish())
    echoes = ["data-user-message", "data-user-message"]
    assert kinds(seen) == [
        *BEGINNING,
        *WORDS,
        *echoes,
        "step-finish",
        *WORDS,
        "step-finish",
        "finish",
    ]
    assert reasons(seen) == [("other", True), ("stop", False), ("stop", False)]
    assert messages(seen, "step-start") == [MESSAGE, "next"]
    assert messages(seen, "step-finish") == ["next", "next"]


def test_5_4_a_follow_up_after_a_tool_step() -> None:
    taken = Signals(message_id="next", signals=[record("a")])
    seen = live(begun(), answer(call("c1")), result("c1"), taken, answer(text("two")), finish())
    tail = ["tool-result", "data-user-message", "step-finish", *WORDS, "step-finish", "finish"]
    assert kinds(seen)[-len(tail) :] == tail
    assert reasons(seen)[0] == ("other", True)


def test_5_4_a_provider_failure() -> None:
    before = [*telling.opening(begun()), *telling.before_step(state_after(begun()), START, 0)]
    told = telling.told(state_after(begun()), finish("failed"))
    assert kinds([*before, *told]) == [*BEGINNING, "step-start", "error"]
    error = {"type": "error", "error": {"name": "ModelFailed", "message": "it broke"}}
    assert told == [{"type": "error", "runId": RUN, "from": "AGENT", "payload": error}]


def test_5_4_an_abort() -> None:
    told = telling.told(state_after(begun(), answer(call("c1"))), finish("cancelled"))
    assert told == [{"type": "abort", "runId": RUN}]


def test_2_9_a_kept_signal_is_a_run_without_a_step() -> None:
    seen = telling.opening(Note(run="n", agent=AGENT, signals=[record("s", "later")]))
    assert kinds(seen) == ["start", "data-user-message", "finish"]
    assert seen[0]["payload"] == {"id": AGENT, "messageId": "persisted-signal:s"}
    assert reasons(seen) == [("stop", False)]
    nothing = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    assert seen[2]["payload"]["output"] == {"text": "", "toolCalls": [], "usage": nothing}
    assert {chunk["runId"] for chunk in seen} == {"n"}


def test_a_note_in_mid_run_is_echoed_only() -> None:
    note = Note(signals=[record("s"), record("t", attributes={"a": 1})])
    state = state_after(begun(), answer(text("hi")))
    assert kinds(telling.told(state, note)) == ["data-user-message", "data-user-message"]


SILENT: list[AnyEntry] = [entries.Claim(), begun(), answer(text("hi"))]


@pytest.mark.parametrize("entry", SILENT, ids=lambda e: e.kind)
def test_entries_that_tell_nothing_of_their_own(entry: AnyEntry) -> None:
    assert telling.told(state_after(begun()), entry) == []


def test_opening_is_of_inputs_and_lone_notes() -> None:
    with pytest.raises(ValueError, match="cannot begin"):
        telling.opening(Note(signals=[record("s")]))


def test_payloads() -> None:
    seen = {
        chunk["type"]: chunk
        for chunk in live(
            begun(record("m1", "go")),
            answer(text("so"), call("c1", a=1), model_id="m-1"),
            result("c1", {"sum": 3}),
            answer(text("3"), model_id="m-1"),
            finish(at=START + 9),
        )
    }
    called = {"toolCallId": "c1", "toolName": "add", "args": {"a": 1}}
    assert seen["start"]["payload"] == {"id": AGENT, "messageId": MESSAGE}
    assert seen["data-user-message"] == {
        "type": "data-user-message",
        "data": {
            "id": "m1",
            "type": "user",
            "tagName": "user",
            "contents": "go",
            "createdAt": iso(START),
        },
        "transient": True,
        "runId": RUN,
    }
    assert seen["step-start"]["payload"] == {
        "messageId": MESSAGE,
        "startedAt": START,
        "warnings": [],
        "request": {},
    }
    assert seen["tool-call"]["payload"] == called
    assert seen["tool-result"]["payload"] == {**called, "result": {"sum": 3}}
    common: dict[str, Any] = {
        "messageId": MESSAGE,
        "stepResult": {"reason": "stop", "isContinued": False, "warnings": []},
        "metadata": {"modelId": "m-1"},
        "processorRetryCount": 0,
    }
    output = {"text": "3", "toolCalls": [], "usage": ONE_USE}
    assert seen["step-finish"]["payload"] == {**common, "output": output}
    twice = {"inputTokens": 2, "outputTokens": 4, "totalTokens": 6}
    assert seen["finish"]["payload"] == {
        **common,
        "output": {**output, "usage": twice},
        "response": {"id": MESSAGE, "timestamp": START + 9, "modelId": "m-1"},
    }


def test_a_tool_that_failed() -> None:
    failed = result("c1", error=entries.Fault(name="ValueError", message="no"))
    told = telling.told(state_after(begun(), answer(call("c1", a=1))), failed)
    called = {"toolCallId": "c1", "toolName": "add", "args": {"a": 1}}
    error = {"name": "ValueError", "message": "no"}
    assert [(c["type"], c["payload"]) for c in told] == [("tool-error", {**called, "error": error})]


STREAM = [
    (model.TextStarted("t"), "text-start", {"id": "t"}),
    (model.TextDelta("t", "hi"), "text-delta", {"id": "t", "text": "hi"}),
    (model.TextEnded("t"), "text-end", {"type": "text-end", "id": "t"}),
    (model.ReasoningStarted("r"), "reasoning-start", {"id": "r"}),
    (model.ReasoningDelta("r", "hm"), "reasoning-delta", {"id": "r", "text": "hm"}),
    (model.ReasoningEnded("r", "sig"), "reasoning-end", {"id": "r", "signature": "sig"}),
    (
        model.ToolInputStarted("c", "add"),
        "tool-call-input-streaming-start",
        {"toolCallId": "c", "toolName": "add"},
    ),
    (model.ToolInputDelta("c", "{"), "tool-call-delta", {"toolCallId": "c", "argsTextDelta": "{"}),
    (model.ToolInputEnded("c"), "tool-call-input-streaming-end", {"toolCallId": "c"}),
]


@pytest.mark.parametrize(("part", "kind", "payload"), STREAM, ids=[kind for _, kind, _ in STREAM])
def test_5_5_streamed_parts(part: model.ModelPart, kind: str, payload: dict[str, Any]) -> None:
    envelope = {"type": kind, "runId": RUN, "from": "AGENT", "payload": payload}
    assert chunks.streamed(RUN, part) == envelope


@pytest.mark.parametrize(
    "part", [model.ToolCalled(model.ToolCall("c", "add", {})), model.Finished("stop")]
)
def test_what_is_told_after_the_commit_is_not_streamed(part: model.ModelPart) -> None:
    assert chunks.streamed(RUN, part) is None


# ---- telling again (D2, D4) ------------------------------------------------------------------


def again(entry: AnyEntry) -> AnyEntry:
    return entries.read(entry.body())


RETOLD: list[tuple[tuple[AnyEntry, ...], AnyEntry]] = [
    ((begun(),), answer(text("so"), call("c1", a=1))),
    ((begun(), answer(call("c1"))), result("c1", {"sum": 1})),
    ((begun(), answer(text("hi"))), Signals(message_id="n", signals=[record("s")])),
    ((begun(), answer(text("hi"))), finish(at=START)),
    ((begun(),), finish("failed", parts=[text("half")])),
]


@pytest.mark.parametrize(("before", "entry"), RETOLD, ids=[e.kind for _, e in RETOLD])
def test_d2_what_follows_is_a_function_of_what_is_stored(
    before: tuple[AnyEntry, ...], entry: AnyEntry
) -> None:
    first = telling.told(state_after(*before), entry)
    assert telling.told(state_after(*map(again, before)), again(entry)) == first


ANSWER = answer(
    entries.Reasoning(id="r", text="hm", signature="sig"), text("so"), call("c1"), k0=5, at=START
)


def test_d4_an_answer_is_told_whole_as_a_new_attempt() -> None:
    seen = telling.whole(state_after(begun()), ANSWER, step_open=True)
    thought = ["reasoning-start", "reasoning-delta", "reasoning-end"]
    assert kinds(seen) == ["step-start", *thought, *WORDS[1:], "tool-call"]
    assert seen[0]["payload"]["attempt"] > 0
    assert seen[3]["payload"]["signature"] == "sig"


@pytest.mark.parametrize(("step_open", "opening"), [(True, ["step-finish"]), (False, [])])
def test_d4_the_step_before_is_closed_once(step_open: bool, opening: list[str]) -> None:
    before = state_after(begun(), answer(call("c1")), result("c1"))
    final: ModelAnswer = answer(text("so"), k0=5)
    assert kinds(telling.whole(before, final, step_open=step_open)) == [*opening, *WORDS]


def test_d4_a_cut_answer_is_told_whole_too() -> None:
    cut = finish("cancelled", parts=[text("half")], k0=4)
    seen = telling.whole(state_after(begun()), cut, step_open=True)
    assert kinds(seen) == [*WORDS, "abort"]


@pytest.mark.parametrize("entry", [result("c1"), finish(), answer(call("c1"))])
def test_d4_what_streamed_nothing_is_told_as_it_was(entry: AnyEntry) -> None:
    before = state_after(begun(), answer(call("c1")))
    assert telling.whole(before, entry, step_open=True) == telling.told(before, entry)
