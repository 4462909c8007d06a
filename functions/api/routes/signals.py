"""Sending to a thread (`docs/spec/signals.md` 8.7): messages, queued messages, signals."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from functions.api.answers import Sent, answer
from functions.api.context import resource_for, system_of
from functions.api.errors import WRITE_FAILURES
from functions.api.params import AgentId, IdempotencyKey
from functions.api.schemas import Addressed, SendMessage, SendSignal
from shared.core.limits import check_id, check_object
from shared.core.signal_input import parse_message, parse_signal
from shared.core.signals import Signal

router = APIRouter(tags=["signals"])
_DOCUMENTED: dict[str, Any] = {"response_model": Sent, "responses": WRITE_FAILURES}


@router.post("/agents/{agent}/send-message", summary="Send a message", **_DOCUMENTED)
async def send_message(
    request: Request, agent: AgentId, body: SendMessage, key: IdempotencyKey = None
) -> Response:
    """Wake the agent of an idle thread, or reach the run that is going on between two steps."""
    return await _send_message(request, agent, body, key, queue=False)


@router.post("/agents/{agent}/queue-message", summary="Queue a message", **_DOCUMENTED)
async def queue_message(
    request: Request, agent: AgentId, body: SendMessage, key: IdempotencyKey = None
) -> Response:
    """Wake the agent of an idle thread, or get a run of its own after the ones before it."""
    return await _send_message(request, agent, body, key, queue=True)


@router.post("/agents/{agent}/signals", summary="Send a signal", **_DOCUMENTED)
async def send_signal(
    request: Request, agent: AgentId, body: SendSignal, key: IdempotencyKey = None
) -> Response:
    """Send a signal of any type; a repeat of `signal.id` changes nothing."""
    system = system_of(request)
    system.app.agent(agent)
    signal = parse_signal(body.signal, id=system.ids.new(), now=system.clock.now())
    return await _send(request, agent, body, signal, _keys(key, signal, "signal"))


async def _send_message(
    request: Request, agent: str, body: SendMessage, key: str | None, *, queue: bool
) -> Response:
    system = system_of(request)
    system.app.agent(agent)
    signal = parse_message(body.message, id=system.ids.new(), now=system.clock.now())
    keys = _keys(key, signal, "message")
    return await _send(request, agent, body, signal, keys, queue=queue)


async def _send(
    request: Request,
    agent: str,
    body: Addressed,
    signal: Signal,
    keys: list[str],
    *,
    queue: bool = False,
) -> Response:
    resource = await resource_for(request, body.resource_id)
    accepted = await system_of(request).accept.send(
        body.target(agent, resource),
        signal,
        body.behaviour(),
        keys=keys,
        queue=queue,
        request=check_object(await request.json(), "body"),
    )
    shown = accepted.signal.wire()
    return answer(
        {"accepted": True, "runId": accepted.run, "signal": shown, "action": accepted.action}
    )


def _keys(header: str | None, signal: Signal, field: str) -> list[str]:
    """Give the idempotency keys of a request.

    Raises:
        BadRequest: a text under `clientMessageId` cannot serve as one.
    """
    keys = [] if header is None else [f"header:{header}"]
    client = (signal.metadata or {}).get("clientMessageId")
    if isinstance(client, str):
        keys.append(f"client:{check_id(client, f'{field}.metadata.clientMessageId')}")
    return keys
