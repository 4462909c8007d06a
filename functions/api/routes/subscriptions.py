"""Following a thread, and ending its run (`docs/spec/signals.md` 8.8, `docs/design.md` 6).

Whose thread it is, and whether the agent is there, is known before a stream begins.
"""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from functions.api import sse
from functions.api.answers import Aborted, answer
from functions.api.context import resource_for, system_of
from functions.api.errors import FAILURES, WRITE_FAILURES
from functions.api.params import AgentId, LastEventId, LastEventIdQuery, ResourceId, ThreadId
from functions.api.schemas import Abort, Subscribe
from shared.core.events import Cursor

router = APIRouter(tags=["subscriptions"])
_STREAM: dict[str, Any] = {
    "response_class": Response,
    "responses": {
        **FAILURES,
        200: {
            "description": "Chunks as server-sent events; each holds its `cursor`",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
    },
}


@router.post("/agents/{agent}/threads/subscribe", summary="Subscribe to a thread", **_STREAM)
async def subscribe(
    request: Request, agent: AgentId, body: Subscribe, last_event_id: LastEventId = None
) -> Response:
    """Stream the active run from its start, or what came after a cursor, and go on with all runs.

    Frames are comments and `data: ` lines only; a heartbeat comment comes every 15 seconds.
    """
    system = system_of(request)
    system.app.agent(agent)
    resource = await resource_for(request, body.resource_id)
    following = await system.follow.open(body.thread_id, resource, _cursor(last_event_id))
    return sse.EventStream(sse.subscription(following, system.settings.heartbeat_comment))


@router.get("/threads/{thread:path}/events", summary="Follow a thread (EventSource)", **_STREAM)
async def events(
    request: Request,
    thread: ThreadId,
    resource_id: ResourceId = None,
    last_event_id: LastEventId = None,
    last_event_id_query: LastEventIdQuery = None,
) -> Response:
    """Stream as `threads/subscribe`, with `id:` and `retry:` lines, so that a browser resumes."""
    system = system_of(request)
    resource = await resource_for(request, resource_id)
    cursor = _cursor(last_event_id or last_event_id_query)
    following = await system.follow.open(thread, resource, cursor)
    return sse.EventStream(sse.event_source(following, system.settings.heartbeat_comment))


@router.post(
    "/agents/{agent}/threads/abort",
    summary="Abort the active run",
    response_model=Aborted,
    responses=WRITE_FAILURES,
)
async def abort(request: Request, agent: AgentId, body: Abort) -> Response:
    """End the active run of a thread; what is waiting in its inbox runs next."""
    system = system_of(request)
    system.app.agent(agent)
    resource = await resource_for(request, body.resource_id)
    aborted = await system.accept.abort(body.thread_id, resource, body.expected_run_id)
    return answer({"aborted": aborted})


def _cursor(text: str | None) -> Cursor | None:
    return Cursor.parse(text) if text else None
