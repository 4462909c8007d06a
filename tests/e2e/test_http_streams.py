"""The API's streams, over a real server: exact bytes, cursors, ends."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from functions.api.app import create_app
from shared.bootstrap import System
from shared.core.errors import Unavailable
from shared.core.events import Cursor, EventId, LogEvent
from tests.e2e.test_http_requests import ECHO, THREAD, build_system, send

LIMIT = 10
SUBSCRIBE = f"{ECHO}/threads/subscribe"
EVENTS = "/api/threads/thread/events"
ORDER = [
    "start",
    "data-user-message",
    "step-start",
    "text-start",
    "text-end",
    "step-finish",
    "finish",
]


class Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


@asynccontextmanager
async def serving(system: System) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the API on a free port, with nothing beside it."""
    config = uvicorn.Config(
        create_app(system), http="h11", ws="none", log_level="warning", lifespan="off",
        timeout_graceful_shutdown=0,
    )  # fmt: skip
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = Server(config)
        task = asyncio.create_task(server.serve([listener]))
        await asyncio.wait_for(server.up.wait(), LIMIT)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=LIMIT) as client:
                yield client
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, LIMIT)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    system = build_system(tmp_path, heartbeat_comment=60)
    await system.start()
    yield system
    await system.stop()


@pytest.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(system) as client:
        yield client


class Stream:
    """Reads a stream frame by frame, as bytes."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._pieces = response.aiter_raw()
        self._rest = b""

    async def frame(self) -> bytes | None:
        """Give the next frame without its empty line, or None at the end."""
        while b"\n\n" not in self._rest:
            piece = await asyncio.wait_for(anext(self._pieces, None), LIMIT)
            if piece is None:
                assert self._rest == b""
                return None
            self._rest += piece
        frame, self._rest = self._rest.split(b"\n\n", 1)
        return frame

    async def until(self, last: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Give the chunks up to the one that `last` is true of; heartbeats are passed over."""
        chunks: list[dict[str, Any]] = []
        while not (chunks and last(chunks[-1])):
            frame = await self.frame()
            assert frame is not None
            if frame != b": heartbeat":
                chunks.append(chunk_of(frame))
        return chunks


def chunk_of(frame: bytes) -> dict[str, Any]:
    """Read a frame strictly: one `data: ` line, alone or after the id."""
    *before, data = frame.split(b"\n")
    assert data.startswith(b"data: {")
    chunk = json.loads(data[6:])
    if before:
        assert before == [b"id: " + chunk["cursor"].encode()]
    return dict(chunk)


def is_finish(chunk: dict[str, Any]) -> bool:
    return bool(chunk["type"] == "finish")


@asynccontextmanager
async def subscribed(
    api: httpx.AsyncClient, headers: dict[str, str] | None = None, **more: Any
) -> AsyncIterator[Stream]:
    body = {**THREAD, **more}
    async with api.stream("POST", SUBSCRIBE, json=body, headers=headers) as response:
        assert response.status_code == 200
        stream = Stream(response)
        assert await stream.frame() == b": connected"
        yield stream


@asynccontextmanager
async def following(
    api: httpx.AsyncClient, headers: dict[str, str] | None = None, **query: str
) -> AsyncIterator[Stream]:
    params = {"resourceId": "owner", **query}
    async with api.stream("GET", EVENTS, params=params, headers=headers) as response:
        assert response.status_code == 200
        stream = Stream(response)
        assert await stream.frame() == b"retry: 1000"
        yield stream


# ---- runs ------------------------------------------------------------------------------------


async def test_a_subscriber_gets_a_run_in_frames_that_client_js_reads(
    api: httpx.AsyncClient,
) -> None:
    async with subscribed(api) as stream:
        headers = stream.response.headers
        assert headers["content-type"] == "text/event-stream"
        assert headers["cache-control"] == "no-cache"
        assert headers["connection"] == "keep-alive"
        assert headers["x-accel-buffering"] == "no"
        sent = await send(api, "hello there")
        chunks = await stream.until(is_finish)
    assert [c["type"] for c in chunks if c["type"] != "text-delta"] == ORDER
    assert {c["runId"] for c in chunks} == {sent["runId"]}
    cursors = [Cursor.parse(c["cursor"]) for c in chunks]
    assert cursors == sorted(set(cursors))
    assert chunks[1]["data"]["id"] == sent["signal"]["id"]


async def test_an_event_source_gets_the_same_with_ids(api: httpx.AsyncClient) -> None:
    async with subscribed(api) as one, following(api) as other:
        await send(api)
        chunks = await one.until(is_finish)
        frames: list[bytes] = []
        while len(frames) < len(chunks):
            frame = await other.frame()
            assert frame is not None
            if frame != b": heartbeat":
                assert frame.startswith(b"id: ")
                frames.append(frame)
    assert [chunk_of(frame) for frame in frames] == chunks


@pytest.mark.parametrize("given", ["header", "query", "both"])
async def test_a_cursor_gets_exactly_what_came_after_it(api: httpx.AsyncClient, given: str) -> None:
    async with subscribed(api) as stream:
        await send(api)
        chunks = await stream.until(is_finish)
    seen, first = chunks[3]["cursor"], chunks[0]["cursor"]
    headers = {"Last-Event-ID": seen} if given != "query" else None
    if given == "header":
        async with subscribed(api, headers) as stream:
            assert await stream.until(is_finish) == chunks[4:]
    query = {"query": {"lastEventId": seen}, "both": {"lastEventId": first}, "header": {}}[given]
    async with following(api, headers, **query) as stream:
        assert await stream.until(is_finish) == chunks[4:]


async def test_a_message_over_the_odd_id_of_a_thread_is_streamed(api: httpx.AsyncClient) -> None:
    thread = "slack:C1:1.2/3"
    path = "/api/threads/slack%3AC1%3A1.2%2F3/events"
    async with api.stream("GET", path, params={"resourceId": "owner"}) as response:
        stream = Stream(response)
        assert await stream.frame() == b"retry: 1000"
        await send(api, threadId=thread)
        assert (await stream.until(is_finish))[-1]["type"] == "finish"


async def test_the_conversation_can_be_read_in_pages(api: httpx.AsyncClient) -> None:
    async with subscribed(api) as stream:
        for text in ("one", "two", "three"):
            await send(api, text)
            await stream.until(is_finish)

    async def read(**params: Any) -> dict[str, Any]:
        path = "/api/memory/threads/thread/messages"
        answer = await api.get(path, params={"resourceId": "owner", **params})
        assert answer.status_code == 200
        return dict(answer.json())

    def texts(page: dict[str, Any]) -> list[str]:
        return [message["content"]["parts"][0]["text"] for message in page["messages"]]

    whole = await read()
    assert texts(whole) == ["one", "echo: one", "two", "echo: two", "three", "echo: three"]
    assert [m["role"] for m in whole["messages"]] == ["signal", "assistant"] * 3
    assert {k: v for k, v in whole.items() if k != "messages"} == {
        "uiMessages": None, "total": 6, "page": 0, "perPage": 40, "hasMore": False,
    }  # fmt: skip
    newest = await read(perPage=4)
    assert (texts(newest), newest["hasMore"]) == (texts(whole)[2:], True)
    assert texts(await read(perPage=4, page=1)) == texts(whole)[:2]
    oldest = {"orderBy": '{"field":"createdAt","direction":"ASC"}'}
    assert texts(await read(perPage=4, **oldest)) == texts(whole)[:4]
    assert texts(await read(perPage=4, page=1, **oldest)) == texts(whole)[4:]
    assert texts(await read(perPage=0)) == []


async def test_silence_is_filled_with_heartbeats(api: httpx.AsyncClient) -> None:
    async with subscribed(api) as one, following(api) as other:
        for stream in (one, other):
            assert await stream.frame() == b": heartbeat"
            assert await stream.frame() == b": heartbeat"


@pytest.mark.parametrize("cursor", ["nope", "1.2", "-1.1-1", "1.1-1;x"])
async def test_a_malformed_cursor_is_refused(api: httpx.AsyncClient, cursor: str) -> None:
    headers = {"Last-Event-ID": cursor}
    answers = [
        await api.post(SUBSCRIBE, json=THREAD, headers=headers),
        await api.get(EVENTS, headers=headers),
        await api.get(EVENTS, params={"lastEventId": cursor}),
    ]
    for answer in answers:
        assert answer.status_code == 400
        assert "not a cursor" in answer.json()["error"]


# ---- ends ------------------------------------------------------------------------------------


@dataclass
class Scripted:
    """Stands in for `Follow` and what it opens: gives batches, then fails, ends or waits."""

    batches_given: list[list[LogEvent]] = field(default_factory=list)
    failure: Exception | None = None
    endless: bool = False
    incarnation: int = 3
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self, *_: Any) -> "Scripted":
        return self

    async def batches(self, _: int) -> AsyncIterator[list[LogEvent]]:
        try:
            for batch in self.batches_given:
                yield batch
            if self.failure:
                raise self.failure
            while self.endless:
                yield []
                await asyncio.Event().wait()
        finally:
            self.closed.set()


def event(k: int) -> LogEvent:
    return LogEvent(EventId(5, 1, k), k, f'{{"k":{k}}}')


async def test_a_batch_is_sent_whole_and_the_end_is_told(
    api: httpx.AsyncClient, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "follow", Scripted([[event(0), event(1)], [], [event(2)]]))
    answer = await api.post(SUBSCRIBE, json=THREAD)
    assert answer.content == (
        b": connected\n\n"
        b'data: {"k":0}\n\ndata: {"k":1}\n\n'
        b": heartbeat\n\n"
        b'data: {"k":2}\n\n'
        b"data: [DONE]\n\n"
    )
    assert (await api.get(EVENTS)).content == (
        b"retry: 1000\n\n"
        b'id: 3.5-1048576\ndata: {"k":0}\n\nid: 3.5-1048577\ndata: {"k":1}\n\n'
        b": heartbeat\n\n"
        b'id: 3.5-1048578\ndata: {"k":2}\n\n'
    )


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (Unavailable("no answer"), {"message": "no answer", "name": "Unavailable"}),
        (KeyError("secret"), {"message": "Internal error", "name": "InternalError"}),
        (OSError("secret"), {"message": "Internal error", "name": "InternalError"}),
    ],
)
async def test_a_stream_that_breaks_ends_with_an_error_chunk(
    api: httpx.AsyncClient,
    system: System,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    told: dict[str, str],
) -> None:
    monkeypatch.setattr(system, "follow", Scripted([[event(0)]], failure))
    error = json.dumps({"type": "error", "payload": {"error": told}}, separators=(",", ":"))
    frame = f"data: {error}\n\n".encode()
    subscription = (await api.post(SUBSCRIBE, json=THREAD)).content
    assert subscription.endswith(b'data: {"k":0}\n\n' + frame + b"data: [DONE]\n\n")
    assert (await api.get(EVENTS)).content.endswith(b'data: {"k":0}\n\n' + frame)


@pytest.mark.parametrize("route", [subscribed, following])
async def test_a_client_that_goes_away_frees_its_follower_at_once(
    api: httpx.AsyncClient, system: System, monkeypatch: pytest.MonkeyPatch, route: Any
) -> None:
    follow = Scripted(endless=True)
    monkeypatch.setattr(system, "follow", follow)
    async with route(api) as stream:
        assert await stream.frame() == b": heartbeat"
        assert not follow.closed.is_set()
    await asyncio.wait_for(follow.closed.wait(), 1)


async def test_a_client_that_goes_away_before_it_reads_anything_frees_its_follower(
    api: httpx.AsyncClient, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = Scripted([[event(k) for k in range(20_000)]] * 50)
    monkeypatch.setattr(system, "follow", follow)
    async with subscribed(api):
        pass  # the server is held up in the middle of sending
    await asyncio.wait_for(follow.closed.wait(), 1)
