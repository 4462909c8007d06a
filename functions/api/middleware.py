"""Layers around all routes, as plain ASGI: they cost a few microseconds and never buffer."""

import logging
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from functions.api.answers import answer

log = logging.getLogger(__name__)

INSIDE_SLASH = "\x00"
"""Stands for an encoded slash in a routed path: no id has control characters."""
_NEVER_VALID = "\x01"


class ExactPaths:
    """Lets routing see which slashes separate segments (`docs/spec/signals.md` 8.1.2).

    A server decodes a path before it is routed, so that the thread `a/messages` would look like
    the messages of `a`. An encoded slash is kept inside its segment (`plain` gives it back), and a
    trailing slash is taken away.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with the path as routes expect it."""
        if scope["type"] == "http":
            scope["path"] = routed(scope["path"], scope.get("raw_path"))
        await self._app(scope, receive, send)


def routed(path: str, raw: bytes | None) -> str:
    """Give the path by which a request is routed, from the decoded one and the one that came."""
    if raw and b"%" in raw:
        path = "/".join(map(_decoded, raw.decode("latin-1").split("/")))
    elif INSIDE_SLASH in path:
        path = path.replace(INSIDE_SLASH, _NEVER_VALID)
    return path if path == "/" else path.removesuffix("/")


def plain(part: str) -> str:
    """Give a part of a routed path as the caller meant it."""
    return part.replace(INSIDE_SLASH, "/")


def _decoded(segment: str) -> str:
    text = unquote(segment).replace(INSIDE_SLASH, _NEVER_VALID)
    return text.replace("/", INSIDE_SLASH)


class BodyLimit:
    """Refuses request bodies above a limit, by the bytes that come and not by what is declared."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _declared(scope) > self._limit:
            await answer({"error": self._text()}, 413)(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise HTTPException(413, self._text())  # the one error that FastAPI lets through
            return message

        await self._app(scope, counted, send)

    def _text(self) -> str:
        return f"The body has more than {self._limit} bytes. Send large files as URLs."


def _declared(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


class LastResort:
    """Answers what nobody expected with a 500 that tells nothing, and logs it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if started:
                raise
            await answer({"error": "Internal error"}, 500)(scope, receive, send)
