"""Where records live: partition keys, sort keys and index groups (`docs/design.md` 4).

Parts that callers make are escaped, so that no thread id can name another record.
"""

from __future__ import annotations

import hashlib
import zlib

SHARDS = 16
LONGEST_PART = 900
"""Bytes; a sort key may have 1,024."""

THREAD = "THREAD"
ACTIVE = "ACTIVE"
RUN = "RUN"
STEP_PREFIX = "STEP#"
INBOX_PREFIX = "IN#"
OWNERS_PREFIX = "IN#2#"
ASKS_PREFIX = "IN#0#"
DUE_PURGE = "due:purge"


def _part(text: str) -> str:
    return text.replace("%", "%25").replace("#", "%23")


def thread(thread: str) -> str:
    """`T`: what outlives a thread's incarnations."""
    return f"THREAD#{_part(thread)}"


def partition(thread: str, incarnation: int) -> str:
    """`P`: the records of one incarnation; also the name of its lease, log and flags."""
    return f"THREAD#{_part(thread)}#{incarnation}"


def run(run: str) -> str:
    """The partition of a run's snapshot head."""
    return f"RUN#{_part(run)}"


def step(start: int, position: int) -> str:
    """The journal entry at `position` of the run that began at `start`."""
    return f"{run_steps(start)}{position:07d}"


def run_steps(start: int) -> str:
    """Prefix of all entries of one run."""
    return f"{STEP_PREFIX}{start:014d}#"


def start_and_position(sort: str) -> tuple[int, int]:
    """Read the place back from an entry's sort key."""
    _, start, position = sort.split("#")
    return int(start), int(position)


def inbox(cls: int, name: str) -> str:
    """An inbox item of class 0 (for a run, first), 1 (for a run) or 2 (owns a run)."""
    return f"{INBOX_PREFIX}{cls}#{name}"


def purge(incarnation: int) -> str:
    """What is to be cleared away of a deleted incarnation; lies in `T`."""
    return f"PURGE#{incarnation}"


def cancel(run: str) -> str:
    """The inbox item that asks a run to stop; there is one however often it is asked (A9)."""
    return inbox(0, f"cancel#{_part(run)}")


def receipt(signal: str) -> str:
    """What became of a signal; an id that would make the key too long is hashed."""
    part = _part(signal)
    if len(part.encode()) > LONGEST_PART:
        part = "#" + hashlib.sha256(part.encode()).hexdigest()  # which no escaped id has
    return f"SIG#{part}"


def idempotency(key: str) -> str:
    """The receipt that an idempotency key led to; hashed, since callers make it."""
    return f"KEY#{hashlib.sha256(key.encode()).hexdigest()}"


def shard(thread: str) -> int:
    """Spread a thread's due entries over the index."""
    return zlib.crc32(thread.encode()) % SHARDS


def due_runs(shard: int) -> str:
    """Index group of runs that a tick must look after, by next check."""
    return f"due:runs:{shard}"


def due_inbox(shard: int) -> str:
    """Index group of inbox items that nobody may have been told of, by next check."""
    return f"due:inbox:{shard}"


def threads_of(resource: str) -> str:
    """Index group of a resource's threads, by time of update."""
    return f"threads:{_part(resource)}"
