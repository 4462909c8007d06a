"""Writing a run's journal: each position once, one put in flight (`docs/protocols.md` C)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.core import entries, keys
from shared.core.errors import ConditionFailed, LeaseLost, Unavailable
from shared.ports import ABSENT, Put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from shared.core.entries import AnyEntry
    from shared.ports import Clock, Item, Table, Write
    from shared.services.heartbeat import Beat

    Rest = Callable[[bool], Awaitable[Sequence[Write]]]

RETRY_PAUSE = 100
PAGE = 100
"""Entries in one reading of history: five turns of several tool steps, and more."""


class RunLost(LeaseLost):
    """Another owner wrote at our position, or the run is no longer the thread's (C2)."""

    code = "RUN_LOST"


class Again(ConditionFailed):
    """The thread is no longer as it was read; let go of it and look again."""

    def __init__(self, message: str) -> None:
        """Say what changed."""
        super().__init__(())
        self.args = (message,)


class Stale(Again):
    """What the entry was built on has changed; build it anew, in the same place."""


class Journal:
    """The journal of one thread incarnation, as one owner writes it."""

    def __init__(self, table: Table, partition: str, owner: str, beat: Beat, clock: Clock) -> None:
        """Write as `owner`, a name that no other acquisition has."""
        self._table, self.partition, self._owner = table, partition, owner
        self._beat, self._clock = beat, clock
        self._written = 0

    async def write(
        self, start: int, position: int, entry: AnyEntry, rest: Rest | None = None
    ) -> None:
        """Commit an entry at its position, together with `rest(again)`.

        `rest` makes the other writes of the commit; it is asked again, with `again` true, when
        they met something unexpected, and must then read anew.

        Raises:
            RunLost: the position holds another owner's entry.
            Stale: `rest` has nothing to write any more, and the entry is not written.
            Again: as before, but it may be, or an earlier entry of ours landed there after all.
            LeaseLost: no commit was acknowledged while the lease lasted.
        """
        sort = keys.step(start, position)
        self._written += 1
        nonce = f"{self._owner}.{self._written}"
        put = Put(self.partition, sort, entry.model_copy(update={"nonce": nonce}).body(), ABSENT)
        again = unknown = False
        while True:
            self._beat.check(self._clock.now())
            try:
                writes = [put, *(await rest(again) if rest else ())]
            except Stale as stale:
                if unknown:
                    # The entry may land yet: nothing else may be told or written in its place.
                    raise Again(f"whether {sort} was written is unknown") from stale
                raise
            try:
                await self._table.commit(writes)
            except ConditionFailed as failed:
                stored = next((f.stored for f in failed.failures if f.write.sort == sort), None)
                if self._is_mine(stored, nonce):
                    return
            except Unavailable:
                if self._is_mine(await self._look(sort), nonce):
                    return
                unknown = True
                await self._clock.sleep(RETRY_PAUSE)
            else:
                return
            again = True

    def _is_mine(self, stored: Item | None, nonce: str) -> bool:
        """Tell whether the position holds the entry that is being written, or nothing yet."""
        if stored is None:
            return False
        found = str(stored.body.get("nonce"))
        if found == nonce:
            return True
        if found.startswith(f"{self._owner}."):
            raise Again(f"an earlier entry of ours stands at {stored.sort}")
        raise RunLost(f"another owner wrote {stored.sort}")

    async def _look(self, sort: str) -> Item | None:
        """Look whether a commit without an answer was applied; it may also land later."""
        try:
            return await self._table.get(self.partition, sort)
        except Unavailable:
            return None


async def newest(table: Table, partition: str) -> list[Item]:
    """Read the newest entries of a thread, oldest first: a page, or all there are."""
    items = await table.query(partition, keys.STEP_PREFIX, limit=PAGE, reverse=True)
    return items[::-1]


async def of_run(table: Table, partition: str, start: int) -> list[Item]:
    """Read all entries of one run, in order."""
    return await table.query(partition, keys.run_steps(start))


async def before(table: Table, partition: str, start: int) -> list[Item]:
    """Read the newest entries of the runs before one, oldest first: a page, or all there are."""
    items = await table.query(
        partition, keys.STEP_PREFIX, after=keys.run_steps(start), limit=PAGE, reverse=True
    )
    return items[::-1]


async def back_to(table: Table, partition: str, tail: list[Item], rows: int) -> list[Item]:
    """Read back from `tail` (a page, or all there was), as far as `rows` message rows go."""
    items, page = list(tail), len(tail)
    while page == PAGE and not _reaches(items, rows):
        older = await table.query(
            partition, keys.STEP_PREFIX, after=items[0].sort, limit=PAGE, reverse=True
        )
        items, page = older[::-1] + items, len(older)
    return items


def _reaches(items: list[Item], rows: int) -> bool:
    """Tell whether `items` begin early enough."""
    head = entries.read(items[0].body)
    return not rows or entries.rows_before(head) <= max(int(items[-1].body["rows"]) - rows, 0)


async def since(
    table: Table, partition: str, start: int, page: int = 200
) -> AsyncIterator[tuple[int, int, AnyEntry]]:
    """Read all entries of the run that began at `start` and of those after it, with their place."""
    after = keys.run_steps(start)[:-1]  # sorts just before the entries of that run
    while True:
        items = await table.query(partition, keys.STEP_PREFIX, after=after, limit=page)
        for item in items:
            yield *keys.start_and_position(item.sort), entries.read(item.body)
        if len(items) < page:
            return
        after = items[-1].sort
