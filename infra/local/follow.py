"""Following a thread over HTTP as an EventSource does: every event once, over reconnects."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx

Chunk = dict[str, Any]
RETRY_AFTER = 0.5
GIVE_UP_AFTER = 60.0
# The server sends a heartbeat at least every 15 s: a longer silence is a dead connection.
SILENCE = 40.0


def sse_events(lines: Iterable[str]) -> Iterator[tuple[str | None, str]]:
    """Yield (id, data) of each event of a text/event-stream; comments and `retry` are skipped."""
    event_id: str | None = None
    data: list[str] = []
    for line in lines:
        name, _, value = line.partition(":")
        if not line:
            if data:
                yield event_id, "\n".join(data)
            event_id, data = None, []
        elif name == "data":
            data.append(value.removeprefix(" "))
        elif name == "id":
            event_id = value.removeprefix(" ")


class Follower(threading.Thread):
    """Reads a thread's events in the background and hands each chunk to `on_chunk`.

    A lost connection is opened again where it was cut, until nobody has answered for a minute;
    then, or when the server refuses, `on_end` is called once with the reason.
    """

    def __init__(
        self,
        url: str,
        resource: str,
        on_chunk: Callable[[Chunk], None],
        on_end: Callable[[str], None],
    ) -> None:
        super().__init__(name="follow", daemon=True)
        self.connected = threading.Event()
        self._url = url
        self._resource = resource
        self._on_chunk = on_chunk
        self._on_end = on_end
        self._cursor: str | None = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Open no further connection; the present one may still end by itself."""
        self._stopped.set()

    def run(self) -> None:
        """Follow until the process ends, the server refuses, or nobody answers any more."""
        heard = time.monotonic()
        while time.monotonic() - heard < GIVE_UP_AFTER:
            if self._stopped.is_set():
                return
            try:
                refusal = self._read_once()
            except httpx.TransportError:
                refusal = None
            if refusal:
                self._on_end(refusal)
                return
            if self.connected.is_set():
                heard = time.monotonic()
                self.connected.clear()
            self._stopped.wait(RETRY_AFTER)
        self._on_end("the server does not answer any more")

    def _read_once(self) -> str | None:
        """Read one connection to its end; return the refusal where there is one."""
        headers = {"accept": "text/event-stream"}
        if self._cursor:
            headers["last-event-id"] = self._cursor
        limits = httpx.Timeout(5, read=SILENCE)
        query = {"resourceId": self._resource}
        with httpx.stream(
            "GET", self._url, params=query, headers=headers, timeout=limits
        ) as response:
            if response.is_client_error:
                response.read()
                return error_text(response)
            if not response.is_success:
                return None
            self.connected.set()
            for event_id, data in sse_events(response.iter_lines()):
                if data != "[DONE]":
                    self._on_chunk(json.loads(data))
                self._cursor = event_id or self._cursor
        return None


def error_text(response: httpx.Response) -> str:
    """Return what an error response says is wrong."""
    try:
        body = response.json()
    except ValueError:
        body = None
    text = body.get("error") if isinstance(body, dict) else None
    return f"{text or response.reason_phrase} (HTTP {response.status_code})"
