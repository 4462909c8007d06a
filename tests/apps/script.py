"""A model for tests of the loop that plays the turns it is given.

    model = ScriptModel([C(("c1", "add", {"a": 1, "b": 2})), T("done")])

The turn is the number of answers in the prompt, so a call that is made again after a crash plays
the same turn again. `Tries` gives the first, second, … call of one turn different outcomes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.core.errors import ModelFailed
from shared.core.model import (
    AssistantMessage,
    Finished,
    FinishReason,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolCall,
    ToolCalled,
    ToolInputDelta,
    ToolInputEnded,
    ToolInputStarted,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from shared.core.model import ModelPart, ModelRequest


@dataclass(frozen=True)
class T:
    """Streams a text word by word, after a thought if there is one, then finishes."""

    text: str
    thought: str = ""
    reason: FinishReason = "stop"


@dataclass(frozen=True, init=False)
class C:
    """Asks for calls, each `(id, tool, args)`; with `streamed`, the arguments come in deltas."""

    calls: tuple[tuple[str, str, dict[str, Any] | str], ...]
    text: str
    streamed: bool

    def __init__(
        self,
        *calls: tuple[str, str, dict[str, Any] | str],
        text: str = "",
        streamed: bool = False,
    ) -> None:
        object.__setattr__(self, "calls", calls)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "streamed", streamed)


@dataclass(frozen=True)
class E:
    """Fails before anything comes."""

    message: str
    retryable: bool = False
    retry_after: int | None = None


@dataclass(frozen=True)
class SE:
    """Streams a text, then breaks."""

    text: str
    message: str = "the stream broke"
    retryable: bool = True


class Gate:
    """Where a script waits for the test: `reached` tells that it is there, `open()` lets it go."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    def open(self) -> None:
        self._opened.set()

    async def pass_through(self) -> None:
        self.reached.set()
        await self._opened.wait()


@dataclass(frozen=True)
class HANG:
    """Streams `before`, waits at the gate, then goes on with `then`."""

    gate: Gate
    then: T | C | E | SE = field(default_factory=lambda: T("released"))
    before: str = ""


@dataclass(frozen=True, init=False)
class Tries:
    """The outcomes of the first, second, … call of one turn; the last one stays."""

    turns: tuple[T | C | E | SE | HANG, ...]

    def __init__(self, *turns: T | C | E | SE | HANG) -> None:
        object.__setattr__(self, "turns", turns)


Turn = T | C | E | SE | HANG | Tries


class ScriptModel:
    """Plays turns, and remembers every request and how often each turn was played."""

    name = "script/script"

    def __init__(self, turns: Sequence[Turn], usage: Usage | None = None) -> None:
        self.turns = list(turns)
        self.usage = usage or Usage(input_tokens=1, output_tokens=1)
        self.requests: list[ModelRequest] = []
        self.played: Counter[int] = Counter()
        self.cut: Counter[int] = Counter()
        """Turns whose stream was closed or cancelled before its end."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Play the turn that the prompt has come to."""
        at = sum(isinstance(m, AssistantMessage) for m in request.messages)
        self.requests.append(request)
        self.played[at] += 1
        if at >= len(self.turns):
            raise ModelFailed(f"the script has no turn {at}")
        turn = self.turns[at]
        if isinstance(turn, Tries):
            turn = turn.turns[min(self.played[at], len(turn.turns)) - 1]
        try:
            async with aclosing(_play(turn, self.usage)) as parts:
                async for part in parts:
                    yield part
        except (GeneratorExit, asyncio.CancelledError):
            self.cut[at] += 1
            raise


async def _play(turn: T | C | E | SE | HANG, usage: Usage) -> AsyncGenerator[ModelPart, None]:
    if isinstance(turn, HANG):
        for part in _text("t0", turn.before) if turn.before else ():
            yield part
        await turn.gate.pass_through()
        turn = turn.then
    parts: list[ModelPart] = []
    match turn:
        case E(message, retryable, retry_after):
            raise ModelFailed(message, retryable=retryable, retry_after=retry_after)
        case SE(text, message, retryable):
            parts = _text("t", text)[:-1]
        case T(text, thought):
            parts = [*_thought(thought), *_text("t", text), Finished(turn.reason, usage)]
        case C(calls, text):
            parts = _text("t", text) if text else []
            for call_id, name, args in calls:
                parts += _call(ToolCall(call_id, name, args), streamed=turn.streamed)
            parts.append(Finished("tool-calls", usage))
    for part in parts:
        await asyncio.sleep(0)
        yield part
    if isinstance(turn, SE):
        raise ModelFailed(turn.message, retryable=turn.retryable)


def _text(id: str, text: str) -> list[ModelPart]:
    words: list[ModelPart] = [
        TextDelta(id, word) for word in re.findall(r"\s*\S+\s*$|\s*\S+", text)
    ]
    return [TextStarted(id), *words, TextEnded(id)]


def _thought(text: str) -> list[ModelPart]:
    if not text:
        return []
    return [ReasoningStarted("r"), ReasoningDelta("r", text), ReasoningEnded("r", signature="sig")]


def _call(call: ToolCall, *, streamed: bool) -> list[ModelPart]:
    if not streamed:
        return [ToolCalled(call)]
    text = call.args if isinstance(call.args, str) else json.dumps(call.args)
    half = len(text) // 2
    return [
        ToolInputStarted(call.call_id, call.name),
        ToolInputDelta(call.call_id, text[:half]),
        ToolInputDelta(call.call_id, text[half:]),
        ToolInputEnded(call.call_id),
        ToolCalled(call),
    ]
