"""The dev server: one app on the embedded backend, with worker and ticks, in one process."""

import importlib
import ipaddress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.local.serve import bind, serve

if TYPE_CHECKING:
    from shared.bootstrap import System
    from shared.core.app import App


class CannotStart(Exception):
    """An option does not fit what is there; the text says what to change."""


@dataclass(frozen=True)
class DevOptions:
    """Where the agents are, where to listen, and where records are kept."""

    app: str
    host: str
    port: int
    db: Path


def run(options: DevOptions) -> None:
    """Serve until the process is told to stop.

    Raises:
        CannotStart: the address is taken or open to others, or there is no such app.
    """
    if not is_loopback(options.host):
        raise CannotStart(f"without authentication only loopback is served, not {options.host}")
    try:
        listener = bind(options.host, options.port)
    except OSError as error:
        where = f"{options.host}:{options.port}"
        raise CannotStart(f"cannot listen on {where} ({error.strerror}); try --port") from error
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    line = f"wakeline dev: http://{shown}:{port} (embedded, {options.db})"
    asgi, system = assemble(load_app(options.app), options)
    serve(asgi, system, listener, lambda: print(line, flush=True))


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def assemble(app: "App", options: DevOptions) -> tuple[Any, "System"]:
    """Build the HTTP app and what runs beside it from the same services."""
    from functions.api.app import create_app
    from shared.bootstrap import build
    from shared.settings import Settings

    system = build(app, replace(Settings.from_env(), db_file=str(options.db)))
    return create_app(system), system


def load_app(spec: str) -> "App":
    """Import the App that `MODULE:NAME` names.

    Raises:
        CannotStart: no such module or name, or it is not an App.
    """
    from shared.core.app import App

    module_name, _, name = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module that the app's own module wants
        raise CannotStart(f"there is no module {module_name!r} (for --app {spec})") from error
    found = getattr(module, name, None)
    if not isinstance(found, App):
        raise CannotStart(f"{module_name} has no App named {name!r} (for --app {spec})")
    return found
