"""Options of a run, as a caller may send them: plain JSON, checked and whitelisted.

What is stored survives every change of process (`docs/spec/durable.md` 1.3, 2.2). Credentials and
headers never do: only the settings named here are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.core.errors import BadRequest
from shared.core.limits import check_object, check_text, is_finite

if TYPE_CHECKING:
    from collections.abc import Mapping

NUMBERS = (
    "maxOutputTokens",
    "temperature",
    "topP",
    "topK",
    "presencePenalty",
    "frequencyPenalty",
    "seed",
    "maxRetries",
)
RESERVED_CONTEXT = frozenset(
    {
        "mastra__resourceId",
        "mastra__threadId",
        "mastra__user",
        "mastra__userPermissions",
        "mastra__userRoles",
        "mastra__authToken",
        "mastra__isStudio",
        "mastra__authMode",
        "mastra__inheritedMemory",
        "organizationId",
    }
)
"""Keys of a request context that only the server may set (`docs/spec/signals.md` 8.1.5)."""
CHOICES = ("auto", "none", "required")
MOST_STEPS = 1_000


def parse_options(body: Mapping[str, Any], field: str = "ifIdle.streamOptions") -> dict[str, Any]:
    """Return the options that a run honours, in wire names; others are dropped.

    Raises:
        BadRequest: one of them has the wrong form; the text says what to change.
    """
    parsed: dict[str, Any] = {}
    for name, check in _CHECKS.items():
        if body.get(name) is not None:
            parsed[name] = check(body[name], f"{field}.{name}")
    return parsed


def _max_steps(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_STEPS:
        raise BadRequest(f"{field} must be a whole number from 1 to {MOST_STEPS}", field)
    return value


def _settings(value: object, field: str) -> dict[str, Any]:
    given = check_object(value, field)
    kept: dict[str, Any] = {}
    for name in NUMBERS:
        number = given.get(name)
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float) or not is_finite(number):
            raise BadRequest(f"{field}.{name} must be a finite number", f"{field}.{name}")
        kept[name] = number
    if given.get("stopSequences") is not None:
        kept["stopSequences"] = _texts(given["stopSequences"], f"{field}.stopSequences")
    return kept


def _texts(value: object, field: str) -> list[str]:
    if not isinstance(value, list):
        raise BadRequest(f"{field} must be a list of strings", field)
    return [check_text(each, f"{field}.{place}") for place, each in enumerate(value)]


def _tool_choice(value: object, field: str) -> str | dict[str, Any]:
    if isinstance(value, dict) and value.get("type") == "tool":
        return {"type": "tool", "toolName": check_text(value.get("toolName"), f"{field}.toolName")}
    if isinstance(value, str) and value in CHOICES:
        return value
    raise BadRequest(
        f"{field} must be auto, none, required or {{type: 'tool', toolName: …}}", field
    )


def _context(value: object, field: str) -> dict[str, Any]:
    given = check_object(value, field)
    return {name: each for name, each in given.items() if name not in RESERVED_CONTEXT}


_CHECKS = {
    "maxSteps": _max_steps,
    "instructions": check_text,
    "modelSettings": _settings,
    "activeTools": _texts,
    "toolChoice": _tool_choice,
    "requestContext": _context,
}
