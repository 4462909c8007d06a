"""Reading threads and their transcripts (`docs/spec/signals.md` 8.11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.core import entries, keys
from shared.core.errors import Forbidden, NotFound
from shared.core.prompt import recent
from shared.core.records import Thread
from shared.core.rows import rows as fold_rows
from shared.services import journal

if TYPE_CHECKING:
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


class Threads:
    """Reads threads and messages."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend

    async def list(self, resource: str, page: int, per_page: int) -> Page:
        """List a resource's threads, the latest first; items are `records.Thread`."""
        found = await self._backend.table.index(
            keys.threads_of(resource), limit=MOST_THREADS, reverse=True
        )
        begin = page * per_page
        chosen = [Thread.of(item.body) for item in found[begin : begin + per_page]]
        return Page(chosen, len(found), page, per_page)

    async def get(self, thread: str) -> Thread | None:
        """Return a thread, or None where there is none."""
        stored = await self._backend.table.get(keys.thread(thread), keys.THREAD)
        found = Thread.of(stored.body) if stored else None
        return None if found is None or found.deleted else found

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
        found = await self.get(thread)
        if found is None:
            raise NotFound("Thread not found")
        if resource is not None and found.resource != resource:
            raise Forbidden("Access denied: thread belongs to a different resource")
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
