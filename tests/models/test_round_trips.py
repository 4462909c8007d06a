"""What providers get back in the calls after the first: whole runs, stored and read again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from shared.core import entries
from shared.core.agent import Agent
from shared.core.app import App
from shared.core.model import (
    AssistantMessage,
    ReasoningPart,
    TextDelta,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
)
from shared.core.prompt import Prompt
from shared.core.signal_input import parse_signal
from shared.core.tool import tool
from shared.services.accept import Target
from tests.crash.world import RESOURCE, THREAD, World
from tests.models.anthropic_wire import anthropic, block
from tests.models.bedrock_wire import bedrock, redacted
from tests.models.google_wire import chunk, google
from tests.models.http_server import Reply
from tests.models.responses_wire import responses
from tests.models.wire import ADD, Wire, ask, say, think, use

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shared.adapters.models.pydantic_ai import PydanticAIModel
    from tests.models.http_server import ModelServer

pytestmark = pytest.mark.anyio


@tool
async def add(a: int) -> dict[str, int]:
    """Add."""
    return {"sum": a}


@dataclass
class Talk:
    """A thread with an agent of one provider's model; a fresh process answers each message."""

    server: ModelServer
    model: PydanticAIModel
    world: World

    async def say(self, text: str, status: str = "completed") -> list[dict[str, Any]]:
        """Send a message, see it end so, and return the bodies of the model calls for it."""
        body = {"type": "user", "contents": text}
        signal = parse_signal(body, id=f"id-{text}", now=self.world.clock.now())
        before = len(self.server.requests)
        await self.world.outside.accept.send(Target("agent", THREAD, RESOURCE), signal)
        await self.world.work(self.world.process())
        finish = (await self.world.journal())[-1]
        assert finish.model_dump()["status"] == status, finish
        return [request.body for request in self.server.requests[before:]]


@pytest.fixture
def wire(request: pytest.FixtureRequest) -> Wire:
    found: Wire = request.param
    return found


@pytest.fixture
async def talk(wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Talk]:
    async with wire.server() as server:
        model = wire.build(server, monkeypatch)
        agent = Agent("agent", model=model, instructions="Be nice.", tools=[add])
        world = World(tmp_path / "world", lambda _: App([agent]))
        server.replies = [
            wire.answer(
                think("Hm", "."),
                say("Let me."),
                use("c1", "add", '{"a":1}', signature="Y2FsbA=="),
                use("c2", "add", '{"a":2}'),
            ),
            wire.answer(think("So"), say("3")),
            wire.answer(say("Bye")),
        ]
        yield Talk(server, model, world)
        await model.aclose()
        world.database.close()


def only(wire: Wire) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("wire", [wire], indirect=True, ids=[wire.name])


@only(anthropic)
async def test_anthropic(talk: Talk) -> None:
    _, second = await talk.say("hi")
    (third,) = await talk.say("and?")
    hi = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
    said = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"},
            {"type": "text", "text": "Let me."},
            {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            {"type": "tool_use", "id": "c2", "name": "add", "input": {"a": 2}},
        ],
    }
    results = [
        {
            "type": "tool_result",
            "tool_use_id": id,
            "content": [{"type": "text", "text": text}],
            "is_error": False,
        }
        for id, text in (("c1", '{"sum":1}'), ("c2", '{"sum":2}'))
    ]
    assert second["messages"] == [hi, said, {"role": "user", "content": results}]
    assert third["messages"][:3] == second["messages"]
    assert third["messages"][3:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "So", "signature": "c2lnbmVk"},
                {"type": "text", "text": "3"},
            ],
        },
        {"role": "user", "content": [{"type": "text", "text": "and?"}]},
    ]
    assert talk.server.requests[0].path.startswith("/v1/messages")
    assert talk.server.requests[0].headers["authorization"] == "Bearer key"


@only(anthropic)
async def test_anthropic_gets_its_redacted_thoughts_back(talk: Talk) -> None:
    blocks = block(0, {"type": "redacted_thinking", "data": "hidden"})
    blocks += block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Yes"})
    blocks[-2] |= {"index": 1}
    whole = anthropic.answer(say("x"))
    start, ping, *_, delta, stop = whole.chunks
    talk.server.replies = [
        Reply(chunks=[start, ping, *blocks, delta, stop]),
        anthropic.answer(say("Bye")),
    ]
    await talk.say("hi")
    (second,) = await talk.say("and?")
    assert second["messages"][1]["content"] == [
        {"type": "redacted_thinking", "data": "hidden"},
        {"type": "text", "text": "Yes"},
    ]


@only(google)
async def test_google(talk: Talk) -> None:
    closing = google.answer(finish="STOP").chunks
    signed = chunk({"text": "", "thoughtSignature": "dGV4dA=="})
    talk.server.replies[1] = Reply(chunks=[chunk({"text": "3"}), signed, *closing])
    _, second = await talk.say("hi")
    (third,) = await talk.say("and?")
    assert second["contents"] == [
        {"role": "user", "parts": [{"text": "hi"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True},
                {"text": "Let me."},
                {
                    "functionCall": {"id": "c1", "name": "add", "args": {"a": 1}},
                    "thoughtSignature": "Y2FsbA==",
                },
                {"functionCall": {"id": "c2", "name": "add", "args": {"a": 2}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": id, "name": "add", "response": {"return_value": text}}}
                for id, text in (("c1", '{"sum":1}'), ("c2", '{"sum":2}'))
            ],
        },
    ]
    assert third["contents"][:3] == second["contents"]
    assert third["contents"][3:] == [
        {"role": "model", "parts": [{"text": "3", "thoughtSignature": "dGV4dA=="}]},
        {"role": "user", "parts": [{"text": "and?"}]},
    ]
    assert talk.server.requests[0].headers["x-goog-api-key"] == "key"


@only(google)
async def test_google_may_name_no_ids_and_sign_nothing_but_an_empty_text(talk: Talk) -> None:
    closing = google.answer(finish="STOP").chunks
    call = google.answer(use("", "add", '{"a":1}', signature="Y2FsbA==")).chunks
    signed = chunk({"text": "", "thoughtSignature": "dGV4dA=="})
    talk.server.replies = [
        Reply(chunks=[*call]),
        Reply(chunks=[chunk({"text": "Hm", "thought": True}), signed, *closing]),
        google.answer(say("Bye")),
    ]
    _, second = await talk.say("hi")
    said, result = second["contents"][1:]
    assert said["parts"][0]["thoughtSignature"] == "Y2FsbA=="
    id = said["parts"][0]["functionCall"]["id"]
    assert id
    assert result["parts"][0]["functionResponse"]["id"] == id
    (third,) = await talk.say("and?")
    assert "dGV4dA==" in json.dumps(third["contents"][3])


@only(responses)
async def test_openai_responses(talk: Talk) -> None:
    first, second = await talk.say("hi")
    (third,) = await talk.say("and?")
    assert first["include"] == ["reasoning.encrypted_content"]

    def thought(id: str, text: str) -> dict[str, Any]:
        summary = [{"type": "summary_text", "text": text}]
        return {"type": "reasoning", "id": id, "summary": summary, "encrypted_content": "c2lnbmVk"}

    def message(id: str, text: str) -> dict[str, Any]:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        more = {"role": "assistant", "status": "completed", "content": content}
        return {"type": "message", "id": id, **more}

    def call(id: str, call_id: str, args: str) -> dict[str, Any]:
        more = {"call_id": call_id, "name": "add", "arguments": args}
        return {"type": "function_call", "id": id, **more}

    assert second["input"] == [
        {"role": "user", "content": "hi"},
        thought("rs_0", "Hm."),
        message("msg_1", "Let me."),
        call("fc_2", "c1", '{"a":1}'),
        call("fc_3", "c2", '{"a":2}'),
        {"type": "function_call_output", "call_id": "c1", "output": '{"sum":1}'},
        {"type": "function_call_output", "call_id": "c2", "output": '{"sum":2}'},
    ]
    assert third["input"][:7] == second["input"]
    assert third["input"][7:] == [
        thought("rs_0", "So"),
        message("msg_1", "3"),
        {"role": "user", "content": "and?"},
    ]
    assert talk.server.requests[0].path == "http://api.openai.com/v1/responses"
    assert talk.server.requests[0].headers["authorization"] == "Bearer key"


@only(responses)
async def test_openai_responses_at_a_compatible_server(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shared.adapters.models.providers import build

    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name)
    model = build("openai-responses", "qwen3", {"OPENAI_BASE_URL": talk.server.url})
    agent = Agent("agent", model=model, tools=[add])
    talk.world.app = App([agent])
    talk.world.outside = talk.world.process()
    _, second = await talk.say("hi")
    await model.aclose()
    kinds = [item.get("type", item.get("role")) for item in second["input"]]
    assert kinds[-4:] == ["function_call"] * 2 + ["function_call_output"] * 2
    assert "include" not in second
    assert "c2lnbmVk" not in json.dumps(second), "it did not ask for encrypted thoughts"


@only(bedrock)
async def test_bedrock(talk: Talk) -> None:
    _, second = await talk.say("hi")
    (third,) = await talk.say("and?")

    def thought(text: str) -> dict[str, Any]:
        return {"reasoningContent": {"reasoningText": {"text": text, "signature": "c2lnbmVk"}}}

    assert second["messages"] == [
        {"role": "user", "content": [{"text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                thought("Hm."),
                {"text": "Let me."},
                {"toolUse": {"toolUseId": "c1", "name": "add", "input": {"a": 1}}},
                {"toolUse": {"toolUseId": "c2", "name": "add", "input": {"a": 2}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": id, "content": [{"text": text}], "status": "success"}}
                for id, text in (("c1", '{"sum":1}'), ("c2", '{"sum":2}'))
            ],
        },
    ]
    assert third["messages"][:3] == second["messages"]
    assert third["messages"][3:] == [
        {"role": "assistant", "content": [thought("So"), {"text": "3"}]},
        {"role": "user", "content": [{"text": "and?"}]},
    ]
    sent = talk.server.requests[0]
    assert sent.path.endswith("/converse-stream")
    assert sent.headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=dummy/")


@only(bedrock)
async def test_bedrock_gets_its_redacted_thoughts_back(talk: Talk) -> None:
    start, *rest = bedrock.answer(say("x"), say("Yes")).chunks
    talk.server.replies = [
        Reply(chunks=[start, *redacted(0, b"hidden"), *rest[2:]]),
        bedrock.answer(say("Bye")),
    ]
    await talk.say("hi")
    (second,) = await talk.say("and?")
    assert second["messages"][1]["content"] == [
        {"reasoningContent": {"redactedContent": "aGlkZGVu"}},
        {"text": "Yes"},
    ]


WIRES: list[Wire] = [anthropic, google, responses, bedrock]
each = pytest.mark.parametrize("wire", WIRES, indirect=True, ids=lambda wire: wire.name)
SECRETS: dict[str, dict[str, Any]] = {
    "anthropic": {"provider": "anthropic"},
    "google": {"provider": "google", "details": {"thought_signature": "c2VjcmV0"}},
    "openai": {"provider": "openai", "id": "secret_1"},
    "bedrock": {"provider": "bedrock", "system": "amazon", "id": "secret_1"},
}


def _is_strange(wire: Wire, maker: str) -> bool:
    """A provider gets its own back, and Bedrock knows Anthropic's."""
    return maker not in wire.name and not (maker == "anthropic" and wire is bedrock)


STRANGERS = [(wire, maker) for wire in WIRES for maker in SECRETS if _is_strange(wire, maker)]


@pytest.mark.parametrize(
    ("wire", "maker"),
    STRANGERS,
    indirect=["wire"],
    ids=[f"{wire.name}-{maker}" for wire, maker in STRANGERS],
)
async def test_what_one_provider_signed_is_not_sent_to_another(
    wire: Wire, talk: Talk, maker: str
) -> None:
    known = SECRETS[maker]
    said = AssistantMessage(
        (
            ReasoningPart("Hm.", "c2VjcmV0", known),
            TextPart("Let me.", provider_metadata=known),
            ToolCall("c1", "add", {"a": 1}, known),
        )
    )
    empty = AssistantMessage((TextPart("", provider_metadata=known), TextPart("Yes")))
    result = ToolMessage((ToolResult("c1", "add", 1),))
    hi = UserMessage("hi")
    await ask(talk.model, hi, said, result, empty, hi, tools=(ADD,))
    sent = json.dumps(talk.server.requests[0].body)
    assert "c2VjcmV0" not in sent
    assert "secret_1" not in sent
    assert "Let me." in sent
    assert "Yes" in sent


@each
async def test_a_run_whose_prompt_is_too_long_fails_at_once_and_says_why(
    wire: Wire, talk: Talk
) -> None:
    talk.server.replies = [next(iter(wire.failures.overflows.values()))]
    await talk.say("hi", status="failed")
    finish = (await talk.world.journal())[-1].model_dump()
    assert finish["error"]["name"] == "ContextOverflow"
    assert "lower the agent's last_messages" in finish["error"]["message"]
    assert len(talk.server.requests) == 1


@each
async def test_of_an_answer_that_was_cut_only_the_words_are_said_again(
    wire: Wire, talk: Talk
) -> None:
    known = SECRETS["openai" if wire is responses else wire.name]
    thought = entries.Reasoning(id="1", text="Hm.", signature="c2VjcmV0", provider_metadata=known)
    half = entries.Text(id="2", text="Half of", provider_metadata=known)
    finish = entries.Finish(
        message_id="m", status="cancelled", reason="abort", parts=[thought, half]
    )
    prompt = Prompt()
    prompt.add(finish, past=True)
    await ask(talk.model, UserMessage("hi"), *prompt.messages(), UserMessage("go on"))
    sent = json.dumps(talk.server.requests[0].body)
    assert "Half of" in sent
    assert "c2VjcmV0" not in sent
    assert "secret_1" not in sent


@each
async def test_thoughts_that_led_to_nothing_are_left_out(wire: Wire, talk: Talk) -> None:
    known = SECRETS["openai" if wire is responses else wire.name]
    thought = ReasoningPart("Hm, a thought.", "c2VjcmV0", known)
    only_thought, cut = AssistantMessage((thought,)), AssistantMessage((TextPart("I"), thought))
    hi = UserMessage("hi")
    parts = await ask(talk.model, hi, only_thought, hi, cut, hi, tools=(ADD,))
    assert any(isinstance(part, TextDelta) for part in parts)
    sent = json.dumps(talk.server.requests[0].body)
    assert "a thought" not in sent
    assert "c2VjcmV0" not in sent


@each
async def test_arguments_that_are_no_object_can_be_sent_back(wire: Wire, talk: Talk) -> None:
    said = AssistantMessage((ToolCall("c1", "add", '{"a": 1'), ToolCall("c2", "add", "[1]")))
    failed = (ToolResult("c1", "add", "bad", True), ToolResult("c2", "add", "bad", True))
    await ask(talk.model, UserMessage("hi"), said, ToolMessage(failed), tools=(ADD,))
    assert "bad" in json.dumps(talk.server.requests[0].body)
