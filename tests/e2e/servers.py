"""Real server processes on one database file, and readers that live longer than they do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from infra.local.server import NOT_INHERITED
from shared.adapters.sqlite import Database, Notices, SqliteCoordinator, SqliteTable
from shared.adapters.system import SystemClock
from shared.core import entries, keys
from shared.core.events import Cursor
from tests.logs import whole_log

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from shared.core.entries import AnyEntry

T = TypeVar("T")
Chunk = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
RESOURCE = "owner"
LIMIT = 40.0
"""Seconds after which a test gives up; what is promised is asserted apart from it."""

ENDS = ("finish", "abort", "error")


async def until(read: Callable[[], T | None], what: str, limit: float = LIMIT) -> T:
    """Return the first answer that is true, or fail with what was waited for."""

    async def reading() -> T | None:
        return read()

    return await until_stored(reading, what, limit)


async def until_stored(
    read: Callable[[], Awaitable[T | None]], what: str, limit: float = LIMIT
) -> T:
    """Return the first answer that is true, where it takes a look into the file."""
    deadline = time.monotonic() + limit
    while not (found := await read()):
        assert time.monotonic() < deadline, f"waited {limit} s in vain: {what}"
        await asyncio.sleep(0.01)
    return found


class Server:
    """One `wakeline dev` process."""

    def __init__(self, db: Path, output: Path, env: dict[str, str]) -> None:
        wakeline = str(Path(sys.executable).with_name("wakeline"))
        options = ["dev", "--app", "tests.apps.killable:app", "--port", "0", "--db", str(db)]
        inherited = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
        self.output = output
        with output.open("w") as file:
            self._child = subprocess.Popen(
                [sys.executable, wakeline, *options],
                env={**inherited, **env},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._child.pid
        self.url = ""

    async def up(self) -> Server:
        """Return when it answers."""
        line = await until(self._first_line, f"a server that listens: {self.output.read_text()}")
        self.url = line.split()[2]
        return self

    def _first_line(self) -> str | None:
        text = self.output.read_text()
        assert self._child.poll() is None, text
        return next((line for line in text.splitlines() if "http://" in line), None)

    def client(self) -> httpx.AsyncClient:
        """Give a client for it."""
        return httpx.AsyncClient(base_url=self.url, timeout=LIMIT)

    def kill(self) -> None:
        """End it as a crash does."""
        self._child.kill()
        self._child.wait()

    async def terminate(self) -> float:
        """Ask it to end, and return how many seconds that took."""
        began = time.monotonic()
        self._child.terminate()
        code = await asyncio.to_thread(self._child.wait, LIMIT)
        took = time.monotonic() - began
        assert code in (0, -signal.SIGTERM), (code, self.output.read_text())
        return took

    def freeze(self, store: Store) -> None:
        """Stop it where it is, but not inside a transaction, which would stop everybody."""
        while True:
            os.kill(self.pid, signal.SIGSTOP)
            if store.is_writable():
                return
            os.kill(self.pid, signal.SIGCONT)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def clean_up(self) -> None:
        """End it whatever state it is in."""
        if self._child.poll() is None:
            self.kill()


class Store:
    """What the database file holds, read with the adapters beside the servers."""

    def __init__(self, db: Path) -> None:
        self._database = Database(db)
        clock = SystemClock()
        self._table = SqliteTable(self._database, clock)
        self._coordinator = SqliteCoordinator(self._database, clock, Notices(self._database, clock))

    async def journal(self, thread: str) -> list[AnyEntry]:
        """All entries of a thread."""
        items = await self._table.query(keys.partition(thread, 1), keys.STEP_PREFIX)
        return [entries.read(item.body) for item in items]

    async def kinds(self, thread: str) -> list[str]:
        """What the entries of a thread are."""
        return [entry.kind for entry in await self.journal(thread)]

    async def log(self, thread: str) -> list[Chunk]:
        """All that readers were told."""
        events = await whole_log(self._coordinator, keys.partition(thread, 1))
        return [json.loads(event.json) for event in events]

    async def inbox(self, thread: str) -> list[dict[str, Any]]:
        """What still waits."""
        return [i.body for i in await self._table.query(keys.partition(thread, 1), "IN#")]

    async def is_idle(self, thread: str) -> bool:
        """Tell whether nothing waits, nothing runs, and all is told."""
        partition = keys.partition(thread, 1)
        if await self.inbox(thread) or await self._table.get(partition, keys.ACTIVE):
            return False
        log = await self.log(thread)
        return bool(log) and log[-1]["type"] in ENDS

    async def receipts(self, thread: str) -> dict[str, str]:
        """What became of each signal."""
        found = await self._table.query(keys.partition(thread, 1), "SIG#")
        return {item.body["signal"]: item.body["state"] for item in found}

    def is_writable(self) -> bool:
        """Tell whether nobody keeps the file locked."""
        connection = self._database.connection()
        connection.execute("PRAGMA busy_timeout = 200")
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except Exception:
            return False
        return True

    def close(self) -> None:
        """Close the file."""
        self._database.close()


class Machine:
    """A database file, the servers on it, and what their agents noted."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._db = folder, folder / "machine.db"
        self._tools, self._models = folder / "tools.jsonl", folder / "models.jsonl"
        self.servers: list[Server] = []
        self.store = Store(self._db)
        self._readers: list[Reader] = []

    async def start(self, **env: int) -> Server:
        """Start one more server; its agents take the pauses that `env` tells."""
        logs = {"TOOL_LOG": str(self._tools), "MODEL_LOG": str(self._models)}
        output = self._folder / f"server{len(self.servers)}.txt"
        pauses = {name: str(value) for name, value in env.items()}
        server = Server(self._db, output, {**logs, **pauses})
        self.servers.append(server)
        return await server.up()

    async def start_two(self, **env: int) -> tuple[Server, Server]:
        """Start two servers, the second one frozen, so that the first one gets what comes."""
        first, second = await asyncio.gather(self.start(**env), self.start(**env))
        second.freeze(self.store)
        return first, second

    def reader(
        self, thread: str, server: Server | None = None, *, cursor: str = "", url: str = ""
    ) -> Reader:
        """Follow a thread, on this server or on whichever started last."""
        reader = Reader(lambda: url or (server or self.servers[-1]).url, thread, cursor)
        self._readers.append(reader)
        return reader

    async def send(
        self, thread: str, text: str, agent: str = "echo", server: Server | None = None
    ) -> dict[str, Any]:
        """Send a message and return the answer."""
        async with (server or self.servers[-1]).client() as client:
            return await send(client, thread, text, agent)

    async def transcript(self, thread: str, server: Server | None = None) -> list[Any]:
        """The thread's messages over HTTP, without ids and times."""
        async with (server or self.servers[-1]).client() as client:
            answer = await client.get(
                f"/api/memory/threads/{thread}/messages",
                params={"resourceId": RESOURCE, "perPage": 500},
            )
        assert answer.status_code == 200, answer.text
        return [_anonymous(message) for message in answer.json()["messages"]]

    def calls(self, thread: str, phase: str = "start") -> list[str]:
        """The idempotency keys of the tool calls that were started, or ended."""
        lines = _lines(self._tools)
        return [n["key"] for n in lines if n["thread"] == thread and n["phase"] == phase]

    def prompts(self) -> list[list[str]]:
        """The texts of users that each model call was shown."""
        return [line["texts"] for line in _lines(self._models)]

    async def close(self) -> None:
        """End everything."""
        for reader in self._readers:
            await reader.stop()
        for server in self.servers:
            server.clean_up()
        self.store.close()


@asynccontextmanager
async def machine_in(folder: Path) -> AsyncIterator[Machine]:
    """A machine whose servers end with the test, however they were left."""
    machine = Machine(folder)
    try:
        yield machine
    finally:
        await machine.close()


async def send(
    client: httpx.AsyncClient, thread: str, text: str, agent: str = "echo"
) -> dict[str, Any]:
    """Send a message and return the answer."""
    body = {"message": text, "resourceId": RESOURCE, "threadId": thread}
    answer = await client.post(f"/api/agents/{agent}/send-message", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


class Reader:
    """Reads a thread without end; a connection that breaks is opened again where it was cut."""

    def __init__(self, url: Callable[[], str], thread: str, cursor: str = "") -> None:
        self.chunks: list[Chunk] = []
        self.connections = 0
        self._url, self._thread, self._cursor = url, thread, cursor
        self._open, self._more = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def connected(self) -> Reader:
        """Return when the server has begun to answer."""
        async with asyncio.timeout(LIMIT):
            await self._open.wait()
        return self

    async def end(self, run: str = "", limit: float = LIMIT) -> Chunk:
        """Return the chunk that ends a run, or the first run there is."""

        def read() -> Chunk | None:
            assert not self._task.done(), "the server refused"
            return next((c for c in self.ends() if run in ("", c["runId"])), None)

        return await until(read, f"the end of run {run or '?'} of {self._thread}", limit)

    async def sees(self, wanted: Callable[[int, Chunk], bool]) -> None:
        """Return as soon as it sees a chunk that is wanted, by its number and content."""
        async with asyncio.timeout(LIMIT):
            while not any(wanted(*each) for each in enumerate(self.chunks)):
                self._more.clear()
                await self._more.wait()

    async def reaches(self, cursor: str) -> None:
        """Return when it has read up to an event."""
        await until(lambda: cursor == self._cursor, f"{self._thread} up to {cursor}")

    def ends(self) -> list[Chunk]:
        """The chunks that ended runs."""
        return [chunk for chunk in self.chunks if chunk["type"] in ENDS]

    def count(self, type: str) -> int:
        """Count the chunks of a type."""
        return sum(chunk["type"] == type for chunk in self.chunks)

    async def stop(self) -> None:
        """Read no more."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled() and self._task.exception():
            raise self._task.exception() or AssertionError

    async def _run(self) -> None:
        while True:
            with suppress(httpx.TransportError):
                await self._connection()
            self._open.clear()
            await asyncio.sleep(0.05)

    async def _connection(self) -> None:
        body = {"threadId": self._thread, "resourceId": RESOURCE}
        headers = {"last-event-id": self._cursor} if self._cursor else {}
        url = f"{self._url()}/api/agents/echo/threads/subscribe"
        async with (
            httpx.AsyncClient(timeout=httpx.Timeout(5, read=None)) as client,
            client.stream("POST", url, json=body, headers=headers) as response,
        ):
            assert response.status_code == 200, await response.aread()
            self.connections += 1
            async for line in response.aiter_lines():
                self._open.set()
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    self.chunks.append(chunk)
                    self._cursor = chunk["cursor"]
                    self._more.set()


def in_order(chunks: Sequence[Chunk]) -> bool:
    """Tell whether no event came twice, or too late."""
    cursors = [Cursor.parse(chunk["cursor"]) for chunk in chunks]
    return cursors == sorted(set(cursors))


def _lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


NAMES = {"id", "createdAt", "threadId", "toolCallId", "runId", "acceptedAt"}


def _anonymous(value: Any) -> Any:
    """A value without ids and times."""
    if isinstance(value, dict):
        return {key: _anonymous(v) for key, v in value.items() if key not in NAMES}
    return [_anonymous(v) for v in value] if isinstance(value, list) else value
