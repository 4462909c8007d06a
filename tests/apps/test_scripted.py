"""The scripted agents do what the top of `tests/compat/conformance.mjs` says."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from shared.core.errors import ModelFailed
from shared.core.model import (
    AssistantMessage,
    Finished,
    ModelRequest,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCalled,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from shared.core.tool import ToolContext
from tests.apps.script import HANG, SE, C, E, Gate, ScriptModel, T, Tries
from tests.apps.scripted import build

if TYPE_CHECKING:
    from pathlib import Path

    from shared.core.app import App
    from shared.core.model import Message, ModelPart

pytestmark = pytest.mark.anyio

CTX = ToolContext("t", "r", "run", "agent", 0, "call", "key")


async def play(model: object, *messages: Message) -> list[ModelPart]:
    request = ModelRequest("m", "", messages)
    return [part async for part in model.stream(request)]  # type: ignore[attr-defined]


async def run(app: App, id: str, *said: str) -> tuple[list[str], list[Message]]:
    """Run an agent to its final answer; return the text deltas and the messages."""
    agent, messages = app.agent(id), [*map(UserMessage, said)]
    transcript: list[Message] = [*messages]
    while True:
        parts = await play(agent.model, *transcript)
        calls = [part.call for part in parts if isinstance(part, ToolCalled)]
        finish = parts[-1]
        assert isinstance(finish, Finished)
        assert (finish.usage.input_tokens, finish.usage.output_tokens) == (1, 1)
        if not calls:
            deltas = [part.text for part in parts if isinstance(part, TextDelta)]
            return deltas, [*transcript, AssistantMessage((TextPart("".join(deltas)),))]
        results = []
        for call in calls:
            tool = agent.tools.get(call.name)
            output = await tool.run(call.args, CTX, asyncio.to_thread) if tool else {"ok": 1}
            results.append(ToolResult(call.call_id, call.name, output))
        transcript += [AssistantMessage(tuple(calls)), ToolMessage(tuple(results))]


@pytest.mark.parametrize("prefix", ["", "durable-"])
@pytest.mark.parametrize(
    ("kind", "said", "text", "calls"),
    [
        ("echo", "hello there", "echo: hello there", 0),
        ("tool", "steps 3", "done 3", 3),
        ("tool", "hi", "done 0", 0),
        ("tool", "call client_tool", 'answer: {"ok":1}', 1),
        ("slow", "steps 2", 'seen: ["steps 2"]', 2),
        ("slow", "hé 😀", 'seen: ["hé 😀"]', 1),
    ],
)
async def test_agents(prefix: str, kind: str, said: str, text: str, calls: int) -> None:
    deltas, messages = await run(build(), f"{prefix}{kind}-agent", said)
    assert "".join(deltas) == text
    assert sum(isinstance(message, ToolMessage) for message in messages) == calls
    assert 3 <= len(deltas) <= 5


async def test_each_run_answers_what_came_since_the_last_answer() -> None:
    app = build()
    _, messages = await run(app, "tool-agent", "steps 1")
    parts = await play(app.agent("tool-agent").model, *messages, UserMessage("steps 2"))
    assert any(isinstance(part, ToolCalled) for part in parts)


async def test_tools_are_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    await run(build(tool_log=str(log)), "tool-agent", "steps 2")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["tool"], line["input"]) for line in lines] == [
        ("add", {"a": 0, "b": 1}),
        ("add", {"a": 1, "b": 1}),
    ]
    assert lines[0]["at"] > 1_700_000_000_000


def test_limits_are_those_of_the_reference() -> None:
    for agent in build():
        assert (agent.max_steps, agent.last_messages) == (100, 500)


# ---- the model for tests of the loop ---------------------------------------------------------

ASKED = UserMessage("go")
ANSWERED = (
    AssistantMessage((ToolCall("c1", "add", {}),)),
    ToolMessage((ToolResult("c1", "add", 1),)),
)


async def test_turns_are_chosen_by_the_answers_in_the_prompt() -> None:
    model = ScriptModel([C(("c1", "add", {"a": 1}), ("c2", "add", "{"), streamed=True), T("a b c")])
    first = await play(model, ASKED)
    calls = [part.call for part in first if isinstance(part, ToolCalled)]
    assert calls == [ToolCall("c1", "add", {"a": 1}), ToolCall("c2", "add", "{")]
    last = await play(model, ASKED, *ANSWERED)
    assert [part.text for part in last if isinstance(part, TextDelta)] == ["a", " b", " c"]
    assert dict(model.played) == {0: 1, 1: 1}
    assert model.requests[1].messages[0] == ASKED


async def test_failures_and_tries() -> None:
    model = ScriptModel([Tries(E("busy", retryable=True, retry_after=5), SE("half"), T("whole"))])
    with pytest.raises(ModelFailed, match="busy") as caught:
        await play(model, ASKED)
    assert (caught.value.retryable, caught.value.retry_after) == (True, 5)
    with pytest.raises(ModelFailed, match="the stream broke"):
        await play(model, ASKED)
    for _ in range(2):
        assert isinstance((await play(model, ASKED))[-1], Finished)
    with pytest.raises(ModelFailed, match="no turn 1"):
        await play(model, ASKED, *ANSWERED)


async def test_a_gate_holds_a_call_until_it_opens() -> None:
    gate = Gate()
    model = ScriptModel([HANG(gate, then=T("after"), before="before")])
    task = asyncio.create_task(play(model, ASKED))
    await gate.reached.wait()
    assert not task.done()
    gate.open()
    assert [p.text for p in await task if isinstance(p, TextDelta)] == ["before", "after"]


async def test_a_call_that_is_cut_is_counted() -> None:
    gate = Gate()
    model = ScriptModel([HANG(gate)])
    task = asyncio.create_task(play(model, ASKED))
    await gate.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.cut[0] == 1
