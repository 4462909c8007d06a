"""The clock and the ids of this process."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import uuid_utils

_NS_PER_MS = 1_000_000


class SystemClock:
    """Wall-clock time of the machine (implements `Clock`)."""

    def now(self) -> int:
        """Return the epoch time in ms."""
        return time.time_ns() // _NS_PER_MS

    async def sleep(self, ms: int) -> None:
        """Wait."""
        await asyncio.sleep(ms / 1000)


class SystemIds:
    """UUIDs of version 7 as text (implements `Ids`).

    Each is greater than all before it of this process, also within one millisecond and when the
    clock steps back: then the newest one's time is taken and moved on by a millisecond.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest = ""
        os.register_at_fork(after_in_child=self._forget_lock)

    def new(self) -> str:
        """Return a new id."""
        with self._lock:
            made = str(uuid_utils.uuid7())
            if made <= self._newest:
                later = uuid_utils.UUID(self._newest).timestamp + 1
                made = str(uuid_utils.uuid7(nanoseconds=later * _NS_PER_MS))
            self._newest = made
            return made

    def _forget_lock(self) -> None:
        """Replace a lock that another thread may have held at the moment of the fork."""
        self._lock = threading.Lock()
