"""Reading threads and their transcripts (`docs/spec/signals.md` 8.11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shared.core import entries, keys
from shared.core.errors import Forbidden, NotFound
from shared.core.prompt import recent
from shared.core.records import Receipt, Run, Thread
from shared.core.rows import rows as fold_rows
from shared.services import journal
from shared.services.door import check_owner, living

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.services.context import Backend

MOST_THREADS = 10_000


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, and how long the whole is."""

    items: list[Any]
    total: int
    page: int
    per_page: int

    @property
    def has_more(self) -> bool:
        """Tell whether there is another page."""
        return 0 < (self.page + 1) * self.per_page < self.total


@dataclass(frozen=True, slots=True)
class Order:
    """How threads are listed."""

    field: Literal["createdAt", "updatedAt"] = "updatedAt"
    ascending: bool = False

    def place(self, thread: Thread) -> tuple[int, str]:
        """Give what threads are sorted by."""
        at = thread.created_at if self.field == "createdAt" else thread.updated_at
        return at, thread.thread


BY_UPDATE = Order()
"""The last updated first: the order of the index."""


class Threads:
    """Reads threads and messages."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend

    async def list(
        self,
        resource: str,
        page: int,
        per_page: int,
        *,
        order: Order = BY_UPDATE,
        metadata: Mapping[str, Any] | None = None,
    ) -> Page:
        """List those of a resource's threads that match; items are `records.Thread`.

        `metadata`, if given, is what the threads' own must contain.
        """
        stored = await self._backend.table.index(
            keys.threads_of(resource), limit=MOST_THREADS, reverse=True
        )
        found = [Thread.of(item.body) for item in stored]
        if metadata:
            found = [thread for thread in found if contains(thread.metadata or {}, metadata)]
        if order != BY_UPDATE:
            found.sort(key=order.place, reverse=not order.ascending)
        begin = page * per_page
        return Page(found[begin : begin + per_page], len(found), page, per_page)

    async def get(self, thread: str) -> Thread | None:
        """Return a thread, or None where there is none."""
        stored = await self._backend.table.get(keys.thread(thread), keys.THREAD)
        return living(stored)

    async def owned(self, thread: str, resource: str | None) -> Thread:
        """Return a thread, for a resource that it belongs to.

        Raises:
            NotFound: there is no such thread.
            Forbidden: it belongs to another resource.
        """
        found = await self.get(thread)
        if found is None:
            raise NotFound("Thread not found")
        check_owner(found, resource)
        return found

    async def messages(
        self,
        thread: str,
        resource: str | None,
        page: int,
        per_page: int,
        *,
        ascending: bool = False,
    ) -> Page:
        """Return message rows in order: page 0 holds the newest, with `ascending` the oldest.

        Raises:
            NotFound: there is no such thread.
            Forbidden: it belongs to another resource.
        """
        found = await self.owned(thread, resource)
        table, partition = self._backend.table, keys.partition(thread, found.incarnation)
        tail = await journal.newest(table, partition)
        total = int(tail[-1].body["rows"]) if tail else 0
        end = min((page + 1) * per_page, total) if ascending else total - page * per_page
        begin = max(page * per_page if ascending else end - per_page, 0)
        if end <= begin:
            return Page([], total, page, per_page)
        wanted = total - begin
        items = await journal.back_to(table, partition, tail, wanted)
        stored = recent([entries.read(item.body) for item in items], wanted)
        rows = fold_rows(stored, found.thread, found.resource)
        begin_of_rows = total - len(rows)
        return Page(rows[begin - begin_of_rows : end - begin_of_rows], total, page, per_page)

    async def receipt(self, thread: str, resource: str | None, signal: str) -> Receipt:
        """Return what became of a signal.

        Raises:
            NotFound: there is no such thread; or no such signal, or it was long ago.
            Forbidden: the thread belongs to another resource.
        """
        found = await self.owned(thread, resource)
        partition = keys.partition(thread, found.incarnation)
        stored = await self._backend.table.get(partition, keys.receipt(signal))
        if stored is None:
            raise NotFound("Signal not found")
        return Receipt.of(stored.body)

    async def run(self, run: str, resource: str | None) -> tuple[Run, Thread]:
        """Return a run's head, and its thread, whose owner of today is the run's.

        Raises:
            NotFound: there is no such run; that of a deleted thread is gone, too (J1).
            Forbidden: its thread belongs to another resource.
        """
        stored = await self._backend.table.get(keys.run(run), keys.RUN)
        if stored is None:
            raise NotFound("Run not found")
        head = Run.of(stored.body)
        thread = await self.get(head.thread)
        if thread is None or thread.incarnation != head.incarnation:
            raise NotFound("Run not found")
        if resource not in (None, thread.resource):
            raise Forbidden("Access denied: run belongs to a different resource")
        return head, thread

    async def entries(self, run: str, resource: str | None, page: int, per_page: int) -> Page:
        """Return a run's journal in order; items are pairs of position and entry.

        Raises:
            NotFound, Forbidden: as `run`.
        """
        head, thread = await self.run(run, resource)
        if head.start is None:
            return Page([], 0, page, per_page)
        table, partition = self._backend.table, keys.partition(thread.thread, thread.incarnation)
        steps, begin = keys.run_steps(head.start), page * per_page
        newest = await table.query(partition, steps, limit=1, reverse=True)
        total = keys.start_and_position(newest[0].sort)[1] + 1 if newest else 0
        if begin >= total or not per_page:
            return Page([], total, page, per_page)
        after = keys.step(head.start, begin - 1) if begin else None
        found = await table.query(partition, steps, after=after, limit=per_page)
        shown = [(keys.start_and_position(i.sort)[1], entries.read(i.body)) for i in found]
        return Page(shown, total, page, per_page)


def contains(whole: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Tell whether a JSON object has all the keys of another, with the same values."""
    return all(key in whole and _same(whole[key], value) for key, value in part.items())


def _same(one: Any, other: Any) -> bool:
    """Tell whether two JSON values are the same; for Python, true is 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and contains(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
