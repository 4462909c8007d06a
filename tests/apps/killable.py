"""Agents that take their time and note what they do, for servers that are killed, frozen, ended.

Environment, read when the server starts: DELTA_MS (before each of about five text deltas), TOOL_MS
(what `wait` takes), BLOCK_MS (how long `block_loop` and `block_thread` block), TOOL_LOG and
MODEL_LOG (files that get a JSON line for each start and end of a tool, and for each model call).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.core.agent import Agent
from shared.core.app import App
from shared.core.tool import Tool, ToolContext, tool
from tests.apps.scripted_model import MockModel, user_texts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from shared.core.model import ModelPart, ModelRequest


class Notes:
    """A file of JSON lines that several processes may append to."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def add(self, **line: Any) -> None:
        """Append a line; one small write, so that lines of two processes never mix."""
        if self._path:
            with Path(self._path).open("a") as file:
                file.write(json.dumps({**line, "pid": os.getpid()}) + "\n")

    @contextmanager
    def around(self, name: str, ctx: ToolContext) -> Iterator[None]:
        """Note the start of a tool, and its end if it comes to that."""
        line = {"tool": name, "thread": ctx.thread, "key": ctx.idempotency_key}
        self.add(phase="start", **line)
        yield
        self.add(phase="end", **line)


class NotedModel:
    """A scripted model that notes which texts of users it was shown."""

    def __init__(self, kind: str, delta_ms: float, notes: Notes) -> None:
        self.name = f"mock/mock-{kind}"
        self._model, self._notes = MockModel(kind, delta_ms), notes

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Answer as the script says."""
        self._notes.add(texts=user_texts(request.messages))
        async for part in self._model.stream(request):
            yield part


def tools(tool_ms: float, block_ms: float, notes: Notes) -> tuple[Tool, ...]:
    """A tool that waits, and two that block: the event loop, and a thread."""

    @tool(description="add")
    async def add(a: int, b: int, ctx: ToolContext) -> dict[str, int]:
        with notes.around("add", ctx):
            return {"sum": a + b}

    @tool(description="wait")
    async def wait(ctx: ToolContext, n: int = 0) -> dict[str, int]:
        with notes.around("wait", ctx):
            await asyncio.sleep(tool_ms / 1000)
        return {"n": n}

    @tool(description="block the event loop, as no async function should")
    async def block_loop(ctx: ToolContext) -> str:
        with notes.around("block_loop", ctx):
            time.sleep(block_ms / 1000)  # noqa: ASYNC251 - that is the point
        return "blocked"

    @tool(description="block a thread")
    def block_thread(ctx: ToolContext) -> str:
        with notes.around("block_thread", ctx):
            time.sleep(block_ms / 1000)
        return "blocked"

    return (add, wait, block_loop, block_thread)


def build(delta_ms: float, tool_ms: float, block_ms: float, tool_log: Notes, model: Notes) -> App:
    """Make the app: `echo`, `tool` and `slow` follow the scripts of these names."""
    its_tools = tools(tool_ms, block_ms, tool_log)
    return App(
        Agent(
            kind,
            model=NotedModel(kind, delta_ms, model),
            instructions="Follow the script.",
            tools=its_tools,
            max_steps=100,
            last_messages=500,
        )
        for kind in ("echo", "tool", "slow")
    )


def _ms(name: str) -> float:
    return float(os.environ.get(name) or 0)


app = build(
    _ms("DELTA_MS"),
    _ms("TOOL_MS"),
    _ms("BLOCK_MS"),
    Notes(os.environ.get("TOOL_LOG")),
    Notes(os.environ.get("MODEL_LOG")),
)
