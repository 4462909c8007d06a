"""What the fake providers have in common: answers in our words, to be told in a provider's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from shared.core.errors import ModelFailed
from shared.core.model import ModelRequest, ToolSpec, Usage, UserMessage

if TYPE_CHECKING:
    import pytest

    from shared.adapters.models.pydantic_ai import PydanticAIModel
    from shared.core.model import ModelPart
    from tests.models.http_server import Ending, ModelServer, Reply

ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
)


@dataclass(frozen=True)
class Say:
    """A text in pieces."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Think:
    """A thought in pieces, signed at its end."""

    words: tuple[str, ...]
    signature: str = "c2lnbmVk"


@dataclass(frozen=True)
class Use:
    """A tool call whose arguments come in pieces."""

    id: str
    name: str
    args: tuple[str, ...]
    signature: str | None = None


Block = Say | Think | Use


def say(*words: str) -> Say:
    return Say(words)


def think(*words: str) -> Think:
    return Think(words)


def use(id: str, name: str, *args: str, signature: str | None = None) -> Use:
    return Use(id, name, args, signature)


@dataclass
class Failures:
    """Replies of a provider that fail, with what they are."""

    passing: dict[str, Reply]
    final: dict[str, Reply]
    overflows: dict[str, Reply]
    streams: dict[str, Reply] = field(default_factory=dict)
    """Passing ones that begin like an answer."""


class Wire(ABC):
    """A provider as the tests use it."""

    name: ClassVar[str]
    counts_thoughts: ClassVar = True
    finishes: ClassVar[dict[str, str]]
    """The provider's words for how an answer ended → ours."""

    @property
    @abstractmethod
    def failures(self) -> Failures: ...

    @property
    @abstractmethod
    def waits(self) -> dict[str, tuple[Reply, int]]:
        """Replies that name a time to wait → it, in ms."""

    @abstractmethod
    def server(self) -> ModelServer: ...

    @abstractmethod
    def build(self, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> PydanticAIModel: ...

    @abstractmethod
    def answer(
        self,
        *blocks: Block,
        finish: str | None = "",
        usage: Usage | None = None,
        ending: Ending = "done",
    ) -> Reply:
        """Tell an answer; `finish` is the provider's word, "" the usual one, None none."""


def request(*messages: Any, **more: Any) -> ModelRequest:
    return ModelRequest("a/model", "Be nice.", messages or (UserMessage("hi"),), **more)


async def ask(model: PydanticAIModel, *messages: Any, **more: Any) -> list[ModelPart]:
    return [part async for part in model.stream(request(*messages, **more))]


async def fail(model: PydanticAIModel) -> tuple[list[ModelPart], ModelFailed]:
    parts = []
    try:
        async for part in model.stream(request()):
            parts.append(part)
    except ModelFailed as failed:
        return parts, failed
    raise AssertionError(f"no failure after {parts}")
