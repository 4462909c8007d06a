"""The records beside the journal: thread, active run, run, inbox item, receipt.

Each is the body of one table item (`docs/design.md` 4). Times are epoch milliseconds.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

RunStatus = Literal["prepared", "running", "suspended", "completed", "failed", "cancelled"]
OVER: frozenset[str] = frozenset({"completed", "failed", "cancelled"})

Action = Literal["wake", "deliver", "persist", "discard"]
ReceiptState = Literal[
    "accepted", "queued", "delivered", "persisted", "discarded", "cancelled", "failed"
]
ItemKind = Literal["cancel", "deliver", "keep", "wake", "queue"]


class Record(BaseModel):
    """A stored body; unknown keys of newer versions are kept out, absent ones are not written."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def body(self) -> dict[str, Any]:
        """Give the JSON body to store."""
        return self.model_dump(exclude_none=True)

    @classmethod
    def of(cls, body: dict[str, Any]) -> Self:
        """Read a stored body."""
        return cls.model_validate(body)


class Thread(Record):
    """A conversation and its owner. `deleted`: a tombstone; `incarnation` is then the next one."""

    thread: str
    resource: str
    incarnation: int = 1
    title: str = ""
    metadata: dict[str, Any] | None = None
    created_at: int
    updated_at: int
    deleted: bool = False


class Active(Record):
    """The one active run of a thread. `item`: sort key of the inbox item it is reserved for.

    `doomed`: the thread is deleted; once the run is over the status is `deleted`, and nothing can
    start here any more (J2).
    """

    run: str
    agent: str
    status: Literal["reserved", "running", "suspended", "deleted"]
    start: int | None = None
    item: str | None = None
    doomed: bool = False


class Run(Record):
    """Head of a run's snapshot. `options` are those of the call that made it.

    `paused_at`: the journal position at which an owner let go on purpose, to wait.
    """

    run: str
    thread: str
    resource: str
    incarnation: int
    agent: str
    status: RunStatus
    start: int | None = None
    options: dict[str, Any] = {}
    usage: dict[str, float | None] | None = None
    reason: str | None = None
    error: dict[str, Any] | None = None
    created_at: int
    paused_at: int | None = None
    finished_at: int | None = None


class Receipt(Record):
    """What became of a signal, apart from what was answered (A5).

    `hash` is of the request; `nonce` of the accept that wrote it (A6). `item`: sort key of the
    inbox item that it was stored as. `run` and `position` of the journal entry that took it.
    """

    signal: str
    state: ReceiptState
    action: Action
    answered_run: str | None = None
    nonce: str
    hash: str
    created_at: int
    accepted_at: int
    item: str | None = None
    run: str | None = None
    position: int | None = None
    delivered_at: int | None = None
    error: str | None = None


class InboxItem(Record):
    """Something for a run, or something that owns a run of its own (wake, queue).

    `signal` is the signal's record; a cancel has none. `run` is the run that it names or owns.
    """

    kind: ItemKind
    run: str
    agent: str
    thread: str
    resource: str
    incarnation: int
    signal: dict[str, Any] | None = None
    receipt: Receipt | None = None
    options: dict[str, Any] = {}
    accepted_at: int
