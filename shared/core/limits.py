"""Every limit that a caller can meet, and the checks that belong to them (`docs/protocols.md` A1).

What passes here can be stored: it is JSON, finite, valid UTF-8 and not too large.
"""

from __future__ import annotations

import math
import unicodedata
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from shared.core.errors import BadRequest, TooLarge

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BODY: Final = 3_000_000
"""Bytes of one signal or message, as UTF-8 JSON of its record."""
MAX_REQUEST: Final = 4_000_000
"""Bytes of one HTTP request body."""
MAX_THREAD: Final = 256_000
"""Bytes of a thread's title and metadata, which every listing reads."""
MAX_ID: Final = 256
"""Characters of an id that a caller makes."""
MAX_ATTRIBUTES: Final = 64
MAX_DEPTH: Final = 64
"""Levels of nesting inside metadata and provider options."""

DRAIN_ITEMS: Final = 30
DRAIN_BYTES: Final = 1_000_000
DRAIN_COMMITS: Final = 5
MODEL_RETRIES: Final = 2
"""Further attempts of a model call in one process, when another attempt can help."""
MAX_CLAIMS: Final = 5
"""Claims of a run without progress between them, after which it fails (B4)."""

DEFAULT_MAX_STEPS: Final = 5
DEFAULT_LAST_MESSAGES: Final = 10
TOOL_CONCURRENCY: Final = 10

_SHOWN = 100


def shown(value: object) -> str:
    """Give a caller's value as an error may quote it: short, and always valid UTF-8."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > _SHOWN:
        text = text[:_SHOWN] + "..."
    return text.encode("utf-8", "replace").decode("utf-8")


def check_text(value: object, field: str) -> str:
    """Return the value if it is a string that UTF-8 can hold.

    Raises:
        BadRequest: it is no string, or has a lone surrogate.
    """
    if not isinstance(value, str):
        raise BadRequest(f"{field} must be a string", field)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"{field} has a lone surrogate at character {error.start}; send valid Unicode", field
        ) from None
    return value


def check_id(value: object, field: str) -> str:
    """Return the value if it can serve as an id (A1).

    Raises:
        BadRequest: it is no string of 1 to 256 characters, or has a control character.
    """
    text = check_text(value, field)
    if not 1 <= len(text) <= MAX_ID:
        raise BadRequest(f"{field} must have 1 to {MAX_ID} characters, not {len(text)}", field)
    if any(unicodedata.category(char) == "Cc" for char in text):
        raise BadRequest(f"{field} must not have control characters", field)
    return text


def is_finite(value: float) -> bool:
    """Tell whether a number is one in JSON and for every client, which means as a double."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def check_json(value: object, field: str, depth: int = 0) -> None:
    """Check that a value is JSON that can be stored and read back the same.

    Raises:
        BadRequest: `field` of the error is the path to what is wrong.
    """
    if depth > MAX_DEPTH:
        raise BadRequest(f"{field} is nested deeper than {MAX_DEPTH} levels", field)
    if isinstance(value, str):
        check_text(value, field)
    elif isinstance(value, dict):
        for key, inner in value.items():
            path = f"{field}.{shown(key)}"
            check_text(key, path)
            check_json(inner, path, depth + 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            check_json(inner, f"{field}.{index}", depth + 1)
    elif isinstance(value, int | float):
        if not is_finite(value):
            raise BadRequest(f"{field} must be a finite number", field)
    elif value is not None:
        raise BadRequest(f"{field} must be a JSON value, not {type(value).__name__}", field)


def check_object(value: object, field: str) -> dict[str, Any]:
    """Return the value if it is a JSON object that can be stored.

    Raises:
        BadRequest: it is something else, or something inside it cannot be stored.
    """
    if not isinstance(value, dict):
        raise BadRequest(f"{field} must be a JSON object", field)
    check_json(value, field)
    return value


def check_size(record: Mapping[str, Any], field: str | None = None, limit: int = MAX_BODY) -> int:
    """Return the bytes of a record as JSON, for records that `check_json` would accept (A1).

    Raises:
        TooLarge: it has more than `limit`; the text tells how many.
    """
    size = len(to_json(record))
    if size > limit:
        text = f"{field or 'the body'} has {size} bytes as JSON; at most {limit} are allowed."
        raise TooLarge(f"{text} Send large files as URLs." if limit == MAX_BODY else text, field)
    return size
