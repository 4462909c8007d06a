"""Gemini's `streamGenerateContent?alt=sse`."""

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

MODEL = "gemini-3-pro-preview"
STATUS = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class GoogleServer(ModelServer):
    def frame(self, event: Any) -> bytes:
        return f"data: {json.dumps(event)}\r\n\r\n".encode()


def chunk(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "modelVersion": MODEL,
        "responseId": "response-1",
        "usageMetadata": {"promptTokenCount": 0, "totalTokenCount": 0},
        **more,
    }


def _chunks(block: Block) -> list[dict[str, Any]]:
    match block:
        case Say(words):
            return [chunk({"text": word}) for word in words]
        case Think(words):
            return [chunk({"text": word, "thought": True}) for word in words]
        case Use(id, name, args, signature):
            call: dict[str, Any] = {"name": name, "args": json.loads("".join(args) or "{}")}
            if id:
                call["id"] = id
            part: dict[str, Any] = {"functionCall": call}
            if signature:
                part["thoughtSignature"] = signature
            return [chunk(part)]


def usage_metadata(usage: Usage) -> dict[str, int]:
    return {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "cachedContentTokenCount": usage.cached_input_tokens,
        "totalTokenCount": usage.input_tokens + usage.output_tokens,
    }


def error(status: int, message: str = "no", *details: dict[str, Any], **headers: str) -> Reply:
    inner = {"code": status, "message": message, "status": STATUS[status], "details": [*details]}
    return Reply(status, {k.replace("_", "-"): v for k, v in headers.items()}, {"error": inner})


class GoogleWire(Wire):
    name = "google"
    finishes: ClassVar = {
        "STOP": "stop",
        "MAX_TOKENS": "length",
        "SAFETY": "content-filter",
        "RECITATION": "content-filter",
        "OTHER": "other",
    }

    def server(self) -> ModelServer:
        return GoogleServer()

    def build(self, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> PydanticAIModel:
        env = {"GOOGLE_API_KEY": "key", "GOOGLE_GEMINI_BASE_URL": server.url}
        return build(self.name, MODEL, env)

    def answer(
        self,
        *blocks: Block,
        finish: str | None = "",
        usage: Usage | None = None,
        ending: Ending = "done",
    ) -> Reply:
        chunks = [one for block in blocks for one in _chunks(block)]
        finish = "STOP" if finish == "" else finish
        if finish:
            chunks.append(chunk({"text": ""}, finish=finish))
            chunks[-1]["usageMetadata"] = usage_metadata(usage or Usage())
        return Reply(chunks=chunks, ending=ending)

    @property
    def failures(self) -> Failures:
        too_long = "The input token count (1200000) exceeds the maximum number of tokens allowed"
        daily = {
            "@type": "type.googleapis.com/google.rpc.QuotaFailure",
            "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
        }
        late = self.answer(Say(("x",)), finish=None)
        late.chunks.append(error(503, "The model is overloaded.").body)
        malformed = self.answer(finish="MALFORMED_FUNCTION_CALL")
        return Failures(
            passing={
                "rate limit": error(429),
                "internal": error(500),
                "overloaded": error(503, "The model is overloaded. Please try again later."),
                "timeout": error(504),
                "a call that it wrote wrong": malformed,
            },
            final={
                "invalid": error(400),
                "key": error(400, "API key not valid.", {"reason": "API_KEY_INVALID"}),
                "permission": error(403),
                "unknown model": error(404),
                "quota of the day": error(429, "You exceeded your current quota", daily),
            },
            overflows={"prompt": error(400, f"{too_long} (1048576).")},
            streams={"overloaded": late},
        )

    @property
    def waits(self) -> dict[str, tuple[Reply, int]]:
        info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "14s"}
        return {
            "in the body": (error(429, "slow", info), 14_000),
            "header": (error(429, retry_after="7"), 7000),
        }


google = GoogleWire()
