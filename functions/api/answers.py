"""Answers: how they are written, and what the API's description says of them.

The models here describe; what is sent is made as bytes at once and not checked against them.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic_core import to_json
from starlette.responses import Response

from shared.core.records import Action, ReceiptState, RunStatus


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


class SignalState(Described):
    """What became of a signal."""

    id: str
    state: ReceiptState
    run_id: str | None = None
    step: int | None = None
    """Position of the entry that took it, in the journal of its run."""
    accepted_at: str
    delivered_at: str | None = None
    error: str | None = None


class Waits(Described):
    """A signal that nobody took yet."""

    signal: dict[str, Any]
    state: ReceiptState
    run_id: str | None = None


class InboxList(Described):
    """Signals that nobody took yet."""

    items: list[Waits]
    total: int


class Withdrawn(Described):
    """Whether nobody will see the signal."""

    cancelled: bool


class RunShown(Described):
    """A run."""

    run_id: str
    thread_id: str
    resource_id: str
    agent_id: str
    status: RunStatus
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    reason: str | None = None
    usage: dict[str, float | None] | None = None
    error: dict[str, Any] | None = None


class Cancelling(Described):
    """The run was asked to stop."""

    cancelling: Literal[True]


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


class Step(Described):
    """One entry of a run's journal; what else it has depends on its kind."""

    model_config = ConfigDict(extra="allow")

    position: int
    kind: Literal["input", "signals", "note", "claim", "model", "result", "finish"]
    at: str


class StepList(Paged):
    """Entries of one run, oldest first."""

    steps: list[Step]


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
