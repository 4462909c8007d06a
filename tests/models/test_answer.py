"""Events of other providers, which the server over HTTP does not send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_ai import messages as ai
from pydantic_ai.usage import RequestUsage

from shared.adapters.models.answer import Answer
from shared.adapters.models.prompt import to_messages
from shared.core import entries
from shared.core.model import (
    AssistantMessage,
    Finished,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningPart,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextPart,
    TextStarted,
    ToolCall,
    ToolCalled,
    ToolInputDelta,
    ToolInputEnded,
    ToolInputStarted,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from shared.core.model import ModelPart


def read(
    *events: ai.ModelResponseStreamEvent, parts: list[ai.ModelResponsePart]
) -> list[ModelPart]:
    answer = Answer()
    found = [part for event in events for part in answer.read(event)]
    spent = RequestUsage(input_tokens=5, output_tokens=3, cache_read_tokens=2)
    spent.details = {"reasoning_tokens": 1}
    response = ai.ModelResponse(parts, usage=spent, finish_reason="stop", model_name="m")
    return found + list(answer.end(response))


def test_signed_reasoning_is_kept_and_handed_back() -> None:
    thought = ai.ThinkingPart(
        "Hm.", id="r1", signature="sig", provider_name="anthropic", provider_details={"x": 1}
    )
    parts = read(
        ai.PartStartEvent(index=0, part=ai.ThinkingPart("Hm")),
        ai.PartDeltaEvent(index=0, delta=ai.ThinkingPartDelta(content_delta=".")),
        ai.PartDeltaEvent(index=0, delta=ai.ThinkingPartDelta(signature_delta="sig")),
        ai.PartEndEvent(index=0, part=thought, canonical_system="anthropic"),
        parts=[thought],
    )
    known = {"provider": "anthropic", "system": "anthropic", "id": "r1", "details": {"x": 1}}
    assert parts == [
        ReasoningStarted("1"),
        ReasoningDelta("1", "Hm"),
        ReasoningDelta("1", "."),
        ReasoningEnded("1", "sig", known),
        Finished("stop", Usage(5, 3, 1, 2), "m"),
    ]
    said = AssistantMessage((ReasoningPart("Hm.", "sig", known), TextPart("Yes")))
    sent = to_messages((UserMessage("hi"), said))[1]
    assert isinstance(sent, ai.ModelResponse)
    assert list(sent.parts) == [thought, ai.TextPart("Yes")]
    assert (sent.provider_name, sent.canonical_system) == ("anthropic", "anthropic")


def test_encrypted_reasoning_without_text_is_kept() -> None:
    thought = ai.ThinkingPart("", id="r1", signature="secret", provider_name="openai")
    parts = read(
        ai.PartStartEvent(index=0, part=ai.ThinkingPart("")),
        ai.PartEndEvent(index=0, part=thought),
        parts=[thought],
    )
    assert parts[:2] == [
        ReasoningStarted("1"),
        ReasoningEnded("1", "secret", {"provider": "openai", "id": "r1"}),
    ]


def test_a_signature_of_nobody_is_not_handed_back() -> None:
    said = AssistantMessage((ReasoningPart("Hm.", "sig", None), TextPart("Yes")))
    sent = to_messages((UserMessage("hi"), said))[1]
    assert sent.parts[0] == ai.ThinkingPart("Hm.")


def test_a_call_that_comes_whole() -> None:
    call = ai.ToolCallPart("add", {"a": 1}, "c1")
    parts = read(
        ai.PartStartEvent(index=0, part=call), ai.PartEndEvent(index=0, part=call), parts=[call]
    )
    assert parts == [
        ToolInputStarted("c1", "add"),
        ToolInputDelta("c1", '{"a":1}'),
        ToolInputEnded("c1"),
        ToolCalled(ToolCall("c1", "add", {"a": 1})),
        Finished("tool-calls", Usage(5, 3, 1, 2), "m"),
    ]


def test_a_part_that_is_replaced_is_closed_first() -> None:
    text = ai.TextPart("x")
    parts = read(
        ai.PartStartEvent(index=0, part=text),
        ai.PartStartEvent(index=0, part=ai.ThinkingPart("y")),
        ai.PartEndEvent(index=0, part=ai.ThinkingPart("y")),
        parts=[ai.ThinkingPart("y")],
    )
    assert parts[:-1] == [
        TextStarted("1"),
        TextDelta("1", "x"),
        TextEnded("1"),
        ReasoningStarted("2"),
        ReasoningDelta("2", "y"),
        ReasoningEnded("2"),
    ]


def test_late_text_opens_a_new_block_and_empty_text_none() -> None:
    text = ai.TextPart("xz")
    parts = read(
        ai.PartStartEvent(index=0, part=ai.TextPart("x")),
        ai.PartEndEvent(index=0, part=ai.TextPart("x")),
        ai.PartStartEvent(index=1, part=ai.TextPart("")),
        ai.PartEndEvent(index=1, part=ai.TextPart("")),
        ai.PartDeltaEvent(index=0, delta=ai.TextPartDelta("z")),
        ai.FinalResultEvent(tool_name=None, tool_call_id=None),
        ai.PartEndEvent(index=0, part=text),
        parts=[text, ai.TextPart("")],
    )
    assert parts[:-1] == [
        TextStarted("1"),
        TextDelta("1", "x"),
        TextEnded("1"),
        TextStarted("2"),
        TextDelta("2", "z"),
        TextEnded("2"),
    ]


def test_what_a_provider_wants_back_with_texts_and_calls_is_kept_and_handed_back() -> None:
    text = ai.TextPart("Yes", id="msg_1", provider_name="openai")
    details = {"thought_signature": "sig"}
    call = ai.ToolCallPart("add", {"a": 1}, "c1", provider_name="google", provider_details=details)
    parts = read(
        ai.PartStartEvent(index=0, part=ai.TextPart("Yes")),
        ai.PartEndEvent(index=0, part=text, canonical_system="openai"),
        ai.PartStartEvent(index=1, part=call),
        ai.PartEndEvent(index=1, part=call, canonical_system="google"),
        parts=[text, call],
    )
    ids = {"provider": "openai", "system": "openai", "id": "msg_1"}
    signed = {"provider": "google", "system": "google", "details": details}
    called = ToolCall("c1", "add", {"a": 1}, signed)
    assert TextEnded("1", ids) in parts
    assert ToolCalled(called) in parts
    said = AssistantMessage((TextPart("Yes", provider_metadata=ids), called))
    sent = to_messages((UserMessage("hi"), said))[1]
    assert list(sent.parts) == [text, call]


def test_a_text_that_is_only_a_signature_is_kept() -> None:
    signed = ai.TextPart("", provider_name="google", provider_details={"thought_signature": "sig"})
    parts = read(
        ai.PartStartEvent(index=0, part=signed),
        ai.PartEndEvent(index=0, part=signed),
        parts=[signed],
    )
    known = {"provider": "google", "details": {"thought_signature": "sig"}}
    assert parts[:2] == [TextStarted("1"), TextEnded("1", known)]


def test_what_no_provider_wants_back_is_not_stored() -> None:
    text = ai.TextPart("Yes", provider_name="openai")
    parts = read(
        ai.PartStartEvent(index=0, part=text), ai.PartEndEvent(index=0, part=text), parts=[text]
    )
    assert TextEnded("1") in parts
    stored = entries.Text(id="1", text="Yes").model_dump()
    assert stored == {"type": "text", "id": "1", "text": "Yes"}
    call = entries.Call(call_id="c1", name="add", args={}).model_dump()
    assert call == {"type": "call", "call_id": "c1", "name": "add", "args": {}}
