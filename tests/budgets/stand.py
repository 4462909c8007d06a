"""A world whose requests are counted, and models that mark their calls in the trace."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shared.bootstrap import System, assemble
from shared.core.agent import Agent
from shared.core.app import App
from shared.core.model import (
    Finished,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolCall,
    ToolCalled,
    ToolMessage,
    Usage,
    UserMessage,
)
from shared.core.signal_input import parse_signal
from shared.core.tool import Tool, ToolContext, tool
from shared.services.accept import Accepted, Target
from tests.budgets.counting import CountingCoordinator, CountingQueue, CountingTable, Trace
from tests.crash.world import RESOURCE, SETTINGS, THREAD, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from shared.core.model import ModelPart, ModelRequest
    from shared.services.accept import Behaviour

AGENT = "agent"
NOW = 1_700_000_000_000


class Steps:
    """Asks for `calls` tool calls in each of `steps` steps, then answers with `words` deltas."""

    name = "script/steps"

    def __init__(self, steps: int = 0, calls: int = 1, words: int = 1) -> None:
        self.steps, self.calls, self.words = steps, calls, words
        self.on_call: Callable[[ModelRequest], None] = lambda _: None
        self.while_speaking: Callable[[], Awaitable[None]] | None = None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Play the step that the run has come to."""
        self.on_call(request)
        done = 0
        for message in reversed(request.messages):
            done += isinstance(message, ToolMessage)
            if isinstance(message, UserMessage):
                break
        if done < self.steps:
            for number in range(self.calls):
                call = ToolCall(f"c{done:04d}-{number}", "act", {"n": done % 10})
                yield ToolCalled(call)
            yield Finished("tool-calls", Usage(1, 1))
            return
        yield TextStarted("t")
        if self.while_speaking:
            await self.while_speaking()
        for _ in range(self.words):
            await asyncio.sleep(0)
            yield TextDelta("t", "word ")
        yield TextEnded("t")
        yield Finished("stop", Usage(1, 1))


class Stand(World):
    """A thread, an agent with one tool `act`, and counting processes."""

    def __init__(
        self,
        path: Path,
        model: Steps | None = None,
        *,
        act: Callable[[ToolContext], Any] | None = None,
        last_messages: int = 10,
        followed: bool | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.trace = Trace()
        self.model = model or Steps()
        self.model.on_call = lambda _: self.trace.mark("model")
        self._followed = followed
        self._settings = replace(SETTINGS, **(settings or {}))
        agent = Agent(
            AGENT,
            model=self.model,
            tools=[_act(act)],
            max_steps=100_000,
            last_messages=last_messages,
        )
        super().__init__(path, lambda _: App([agent]))
        self.counted = self.process_counted()

    def process_counted(self) -> System:
        """One more process; all count into the same trace."""
        plain, trace = self.outside.backend, self.trace
        coordinator = CountingCoordinator(self.coordinator, trace, followed=self._followed)
        backend = replace(
            plain,
            settings=self._settings,
            table=CountingTable(self.table, trace),
            coordinator=coordinator,
            queue=CountingQueue(self.queue, trace),
        )
        return assemble(backend, self.queue, self.database)

    def bare(self) -> System:
        """A process with nothing around its ports, for tests that measure memory."""
        backend = replace(
            self.outside.backend,
            settings=self._settings,
            table=self.table,
            coordinator=self.coordinator,
            queue=self.queue,
        )
        return assemble(backend, self.queue, self.database)

    async def say(
        self,
        id: str,
        *,
        process: System | None = None,
        behaviour: Behaviour | None = None,
        queue: bool = False,
        run: str | None = None,
        keys: Sequence[str] = (),
        thread: str = THREAD,
    ) -> Accepted:
        """Send a message, uncounted unless a counting process takes it."""
        signal = parse_signal({"id": id, "type": "user", "contents": "go"}, id=id, now=NOW)
        target = Target(AGENT, thread, RESOURCE, run)
        accept = (process or self.outside).accept
        return await accept.send(target, signal, behaviour, keys=keys, queue=queue)

    async def run(self, id: str = "m1") -> Trace:
        """Send a message and let a fresh process handle its wake-up; what that requested."""
        await self.say(id)
        return await self.settle()

    async def settle(self) -> Trace:
        """Handle the wake-ups that are due, in a fresh process; what that requested."""
        self.trace.take()
        await self.work(self.process_counted())
        return self.trace.take()

    async def one(self) -> Trace:
        """Handle one wake-up, in a fresh process; what that requested."""
        self.trace.take()
        (got,) = await self.queue.receive(limit=1, wait=0, hold=30_000)
        await self.process_counted().advance.advance(got.wake)
        await self.queue.acknowledge(got)
        return self.trace.take()


def _act(does: Callable[[ToolContext], Any] | None) -> Tool:
    @tool
    async def act(n: int, ctx: ToolContext) -> Any:
        if does is None:
            return {"n": n}
        made = does(ctx)
        return await made if asyncio.iscoroutine(made) else made

    return act
