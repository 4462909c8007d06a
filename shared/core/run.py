"""The run state machine: what a run is, folded from its journal, and what it does next.

`fold` is the only way that state changes, so a process that knows the journal knows the run.
`decide` turns what happened into the entry to commit, or names the work to do; it does nothing
itself. The driver is `services.loop`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, assert_never

from shared.core import entries
from shared.core.entries import AnyEntry, Call, Fault, ModelAnswer, Part
from shared.core.limits import MAX_CLAIMS, MODEL_RETRIES
from shared.core.model import FinishReason, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.choice import Taken, Waiting


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class RunState:
    """A run after some entry. `position` is that of the next entry, `index` of the next event.

    `answer`: the model's last answer, until signals part it from what follows. `closed`: readers
    may have seen the end of its step. `results`: those of its calls that are in. `row_open`: the
    message `message_id` has a row. `cuts`: how often the present step was begun before readers and
    never committed; `claims`: how often the run was taken over since it last got any further.
    """

    run: str
    agent: str
    start: int
    message_id: str
    position: int = 1
    steps: int = 0
    answer: ModelAnswer | None = None
    results: tuple[str, ...] = ()
    row_open: bool = False
    closed: bool = False
    cuts: int = 0
    claims: int = 0
    usage: Usage = NO_USAGE
    index: int = 0
    rows: int = 0
    at: int = 0
    status: Literal["running", "completed", "failed", "cancelled"] = "running"

    @property
    def attempt(self) -> int:
        """The number of the next attempt of this step: above all that readers may have seen."""
        return self.cuts * (MODEL_RETRIES + 1)

    @property
    def open_calls(self) -> list[Call]:
        """The calls that have no result yet, in the model's order."""
        calls = self.answer.calls if self.answer else []
        return [call for call in calls if call.call_id not in self.results]


def begin(entry: AnyEntry, start: int) -> RunState:
    """The state after entry 0: an input, or a note that is a run of its own."""
    match entry:
        case entries.Input():
            state = RunState(entry.run, entry.agent, start, entry.message_id, position=0)
        case entries.Note(run=str(run), agent=str(agent)):
            state = RunState(run, agent, start, "", position=0, status="completed")
        case _:
            raise ValueError(f"a run cannot begin with {entry.kind!r}")
    return _after(state, entry)


def fold(state: RunState, entry: AnyEntry) -> RunState:
    """The state after one more entry."""
    match entry:
        case entries.Claim():
            half_told = entry.half_told and not state.open_calls
            state = replace(
                state,
                claims=state.claims + (not entry.calm),
                cuts=state.cuts + half_told,
                closed=state.closed or half_told,
            )
        case entries.ModelAnswer():
            state = _progress(
                state,
                answer=entry,
                closed=False,
                results=(),
                steps=state.steps + 1,
                row_open=True,
                usage=state.usage + entry.usage,
            )
        case entries.Result():
            state = _progress(state, results=(*state.results, entry.call_id))
        case entries.Signals():
            state = _progress(state, message_id=entry.message_id, answer=None, row_open=False)
        case entries.Finish():
            state = _progress(state, status=entry.status)
        case entries.Note():
            state = _progress(state, message_id=entry.message_id or "", row_open=False)
        case entries.Input():
            state = _progress(state)
        case _:
            assert_never(entry)
    return _after(state, entry)


def _progress(state: RunState, **changes: Any) -> RunState:
    return replace(state, **{"cuts": 0, "claims": 0, **changes})


def _after(state: RunState, entry: AnyEntry) -> RunState:
    index = entry.index0 + entry.k1 - entry.k0
    at = entries.last_moment(entry)
    return replace(state, position=state.position + 1, index=index, rows=entry.rows, at=at)


def rows_after(state: RunState, entry: AnyEntry) -> int:
    """Count the thread's rows once `entry` is in: signals one each, an answer at most one."""
    match entry:
        case entries.Input() | entries.Signals() | entries.Note():
            return state.rows + entries.stored(entry.signals)
        case entries.ModelAnswer():
            return state.rows + (not state.row_open)
        case entries.Finish():
            shown = bool(entry.parts or entry.status == "failed")
            return state.rows + (shown and not state.row_open)
        case _:
            return state.rows


# ---- what happened -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resumed:
    """An owner goes on from the state."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What the inbox held for this run. `message_id`: names what the model says after it."""

    taken: Taken
    cancelled: bool
    message_id: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The model's answer is complete."""

    parts: tuple[Part, ...]
    reason: FinishReason
    usage: Usage
    model_id: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The run cannot go on; `parts` were streamed by the call that failed."""

    fault: Fault
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody asked to stop; `parts` were streamed by the call that was cut."""

    parts: tuple[Part, ...] = ()


Happening = Resumed | Drained | Answered | Failed | Cancelled


# ---- what to do next -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """Journal this entry (its place and counters are the journal's to fill)."""

    entry: AnyEntry


@dataclass(frozen=True, slots=True)
class CallModel:
    """Make one model call."""


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run these calls and journal each result."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Look into the inbox."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over."""


Next = Commit | CallModel | RunTools | Drain | Stop


def decide(  # noqa: PLR0911 - a table
    state: RunState, happening: Happening, max_steps: int
) -> Next:
    """Say what comes next (`docs/protocols.md` E, F1; `docs/spec/durable.md` L-20, L-31)."""
    if state.status != "running":
        return Stop()
    if state.claims >= MAX_CLAIMS and isinstance(happening, Resumed | Drained):
        message = f"the run was taken over {MAX_CLAIMS} times without getting any further"
        return _end(state, "failed", "error", Fault(name="RecoveryExhausted", message=message))
    match happening:
        case Resumed():
            return _resume(state)
        case Drained():
            return _after_drain(state, happening, max_steps)
        case Answered():
            return Commit(
                ModelAnswer(
                    message_id=state.message_id,
                    parts=list(happening.parts),
                    reason=happening.reason,
                    usage=happening.usage,
                    model_id=happening.model_id,
                )
            )
        case Failed():
            return _end(state, "failed", "error", happening.fault, happening.parts)
        case Cancelled():
            return _end(state, "cancelled", "abort", parts=happening.parts)
        case _:
            assert_never(happening)


def _end(
    state: RunState,
    status: Literal["completed", "failed", "cancelled"],
    reason: FinishReason | Literal["abort"],
    error: Fault | None = None,
    parts: tuple[Part, ...] = (),
) -> Commit:
    """End the run. The tool calls of a model call that was cut were never meant (E3)."""
    said = [part for part in parts if not isinstance(part, Call)]
    return Commit(
        entries.Finish(
            message_id=state.message_id, status=status, reason=reason, error=error, parts=said
        )
    )


def _resume(state: RunState) -> Next:
    if state.open_calls:
        return RunTools(tuple(state.open_calls))
    return Drain() if state.answer or state.claims else CallModel()


def _after_drain(state: RunState, drained: Drained, max_steps: int) -> Next:
    if drained.cancelled:
        return _end(state, "cancelled", "abort")
    if drained.taken.notes:
        notes = _records(drained.taken.notes)
        return Commit(entries.Note(message_id=drained.message_id, signals=notes))
    if drained.taken.signals:
        signals = _records(drained.taken.signals)
        return Commit(entries.Signals(message_id=drained.message_id, signals=signals))
    if state.answer and (not state.answer.calls or state.steps >= max_steps):
        return _end(state, "completed", state.answer.reason)
    return CallModel()


def _records(waiting: Sequence[Waiting]) -> list[dict[str, Any]]:
    return [each.item.signal for each in waiting if each.item.signal]


def takes_signals(state: RunState, max_steps: int) -> bool:
    """Tell whether a model call of this run would still see them (`docs/spec/durable.md` L-20)."""
    return state.steps < max_steps
