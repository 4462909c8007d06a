"""What a provider wants back with a part of its answer: ids, signatures, encrypted thoughts.

It is stored beside the part as JSON that only this module reads. pydantic-ai sends it back to the
provider that made it, and leaves it out, or says it as plain text, for any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai import messages as ai
from pydantic_core import to_jsonable_python

if TYPE_CHECKING:
    Kept = ai.TextPart | ai.ThinkingPart | ai.ToolCallPart


def take(part: Kept, system: str | None) -> dict[str, Any] | None:
    """Give what is to be stored of a part; None when there is nothing, as mostly."""
    bare = not (part.id or part.provider_details or isinstance(part, ai.ThinkingPart))
    if bare or not part.provider_name:
        return None
    known = {
        "provider": part.provider_name,
        "system": system,
        "id": part.id,
        "details": to_jsonable_python(part.provider_details),
    }
    return {name: value for name, value in known.items() if value is not None}


def give(known: dict[str, Any] | None) -> dict[str, Any]:
    """Give the arguments that make the part whole again."""
    known = known or {}
    return {
        "id": known.get("id"),
        "provider_name": known.get("provider"),
        "provider_details": known.get("details"),
    }
