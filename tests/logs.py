"""Reading a whole event log, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.core.events import LogEvent
    from shared.ports import Coordinator


async def whole_log(coordinator: Coordinator, name: str) -> list[LogEvent]:
    """Return all events; a page may end early, so only an empty one is the end."""
    events: list[LogEvent] = []
    while page := await coordinator.read(name, events[-1].id if events else None):
        events += page
    return events
