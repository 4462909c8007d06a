"""Anthropic's messages API, streamed."""

from __future__ import annotations

import json
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

MODEL = "claude-opus-5"


class AnthropicServer(ModelServer):
    def frame(self, event: Any) -> bytes:
        return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def block(index: int, opening: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    start = {"type": "content_block_start", "index": index, "content_block": opening}
    more = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [start, *more, {"type": "content_block_stop", "index": index}]


def _block(index: int, block_: Block) -> list[dict[str, Any]]:
    match block_:
        case Say(words):
            deltas = [{"type": "text_delta", "text": word} for word in words]
            return block(index, {"type": "text", "text": ""}, *deltas)
        case Think(words, signature):
            deltas = [{"type": "thinking_delta", "thinking": word} for word in words]
            deltas.append({"type": "signature_delta", "signature": signature})
            return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas)
        case Use(id, name, args):
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", *args)]
            return block(index, {"type": "tool_use", "id": id, "name": name, "input": {}}, *deltas)


def events(
    blocks: list[dict[str, Any]], finish: str | None, usage: Usage
) -> list[dict[str, Any] | bytes]:
    spent: dict[str, Any] = {
        "input_tokens": usage.input_tokens - usage.cached_input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "output_tokens": 1,
    }
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
    }
    message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": spent}
    spent = spent | {
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
    delta = {"stop_reason": finish, "stop_sequence": None}
    ending: list[dict[str, Any] | bytes] = [
        {"type": "message_delta", "delta": delta, "usage": spent},
        {"type": "message_stop"},
    ]
    start = {"type": "message_start", "message": message}
    told: list[dict[str, Any] | bytes] = [start, {"type": "ping"}, *blocks]
    return told + (ending if finish else [])


def error(status: int, kind: str, message: str = "no", **headers: str) -> Reply:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    return Reply(status, {k.replace("_", "-"): v for k, v in headers.items()}, body)


def broken(kind: str) -> Reply:
    whole = anthropic.answer(Say(("x",)), finish=None)
    whole.chunks.append({"type": "error", "error": {"type": kind, "message": "no"}})
    return whole


class AnthropicWire(Wire):
    name = "anthropic"
    finishes: ClassVar = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "refusal": "content-filter",
        "something_new": "other",
    }

    def server(self) -> ModelServer:
        return AnthropicServer()

    def build(self, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> PydanticAIModel:
        env = {"ANTHROPIC_API_KEY": "key", "ANTHROPIC_BASE_URL": server.url}
        return build(self.name, MODEL, env)

    def answer(
        self,
        *blocks: Block,
        finish: str | None = "",
        usage: Usage | None = None,
        ending: Ending = "done",
    ) -> Reply:
        calls = any(isinstance(one, Use) for one in blocks)
        finish = ("tool_use" if calls else "end_turn") if finish == "" else finish
        told = [event for i, one in enumerate(blocks) for event in _block(i, one)]
        return Reply(chunks=events(told, finish, usage or Usage()), ending=ending)

    @property
    def failures(self) -> Failures:
        too_long = "prompt is too long: 200001 tokens > 200000 maximum"
        with_answer = "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"
        return Failures(
            passing={
                "rate limit": error(429, "rate_limit_error"),
                "overloaded": error(529, "overloaded_error", "Overloaded"),
                "internal": error(500, "api_error"),
                "timeout": error(504, "timeout_error"),
            },
            final={
                "invalid": error(400, "invalid_request_error"),
                "key": error(401, "authentication_error"),
                "permission": error(403, "permission_error"),
                "unknown model": error(404, "not_found_error"),
                "too large": error(413, "request_too_large"),
                "no credit": error(
                    400, "invalid_request_error", "Your credit balance is too low to access"
                ),
            },
            overflows={
                "prompt": error(400, "invalid_request_error", too_long),
                "prompt and answer": error(400, "invalid_request_error", with_answer),
            },
            streams={
                "overloaded": broken("overloaded_error"),
                "internal": broken("api_error"),
            },
        )

    @property
    def waits(self) -> dict[str, tuple[Reply, int]]:
        return {"seconds": (error(429, "rate_limit_error", retry_after="7"), 7000)}


anthropic = AnthropicWire()
