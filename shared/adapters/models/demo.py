"""A model that needs no key: enough to see a run stream, call tools and take in messages.

It understands nothing. It matches words of the request with the names and descriptions of tools,
and it looks only at its prompt, so the same prompt gives the same answer, also after a crash.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from uuid_utils import uuid4

from shared.core.model import (
    AssistantMessage,
    Finished,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolCall,
    ToolCalled,
    ToolInputDelta,
    ToolInputEnded,
    ToolInputStarted,
    ToolMessage,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from shared.core.model import Message, ModelPart, ModelRequest, ToolResult, ToolSpec

DELAY = 20
"""Milliseconds before each word."""

_WORD = re.compile(r"[a-z]{3,}")
_NUMBER = re.compile(r"\b(?:[A-Z]{1,5}-?)?\d[\w-]*", re.IGNORECASE)
_CAPITALISED = re.compile(r"\b[A-Z][a-z]+\b")
_TAG = re.compile(r"</?[A-Za-z][^>]*>")
_REAL = "For a real one, set OPENAI_API_KEY and start again."


class DemoModel:
    """Answers word by word, and calls the tools that the user seems to ask for."""

    name = "demo"

    def __init__(self, delay: float = DELAY) -> None:
        """Set the pause before each word, in ms."""
        self._delay = delay / 1000

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelPart, None]:
        """Stream a text, or one tool call."""
        turn = _Turn(request.messages)
        tool = turn.next_tool(request.tools)
        if tool is None:
            text, call = turn.answer(request.tools), None
        else:
            text, call = "", ToolCall(f"demo-{uuid4()}", tool.name, turn.arguments(tool))
        words = re.findall(r"\S+\s*", text)
        if words:
            yield TextStarted("1")
            for word in words:
                await asyncio.sleep(self._delay)
                yield TextDelta("1", word)
            yield TextEnded("1")
        if call:
            await asyncio.sleep(self._delay)
            yield ToolInputStarted(call.call_id, call.name)
            yield ToolInputDelta(call.call_id, to_json(call.args).decode())
            yield ToolInputEnded(call.call_id)
            yield ToolCalled(call)
        used = Usage(sum(map(_size, request.messages)), len(words) or 1)
        yield Finished("tool-calls" if call else "stop", used, "demo")


class _Turn:
    """What the prompt asks for since the last final answer."""

    def __init__(self, messages: Sequence[Message]) -> None:
        turn = list(messages)
        for i in range(len(turn) - 1, -1, -1):
            message = turn[i]
            if isinstance(message, AssistantMessage) and not message.tool_calls:
                turn = turn[i + 1 :]
                break
        first_call = next(
            (i for i, m in enumerate(turn) if isinstance(m, AssistantMessage)), len(turn)
        )
        self.asked = _plain(turn[:first_call])
        self.also = _plain(turn[first_call:])
        """What came while the run was going on."""

        self.results = [r for m in turn if isinstance(m, ToolMessage) for r in m.results]
        self.text = " ".join([*self.asked, *self.also])

    def wanted(self, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
        """The tools whose own words are in the text, else the one with the most words there."""
        said = set(_WORD.findall(self.text.lower()))
        own = {t.name: _own_words(t, tools) for t in tools}
        named = [t for t in tools if own[t.name] & said]
        if named:
            return named
        hits = [(len(_all_words(t) & said), t) for t in tools]
        best = max((n for n, _ in hits), default=0)
        return [t for n, t in hits if n == best][:1] if best and _NUMBER.search(self.text) else []

    def next_tool(self, tools: Sequence[ToolSpec]) -> ToolSpec | None:
        """The first wanted tool that was not called yet and whose arguments are known."""
        done = {result.name for result in self.results}
        left = [t for t in self.wanted(tools) if t.name not in done]
        return left[0] if left and not self.missing(left[0]) else None

    def missing(self, tool: ToolSpec) -> list[str]:
        """The ids that a tool needs and nobody said."""
        needed = [name for name in tool.schema.get("required", ()) if _is_id(name)]
        return needed if not _NUMBER.search(self.text) else []

    def arguments(self, tool: ToolSpec) -> dict[str, Any]:
        """Fill the required arguments: ids with what looks like a number, texts with the text."""
        number = _NUMBER.search(self.text)
        found = number[0].upper() if number else ""
        kinds: dict[str, dict[str, Any]] = tool.schema.get("properties", {})
        values: dict[str, Any] = {"number": 1, "integer": 1, "boolean": True, "array": []}
        return {
            name: found
            if _is_id(name)
            else values.get(str(kinds.get(name, {}).get("type")), self._about())
            for name in tool.schema.get("required", ())
        }

    def _about(self) -> str:
        """Guess what the text is about: its last word that begins with a capital, or all of it."""
        names = _CAPITALISED.findall(self.text)[1:]
        return names[-1] if names else self.text

    def answer(self, tools: Sequence[ToolSpec]) -> str:
        """Say what the tools gave, or what this model is."""
        also = "".join(f' You also said: "{text}".' for text in self.also)
        if self.results:
            return " ".join(map(_told, self.results)) + also
        wanted = self.wanted(tools)
        if wanted:
            what = " and ".join(self.missing(wanted[0])).replace("_", " ")
            return f"I can do that with {wanted[0].name}. Which {what}? Say it like A-1001." + also
        names = ", ".join(tool.name for tool in tools)
        can = f" Ask for what these tools do, and I call them: {names}." if names else ""
        said = f' You said: "{self.asked[-1]}".' if self.asked else ""
        return f"I am the demo model, not a language model.{said}{can} {_REAL}" + also


def _plain(messages: Sequence[Message]) -> list[str]:
    texts = [_TAG.sub("", m.text).strip() for m in messages if isinstance(m, UserMessage)]
    return [text for text in texts if text]


def _is_id(name: str) -> bool:
    return name == "id" or name.endswith(("_id", "number"))


def _own_words(tool: ToolSpec, tools: Sequence[ToolSpec]) -> set[str]:
    others = [_name_words(t) for t in tools if t.name != tool.name]
    return _name_words(tool).difference(*others)


def _name_words(tool: ToolSpec) -> set[str]:
    return set(_WORD.findall(tool.name.lower()))


def _all_words(tool: ToolSpec) -> set[str]:
    return _name_words(tool) | set(_WORD.findall(tool.description.lower()))


def _told(result: ToolResult) -> str:
    if result.is_error:
        return f"{result.name} failed: {_short(result.output)}"
    said = _short(result.output)
    return f"{result.name} says: {said}" + ("" if said.endswith((".", "!", "?")) else ".")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(inner)}" for name, inner in value.items())
    return value if isinstance(value, str) else to_json(value).decode()


def _size(message: Message) -> int:
    match message:
        case ToolMessage(results):
            return sum(len(_short(r.output).split()) for r in results)
        case _:
            return len(message.text.split())
