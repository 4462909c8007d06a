"""Making, changing, giving away and finding threads (docs/spec/signals.md 8.11, 9.8)."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from functions.api.app import create_app
from functions.api.context import Context
from functions.api.identity import Principal
from shared.bootstrap import System
from shared.ports import WakeUp
from tests.e2e.test_http_bad_input import ANYTHING, JSON
from tests.e2e.test_http_requests import build_system, client_of, send, stored

THREADS = "/api/memory/threads"
AGENT = {"agentId": "echo-agent"}
DIFFERENT = {"error": "Access denied: thread belongs to a different resource"}


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    system = build_system(tmp_path)
    yield system
    await system.stop()


@pytest.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(system) as client:
        yield client


async def create(api: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await api.post(THREADS, params=AGENT, json={"resourceId": "owner", **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def patch(api: httpx.AsyncClient, thread: str, **body: Any) -> httpx.Response:
    return await api.patch(f"{THREADS}/{quote(thread, safe='')}", params=AGENT, json=body)


async def transfer(api: httpx.AsyncClient, thread: str, to: Any, **params: str) -> httpx.Response:
    path = f"{THREADS}/{quote(thread, safe='')}/transfer"
    return await api.post(path, params=params, json={"resourceId": to})


async def names(api: httpx.AsyncClient, **params: Any) -> list[str]:
    answer = await api.get(THREADS, params={"resourceId": "owner", **params})
    assert answer.status_code == 200, answer.text
    return [thread["id"] for thread in answer.json()["threads"]]


async def test_a_thread_is_made_and_read_back(api: httpx.AsyncClient) -> None:
    metadata = {"tags": ["a", {"b": None}], "n": 1}
    made = await create(api, threadId="t", title="Title", metadata=metadata, **AGENT)
    assert {k: made[k] for k in ("id", "title", "resourceId", "metadata")} == {
        "id": "t", "title": "Title", "resourceId": "owner", "metadata": metadata,
    }  # fmt: skip
    assert made["createdAt"] == made["updatedAt"]
    assert (await api.get(f"{THREADS}/t")).json() == made
    sent = await send(api, threadId="t")
    assert sent["action"] == "wake"
    assert (await api.get(f"{THREADS}/t")).json()["title"] == "Title"


async def test_a_thread_without_an_id_gets_one(api: httpx.AsyncClient) -> None:
    one, two = await create(api), await create(api, threadId=None, title=None)
    assert one["id"] != two["id"]
    assert (one["title"], "metadata" in one) == ("", False)
    assert set(await names(api)) == {one["id"], two["id"]}


async def test_making_a_thread_again_resets_nothing(api: httpx.AsyncClient, system: System) -> None:
    """The reference resets `createdAt`, and what is not named (9.8)."""
    first = await create(api, threadId="t", title="one", metadata={"a": 1})
    await send(api, threadId="t")
    await system.advance.advance(WakeUp("t", 1))
    again = await create(api, threadId="t")
    assert again == first
    again = await create(api, threadId="t", title="two")
    assert (again["title"], again["metadata"]) == ("two", {"a": 1})
    again = await create(api, threadId="t", metadata={"b": 2})
    assert (again["title"], again["metadata"]) == ("two", {"b": 2})
    assert again["createdAt"] == first["createdAt"]
    assert (await api.get(f"{THREADS}/t/messages")).json()["total"] == 2


async def test_a_change_keeps_what_it_does_not_name(api: httpx.AsyncClient) -> None:
    first = await create(api, threadId="t", title="one", metadata={"a": 1, "b": 2})
    answer = await patch(api, "t", title="two")
    assert (answer.json()["title"], answer.json()["metadata"]) == ("two", {"a": 1, "b": 2})
    answer = await patch(api, "t", metadata={"c": 3}, resourceId="owner", junk=1)
    assert (answer.json()["title"], answer.json()["metadata"]) == ("two", {"c": 3})
    assert answer.json()["createdAt"] == first["createdAt"]
    answer = await patch(api, "t", title="", metadata={})
    assert (answer.json()["title"], answer.json()["metadata"]) == ("", {})
    shown = (await api.get(f"{THREADS}/t")).json()
    assert shown == answer.json()
    assert (await patch(api, "t", title=None)).json() == shown


async def test_the_owner_changes_by_transfer_only(api: httpx.AsyncClient) -> None:
    await create(api, threadId="t")
    answer = await patch(api, "t", title="x", resourceId="other")
    assert answer.status_code == 400
    assert answer.json()["issues"][0]["field"] == "resourceId"
    assert (await api.get(f"{THREADS}/t")).json()["title"] == ""


async def test_a_thread_is_given_away_with_its_messages(
    api: httpx.AsyncClient, system: System
) -> None:
    made = await create(api, threadId="t", title="Title")
    sent = await send(api, threadId="t")
    answer = await transfer(api, "t", "other", **AGENT)
    assert answer.status_code == 409
    await system.advance.advance(WakeUp("t", 1))
    answer = await transfer(api, "t", "other")  # client-js may leave the agent away
    assert answer.status_code == 200
    given = answer.json()
    assert (given["resourceId"], given["title"]) == ("other", "Title")
    assert given["createdAt"] == made["createdAt"]
    assert (await transfer(api, "t", "other")).json() == given
    for path in (
        f"{THREADS}/t",
        f"{THREADS}/t/messages",
        f"/api/runs/{sent['runId']}",
        "/api/threads/t/inbox",
    ):
        assert (await api.get(path, params={"resourceId": "owner"})).status_code == 403
        assert (await api.get(path, params={"resourceId": "other"})).status_code == 200
    assert await names(api) == []
    assert await names(api, resourceId="other") == ["t"]
    rows = (await api.get(f"{THREADS}/t/messages")).json()["messages"]
    assert {row["resourceId"] for row in rows} == {"other"}


async def test_who_is_bound_to_a_resource_gives_nothing_away(system: System) -> None:
    async def bound(_: object) -> Principal:
        return Principal("owner")

    app = create_app(system)
    app.state.context = Context(system, bound)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as api:
        made = await create(api, threadId="t", resourceId="other")
        assert made["resourceId"] == "owner"  # whatever the body says
        answer = await transfer(api, "t", "other", **AGENT)
        assert answer.status_code == 403
        answer = await patch(api, "t", title="mine")
        assert answer.status_code == 200
    async with client_of(system) as anybody:
        await create(anybody, threadId="theirs", resourceId="other")
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as api:
        answer = await patch(api, "theirs", title="mine")
        assert (answer.status_code, answer.json()) == (403, DIFFERENT)


async def test_nobody_changes_a_thread_of_another(api: httpx.AsyncClient, system: System) -> None:
    await create(api, threadId="t", title="Title")
    before = stored(system)
    theirs = {**AGENT, "resourceId": "intruder"}
    answers = [
        await api.post(THREADS, params=AGENT, json={"threadId": "t", "resourceId": "intruder"}),
        await api.patch(f"{THREADS}/t", params=theirs, json={"title": "x"}),
        await api.post(f"{THREADS}/t/transfer", params=theirs, json={"resourceId": "intruder"}),
        await api.delete(f"{THREADS}/t", params=theirs),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()) == (403, DIFFERENT)
    assert stored(system) == before
    assert (await api.get(f"{THREADS}/t")).json()["title"] == "Title"


async def test_what_is_not_there_cannot_be_changed(api: httpx.AsyncClient, system: System) -> None:
    for answer in (await patch(api, "none", title="x"), await transfer(api, "none", "other")):
        assert (answer.status_code, answer.json()) == (404, {"error": "Thread not found"})
    for query in ("agentId=nope",):
        for method, path in (("POST", ""), ("PATCH", "/t"), ("POST", "/t/transfer")):
            body = {"resourceId": "owner"}
            answer = await api.request(method, f"{THREADS}{path}?{query}", json=body)
            assert answer.json() == {"error": "Agent with id nope not found"}
    assert stored(system) == 0


@pytest.mark.parametrize(("method", "path"), [("POST", ""), ("PATCH", "/t"), ("DELETE", "/t")])
async def test_changes_name_an_agent(
    api: httpx.AsyncClient, system: System, method: str, path: str
) -> None:
    body = None if method == "DELETE" else {"resourceId": "owner"}
    answer = await api.request(method, f"{THREADS}{path}", json=body)
    assert answer.status_code == 400
    assert answer.json() == {
        "error": "Invalid query parameters",
        "issues": [{"field": "agentId", "message": "agentId is required"}],
    }
    assert stored(system) == 0


LARGE = {"x": "y" * 300_000}
BAD: list[tuple[str, str, Any, int, str]] = [
    ("POST", "", {}, 400, "resourceId"),
    ("POST", "", {"resourceId": None}, 400, "resourceId"),
    ("POST", "", {"resourceId": ""}, 400, "resourceId"),
    ("POST", "", {"resourceId": 7}, 400, "resourceId"),
    ("POST", "", {"resourceId": "r", "threadId": ""}, 400, "threadId"),
    ("POST", "", {"resourceId": "r", "threadId": "t" * 257}, 400, "threadId"),
    ("POST", "", {"resourceId": "r", "threadId": "a\nb"}, 400, "threadId"),
    ("POST", "", {"resourceId": "r", "title": 7}, 400, "title"),
    ("POST", "", {"resourceId": "r", "title": "\ud800"}, 400, "title"),
    ("POST", "", {"resourceId": "r", "metadata": []}, 400, "metadata"),
    ("POST", "", {"resourceId": "r", "metadata": {"a": float("nan")}}, 400, "metadata.a"),
    ("POST", "", {"resourceId": "r", "metadata": {"a": "\ud800"}}, 400, "metadata.a"),
    ("POST", "", {"resourceId": "r", "metadata": LARGE}, 413, "metadata"),
    ("POST", "", {"resourceId": "r", "title": LARGE["x"]}, 413, "title"),
    ("POST", "", [], 400, "body"),
    ("PATCH", "/t", {"title": []}, 400, "title"),
    ("PATCH", "/t", {"metadata": "x"}, 400, "metadata"),
    ("PATCH", "/t", {"metadata": LARGE}, 413, "metadata"),
    ("PATCH", "/t", {"resourceId": ""}, 400, "resourceId"),
    ("PATCH", "/t", "x", 400, "body"),
    ("POST", "/t/transfer", {}, 400, "resourceId"),
    ("POST", "/t/transfer", {"resourceId": None}, 400, "resourceId"),
    ("POST", "/t/transfer", {"resourceId": "r" * 257}, 400, "resourceId"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "field"), BAD)
async def test_a_bad_body_is_told_by_field_and_stores_nothing(
    api: httpx.AsyncClient, system: System, method: str, path: str, body: Any, status: int,
    field: str,
) -> None:  # fmt: skip
    content = json.dumps(body)
    answer = await api.request(
        method, f"{THREADS}{path}", params=AGENT, content=content, headers=JSON
    )
    assert answer.status_code == status, answer.text
    assert answer.json()["error"] == "Invalid request body"
    (issue,) = answer.json()["issues"]
    assert issue["field"] == field
    assert issue["message"]
    assert stored(system) == 0


BODIES = ANYTHING | st.dictionaries(
    st.sampled_from(["threadId", "resourceId", "title", "metadata", "agentId"]),
    ANYTHING | st.sampled_from(["t", "owner"]),
)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(where=st.sampled_from([("POST", ""), ("PATCH", "/t"), ("POST", "/t/transfer")]), body=BODIES)
async def test_no_body_breaks_a_route(
    api: httpx.AsyncClient, where: tuple[str, str], body: Any
) -> None:
    method, path = where
    answer = await api.request(
        method, f"{THREADS}{path}", params=AGENT, content=json.dumps(body), headers=JSON
    )
    assert answer.status_code in (200, 400, 403, 404, 409), answer.text
    assert answer.status_code == 200 or answer.json()["error"]


@pytest.mark.parametrize("thread", ["slack:C1:1.2/3", "a/transfer", "a/messages", "%2F", "a b?#"])
async def test_odd_thread_ids_survive(api: httpx.AsyncClient, thread: str) -> None:
    assert (await create(api, threadId=thread))["id"] == thread
    changed = await patch(api, thread, title="new")
    assert (changed.json()["id"], changed.json()["title"]) == (thread, "new")
    assert (await transfer(api, thread, "other")).json()["id"] == thread
    answer = await api.delete(f"{THREADS}/{quote(thread, safe='')}", params=AGENT)
    assert answer.json() == {"result": "Thread deleted"}
    assert (await create(api, threadId=thread))["title"] == ""


async def test_threads_are_found_by_their_metadata(api: httpx.AsyncClient) -> None:
    nested = {"kind": "a", "at": {"x": [1, {"y": True}], "z": None}}
    await create(api, threadId="one", metadata=nested)
    await create(api, threadId="two", metadata={"kind": "a", "n": 1})
    await create(api, threadId="three", metadata={"kind": "b", "n": True})
    await create(api, threadId="four")
    for wanted, found in (
        ({}, {"one", "two", "three", "four"}),
        ({"kind": "a"}, {"one", "two"}),
        ({"kind": "a", "n": 1}, {"two"}),
        ({"n": 1.0}, {"two"}),
        ({"n": True}, {"three"}),
        ({"at": {"x": [1, {"y": True}], "z": None}}, {"one"}),
        ({"at": {"x": [1, {"y": 1}], "z": None}}, set()),
        ({"at": {"x": [1]}}, set()),
        ({"none": None}, set()),
    ):
        assert set(await names(api, metadata=json.dumps(wanted))) == found, wanted
    page = (
        await api.get(
            THREADS,
            params={"resourceId": "owner", "metadata": '{"kind":"a"}', "perPage": 1},
        )
    ).json()
    assert (page["total"], len(page["threads"]), page["hasMore"]) == (2, 1, True)


async def test_threads_are_listed_in_the_order_that_is_asked_for(
    api: httpx.AsyncClient, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_700_000_000_000
    monkeypatch.setattr(type(system.clock), "now", lambda _: now)
    for thread in "abc":
        now += 1_000
        await create(api, threadId=thread)
    now += 1_000
    await patch(api, "a", title="changed")
    down, up = ["c", "b", "a"], ["a", "b", "c"]
    assert await names(api) == ["a", "c", "b"]
    for params, order in (
        ({"orderBy[field]": "createdAt"}, down),
        ({"orderBy[field]": "createdAt", "orderBy[direction]": "ASC"}, up),
        ({"orderBy[field]": "updatedAt", "orderBy[direction]": "DESC"}, ["a", "c", "b"]),
        ({"orderBy[direction]": "ASC"}, ["b", "c", "a"]),
        ({"orderBy": "createdAt", "sortDirection": "ASC"}, up),
        ({"orderBy": "createdAt", "sortDirection": "DESC"}, down),
        ({"sortDirection": "ASC"}, ["b", "c", "a"]),
    ):
        assert await names(api, **params) == order, params
    assert await names(api, **{"orderBy[field]": "createdAt", "page": 1, "perPage": 2}) == ["a"]
