"""`wakeline chat` against a scripted server."""

import io

import pytest

from infra.commands.chat import talk
from infra.local.follow import sse_events
from infra.local.server import free_port
from tests.infra.fake_server import Chunk, fake_server


def text(words: str) -> Chunk:
    return {"type": "text-delta", "payload": {"id": "t", "text": words}}


FINISH: Chunk = {"type": "finish", "payload": {}}
ANSWER: list[Chunk | None] = [{"type": "start"}, text("hello "), text("[there]"), FINISH]


def pipe(monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))


def test_events_are_read_as_a_browser_reads_them() -> None:
    lines = [
        "retry: 500",
        "",
        ": hi",
        "",
        "id: 7",
        "data: a",
        "data:b",
        "",
        "data: c",
        "",
        "data: d",
    ]
    assert list(sse_events(lines)) == [("7", "a\nb"), (None, "c")]


def test_a_piped_line_is_sent_and_its_run_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, "hi\n\nagain\n")
    with fake_server(ANSWER, [text("second"), FINISH]) as server:
        assert talk("echo", url=server.url, thread="t1", resource="me") == 0
        target = {"threadId": "t1", "resourceId": "me"}
        assert server.messages == [{"message": "hi", **target}, {"message": "again", **target}]
    assert capsys.readouterr().out == "hello [there]\nsecond\n"


def test_tool_calls_and_errors_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, "hi\n")
    call = {"toolCallId": "c", "toolName": "add", "args": {"a": 1}}
    script: list[Chunk | None] = [
        text("let me see"),
        {"type": "tool-call", "payload": call},
        {"type": "tool-result", "payload": {**call, "result": 2}},
        {"type": "error", "payload": {"error": {"message": "no model", "name": "Error"}}},
    ]
    with fake_server(script) as server:
        assert talk("echo", url=server.url, thread=None, resource="me") == 1
    assert capsys.readouterr().out == 'let me see\n→ add({"a": 1})\n← add: 2\nerror: no model\n'


def test_a_cut_stream_goes_on_where_it_was_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, "hi\n")
    with fake_server([text("a"), None, text("b"), FINISH]) as server:
        assert talk("echo", url=server.url, thread=None, resource="me") == 0
        assert server.cursors == [None, "run-1.0"]
    assert capsys.readouterr().out == "ab\n"


def test_an_unknown_agent_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server() as server:
        assert talk("nobody", url=server.url, thread=None, resource="me") == 1
    assert capsys.readouterr().err == ("wakeline chat: Agent with id nobody not found (HTTP 404)\n")


def test_no_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert talk("echo", url=url, thread=None, resource="me") == 1
    told = f"wakeline chat: no server answers at {url}; start one with `wakeline dev`\n"
    assert capsys.readouterr().err == told
