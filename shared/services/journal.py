"""Writing a run's journal: each position once, one put in flight (`docs/protocols.md` C)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.core import entries, keys
from shared.core.errors import ConditionFailed, LeaseLost, Unavailable
from shared.ports import ABSENT, Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shared.core.entries import AnyEntry
    from shared.ports import Clock, Item, Table, Write
    from shared.services.heartbeat import Beat

    Rest = Callable[[bool], Awaitable[Sequence[Write]]]

RETRY_PAUSE = 100


class RunLost(LeaseLost):
    """Another owner wrote at our position, or the run is no longer the thread's (C2)."""

    code = "RUN_LOST"


class Journal:
    """The journal of one thread incarnation, as one owner writes it."""

    def __init__(self, table: Table, partition: str, nonce: str, beat: Beat, clock: Clock) -> None:
        """Write under `nonce`, which no other owner has."""
        self._table, self.partition, self.nonce = table, partition, nonce
        self._beat, self._clock = beat, clock

    async def write(
        self, start: int, position: int, entry: AnyEntry, rest: Rest | None = None
    ) -> None:
        """Commit an entry at its position, together with `rest(again)`.

        `rest` makes the other writes of the commit; it is asked again, with `again` true, when
        they met something unexpected, and must then read anew.

        Raises:
            RunLost: the position holds another owner's entry.
            LeaseLost: no commit was acknowledged while the lease lasted.
        """
        sort = keys.step(start, position)
        put = Put(
            self.partition, sort, entry.model_copy(update={"nonce": self.nonce}).body(), ABSENT
        )
        again = False
        while True:
            self._beat.check(self._clock.now())
            writes = [put, *(await rest(again) if rest else ())]
            try:
                await self._table.commit(writes)
            except ConditionFailed as failed:
                mine = self._is_mine(failed, sort)
                if mine is not None:
                    if mine:
                        return
                    raise RunLost(f"another owner wrote {sort}") from failed
                again = True
            except Unavailable:
                if await self._holds_mine(sort):
                    return
                await self._clock.sleep(RETRY_PAUSE)
                again = True
            else:
                return

    def _is_mine(self, failed: ConditionFailed, sort: str) -> bool | None:
        """Tell whose entry stands at the position; None when nothing does."""
        for failure in failed.failures:
            if failure.write.sort == sort and failure.stored:
                return bool(failure.stored.body.get("nonce") == self.nonce)
        return None

    async def _holds_mine(self, sort: str) -> bool:
        """Look whether a commit without an answer was applied."""
        try:
            stored = await self._table.get(self.partition, sort)
        except Unavailable:
            return False
        if stored is None:
            return False
        if stored.body.get("nonce") != self.nonce:
            raise RunLost(f"another owner wrote {sort}")
        return True


async def newest(table: Table, partition: str, limit: int) -> list[Item]:
    """Read the newest entries of a thread, oldest first."""
    items = await table.query(partition, keys.STEP_PREFIX, limit=limit, reverse=True)
    return items[::-1]


async def of_run(table: Table, partition: str, start: int) -> list[AnyEntry]:
    """Read all entries of one run, in order."""
    items = await table.query(partition, keys.run_steps(start))
    return [entries.read(item.body) for item in items]


async def reaching(
    table: Table, partition: str, tail: list[Item], rows: int, page: int = 200
) -> list[AnyEntry]:
    """Read back from `tail` (newest entries, oldest first) far enough for `rows` message rows."""
    if not tail or rows <= 0:
        return []
    items = list(tail)
    floor = int(items[-1].body["rows"]) - rows
    while int(items[0].body["rows"]) > max(floor, 0):
        older = await table.query(
            partition, keys.STEP_PREFIX, after=items[0].sort, limit=page, reverse=True
        )
        if not older:
            break
        items = older[::-1] + items
    return [entries.read(item.body) for item in items]
