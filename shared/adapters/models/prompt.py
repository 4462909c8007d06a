"""From our request to pydantic-ai's: messages, tools and settings."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai import messages as ai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_core import to_json

from shared.adapters.models.metadata import give
from shared.core.model import (
    AssistantMessage,
    FilePart,
    ReasoningPart,
    TextPart,
    ToolMessage,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.core.model import AssistantPart, Message, ModelRequest, ToolResult, UserPart

_SETTINGS = {
    "max_output_tokens": "max_tokens",
    "stop": "stop_sequences",
    "headers": "extra_headers",
    "reasoning_effort": "thinking",
}
"""Other names of settings, in snake_case."""

_KNOWN = ModelSettings.__annotations__.keys() - {"max_retries", "request_timeout", "tool_choice"}
"""Without those that are the loop's: it retries, and it ends a slice in time."""

_VENDORS = ("openai_", "anthropic_", "google_", "bedrock_")


def to_messages(messages: Sequence[Message]) -> list[ai.ModelMessage]:
    """Translate a conversation, and mend what a provider would refuse."""
    translated = [_message(message) for message in messages]
    return ai.repair_messages([message for message in translated if message.parts])


def to_parameters(request: ModelRequest) -> ModelRequestParameters:
    """Translate the tools and instructions."""
    said = [ai.InstructionPart(content=request.instructions)] if request.instructions else []
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description or None,
                parameters_json_schema=tool.schema,
            )
            for tool in request.tools
        ],
        instruction_parts=said,
    )


def to_settings(request: ModelRequest, defaults: Mapping[str, Any]) -> ModelSettings:
    """Translate settings, named in camelCase or snake_case; unknown ones are dropped."""
    settings: dict[str, Any] = dict(defaults)
    for name, value in request.settings.items():
        snake = "".join(f"_{char.lower()}" if char.isupper() else char for char in name)
        snake = _SETTINGS.get(snake, snake)
        if value is not None and (snake in _KNOWN or snake.startswith(_VENDORS)):
            settings[snake] = (
                [value] if snake == "stop_sequences" and isinstance(value, str) else value
            )
    if settings.get("thinking") == "none":
        settings["thinking"] = False
    if request.tool_choice is not None and request.tools:
        settings["tool_choice"] = _tool_choice(request.tool_choice)
    return cast("ModelSettings", settings)


def _tool_choice(choice: str | dict[str, Any]) -> Any:
    """Translate `auto`, `none`, `required` or one tool, named or as `{type, toolName}`."""
    name = choice if isinstance(choice, str) else choice["toolName"]
    return name if name in ("auto", "none", "required") else [name]


def _message(message: Message) -> ai.ModelMessage:
    match message:
        case UserMessage():
            return ai.ModelRequest(parts=[_user(message)])
        case ToolMessage():
            return ai.ModelRequest(parts=[_result(result) for result in message.results])
        case AssistantMessage():
            return _answer(message)


def _user(message: UserMessage) -> ai.UserPromptPart:
    if isinstance(message.content, str):
        return ai.UserPromptPart(message.content)
    return ai.UserPromptPart([_content(part) for part in message.content])


def _content(part: UserPart) -> ai.UserContent:
    if isinstance(part, TextPart):
        return part.text
    if part.data.startswith(("http://", "https://")):
        return _link(part)
    try:
        if part.data.startswith("data:"):
            return ai.BinaryContent.from_data_uri(part.data)
        data = b64decode(part.data, validate=True)
    except ValueError:  # stored before it was checked: one bad row must not end every run
        return f"(a file of type {part.media_type} that cannot be read)"
    return ai.BinaryContent.narrow_type(ai.BinaryContent(data, media_type=part.media_type))


def _link(part: FilePart) -> ai.UserContent:
    kinds: dict[str, type[ai.ImageUrl | ai.AudioUrl | ai.VideoUrl]]
    kinds = {"image": ai.ImageUrl, "audio": ai.AudioUrl, "video": ai.VideoUrl}
    kind = kinds.get(part.media_type.partition("/")[0])
    return (kind or ai.DocumentUrl)(part.data, media_type=part.media_type)


def _result(result: ToolResult) -> ai.ToolReturnPart:
    text = result.output if isinstance(result.output, str) else to_json(result.output).decode()
    return ai.ToolReturnPart(
        result.name, text, result.call_id, outcome="failed" if result.is_error else "success"
    )


def _answer(message: AssistantMessage) -> ai.ModelResponse:
    """Translate an answer; thoughts that led to nothing are left out: providers refuse them."""
    parts = list(message.parts)
    while parts and isinstance(parts[-1], ReasoningPart):
        parts.pop()
    known = [part.provider_metadata for part in parts if part.provider_metadata]
    who = known[0] if known else {}
    return ai.ModelResponse(
        parts=[_part(part) for part in parts],
        provider_name=who.get("provider"),
        canonical_system=who.get("system"),
    )


def _part(part: AssistantPart) -> ai.ModelResponsePart:
    match part:
        case TextPart(text):
            return ai.TextPart(text, **give(part.provider_metadata))
        case ReasoningPart(text, signature, known):
            signature = signature if known else None  # of nobody, it would be sent to anybody
            return ai.ThinkingPart(text, signature=signature, **give(known))
        case call:
            more = give(call.provider_metadata)
            return ai.ToolCallPart(call.name, call.args, call.call_id, **more)
