"""Reading threads and their messages (`docs/spec/signals.md` 8.11)."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from functions.api.answers import MessageList, ThreadList, ThreadShown, answer
from functions.api.context import resource_for, system_of
from functions.api.errors import FAILURES
from functions.api.params import PageNumber, PerPage, ResourceId, ThreadId
from shared.core.errors import BadRequest, Forbidden, NotFound
from shared.core.records import Thread
from shared.core.signals import iso
from shared.services.threads import Page

router = APIRouter(tags=["memory"], prefix="/memory/threads")

THREADS_PER_PAGE = 100
MESSAGES_PER_PAGE = 40

AgentQuery = Annotated[str | None, Query(alias="agentId", description="Must be known, if given")]
OrderBy = Annotated[
    str | None,
    Query(alias="orderBy", description='JSON: {"field":"createdAt","direction":"ASC" or "DESC"}'),
]


@router.get("", summary="List threads", response_model=ThreadList, responses=FAILURES)
async def list_threads(
    request: Request,
    resource_id: ResourceId = None,
    agent_id: AgentQuery = None,
    page: PageNumber = 0,
    per_page: PerPage = THREADS_PER_PAGE,
) -> Response:
    """List the threads of a resource, the last updated first."""
    system = system_of(request)
    _check_agent(request, agent_id)
    _refuse_other_orders(request)
    resource = await resource_for(request, resource_id)
    if resource is None:
        raise BadRequest("resourceId is required: whose threads?", "resourceId")
    found = await system.threads.list(resource, page, per_page)
    return answer({"threads": [_shown(thread) for thread in found.items], **_paging(found)})


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
    _check_agent(request, agent_id)
    resource = await resource_for(request, resource_id)
    _refuse(request, "filter", "include")
    ascending = _is_ascending(order_by)
    found = await system.threads.messages(thread, resource, page, per_page, ascending=ascending)
    return answer({"messages": found.items, "uiMessages": None, **_paging(found)})


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
    system = system_of(request)
    _check_agent(request, agent_id)
    resource = await resource_for(request, resource_id)
    found = await system.threads.get(thread)
    if found is None or found.deleted:
        raise NotFound("Thread not found")
    if resource is not None and resource != found.resource:
        raise Forbidden("Access denied: thread belongs to a different resource")
    return answer(_shown(found))


@router.delete("/{thread:path}", summary="Delete a thread", responses=FAILURES)
async def delete_thread(
    request: Request,
    thread: ThreadId,
    resource_id: ResourceId = None,
    agent_id: AgentQuery = None,
) -> Response:
    """Delete a thread: at once for everybody; a run that is active is stopped."""
    if agent_id is None:
        raise BadRequest("agentId is required to change a thread", "agentId")
    _check_agent(request, agent_id)
    resource = await resource_for(request, resource_id)
    await system_of(request).deletion.delete(thread, resource)
    return answer({"result": "Thread deleted"})


def _check_agent(request: Request, agent: str | None) -> None:
    if agent is not None:
        system_of(request).app.agent(agent)


def _shown(thread: Thread) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": thread.thread,
        "title": thread.title,
        "resourceId": thread.resource,
        "createdAt": iso(thread.created_at),
        "updatedAt": iso(thread.updated_at),
    }
    return shown if thread.metadata is None else {**shown, "metadata": thread.metadata}


def _paging(page: Page) -> dict[str, Any]:
    return {
        "total": page.total,
        "page": page.page,
        "perPage": page.per_page,
        "hasMore": page.has_more,
    }


def _refuse(request: Request, *names: str) -> None:
    """Refuse parameters that would be given up silently, and change what the answer means.

    Raises:
        BadRequest: one of them is there.
    """
    for name in names:
        if name in request.query_params:
            raise BadRequest(f"{name} is not supported here; leave it away", name)


def _refuse_other_orders(request: Request) -> None:
    _refuse(request, "metadata", "orderBy", "sortDirection")
    for name, only in (("orderBy[field]", "updatedAt"), ("orderBy[direction]", "DESC")):
        if request.query_params.get(name, only) != only:
            text = f"{name} can only be {only}: the thread that was updated last comes first"
            raise BadRequest(text, name)


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
