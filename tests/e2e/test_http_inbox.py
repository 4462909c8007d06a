"""What became of a signal, what waits, taking it back; runs by their id."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from shared.bootstrap import System
from shared.ports import WakeUp
from tests.e2e.test_http_requests import ECHO, THREAD, build_system, client_of, send, stored

OWNER = {"resourceId": "owner"}
THEIRS = {"resourceId": "intruder"}


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    system = build_system(tmp_path)
    yield system
    await system.stop()


@pytest.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(system) as client:
        yield client


async def queue(api: httpx.AsyncClient, message: str, **more: Any) -> dict[str, Any]:
    answer = await api.post(f"{ECHO}/queue-message", json={"message": message, **THREAD, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def get(api: httpx.AsyncClient, path: str, **params: Any) -> Any:
    answer = await api.get(f"/api{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def work(system: System, thread: str = "thread") -> None:
    """Do all that the thread needs."""
    await system.advance.advance(WakeUp(thread, 1))


def without_times(shown: dict[str, Any]) -> dict[str, Any]:
    assert all(value.endswith("Z") for key, value in shown.items() if key.endswith("At"))
    return {key: value for key, value in shown.items() if not key.endswith("At")}


async def test_a_signal_tells_what_became_of_it(api: httpx.AsyncClient, system: System) -> None:
    sent = await send(api)
    path = f"/threads/thread/signals/{sent['signal']['id']}"
    shown = await get(api, path, **OWNER)
    waits = {"id": sent["signal"]["id"], "state": "accepted", "runId": sent["runId"]}
    assert without_times(shown) == waits
    assert shown["acceptedAt"] == sent["signal"]["acceptedAt"]
    await work(system)
    shown = await get(api, path)
    assert without_times(shown) == {**waits, "state": "delivered", "step": 0}
    assert shown["deliveredAt"] >= shown["acceptedAt"]


async def test_a_signal_that_was_dropped_has_no_run(api: httpx.AsyncClient) -> None:
    await send(api)
    note = {"id": "n1", "type": "notification", "contents": "x"}
    body = {"signal": note, **THREAD, "ifActive": {"behavior": "discard"}}
    assert (await api.post(f"{ECHO}/signals", json=body)).status_code == 200
    shown = await get(api, "/threads/thread/signals/n1")
    assert without_times(shown) == {"id": "n1", "state": "discarded"}


async def test_a_kept_signal_tells_where_it_stands(api: httpx.AsyncClient, system: System) -> None:
    note = {"id": "n1", "type": "notification", "contents": "x"}
    body = {"signal": note, **THREAD, "ifIdle": {"behavior": "persist"}}
    assert (await api.post(f"{ECHO}/signals", json=body)).status_code == 200
    (item,) = (await get(api, "/threads/thread/inbox"))["items"]
    assert (item["signal"]["id"], item["state"], "runId" in item) == ("n1", "accepted", False)
    await work(system)
    shown = await get(api, "/threads/thread/signals/n1")
    assert (shown["state"], shown["step"]) == ("persisted", 0)
    (entry,) = (await get(api, f"/runs/{shown['runId']}/steps"))["steps"]
    assert (entry["kind"], [s["id"] for s in entry["signals"]]) == ("note", ["n1"])


async def test_the_inbox_lists_what_waits_in_order_and_in_pages(api: httpx.AsyncClient) -> None:
    first = await send(api, "first")
    queued = [await queue(api, f"q{n}") for n in range(3)]
    second = await send(api, "second")
    shown = await get(api, "/threads/thread/inbox", **OWNER)
    assert shown["total"] == 5
    assert [item["signal"] for item in shown["items"]] == [
        each["signal"] for each in (second, first, *queued)
    ]
    assert [item["state"] for item in shown["items"]] == ["accepted"] * 2 + ["queued"] * 3
    assert [item["runId"] for item in shown["items"]] == [
        each["runId"] for each in (second, first, *queued)
    ]
    pages = [await get(api, "/threads/thread/inbox", page=n, perPage=2) for n in range(4)]
    assert [item for page in pages for item in page["items"]] == shown["items"]
    assert {page["total"] for page in pages} == {5}
    assert await get(api, "/threads/thread/inbox", perPage=0) == {"items": [], "total": 5}


async def test_what_waits_can_be_taken_back_once(api: httpx.AsyncClient, system: System) -> None:
    first, second = await send(api, "first"), await queue(api, "second")
    path = f"/api/threads/thread/inbox/{second['signal']['id']}"
    for _ in range(2):
        answer = await api.delete(path, params=OWNER)
        assert (answer.status_code, answer.json()) == (200, {"cancelled": True})
    shown = await get(api, f"/threads/thread/signals/{second['signal']['id']}")
    assert (shown["state"], shown["runId"]) == ("cancelled", second["runId"])
    assert (await get(api, f"/runs/{second['runId']}"))["status"] == "cancelled"
    assert (await get(api, f"/runs/{second['runId']}/steps"))["steps"] == []
    await work(system)
    for id in (first["signal"]["id"], "no-such-signal"):
        answer = await api.delete(f"/api/threads/thread/inbox/{id}")
        assert (answer.status_code, answer.json()) == (200, {"cancelled": False})
    rows = (await get(api, "/memory/threads/thread/messages"))["messages"]
    assert [row["role"] for row in rows] == ["signal", "assistant"]


async def test_a_run_and_its_journal_are_shown(api: httpx.AsyncClient, system: System) -> None:
    body = {"message": "steps 2", **THREAD}
    sent = (await api.post("/api/agents/tool-agent/send-message", json=body)).json()
    path = f"/runs/{sent['runId']}"
    head = await get(api, path, **OWNER)
    assert without_times(head) == {
        "runId": sent["runId"], "threadId": "thread", "resourceId": "owner",
        "agentId": "tool-agent", "status": "prepared",
    }  # fmt: skip
    assert await get(api, f"{path}/steps") == {
        "steps": [], "total": 0, "page": 0, "perPage": 100, "hasMore": False,
    }  # fmt: skip
    await work(system)
    head = await get(api, path)
    assert (head["status"], head["reason"]) == ("completed", "stop")
    assert head["createdAt"] <= head["startedAt"] <= head["finishedAt"]
    assert {"inputTokens", "outputTokens"} <= set(head["usage"])
    whole = await get(api, f"{path}/steps")
    steps = whole["steps"]
    assert [step["kind"] for step in steps] == [
        "input", *["model", "result"] * 2, "model", "finish",
    ]  # fmt: skip
    assert [step["position"] for step in steps] == list(range(whole["total"]))
    assert steps[0]["signals"][0]["id"] == sent["signal"]["id"]
    (call,) = (part for part in steps[1]["parts"] if part["type"] == "call")
    assert call["callId"] == steps[2]["callId"]
    assert set(call["args"]) == {"a", "b"}
    keys = {key for step in steps for key in step}
    assert not {"nonce", "format", "rows", "k0", "k1", "index0"} & keys
    assert not [key for key in keys if "_" in key]
    pages = [await get(api, f"{path}/steps", page=n, perPage=3) for n in range(4)]
    assert [step for page in pages for step in page["steps"]] == steps
    assert [page["hasMore"] for page in pages] == [True, True, False, False]


async def test_a_run_is_cancelled_once(api: httpx.AsyncClient, system: System) -> None:
    sent = await send(api)
    path = f"/api/runs/{sent['runId']}/cancel"
    for _ in range(2):
        answer = await api.post(path, params=OWNER)
        assert (answer.status_code, answer.json()) == (202, {"cancelling": True})
    await work(system)
    assert (await get(api, f"/runs/{sent['runId']}"))["status"] == "cancelled"
    answer = await api.post(path)
    assert answer.status_code == 409
    assert sent["runId"] in answer.json()["error"]


async def test_nobody_reaches_what_belongs_to_another(
    api: httpx.AsyncClient, system: System
) -> None:
    sent = await send(api)
    signal, run = sent["signal"]["id"], sent["runId"]
    before = stored(system)
    for method, path in (
        ("GET", f"threads/thread/signals/{signal}"),
        ("GET", "threads/thread/signals/no-such"),
        ("GET", "threads/thread/inbox"),
        ("DELETE", f"threads/thread/inbox/{signal}"),
        ("GET", f"runs/{run}"),
        ("GET", f"runs/{run}/steps"),
        ("POST", f"runs/{run}/cancel"),
    ):
        answer = await api.request(method, f"/api/{path}", params=THEIRS)
        assert answer.status_code == 403, path
        assert "different resource" in answer.json()["error"]
        assert signal not in answer.text
    assert stored(system) == before


@pytest.mark.parametrize(
    ("method", "path", "error"),
    [
        ("GET", "threads/none/signals/x", "Thread not found"),
        ("GET", "threads/thread/signals/none", "Signal not found"),
        ("GET", "threads/none/inbox", "Thread not found"),
        ("DELETE", "threads/none/inbox/x", "Thread not found"),
        ("GET", "runs/none", "Run not found"),
        ("GET", "runs/none/steps", "Run not found"),
        ("POST", "runs/none/cancel", "Run not found"),
    ],
)
async def test_what_is_not_there_is_not_found(
    api: httpx.AsyncClient, method: str, path: str, error: str
) -> None:
    await send(api)
    answer = await api.request(method, f"/api/{path}")
    assert (answer.status_code, answer.json()) == (404, {"error": error})


async def test_a_deleted_thread_takes_all_of_it_along(api: httpx.AsyncClient) -> None:
    sent = await send(api)
    await api.delete("/api/memory/threads/thread?agentId=echo-agent")
    for path in (
        f"threads/thread/signals/{sent['signal']['id']}",
        "threads/thread/inbox",
        f"runs/{sent['runId']}",
        f"runs/{sent['runId']}/steps",
    ):
        assert (await api.get(f"/api/{path}")).status_code == 404
    await send(api)  # made anew: the old run is none of it
    assert (await api.get(f"/api/runs/{sent['runId']}")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"threads/thread/signals/{'x' * 257}"),
        ("GET", "threads/thread/signals/a%00b"),
        ("GET", f"threads/{'x' * 257}/inbox"),
        ("GET", "threads/thread/inbox?page=-1"),
        ("GET", "threads/thread/inbox?perPage=x"),
        ("DELETE", "threads/thread/inbox/a%09b"),
        ("DELETE", "threads/thread/inbox/x?resourceId="),
        ("GET", f"runs/{'x' * 257}"),
        ("GET", "runs/x/steps?page=1.5"),
        ("POST", "runs/a%00b/cancel"),
    ],
)
async def test_bad_paths_and_queries_are_told_by_field(
    api: httpx.AsyncClient, system: System, method: str, path: str
) -> None:
    answer = await api.request(method, f"/api/{path}")
    assert answer.status_code == 400
    assert answer.json()["issues"][0]["message"]
    assert stored(system) == 0


@pytest.mark.parametrize("thread", ["slack:C1:1.2/3", "a/inbox", "a/signals", "%2F", "a b?c#d"])
@pytest.mark.parametrize("signal", ["a/b", "events", "inbox", "messages", "%2F", "x y?#"])
async def test_odd_ids_survive(api: httpx.AsyncClient, thread: str, signal: str) -> None:
    note = {"id": signal, "type": "user", "contents": "x"}
    body = {"signal": note, "resourceId": "owner", "threadId": thread}
    assert (await api.post(f"{ECHO}/signals", json=body)).status_code == 200
    path = f"/threads/{quote(thread, safe='')}"
    assert (await get(api, f"{path}/inbox"))["total"] == 1
    shown = await get(api, f"{path}/signals/{quote(signal, safe='')}")
    assert (shown["id"], shown["state"]) == (signal, "accepted")
    answer = await api.delete(f"/api{path}/inbox/{quote(signal, safe='')}")
    assert answer.json() == {"cancelled": True}
