"""The chunks that clients see (`docs/spec/signals.md` 5.4, 5.5), one shape for all agents.

A chunk is a JSON object `{type, runId, from, payload}`; `data-*` chunks have `data` instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.core import entries
from shared.core.model import (
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolInputDelta,
    ToolInputEnded,
    ToolInputStarted,
    Usage,
)
from shared.core.signals import Signal, echo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.events import Chunk
    from shared.core.model import ModelPart


def chunk(type: str, run: str, payload: dict[str, Any]) -> Chunk:
    """Put a payload into the common envelope."""
    return {"type": type, "runId": run, "from": "AGENT", "payload": payload}


def start(run: str, agent: str, message_id: str) -> Chunk:
    """A run begins."""
    return chunk("start", run, {"id": agent, "messageId": message_id})


def signal_echo(run: str, record: dict[str, Any]) -> Chunk:
    """A signal entered the transcript (1.8)."""
    return {**echo(Signal.from_record(record)), "runId": run}


def step_start(run: str, message_id: str, now: int, attempt: int) -> Chunk:
    """A model call begins; with `attempt` > 0 it supersedes what the same step has shown so far."""
    payload = {"messageId": message_id, "startedAt": now, "warnings": [], "request": {}}
    return chunk("step-start", run, {**payload, "attempt": attempt} if attempt else payload)


def streamed(run: str, part: ModelPart) -> Chunk | None:  # noqa: PLR0911 - a table
    """Show a part of an answer as it streams in; None for what is told after the commit."""
    match part:
        case TextStarted():
            return chunk("text-start", run, {"id": part.id})
        case TextDelta():
            return chunk("text-delta", run, {"id": part.id, "text": part.text})
        case TextEnded():
            return chunk("text-end", run, {"type": "text-end", "id": part.id})
        case ReasoningStarted():
            return chunk("reasoning-start", run, {"id": part.id})
        case ReasoningDelta():
            return chunk("reasoning-delta", run, {"id": part.id, "text": part.text})
        case ReasoningEnded():
            more = {"signature": part.signature} if part.signature else {}
            return chunk("reasoning-end", run, {"id": part.id, **more})
        case ToolInputStarted():
            payload = {"toolCallId": part.call_id, "toolName": part.name}
            return chunk("tool-call-input-streaming-start", run, payload)
        case ToolInputDelta():
            payload = {"toolCallId": part.call_id, "argsTextDelta": part.text}
            return chunk("tool-call-delta", run, payload)
        case ToolInputEnded():
            return chunk("tool-call-input-streaming-end", run, {"toolCallId": part.call_id})
        case _:
            return None


def stored(run: str, part: entries.Part) -> list[Chunk]:
    """Show a stored part whole, in the chunks that streaming it would have given."""
    match part:
        case entries.Text():
            parts: list[ModelPart] = [
                TextStarted(part.id),
                TextDelta(part.id, part.text),
                TextEnded(part.id),
            ]
        case entries.Reasoning():
            parts = [
                ReasoningStarted(part.id),
                ReasoningDelta(part.id, part.text),
                ReasoningEnded(part.id, part.signature),
            ]
        case _:
            parts = []
    return [shown for each in parts if (shown := streamed(run, each))]


def tool_call(run: str, call: entries.Call) -> Chunk:
    """The model asked for a tool; its intent is stored."""
    return chunk("tool-call", run, _call(call))


def _call(call: entries.Call) -> dict[str, Any]:
    return {"toolCallId": call.call_id, "toolName": call.name, "args": call.args}


def tool_result(run: str, call: entries.Call, result: entries.Result) -> Chunk:
    """A tool answered, or failed."""
    if result.error:
        error = result.error.model_dump()
        return chunk("tool-error", run, {**_call(call), "error": error})
    return chunk("tool-result", run, {**_call(call), "result": result.output})


def usage(tokens: Usage) -> dict[str, float]:
    """Token counts in wire form, and the cost in US dollars where it is known."""
    wire: dict[str, float] = {
        "inputTokens": tokens.input_tokens,
        "outputTokens": tokens.output_tokens,
        "totalTokens": tokens.input_tokens + tokens.output_tokens,
    }
    if tokens.reasoning_tokens:
        wire["reasoningTokens"] = tokens.reasoning_tokens
    if tokens.cached_input_tokens:
        wire["cachedInputTokens"] = tokens.cached_input_tokens
    if tokens.cost is not None:
        wire["cost"] = tokens.cost
    return wire


def ending(
    answer: entries.ModelAnswer, message_id: str, reason: str, tokens: Usage, *, continued: bool
) -> dict[str, Any]:
    """Make the payload that `step-finish` and `finish` share."""
    calls: Sequence[entries.Call] = answer.calls
    return {
        "messageId": message_id,
        "stepResult": {"reason": reason, "isContinued": continued, "warnings": []},
        "output": {
            "text": "".join(part.text for part in answer.parts if isinstance(part, entries.Text)),
            "toolCalls": [_call(call) for call in calls],
            "usage": usage(tokens),
        },
        "metadata": {"modelId": answer.model_id} if answer.model_id else {},
        "processorRetryCount": 0,
    }


def error(run: str, fault: entries.Fault) -> Chunk:
    """A run failed; never a stack (9.3.10)."""
    return chunk("error", run, {"type": "error", "error": fault.model_dump()})


def abort(run: str) -> Chunk:
    """A run was cancelled (2.13.4)."""
    return {"type": "abort", "runId": run}
