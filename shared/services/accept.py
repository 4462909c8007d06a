"""The one door of a thread: a signal is validated, stored and announced (`docs/protocols.md` A)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic_core import to_json

from shared.core import keys
from shared.core.errors import (
    BadRequest,
    ConditionFailed,
    Conflict,
    Forbidden,
    NotFound,
    Unavailable,
)
from shared.core.limits import check_id, check_size
from shared.core.options import parse_options
from shared.core.records import Active, InboxItem, Receipt, Run, Thread
from shared.core.route import Behaviour, Route, route
from shared.core.signals import Signal, with_attributes
from shared.ports import ABSENT, Index, Put, WakeUp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.records import ItemKind, ReceiptState
    from shared.ports import Expect, Item, Write
    from shared.services.context import Backend

__all__ = ["Accept", "Accepted", "Behaviour", "Target"]

log = logging.getLogger(__name__)

ATTEMPTS = 20
RETRY_PAUSE = 100


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a signal is for: an agent in a thread of a resource, or one of its runs."""

    agent: str
    thread: str | None
    resource: str | None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was answered. `run` is the answer's `runId` (`docs/spec/signals.md` 8.7.1)."""

    action: str
    run: str
    signal: Signal


@dataclass(frozen=True, slots=True)
class _Request:
    """One call of `send`, fixed for all its attempts."""

    agent: str
    thread: str
    resource: str
    run: str | None
    signal: Signal
    behaviour: Behaviour
    queue: bool
    keys: tuple[str, ...]
    hash: str
    nonce: str
    now: int


class Accept:
    """Takes signals and cancels into a thread's inbox."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend

    async def send(
        self,
        target: Target,
        signal: Signal,
        behaviour: Behaviour | None = None,
        *,
        keys: Sequence[str] = (),
        queue: bool = False,
        request: object = None,
    ) -> Accepted:
        """Store a signal and announce it; when this returns, the signal cannot be lost.

        `keys` are idempotency keys: a repeat gets the first answer. `request`: the caller's body,
        by which a repeat is told from another request under the same key.

        Raises:
            BadRequest, TooLarge: nothing was stored; the text says what to change.
            NotFound: no such agent, or no thread for the run.
            Forbidden: the thread belongs to another resource.
            Conflict: the id or key was used for another request.
            Unavailable: nothing is known to be stored; sending again is safe with a key.
        """
        behaviour = behaviour or Behaviour()
        behaviour = replace(behaviour, options=parse_options(behaviour.options))
        self._backend.app.agent(target.agent)
        for branch in (behaviour.active_attributes, behaviour.idle_attributes):
            check_size(with_attributes(signal, branch).to_record(), "signal")
        _check_ids(target)
        target = await self._resolve(target)
        body = request if request is not None else [signal.to_record(), str(behaviour), queue]
        asked = _Request(
            agent=target.agent,
            thread=check_id(target.thread, "threadId"),
            resource=check_id(target.resource, "resourceId"),
            run=target.run,
            signal=replace(signal, accepted_at=self._backend.clock.now()),
            behaviour=behaviour,
            queue=queue,
            keys=tuple(keys),
            hash=_hash([target.agent, target.thread, body]),
            nonce=self._backend.ids.new(),
            now=self._backend.clock.now(),
        )
        for _ in range(ATTEMPTS):
            accepted = await self._attempt(asked)
            if accepted:
                return accepted
        raise Unavailable("the thread changes too fast; try again")

    async def abort(
        self, thread: str, resource: str | None, expected_run: str | None = None
    ) -> bool:
        """Ask the active run to stop (A9); False when there is none, or not the expected one.

        Raises:
            Forbidden: the thread belongs to another resource.
        """
        check_id(thread, "threadId")
        stored, active_item = await self._read(thread)
        known = _living(stored)
        _check_owner(known, resource)
        if known is None or active_item is None:
            return False
        active = Active.of(active_item.body)
        if expected_run is not None and active.run != expected_run:
            return False
        now = self._backend.clock.now()
        item = InboxItem(
            kind="cancel",
            run=active.run,
            agent=active.agent,
            thread=thread,
            resource=known.resource,
            incarnation=known.incarnation,
            accepted_at=now,
        )
        partition = keys.partition(thread, known.incarnation)
        sort = keys.cancel(active.run)
        try:
            await self._backend.table.commit(
                [Put(partition, sort, item.body(), ABSENT, self._due(thread, now))]
            )
        except ConditionFailed:
            log.debug("run %s is being cancelled already", active.run)
        try:
            await self._backend.coordinator.ask_to_stop(partition, active.run)
        except Unavailable:
            log.warning("run %s sees its cancel at its next drain only", active.run)
        await self._announce(thread, known.incarnation)
        return True

    async def _resolve(self, target: Target) -> Target:
        """Fill in thread and resource from the run that the target names (2.4.3)."""
        if target.run is None:
            return target
        stored = await self._backend.table.get(keys.run(target.run), keys.RUN)
        if stored is None:
            if target.thread is None or target.resource is None:
                raise NotFound("No active agent run found for signal target")
            return target
        run = Run.of(stored.body)
        if target.resource not in (None, run.resource):
            raise Forbidden("Access denied: run belongs to a different resource")
        if target.thread not in (None, run.thread):
            raise BadRequest("threadId is not the thread of runId", "threadId")
        return replace(target, thread=run.thread, resource=run.resource)

    async def _read(self, thread: str) -> tuple[Item | None, Item | None]:
        """Read the thread and its active run together, guessing incarnation 1 (A2)."""
        table = self._backend.table
        stored, active = await asyncio.gather(
            table.get(keys.thread(thread), keys.THREAD),
            table.get(keys.partition(thread, 1), keys.ACTIVE),
        )
        incarnation = Thread.of(stored.body).incarnation if stored else 1
        if incarnation != 1:
            active = await table.get(keys.partition(thread, incarnation), keys.ACTIVE)
        return stored, active

    async def _attempt(self, asked: _Request) -> Accepted | None:
        """Decide and commit once; None when the thread changed and must be looked at again."""
        stored, active_item = await self._read(asked.thread)
        _check_owner(_living(stored), asked.resource)
        active = Active.of(active_item.body) if active_item else None
        chosen = route(
            asked.behaviour,
            active,
            asked.agent,
            queue=asked.queue,
            transient=asked.signal.transient,
        )
        branch = asked.behaviour.active_attributes if active else asked.behaviour.idle_attributes
        signal = with_attributes(asked.signal, branch)
        run = chosen.run or self._backend.ids.new()
        incarnation = Thread.of(stored.body).incarnation if stored else 1
        writes, receipt = self._writes(asked, chosen, signal, run, incarnation, stored)
        accepted: Accepted | None = Accepted(
            chosen.action, receipt.answered_run or signal.id, signal
        )
        try:
            await self._backend.table.commit(writes)
        except ConditionFailed as failed:
            accepted = _judge(failed, asked, signal)
        except Unavailable:
            # It may have been applied: the next attempt meets our nonce then (A6).
            await self._backend.clock.sleep(RETRY_PAUSE)
            return None
        if accepted and accepted.action != "discard":
            await self._announce(asked.thread, incarnation)
        return accepted

    def _writes(
        self,
        asked: _Request,
        chosen: Route,
        signal: Signal,
        run: str,
        incarnation: int,
        thread: Item | None,
    ) -> tuple[list[Write], Receipt]:
        partition = keys.partition(asked.thread, incarnation)
        answered = run if chosen.action in ("wake", "deliver") else asked.run
        receipt = Receipt(
            signal=signal.id,
            state=_first_state(chosen),
            action=chosen.action,
            answered_run=answered,
            nonce=asked.nonce,
            hash=asked.hash,
            created_at=signal.created_at,
            accepted_at=asked.now,
        )
        expires = asked.now + self._backend.settings.receipt_ttl
        writes: list[Write] = [
            Put(
                partition,
                keys.receipt(signal.id),
                receipt.body(),
                ABSENT,
                expires=None if chosen.kind else expires,
            ),
            *(
                Put(
                    partition,
                    keys.idempotency(key),
                    {"receipt": receipt.body()},
                    ABSENT,
                    expires=expires,
                )
                for key in asked.keys
            ),
        ]
        if _living(thread) is None:
            writes.append(_new_thread(asked, incarnation, thread))
        if chosen.kind:
            writes += self._inbox_writes(asked, chosen.kind, signal, run, incarnation, receipt)
        return writes, receipt

    def _inbox_writes(
        self,
        asked: _Request,
        kind: ItemKind,
        signal: Signal,
        run: str,
        incarnation: int,
        receipt: Receipt,
    ) -> list[Write]:
        partition = keys.partition(asked.thread, incarnation)
        owns = kind in ("wake", "queue")
        sort = keys.inbox(2 if owns else 1, self._backend.ids.new())
        common = {
            "run": run,
            "agent": asked.agent,
            "thread": asked.thread,
            "resource": asked.resource,
            "incarnation": incarnation,
            "options": dict(asked.behaviour.options) if owns else {},
        }
        item = InboxItem(
            kind=kind,
            signal=signal.to_record(),
            receipt=receipt,
            accepted_at=asked.now,
            **common,
        )
        writes: list[Write] = [
            Put(partition, sort, item.body(), ABSENT, self._due(asked.thread, asked.now))
        ]
        if owns:
            head = Run(status="prepared", created_at=asked.now, **common)
            writes.append(Put(keys.run(run), keys.RUN, head.body(), ABSENT))
        if kind == "wake":
            active = Active(run=run, agent=asked.agent, status="reserved", item=sort)
            writes.append(Put(partition, keys.ACTIVE, active.body(), ABSENT))
        return writes

    def _due(self, thread: str, now: int) -> Index:
        return Index(keys.due_inbox(keys.shard(thread)), now + self._backend.settings.tick)

    async def _announce(self, thread: str, incarnation: int) -> None:
        try:
            await self._backend.queue.send(WakeUp(thread, incarnation))
        except Unavailable:
            log.warning("a wake-up for thread %s could not be sent; the tick finds it", thread)


def _living(stored: Item | None) -> Thread | None:
    """Read a thread's record; a tombstone is none."""
    thread = Thread.of(stored.body) if stored else None
    return None if thread is None or thread.deleted else thread


def _new_thread(asked: _Request, incarnation: int, tombstone: Item | None) -> Put:
    """Make the thread, in the place of a deleted one if there was one (J1)."""
    thread = Thread(
        thread=asked.thread,
        resource=asked.resource,
        incarnation=incarnation,
        created_at=asked.now,
        updated_at=asked.now,
    )
    index = Index(keys.threads_of(asked.resource), asked.now)
    expect: Expect = tombstone.version if tombstone else ABSENT
    return Put(keys.thread(asked.thread), keys.THREAD, thread.body(), expect, index)


def _check_ids(target: Target) -> None:
    """Check what is given, before anything is read (A1); a run names its thread itself."""
    for value, field in (
        (target.thread, "threadId"),
        (target.resource, "resourceId"),
        (target.run, "runId"),
    ):
        if value is not None or (target.run is None and field != "runId"):
            check_id(value, field)


def _first_state(chosen: Route) -> ReceiptState:
    if chosen.kind is None:
        return "discarded"
    return "queued" if chosen.kind == "queue" else "accepted"


def _check_owner(thread: Thread | None, resource: str | None) -> None:
    if thread and resource is not None and thread.resource != resource:
        raise Forbidden("Access denied: thread belongs to a different resource")


def _hash(body: object) -> str:
    return hashlib.sha256(to_json(body)).hexdigest()


def _judge(failed: ConditionFailed, asked: _Request, signal: Signal) -> Accepted | None:
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
