"""Errors as answers (`docs/spec/signals.md` 8.3): a text under `error`, and fields as `issues`."""

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from functions.api.answers import Failure, answer
from shared.core.errors import BadRequest, WakelineError

log = logging.getLogger(__name__)

TITLES = {
    "query": "Invalid query parameters",
    "path": "Invalid path parameters",
    "header": "Invalid request headers",
}
BODY_TITLE = "Invalid request body"
NO_JSON = "the body must be a JSON object, sent with the header content-type: application/json"
RETRY_AFTER = "1"

_SERVER_ERROR = 500
_UNAVAILABLE = 503

FAILURES: dict[int | str, dict[str, Any]] = {
    400: {"model": Failure, "description": "Something in the request must be changed"},
    403: {"model": Failure, "description": "The thread belongs to another resource"},
    404: {"model": Failure, "description": "No such agent or thread"},
    "default": {"model": Failure, "description": "Any other failure; 503 may be tried again"},
}
WRITE_FAILURES: dict[int | str, dict[str, Any]] = {
    **FAILURES,
    409: {"model": Failure, "description": "The same key came with another body"},
    413: {"model": Failure, "description": "The body is too large"},
}


async def on_wakeline_error(request: Request, error: Exception) -> Response:
    """Answer an error that was raised on purpose."""
    if not isinstance(error, WakelineError):
        raise error
    text = str(error)
    if error.http_status >= _SERVER_ERROR:
        log.warning("%s %s: %s", request.method, request.url.path, text)
    if isinstance(error, BadRequest) and error.field:
        title = BODY_TITLE if request.method in ("POST", "PATCH") else TITLES["query"]
        if text.startswith("Invalid signal XML"):
            title = text  # clients know these by their text
        return _failure(error.http_status, title, [_issue(error.field, text)])
    return _failure(error.http_status, text)


async def on_invalid(_: Request, error: Exception) -> Response:
    """Answer a request that does not have the form that its route describes."""
    if not isinstance(error, RequestValidationError):
        raise error
    details = error.errors()
    title = TITLES.get(str(details[0]["loc"][0]), BODY_TITLE)
    return _failure(400, title, [_told(detail) for detail in details])


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what the framework found: no route, another method, an unreadable body."""
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == 400:  # noqa: PLR2004 - the body is no text, or nested too deeply
        return _failure(400, BODY_TITLE, [_issue("body", NO_JSON)])
    where = f"{request.method} {_asked_path(request)}"
    texts = {404: f"Not Found: {where}", 405: f"Method Not Allowed: {where}"}
    text = texts.get(error.status_code, str(error.detail))
    return _failure(error.status_code, text, headers=error.headers)


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    WakelineError: on_wakeline_error,
    RequestValidationError: on_invalid,
    HTTPException: on_http_error,
}


def _failure(
    status: int,
    text: str,
    issues: list[dict[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    body: dict[str, Any] = {"error": _clean(text)}
    if issues:
        body["issues"] = issues
    more = {"Retry-After": RETRY_AFTER} if status == _UNAVAILABLE else {}
    return answer(body, status, {**(headers or {}), **more})


def _issue(field: str, message: str) -> dict[str, str]:
    return {"field": _clean(field), "message": _clean(message)}


def _told(detail: Mapping[str, Any]) -> dict[str, str]:
    """Say what to change, from what pydantic found."""
    kind, (_, *path) = detail["type"], detail["loc"]
    if kind == "json_invalid":
        text = f"{NO_JSON}; at character {path[0]}: {detail['ctx']['error']}"
        return _issue("body", text)
    if not path:
        return _issue("body", NO_JSON)
    field = ".".join(map(str, path))
    message = detail["msg"]
    return _issue(field, message if kind == "bad_value" else f"{field} {_problem(kind, message)}")


def _problem(kind: str, message: str) -> str:
    if kind == "missing":
        return "is required"
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return "must be a JSON object"
    if kind in ("int_parsing", "int_type", "int_from_float"):
        return "must be a whole number"
    return message.replace("Input should be", "must be").replace("a valid string", "a string")


def _asked_path(request: Request) -> str:
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    return raw.decode("latin-1")


def _clean(text: str) -> str:
    """Give a text that UTF-8 can hold: a caller's own may have lone surrogates."""
    return text.encode("utf-8", "replace").decode()
