"""What the services need from the outside, told from their side.

A port says what must hold, not how. Each has one contract suite in `tests/contract` that every
adapter passes. Times are epoch milliseconds unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from shared.core.events import EventId, LogEvent
    from shared.core.model import ModelPart, ModelRequest

Body = dict[str, Any]

ABSENT: Final = "absent"
Expect = Literal["absent"] | int | None
"""What a write expects: `ABSENT`, a version, or nothing."""


# ---- Table ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Index:
    """An entry in the one sparse index: a group, and the order within it (an integer)."""

    group: str
    order: int


@dataclass(frozen=True, slots=True)
class Item:
    """A stored record. `version` is 1 when made and grows by one with each put."""

    partition: str
    sort: str
    version: int
    body: Body
    index: Index | None = None
    expires: int | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Write an item whole. `expires`: from this moment on the item is hidden from every read."""

    partition: str
    sort: str
    body: Mapping[str, Any]
    expect: Expect = None
    index: Index | None = None
    expires: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove an item; one that is not there is fine unless a version is expected."""

    partition: str
    sort: str
    expect: Expect = None


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but let the commit fail unless the expectation holds."""

    partition: str
    sort: str
    expect: Expect


Write = Put | Delete | Check


@dataclass(frozen=True, slots=True)
class Failure:
    """A write whose expectation did not hold, and what is stored there."""

    write: Write
    stored: Item | None


class Table(Protocol):
    """Durable records with conditional all-or-nothing commits (DynamoDB's semantics)."""

    async def get(self, partition: str, sort: str) -> Item | None:
        """Read one item, strongly consistent."""
        ...

    async def query(
        self,
        partition: str,
        prefix: str = "",
        *,
        after: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Item]:
        """Read items whose sort key has the prefix, in key order, beyond `after` (exclusive).

        Strongly consistent. With `reverse` the order and the sense of `after` turn round.
        """
        ...

    async def index(
        self,
        group: str,
        *,
        low: int = 0,
        high: int | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[Item]:
        """Read items of an index group with `low <= order <= high`; may lag: read again to act."""
        ...

    async def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes or none.

        Raises:
            ConditionFailed: with *every* failing write and its stored item; nothing was applied.
            BadRequest: over 100 writes or 4 MB, two writes on one key, or a key that is too long.
            Unavailable: no answer; the commit may or may not have been applied.
        """
        ...


# ---- Coordinator ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to advance one thread until it runs out. `last` is the log's end when acquired."""

    log: str
    token: str
    fence: int
    last: EventId | None
    last_index: int


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append learned: the run that was asked to stop, and whether anybody follows."""

    cancelled: str | None
    followed: bool


class Coordinator(Protocol):
    """Leases, event logs and cancel flags, all named by a thread's partition (`log`).

    Never the truth: with all its data lost, nothing that was committed is lost.
    """

    async def acquire(self, log: str, token: str, ttl: int) -> Lease | None:
        """Take the lease for `ttl` ms, or return None while another token holds it.

        Raises:
            Unavailable: no answer; the caller must not go on as if it held the lease.
        """
        ...

    def renew(self, lease: Lease, ttl: int) -> str | None:
        """Extend the lease and return the run that was asked to stop. Blocking: the heartbeat's.

        Raises:
            LeaseLost: it ran out or was taken; a renewal never re-creates it.
            Unavailable: no answer.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give the lease up; one that is no longer ours is left alone."""
        ...

    async def held(self, log: str) -> bool:
        """Tell whether anybody holds the lease."""
        ...

    async def append(
        self, lease: Lease, events: Sequence[LogEvent], ttl: int, after: EventId | None = None
    ) -> Appended:
        """Add events at the log's end, skipping ids not above the last one, and renew the lease.

        One call is atomic: readers see all of a batch or nothing. `after`: what the log holds at
        least, as far as the caller knows.

        Raises:
            LeaseLost: a newer fence was issued; nothing of the batch was kept.
            LogLost: the log ends before `after`; nothing of the batch was kept.
            Unavailable: no answer; sending the same batch again is safe.
        """
        ...

    async def last(self, log: str) -> EventId | None:
        """Return the id of the newest event."""
        ...

    async def read(
        self,
        log: str,
        after: EventId | None,
        *,
        inclusive: bool = False,
        limit: int = 500,
        wait: int = 0,
    ) -> list[LogEvent]:
        """Read events beyond `after` (from the log's start when None).

        With nothing there, wait up to `wait` ms for something and return what came, maybe nothing.
        A page ends at about 1 MB, too, so only an empty one is the end.
        """
        ...

    async def forget(self, log: str) -> None:
        """Drop a log's events and its cancel flag for good; its fences never go back."""
        ...

    async def ask_to_stop(self, log: str, run: str) -> None:
        """Set the cancel flag; the owner sees it with its next append or renewal."""
        ...


# ---- WakeQueue -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A queue message that names a thread, and maybe the run that a tick found due."""

    thread: str
    incarnation: int
    run: str | None = None


class WakeQueue(Protocol):
    """At-least-once delivery of wake-ups. A lost one is found by the tick."""

    async def send(self, wake: WakeUp, delay: int = 0) -> None:
        """Deliver the wake-up after `delay` ms.

        Raises:
            Unavailable: no answer; what it was sent for is durable, so the tick will find it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Delivery:
    """A wake-up that was handed out; it comes again unless it is acknowledged."""

    wake: WakeUp
    receipt: str


class WakeSource(Protocol):
    """The receiving end of a queue that has to be polled (SQS pushes into Lambda instead)."""

    async def receive(self, *, limit: int, wait: int, hold: int) -> list[Delivery]:
        """Take up to `limit` due wake-ups, waiting up to `wait` ms; each is hidden for `hold`."""
        ...

    async def acknowledge(self, delivery: Delivery) -> None:
        """Remove a wake-up for good."""
        ...


# ---- Model, clock, ids ---------------------------------------------------------------------


class ModelClient(Protocol):
    """One streamed call of a language model."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Stream one answer, ending with exactly one `Finished`.

        Raises:
            ModelFailed: the call failed or the stream broke; `retryable`: whether to try again.
            Misconfigured: a key or an extra is missing.
        """
        ...


class Clock(Protocol):
    """Wall-clock time, which may jump."""

    def now(self) -> int:
        """Return the epoch time in ms."""
        ...

    async def sleep(self, ms: int) -> None:
        """Wait."""
        ...


class Ids(Protocol):
    """Fresh identifiers, made per call and never at import."""

    def new(self) -> str:
        """Return a new id: unguessable, and later ones sort after earlier ones of this process."""
        ...
