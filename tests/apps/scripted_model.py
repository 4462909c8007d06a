"""The scripted models of the conformance agents, exactly as `tests/compat/peer/mock-model.mjs`.

They look only at the prompt they get, so the same prompt always gives the same answer, also after
a restart. No network.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uuid_utils import uuid4

from shared.core.model import (
    AssistantMessage,
    Finished,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolCall,
    ToolCalled,
    ToolMessage,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from shared.core.model import Message, ModelPart, ModelRequest

_USAGE = Usage(input_tokens=1, output_tokens=1)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a script answers: a text, or one call."""

    text: str = ""
    tool: str | None = None
    args: dict[str, Any] | None = None


def user_texts(messages: Sequence[Message]) -> list[str]:
    """Every text that reached the model with the role user, in order: messages and signal XML."""
    return [m.text for m in messages if isinstance(m, UserMessage)]


def current_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages after the last final answer, that is: what the model has to answer now."""
    for i in range(len(messages) - 1, -1, -1):
        message = messages[i]
        if isinstance(message, AssistantMessage) and message.text and not message.tool_calls:
            return messages[i + 1 :]
    return messages


def _results(turn: Sequence[Message]) -> list[Any]:
    return [r.output for m in turn if isinstance(m, ToolMessage) for r in m.results]


def _steps_asked(turn: Sequence[Message], fallback: int) -> int:
    hits = (re.search(r"\bsteps (\d+)", text, re.ASCII) for text in user_texts(turn))
    return next((int(hit[1]) for hit in hits if hit), fallback)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _answer_with(turn: Sequence[Message]) -> Reply:
    value = _results(turn)[0]
    return Reply(f"answer: {value if isinstance(value, str) else _json(value)}")


def _echo(messages: Sequence[Message]) -> Reply:
    return Reply(f"echo: {(user_texts(messages) or [''])[-1]}")


def _tool(messages: Sequence[Message]) -> Reply:
    turn = current_turn(messages)
    done, wanted = len(_results(turn)), _steps_asked(turn, 0)
    named = re.fullmatch(r"call (\w+)", (user_texts(turn) or [""])[0], re.ASCII)
    if named:
        return _answer_with(turn) if done else Reply(tool=named[1], args={})
    if done < wanted:
        return Reply(tool="add", args={"a": done, "b": 1})
    return Reply(f"done {wanted}")


def _slow(messages: Sequence[Message]) -> Reply:
    turn = current_turn(messages)
    done = len(_results(turn))
    if done < _steps_asked(turn, 1):
        return Reply(tool="wait", args={"n": done})
    return Reply(f"seen: {_json(user_texts(messages))}")


SCRIPTS: dict[str, Callable[[Sequence[Message]], Reply]] = {
    "echo": _echo,
    "tool": _tool,
    "slow": _slow,
}


class MockModel:
    """A model that follows one of the scripts, with a pause before each text delta."""

    def __init__(self, kind: str, delta_ms: float = 0) -> None:
        self.name = f"mock/mock-{kind}"
        self._kind = kind
        self._pause = delta_ms / 1000

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Answer in about five deltas, or with one call."""
        reply = SCRIPTS[self._kind](request.messages)
        if reply.tool:
            yield ToolCalled(ToolCall(f"call-{uuid4()}", reply.tool, reply.args or {}))
        else:
            yield TextStarted("t")
            size = max(1, -(-len(reply.text) // 5))
            for at in range(0, len(reply.text), size):
                if self._pause:
                    await asyncio.sleep(self._pause)
                yield TextDelta("t", reply.text[at : at + size])
            yield TextEnded("t")
        yield Finished("tool-calls" if reply.tool else "stop", _USAGE, f"mock-{self._kind}")
