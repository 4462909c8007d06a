"""From pydantic-ai's stream events to ours. Pure: events in, parts out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic_ai import messages as ai
from pydantic_core import from_json, to_json

from shared.adapters.models.metadata import take
from shared.core.model import (
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
    from collections.abc import Generator, Iterable, Iterator

    from pydantic_ai.usage import RequestUsage

    from shared.core.model import ModelPart

_REASONS: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content-filter",
    "tool_call": "tool-calls",
    "error": "error",
}

_THOUGHTS = ("reasoning_tokens", "thinking_tokens", "thoughts_tokens")
"""What providers call the tokens of their thoughts."""


@dataclass
class _Block:
    """A text or reasoning block; it opens with its first text."""

    thinks: bool
    id: str | None = None
    half: str = ""
    """The first half of a surrogate pair that a server cut in two."""

    def add(self, text: str, ids: Iterator[int]) -> Iterator[ModelPart]:
        text, self.half = _whole(self.half + text)
        if text:
            id = self.id or (yield from self.open(ids))
            yield ReasoningDelta(id, text) if self.thinks else TextDelta(id, text)

    def open(self, ids: Iterator[int]) -> Generator[ModelPart, None, str]:
        self.id = str(next(ids))
        yield ReasoningStarted(self.id) if self.thinks else TextStarted(self.id)
        return self.id

    def close(
        self, part: ai.ModelResponsePart | None, system: str | None, ids: Iterator[int]
    ) -> Iterator[ModelPart]:
        known = take(part, system) if isinstance(part, ai.TextPart | ai.ThinkingPart) else None
        signed = part.signature if isinstance(part, ai.ThinkingPart) else None
        if self.id is None and (signed or (known and known.get("details"))):
            yield from self.open(ids)
        if self.id is not None and self.thinks:
            yield ReasoningEnded(self.id, signed, known)
        elif self.id is not None:
            yield TextEnded(self.id, known)
        self.id, self.half = None, ""


@dataclass
class _Call:
    """A tool call whose arguments are coming."""

    id: str
    name: str
    streamed: bool = False
    done: bool = False

    def add(self, args: object) -> Iterator[ModelPart]:
        if isinstance(args, str) and args:
            self.streamed = True
            yield ToolInputDelta(self.id, _whole(args)[0])

    def close(
        self, part: ai.ToolCallPart, system: str | None, *, last: bool
    ) -> Iterator[ModelPart]:
        """End the call, unless its arguments may still go on: servers mix the parts of several."""
        args = _arguments(part.args)
        if self.done or not (last or (part.args and isinstance(args, dict))):
            return
        self.done = True
        if not self.streamed and part.args:
            yield ToolInputDelta(self.id, args if isinstance(args, str) else to_json(args).decode())
        yield ToolInputEnded(self.id)
        yield ToolCalled(ToolCall(self.id, part.tool_name, args, take(part, system)))


class Answer:
    """Reads one answer. `taken` are the call ids that the prompt already has."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        """Begin with nothing."""
        self._taken = set(taken)
        self._open: dict[int, _Block | _Call] = {}
        self._ids = count(1)

    def read(self, event: ai.ModelResponseStreamEvent) -> Iterator[ModelPart]:
        """Translate one event; most give one part, some none, some several."""
        match event:
            case ai.PartStartEvent(index=index, part=part):
                yield from self._start(index, part)
            case ai.PartDeltaEvent(index=index, delta=ai.TextPartDelta(content_delta=text)):
                yield from self._text(index, text, thinks=False)
            case ai.PartDeltaEvent(index=index, delta=ai.ThinkingPartDelta(content_delta=text)):
                yield from self._text(index, text or "", thinks=True)
            case ai.PartDeltaEvent(index=index, delta=ai.ToolCallPartDelta(args_delta=args)):
                call = self._open.get(index)
                if isinstance(call, _Call):
                    yield from call.add(args)
            case ai.PartEndEvent(index=index, part=part, canonical_system=system):
                yield from self._end(index, part, system)
            case _:
                pass  # the final-result event is about output types, which we do not have

    def end(self, response: ai.ModelResponse) -> Iterator[ModelPart]:
        """Close what is open, and finish."""
        calls = False
        for index, part in enumerate(response.parts):
            call = self._open.get(index)
            if isinstance(call, _Call) and isinstance(part, ai.ToolCallPart):
                calls = True
                yield from call.close(part, response.canonical_system, last=True)
        reason = _REASONS.get(response.finish_reason, "other")
        # Some providers say `stop` even when they call tools.
        reason = "tool-calls" if calls and reason == "stop" else reason
        used = replace(usage(response.usage), cost=_cost(response))
        yield Finished(reason, used, response.model_name)

    def _start(self, index: int, part: ai.ModelResponsePart) -> Iterator[ModelPart]:
        old = self._open.pop(index, None)
        if isinstance(old, _Block):
            yield from old.close(None, None, self._ids)
        match part:
            case ai.TextPart(content=text):
                yield from self._text(index, text, thinks=False)
            case ai.ThinkingPart(content=text):
                yield from self._text(index, text, thinks=True)
            case ai.ToolCallPart():
                call = old if isinstance(old, _Call) else self._call(part)
                self._open[index] = call
                if call is not old:
                    yield ToolInputStarted(call.id, call.name)
                yield from call.add(part.args)
            case _:
                pass

    def _text(self, index: int, text: str, *, thinks: bool) -> Iterator[ModelPart]:
        block = self._open.get(index)
        if not isinstance(block, _Block):
            block = self._open[index] = _Block(thinks)
        yield from block.add(text, self._ids)

    def _end(
        self, index: int, part: ai.ModelResponsePart, system: str | None
    ) -> Iterator[ModelPart]:
        match self._open.get(index):
            case _Block() as block:
                yield from block.close(part, system, self._ids)
            case _Call() as call if isinstance(part, ai.ToolCallPart):
                yield from call.close(part, system, last=False)
            case _:
                pass

    def _call(self, part: ai.ToolCallPart) -> _Call:
        """Name a call; small servers count from zero in every answer, so a taken id is changed."""
        id, n = part.tool_call_id, 1
        while id in self._taken:
            n += 1
            id = f"{part.tool_call_id}-{n}"
        self._taken.add(id)
        return _Call(id, part.tool_name)


def usage(known: RequestUsage) -> Usage:
    """Translate the tokens: thoughts are a part of the output, cached ones of the input."""
    thoughts = (known.details.get(name, 0) for name in _THOUGHTS)
    return Usage(
        known.input_tokens,
        known.output_tokens,
        next(filter(None, thoughts), 0),
        known.cache_read_tokens,
    )


def _cost(response: ai.ModelResponse) -> float | None:
    """Price an answer in US dollars, if its model's prices are known."""
    try:
        return float(response.cost().total_price)
    except (AssertionError, LookupError, ValueError):
        return None


def _arguments(args: object) -> dict[str, Any] | str:
    """Parse the arguments; what is not a JSON object stays text."""
    if not args:
        return {}
    text = _whole(args)[0] if isinstance(args, str) else to_json(args).decode()
    try:
        parsed = from_json(text, allow_inf_nan=False)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else text


def _whole(text: str) -> tuple[str, str]:
    """Make valid Unicode of a text: pairs joined, a half at the end held back, others replaced."""
    if text.isascii():
        return text, ""
    half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
    text = text[: len(text) - len(half)]
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), half
