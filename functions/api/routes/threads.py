"""Making, changing and deleting threads (`docs/spec/signals.md` 8.11)."""

from typing import Any

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response

from functions.api import shown
from functions.api.answers import ThreadShown, answer
from functions.api.context import resource_for, resource_of_any, system_of
from functions.api.errors import FAILURES, WRITE_FAILURES
from functions.api.params import AgentQuery, ResourceId, ThreadId, check_agent
from functions.api.schemas import CreateThread, TransferThread, UpdateThread
from shared.core.errors import BadRequest

router = APIRouter(tags=["memory"], prefix="/memory/threads")
_DOCUMENTED: dict[str, Any] = {"response_model": ThreadShown, "responses": WRITE_FAILURES}


@router.post("", summary="Make a thread", **_DOCUMENTED)
async def create_thread(
    request: Request, body: CreateThread, agent_id: AgentQuery = None
) -> Response:
    """Make a thread; of one that is there already, set title and metadata if they are given."""
    _check_agent(request, agent_id or body.agent_id)
    resource = await resource_for(request, body.resource_id)
    if resource is None:
        raise BadRequest("resourceId is required: whose thread?", "resourceId")
    made = await system_of(request).editing.create(
        body.thread_id, resource, body.title, body.metadata
    )
    return answer(shown.thread(made))


@router.patch("/{thread:path}", summary="Change a thread", **_DOCUMENTED)
async def update_thread(
    request: Request,
    thread: ThreadId,
    body: UpdateThread,
    resource_id: ResourceId = None,
    agent_id: AgentQuery = None,
) -> Response:
    """Set a thread's title, and replace its metadata; what is not named stays."""
    _check_agent(request, agent_id)
    resource = await resource_for(request, resource_id)
    changed = await system_of(request).editing.update(
        thread, resource, body.title, body.metadata, owner=body.resource_id
    )
    return answer(shown.thread(changed))


@router.post("/{thread:path}/transfer", summary="Give a thread away", **_DOCUMENTED)
async def transfer_thread(
    request: Request,
    thread: ThreadId,
    body: TransferThread,
    resource_id: ResourceId = None,
    agent_id: AgentQuery = None,
) -> Response:
    """Give a thread with its messages to another resource, while nothing runs or waits in it.

    Only for callers that may act for every resource.
    """
    check_agent(request, agent_id)
    resource = await resource_of_any(request, resource_id)
    given = await system_of(request).editing.transfer(thread, resource, body.resource_id)
    return answer(shown.thread(given))


@router.delete("/{thread:path}", summary="Delete a thread", responses=FAILURES)
async def delete_thread(
    request: Request,
    thread: ThreadId,
    resource_id: ResourceId = None,
    agent_id: AgentQuery = None,
) -> Response:
    """Delete a thread: at once for everybody; a run that is active is stopped."""
    _check_agent(request, agent_id)
    resource = await resource_for(request, resource_id)
    await system_of(request).deletion.delete(thread, resource)
    return answer({"result": "Thread deleted"})


def _check_agent(request: Request, agent: str | None) -> None:
    """Check the agent that a change must name (8.11.6)."""
    if agent is None:
        missing = {"type": "missing", "loc": ("query", "agentId"), "msg": "Field required"}
        raise RequestValidationError([missing])
    check_agent(request, agent)
