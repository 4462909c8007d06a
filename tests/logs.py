"""Reading what was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.events import LogEvent
    from shared.ports import Coordinator


async def whole_log(coordinator: Coordinator, name: str) -> list[LogEvent]:
    """Return all events; a page may end early, so only an empty one is the end."""
    events: list[LogEvent] = []
    while page := await coordinator.read(name, events[-1].id if events else None):
        events += page
    return events


def text_of(chunks: Sequence[dict[str, Any]]) -> str:
    """The text that somebody has read in the end: a further attempt at a step starts it anew."""
    told = step = ""
    for chunk in chunks:
        match chunk["type"]:
            case "step-start" if chunk["payload"].get("attempt"):
                step = ""
            case "text-delta":
                step += chunk["payload"]["text"]
            case "step-finish":
                told, step = told + step, ""
    return told + step
