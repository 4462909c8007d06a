"""The one door of a thread: a signal is validated, stored and announced (`docs/protocols.md` A)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shared.core import keys
from shared.core.errors import (
    BadRequest,
    ConditionFailed,
    NotFound,
    Unavailable,
)
from shared.core.limits import check_id, check_size
from shared.core.options import parse_options
from shared.core.records import Active, Run
from shared.core.route import Behaviour, route
from shared.core.signals import with_attributes
from shared.services.acceptance import Accepted, Attempt, Request, hash_of, judge
from shared.services.door import announce, check_owner, living, read_active
from shared.services.stopping import Stopping
from shared.services.waiting import Waits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.signals import Signal
    from shared.services.context import Backend

__all__ = ["Accept", "Accepted", "Behaviour", "Target"]

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
        self._stopping, self._waits = Stopping(backend), Waits(backend)

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
        """Ask the active run to stop (`stopping.Stopping.abort`)."""
        return await self._stopping.abort(thread, resource, expected_run)

    async def cancel_run(self, run: str, resource: str | None) -> None:
        """Ask a run to stop, active or not (`stopping.Stopping.cancel_run`)."""
        await self._stopping.cancel_run(run, resource)

    async def cancel_waiting(self, thread: str, resource: str | None, signal_id: str) -> bool:
        """Take a signal back that nobody took yet (`waiting.Waits.cancel`)."""
        return await self._waits.cancel(thread, resource, signal_id)

    async def _resolve(self, target: Target) -> tuple[Target, int | None]:
        """Fill in thread and resource from the run that the target names (2.4.3).

        Also give the incarnation that the run belongs to, if there is such a run. Whose it is,
        its thread tells, which may have been transferred since.
        """
        if target.run is None:
            return target, None
        stored = await self._backend.table.get(keys.run(target.run), keys.RUN)
        if stored is None:
            if target.thread is None or target.resource is None:
                raise NotFound("No active agent run found for signal target")
            return target, None
        run = Run.of(stored.body)
        if target.thread not in (None, run.thread):
            raise BadRequest("threadId is not the thread of runId", "threadId")
        resource = target.resource or run.resource
        return replace(target, thread=run.thread, resource=resource), run.incarnation

    async def _attempt(self, asked: Request) -> Accepted | None:
        """Decide and commit once; None when the thread changed and must be looked at again."""
        stored, active_item = await read_active(self._backend, asked.thread)
        thread = living(stored)
        check_owner(thread, asked.resource)
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
            await announce(self._backend, asked.thread, attempt.incarnation)
        return accepted


def _check_ids(target: Target) -> None:
    """Check what is given, before anything is read (A1); a run names its thread itself."""
    for value, field in (
        (target.thread, "threadId"),
        (target.resource, "resourceId"),
        (target.run, "runId"),
    ):
        if value is not None or (target.run is None and field != "runId"):
            check_id(value, field)
