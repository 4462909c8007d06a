"""The agents that `tests/compat/conformance.mjs` describes at its top, each also as `durable-…`.

Environment, read when the server starts: DELTA_MS (50, before each text delta), TOOL_MS (300, the
slow tool), TOOL_LOG (a file that gets one JSON line per tool execution).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.core.agent import Agent
from shared.core.app import App
from shared.core.tool import Tool, tool
from tests.apps.scripted_model import MockModel

if TYPE_CHECKING:
    from collections.abc import Callable


def _logger(path: str | None) -> Callable[[str, dict[str, Any]], None]:
    def log(name: str, args: dict[str, Any]) -> None:
        if path:
            line = {"tool": name, "input": args, "at": time.time_ns() // 1_000_000}
            with Path(path).open("a") as file:
                file.write(json.dumps(line) + "\n")

    return log


def tools(tool_ms: float = 0, tool_log: str | None = None) -> dict[str, tuple[Tool, ...]]:
    """The tools of each kind of agent."""
    log = _logger(tool_log)

    @tool(description="add")
    async def add(a: int | float, b: int | float) -> dict[str, int | float]:
        log("add", {"a": a, "b": b})
        return {"sum": a + b}

    @tool(description="wait")
    async def wait(n: int | float) -> dict[str, int | float]:
        log("wait", {"n": n})
        await asyncio.sleep(tool_ms / 1000)
        return {"n": n}

    return {"echo": (), "tool": (add,), "slow": (wait,)}


def build(delta_ms: float = 0, tool_ms: float = 0, tool_log: str | None = None) -> App:
    """Make the app, by default without any pause."""
    return App(
        Agent(
            f"{prefix}{kind}-agent",
            model=MockModel(kind, delta_ms),
            instructions="Follow the script.",
            tools=its_tools,
            max_steps=100,
            last_messages=500,
        )
        for kind, its_tools in tools(tool_ms, tool_log).items()
        for prefix in ("", "durable-")
    )


app = build(
    float(os.environ.get("DELTA_MS") or 50),
    float(os.environ.get("TOOL_MS") or 300),
    os.environ.get("TOOL_LOG"),
)
