"""The agents of the state machine test: models that check what they are shown."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from shared.core.agent import Agent
from shared.core.app import App
from shared.core.model import (
    AssistantMessage,
    Finished,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolCall,
    ToolCalled,
    ToolMessage,
    UserMessage,
)
from shared.core.tool import ToolContext, tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.core.model import Message, ModelPart, ModelRequest
    from tests.crash.world import World

AGENTS = ("one", "two")


def app(world: World) -> App:
    """Two agents that share a thread; `tool N` in a message asks for N tool calls, one a step."""

    @tool
    async def act(n: int, ctx: ToolContext) -> str:
        world.calls[ctx.idempotency_key] += 1
        await asyncio.sleep(0)
        return f"acted {n}"

    return App(
        Agent(name, model=CheckingModel(), tools=[act], max_steps=6, last_messages=500)
        for name in AGENTS
    )


def check_history(messages: tuple[Message, ...]) -> None:
    """Invariant 8: every call has one result, straight after it; no message is there twice."""
    for place, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            answer = messages[place + 1]
            assert isinstance(answer, ToolMessage)
            asked = [call.call_id for call in message.tool_calls]
            assert [result.call_id for result in answer.results] == asked
        elif isinstance(message, ToolMessage):
            before = messages[place - 1]
            assert isinstance(before, AssistantMessage)
            assert before.tool_calls
    seen = Counter(m.text for m in messages if isinstance(m, UserMessage))
    assert not [text for text, count in seen.items() if count > 1], seen


class CheckingModel:
    """Answers with the number of messages it saw, after as many tool calls as were asked for."""

    name = "script/checking"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Answer."""
        check_history(request.messages)
        turn: list[Message] = []
        for message in request.messages:
            turn.append(message)
            if isinstance(message, AssistantMessage) and not message.tool_calls:
                turn = []
        done = sum(isinstance(m, ToolMessage) for m in turn)
        asked = max((_asked(m.text) for m in turn if isinstance(m, UserMessage)), default=0)
        await asyncio.sleep(0)
        if done < asked:
            yield ToolCalled(ToolCall(f"c{len(request.messages)}", "act", {"n": done}))
            yield Finished("tool-calls")
            return
        yield TextStarted("t")
        for word in ("seen", f" {len(request.messages)}"):
            await asyncio.sleep(0)
            yield TextDelta("t", word)
        yield TextEnded("t")
        yield Finished("stop")


def _asked(text: str) -> int:
    return int(text.split()[1]) if text.startswith("tool ") else 0
