"""Waking those who wait for something to be written to the file.

A writer of this process wakes them at once, from any thread. Other processes cannot, so while
somebody waits a timer of the waiting event loop looks every 25 ms at SQLite's `data_version`, which
changes whenever another connection commits. One timer serves all that wait on an event loop;
without any of them it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shared.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.adapters.sqlite.database import Database
    from shared.ports import Clock

POLL = 0.025
"""Seconds between two looks at what other processes wrote."""


class Notices:
    """Topics to wait for and to tell about."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._listeners: dict[str, set[Listener]] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    def tell(self, topic: str) -> None:
        """Wake everybody in this process who listens to the topic."""
        if topic not in self._listeners:
            return
        with self._lock:
            listeners = tuple(self._listeners.get(topic, ()))
        for listener in listeners:
            listener.wake_from_any_thread()

    @contextmanager
    def listen(self, topic: str) -> Iterator[Listener]:
        """Listen to a topic; whatever is written from now on ends the listener's next wait."""
        poller = self._poller()
        listener = Listener(poller.loop, self._clock)
        with self._lock:
            self._listeners.setdefault(topic, set()).add(listener)
        poller.listeners.add(listener)
        try:
            poller.start()
            yield listener
        finally:
            poller.listeners.discard(listener)
            with self._lock:
                self._listeners[topic].discard(listener)
                if not self._listeners[topic]:
                    del self._listeners[topic]

    def _poller(self) -> _Poller:
        loop = asyncio.get_running_loop()
        poller: _Poller | None = getattr(self._local, "poller", None)
        if poller is None or poller.loop is not loop:
            poller = self._local.poller = _Poller(self._database, loop)
        return poller


class Listener:
    """One who waits, on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._thread = threading.get_ident()
        self._awake = asyncio.Event()

    async def wait(self, ms: int) -> int:
        """Wait until something was written since the last wait, at most `ms`.

        Returns how much of the time is used up, however the clock was set meanwhile.
        """
        began = self._clock.now()
        timer = self._loop.create_task(self._wake_after(ms))
        try:
            await self._awake.wait()
            over = timer.done()
        finally:
            timer.cancel()
        self._awake.clear()
        return ms if over else min(max(self._clock.now() - began, 0), ms)

    def wake(self) -> None:
        """End the wait; for callers on the event loop."""
        self._awake.set()

    def wake_from_any_thread(self) -> None:
        """End the wait."""
        if threading.get_ident() == self._thread:
            self._awake.set()
            return
        with contextlib.suppress(RuntimeError):  # its event loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._awake.set)

    async def _wake_after(self, ms: int) -> None:
        await self._clock.sleep(ms)
        self._awake.set()


class _Poller:
    """Wakes the listeners of one event loop when another connection has committed."""

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.listeners: set[Listener] = set()
        self._database = database
        self._seen: int | None = None
        self._running = False

    def start(self) -> None:
        if not self._running:
            self._seen = self._version()
            self._running = True
            self.loop.call_later(POLL, self._look)

    def _look(self) -> None:
        if not self.listeners:
            self._running = False
            return
        self.loop.call_later(POLL, self._look)
        # A database that does not answer wakes them too: they ask for themselves, and raise.
        version = None
        with contextlib.suppress(Unavailable):
            version = self._version()
        if version is None or version != self._seen:
            self._seen = version
            for listener in self.listeners:
                listener.wake()

    def _version(self) -> int:
        version: int = self._database.rows("PRAGMA data_version")[0][0]
        return version
