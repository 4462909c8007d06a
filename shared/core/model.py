"""What a model is asked and what it answers, in our own words.

Not a provider's format, not what is stored, and not what clients see: adapters translate to and
from providers, `entries` are stored, `chunks` are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal[
    "stop", "length", "content-filter", "tool-calls", "error", "other", "unknown"
]


# ---- the prompt ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text."""

    text: str
    provider_options: dict[str, Any] | None = None
    provider_metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file: base64 text, a data URL or an http(s) URL."""

    data: str
    media_type: str
    filename: str | None = None
    provider_options: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """What the model thought; handed back with the provider's signature."""

    text: str
    signature: str | None = None
    provider_metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asked for. `args` is an object, or the raw text if it was not JSON.

    `provider_metadata`, here and on other parts, is what the provider wants back with the part:
    ids, signatures. It is JSON, and only the adapter that made it reads it.
    """

    call_id: str
    name: str
    args: dict[str, Any] | str
    provider_metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call: any JSON value; `is_error` tells the model that it failed."""

    call_id: str
    name: str
    output: Any
    is_error: bool = False


UserPart = TextPart | FilePart
AssistantPart = TextPart | ReasoningPart | ToolCall


@dataclass(frozen=True, slots=True)
class UserMessage:
    """One message or signal; plain text is a string."""

    content: str | tuple[UserPart, ...]
    provider_options: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """All its text, without files."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One answer of the model."""

    parts: tuple[AssistantPart, ...]

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that it asked for."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def text(self) -> str:
        """All its text."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The results of the calls of the assistant message before it, in call order."""

    results: tuple[ToolResult, ...]


Message = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it; `schema` is the JSON schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. Every tool call in `messages` has exactly one result (invariant 8)."""

    model: str
    instructions: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    tool_choice: str | dict[str, Any] | None = None


# ---- the answer, streamed ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextStarted:
    """A text block begins; `id` names it within this answer."""

    id: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of a text block."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class TextEnded:
    """A text block is complete."""

    id: str
    provider_metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReasoningStarted:
    """A reasoning block begins."""

    id: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of a reasoning block."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningEnded:
    """A reasoning block is complete."""

    id: str
    signature: str | None = None
    provider_metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolInputStarted:
    """The arguments of a call begin to stream."""

    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolInputDelta:
    """More of the JSON text of a call's arguments."""

    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolInputEnded:
    """The arguments are complete."""

    call_id: str


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A whole call, after its arguments (streamed or not)."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and cost of one call, or summed over several."""

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_input_tokens: int = 0
    cost: float | None = None
    """In US dollars, where the model's prices are known."""

    def __add__(self, other: Usage) -> Usage:
        """Sum two."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            None if self.cost is other.cost is None else (self.cost or 0) + (other.cost or 0),
        )


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer."""

    reason: FinishReason
    usage: Usage = Usage()
    model_id: str | None = None


ModelPart = (
    TextStarted
    | TextDelta
    | TextEnded
    | ReasoningStarted
    | ReasoningDelta
    | ReasoningEnded
    | ToolInputStarted
    | ToolInputDelta
    | ToolInputEnded
    | ToolCalled
    | Finished
)
