"""Runs by their id (`docs/design.md` 6)."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from functions.api import shown
from functions.api.answers import Cancelling, RunShown, StepList, answer
from functions.api.context import resource_for, system_of
from functions.api.errors import FAILURES
from functions.api.params import PageNumber, PerPage, ResourceId, RunId

router = APIRouter(tags=["runs"], prefix="/runs/{run}")

STEPS_PER_PAGE = 100

_CANCEL_FAILURES: dict[int | str, dict[str, Any]] = {
    **FAILURES,
    409: {**FAILURES["default"], "description": "The run is over"},
}


@router.get("", summary="Get a run", response_model=RunShown, responses=FAILURES)
async def get_run(request: Request, run: RunId, resource_id: ResourceId = None) -> Response:
    """Give a run's state: whose it is, when it ran, what it used, how it ended."""
    resource = await resource_for(request, resource_id)
    head, thread = await system_of(request).threads.run(run, resource)
    return answer(shown.run(head, thread))


@router.get("/steps", summary="List a run's journal", response_model=StepList, responses=FAILURES)
async def list_steps(
    request: Request,
    run: RunId,
    resource_id: ResourceId = None,
    page: PageNumber = 0,
    per_page: PerPage = STEPS_PER_PAGE,
) -> Response:
    """List what a run did, entry by entry, oldest first."""
    resource = await resource_for(request, resource_id)
    found = await system_of(request).threads.entries(run, resource, page, per_page)
    steps = [shown.entry(position, entry) for position, entry in found.items]
    return answer({"steps": steps, **shown.paging(found)})


@router.post(
    "/cancel",
    status_code=202,
    summary="Cancel a run",
    response_model=Cancelling,
    responses=_CANCEL_FAILURES,
)
async def cancel_run(request: Request, run: RunId, resource_id: ResourceId = None) -> Response:
    """Ask a run to stop; one that has yet to start ends as it starts."""
    resource = await resource_for(request, resource_id)
    await system_of(request).accept.cancel_run(run, resource)
    return answer({"cancelling": True}, 202)
