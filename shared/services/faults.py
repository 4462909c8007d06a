"""Turning whatever was raised into what is stored and shown."""

from __future__ import annotations

from shared.core.entries import Fault

MAX_MESSAGE = 10_000
"""Characters of a message that are kept."""


def fault(name: str, message: str) -> Fault:
    """Make a fault of texts that may be long or not valid Unicode."""
    return Fault(name=_clean(name), message=_clean(message))


def fault_of(error: BaseException) -> Fault:
    """Make a fault of an error that any code may have raised: it may not even have a text."""
    try:
        message = str(error)
    except Exception:
        message = "the error has no text"
    return fault(type(error).__name__, message)


def _clean(text: str) -> str:
    return text[:MAX_MESSAGE].encode("utf-8", "replace").decode()
