"""The one door of a thread: a signal is validated, stored and announced (`docs/protocols.md` A)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shared.core import keys
from shared.core.errors import (
    BadRequest,
    ConditionFailed,
    Forbidden,
    NotFound,
    Unavailable,
)
from shared.core.limits import check_id, check_size
from shared.core.options import parse_options
from shared.core.records import Active, InboxItem, Run, Thread
from shared.core.route import Behaviour, route
from shared.core.signals import with_attributes
from shared.ports import ABSENT, Put, WakeUp
from shared.services.acceptance import (
    Accepted,
    Attempt,
    Request,
    due_inbox,
    hash_of,
    judge,
    living,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.signals import Signal
    from shared.ports import Item
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
        target, incarnation = await self._resolve(target)
        body = request if request is not None else [signal.to_record(), str(behaviour), queue]
        now = self._backend.clock.now()
        asked = Request(
            agent=target.agent,
            thread=check_id(target.thread, "threadId"),
            resource=check_id(target.resource, "resourceId"),
            run=target.run,
            incarnation=incarnation,
            signal=replace(signal, accepted_at=now),
            behaviour=behaviour,
            queue=queue,
            keys=tuple(keys),
            hash=hash_of([target.agent, target.thread, body]),
            nonce=self._backend.ids.new(),
            now=now,
        )
        return await self._store(asked)

    async def _store(self, asked: Request) -> Accepted:
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
        known = living(stored)
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
            due = due_inbox(thread, now, self._backend.settings)
            await self._backend.table.commit([Put(partition, sort, item.body(), ABSENT, due)])
        except ConditionFailed:
            log.debug("run %s is being cancelled already", active.run)
        try:
            await self._backend.coordinator.ask_to_stop(partition, active.run)
        except Unavailable:
            log.warning("run %s sees its cancel at its next drain only", active.run)
        await self._announce(thread, known.incarnation)
        return True

    async def _resolve(self, target: Target) -> tuple[Target, int | None]:
        """Fill in thread and resource from the run that the target names (2.4.3).

        Also give the incarnation that the run belongs to, if there is such a run.
        """
        if target.run is None:
            return target, None
        stored = await self._backend.table.get(keys.run(target.run), keys.RUN)
        if stored is None:
            if target.thread is None or target.resource is None:
                raise NotFound("No active agent run found for signal target")
            return target, None
        run = Run.of(stored.body)
        if target.resource not in (None, run.resource):
            raise Forbidden("Access denied: run belongs to a different resource")
        if target.thread not in (None, run.thread):
            raise BadRequest("threadId is not the thread of runId", "threadId")
        return replace(target, thread=run.thread, resource=run.resource), run.incarnation

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

    async def _attempt(self, asked: Request) -> Accepted | None:
        """Decide and commit once; None when the thread changed and must be looked at again."""
        stored, active_item = await self._read(asked.thread)
        thread = living(stored)
        _check_owner(thread, asked.resource)
        if asked.incarnation and (thread is None or thread.incarnation != asked.incarnation):
            raise NotFound(f"The thread of run {asked.run} was deleted")
        active = Active.of(active_item.body) if active_item else None
        chosen = route(
            asked.behaviour,
            active,
            asked.agent,
            queue=asked.queue,
            transient=asked.signal.transient,
        )
        branch = asked.behaviour.active_attributes if active else asked.behaviour.idle_attributes
        ids = self._backend.ids
        attempt = Attempt(
            request=asked,
            route=chosen,
            signal=with_attributes(asked.signal, branch),
            run=chosen.run or ids.new(),
            item=ids.new(),
            thread=stored,
        )
        accepted: Accepted | None = attempt.answer
        try:
            await self._backend.table.commit(attempt.writes(self._backend.settings))
        except ConditionFailed as failed:
            accepted = judge(failed, asked, attempt.signal)
        except Unavailable:
            # It may have been applied: the next attempt meets our nonce then (A6).
            await self._backend.clock.sleep(RETRY_PAUSE)
            return None
        if accepted and accepted.action != "discard":
            await self._announce(asked.thread, attempt.incarnation)
        return accepted

    async def _announce(self, thread: str, incarnation: int) -> None:
        try:
            await self._backend.queue.send(WakeUp(thread, incarnation))
        except Unavailable:
            log.warning("a wake-up for thread %s could not be sent; the tick finds it", thread)


def _check_ids(target: Target) -> None:
    """Check what is given, before anything is read (A1); a run names its thread itself."""
    for value, field in (
        (target.thread, "threadId"),
        (target.resource, "resourceId"),
        (target.run, "runId"),
    ):
        if value is not None or (target.run is None and field != "runId"):
            check_id(value, field)


def _check_owner(thread: Thread | None, resource: str | None) -> None:
    if thread and resource is not None and thread.resource != resource:
        raise Forbidden("Access denied: thread belongs to a different resource")
