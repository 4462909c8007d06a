"""Keeping leases alive while the event loop is busy (`docs/protocols.md` B1, C3).

One thread per process renews the leases that are kept. It lives as long as there is one, so it
ends with the invocation, and a tool that blocks the event loop cannot cost the lease.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from shared.core.errors import LeaseLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from shared.ports import Clock, Coordinator, Lease


log = logging.getLogger(__name__)


class Beat:
    """One lease that is being kept.

    `halt` is done when work under it must stop: the lease is lost, or a run was asked to stop.
    """

    def __init__(self, lease: Lease, valid_until: int) -> None:
        """Begin with the lease as acquired."""
        self.lease = lease
        self.valid_until = valid_until
        self.lost = False
        self._run: str | None = None
        self._stop_asked: str | None = None
        self.halt: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def watch(self, run: str) -> None:
        """From now on, halt when this run is asked to stop."""
        self._run = run
        if self.halt.done() and not self.lost:
            self.halt = asyncio.get_running_loop().create_future()
        if self._stop_asked == run:
            self._halt()

    def extend(self, until: int) -> None:
        """Note at once, from any thread, how long the lease is ours: the loop may be blocked."""
        self.valid_until = max(self.valid_until, until)

    def renewed(self, until: int, stop_asked: str | None) -> None:
        """Note a renewal that was sent `ttl` before `until`, and the cancel flag that it read."""
        self.extend(until)
        self._stop_asked = stop_asked
        if stop_asked is not None and stop_asked == self._run:
            self._halt()

    def lose(self) -> None:
        """Note that another owner may be at work."""
        self.lost = True
        self._halt()

    def check(self, now: int) -> None:
        """Let nothing start unless the lease is ours by the wall clock (C3, B4).

        Raises:
            LeaseLost: it is not.
        """
        if self.lost or now >= self.valid_until:
            raise LeaseLost("the lease was not renewed in time")

    def _halt(self) -> None:
        if not self.halt.done():
            self.halt.set_result(None)


class Heartbeat:
    """Renews every lease that is kept, each `interval` ms."""

    def __init__(self, coordinator: Coordinator, clock: Clock, ttl: int, interval: int) -> None:
        """Start nothing yet."""
        self._coordinator, self._clock = coordinator, clock
        self._ttl, self._interval = ttl, interval
        self._beats: dict[Beat, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @asynccontextmanager
    async def keep(self, lease: Lease, acquired_at: int) -> AsyncIterator[Beat]:
        """Renew the lease until the block ends; it is not released."""
        beat = Beat(lease, acquired_at + self._ttl)
        with self._lock:
            self._beats[beat] = asyncio.get_running_loop()
            if self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
                self._thread.start()
        try:
            yield beat
        finally:
            with self._lock:
                self._beats.pop(beat, None)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._interval / 1000)
            with self._lock:
                beats = list(self._beats.items())
                if not beats:
                    self._thread = None
                    return
            for beat, loop in beats:
                self._renew(beat, loop)

    def _renew(self, beat: Beat, loop: asyncio.AbstractEventLoop) -> None:
        now = self._clock.now()
        try:
            cancelled = self._coordinator.renew(beat.lease, self._ttl)
        except LeaseLost:
            self._tell(loop, beat.lose)
        except Unavailable:
            log.debug("no answer: `valid_until` stays, and runs out if this goes on")
        except Exception:
            log.exception("a renewal of %s failed", beat.lease.log)
        else:
            until = now + self._ttl
            beat.extend(until)
            self._tell(loop, lambda: beat.renewed(until, cancelled))

    @staticmethod
    def _tell(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing runs under this lease
            loop.call_soon_threadsafe(call)
