"""A server with the streaming part of OpenAI's chat API, over real HTTP on the loopback.

async with OpenAIServer() as server:
    server.replies = [stream(text("Hello", " world"))]
"""

from __future__ import annotations

import json
from typing import Any

from tests.models.http_server import Ending, ModelServer, Reply


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "served-model",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def usage(prompt: int, completion: int, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    return chunk({}) | {
        "choices": [],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        },
    }


def text(*words: str) -> list[dict[str, Any]]:
    return [chunk({"role": "assistant", "content": words[0]})] + [
        chunk({"content": word}) for word in words[1:]
    ]


def call(index: int, id: str, name: str, *args: str) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": ""}
    first = {"index": index, "id": id, "type": "function", "function": function}
    return [chunk({"tool_calls": [first]})] + [args_delta(index, part) for part in args]


def args_delta(index: int, part: str) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})


def stream(
    *chunks: list[dict[str, Any]],
    finish: str | None = "stop",
    usage: dict[str, Any] | None = None,
    ending: Ending = "done",
) -> Reply:
    flat = [one for some in chunks for one in some]
    if finish:
        flat.append(chunk({}, finish))
    return Reply(chunks=flat + ([usage] if usage else []), ending=ending)


def error(status: int, message: str = "no", *, code: str | None = None, **headers: str) -> Reply:
    body = {"error": {"message": message, "type": "an_error", "code": code, "param": None}}
    return Reply(status, {k.replace("_", "-"): v for k, v in headers.items()}, body)


class OpenAIServer(ModelServer):
    """The chat API."""

    base = "/v1"
    done = b"data: [DONE]\n\n"

    def frame(self, event: Any) -> bytes:
        text = event if isinstance(event, str) else json.dumps(event)
        return f"data: {text}\n\n".encode()
