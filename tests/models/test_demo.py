"""The demo model: it streams, calls the example's tools, and says what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.adapters.models.demo import DemoModel
from shared.core.model import (
    AssistantMessage,
    Finished,
    ModelRequest,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCalled,
    ToolInputDelta,
    ToolMessage,
    ToolResult,
    ToolSpec,
    UserMessage,
)

if TYPE_CHECKING:
    from shared.core.model import ModelPart

pytestmark = pytest.mark.anyio


def spec(name: str, description: str, *required: str) -> ToolSpec:
    properties = {arg: {"type": "string"} for arg in required}
    return ToolSpec(
        name, description, {"type": "object", "properties": properties, "required": list(required)}
    )


TOOLS = (
    spec("look_up_order", "Find an order and tell what it is and where.", "order_id"),
    spec("refund_order", "Give the money back.", "order_id", "reason"),
)


async def play(*messages: Any) -> list[ModelPart]:
    request = ModelRequest("demo", "", messages, TOOLS)
    return [part async for part in DemoModel(0).stream(request)]


def text(parts: list[ModelPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextDelta))


def called(parts: list[ModelPart]) -> ToolCall:
    calls = [part.call for part in parts if isinstance(part, ToolCalled)]
    assert len(calls) == 1
    return calls[0]


async def test_it_says_what_it_is_and_what_to_set() -> None:
    parts = await play(UserMessage('<user name="Jane">good morning</user>'))
    assert "demo model" in text(parts)
    assert "OPENAI_API_KEY" in text(parts)
    assert 'You said: "good morning"' in text(parts)
    assert len([p for p in parts if isinstance(p, TextDelta)]) == len(text(parts).split())
    assert isinstance(parts[-1], Finished)
    assert parts[-1].reason == "stop"


@pytest.mark.parametrize(
    ("said", "tool"),
    [
        ("Please look up order A-1001", "look_up_order"),
        ("where is order a-1001?", "look_up_order"),
        ("refund A-1001, it is broken", "refund_order"),
        ("I want a refund for order A-1001", "refund_order"),
    ],
)
async def test_it_calls_the_tool_that_is_asked_for(said: str, tool: str) -> None:
    parts = await play(UserMessage(said))
    call = called(parts)
    assert call.name == tool
    assert isinstance(call.args, dict)
    assert call.args["order_id"] == "A-1001"
    assert any(isinstance(part, ToolInputDelta) for part in parts)
    assert isinstance(parts[-1], Finished)
    assert parts[-1].reason == "tool-calls"


async def test_it_asks_for_what_it_needs() -> None:
    assert "Which order id?" in text(await play(UserMessage("please refund my order")))


def step(name: str, output: Any, *, is_error: bool = False) -> tuple[Any, Any]:
    call = ToolCall(f"c-{name}", name, {})
    result = ToolResult(call.call_id, name, output, is_error)
    return AssistantMessage((call,)), ToolMessage((result,))


async def test_it_uses_results_and_mentions_what_came_in_mid_run() -> None:
    parts = await play(
        UserMessage("look up order A-1001"),
        *step("look_up_order", {"item": "a kettle", "status": "shipped"}),
        UserMessage("and thanks"),
    )
    assert text(parts) == (
        'look_up_order says: item a kettle, status shipped. You also said: "and thanks".'
    )


async def test_it_calls_one_tool_after_the_other() -> None:
    asked = UserMessage("look up A-1001 and refund it")
    first = called(await play(asked))
    second = called(await play(asked, *step(first.name, "found")))
    assert (first.name, second.name) == ("look_up_order", "refund_order")
    done = await play(asked, *step("look_up_order", "found"), *step("refund_order", {"ok": True}))
    assert text(done) == "look_up_order says: found. refund_order says: ok true."


async def test_what_comes_in_mid_run_can_ask_for_a_tool() -> None:
    parts = await play(
        UserMessage("look up A-1001"), *step("look_up_order", "x"), UserMessage("refund it, too")
    )
    assert called(parts).name == "refund_order"


async def test_it_tells_of_an_error() -> None:
    parts = await play(
        UserMessage("look up A-9"), *step("look_up_order", "There is no order A-9.", is_error=True)
    )
    assert text(parts) == "look_up_order failed: There is no order A-9."


async def test_an_earlier_turn_does_not_count() -> None:
    earlier = (
        UserMessage("refund A-1001"),
        *step("refund_order", "x"),
        AssistantMessage((TextPart("Done."),)),
    )
    assert "demo model" in text(await play(*earlier, UserMessage("hello")))


async def test_the_same_prompt_gives_the_same_answer() -> None:
    asked = UserMessage("refund A-1001, please")
    assert called(await play(asked)).args == called(await play(asked)).args
    assert await play(UserMessage("hi")) == await play(UserMessage("hi"))
