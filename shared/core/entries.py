"""Journal entries: the append-once record of a run (`docs/protocols.md` C, D2, E3).

All that a run is, is folded from its entries (`run.fold`), and all that readers are told after a
commit is a function of them (`telling.told`). Stored forms carry a `format`; older ones are lifted
by `read` and never rewritten.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from shared.core.model import FinishReason, Usage

FORMAT = 1


class Entry(BaseModel):
    """What every entry carries.

    `nonce` names the owner that wrote it (C2). `at` grows strictly along a thread's journal.
    `rows` counts the thread's message rows up to and with this entry. `k0`: chunks of this
    position that were streamed before the commit; `k1`: `k0` and those told after it; `index0`:
    index in the run of the first one told after it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    nonce: str = ""
    at: int = 0
    rows: int = 0
    k0: int = 0
    k1: int = 0
    index0: int = 0

    def body(self) -> dict[str, Any]:
        """Give the JSON body to store."""
        return self.model_dump()


class Input(Entry):
    """Entry 0 of a run: who runs, and the signals that it begins with."""

    kind: Literal["input"] = "input"
    run: str
    agent: str
    message_id: str
    signals: list[dict[str, Any]]


class Signals(Entry):
    """Signals that were drained into the loop; what the model says next is a new message."""

    kind: Literal["signals"] = "signals"
    message_id: str
    signals: list[dict[str, Any]]


class Note(Entry):
    """Signals that are kept for later runs (A7).

    As a run of its own it has `run` and `agent`; inside a run `message_id`, since what the model
    says next is a new row.
    """

    kind: Literal["note"] = "note"
    run: str | None = None
    agent: str | None = None
    message_id: str | None = None
    signals: list[dict[str, Any]]


class Claim(Entry):
    """Another owner took the run over.

    `half_told`: readers may have seen the beginning of a step that never committed, and with it
    the end of the step before. `calm`: the owner before waited on purpose, so this is no crash.
    """

    kind: Literal["claim"] = "claim"
    half_told: bool = False
    calm: bool = False


Metadata = Annotated[dict[str, Any] | None, Field(exclude_if=lambda known: known is None)]
"""What the provider wants back with a part; most parts have none, and store nothing."""


class Text(BaseModel):
    """Text that the model wrote."""

    type: Literal["text"] = "text"
    id: str
    text: str
    provider_metadata: Metadata = None


class Reasoning(BaseModel):
    """What the model thought."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    text: str
    signature: str | None = None
    provider_metadata: dict[str, Any] | None = None


class Call(BaseModel):
    """A tool call that the model asked for; raw text in `args` was not a JSON object."""

    type: Literal["call"] = "call"
    call_id: str
    name: str
    args: dict[str, Any] | str
    provider_metadata: Metadata = None


Part = Annotated[Text | Reasoning | Call, Field(discriminator="type")]


class ModelAnswer(Entry):
    """The result of a model call, and the intent to run its tool calls (E3).

    `message_id` names its message row, so that rows can be read from the middle of a journal.
    """

    kind: Literal["model"] = "model"
    message_id: str
    parts: list[Part]
    reason: FinishReason
    usage: Usage = Usage()
    model_id: str | None = None

    @property
    def calls(self) -> list[Call]:
        """The tool calls, in the model's order."""
        return [part for part in self.parts if isinstance(part, Call)]


class Fault(BaseModel):
    """An error as it is stored and shown: no stack."""

    name: str
    message: str


class Result(Entry):
    """The answer to one tool call: its output, or the error that the model is shown."""

    kind: Literal["result"] = "result"
    call_id: str
    name: str
    output: Any = None
    error: Fault | None = None


class Finish(Entry):
    """The end of a run. `parts`: what a call that was cut had said."""

    kind: Literal["finish"] = "finish"
    message_id: str
    status: Literal["completed", "failed", "cancelled"]
    reason: FinishReason | Literal["abort"]
    error: Fault | None = None
    parts: list[Part] = []


AnyEntry = Input | Signals | Note | Claim | ModelAnswer | Result | Finish

_ADAPTER: TypeAdapter[AnyEntry] = TypeAdapter(Annotated[AnyEntry, Field(discriminator="kind")])


def read(body: dict[str, Any]) -> AnyEntry:
    """Read a stored entry of any format."""
    return _ADAPTER.validate_python(body)


def stored(signals: list[dict[str, Any]]) -> int:
    """Count the rows that signals make: transient ones make none."""
    return sum(1 for signal in signals if not signal.get("transient"))


def rows_before(entry: AnyEntry) -> int:
    """Count the thread's rows before an entry that begins a run; at most, for any other."""
    return entry.rows - (stored(entry.signals) if isinstance(entry, Input | Note) else 0)


def last_moment(entry: AnyEntry) -> int:
    """Give the latest time in an entry: its signals are stamped one ms apart, from `at` on."""
    count = len(entry.signals) if isinstance(entry, Input | Signals | Note) else 1
    return entry.at + max(count - 1, 0)


def stamp(signals: list[dict[str, Any]], at: int) -> list[dict[str, Any]]:
    """Date signals as they enter the transcript (`docs/spec/signals.md` 1.2.4)."""
    return [{**signal, "created_at": at + place} for place, signal in enumerate(signals)]
