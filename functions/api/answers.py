"""Answers: how they are written, and what the API's description says of them.

The models here describe; what is sent is made as bytes at once and not checked against them.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import to_json
from starlette.responses import Response

from shared.core.records import Action


def answer(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Make a JSON answer; numbers that JSON has no form for become null."""
    content = to_json(body, inf_nan_mode="null")
    return Response(content, status, headers, "application/json")


class Described(BaseModel):
    """Base of the descriptions: camelCase, as on the wire."""

    model_config = ConfigDict(alias_generator=to_camel)


class Sent(Described):
    """A signal was accepted."""

    accepted: Literal[True]
    run_id: str
    """The run that takes the signal; the signal's own id if it is only stored or dropped."""
    signal: dict[str, Any]
    action: Action


class Aborted(Described):
    """Whether there was a run to end."""

    aborted: bool


class AgentDetails(Described):
    """An agent of this deployment."""

    id: str
    name: str
    description: str | None = None
    instructions: str
    tools: dict[str, Any]
    model_id: str
    provider: str
    default_options: dict[str, Any]


class ThreadShown(Described):
    """A conversation."""

    id: str
    title: str
    resource_id: str
    created_at: str
    updated_at: str
    metadata: dict[str, Any] | None = None


class Paged(Described):
    """A page of a list."""

    total: int
    page: int
    per_page: int
    has_more: bool


class ThreadList(Paged):
    """Threads of one resource."""

    threads: list[ThreadShown]


class MessageList(Paged):
    """Messages of one thread, oldest first."""

    messages: list[dict[str, Any]]
    ui_messages: None


class Health(Described):
    """The process answers."""

    ok: Literal[True]
    version: str


class Issue(Described):
    """What is wrong with one field."""

    field: str
    message: str


class Failure(Described):
    """Why a request was not carried out."""

    error: str
    issues: list[Issue] | None = None
