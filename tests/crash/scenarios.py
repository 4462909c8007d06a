"""What is going on when the process dies."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.core.agent import Agent
from shared.core.app import App
from shared.core.errors import Unavailable
from shared.core.signal_input import parse_signal
from shared.core.tool import Tool, ToolContext, tool
from shared.services.accept import Target
from tests.apps.script import C, ScriptModel, T
from tests.crash.world import RESOURCE, THREAD, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.bootstrap import System

AGENT = "agent"
TARGET = Target(AGENT, THREAD, RESOURCE)
NOW = 1_700_000_000_000


async def say(process: System, id: str, text: str, *, queue: bool = False) -> str:
    """Send a message under an id of its own, so that a repeat is recognised."""
    signal = parse_signal({"id": id, "type": "user", "contents": text}, id=id, now=NOW)
    accepted = await process.accept.send(TARGET, signal, queue=queue, request=[id, text])
    return accepted.run


@dataclass(frozen=True)
class Scenario:
    """A first message, what the model plays, and what its tool `act` does when called."""

    name: str
    turns: Callable[[], list[T | C]]
    act: str = "nothing"
    signals: tuple[str, ...] = ("m1",)
    ends: tuple[str, ...] = field(default=("finish",))

    def app(self, world: World) -> App:
        """The agent and its tools over a world."""
        model = ScriptModel(self.turns())
        return App(
            [Agent(AGENT, model=model, tools=[_add(world), _act(world, self.act)], max_steps=20)]
        )

    async def life(self, world: World, process: System) -> None:
        """What one process does: take the message in, then work."""
        with suppress(Unavailable):  # a 503: whoever sent it asks again
            await say(process, "m1", "go")
        await world.work(process)


def _add(world: World) -> Tool:
    @tool
    async def add(a: int, b: int, ctx: ToolContext) -> dict[str, int]:
        world.calls[ctx.idempotency_key] += 1
        return {"sum": a + b}

    return add


def _act(world: World, what: str) -> Tool:
    @tool
    async def act(ctx: ToolContext) -> str:
        world.calls[ctx.idempotency_key] += 1
        if what == "send":
            await say(world.outside, "m2", "also this")
        elif what == "queue":
            await say(world.outside, "m2", "then this", queue=True)
        elif what == "cancel":
            await world.outside.accept.abort(THREAD, RESOURCE)
            await asyncio.wait_for(asyncio.Event().wait(), 10)  # until it is cut
        return "acted"

    return act


def _pairs() -> list[T | C]:
    return [
        C(("a1", "add", {"a": 1, "b": 1}), ("b1", "add", {"a": 1, "b": 2})),
        C(("a2", "add", {"a": 2, "b": 1}), ("b2", "add", {"a": 2, "b": 2})),
        C(("a3", "add", {"a": 3, "b": 1}), ("b3", "add", {"a": 3, "b": 2})),
        T("all done now"),
    ]


def _acting() -> list[T | C]:
    return [C(("c1", "act", {})), T("first answer"), T("second answer")]


SCENARIOS = (
    Scenario("text only", lambda: [T("hello to you all")]),
    Scenario("3 steps with 2 parallel tools", _pairs),
    Scenario("a message in mid-run", _acting, act="send", signals=("m1", "m2")),
    Scenario(
        "a queued follow-up",
        _acting,
        act="queue",
        signals=("m1", "m2"),
        ends=("finish", "finish"),
    ),
    Scenario("cancel", _acting, act="cancel", ends=("abort",)),
)
