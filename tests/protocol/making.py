"""Making signals, entries and whole journals without a loop."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from shared.core import entries, run, telling
from shared.core.choice import Waiting
from shared.core.model import Usage
from shared.core.records import InboxItem, Receipt
from shared.core.signals import Signal
from tests.clock import START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.entries import AnyEntry, Part
    from shared.core.records import ItemKind
    from shared.core.run import RunState

RUN, AGENT, MESSAGE = "run-1", "agent", "message-1"
ONE = Usage(input_tokens=1, output_tokens=2)


def record(id: str, text: str = "hi", **more: Any) -> dict[str, Any]:
    """A user's signal as it is stored."""
    made = Signal(id=id, type="user", tag_name="user", contents=text, created_at=START, **more)
    return made.to_record()


def text(words: str) -> entries.Text:
    return entries.Text(id="t", text=words)


def call(id: str, name: str = "add", **args: Any) -> entries.Call:
    return entries.Call(call_id=id, name=name, args=args)


def answer(*parts: Part, **more: Any) -> entries.ModelAnswer:
    """An answer, whose reason is what its parts say."""
    asks = any(isinstance(part, entries.Call) for part in parts)
    reason = "tool-calls" if asks else "stop"
    fields = {"message_id": MESSAGE, "parts": list(parts), "reason": reason, "usage": ONE}
    return entries.ModelAnswer.model_validate({**fields, **more})


def result(id: str, output: Any = "done", **more: Any) -> entries.Result:
    return entries.Result(call_id=id, name="add", output=output, **more)


def finish(status: str = "completed", **more: Any) -> entries.Finish:
    reasons = {"completed": "stop", "failed": "error", "cancelled": "abort"}
    if status == "failed":
        more = {"error": entries.Fault(name="ModelFailed", message="it broke"), **more}
    fields = {"message_id": MESSAGE, "status": status, "reason": reasons[status]}
    return entries.Finish.model_validate({**fields, **more})


def begun(*signals: dict[str, Any], **more: Any) -> entries.Input:
    """Entry 0 of a run."""
    fields = {"run": RUN, "agent": AGENT, "message_id": MESSAGE, **more}
    return entries.Input(signals=list(signals) or [record("m1")], **fields)


def state_after(*stored: AnyEntry) -> RunState:
    """Fold a run."""
    state = run.begin(stored[0], START)
    for entry in stored[1:]:
        state = run.fold(state, entry)
    return state


def item(kind: ItemKind, run: str, id: str = "", *, size: int = 0, **more: Any) -> InboxItem:
    """An inbox item, with a signal unless it is a cancel."""
    signal = None if kind == "cancel" else record(id or f"of {run}", "x" * size)
    receipt = signal and Receipt(
        signal=signal["id"],
        state="accepted",
        action="deliver",
        nonce="",
        hash="",
        created_at=START,
        accepted_at=START,
    )
    fields = {"agent": AGENT, "thread": "t", "resource": "r", "incarnation": 1, **more}
    return InboxItem(
        kind=kind, run=run, signal=signal, receipt=receipt, accepted_at=START, **fields
    )


def inbox(*items: InboxItem) -> list[Waiting]:
    """Items where they are stored, in inbox order."""
    classes = {"cancel": 0, "deliver": 1, "keep": 1, "wake": 2, "queue": 2}
    placed = [
        Waiting(f"IN#{classes[item.kind]}#{number:04d}", 1, item)
        for number, item in enumerate(items)
    ]
    return sorted(placed, key=lambda w: w.sort)


def owned_by(waiting: Sequence[Waiting]) -> frozenset[str]:
    return frozenset(w.item.run for w in waiting if w.item.kind in ("wake", "queue"))


class Book:
    """A thread's journal, written move by move, as the loop would write it."""

    MOVES = (
        "input",
        "answer",
        "one call",
        "two calls",
        "result",
        "signal",
        "transient",
        "note",
        "claim",
        "finish",
        "fail",
        "cancel",
        "cut",
    )

    def __init__(self) -> None:
        self.entries: list[AnyEntry] = []
        self._state: RunState | None = None
        self._start = START
        self._numbers = count()

    def play(self, moves: Sequence[str]) -> Book:
        """Make those moves that are possible."""
        for move in moves:
            entry = self._entry(move, next(self._numbers))
            if entry:
                self._write(entry)
        return self

    def _entry(self, move: str, n: int) -> AnyEntry | None:
        state = self._state
        if state is None or state.status != "running":
            return self._beginning(move, n)
        if move in ("finish", "fail", "cancel", "cut", "claim"):
            return self._ending(move, n, state.message_id)
        if state.open_calls:
            return result(state.open_calls[-1].call_id, n) if move == "result" else None
        return self._middle(move, n, state.message_id)

    @staticmethod
    def _beginning(move: str, n: int) -> AnyEntry | None:
        if move == "note":
            return entries.Note(run=f"n{n}", agent=AGENT, signals=[record(f"s{n}")])
        if move == "input":
            return begun(record(f"s{n}"), run=f"run-{n}", message_id=f"message-{n}")
        return None

    @staticmethod
    def _middle(move: str, n: int, message: str) -> AnyEntry | None:
        kept = {"message_id": f"note-{n}", "signals": [record(f"s{n}")]}
        made: dict[str, AnyEntry] = {
            "answer": answer(text(f"words {n}"), message_id=message),
            "one call": answer(call(f"c{n}"), message_id=message),
            "two calls": answer(text(f"words {n}"), call("a"), call("b"), message_id=message),
            "signal": entries.Signals(message_id=f"message-{n}", signals=[record(f"s{n}")]),
            "transient": entries.Signals(
                message_id=f"message-{n}", signals=[record(f"s{n}", transient=True)]
            ),
            "note": entries.Note.model_validate(kept),
        }
        return made.get(move)

    @staticmethod
    def _ending(move: str, n: int, message: str) -> AnyEntry:
        if move == "claim":
            return entries.Claim()
        if move == "cut":
            return finish("cancelled", parts=[text(f"half {n}")], message_id=message)
        statuses = {"finish": "completed", "fail": "failed", "cancel": "cancelled"}
        return finish(statuses[move], message_id=message)

    def _write(self, entry: AnyEntry) -> None:
        last = self.entries[-1] if self.entries else None
        at = entries.last_moment(last) + 1 if last else START
        before = last.rows if last else 0
        fresh = self._state is None or self._state.status != "running"
        if fresh:
            self._start = at
            shown = sum(not s.get("transient") for s in getattr(entry, "signals", []))
            rows, told = before + shown, telling.opening(entry)
        else:
            assert self._state
            rows, told = run.rows_after(self._state, entry), telling.told(self._state, entry)
        entry = entry.model_copy(update={"at": at, "rows": rows, "k1": len(told)})
        self.entries.append(entry)
        known = None if fresh else self._state
        self._state = run.fold(known, entry) if known else run.begin(entry, self._start)


PHRASES = (
    *((move,) for move in Book.MOVES),
    ("two calls", "result", "result"),
    ("two calls", "result", "claim"),
    ("one call", "result"),
    ("note", "answer"),
    ("finish", "input"),
    ("fail", "input"),
)


def books(max_phrases: int = 15) -> st.SearchStrategy[Book]:
    """Journals of whole threads."""
    moves = st.lists(st.sampled_from(PHRASES), max_size=max_phrases)
    return moves.map(lambda made: Book().play(["input", *(m for phrase in made for m in phrase)]))
