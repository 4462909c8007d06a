"""History as a model may see it: always valid, whatever happened (`docs/design.md` 7.8).

A `Prompt` is fed journal entries in order. Every tool call it holds gets exactly one result: the
real one, or, once the run went on or ended without it, one that says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.core import entries
from shared.core.model import (
    AssistantMessage,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
)
from shared.core.signals import Signal, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shared.core.entries import AnyEntry, Call, ModelAnswer, Part, Result
    from shared.core.model import AssistantPart, Message

INTERRUPTED = "The tool call was interrupted; whether it took effect is unknown."


class Prompt:
    """The messages of a thread so far."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._messages: list[Message] = []
        self._answer: ModelAnswer | None = None
        self._results: dict[str, Result] = {}

    def add(self, entry: AnyEntry, *, past: bool) -> None:
        """Take one more entry; `past` ones are of an earlier run, of which transients are gone."""
        match entry:
            case entries.Input() | entries.Signals():
                self._close_step()
                self._add_signals(entry.signals, past=past)
            case entries.Note():
                # A note of the running run is for the next one (E2).
                if past:
                    self._close_step()
                    self._add_signals(entry.signals, past=past)
            case entries.ModelAnswer():
                self._close_step()
                self._answer = entry
            case entries.Result():
                if self._answer:
                    self._results[entry.call_id] = entry
            case entries.Finish():
                self._close_step()
                self._add_answer(map(_unsigned, entry.parts))
            case entries.Claim():
                pass

    def messages(self) -> tuple[Message, ...]:
        """Give what a model call may be made with."""
        self._close_step()
        return tuple(self._messages)

    def _add_signals(self, signals: Sequence[dict[str, object]], *, past: bool) -> None:
        for record in signals:
            if past and record.get("transient"):
                continue
            message = render(Signal.from_record(record))
            if message.content:
                self._messages.append(message)

    def _close_step(self) -> None:
        answer, self._answer = self._answer, None
        if answer is None:
            return
        self._add_answer(answer.parts)
        if answer.calls:
            results = tuple(_result(call, self._results.get(call.call_id)) for call in answer.calls)
            self._messages.append(ToolMessage(results))
        self._results = {}

    def _add_answer(self, parts: Iterable[Part]) -> None:
        spoken = tuple(part for each in parts if (part := _spoken(each)))
        if spoken:
            self._messages.append(AssistantMessage(spoken))


def _spoken(part: Part) -> AssistantPart | None:
    match part:
        case entries.Text():
            known = part.provider_metadata
            return TextPart(part.text, provider_metadata=known) if part.text or known else None
        case entries.Reasoning():
            return ReasoningPart(part.text, part.signature, part.provider_metadata)
        case entries.Call():
            return ToolCall(part.call_id, part.name, part.args, part.provider_metadata)


def _unsigned(part: Part) -> Part:
    """Providers take back ids and signatures of whole answers only; of a cut one, its words."""
    nothing = {"signature": None} if isinstance(part, entries.Reasoning) else {}
    return part.model_copy(update={**nothing, "provider_metadata": None})


def _result(call: Call, result: Result | None) -> ToolResult:
    if result is None:
        return ToolResult(call.call_id, call.name, INTERRUPTED, is_error=True)
    if result.error:
        return ToolResult(call.call_id, call.name, result.error.message, is_error=True)
    return ToolResult(call.call_id, call.name, result.output)


def recent(stored: Sequence[AnyEntry], rows: int) -> Sequence[AnyEntry]:
    """Cut entries (oldest first) to those of the last `rows` message rows, never inside a row."""
    if rows <= 0 or not stored:
        return []
    floor = stored[-1].rows - rows
    # The first entry whose rows reach above the floor begins the oldest row that is wanted.
    for place, entry in enumerate(stored):
        if entry.rows > floor:
            return stored[place:]
    return []
