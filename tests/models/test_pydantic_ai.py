"""The model adapter against a real HTTP server: what it sends, what it makes of what comes back."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from shared.adapters.models.providers import build
from shared.core.errors import ModelFailed
from shared.core.model import (
    AssistantMessage,
    FilePart,
    Finished,
    ModelRequest,
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
    ToolMessage,
    ToolResult,
    ToolSpec,
    Usage,
    UserMessage,
)
from tests.models.http_server import Reply
from tests.models.openai_server import (
    OpenAIServer,
    args_delta,
    call,
    chunk,
    error,
    stream,
    text,
    usage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.adapters.models.pydantic_ai import PydanticAIModel
    from shared.core.model import ModelPart

pytestmark = pytest.mark.anyio

ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
)


@pytest.fixture
async def server() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as server:
        yield server


@pytest.fixture
async def model(server: OpenAIServer) -> AsyncIterator[PydanticAIModel]:
    model = build("openai", "m1", {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": server.url})
    yield model
    await model.aclose()


def request(*messages: Any, **more: Any) -> ModelRequest:
    return ModelRequest("openai/m1", "Be nice.", messages or (UserMessage("hi"),), **more)


async def answer(model: PydanticAIModel, *messages: Any, **more: Any) -> list[ModelPart]:
    return [part async for part in model.stream(request(*messages, **more))]


async def failure(model: PydanticAIModel) -> tuple[list[ModelPart], ModelFailed]:
    parts = []
    try:
        async for part in model.stream(request()):
            parts.append(part)
    except ModelFailed as failed:
        return parts, failed
    pytest.fail(f"no failure after {parts}")


async def test_text_is_streamed_with_its_usage(
    server: OpenAIServer, model: PydanticAIModel
) -> None:
    server.replies = [stream(text("Hello", " world"), usage=usage(7, 2, cached=3, reasoning=1))]
    assert await answer(model) == [
        TextStarted("1"),
        TextDelta("1", "Hello"),
        TextDelta("1", " world"),
        TextEnded("1"),
        Finished("stop", Usage(7, 2, 1, 3), "served-model"),
    ]
    sent = server.requests[0]
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["authorization"] == "Bearer key"
    assert sent.body == {
        "model": "m1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be nice."},
            {"role": "user", "content": "hi"},
        ],
    }


async def test_text_comes_while_the_server_still_writes(
    server: OpenAIServer, model: PydanticAIModel
) -> None:
    server.replies = [stream(text("Hello"), finish=None, ending="hang")]
    async with aclosing(model.stream(request())) as parts:
        assert await anext(parts) == TextStarted("1")
        assert await anext(parts) == TextDelta("1", "Hello")


async def test_a_tool_round_trip(server: OpenAIServer, model: PydanticAIModel) -> None:
    server.replies = [
        stream(text("Let me."), call(0, "c1", "add", '{"a"', ": 1}"), finish="tool_calls"),
        stream(text("2")),
    ]
    assert await answer(model, tools=(ADD,)) == [
        TextStarted("1"),
        TextDelta("1", "Let me."),
        TextEnded("1"),
        ToolInputStarted("c1", "add"),
        ToolInputDelta("c1", '{"a"'),
        ToolInputDelta("c1", ": 1}"),
        ToolInputEnded("c1"),
        ToolCalled(ToolCall("c1", "add", {"a": 1})),
        Finished("tool-calls", Usage(), "served-model"),
    ]
    tool = server.requests[0].body["tools"][0]
    assert (tool["type"], tool["function"]["name"]) == ("function", "add")
    assert tool["function"]["description"] == ADD.description
    assert tool["function"]["parameters"]["properties"] == ADD.schema["properties"]

    said = AssistantMessage((TextPart("Let me."), ToolCall("c1", "add", {"a": 1})))
    result = ToolMessage((ToolResult("c1", "add", {"sum": [2, None]}),))
    await answer(model, UserMessage("hi"), said, result, UserMessage("and?"), tools=(ADD,))
    assert server.requests[1].body["messages"][1:] == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "Let me.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a":1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"sum":[2,null]}'},
        {"role": "user", "content": "and?"},
    ]


async def test_parallel_calls_keep_their_order_and_arguments(
    server: OpenAIServer, model: PydanticAIModel
) -> None:
    server.replies = [
        stream(
            call(0, "c1", "add", '{"a":1'),
            call(1, "c2", "add", '{"a":2}'),
            [args_delta(0, ',"b":{}}')],
            call(2, "c3", "now"),
            finish="tool_calls",
        )
    ]
    parts = await answer(model, tools=(ADD,))
    calls = {part.call.call_id: part.call.args for part in parts if isinstance(part, ToolCalled)}
    assert calls == {"c1": {"a": 1, "b": {}}, "c2": {"a": 2}, "c3": {}}
    for id in calls:
        kinds = [
            type(p) for p in parts if getattr(p, "call_id", id) == id and hasattr(p, "call_id")
        ]
        assert kinds[0] is ToolInputStarted
        assert kinds[-1] is ToolInputEnded
    assert parts[-1] == Finished("tool-calls", Usage(), "served-model")


@pytest.mark.parametrize("args", ['{"a": 1', "[1]", '"x"', "nonsense", '{"a": NaN}'])
async def test_arguments_that_are_no_object_stay_text(
    server: OpenAIServer, model: PydanticAIModel, args: str
) -> None:
    server.replies = [stream(call(0, "c1", "add", args), finish="tool_calls"), stream(text("ok"))]
    parts = await answer(model, tools=(ADD,))
    assert ToolCalled(ToolCall("c1", "add", args)) in parts
    # and the next call can still be made with it
    said = AssistantMessage((ToolCall("c1", "add", args),))
    await answer(model, UserMessage("hi"), said, ToolMessage((ToolResult("c1", "add", "bad"),)))
    assert len(server.requests) == 2


async def test_a_call_id_that_the_prompt_already_has_is_changed(
    server: OpenAIServer, model: PydanticAIModel
) -> None:
    server.replies = [
        stream(call(0, "c1", "add", "{}"), call(1, "c1", "add", "{}"), finish="tool_calls")
    ]
    said = AssistantMessage((ToolCall("c1", "add", {}),))
    result = ToolMessage((ToolResult("c1", "add", 1),))
    parts = await answer(model, UserMessage("hi"), said, result)
    assert [p.call.call_id for p in parts if isinstance(p, ToolCalled)] == ["c1-2", "c1-3"]


async def test_reasoning_is_streamed_apart(server: OpenAIServer, model: PydanticAIModel) -> None:
    thoughts = [chunk({"reasoning_content": "Hm"}), chunk({"reasoning_content": "."})]
    server.replies = [stream(thoughts, text("Yes"))]
    parts = await answer(model)
    assert parts[:3] == [
        ReasoningStarted("1"),
        ReasoningDelta("1", "Hm"),
        ReasoningDelta("1", "."),
    ]
    assert isinstance(parts[3], ReasoningEnded)
    assert parts[4:6] == [TextStarted("2"), TextDelta("2", "Yes")]
    # and it can be handed back
    thought = ReasoningPart("Hm.", parts[3].signature, parts[3].provider_metadata)
    await answer(model, UserMessage("hi"), AssistantMessage((thought, TextPart("Yes"))))
    assert server.requests[1].body["messages"][2]["content"].endswith("Yes")


async def test_a_surrogate_pair_cut_in_two_is_joined(
    server: OpenAIServer, model: PydanticAIModel
) -> None:
    server.replies = [stream(text("a\ud83d", "\ude00b", "\ude00", "\ud83d"))]
    parts = await answer(model)
    assert "".join(p.text for p in parts if isinstance(p, TextDelta)) == "a\U0001f600b�"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content-filter")],
)
async def test_finish_reasons(
    server: OpenAIServer, model: PydanticAIModel, sent: str, reason: str
) -> None:
    server.replies = [stream(text("x"), finish=sent, ending="no-done")]
    finished = (await answer(model))[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == reason


async def test_calls_make_a_stop_a_tool_calls(server: OpenAIServer, model: PydanticAIModel) -> None:
    server.replies = [stream(call(0, "c1", "add", "{}"), finish="stop")]
    assert (await answer(model))[-1] == Finished("tool-calls", Usage(), "served-model")


async def test_settings_and_tool_choice(server: OpenAIServer, model: PydanticAIModel) -> None:
    server.replies = [stream(text("x"))]
    settings = {
        "temperature": 0.5,
        "maxOutputTokens": 10,
        "topP": 0.9,
        "stopSequences": ["a"],
        "seed": 3,
        "presence_penalty": 0.1,
        "frequencyPenalty": 0.2,
        "headers": {"x-mine": "1"},
        "maxRetries": 9,
        "unknown": 1,
        "topK": None,
    }
    await answer(model, tools=(ADD,), settings=settings, tool_choice="required")
    body = server.requests[0].body
    expected = {
        "temperature": 0.5,
        "max_completion_tokens": 10,
        "top_p": 0.9,
        "stop": ["a"],
        "seed": 3,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "tool_choice": "required",
    }
    assert {name: body[name] for name in expected} == expected
    assert server.requests[0].headers["x-mine"] == "1"
    assert "unknown" not in body

    await answer(model, settings={"stop": "b"})
    assert server.requests[1].body["stop"] == ["b"]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("sub", {"type": "function", "function": {"name": "sub"}}),
        ({"type": "tool", "toolName": "sub"}, {"type": "function", "function": {"name": "sub"}}),
    ],
)
async def test_tool_choices(
    server: OpenAIServer, model: PydanticAIModel, choice: Any, sent: Any
) -> None:
    server.replies = [stream(text("x"))]
    await answer(model, tools=(ADD, ToolSpec("sub", "", ADD.schema)), tool_choice=choice)
    body = server.requests[0].body
    assert body["tool_choice"] == sent
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add", "sub"]


async def test_files_are_sent(server: OpenAIServer, model: PydanticAIModel) -> None:
    server.replies = [stream(text("x"))]
    pixel = "iVBORw0KGgo="
    content = (
        TextPart("see"),
        FilePart(pixel, "image/png"),
        FilePart(f"data:image/png;base64,{pixel}", "image/png"),
        FilePart("https://example.com/a.png", "image/png"),
    )
    await answer(model, UserMessage(content))
    sent = server.requests[0].body["messages"][1]["content"]
    inline = f"data:image/png;base64,{pixel}"
    urls = [part["image_url"]["url"] for part in sent[1:]]
    assert (sent[0]["text"], urls) == ("see", [inline, inline, "https://example.com/a.png"])


async def test_an_invalid_history_is_mended(server: OpenAIServer, model: PydanticAIModel) -> None:
    server.replies = [stream(text("x"))]
    said = AssistantMessage((ToolCall("c1", "add", {}),))
    await answer(model, UserMessage("hi"), said, UserMessage("hello?"))
    roles = [message["role"] for message in server.requests[0].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        (400, False),
        (401, False),
        (403, False),
        (404, False),
        (408, True),
        (409, True),
        (422, False),
        (429, True),
        (500, True),
        (502, True),
        (503, True),
        (529, True),
    ],
)
async def test_which_failures_are_worth_another_attempt(
    server: OpenAIServer, model: PydanticAIModel, status: int, retryable: bool
) -> None:
    server.replies = [error(status, "the reason")]
    parts, failed = await failure(model)
    assert (parts, failed.retryable, failed.retry_after) == ([], retryable, None)
    assert f"openai/m1: HTTP {status}: the reason" in str(failed)
    assert len(server.requests) == 1, "the vendor's client does not retry by itself"


@pytest.mark.parametrize(
    ("value", "ms"),
    [("7", 7000), ("0", 0), ("Wed, 21 Oct 2099 07:28:00 GMT", 3_600_000)],
)
async def test_retry_after_is_told(
    server: OpenAIServer, model: PydanticAIModel, value: str, ms: int
) -> None:
    server.replies = [error(429, retry_after=value)]
    _, failed = await failure(model)
    assert (failed.retryable, failed.retry_after) == (True, ms)


async def test_an_empty_account_is_not_retried(
    server: OpenAIServer, model: PydanticAIModel
) -> None:
    server.replies = [error(429, code="insufficient_quota", retry_after="1")]
    _, failed = await failure(model)
    assert not failed.retryable


BROKEN = {
    "a clean end without a finish": stream(text("x"), finish=None, ending="eof"),
    "an end marker without a finish": stream(text("x"), finish=None),
    "a cut": stream(text("x"), finish=None, ending="cut"),
    "no JSON": Reply(chunks=[*text("x"), "{not json"]),
    "an error in the stream": Reply(
        chunks=[*text("x"), {"error": {"message": "overloaded", "type": "server_error"}}]
    ),
}


@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN)
async def test_a_broken_stream_is_a_failure_worth_another_attempt(
    server: OpenAIServer, model: PydanticAIModel, reply: Reply
) -> None:
    server.replies = [reply, stream(text("whole"))]
    parts, failed = await failure(model)
    assert TextDelta("1", "x") in parts
    assert failed.retryable
    assert TextDelta("1", "whole") in await answer(model), "the client can go on"


@pytest.mark.parametrize("ending", ["eof", "cut"])
async def test_a_stream_that_ends_at_once(
    server: OpenAIServer, model: PydanticAIModel, ending: Any
) -> None:
    server.replies = [stream(finish=None, ending=ending)]
    assert (await failure(model))[1].retryable


async def test_a_cancelled_call_closes_its_connection(
    server: OpenAIServer, model: PydanticAIModel
) -> None:
    server.replies = [stream(text("x"), finish=None, ending="hang")]
    begun = asyncio.Event()

    async def watch() -> None:
        async for part in model.stream(request()):
            if isinstance(part, TextDelta):
                begun.set()

    task = asyncio.create_task(watch())
    await asyncio.wait_for(begun.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.left.wait(), 10)


async def test_a_call_cancelled_before_its_first_byte_closes_its_connection(
    server: OpenAIServer, model: PydanticAIModel
) -> None:
    server.replies = [Reply(ending="hang")]
    task = asyncio.create_task(answer(model))
    await asyncio.wait_for(server.asked.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.left.wait(), 10)


async def test_closing_the_stream_closes_its_connection(
    server: OpenAIServer, model: PydanticAIModel
) -> None:
    server.replies = [stream(text("x"), finish=None, ending="hang")]
    async with aclosing(model.stream(request())) as parts:
        await anext(parts)
    await asyncio.wait_for(server.left.wait(), 10)


async def test_many_calls_at_once(server: OpenAIServer, model: PydanticAIModel) -> None:
    server.replies = [stream(text("x"))]
    answers = await asyncio.gather(*(answer(model) for _ in range(50)))
    assert all(isinstance(parts[-1], Finished) for parts in answers)
    assert len(server.requests) == 50


async def test_nobody_listens() -> None:
    async with OpenAIServer() as gone:
        url = gone.url
    model = build("openai", "m1", {"OPENAI_BASE_URL": url})
    _, failed = await failure(model)
    await model.aclose()
    assert failed.retryable
    assert "connect" in str(failed).lower()
