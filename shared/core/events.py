"""Places in a thread's event log (`docs/protocols.md` D1).

An `EventId` is (start of the run, position of the journal entry, k). It grows over owners, can be
compared with the journal, and has the form of a Redis stream id. A cursor is what a client holds:
the event id with the thread's incarnation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import to_json

from shared.core.errors import BadRequest

K_BITS = 20
K_MAX = (1 << K_BITS) - 1
"""k of a `resync`: what came before it was lost from the log (D5)."""
END_K = K_MAX - 1
"""k of the end marker of a deleted thread's log (J2)."""

_CURSOR = re.compile(r"^(\d{1,9})\.(\d{1,15})-(\d{1,18})$")

Chunk = dict[str, Any]


class EventId(NamedTuple):
    """Where an event stands in a thread's log."""

    start: int
    position: int
    k: int

    @property
    def sequence(self) -> int:
        """The second half of the stream id."""
        return (self.position << K_BITS) + self.k

    def __str__(self) -> str:
        """Give the Redis stream id, `<start ms>-<position · 2^20 + k>`."""
        return f"{self.start}-{self.sequence}"

    @classmethod
    def of(cls, start: int, sequence: int) -> EventId:
        """Make an id from the two halves of a stream id."""
        return cls(start, sequence >> K_BITS, sequence & K_MAX)


class Cursor(NamedTuple):
    """A client's place in the log of one incarnation of a thread."""

    incarnation: int
    id: EventId

    def __str__(self) -> str:
        """Give the text that clients send back as `Last-Event-ID`."""
        return f"{self.incarnation}.{self.id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read a cursor.

        Raises:
            BadRequest: the text is not a cursor of this system.
        """
        hit = _CURSOR.match(text.strip())
        if not hit:
            raise BadRequest(
                f"Last-Event-ID {text[:80]!r} is not a cursor; send a chunk's `cursor`, or none"
            )
        incarnation, start, sequence = (int(part) for part in hit.groups())
        return cls(incarnation, EventId.of(start, sequence))


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One event as it is logged: its id, its index in the run, and the chunk as JSON text.

    The JSON is what a subscriber gets, cursor included, so that it is made once and never again.
    """

    id: EventId
    index: int
    json: str

    @classmethod
    def make(cls, incarnation: int, id: EventId, index: int, chunk: Chunk) -> LogEvent:
        """Serialise a chunk with its cursor."""
        body = {**chunk, "cursor": str(Cursor(incarnation, id))}
        return cls(id, index, to_json(body).decode())
