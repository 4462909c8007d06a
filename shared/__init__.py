"""wakeline: durable AI agents that can be reached at any moment.

The public names, loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.core.agent import Agent
    from shared.core.app import App
    from shared.core.tool import ToolContext, tool
    from shared.settings import Settings

__all__ = ["Agent", "App", "Settings", "ToolContext", "tool"]

_HOMES = {
    "Agent": "shared.core.agent",
    "App": "shared.core.app",
    "Settings": "shared.settings",
    "ToolContext": "shared.core.tool",
    "tool": "shared.core.tool",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shared' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
