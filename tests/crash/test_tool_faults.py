"""Tools whose failure is hard to store (`docs/protocols.md` E4; `docs/design.md` 7.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.core.tool import ToolContext, tool
from tests.apps.script import C, T

if TYPE_CHECKING:
    from tests.crash.conftest import MakeStage

pytestmark = pytest.mark.anyio

SURROGATE = b"\\ud800".decode("unicode_escape")


class TextlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


FAILURES: dict[str, Exception] = {
    "huge": ValueError("x" * 5_000_000),
    "surrogate": ValueError(SURROGATE),
    "without a text": TextlessError(),
}


@pytest.mark.parametrize("what", FAILURES)
async def test_a_failure_that_cannot_be_stored_as_it_is_ends_the_call(
    stage: MakeStage, what: str
) -> None:
    """E4: the tool ran and failed, but its result could not be committed.

    The owner breaks, the next one claims the run and runs the tool again, and so on, five times.
    """
    ran: list[str] = []

    @tool
    async def act(ctx: ToolContext) -> str:
        ran.append(ctx.idempotency_key)
        raise FAILURES[what]

    world = stage(C(("c1", "act", {})), T("done"), tools=[act])
    await world.say("m1")
    await world.settle()
    await world.heal()
    assert len(ran) == 1
    assert await world.kinds() == ["input", "model", "result", "model", "finish"]
    assert (await world.told()).count("tool-error") == 1
