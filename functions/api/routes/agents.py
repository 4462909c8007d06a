"""The agents of this deployment."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from functions.api.answers import AgentDetails, answer
from functions.api.context import system_of
from functions.api.errors import FAILURES
from functions.api.params import AgentId

router = APIRouter(tags=["agents"])


@router.get("/agents", summary="List the agents", response_model=dict[str, AgentDetails])
async def list_agents(request: Request) -> Response:
    """Give every agent's details under its id."""
    return answer({agent.id: agent.details() for agent in system_of(request).app})


@router.get(
    "/agents/{agent}",
    summary="Describe an agent",
    response_model=AgentDetails,
    responses=FAILURES,
)
async def get_agent(request: Request, agent: AgentId) -> Response:
    """Give an agent's instructions, tools with their input schemas, and model."""
    return answer(system_of(request).app.agent(agent).details())
