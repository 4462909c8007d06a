"""The simplest Table that can be right: a dict. Property tests compare adapters with it."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from shared.core.errors import ConditionFailed
from shared.ports import ABSENT, Check, Delete, Failure, Item, Put

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shared.ports import Clock, Write

Key = tuple[str, str]


class ModelTable:
    """Implements `Table`. Items go in and come out as copies, so that nobody can change them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._items: dict[Key, Item] = {}

    async def get(self, partition: str, sort: str) -> Item | None:
        return self._stored((partition, sort))

    async def query(
        self,
        partition: str,
        prefix: str = "",
        *,
        after: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Item]:
        items = [
            item
            for item in self._live()
            if item.partition == partition
            and item.sort.startswith(prefix)
            and (after is None or (item.sort < after if reverse else item.sort > after))
        ]
        return sorted(items, key=lambda item: item.sort, reverse=reverse)[:limit]

    async def index(
        self,
        group: str,
        *,
        low: int = 0,
        high: int | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[Item]:
        found = [
            (item.index.order, item.partition, item.sort, item)
            for item in self._live()
            if item.index is not None
            and item.index.group == group
            and low <= item.index.order
            and (high is None or item.index.order <= high)
        ]
        return [entry[3] for entry in sorted(found, key=lambda e: e[:3], reverse=reverse)][:limit]

    async def commit(self, writes: Sequence[Write]) -> None:
        failures = [
            Failure(write, stored)
            for write in writes
            if not _holds(write, stored := self._stored((write.partition, write.sort)))
        ]
        if failures:
            raise ConditionFailed(failures)
        for write in writes:
            self._apply(write)

    def _apply(self, write: Write) -> None:
        key = (write.partition, write.sort)
        match write:
            case Put():
                stored = self._stored(key)
                version = stored.version + 1 if stored else 1
                body = deepcopy(dict(write.body))
                self._items[key] = Item(*key, version, body, write.index, write.expires)
            case Delete():
                self._items.pop(key, None)
            case Check():
                pass

    def _stored(self, key: Key) -> Item | None:
        return next((item for item in self._live() if (item.partition, item.sort) == key), None)

    def _live(self) -> Iterable[Item]:
        now = self._clock.now()
        return [
            deepcopy(item)
            for item in self._items.values()
            if item.expires is None or item.expires > now
        ]


def _holds(write: Write, stored: Item | None) -> bool:
    if write.expect is None:
        return True
    return write.expect == (ABSENT if stored is None else stored.version)
