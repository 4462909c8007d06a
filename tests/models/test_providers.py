"""What holds for every provider, each in its own wire format over real HTTP."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shared.core.errors import ContextOverflow
from shared.core.model import (
    AssistantMessage,
    FilePart,
    Finished,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextPart,
    TextStarted,
    ToolCalled,
    ToolInputDelta,
    ToolInputEnded,
    ToolInputStarted,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from tests.models.anthropic_wire import anthropic
from tests.models.bedrock_wire import bedrock
from tests.models.google_wire import google
from tests.models.http_server import NO_BYTE
from tests.models.responses_wire import responses
from tests.models.wire import ADD, Wire, ask, fail, request, say, think, use

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.adapters.models.pydantic_ai import PydanticAIModel
    from tests.models.http_server import ModelServer, Reply

pytestmark = pytest.mark.anyio

WIRES: list[Wire] = [anthropic, google, responses, bedrock]
LIMIT = 10


def each(kind: str) -> pytest.MarkDecorator:
    """Parametrize over the failures of one kind, of every provider."""
    return pytest.mark.parametrize(
        ("wire", "reply"),
        [
            pytest.param(wire, reply, id=f"{wire.name}: {name}")
            for wire in WIRES
            for name, reply in getattr(wire.failures, kind).items()
        ],
    )


@pytest.fixture(params=WIRES, ids=lambda wire: wire.name)
def wire(request: pytest.FixtureRequest) -> Wire:
    found: Wire = request.param
    return found


@pytest.fixture
async def server(wire: Wire) -> AsyncIterator[ModelServer]:
    async with wire.server() as server:
        yield server


@pytest.fixture
async def model(
    wire: Wire, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PydanticAIModel]:
    model = wire.build(server, monkeypatch)
    yield model
    await model.aclose()


async def test_text_is_streamed_with_its_usage(
    wire: Wire, server: ModelServer, model: PydanticAIModel
) -> None:
    spent = Usage(70, 20, 5, 30)
    server.replies = [wire.answer(say("Hello", " world"), usage=spent)]
    parts = await ask(model)
    assert parts[:3] == [TextStarted("1"), TextDelta("1", "Hello"), TextDelta("1", " world")]
    assert isinstance(parts[3], TextEnded)
    finished = parts[4]
    assert isinstance(finished, Finished)
    assert finished.reason == "stop"
    counted = replace(finished.usage, cost=None)
    assert counted == (spent if wire.counts_thoughts else replace(spent, reasoning_tokens=0))
    known = finished.usage.cost is not None
    assert (0 < (finished.usage.cost or 0) < 0.01) == known == (wire is not responses)
    assert finished.model_id


async def test_text_comes_while_the_server_still_writes(
    wire: Wire, server: ModelServer, model: PydanticAIModel
) -> None:
    server.replies = [wire.answer(say("Hello"), finish=None, ending="hang")]
    async with aclosing(model.stream(request())) as parts:
        assert await anext(parts) == TextStarted("1")
        assert await anext(parts) == TextDelta("1", "Hello")


async def test_thoughts_are_streamed_apart(
    wire: Wire, server: ModelServer, model: PydanticAIModel
) -> None:
    server.replies = [wire.answer(think("Hm", "."), say("Yes"))]
    parts = await ask(model)
    assert parts[:3] == [
        ReasoningStarted("1"),
        ReasoningDelta("1", "Hm"),
        ReasoningDelta("1", "."),
    ]
    assert isinstance(parts[3], ReasoningEnded)
    assert parts[4:6] == [TextStarted("2"), TextDelta("2", "Yes")]


async def test_parallel_calls_and_the_call_after_them(
    wire: Wire, server: ModelServer, model: PydanticAIModel
) -> None:
    server.replies = [
        wire.answer(say("Let me."), use("c1", "add", '{"a"', ": 1}"), use("c2", "add", '{"a":2}')),
        wire.answer(say("3")),
    ]
    parts = await ask(model, tools=(ADD,))
    calls = [part.call for part in parts if isinstance(part, ToolCalled)]
    assert [(call.call_id, call.name, call.args) for call in calls] == [
        ("c1", "add", {"a": 1}),
        ("c2", "add", {"a": 2}),
    ]
    for call in calls:
        mine = [type(p) for p in parts if getattr(p, "call_id", None) == call.call_id]
        assert mine[0] is ToolInputStarted
        assert set(mine[1:-1]) == {ToolInputDelta}
        assert mine[-1] is ToolInputEnded
    finished = parts[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == "tool-calls"

    results = ToolMessage((ToolResult("c1", "add", {"sum": 1}), ToolResult("c2", "add", 2)))
    said = AssistantMessage(tuple(calls))
    parts = await ask(model, UserMessage("hi"), said, results, tools=(ADD,))
    assert TextDelta("1", "3") in parts


async def test_a_call_without_arguments(
    wire: Wire, server: ModelServer, model: PydanticAIModel
) -> None:
    server.replies = [wire.answer(use("c1", "now"))]
    parts = await ask(model, tools=(replace(ADD, name="now", schema={"type": "object"}),))
    assert [p.call.args for p in parts if isinstance(p, ToolCalled)] == [{}]


@pytest.mark.parametrize(
    ("wire", "sent", "reason"),
    [
        pytest.param(wire, sent, reason, id=f"{wire.name}: {sent}")
        for wire in WIRES
        for sent, reason in wire.finishes.items()
    ],
)
async def test_finish_reasons(
    wire: Wire, server: ModelServer, model: PydanticAIModel, sent: str, reason: str
) -> None:
    server.replies = [wire.answer(say("x"), finish=sent)]
    finished = (await ask(model))[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == reason


@pytest.mark.parametrize("effort", ["none", "low", "high"])
async def test_settings(
    wire: Wire, server: ModelServer, model: PydanticAIModel, effort: str
) -> None:
    server.replies = [wire.answer(say("x"))]
    settings = {"maxOutputTokens": 12_345, "reasoningEffort": effort, "headers": {"x-mine": "1"}}
    await ask(model, tools=(ADD,), settings=settings)
    sent = server.requests[0]
    assert sent.headers["x-mine"] == "1"
    assert "12345" in json.dumps(sent.body)


async def test_a_tool_can_be_required(
    wire: Wire, server: ModelServer, model: PydanticAIModel
) -> None:
    server.replies = [wire.answer(use("c1", "add", '{"a":1}'))]
    tools = (ADD, replace(ADD, name="sub"))
    await ask(model, tools=tools, tool_choice="required")
    sent = json.dumps(server.requests[0].body)
    assert any(word in sent for word in ('"any"', '"ANY"', '"required"'))
    await ask(model, tools=tools, tool_choice={"type": "tool", "toolName": "add"})
    await ask(model, tools=tools, tool_choice="none")


async def test_files_are_sent(wire: Wire, server: ModelServer, model: PydanticAIModel) -> None:
    server.replies = [wire.answer(say("x"))]
    pixel = "iVBORw0KGgo="
    files = (FilePart(pixel, "image/png"), FilePart(f"data:image/png;base64,{pixel}", "image/png"))
    await ask(model, UserMessage((TextPart("see"), *files)))
    assert json.dumps(server.requests[0].body).count(pixel) == 2


@each("passing")
async def test_a_failure_that_passes(
    wire: Wire, server: ModelServer, model: PydanticAIModel, reply: Reply
) -> None:
    server.replies = [reply]
    parts, failed = await fail(model)
    assert (parts, failed.retryable, failed.retry_after) == ([], True, None)
    assert str(failed).startswith(f"model {model.name}: ")
    assert len(server.requests) == 1, "the vendor's client does not retry by itself"


@each("final")
async def test_a_failure_that_stays(
    wire: Wire, server: ModelServer, model: PydanticAIModel, reply: Reply
) -> None:
    server.replies = [reply]
    parts, failed = await fail(model)
    assert (parts, failed.retryable) == ([], False)
    body = reply.body.get("error", reply.body)
    assert f"HTTP {reply.status}: {body['message']}" in str(failed)
    assert not isinstance(failed, ContextOverflow)
    assert len(server.requests) == 1


@each("overflows")
async def test_an_overflow_says_what_to_do(
    wire: Wire, server: ModelServer, model: PydanticAIModel, reply: Reply
) -> None:
    server.replies = [reply]
    _, failed = await fail(model)
    assert type(failed) is ContextOverflow
    assert not failed.retryable
    assert "lower the agent's last_messages" in str(failed)
    assert len(server.requests) == 1


@each("streams")
async def test_a_stream_that_breaks_off(
    wire: Wire, server: ModelServer, model: PydanticAIModel, reply: Reply
) -> None:
    server.replies = [reply, wire.answer(say("whole"))]
    parts, failed = await fail(model)
    assert TextDelta("1", "x") in parts
    assert failed.retryable
    assert TextDelta("1", "whole") in await ask(model), "the client can go on"


@pytest.mark.parametrize("ending", ["eof", "cut"])
@pytest.mark.parametrize("begun", [True, False])
async def test_a_stream_without_an_end(
    wire: Wire, server: ModelServer, model: PydanticAIModel, ending: Any, begun: bool
) -> None:
    server.replies = [
        wire.answer(*[say("x")] * begun, finish=None, ending=ending),
        wire.answer(say("whole")),
    ]
    _, failed = await fail(model)
    assert failed.retryable
    assert TextDelta("1", "whole") in await ask(model), "the client can go on"


async def test_garbage(wire: Wire, server: ModelServer, model: PydanticAIModel) -> None:
    reply = wire.answer(say("x"), finish=None)
    reply.chunks.append(b"data: {not json\n\n")
    server.replies = [reply]
    _, failed = await fail(model)
    assert failed.retryable


@pytest.mark.parametrize(
    ("wire", "reply", "ms"),
    [
        pytest.param(wire, reply, ms, id=f"{wire.name}: {name}")
        for wire in WIRES
        for name, (reply, ms) in wire.waits.items()
    ],
)
async def test_a_time_to_wait_is_told(
    wire: Wire, server: ModelServer, model: PydanticAIModel, reply: Reply, ms: int
) -> None:
    server.replies = [reply]
    _, failed = await fail(model)
    assert (failed.retryable, failed.retry_after) == (True, ms)


async def test_a_cancelled_call_closes_its_connection(
    wire: Wire, server: ModelServer, model: PydanticAIModel
) -> None:
    server.replies = [
        wire.answer(say("x"), finish=None, ending="hang"),
        wire.answer(say("whole")),
    ]
    begun = asyncio.Event()

    async def watch() -> None:
        async for part in model.stream(request()):
            if isinstance(part, TextDelta):
                begun.set()

    task = asyncio.create_task(watch())
    await asyncio.wait_for(begun.wait(), LIMIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.left.wait(), LIMIT)
    assert TextDelta("1", "whole") in await ask(model), "the client can go on"


async def test_a_call_cancelled_before_its_first_byte_closes_its_connection(
    wire: Wire, server: ModelServer, model: PydanticAIModel
) -> None:
    server.replies = [NO_BYTE, wire.answer(say("whole"))]
    task = asyncio.create_task(ask(model))
    await asyncio.wait_for(server.asked.wait(), LIMIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.left.wait(), LIMIT)
    assert TextDelta("1", "whole") in await ask(model), "the client can go on"


async def test_closing_the_stream_closes_its_connection(
    wire: Wire, server: ModelServer, model: PydanticAIModel
) -> None:
    server.replies = [wire.answer(say("x"), finish=None, ending="hang")]
    async with aclosing(model.stream(request())) as parts:
        await anext(parts)
    await asyncio.wait_for(server.left.wait(), LIMIT)


async def test_many_calls_at_once(wire: Wire, server: ModelServer, model: PydanticAIModel) -> None:
    server.replies = [wire.answer(say("x"))]
    answers = await asyncio.gather(*(ask(model) for _ in range(20)))
    assert all(isinstance(parts[-1], Finished) for parts in answers)
    assert len(server.requests) == 20


async def test_nobody_listens(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    async with wire.server() as gone:
        model = wire.build(gone, monkeypatch)
    _, failed = await fail(model)
    await model.aclose()
    assert failed.retryable
    assert "connect" in str(failed).lower()
