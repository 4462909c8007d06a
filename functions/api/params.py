"""What routes read from paths, queries and headers, described and checked in one place."""

from typing import Annotated

from fastapi import Header, Path, Query
from pydantic import AfterValidator, BeforeValidator, ValidationInfo, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from functions.api.context import system_of
from functions.api.middleware import plain
from shared.core.errors import BadRequest
from shared.core.limits import MAX_ID, check_id

MAX_PAGE = 1_000_000
MAX_PER_PAGE = 10_000


def _checked(value: str, info: ValidationInfo) -> str:
    return checked_id(value, to_camel(info.field_name or "id"))


def checked_id(value: str, field: str) -> str:
    """Return an id that may be one (`limits.check_id`), for use inside pydantic's validation."""
    try:
        return check_id(value, field)
    except BadRequest as error:
        raise PydanticCustomError("bad_value", "{text}", {"text": str(error)}) from None


_DESCRIBED = WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_ID})

Id = Annotated[str, AfterValidator(_checked), _DESCRIBED]
"""An id that a caller makes, in a body."""


def _id_called(field: str) -> AfterValidator:
    return AfterValidator(lambda value: None if value is None else checked_id(value, field))


AgentId = Annotated[
    str, Path(description="Id of an agent of this deployment"), BeforeValidator(plain)
]
ThreadId = Annotated[
    str,
    Path(description="Id of the thread, percent-encoded"),
    BeforeValidator(plain),
    _id_called("thread"),
]
SignalId = Annotated[
    str,
    Path(description="Id of the signal, percent-encoded"),
    BeforeValidator(plain),
    _id_called("signal"),
]
RunId = Annotated[str, Path(description="Id of the run"), BeforeValidator(plain), _id_called("run")]
AgentQuery = Annotated[str | None, Query(alias="agentId", description="Must be known, if given")]
ResourceId = Annotated[
    str | None,
    Query(alias="resourceId", description="Owner of the thread; another one's is refused"),
    _id_called("resourceId"),
]
PageNumber = Annotated[int, Query(ge=0, le=MAX_PAGE, description="From 0")]
PerPage = Annotated[int, Query(alias="perPage", ge=0, le=MAX_PER_PAGE)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A repeat with the same key gets the first answer and changes nothing",
    ),
    _id_called("Idempotency-Key"),
]
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", description="The `cursor` of the last chunk that was read"),
]
LastEventIdQuery = Annotated[
    str | None,
    Query(alias="lastEventId", description="As the header Last-Event-ID, which counts first"),
]


def check_agent(request: Request, agent: str | None) -> None:
    """Check that the agent that a query names, if it names one, is there.

    Raises:
        NotFound: it is not.
    """
    if agent is not None:
        system_of(request).app.agent(agent)
