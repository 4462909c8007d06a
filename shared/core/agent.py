"""Agents: who answers in a thread, with which model, instructions and tools."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from shared.core.errors import Misconfigured
from shared.core.limits import (
    DEFAULT_LAST_MESSAGES,
    DEFAULT_MAX_STEPS,
    MAX_ID,
    TOOL_CONCURRENCY,
)
from shared.core.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shared.ports import ModelClient

_UNFIT = re.compile(r"[/?#\x00-\x1f\x7f]")
_MODEL = re.compile(r"^(demo|[a-z][a-z0-9-]*/\S+)$")


class Agent:
    """An agent of the deployment. It holds no state: threads do.

    Args:
        id: what clients call it by; in URLs, so without `/`, `?` and `#`.
        model: `provider/model`, `demo`, or any object with the `ModelClient` port.
        name: for people; the id when there is none.
        instructions: what the model is told before the conversation.
        tools: made with `@tool`.
        max_steps: model calls of one run, unless the call says otherwise; default 5.
        last_messages: how many earlier messages of the thread the model gets to see.
        model_settings: temperature, maxOutputTokens and the like.
        description: for people, and for agents that may delegate to this one.
        tool_call_concurrency: how many calls of one step run at a time.
    """

    def __init__(  # noqa: PLR0913 - this is what users write
        self,
        id: str,
        *,
        model: str | ModelClient,
        name: str | None = None,
        instructions: str = "",
        tools: Sequence[Tool] = (),
        max_steps: int | None = None,
        last_messages: int = DEFAULT_LAST_MESSAGES,
        model_settings: Mapping[str, Any] | None = None,
        description: str | None = None,
        tool_call_concurrency: int = TOOL_CONCURRENCY,
    ) -> None:
        """Check everything that can be checked without calling the model.

        Raises:
            Misconfigured: something does not fit; the text says what.
        """
        self.id = _checked_id(id)
        self.name = name or id
        self.description = description
        self.instructions = _checked(instructions, str, f"agent {id!r}: instructions is a text")
        self.model = _checked_model(model, id)
        self.tools = _by_name(tools, id)
        self.max_steps = None if max_steps is None else _at_least(1, max_steps, "max_steps", id)
        self.last_messages = _at_least(0, last_messages, "last_messages", id)
        self.model_settings: Mapping[str, Any] = MappingProxyType(dict(model_settings or {}))
        self.tool_call_concurrency = _at_least(
            1, tool_call_concurrency, "tool_call_concurrency", id
        )

    @property
    def provider(self) -> str:
        """The first half of the model's name."""
        return self.model_name.partition("/")[0]

    @property
    def model_id(self) -> str:
        """The second half of the model's name."""
        return self.model_name.partition("/")[2] or self.model_name

    @property
    def model_name(self) -> str:
        """`provider/model`; for a model object what it says of itself, or `custom/<class>`."""
        if isinstance(self.model, str):
            return self.model
        said = getattr(self.model, "name", None)
        return said if isinstance(said, str) else f"custom/{type(self.model).__name__}"

    def steps(self, asked: int | None = None) -> int:
        """Return how many steps a run may take: the call over the agent over the default."""
        return asked or self.max_steps or DEFAULT_MAX_STEPS

    def offered(self, active: Sequence[str] | None = None) -> Mapping[str, Tool]:
        """Return the tools of a run: all of them, or those that the call named."""
        if active is None:
            return self.tools
        return {name: each for name, each in self.tools.items() if name in active}

    def details(self) -> dict[str, Any]:
        """Describe the agent as `GET /agents/:id` does (`docs/spec/signals.md` 8)."""
        said = {} if self.description is None else {"description": self.description}
        tools = {
            t.name: {"id": t.name, "description": t.description, "inputSchema": t.schema}
            for t in self.tools.values()
        }
        return {
            "id": self.id,
            "name": self.name,
            **said,
            "instructions": self.instructions,
            "tools": tools,
            "modelId": self.model_id,
            "provider": self.provider,
            "defaultOptions": {"maxSteps": self.steps()},
        }

    def __repr__(self) -> str:
        return f"Agent({self.id!r})"


def _checked(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        raise Misconfigured(f"{what}, not a {type(value).__name__}")
    return value


def _checked_id(id: str) -> str:
    _checked(id, str, "an agent's id is a text")
    if not id.strip() or len(id) > MAX_ID or _UNFIT.search(id):
        text = f"1 to {MAX_ID} characters, without '/', '?', '#' and control characters"
        raise Misconfigured(f"{id[:80]!r} cannot be an agent's id: use {text}")
    return id


def _checked_model(model: Any, agent: str) -> str | ModelClient:
    if isinstance(model, str):
        if not _MODEL.match(model):
            text = "write it as 'provider/model', for example 'openai/gpt-5-mini'"
            raise Misconfigured(f"agent {agent!r}: {model!r} is no model; {text}")
        return model
    if not callable(getattr(model, "stream", None)):
        text = "a model is a 'provider/model' text or an object with a stream() method"
        raise Misconfigured(f"agent {agent!r}: {text}, not a {type(model).__name__}")
    client: ModelClient = model
    return client


def _by_name(tools: Sequence[Tool], agent: str) -> Mapping[str, Tool]:
    named: dict[str, Tool] = {}
    for item in tools:
        if not isinstance(item, Tool):
            what = getattr(item, "__name__", repr(item))
            raise Misconfigured(f"agent {agent!r}: {what} is no tool; put @tool above it")
        if item.name in named:
            raise Misconfigured(f"agent {agent!r} has two tools called {item.name!r}")
        named[item.name] = item
    return MappingProxyType(named)


def _at_least(least: int, value: Any, what: str, agent: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise Misconfigured(
            f"agent {agent!r}: {what} is a whole number from {least}, not {value!r}"
        )
    return value
