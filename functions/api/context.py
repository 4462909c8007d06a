"""What every route works with: the services, and who calls."""

from dataclasses import dataclass

from starlette.requests import Request

from functions.api.identity import Identify
from shared.bootstrap import System
from shared.core.errors import Forbidden

API_PREFIX = "/api"


@dataclass(frozen=True, slots=True)
class Context:
    """Kept once per app."""

    system: System
    identify: Identify


def system_of(request: Request) -> System:
    """Return the services that a request is for."""
    context: Context = request.app.state.context
    return context.system


async def resource_for(request: Request, asked: str | None) -> str | None:
    """Return the resource that a request may act for; None: it names none, and need not.

    Raises:
        Forbidden: the caller may act for no resource, or for another one.
    """
    context: Context = request.app.state.context
    return (await context.identify(request)).acting_for(asked)


async def resource_of_any(request: Request, asked: str | None) -> str | None:
    """Return the resource that a request names, if its caller may act for every resource.

    Raises:
        Forbidden: the caller is bound to one.
    """
    context: Context = request.app.state.context
    if (await context.identify(request)).resource is not None:
        raise Forbidden("Access denied: only for callers that may act for every resource")
    return asked
