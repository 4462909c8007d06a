"""What is stored of a run that went wrong, as models and clients read it.

`docs/protocols.md` E2, E3; `docs/design.md` 7.7, 7.8.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from shared.core.errors import ModelFailed
from shared.core.model import (
    AssistantMessage,
    Finished,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolCall,
    ToolCalled,
    ToolMessage,
)
from shared.core.tool import ToolContext, tool
from tests.apps.script import C, T
from tests.crash.world import RESOURCE, THREAD
from tests.protocol.stage import AGENT, PERSIST, Hooks, Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.core.model import ModelPart, ModelRequest
    from tests.crash.conftest import MakeStage

pytestmark = pytest.mark.anyio


class Breaks:
    """A model whose first answer breaks, or is cut, after a whole tool call."""

    name = "script/breaks"

    def __init__(self, world: Stage, how: str) -> None:
        self._world, self._how = world, how
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        self.requests.append(request)
        yield TextStarted("t")
        yield TextDelta("t", "hi")
        yield TextEnded("t")
        if len(self.requests) == 1:
            yield ToolCalled(ToolCall("c1", "add", {"a": 1}))
            if self._how == "is cut":
                assert await self._world.outside.accept.abort(THREAD, RESOURCE)
                await asyncio.Event().wait()
            raise ModelFailed("broke", retryable=False)
        yield Finished("stop")


@pytest.mark.parametrize("how", ["breaks", "is cut"])
async def test_a_call_of_an_answer_that_never_ended_is_in_no_history(
    stage: MakeStage, how: str
) -> None:
    """Invariant 8, E3: the run ends with what its last call had streamed, a tool call too.

    That call was never meant to run, and has no result: the next run's model must not see it.
    """
    world = stage()
    model = Breaks(world, how)
    world.app.agent(AGENT).model = model
    for id in ("m1", "m2"):
        await world.say(id)
        await world.settle()
    messages = model.requests[-1].messages
    spoken = [m for m in messages if isinstance(m, AssistantMessage)]
    calls = [call.call_id for message in spoken for call in message.tool_calls]
    results = [r.call_id for m in messages if isinstance(m, ToolMessage) for r in m.results]
    assert calls == results == []
    assert len(spoken) == 1


@pytest.mark.parametrize("after", ["input", "model", "result"])
async def test_a_message_during_a_tool_is_seen_by_the_next_call(
    stage: MakeStage, after: str
) -> None:
    """E1, invariant 5: the owner dies in the step; the tool, with a new owner, sends a message.

    The drain before the next model call takes it: what an owner read of the inbox when it took the
    run over is too old by then.
    """
    box: list[Stage] = []

    @tool
    async def act(ctx: ToolContext) -> str:
        await box[0].say("m2", "also this")
        return ctx.call_id

    box.append(world := stage(C(("c1", "act", {})), T("one"), T("two"), tools=[act]))
    await world.say("m1")
    await world.die(Hooks.killing(after=after))
    await world.heal()
    kinds = [kind for kind in await world.kinds() if kind != "claim"]
    assert kinds == ["input", "model", "result", "signals", "model", "finish"]


async def test_pages_agree_with_the_whole(stage: MakeStage) -> None:
    """E2: a note in mid-run parts the answer into two rows, each of which a page can begin with."""
    box: list[Stage] = []

    @tool
    async def act(ctx: ToolContext) -> str:
        await box[0].say("k1", "a note", behaviour=PERSIST)
        return ctx.call_id

    box.append(world := stage(C(("c1", "act", {}), text="let me see"), T("done"), tools=[act]))
    await world.say("m1")
    await world.settle()
    threads = world.outside.threads
    whole = (await threads.messages(THREAD, RESOURCE, 0, 100)).items
    assert [row["role"] for row in whole] == ["signal", "assistant", "signal", "assistant"]
    for size in (1, 2, 3):
        pages = [
            (await threads.messages(THREAD, RESOURCE, page, size)).items
            for page in range(-(-len(whole) // size))
        ]
        assert [row for page in reversed(pages) for row in page] == whole, size
