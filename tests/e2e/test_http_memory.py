"""Reading threads and messages: whose, paging, odd ids."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from shared.bootstrap import System
from tests.e2e.test_http_requests import ECHO, THREAD, build_system, client_of, send, stored


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    system = build_system(tmp_path)
    yield system
    await system.stop()


@pytest.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(system) as client:
        yield client


async def test_a_thread_of_another_resource_is_refused_everywhere(
    api: httpx.AsyncClient, system: System
) -> None:
    await send(api)
    before = stored(system)
    theirs = {**THREAD, "resourceId": "intruder"}
    posts = {
        "send-message": {"message": "x", **theirs},
        "queue-message": {"message": "x", **theirs},
        "signals": {"signal": {"type": "user", "contents": "x"}, **theirs},
        "threads/subscribe": theirs,
        "threads/abort": theirs,
    }
    answers = [await api.post(f"{ECHO}/{path}", json=body) for path, body in posts.items()]
    for path in (
        "memory/threads/thread",
        "memory/threads/thread/messages",
        "threads/thread/events",
    ):
        answers.append(await api.get(f"/api/{path}", params={"resourceId": "intruder"}))
    for answer in answers:
        assert answer.status_code == 403, answer.request.url
        assert answer.json() == {"error": "Access denied: thread belongs to a different resource"}
    assert stored(system) == before
    mine = (await api.get("/api/memory/threads", params={"resourceId": "intruder"})).json()
    assert mine["threads"] == []


async def test_threads_are_paged(api: httpx.AsyncClient) -> None:
    for n in range(5):
        await send(api, threadId=f"thread-{n}")
    params: dict[str, Any] = {"resourceId": "owner", "agentId": "echo-agent"}
    whole = (await api.get("/api/memory/threads", params=params)).json()
    assert {k: whole[k] for k in ("total", "page", "perPage", "hasMore")} == {
        "total": 5, "page": 0, "perPage": 100, "hasMore": False,
    }  # fmt: skip
    thread = whole["threads"][0]
    assert set(thread) == {"id", "title", "resourceId", "createdAt", "updatedAt"}
    assert thread["createdAt"].endswith("Z")
    pages = [
        (await api.get("/api/memory/threads", params={**params, "page": n, "perPage": 2})).json()
        for n in range(4)
    ]
    assert [page["hasMore"] for page in pages] == [True, True, False, False]
    assert [t for page in pages for t in page["threads"]] == whole["threads"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "resourceId"),
        ("resourceId=", "resourceId"),
        (f"resourceId={'x' * 257}", "resourceId"),
        ("resourceId=r&page=-1", "page"),
        ("resourceId=r&page=x", "page"),
        ("resourceId=r&page=1.5", "page"),
        ("resourceId=r&page=", "page"),
        ("resourceId=r&metadata=", "metadata"),
        ("resourceId=r&metadata=%5B%5D", "metadata"),
        ("resourceId=r&metadata=nope", "metadata"),
        ("resourceId=r&metadata=%7B%22a%22:NaN%7D", "metadata.a"),
        ("resourceId=r&metadata=%7B%22a%22:%22%5Cud800%22%7D", "metadata"),
        ("resourceId=r&orderBy[field]=title", "orderBy[field]"),
        ("resourceId=r&orderBy[direction]=UP", "orderBy[direction]"),
        ("resourceId=r&orderBy=title", "orderBy"),
        ("resourceId=r&orderBy=createdAt&sortDirection=desc", "sortDirection"),
        ("resourceId=r&perPage=-1", "perPage"),
        ("resourceId=r&perPage=nope", "perPage"),
        ("resourceId=r&perPage=100000000000000000000", "perPage"),
    ],
)
async def test_a_bad_query_is_told_by_field(api: httpx.AsyncClient, query: str, field: str) -> None:
    answer = await api.get(f"/api/memory/threads?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"] == "Invalid query parameters"
    issue = answer.json()["issues"][0]
    assert issue["field"] == field
    assert issue["message"].startswith(field)


@pytest.mark.parametrize("order", ["nope", "[]", '{"field":"id"}', '{"direction":"UP"}'])
async def test_an_order_that_there_is_not_is_refused(api: httpx.AsyncClient, order: str) -> None:
    await send(api)
    params = {"orderBy": order}
    answer = await api.get("/api/memory/threads/thread/messages", params=params)
    assert answer.status_code == 400
    assert answer.json()["issues"][0]["field"] == "orderBy"


@pytest.mark.parametrize("name", ["filter", "include"])
async def test_what_is_not_there_is_refused_and_not_left_out(
    api: httpx.AsyncClient, name: str
) -> None:
    await send(api)
    answer = await api.get("/api/memory/threads/thread/messages", params={name: "{}"})
    assert answer.status_code == 400
    assert answer.json()["issues"][0]["field"] == name


async def test_reading_an_unknown_thread_or_for_an_unknown_agent_is_not_found(
    api: httpx.AsyncClient,
) -> None:
    for path in ("/api/memory/threads/none", "/api/memory/threads/none/messages"):
        answer = await api.get(path)
        assert (answer.status_code, answer.json()) == (404, {"error": "Thread not found"})
    answer = await api.get("/api/memory/threads?resourceId=r&agentId=nope")
    assert (answer.status_code, answer.json()["error"]) == (404, "Agent with id nope not found")


@pytest.mark.parametrize(
    "thread",
    ["slack:C1:1.2/3", "a/messages", "a/b/events", "%2F", "a b?c#d", "/", "a/", "ünï ✓", "x+y"],
)
async def test_odd_thread_ids_survive(api: httpx.AsyncClient, thread: str) -> None:
    await send(api, threadId=thread)
    path = f"/api/memory/threads/{quote(thread, safe='')}"
    for query in ("", "?resourceId=owner"):
        answer = await api.get(path + query)
        assert (answer.status_code, answer.json().get("id")) == (200, thread)
    messages = await api.get(f"{path}/messages")
    assert messages.status_code == 200
    # The path was right if it meets this thread's owner.
    events = f"/api/threads/{quote(thread, safe='')}/events"
    assert (await api.get(events, params={"resourceId": "intruder"})).status_code == 403


async def test_a_thread_id_may_stand_in_a_path_as_client_js_writes_it(
    api: httpx.AsyncClient,
) -> None:
    await send(api, threadId="slack:C1:1.2/3")
    assert (await api.get("/api/memory/threads/slack:C1:1.2/3")).json()["id"] == "slack:C1:1.2/3"
    assert (await api.get("/api/memory/threads/slack:C1:1.2/3/messages")).status_code == 200


@pytest.mark.parametrize("thread", ["x" * 257, "a%00b", "a%2Fb%09"])
async def test_an_impossible_thread_id_in_a_path_is_refused(
    api: httpx.AsyncClient, thread: str
) -> None:
    for path in (f"memory/threads/{thread}", f"threads/{thread}/events"):
        answer = await api.get(f"/api/{path}")
        assert answer.status_code == 400
        assert answer.json()["error"] == "Invalid path parameters"
        assert answer.json()["issues"][0]["field"] == "thread"
