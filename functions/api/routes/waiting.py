"""What became of a signal, what waits, and taking it back (`docs/design.md` 6).

These come before `threads/{thread}/events`, whose path could be a signal's.
"""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from functions.api import shown
from functions.api.answers import InboxList, SignalState, Withdrawn, answer
from functions.api.context import resource_for, system_of
from functions.api.errors import FAILURES
from functions.api.params import PageNumber, PerPage, ResourceId, SignalId, ThreadId

router = APIRouter(tags=["inbox"], prefix="/threads/{thread:path}")

ITEMS_PER_PAGE = 100


@router.get(
    "/signals/{signal}",
    summary="Tell what became of a signal",
    response_model=SignalState,
    responses=FAILURES,
)
async def get_signal(
    request: Request, thread: ThreadId, signal: SignalId, resource_id: ResourceId = None
) -> Response:
    """Give a signal's state, for a week after it was taken."""
    resource = await resource_for(request, resource_id)
    receipt = await system_of(request).threads.receipt(thread, resource, signal)
    return answer(shown.receipt(receipt))


@router.get("/inbox", summary="List what waits", response_model=InboxList, responses=FAILURES)
async def list_inbox(
    request: Request,
    thread: ThreadId,
    resource_id: ResourceId = None,
    page: PageNumber = 0,
    per_page: PerPage = ITEMS_PER_PAGE,
) -> Response:
    """List the signals that nobody took yet: those for a run first, then those that get their own.

    Either kind is in the order of arrival; `total` counts them all.
    """
    resource = await resource_for(request, resource_id)
    found = await system_of(request).waits.page(thread, resource, page, per_page)
    return answer({"items": [shown.waiting(item) for item in found.items], "total": found.total})


@router.delete(
    "/inbox/{signal}", summary="Take a signal back", response_model=Withdrawn, responses=FAILURES
)
async def cancel_waiting(
    request: Request, thread: ThreadId, signal: SignalId, resource_id: ResourceId = None
) -> Response:
    """Cancel a signal that nobody took yet, and with it the run that it would have had.

    `cancelled` is false if it was taken already; a repeat gets the same answer.
    """
    resource = await resource_for(request, resource_id)
    cancelled = await system_of(request).accept.cancel_waiting(thread, resource, signal)
    return answer({"cancelled": cancelled})
