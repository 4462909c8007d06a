"""Asking runs to stop (`docs/protocols.md` A9)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shared.core import keys
from shared.core.errors import ConditionFailed, Conflict, Unavailable
from shared.core.limits import check_id
from shared.core.records import OVER, Active, InboxItem
from shared.ports import ABSENT, Put
from shared.services.acceptance import due_inbox
from shared.services.door import announce, check_owner, living, read_active
from shared.services.threads import Threads

if TYPE_CHECKING:
    from shared.core.records import Thread
    from shared.services.context import Backend

log = logging.getLogger(__name__)


class Stopping:
    """Puts cancels into a thread's inbox, and sets the Coordinator's flag."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend, self._threads = backend, Threads(backend)

    async def abort(self, thread: str, resource: str | None, expected_run: str | None) -> bool:
        """Ask the active run to stop; False when there is none, or not the expected one.

        Raises:
            Forbidden: the thread belongs to another resource.
        """
        check_id(thread, "threadId")
        stored, active_item = await read_active(self._backend, thread)
        known = living(stored)
        check_owner(known, resource)
        if known is None or active_item is None:
            return False
        active = Active.of(active_item.body)
        if expected_run is not None and active.run != expected_run:
            return False
        await self._ask(known, active.run, active.agent)
        await self._flag(known, active.run)
        return True

    async def cancel_run(self, run: str, resource: str | None) -> None:
        """Ask a run to stop; one that has yet to start ends as it starts.

        Raises:
            NotFound: there is no such run.
            Forbidden: its thread belongs to another resource.
            Conflict: it is over.
        """
        head, thread = await self._threads.run(run, resource)
        if head.status in OVER:
            raise Conflict(f"run {run} is over: {head.status}")
        await self._ask(thread, head.run, head.agent)
        if head.status != "prepared":  # there is one flag, and it may be the active run's
            await self._flag(thread, head.run)

    async def _ask(self, thread: Thread, run: str, agent: str) -> None:
        now = self._backend.clock.now()
        item = InboxItem(
            kind="cancel",
            run=run,
            agent=agent,
            thread=thread.thread,
            resource=thread.resource,
            incarnation=thread.incarnation,
            accepted_at=now,
        )
        partition = keys.partition(thread.thread, thread.incarnation)
        due = due_inbox(thread.thread, now, self._backend.settings)
        try:
            await self._backend.table.commit(
                [Put(partition, keys.cancel(run), item.body(), ABSENT, due)]
            )
        except ConditionFailed:
            log.debug("run %s is being cancelled already", run)
        await announce(self._backend, thread.thread, thread.incarnation)

    async def _flag(self, thread: Thread, run: str) -> None:
        """Let the owner see it at once, best effort."""
        partition = keys.partition(thread.thread, thread.incarnation)
        try:
            await self._backend.coordinator.ask_to_stop(partition, run)
        except Unavailable:
            log.warning("run %s sees its cancel at its next drain only", run)
