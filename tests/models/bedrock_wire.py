"""Bedrock's `converse-stream`: AWS event-stream frames."""

from __future__ import annotations

import base64
import json
from binascii import crc32
from struct import pack
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

MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
Event = tuple[str, dict[str, Any]]
_STRING = 7


class BedrockServer(ModelServer):
    media_type = "application/vnd.amazon.eventstream"

    def frame(self, event: Any) -> bytes:
        name, body = event
        kind = "exception" if name.endswith("Exception") else "event"
        headers = {
            f":{kind}-type": name,
            ":content-type": "application/json",
            ":message-type": kind,
        }
        return message(headers, json.dumps(body).encode())


def message(headers: dict[str, str], payload: bytes) -> bytes:
    head = b"".join(
        pack(">B", len(name)) + name.encode() + pack(">BH", _STRING, len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = pack(">II", 12 + len(head) + len(payload) + 4, len(head))
    whole = prelude + pack(">I", crc32(prelude)) + head + payload
    return whole + pack(">I", crc32(whole))


def _events(index: int, block: Block) -> list[Event]:
    where = {"contentBlockIndex": index}
    start: list[Event] = []
    deltas: list[dict[str, Any]]
    if isinstance(block, Use):
        opening = {"start": {"toolUse": {"toolUseId": block.id, "name": block.name}}}
        start = [("contentBlockStart", where | opening)]
        deltas = [{"toolUse": {"input": part}} for part in block.args]
    elif isinstance(block, Think):
        inner = [{"text": word} for word in block.words] + [{"signature": block.signature}]
        deltas = [{"reasoningContent": one} for one in inner]
    else:
        deltas = [{"text": word} for word in block.words]
    more: list[Event] = [("contentBlockDelta", where | {"delta": delta}) for delta in deltas]
    return [*start, *more, ("contentBlockStop", where)]


def redacted(index: int, data: bytes) -> list[Event]:
    delta = {"reasoningContent": {"redactedContent": base64.b64encode(data).decode()}}
    where = {"contentBlockIndex": index}
    return [("contentBlockDelta", where | {"delta": delta}), ("contentBlockStop", where)]


def error(status: int, kind: str, text: str = "no", **headers: str) -> Reply:
    more = {k.replace("_", "-"): v for k, v in headers.items()}
    return Reply(status, {"x-amzn-errortype": f"{kind}:http://aws/", **more}, {"message": text})


class BedrockWire(Wire):
    name = "bedrock"
    counts_thoughts = False
    finishes: ClassVar = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "guardrail_intervened": "content-filter",
        "content_filtered": "content-filter",
        "model_context_window_exceeded": "length",
        "something_new": "other",
    }

    def server(self) -> ModelServer:
        return BedrockServer()

    def build(self, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> PydanticAIModel:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "dummy",
            "AWS_SECRET_ACCESS_KEY": "dummy",
            "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": server.url,
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK"):
            monkeypatch.delenv(name, raising=False)
        return build(self.name, MODEL, {})

    def answer(
        self,
        *blocks: Block,
        finish: str | None = "",
        usage: Usage | None = None,
        ending: Ending = "done",
    ) -> Reply:
        usage = usage or Usage()
        calls = any(isinstance(one, Use) for one in blocks)
        finish = ("tool_use" if calls else "end_turn") if finish == "" else finish
        spent = {
            "inputTokens": usage.input_tokens - usage.cached_input_tokens,
            "outputTokens": usage.output_tokens,
            "totalTokens": usage.input_tokens + usage.output_tokens,
            "cacheReadInputTokens": usage.cached_input_tokens,
            "cacheWriteInputTokens": 0,
        }
        chunks: list[Any] = [("messageStart", {"role": "assistant"})]
        chunks += [event for i, one in enumerate(blocks) for event in _events(i, one)]
        if finish:
            chunks.append(("messageStop", {"stopReason": finish}))
            chunks.append(("metadata", {"usage": spent, "metrics": {"latencyMs": 1}}))
        return Reply(chunks=chunks, ending=ending)

    def broken(self, kind: str, text: str = "no") -> Reply:
        reply = self.answer(Say(("x",)), finish=None)
        reply.chunks.append((kind, {"message": text}))
        return reply

    @property
    def failures(self) -> Failures:
        too_long = "Input is too long for requested model."
        both = "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"
        return Failures(
            passing={
                "throttled": error(429, "ThrottlingException"),
                "internal": error(500, "InternalServerException"),
                "unavailable": error(503, "ServiceUnavailableException"),
                "timeout": error(408, "ModelTimeoutException"),
                "a call that it wrote wrong": self.answer(finish="malformed_tool_use"),
            },
            final={
                "invalid": error(400, "ValidationException"),
                "access": error(403, "AccessDeniedException"),
                "unknown model": error(404, "ResourceNotFoundException"),
                "quota": error(400, "ServiceQuotaExceededException"),
            },
            overflows={
                "prompt": error(400, "ValidationException", too_long),
                "prompt and answer": error(400, "ValidationException", both),
                "in the stream": self.broken("validationException", too_long),
            },
            streams={
                "throttled": self.broken("throttlingException"),
                "internal": self.broken("internalServerException"),
                "the model broke": self.broken("modelStreamErrorException"),
            },
        )

    @property
    def waits(self) -> dict[str, tuple[Reply, int]]:
        return {"seconds": (error(429, "ThrottlingException", retry_after="7"), 7000)}


bedrock = BedrockWire()
