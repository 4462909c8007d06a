"""Who calls, and for which resource (`docs/design.md` 6).

Routes ask for the resource that they may act for, and never look at a request's credentials.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request

from shared.core.errors import Misconfigured
from shared.settings import Settings


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. One that is bound acts for its own resource, whatever the request says."""

    resource: str | None
    """The resource that it is bound to; None: it may act for any."""

    def acting_for(self, asked: str | None) -> str | None:
        """Return the resource that counts for a request that names `asked`."""
        return asked if self.resource is None else self.resource


ANYBODY = Principal(resource=None)

Identify = Callable[[Request], Awaitable[Principal]]


def identification(settings: Settings) -> Identify:
    """Return the function that tells who calls.

    Raises:
        Misconfigured: there is none for this setting.
    """
    known: dict[str, Identify] = {"none": _everybody}
    if settings.auth not in known:
        raise Misconfigured(f"auth {settings.auth!r} is not known; use {' or '.join(known)}")
    return known[settings.auth]


async def _everybody(_: Request) -> Principal:
    return ANYBODY
