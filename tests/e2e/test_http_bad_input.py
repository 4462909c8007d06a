"""Input that cannot be accepted: what is answered, and that nothing is stored."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.bootstrap import System
from tests.e2e.test_http_requests import ECHO, THREAD, build_system, client_of, stored


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    system = build_system(tmp_path)
    yield system
    await system.stop()


@pytest.fixture
async def api(system: System) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(system) as client:
        yield client


JSON = {"content-type": "application/json"}
MIB = 1024 * 1024
NOTE = {"type": "notification", "contents": "x"}
BAD_BODIES: list[tuple[str, dict[str, Any], str]] = [
    ("send-message", THREAD, "message"),
    ("send-message", {"message": 7, **THREAD}, "message"),
    ("send-message", {"message": None, **THREAD}, "message"),
    ("send-message", {"message": [{"type": "image"}], **THREAD}, "message.0"),
    ("send-message", {"message": "x"}, "resourceId"),
    ("send-message", {"message": "x", "resourceId": "only"}, "threadId"),
    ("queue-message", {"message": "x", "resourceId": "only"}, "threadId"),
    ("send-message", {"message": "x", **THREAD, "threadId": ""}, "threadId"),
    ("send-message", {"message": "x", **THREAD, "threadId": "t" * 257}, "threadId"),
    ("send-message", {"message": "x", **THREAD, "resourceId": 7}, "resourceId"),
    ("send-message", {"message": "x", "runId": "r", "ifIdle": {}}, "ifIdle"),
    ("send-message", {"message": "\ud800", **THREAD}, "message"),
    ("send-message", {"message": "x", **THREAD, "junk": ["\ud800"]}, "body.junk.0"),
    ("send-message", {"message": "x", **THREAD, "junk": float("nan")}, "body.junk"),
    (
        "send-message",
        {"message": {"contents": "x", "metadata": {"clientMessageId": ""}}, **THREAD},
        "message.metadata.clientMessageId",
    ),
    (
        "send-message",
        {"message": {"contents": "x", "attributes": {"a b": 1}}, **THREAD},
        "message.attributes.a b",
    ),
    ("signals", {"signal": {**NOTE, "type": "no-such-type"}, **THREAD}, "signal.type"),
    ("signals", {"signal": {**NOTE, "tagName": "a b<"}, **THREAD}, "signal.tagName"),
    ("signals", {"signal": {**NOTE, "id": ""}, **THREAD}, "signal.id"),
    ("signals", {"signal": {"type": "user"}, **THREAD}, "signal.contents"),
    ("signals", {"signal": "x", **THREAD}, "signal"),
    ("signals", {"signal": NOTE, **THREAD, "ifIdle": {"behavior": "explode"}}, "ifIdle.behavior"),
    ("signals", {"signal": NOTE, **THREAD, "ifActive": 1}, "ifActive"),
    ("threads/subscribe", {"resourceId": "r"}, "threadId"),
    ("threads/subscribe", {"threadId": None}, "threadId"),
    ("threads/abort", {"resourceId": "r"}, "threadId"),
    ("threads/abort", {"threadId": "t", "expectedRunId": ""}, "expectedRunId"),
]


@pytest.mark.parametrize(("path", "body", "field"), BAD_BODIES)
async def test_a_bad_body_is_told_by_field_and_stores_nothing(
    api: httpx.AsyncClient, system: System, path: str, body: dict[str, Any], field: str
) -> None:
    answer = await api.post(f"{ECHO}/{path}", content=json.dumps(body), headers=JSON)
    assert answer.status_code == 400
    told = answer.json()
    assert told["error"] == "Invalid request body" or "XML" in told["error"]
    assert [issue["field"] for issue in told["issues"]] == [field]
    assert told["issues"][0]["message"]
    assert stored(system) == 0


@pytest.mark.parametrize(
    "content", [b"", b"{nope", b"hello", b"\xff\xfe\xfd", b"[1]", b'"x"', b"null", b"[" * 50_000]
)
async def test_what_is_no_json_object_is_refused(
    api: httpx.AsyncClient, system: System, content: bytes
) -> None:
    answer = await api.post(f"{ECHO}/send-message", content=content, headers=JSON)
    assert answer.status_code == 400
    told = answer.json()
    assert told["error"] == "Invalid request body"
    assert told["issues"][0]["field"] == "body"
    assert "application/json" in told["issues"][0]["message"]
    assert stored(system) == 0


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}])
async def test_json_must_be_called_json(api: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """Otherwise a page of another site could send it without being asked (no preflight)."""
    content = b'{"message":"x","resourceId":"r","threadId":"t"}'
    answer = await api.post(f"{ECHO}/send-message", content=content, headers=headers)
    assert answer.status_code == 400
    assert "application/json" in answer.json()["issues"][0]["message"]


async def test_bad_names_are_told_in_the_error_itself(api: httpx.AsyncClient) -> None:
    body = {"signal": {**NOTE, "tagName": "a b<"}, **THREAD}
    answer = await api.post(f"{ECHO}/signals", json=body)
    assert answer.json()["error"] == "Invalid signal XML tag name: a b<"


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("path", [f"{ECHO}/send-message", f"{ECHO}/signals", "/api/no-such"])
async def test_a_body_of_five_megabytes_is_too_large(
    api: httpx.AsyncClient, system: System, path: str, declared: bool
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(content), MIB):
            yield content[at : at + MIB]

    content = b'{"message":"' + b"x" * (5 * MIB) + b'","resourceId":"r","threadId":"t"}'
    answer = await api.post(path, content=content if declared else pieces(), headers=JSON)
    if path.endswith("no-such") and not declared:
        assert answer.status_code == 404  # nobody reads the body
    else:
        assert answer.status_code == 413
        assert "4000000 bytes" in answer.json()["error"]
    assert stored(system) == 0


async def test_a_message_over_its_own_limit_is_too_large(
    api: httpx.AsyncClient, system: System
) -> None:
    body = {"message": "x" * 3_500_000, **THREAD}
    answer = await api.post(f"{ECHO}/send-message", json=body)
    assert answer.status_code == 413
    assert answer.json()["issues"][0]["field"] == "message"
    assert stored(system) == 0


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
NAMED = st.fixed_dictionaries(
    {"type": st.sampled_from(["user", "state", "text"]) | ANYTHING, "contents": ANYTHING},
    optional={
        name: ANYTHING
        for name in ("id", "attributes", "metadata", "behavior", "tagName", "streamOptions")
    },
)
KEYS = ["threadId", "resourceId", "runId", "message", "signal", "ifActive", "ifIdle", "junk"]
CHANGES = st.dictionaries(st.sampled_from(KEYS), ANYTHING | NAMED, max_size=2)
VALID = {"message": "x", "signal": NOTE, **THREAD}
BODIES = ANYTHING | CHANGES.map(lambda changes: {**VALID, **changes})
ROUTES = ["send-message", "queue-message", "signals", "threads/abort"]


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(path=st.sampled_from(ROUTES), body=BODIES)
async def test_no_body_breaks_a_route(api: httpx.AsyncClient, path: str, body: Any) -> None:
    answer = await api.post(f"{ECHO}/{path}", content=json.dumps(body), headers=JSON)
    assert answer.status_code in (200, 400, 403, 404, 409), answer.text
    assert answer.status_code == 200 or answer.json()["error"]


@pytest.mark.parametrize("key", ["", "k" * 257])
async def test_a_bad_idempotency_key_is_refused(api: httpx.AsyncClient, key: str) -> None:
    headers = {"Idempotency-Key": key}
    answer = await api.post(
        f"{ECHO}/send-message", json={"message": "x", **THREAD}, headers=headers
    )
    assert answer.status_code == 400
    assert answer.json()["error"] == "Invalid request headers"
    assert answer.json()["issues"][0]["field"] == "Idempotency-Key"
