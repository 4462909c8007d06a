"""What readers are told of an entry once it is committed (`docs/protocols.md` D2, D4, D6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.core import chunks, entries
from shared.core.limits import MODEL_RETRIES
from shared.core.model import Usage

if TYPE_CHECKING:
    from shared.core.entries import AnyEntry
    from shared.core.events import Chunk
    from shared.core.run import RunState


def opening(entry: AnyEntry) -> list[Chunk]:
    """Chunks that follow the commit of entry 0."""
    match entry:
        case entries.Input():
            return [
                chunks.start(entry.run, entry.agent, entry.message_id),
                *_echoes(entry.run, entry),
            ]
        case entries.Note(run=str(run), agent=str(agent)):
            return _lone_note(run, agent, entry)
        case _:
            raise ValueError(f"a run cannot begin with {entry.kind!r}")


def told(state: RunState, entry: AnyEntry) -> list[Chunk]:
    """Chunks that follow the commit of `entry`, given the state before it.

    Where readers hold the beginning of a step that will not be told again, an empty attempt
    supersedes it first (D4).
    """
    after = _after(state, entry)
    if state.cuts and not entry.k0 and after:
        return [_attempt(state, entry.at, state.attempt), *after]
    return after


def _after(state: RunState, entry: AnyEntry) -> list[Chunk]:
    match entry:
        case entries.Signals():
            closing = [] if state.closed else _step_finish(state, "other", entry.message_id)
            return [*_echoes(state.run, entry), *closing]
        case entries.Note():
            return _echoes(state.run, entry)
        case entries.ModelAnswer():
            return [chunks.tool_call(state.run, call) for call in entry.calls]
        case entries.Result():
            return [chunks.tool_result(state.run, _call_of(state, entry), entry)]
        case entries.Finish():
            return _finish(state, entry)
        case _:
            return []


def before_step(state: RunState, now: int, attempt: int) -> list[Chunk]:
    """Chunks that open a model call: the end of the step before it, then `step-start`."""
    closing = [] if state.closed else _step_finish(state, "tool-calls")
    return [*closing, _attempt(state, now, attempt)]


def whole(state: RunState, entry: AnyEntry, *, step_open: bool) -> list[Chunk]:
    """Tell an entry from nothing: a new attempt of its step with all its parts, then what follows.

    `step_open`: readers have not seen the end of the step before it.
    """
    if isinstance(entry, entries.Claim) and entry.half_told and step_open:
        goes_on = state.answer and state.answer.calls and not state.open_calls
        return _step_finish(state, "tool-calls") if goes_on else []
    if not isinstance(entry, entries.ModelAnswer | entries.Finish) or not entry.k0:
        return told(state, entry)
    opening = before_step(state, entry.at, state.attempt + MODEL_RETRIES + 1)
    shown = [shown for part in entry.parts for shown in chunks.stored(state.run, part)]
    return [*(opening if step_open else opening[-1:]), *shown, *told(state, entry)]


def _attempt(state: RunState, now: int, attempt: int) -> Chunk:
    return chunks.step_start(state.run, state.message_id, now, attempt)


def _echoes(run: str, entry: entries.Input | entries.Signals | entries.Note) -> list[Chunk]:
    return [chunks.signal_echo(run, signal) for signal in entry.signals]


def _lone_note(run: str, agent: str, entry: entries.Note) -> list[Chunk]:
    """Show kept signals as a run without a step (`docs/spec/signals.md` 2.9)."""
    message_id = f"persisted-signal:{entry.signals[0]['id']}"
    nothing = entries.ModelAnswer(message_id="", parts=[], reason="stop")
    ending = chunks.ending(nothing, message_id, "stop", Usage(), continued=False)
    return [
        chunks.start(run, agent, message_id),
        *_echoes(run, entry),
        chunks.chunk("finish", run, ending),
    ]


def _step_finish(state: RunState, reason: str, message_id: str | None = None) -> list[Chunk]:
    if state.answer is None:
        return []
    payload = chunks.ending(
        state.answer,
        message_id or state.message_id,
        reason,
        state.answer.usage,
        continued=reason in ("tool-calls", "other"),
    )
    return [chunks.chunk("step-finish", state.run, payload)]


def _finish(state: RunState, entry: entries.Finish) -> list[Chunk]:
    if entry.status == "cancelled":
        return [chunks.abort(state.run)]
    if entry.error:
        return [chunks.error(state.run, entry.error)]
    answer = state.answer or entries.ModelAnswer(message_id="", parts=[], reason="stop")
    payload = chunks.ending(
        answer,
        state.message_id,
        entry.reason,
        state.usage,
        continued=entry.reason == "tool-calls",
    )
    response = {"id": state.message_id, "timestamp": entry.at, "modelId": answer.model_id}
    finish = chunks.chunk("finish", state.run, {**payload, "response": response})
    return [*_step_finish(state, entry.reason), finish]


def _call_of(state: RunState, entry: entries.Result) -> entries.Call:
    calls = state.answer.calls if state.answer else []
    return next(
        (call for call in calls if call.call_id == entry.call_id),
        entries.Call(call_id=entry.call_id, name=entry.name, args={}),
    )
