"""What one acceptance writes, and what a refused one means (`docs/protocols.md` A3 to A6)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic_core import to_json

from shared.core import keys
from shared.core.errors import Conflict
from shared.core.records import Active, InboxItem, Receipt, Run, Thread
from shared.ports import ABSENT, Index, Put
from shared.services.door import living

if TYPE_CHECKING:
    from shared.core.errors import ConditionFailed
    from shared.core.records import ReceiptState
    from shared.core.route import Behaviour, Route
    from shared.core.signals import Signal
    from shared.ports import Expect, Item, Write
    from shared.settings import Settings


@dataclass(frozen=True, slots=True)
class Request:
    """One call of `send`, fixed for all its attempts.

    `run`: the run that the caller named, and `incarnation` the one of the thread that it is of.
    """

    agent: str
    thread: str
    resource: str
    run: str | None
    incarnation: int | None
    signal: Signal
    behaviour: Behaviour
    queue: bool
    keys: tuple[str, ...]
    hash: str
    nonce: str
    now: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was answered. `run` is the answer's `runId` (`docs/spec/signals.md` 8.7.1)."""

    action: str
    run: str
    signal: Signal


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to store a request, as it was routed.

    `run`: the run it is for, or a fresh id; `item`: a fresh name for an inbox item; `thread`: the
    thread's stored record, which may be a tombstone.
    """

    request: Request
    route: Route
    signal: Signal
    run: str
    item: str
    thread: Item | None

    @property
    def incarnation(self) -> int:
        """The incarnation of the thread that is written to."""
        return Thread.of(self.thread.body).incarnation if self.thread else 1

    @property
    def partition(self) -> str:
        """Where it is written."""
        return keys.partition(self.request.thread, self.incarnation)

    @property
    def receipt(self) -> Receipt:
        """What is answered, and what became of the signal so far (A5)."""
        asked, chosen = self.request, self.route
        return Receipt(
            signal=self.signal.id,
            state=_first_state(chosen),
            action=chosen.action,
            answered_run=self.run if chosen.action in ("wake", "deliver") else asked.run,
            nonce=asked.nonce,
            hash=asked.hash,
            created_at=self.signal.created_at,
            accepted_at=asked.now,
            item=self.sort,
        )

    @property
    def sort(self) -> str | None:
        """The sort key of the inbox item, if there is to be one."""
        kind = self.route.kind
        return keys.inbox(2 if kind in ("wake", "queue") else 1, self.item) if kind else None

    @property
    def answer(self) -> Accepted:
        """What the caller is told if this is stored."""
        receipt = self.receipt
        return Accepted(receipt.action, receipt.answered_run or self.signal.id, self.signal)

    def writes(self, settings: Settings) -> list[Write]:
        """Make the one commit (A3)."""
        receipt, expires = self.receipt.body(), self.request.now + settings.receipt_ttl
        lasting = None if self.route.kind else expires
        kept = {"receipt": receipt}
        writes: list[Write] = [
            Put(self.partition, keys.receipt(self.signal.id), receipt, ABSENT, expires=lasting)
        ]
        for key in self.request.keys:
            sort = keys.idempotency(key)
            writes.append(Put(self.partition, sort, kept, ABSENT, expires=expires))
        if living(self.thread) is None:
            writes.append(self._new_thread())
        if self.route.kind:
            writes += self._inbox_writes(settings)
        return writes

    def _inbox_writes(self, settings: Settings) -> list[Write]:
        asked, kind, sort = self.request, self.route.kind, self.sort
        assert kind is not None  # noqa: S101 - for the type checker
        assert sort is not None  # noqa: S101 - for the type checker
        owns = kind in ("wake", "queue")
        common = {
            "run": self.run,
            "agent": asked.agent,
            "thread": asked.thread,
            "resource": asked.resource,
            "incarnation": self.incarnation,
            "options": dict(asked.behaviour.options) if owns else {},
        }
        item = InboxItem(
            kind=kind,
            signal=self.signal.to_record(),
            receipt=self.receipt,
            accepted_at=asked.now,
            **common,
        )
        due = due_inbox(asked.thread, asked.now, settings)
        writes: list[Write] = [Put(self.partition, sort, item.body(), ABSENT, due)]
        if owns:
            head = Run(status="prepared", created_at=asked.now, **common)
            writes.append(Put(keys.run(self.run), keys.RUN, head.body(), ABSENT))
        if kind == "wake":
            active = Active(run=self.run, agent=asked.agent, status="reserved", item=sort)
            writes.append(Put(self.partition, keys.ACTIVE, active.body(), ABSENT))
        return writes

    def _new_thread(self) -> Put:
        """Make the thread, in the place of a deleted one if there was one (J1)."""
        asked = self.request
        thread = Thread(
            thread=asked.thread,
            resource=asked.resource,
            incarnation=self.incarnation,
            created_at=asked.now,
            updated_at=asked.now,
        )
        index = Index(keys.threads_of(asked.resource), asked.now)
        expect: Expect = self.thread.version if self.thread else ABSENT
        return Put(keys.thread(asked.thread), keys.THREAD, thread.body(), expect, index)


def judge(failed: ConditionFailed, asked: Request, signal: Signal) -> Accepted | None:
    """Tell a repeat, a lost reply and a race apart, in the order of A6."""
    for failure in failed.failures:
        if failure.stored is None or failure.write.sort[:4] not in ("SIG#", "KEY#"):
            continue
        body = failure.stored.body
        first = Receipt.of(body.get("receipt", body))
        if first.nonce != asked.nonce and first.hash != asked.hash:
            raise Conflict(
                f"signal id or idempotency key of {first.signal!r} was used for another "
                "request; use a new one"
            )
        said = replace(
            signal,
            id=first.signal,
            created_at=first.created_at,
            accepted_at=first.accepted_at,
        )
        return Accepted(first.action, first.answered_run or first.signal, said)
    return None


def due_inbox(thread: str, now: int, settings: Settings) -> Index:
    """Index an inbox item for the tick, in case that nobody is told of it."""
    return Index(keys.due_inbox(keys.shard(thread)), now + settings.tick)


def hash_of(body: object) -> str:
    """Give what tells one request from another under the same key."""
    return hashlib.sha256(to_json(body)).hexdigest()


def _first_state(chosen: Route) -> ReceiptState:
    if chosen.kind is None:
        return "discarded"
    return "queued" if chosen.kind == "queue" else "accepted"
