"""Bodies of the routes that write (`docs/spec/signals.md` 8.7, 8.8).

Messages and signals themselves are read by `shared.core.signal_input`; here they are described
only. Unknown keys are dropped, and a null counts as absent.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, WithJsonSchema
from pydantic.alias_generators import to_camel

from functions.api.params import Id
from shared.core.errors import BadRequest
from shared.core.limits import MAX_ID, check_object
from shared.core.signal_input import parse_attributes
from shared.services.accept import Behaviour, Target

_PART = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["text", "file"]},
        "text": {"type": "string"},
        "data": {"type": "string", "description": "base64, a data URL or an http URL"},
        "mediaType": {"type": "string"},
        "filename": {"type": "string"},
        "providerOptions": {"type": "object"},
    },
}
_CONTENTS = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}
_ATTRIBUTES = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}
_COMMON = {
    "contents": _CONTENTS,
    "attributes": _ATTRIBUTES,
    "metadata": {
        "type": "object",
        "description": "Echoed, never shown to the model; a text under `clientMessageId` is an"
        " idempotency key",
    },
    "providerOptions": {"type": "object", "additionalProperties": {"type": "object"}},
}
_MESSAGE = {
    "anyOf": [
        *_CONTENTS["anyOf"],
        {"type": "object", "required": ["contents"], "properties": _COMMON},
    ]
}
_SIGNAL = {
    "type": "object",
    "required": ["type", "contents"],
    "properties": {
        "type": {
            "enum": ["user", "state", "reactive", "notification", "user-message", "system-reminder"]
        },
        **_COMMON,
        "id": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_ID,
            "description": "Sending the same id again changes nothing",
        },
        "tagName": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.-]*$"},
        "createdAt": {"type": "string", "format": "date-time"},
        "transient": {"type": "boolean"},
    },
}


class Body(BaseModel):
    """What all bodies share."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)


class StreamOptions(BaseModel):
    """Options of the run that a signal wakes; other keys are kept as they are."""

    model_config = ConfigDict(alias_generator=to_camel, extra="allow", frozen=True)

    max_steps: Annotated[int, Strict(), Field(ge=1, le=10_000)] | None = None


class IfActive(Body):
    """What to do while a run is active."""

    behavior: Literal["deliver", "persist", "discard"] = "deliver"
    attributes: Annotated[Any, WithJsonSchema(_ATTRIBUTES)] = None


class IfIdle(Body):
    """What to do while no run is active."""

    behavior: Literal["wake", "persist", "discard"] = "wake"
    attributes: Annotated[Any, WithJsonSchema(_ATTRIBUTES)] = None
    stream_options: StreamOptions | None = None


class Addressed(Body):
    """A target: a run, or a thread with its resource (8.7)."""

    run_id: Id | None = None
    resource_id: Id | None = None
    thread_id: Id | None = None
    if_active: IfActive | None = None
    if_idle: IfIdle | None = None

    def target(self, agent: str, resource: str | None) -> Target:
        """Give the target, for the resource that the caller may act for.

        Raises:
            BadRequest: it is neither of the two forms.
        """
        if self.run_id is not None:
            if self.if_idle is not None:
                text = "ifIdle must be absent when runId is given; leave one of them away"
                raise BadRequest(text, "ifIdle")
        else:
            for name, value in (("resourceId", resource), ("threadId", self.thread_id)):
                if value is None:
                    raise BadRequest(f"{name} is required when runId is not provided", name)
        return Target(agent, self.thread_id, resource, self.run_id)

    def behaviour(self) -> Behaviour:
        """Give what to do in which case.

        Raises:
            BadRequest: attributes or options cannot be accepted.
        """
        active, idle = self.if_active or IfActive(), self.if_idle or IfIdle()
        options = idle.stream_options
        given = {} if options is None else options.model_dump(by_alias=True, exclude_none=True)
        return Behaviour(
            if_active=active.behavior,
            if_idle=idle.behavior,
            active_attributes=parse_attributes(active.attributes, "ifActive.attributes"),
            idle_attributes=parse_attributes(idle.attributes, "ifIdle.attributes"),
            options=check_object(given, "ifIdle.streamOptions"),
        )


class SendMessage(Addressed):
    """A message of a user, with its target."""

    message: Annotated[Any, WithJsonSchema(_MESSAGE)]


class SendSignal(Addressed):
    """A signal of any type, with its target."""

    signal: Annotated[Any, WithJsonSchema(_SIGNAL)]


class Subscribe(Body):
    """The thread to follow."""

    thread_id: Id
    resource_id: Id | None = None


class Abort(Body):
    """The thread whose active run is to end."""

    thread_id: Id
    resource_id: Id | None = None
    expected_run_id: Id | None = None


class UpdateThread(Body):
    """What is to change of a thread."""

    title: str | None = None
    metadata: dict[str, Any] | None = None
    resource_id: Annotated[
        Id | None, Field(description="As before, if it is given: `transfer` changes the owner")
    ] = None


class CreateThread(UpdateThread):
    """A thread to make; without `threadId`, it gets a new id."""

    thread_id: Id | None = None
    resource_id: Id | None = None
    agent_id: str | None = None


class TransferThread(Body):
    """Whose a thread is to be."""

    resource_id: Id
