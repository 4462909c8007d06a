"""Reading threads and their messages (`docs/spec/signals.md` 8.11)."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from functions.api import shown
from functions.api.answers import MessageList, ThreadList, ThreadShown, answer
from functions.api.context import resource_for, system_of
from functions.api.errors import FAILURES
from functions.api.params import (
    AgentQuery,
    PageNumber,
    PerPage,
    ResourceId,
    ThreadId,
    check_agent,
)
from shared.core.errors import BadRequest
from shared.core.limits import check_object
from shared.services.threads import Order

router = APIRouter(tags=["memory"], prefix="/memory/threads")

THREADS_PER_PAGE = 100
MESSAGES_PER_PAGE = 40

OrderBy = Annotated[
    str | None,
    Query(alias="orderBy", description='JSON: {"field":"createdAt","direction":"ASC" or "DESC"}'),
]
Metadata = Annotated[
    str | None, Query(description="JSON object; threads have all its keys with the same values")
]


async def thread_order(
    field: Annotated[str | None, Query(alias="orderBy[field]")] = None,
    direction: Annotated[str | None, Query(alias="orderBy[direction]")] = None,
    legacy: Annotated[str | None, Query(alias="orderBy")] = None,
    legacy_direction: Annotated[str | None, Query(alias="sortDirection")] = None,
) -> Order:
    """Read the order of threads, of which there are two forms (8.11.5).

    Raises:
        BadRequest: it is no order that there is.
    """
    for name, value in (("orderBy[field]", field), ("orderBy", legacy)):
        if value not in (None, "createdAt", "updatedAt"):
            raise BadRequest(f"{name} must be createdAt or updatedAt", name)
    for name, value in (("orderBy[direction]", direction), ("sortDirection", legacy_direction)):
        if value not in (None, "ASC", "DESC"):
            raise BadRequest(f"{name} must be ASC or DESC", name)
    by_creation = (field or legacy) == "createdAt"
    return Order(
        "createdAt" if by_creation else "updatedAt", (direction or legacy_direction) == "ASC"
    )


@router.get("", summary="List threads", response_model=ThreadList, responses=FAILURES)
async def list_threads(
    request: Request,
    order: Annotated[Order, Depends(thread_order)],
    resource_id: ResourceId = None,
    agent_id: AgentQuery = None,
    page: PageNumber = 0,
    per_page: PerPage = THREADS_PER_PAGE,
    metadata: Metadata = None,
) -> Response:
    """List the threads of a resource; without an order, the last updated first."""
    check_agent(request, agent_id)
    wanted = _metadata(metadata)
    resource = await resource_for(request, resource_id)
    if resource is None:
        raise BadRequest("resourceId is required: whose threads?", "resourceId")
    threads = system_of(request).threads
    found = await threads.list(resource, page, per_page, order=order, metadata=wanted)
    return answer(
        {"threads": [shown.thread(thread) for thread in found.items], **shown.paging(found)}
    )


@router.get(
    "/{thread:path}/messages",
    summary="List messages",
    response_model=MessageList,
    responses=FAILURES,
)
async def list_messages(
    request: Request,
    thread: ThreadId,
    resource_id: ResourceId = None,
    agent_id: AgentQuery = None,
    page: PageNumber = 0,
    per_page: PerPage = MESSAGES_PER_PAGE,
    order_by: OrderBy = None,
) -> Response:
    """List a thread's messages; page 0 has the newest, or with direction ASC the oldest.

    Within a page they are in the order of the conversation.
    """
    system = system_of(request)
    check_agent(request, agent_id)
    resource = await resource_for(request, resource_id)
    _refuse(request, "filter", "include")
    ascending = _is_ascending(order_by)
    found = await system.threads.messages(thread, resource, page, per_page, ascending=ascending)
    return answer({"messages": found.items, "uiMessages": None, **shown.paging(found)})


@router.get(
    "/{thread:path}", summary="Get a thread", response_model=ThreadShown, responses=FAILURES
)
async def get_thread(
    request: Request,
    thread: ThreadId,
    resource_id: ResourceId = None,
    agent_id: AgentQuery = None,
) -> Response:
    """Give a thread's title, owner, times and metadata."""
    check_agent(request, agent_id)
    resource = await resource_for(request, resource_id)
    found = await system_of(request).threads.owned(thread, resource)
    return answer(shown.thread(found))


def _refuse(request: Request, *names: str) -> None:
    """Refuse parameters that would be given up silently, and change what the answer means.

    Raises:
        BadRequest: one of them is there.
    """
    for name in names:
        if name in request.query_params:
            raise BadRequest(f"{name} is not supported here; leave it away", name)


def _metadata(text: str | None) -> dict[str, Any] | None:
    """Read what the threads' metadata must contain.

    Raises:
        BadRequest: it is no JSON object.
    """
    if text is None:
        return None
    try:
        wanted = from_json(text)
    except ValueError:
        wanted = None
    return check_object(wanted, "metadata")


def _is_ascending(order_by: str | None) -> bool:
    """Read `orderBy`: without it, the newest messages come first (8.11.3).

    Raises:
        BadRequest: it is no order that there is.
    """
    if not order_by:
        return False
    try:
        order = from_json(order_by)
    except ValueError:
        order = None
    if isinstance(order, dict) and order.get("field", "createdAt") == "createdAt":
        direction = order.get("direction", "ASC")
        if direction in ("ASC", "DESC"):
            return bool(direction == "ASC")
    text = 'orderBy must be JSON such as {"field":"createdAt","direction":"ASC"}, or DESC'
    raise BadRequest(text, "orderBy")
