"""The API's plain requests: what is answered, and what is around the routes."""

import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions.api.app import create_app
from shared.bootstrap import System, build
from shared.core.errors import Misconfigured, Unavailable
from shared.settings import Settings
from tests.apps import scripted

ECHO = "/api/agents/echo-agent"
THREAD = {"resourceId": "owner", "threadId": "thread"}


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    system = build_system(tmp_path)
    yield system
    await system.stop()


@pytest.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(system) as client:
        yield client


def build_system(folder: Path, **settings: Any) -> System:
    return build(scripted.build(), Settings(db_file=str(folder / "test.db"), **settings))


def client_of(system: System) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(system))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def stored(system: System) -> int:
    """Count every record and every wake-up."""
    with sqlite3.connect(system.settings.db_file) as connection:
        counts = connection.execute(
            "SELECT (SELECT count(*) FROM items), (SELECT count(*) FROM wakes)"
        ).fetchone()
    connection.close()
    return sum(counts)


async def send(api: httpx.AsyncClient, message: Any = "hi", **more: Any) -> dict[str, Any]:
    answer = await api.post(f"{ECHO}/send-message", json={"message": message, **THREAD, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


# ---- agents and the process ------------------------------------------------------------------


async def test_agents_are_listed_and_described(api: httpx.AsyncClient) -> None:
    agents = (await api.get("/api/agents")).json()
    assert "durable-slow-agent" in agents
    for path in ("/api/agents/tool-agent", "/api/agents/tool-agent/"):
        assert (await api.get(path)).json() == agents["tool-agent"]
    assert agents["tool-agent"]["tools"]["add"]["inputSchema"]["type"] == "object"


async def test_health_tells_the_version(api: httpx.AsyncClient) -> None:
    health = (await api.get("/healthz")).json()
    assert health["ok"] is True
    assert health["version"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("POST", "/send-message", {"message": "hi", **THREAD}),
        ("POST", "/queue-message", {"message": "hi", **THREAD}),
        ("POST", "/signals", {"signal": {"type": "user", "contents": "hi"}, **THREAD}),
        ("POST", "/threads/subscribe", THREAD),
        ("POST", "/threads/abort", THREAD),
    ],
)
async def test_an_unknown_agent_is_not_found(
    api: httpx.AsyncClient, system: System, method: str, path: str, body: Any
) -> None:
    answer = await api.request(method, f"/api/agents/no-such-agent{path}", json=body)
    assert answer.status_code == 404
    assert answer.json() == {"error": "Agent with id no-such-agent not found"}
    assert stored(system) == 0


async def test_unknown_paths_and_methods_are_told_as_json(api: httpx.AsyncClient) -> None:
    answer = await api.get("/api/no%20such?x=1")
    assert answer.status_code == 404
    assert answer.json() == {"error": "Not Found: GET /api/no%20such"}
    answer = await api.get(f"{ECHO}/send-message")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    answer = await api.delete("/api/agents")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert answer.json() == {"error": "Method Not Allowed: DELETE /api/agents"}


async def test_the_description_loads_and_tells_errors(api: httpx.AsyncClient) -> None:
    assert (await api.get("/docs")).status_code == 200
    description = (await api.get("/openapi.json")).json()
    for path, operations in description["paths"].items():
        for operation in operations.values():
            assert operation["summary"]
            assert "422" not in operation["responses"]
            if "{" in path:
                assert {"400", "403", "404"} <= set(operation["responses"])
    body = description["paths"]["/api/agents/{agent}/send-message"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["$ref"].endswith("/SendMessage")


# ---- sending ---------------------------------------------------------------------------------


async def test_a_message_is_acknowledged_with_its_signal_and_run(api: httpx.AsyncClient) -> None:
    message = {"contents": "hi", "attributes": {"a": 1}, "metadata": {"m": [1, {"x": None}]}}
    answer = await send(api, message)
    assert answer["accepted"] is True
    assert answer["action"] == "wake"
    signal = answer["signal"]
    assert (signal["type"], signal["tagName"], signal["contents"]) == ("user", "user", "hi")
    assert signal["metadata"] == message["metadata"]
    assert signal["__isCreatedSignal"] is True
    again = await send(api, "more")
    assert (again["action"], again["runId"]) == ("deliver", answer["runId"])
    assert again["signal"]["id"] != signal["id"]


async def test_a_queued_message_gets_a_run_of_its_own(api: httpx.AsyncClient) -> None:
    first = await send(api)
    answer = await api.post(f"{ECHO}/queue-message", json={"message": "later", **THREAD})
    queued = answer.json()
    assert (queued["accepted"], queued["action"]) == (True, "deliver")
    assert queued["runId"] != first["runId"]


@pytest.mark.parametrize("behavior", ["persist", "discard"])
async def test_a_signal_without_a_run_is_answered_with_its_own_id(
    api: httpx.AsyncClient, behavior: str
) -> None:
    body = {"signal": {"id": "s1", "type": "notification", "contents": "x"}, **THREAD}
    answer = await api.post(f"{ECHO}/signals", json={**body, "ifIdle": {"behavior": behavior}})
    assert answer.json()["action"] == behavior
    assert answer.json()["runId"] == answer.json()["signal"]["id"] == "s1"


async def test_the_branch_that_applies_adds_its_attributes(api: httpx.AsyncClient) -> None:
    branches = {
        "ifIdle": {"attributes": {"w": "idle"}},
        "ifActive": {"attributes": {"w": "active"}},
    }
    first, second = [await send(api, "hi", **branches) for _ in range(2)]
    assert first["signal"]["attributes"] == {"w": "idle"}
    assert second["signal"]["attributes"] == {"w": "active"}


async def test_repeats_get_the_first_answer(api: httpx.AsyncClient, system: System) -> None:
    message = {"contents": "hi", "metadata": {"clientMessageId": "c1"}}
    first = await send(api, message)
    before = stored(system)
    assert await send(api, message) == first
    key = {"Idempotency-Key": "k1"}
    bodies = [{"message": text, **THREAD} for text in ("a", "a", "b")]
    answers = [await api.post(f"{ECHO}/send-message", json=b, headers=key) for b in bodies]
    assert answers[0].json() == answers[1].json()
    assert answers[2].status_code == 409
    assert "used for another request" in answers[2].json()["error"]
    assert stored(system) == before + 3  # receipt, key and item of the one new message


async def test_a_run_that_is_unknown_is_not_found(api: httpx.AsyncClient) -> None:
    answer = await api.post(f"{ECHO}/send-message", json={"message": "x", "runId": "nope"})
    assert answer.status_code == 404
    assert answer.json() == {"error": "No active agent run found for signal target"}


# ---- around the routes -----------------------------------------------------------------------


async def test_abort_tells_whether_there_was_a_run(api: httpx.AsyncClient) -> None:
    run = (await send(api))["runId"]

    async def abort(**more: Any) -> Any:
        return (await api.post(f"{ECHO}/threads/abort", json={**THREAD, **more})).json()

    assert await abort(threadId="other") == {"aborted": False}
    assert await abort(expectedRunId="other") == {"aborted": False}
    assert await abort(expectedRunId=run) == {"aborted": True}


async def test_a_store_that_does_not_answer_is_503_with_a_time(
    api: httpx.AsyncClient, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: Any, **__: Any) -> None:
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(system.accept, "send", unavailable)
    answer = await api.post(f"{ECHO}/send-message", json={"message": "x", **THREAD})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json() == {"error": "the store does not answer"}


async def test_what_nobody_expected_is_logged_and_told_without_details(
    system: System, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(system.accept, "send", broken)
    async with client_of(system) as api:
        with caplog.at_level(logging.ERROR):
            answer = await api.post(f"{ECHO}/send-message", json={"message": "x", **THREAD})
    assert (answer.status_code, answer.json()) == (500, {"error": "Internal error"})
    assert "ZeroDivisionError: secret" in caplog.text


async def test_pages_of_other_origins_are_let_in_by_setting(tmp_path: Path) -> None:
    origin = "https://app.example"
    system = build_system(tmp_path, cors_origins=(origin,))
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-a"}
    async with client_of(system) as api:
        for path in ("/api/agents", "/api/no-such"):
            answer = await api.get(path, headers={"origin": origin})
            assert answer.headers["access-control-allow-origin"] == origin
        preflight = await api.options(f"{ECHO}/signals", headers={"origin": origin, **asked})
        assert preflight.status_code == 200
        other = await api.get("/api/agents", headers={"origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers
    await system.stop()


async def test_without_the_setting_no_origin_is_let_in(api: httpx.AsyncClient) -> None:
    answer = await api.get("/api/agents", headers={"origin": "https://app.example"})
    assert "access-control-allow-origin" not in answer.headers


async def test_an_unknown_way_to_know_callers_is_refused_at_the_start(tmp_path: Path) -> None:
    system = build_system(tmp_path, auth="magic")
    with pytest.raises(Misconfigured, match="magic"):
        create_app(system)
    await system.stop()
