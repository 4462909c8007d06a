"""What the SQLite file holds.

`items` keeps its rowid: bodies of more than a few hundred bytes make a table without one slower
(measured: twice the time per write at 1 KB). A row of `logs` is a thread's lease, its cancel flag
and the end of its event log together, so that an append finds all it needs in one look-up. It is
never deleted, because a fence never goes back. `wakes.id` is never used twice, so that a receipt
names one wake-up for good.
"""

from __future__ import annotations

VERSION = 1

STATEMENTS = (
    """
    CREATE TABLE items (
        partition TEXT NOT NULL, sort TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
        index_group TEXT, index_order INTEGER, expires INTEGER, PRIMARY KEY (partition, sort)
    )
    """,
    """
    CREATE INDEX items_by_group ON items (index_group, index_order, partition, sort)
    WHERE index_group IS NOT NULL
    """,
    "CREATE INDEX items_by_expiry ON items (expires) WHERE expires IS NOT NULL",
    """
    CREATE TABLE logs (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
        token TEXT NOT NULL DEFAULT '', fence INTEGER NOT NULL DEFAULT 0,
        expires INTEGER NOT NULL DEFAULT 0, ttl INTEGER NOT NULL DEFAULT 0, cancel TEXT,
        last_start INTEGER NOT NULL DEFAULT -1, last_sequence INTEGER NOT NULL DEFAULT -1,
        last_index INTEGER NOT NULL DEFAULT -1, events INTEGER NOT NULL DEFAULT 0
    )
    """,
    """
    CREATE TABLE events (
        log INTEGER NOT NULL, start INTEGER NOT NULL, sequence INTEGER NOT NULL,
        number INTEGER NOT NULL, json TEXT NOT NULL, PRIMARY KEY (log, start, sequence)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE wakes (
        id INTEGER PRIMARY KEY AUTOINCREMENT, due INTEGER NOT NULL, thread TEXT NOT NULL,
        incarnation INTEGER NOT NULL, run TEXT NOT NULL, handed INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE INDEX wakes_by_due ON wakes (due)",
    "CREATE INDEX wakes_by_name ON wakes (thread, incarnation, run, due) WHERE handed = 0",
)
