"""OpenAI's responses API, streamed: at OpenAI itself, or at a compatible server."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from shared.adapters.models.providers import build
from shared.core.model import Usage
from tests.models.http_server import ModelServer, Reply
from tests.models.wire import Failures, Say, Think, Use, Wire

if TYPE_CHECKING:
    import pytest

    from shared.adapters.models.pydantic_ai import PydanticAIModel
    from tests.models.http_server import Ending
    from tests.models.wire import Block

MODEL = "gpt-5"
Event = dict[str, Any]


class ResponsesServer(ModelServer):
    base = "/v1"

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    def frame(self, event: Any) -> bytes:
        event = event | {"sequence_number": next(self._numbers)}
        return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def response(status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "model": "served-model",
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
        **more,
    }


def _item(place: int, opening: Event, closing: Event, *events: Event) -> list[Event]:
    where = {"output_index": place}
    inner = [{**event, **where, "item_id": opening["id"]} for event in events]
    return [
        {"type": "response.output_item.added", "item": opening, **where},
        *inner,
        {"type": "response.output_item.done", "item": opening | closing, **where},
    ]


def _events(place: int, block: Block) -> list[Event]:
    match block:
        case Say(words):
            return _message(place, words)
        case Think(words, signature):
            opening: Event = {
                "type": "reasoning",
                "id": f"rs_{place}",
                "summary": [],
                "status": None,
            }
            empty = {"type": "summary_text", "text": ""}
            part = {"summary_index": 0}
            deltas = [
                {"type": "response.reasoning_summary_text.delta", "delta": word, **part}
                for word in words
            ]
            start = {"type": "response.reasoning_summary_part.added", "part": empty, **part}
            told = {"type": "summary_text", "text": "".join(words)}
            closing = {"summary": [told], "encrypted_content": signature}
            return _item(place, opening, closing, *([start, *deltas] if words else []))
        case Use(id, name, args):
            whole = "".join(args)
            opening = {"type": "function_call", "id": f"fc_{place}", "call_id": id, "name": name}
            opening |= {"arguments": "", "status": "in_progress"}
            kind = "response.function_call_arguments"
            deltas = [{"type": f"{kind}.delta", "delta": part} for part in args]
            done = {"type": f"{kind}.done", "arguments": whole, "name": name}
            closing = {"arguments": whole, "status": "completed"}
            return _item(place, opening, closing, *deltas, done)


def _message(place: int, words: tuple[str, ...]) -> list[Event]:
    opening = {"type": "message", "id": f"msg_{place}", "role": "assistant", "content": []}
    opening |= {"status": "in_progress"}
    whole = {"type": "output_text", "text": "".join(words), "annotations": [], "logprobs": []}
    at = {"content_index": 0}
    kind = "response.output_text"
    deltas = [{"type": f"{kind}.delta", "delta": word, "logprobs": [], **at} for word in words]
    return _item(
        place,
        opening,
        {"content": [whole], "status": "completed"},
        {"type": "response.content_part.added", "part": whole | {"text": ""}, **at},
        *deltas,
        {"type": f"{kind}.done", "text": whole["text"], "logprobs": [], **at},
        {"type": "response.content_part.done", "part": whole, **at},
    )


def error(status: int, code: str | None = None, message: str = "no", **headers: str) -> Reply:
    body = {"error": {"message": message, "type": "an_error", "code": code, "param": None}}
    return Reply(status, {k.replace("_", "-"): v for k, v in headers.items()}, body)


class ResponsesWire(Wire):
    """The API at OpenAI itself: the name of the host says it, and a proxy leads here."""

    name = "openai-responses"
    finishes: ClassVar = {
        "completed": "stop",
        "max_output_tokens": "length",
        "content_filter": "content-filter",
        "something_new": "other",
    }

    def server(self) -> ModelServer:
        return ResponsesServer()

    def build(self, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> PydanticAIModel:
        for name in ("no_proxy", "NO_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", server.address)
        monkeypatch.setenv("http_proxy", server.address)
        env = {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": "http://api.openai.com/v1"}
        return build(self.name, MODEL, env)

    def answer(
        self,
        *blocks: Block,
        finish: str | None = "",
        usage: Usage | None = None,
        ending: Ending = "done",
    ) -> Reply:
        usage = usage or Usage()
        spent = {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
        chunks: list[Any] = [
            {"type": "response.created", "response": response("in_progress")},
            {"type": "response.in_progress", "response": response("in_progress")},
        ]
        chunks += [event for i, one in enumerate(blocks) for event in _events(i, one)]
        if finish in ("", "completed"):
            whole = response("completed", usage=spent)
            chunks.append({"type": "response.completed", "response": whole})
        elif finish:
            whole = response("incomplete", usage=spent, incomplete_details={"reason": finish})
            chunks.append({"type": "response.incomplete", "response": whole})
        return Reply(chunks=chunks, ending=ending)

    def broken(self, code: str, message: str = "no") -> Reply:
        reply = self.answer(Say(("x",)), finish=None)
        failed = response("failed", error={"code": code, "message": message})
        reply.chunks.append({"type": "response.failed", "response": failed})
        return reply

    @property
    def failures(self) -> Failures:
        too_long = "Your input exceeds the context window of this model."
        late = self.answer(Say(("x",)), finish=None)
        late.chunks.append(
            {"type": "error", "code": "server_error", "message": "no", "param": None}
        )
        return Failures(
            passing={
                "rate limit": error(429, "rate_limit_exceeded"),
                "internal": error(500),
                "overloaded": error(503, "server_is_overloaded"),
            },
            final={
                "invalid": error(400),
                "key": error(401, "invalid_api_key"),
                "permission": error(403),
                "unknown model": error(404, "model_not_found"),
                "no credit": error(429, "insufficient_quota"),
            },
            overflows={
                "prompt": error(400, "context_length_exceeded", too_long),
                "in the stream": self.broken("context_length_exceeded", too_long),
                "compatible server": error(400, None, f"{too_long} Please reduce."),
            },
            streams={"failed": self.broken("server_error"), "error": late},
        )

    @property
    def waits(self) -> dict[str, tuple[Reply, int]]:
        return {"seconds": (error(429, "rate_limit_exceeded", retry_after="7"), 7000)}


responses = ResponsesWire()
