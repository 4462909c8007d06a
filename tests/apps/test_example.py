"""The example that users edit first: its tools work, and the demo model finds each of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from functions import agents
from shared.adapters.models.demo import DemoModel
from shared.core.model import ModelRequest, ToolCalled, UserMessage
from shared.core.tool import ToolContext

pytestmark = pytest.mark.anyio

CTX = ToolContext("t", "r", "run", "support-agent", 0, "call", "key-1")


@pytest.fixture(autouse=True)
def _shop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "ORDERS", {k: replace(o) for k, o in agents.ORDERS.items()})
    monkeypatch.setattr(agents, "REFUNDS", {})


async def run(name: str, ctx: ToolContext = CTX, **args: Any) -> Any:
    tool = agents.app.agent("support-agent").tools[name]
    return await tool.run(args, ctx, asyncio.to_thread)


async def test_an_order_is_found() -> None:
    assert (await run("look_up_order", order_id="A-1001"))["status"] == "shipped"
    with pytest.raises(LookupError, match="There is no order A-9; there are A-1001"):
        await run("look_up_order", order_id="A-9")


async def test_a_refund_happens_once_per_key() -> None:
    for attempt in range(2):
        again = replace(CTX, attempt=attempt)
        refund = await run("refund_order", again, order_id="A-1001", reason="broken")
        assert refund == {"refunded": 39.9, "order": "A-1001"}
    assert len(agents.REFUNDS) == 1
    assert (await run("look_up_order", order_id="A-1001"))["status"] == "refunded: broken"


@pytest.mark.parametrize("name", ["look_up_order", "refund_order"])
async def test_the_demo_model_calls_each_tool_with_arguments_that_fit(name: str) -> None:
    agent = agents.app.agent("support-agent")
    specs = tuple(tool.spec for tool in agent.tools.values())
    said = UserMessage(f"please {name.replace('_', ' ')} A-1001")
    request = ModelRequest("demo", agent.instructions, (said,), specs)
    parts = [part async for part in DemoModel(0).stream(request)]
    (call,) = (part.call for part in parts if isinstance(part, ToolCalled))
    assert call.name == name
    assert isinstance(call.args, dict)
    assert await run(name, **call.args)
