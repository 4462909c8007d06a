"""The HTTP API as one ASGI app: what `wakeline dev` and the Lambda functions serve."""

from importlib import metadata
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Lifespan

from functions.api.context import API_PREFIX, Context
from functions.api.errors import HANDLERS
from functions.api.identity import identification
from functions.api.middleware import BodyLimit, ExactPaths, LastResort
from functions.api.routes import (
    agents,
    memory,
    runs,
    signals,
    subscriptions,
    threads,
    waiting,
)
from functions.api.routes import system as system_routes
from shared.bootstrap import System
from shared.core.limits import MAX_REQUEST
from shared.settings import Settings

DESCRIPTION = """
Durable AI agents that wake on a signal. Send a message to a thread, subscribe to the thread, and
see the run as it happens. Every error is a JSON object with a text under `error`.
"""


def create_app(system: System, *, lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """Make the app over the services of a system; `lifespan` starts and stops what runs beside it.

    Raises:
        Misconfigured: the settings name a way to know callers that is not there.
    """
    app = FastAPI(
        title="wakeline",
        version=_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        middleware=_middleware(system.settings),
        exception_handlers=HANDLERS,
        redirect_slashes=False,  # `ExactPaths` takes a trailing slash away
        redoc_url=None,
    )
    app.state.context = Context(system, identification(system.settings))
    # The busiest routes first: they are tried in this order.
    for routes in (signals, waiting, subscriptions, runs, agents, memory, threads):
        app.include_router(routes.router, prefix=API_PREFIX)
    app.include_router(system_routes.router)
    return app


def _middleware(settings: Settings) -> list[Middleware]:
    """Give the layers around the routes, the outermost first."""
    around: list[Middleware] = []
    if settings.cors_origins:
        cors: dict[str, Any] = {"allow_origins": settings.cors_origins}
        around.append(Middleware(CORSMiddleware, allow_methods=["*"], allow_headers=["*"], **cors))
    inside = [Middleware(LastResort), Middleware(BodyLimit, limit=MAX_REQUEST)]
    return [*around, *inside, Middleware(ExactPaths)]


def _version() -> str:
    try:
        return metadata.version("wakeline")
    except metadata.PackageNotFoundError:  # a zip without the packages' metadata
        return "unknown"
