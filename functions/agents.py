"""The agents of this deployment. Edit this file first."""

from __future__ import annotations

import os
from dataclasses import dataclass

from shared import Agent, App, ToolContext, tool


@dataclass
class Order:
    """An order of the example shop."""

    id: str
    item: str
    status: str
    price: float


ORDERS = {
    order.id: order
    for order in (
        Order("A-1001", "a red kettle", "shipped", 39.90),
        Order("A-1002", "two desk lamps", "in the warehouse", 58.00),
    )
}
REFUNDS: dict[str, Order] = {}


def find(order_id: str) -> Order:
    """Return an order; what a tool raises is shown to the model, which can ask again."""
    if order_id not in ORDERS:
        raise LookupError(f"There is no order {order_id}; there are {', '.join(ORDERS)}.")
    return ORDERS[order_id]


@tool
def look_up_order(order_id: str) -> Order:
    """Find an order and tell what it is and where.

    Args:
        order_id: The number of the order, like A-1001.
    """
    return find(order_id)


@tool
async def refund_order(order_id: str, reason: str, ctx: ToolContext) -> dict[str, object]:
    """Give the customer the money of an order back.

    Args:
        order_id: The number of the order, like A-1001.
        reason: Why, in a few words.
        ctx: Filled in; the model does not see it.
    """
    # A call that a crash cut short is made again with the same key: hand it to your payment
    # provider, and the money moves once.
    if ctx.idempotency_key not in REFUNDS:
        order = find(order_id)
        order.status = f"refunded: {reason}"
        REFUNDS[ctx.idempotency_key] = order
    return {"refunded": REFUNDS[ctx.idempotency_key].price, "order": order_id}


support_agent = Agent(
    "support-agent",
    name="Support",
    instructions="You help the customers of a small shop. Be brief and friendly.",
    model="openai/gpt-5-mini" if os.environ.get("OPENAI_API_KEY") else "demo",
    tools=[look_up_order, refund_order],
)

app = App(agents=[support_agent])
