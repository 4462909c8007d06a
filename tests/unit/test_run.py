"""The run state machine as tables: what is folded, and what comes next."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shared.core import run
from shared.core.choice import Taken
from shared.core.entries import Claim, Fault, Note, Signals
from shared.core.limits import MAX_CLAIMS
from shared.core.model import Usage
from shared.core.run import (
    Answered,
    CallModel,
    Cancelled,
    Commit,
    Drain,
    Drained,
    Failed,
    Resumed,
    RunTools,
    Stop,
)
from tests.clock import START
from tests.protocol.making import (
    MESSAGE,
    answer,
    begun,
    call,
    finish,
    inbox,
    item,
    record,
    result,
    state_after,
    text,
)

if TYPE_CHECKING:
    from shared.core.entries import AnyEntry
    from shared.core.run import Happening, Next, RunState

MAX_STEPS = 3
CALLS = answer(call("c1"), call("c2"))
FINAL = answer(text("all done"))
HALF_TOLD = Claim.model_validate({"k0": 4, "k1": 4, "half_told": True})

NOTE = Note.model_validate({"signals": [record("s")], "message_id": MESSAGE})
STEP: tuple[AnyEntry, ...] = (CALLS, result("c1"), result("c2"))

STATES: dict[str, tuple[AnyEntry, ...]] = {
    "begun": (begun(),),
    "answered": (begun(), FINAL),
    "calls open": (begun(), CALLS),
    "one result": (begun(), CALLS, result("c2")),
    "all results": (begun(), CALLS, result("c2"), result("c1")),
    "at the last step": (begun(), *STEP * MAX_STEPS),
    "signals taken": (begun(), FINAL, Signals(message_id="m", signals=[record("s")])),
    "note taken": (begun(), FINAL, NOTE),
    "claimed when begun": (begun(), Claim()),
    "claimed when answered": (begun(), FINAL, Claim()),
    "claimed with calls open": (begun(), CALLS, result("c1"), Claim()),
    "claimed when half told": (begun(), CALLS, result("c1"), result("c2"), HALF_TOLD),
    "claimed too often": (begun(), CALLS, *[Claim()] * MAX_CLAIMS),
    "completed": (begun(), FINAL, finish()),
    "failed": (begun(), finish("failed")),
    "cancelled": (begun(), finish("cancelled")),
}

FAULT = Fault(name="ModelFailed", message="it broke")
HAPPENINGS: dict[str, Happening] = {
    "resumed": Resumed(),
    "found nothing": Drained(Taken(), cancelled=False, message_id="m"),
    "found signals": Drained(
        Taken(signals=inbox(item("deliver", "run-1"))), cancelled=False, message_id="m"
    ),
    "found notes": Drained(
        Taken(
            notes=inbox(item("keep", "run-1", "k")), signals=inbox(item("deliver", "run-1", "d"))
        ),
        cancelled=False,
        message_id="m",
    ),
    "found a cancel": Drained(
        Taken(cancels=inbox(item("cancel", "run-1")), signals=inbox(item("deliver", "run-1"))),
        cancelled=True,
        message_id="m",
    ),
    "answered": Answered((text("hi"),), "stop", Usage(), None),
    "failed": Failed(FAULT, (text("half"),)),
    "cancelled": Cancelled((text("half"),)),
}


def shown(following: Next) -> str:
    match following:
        case Commit(entry):
            more = f" {entry.status} {entry.reason}" if entry.kind == "finish" else ""
            return f"{entry.kind}{more}"
        case RunTools(calls):
            return " ".join(["tools", *(each.call_id for each in calls)])
        case CallModel() | Drain() | Stop():
            return type(following).__name__
    raise AssertionError(following)


COMPLETED, CANCELLED, FAILED = (
    "finish completed stop",
    "finish cancelled abort",
    "finish failed error",
)
CALL, DRAIN, STOP = "CallModel", "Drain", "Stop"

# A drain happens between steps only: with calls open there is none, so the table has no cell.
RESUMED = {
    "begun": CALL,
    "answered": DRAIN,
    "calls open": "tools c1 c2",
    "one result": "tools c1",
    "all results": DRAIN,
    "at the last step": DRAIN,
    "signals taken": CALL,
    "note taken": DRAIN,
    "claimed when begun": DRAIN,
    "claimed when answered": DRAIN,
    "claimed with calls open": "tools c2",
    "claimed when half told": DRAIN,
    "claimed too often": FAILED,
}
NOTHING_FOUND = {
    "begun": CALL,
    "answered": COMPLETED,
    "all results": CALL,
    "at the last step": "finish completed tool-calls",
    "signals taken": CALL,
    "note taken": COMPLETED,
    "claimed when begun": CALL,
    "claimed when answered": COMPLETED,
    "claimed when half told": CALL,
}
BETWEEN_STEPS = {
    "found signals": "signals",
    "found notes": "note",
    "found a cancel": CANCELLED,
}
AT_ANY_TIME = {"answered": "model", "failed": FAILED, "cancelled": CANCELLED}

TABLE = [
    *((state, "resumed", following) for state, following in RESUMED.items()),
    *((state, "found nothing", following) for state, following in NOTHING_FOUND.items()),
    *((s, h, following) for s in NOTHING_FOUND for h, following in BETWEEN_STEPS.items()),
    *((s, h, following) for s in RESUMED for h, following in AT_ANY_TIME.items()),
    *((state, h, STOP) for state in ("completed", "failed", "cancelled") for h in HAPPENINGS),
]


@pytest.mark.parametrize(("state", "happening", "following"), TABLE)
def test_decide(state: str, happening: str, following: str) -> None:
    decided = run.decide(state_after(*STATES[state]), HAPPENINGS[happening], MAX_STEPS)
    assert shown(decided) == following


def test_the_table_is_complete() -> None:
    cells = {(state, happening) for state, happening, _ in TABLE}
    with_calls_open = set(STATES) - set(NOTHING_FOUND) - {"completed", "failed", "cancelled"}
    drains = {name for name, each in HAPPENINGS.items() if isinstance(each, Drained)}
    impossible = {(state, drain) for state in with_calls_open for drain in drains}
    assert cells | impossible == {(s, h) for s in STATES for h in HAPPENINGS}


def decided(entries: tuple[AnyEntry, ...], happening: str) -> AnyEntry:
    following = run.decide(state_after(*entries), HAPPENINGS[happening], MAX_STEPS)
    assert isinstance(following, Commit)
    return following.entry


def test_what_is_committed() -> None:
    signals = decided(STATES["answered"], "found signals")
    assert isinstance(signals, Signals)
    assert (signals.message_id, [s["id"] for s in signals.signals]) == ("m", ["of run-1"])
    note = decided(STATES["answered"], "found notes")
    assert isinstance(note, Note)
    assert (note.run, [s["id"] for s in note.signals]) == (None, ["k"])
    model = decided(STATES["begun"], "answered")
    assert model == answer(text("hi"), usage=Usage())
    failed = decided(STATES["begun"], "failed")
    assert failed == finish("failed", error=FAULT, parts=[text("half")])
    cut = decided(STATES["begun"], "cancelled")
    assert cut == finish("cancelled", parts=[text("half")])
    exhausted = decided(STATES["claimed too often"], "resumed")
    assert exhausted.kind == "finish"
    assert exhausted.error
    assert exhausted.error.name == "RecoveryExhausted"


@pytest.mark.parametrize(("steps", "takes"), [(0, True), (1, True), (2, True), (3, False)])
def test_signals_are_taken_while_a_model_call_can_follow(steps: int, takes: bool) -> None:
    state = replace(state_after(begun()), steps=steps)
    assert run.takes_signals(state, MAX_STEPS) is takes


# ---- fold ------------------------------------------------------------------------------------


def test_a_run_begins_with_an_input_or_a_note_of_its_own() -> None:
    state = state_after(begun(at=7, rows=3, k1=2))
    assert state == run.RunState(
        "run-1", "agent", START, MESSAGE, position=1, index=2, rows=3, at=7
    )
    note = run.begin(Note(run="n", agent="agent", signals=[record("s")]), START)
    assert (note.status, note.position) == ("completed", 1)


@pytest.mark.parametrize("entry", [Note(signals=[record("s")]), Claim(), FINAL, finish()])
def test_a_run_begins_with_nothing_else(entry: AnyEntry) -> None:
    with pytest.raises(ValueError, match="cannot begin"):
        run.begin(entry, START)


FOLDS = [
    ("answered", {"steps": 1, "row_open": True, "answer": FINAL}),
    ("one result", {"steps": 1, "results": ("c2",)}),
    ("signals taken", {"steps": 1, "row_open": False, "answer": None, "message_id": "m"}),
    ("note taken", {"steps": 1, "answer": FINAL, "message_id": MESSAGE}),
    ("claimed when answered", {"claims": 1, "attempt": 0, "answer": FINAL}),
    ("claimed when half told", {"claims": 1, "closed": True, "steps": 1}),
    ("completed", {"status": "completed", "position": 3}),
    ("failed", {"status": "failed"}),
    ("cancelled", {"status": "cancelled"}),
]


@pytest.mark.parametrize(("name", "expected"), FOLDS, ids=[name for name, _ in FOLDS])
def test_fold(name: str, expected: dict[str, object]) -> None:
    state = state_after(*STATES[name])
    assert {field: getattr(state, field) for field in expected} == expected


def test_usage_is_summed() -> None:
    assert state_after(begun(), FINAL, FINAL).usage == Usage(input_tokens=2, output_tokens=4)


@pytest.mark.parametrize(
    "entry", [FINAL, result("c1"), Note(signals=[record("s")]), Signals(message_id="m", signals=[])]
)
def test_b4_progress_ends_the_counting_of_claims(entry: AnyEntry) -> None:
    claimed = state_after(begun(), CALLS, *[Claim()] * (MAX_CLAIMS - 1))
    assert claimed.claims == MAX_CLAIMS - 1
    assert run.fold(claimed, entry).claims == 0


def test_d2_the_index_goes_on_after_what_an_entry_told() -> None:
    state = state_after(begun(k1=2))
    assert state.index == 2
    told = answer(call("c1"), k0=7, k1=8, index0=9)  # 7 were streamed before the commit, 1 after
    assert run.fold(state, told).index == 10
    assert run.fold(state, Claim(k0=3, k1=3, index0=5)).index == 5


def test_d4_attempts_grow_with_each_half_told_step() -> None:
    states: list[RunState] = [state_after(begun())]
    for claim in (Claim(), HALF_TOLD, Claim(), HALF_TOLD):
        states.append(run.fold(states[-1], claim))
    attempts = [state.attempt for state in states]
    assert attempts[0] == attempts[1] == 0 < attempts[2] == attempts[3] < attempts[4]


def test_positions_and_moments_grow() -> None:
    taken = Signals(message_id="m", signals=[record("a"), record("b")], at=START + 5)
    state = state_after(begun(at=START), taken)
    assert (state.position, state.at) == (2, START + 6)  # signals are dated one ms apart


ROWS = [
    ("begun", Signals(message_id="m", signals=[record("a"), record("b")]), 2),
    ("begun", Signals(message_id="m", signals=[record("a", transient=True)]), 0),
    ("begun", Note(signals=[record("a")]), 1),
    ("begun", FINAL, 1),
    ("all results", FINAL, 0),
    ("signals taken", FINAL, 1),
    ("calls open", result("c1"), 0),
    ("begun", Claim(), 0),
    ("begun", finish(), 0),
    ("begun", finish("failed"), 1),
    ("begun", finish("cancelled"), 0),
    ("begun", finish("cancelled", parts=[text("half")]), 1),
    ("all results", finish("failed"), 0),
]


@pytest.mark.parametrize(("name", "entry", "more"), ROWS)
def test_rows_after(name: str, entry: AnyEntry, more: int) -> None:
    state = replace(state_after(*STATES[name]), rows=10)
    assert run.rows_after(state, entry) == 10 + more
