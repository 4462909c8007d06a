"""Making threads, and changing what they are called and whose they are (signals 8.11).

Each change is conditional on the version that it was made from, so that none is lost, and none
brings a deleted thread back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.core import keys
from shared.core.errors import BadRequest, ConditionFailed, Conflict, NotFound, Unavailable
from shared.core.limits import MAX_THREAD, check_id, check_object, check_size, check_text
from shared.core.records import Thread
from shared.ports import ABSENT, Check, Index, Put
from shared.services.door import check_owner, living

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shared.ports import Expect, Item, Write
    from shared.services.context import Backend

    Attempt = Callable[[Item | None, Thread | None], Awaitable[Thread]]

ATTEMPTS = 20


class Editing:
    """Creates, updates and transfers threads."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend

    async def create(
        self,
        thread: str | None,
        resource: str,
        title: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Thread:
        """Make a thread; of one that is there, title and metadata are set if they are given.

        Raises:
            BadRequest, TooLarge: nothing was stored; the text says what to change.
            Forbidden: there is one, and it belongs to another resource.
            Unavailable: no answer.
        """
        name = check_id(thread or self._backend.ids.new(), "threadId")
        check_id(resource, "resourceId")
        changes = _checked(title, metadata)

        async def attempt(stored: Item | None, known: Thread | None) -> Thread:
            check_owner(known, resource)
            if known:
                return await self._put(stored, known, changes)
            now = self._backend.clock.now()
            incarnation = Thread.of(stored.body).incarnation if stored else 1
            made = Thread(
                thread=name,
                resource=resource,
                incarnation=incarnation,
                created_at=now,
                updated_at=now,
            )
            return await self._put(stored, made, {"updated_at": now, **changes})

        return await self._until_stored(name, attempt)

    async def update(
        self,
        thread: str,
        resource: str | None,
        title: str | None = None,
        metadata: dict[str, Any] | None = None,
        owner: str | None = None,
    ) -> Thread:
        """Set the title, and replace the metadata, if they are given.

        `owner`: whose the caller says that it is from now on, which must be as before.

        Raises:
            BadRequest, TooLarge: nothing was stored; the text says what to change.
            NotFound: there is no such thread.
            Forbidden: it belongs to another resource.
            Unavailable: no answer.
        """
        changes = _checked(title, metadata)

        async def attempt(stored: Item | None, known: Thread | None) -> Thread:
            known = _there(known, resource)
            if owner not in (None, known.resource):
                text = "resourceId cannot be changed here; use POST …/transfer"
                raise BadRequest(text, "resourceId")
            return await self._put(stored, known, changes)

        return await self._until_stored(thread, attempt)

    async def transfer(self, thread: str, resource: str | None, to: str) -> Thread:
        """Give a thread with all its messages to another resource.

        Nothing may run or wait in it: that belongs to the old owner. A send that overlaps counts
        as before it.

        Raises:
            BadRequest: `to` cannot be an owner.
            NotFound: there is no such thread.
            Forbidden: it belongs to another resource.
            Conflict: a run is active, or signals wait.
            Unavailable: no answer.
        """
        check_id(to, "resourceId")

        async def attempt(stored: Item | None, known: Thread | None) -> Thread:
            known = _there(known, resource)
            if known.resource == to:
                return known
            table, partition = self._backend.table, keys.partition(thread, known.incarnation)
            waits = await table.query(partition, keys.INBOX_PREFIX, limit=1)
            if waits or await table.get(partition, keys.ACTIVE):
                raise Conflict("a run is active or waits in the thread; transfer it afterwards")
            idle = Check(partition, keys.ACTIVE, ABSENT)
            return await self._put(stored, known, {"resource": to}, idle)

        return await self._until_stored(thread, attempt)

    async def _until_stored(self, thread: str, attempt: Attempt) -> Thread:
        check_id(thread, "threadId")
        for _ in range(ATTEMPTS):
            stored = await self._backend.table.get(keys.thread(thread), keys.THREAD)
            try:
                return await attempt(stored, living(stored))
            except ConditionFailed:
                continue  # somebody else changed it: look again
        raise Unavailable("the thread changes too fast; try again")

    async def _put(
        self, stored: Item | None, known: Thread, changes: dict[str, Any], *more: Write
    ) -> Thread:
        if not changes:
            return known
        now = max(self._backend.clock.now(), known.updated_at)
        changed = known.model_copy(update={"updated_at": now, **changes})
        expect: Expect = stored.version if stored else ABSENT
        index = Index(keys.threads_of(changed.resource), changed.updated_at)
        put = Put(keys.thread(known.thread), keys.THREAD, changed.body(), expect, index)
        await self._backend.table.commit([put, *more])
        return changed


def _there(known: Thread | None, resource: str | None) -> Thread:
    if known is None:
        raise NotFound("Thread not found")
    check_owner(known, resource)
    return known


def _checked(title: str | None, metadata: dict[str, Any] | None) -> dict[str, Any]:
    """Give what is to change, if it can be stored."""
    changes: dict[str, Any] = {}
    if title is not None:
        changes["title"] = check_text(title, "title")
    if metadata is not None:
        changes["metadata"] = check_object(metadata, "metadata")
    check_size(changes, "metadata" if metadata else "title", MAX_THREAD)
    return changes
