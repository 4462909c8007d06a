"""What went wrong in a model call, and whether another attempt can help."""

from __future__ import annotations

from typing import Any, Final

import httpx2
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
    UserError,
)

from shared.core.errors import ContextOverflow, ModelFailed

_RETRYABLE: Final = (408, 409, 425, 429)
_SERVER_ERROR = 500
_REFUSED: Final = (400, 413, 422)
_SHOWN = 500
_HOUR = 3600
_PASSING: Final = (
    ModelConnectionError,
    ModelRateLimitError,
    ModelServerError,
    ModelUnavailableError,
)
"""Passes whatever its status is: Bedrock breaks off streams with a 424."""

_OVERFLOWS: Final = (
    "exceed context limit",
    "exceeds the context window",
    "exceed_context_size_error",
    "maximum context length",
    "context length exceeded",
)
"""How an overflow is told where pydantic-ai does not know it for one; in lower case."""

_ADVICE = (
    "the prompt is longer than the model takes; lower the agent's last_messages, shorten what its"
    " tools return, or take a model with a larger context window"
)


def failure(model: str, error: Exception) -> ModelFailed:
    """Translate what a call raised; the text may be shown to a caller."""
    said = _text(error)[:_SHOWN]
    if _overflows(error, said):
        return ContextOverflow(f"model {model}: {_ADVICE} ({said})")
    hint = "; check its key" if isinstance(error, ModelAuthenticationError) else ""
    retry_after = getattr(error, "retry_after", None)
    return ModelFailed(
        f"model {model}: {said}{hint}",
        retryable=_is_retryable(error),
        retry_after=None if retry_after is None else round(min(max(retry_after, 0), _HOUR) * 1000),
    )


def cut(model: str) -> ModelFailed:
    """Tell of a stream that ended without saying why."""
    return ModelFailed(f"model {model}: the answer ended before its finish", retryable=True)


def _overflows(error: Exception, said: str) -> bool:
    if isinstance(error, ModelContextWindowExceededError):
        return True
    refused = isinstance(error, ModelHTTPError) and error.status_code in _REFUSED
    text = f"{said} {getattr(error, 'provider_error_type', '')}".lower()
    return refused and any(words in text for words in _OVERFLOWS)


def _is_retryable(error: Exception) -> bool:
    """Tell if another attempt can help; what is not known as final is worth one."""
    if isinstance(error, ModelQuotaExceededError | ContentFilterError | UserError):
        return False
    if isinstance(error, _PASSING):
        return True
    if isinstance(error, ModelHTTPError):
        return error.status_code in _RETRYABLE or error.status_code >= _SERVER_ERROR
    if isinstance(error, ModelRequestRejectedError):
        return False
    return isinstance(
        error, ModelAPIError | UnexpectedModelBehavior | httpx2.TransportError | OSError
    )


def _text(error: Exception) -> str:
    if isinstance(error, ModelHTTPError):
        return f"HTTP {error.status_code}: {_said(error.body) or type(error).__name__}"
    said = str(error) or type(error).__name__
    if isinstance(error, ModelConnectionError) and error.__cause__:
        why = error.__cause__.__cause__ or error.__cause__
        said = f"{said} ({why})"
    return said


def _said(body: Any) -> str:
    """Find the words for people in the body of an error."""
    if isinstance(body, list) and body:
        return _said(body[0])
    if isinstance(body, dict):
        inner = body.get("error") or body.get("Error") or body
        said = (inner.get("message") or inner.get("Message")) if isinstance(inner, dict) else inner
        return str(said or inner)
    return "" if body is None else str(body)
