"""Running a tool: arguments in, a JSON value out, whatever the function is and does."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import threading
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from pydantic_core import to_json

from shared.core.tool import InvalidArguments, Tool, ToolContext, UnusableResult, tool

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio

CTX = ToolContext("t", "r", "run", "agent", 2, "call", "key")


async def run(made: Tool, ctx: ToolContext = CTX, **args: Any) -> Any:
    return await made.run(args, ctx, asyncio.to_thread)


async def test_an_async_function_runs_in_the_loop_and_a_sync_one_beside_it() -> None:
    @tool
    def sync() -> int:
        return threading.get_ident()

    @tool
    async def in_loop() -> int:
        return threading.get_ident()

    assert await run(in_loop) == threading.get_ident()
    assert await run(sync) != threading.get_ident()


async def test_sync_tools_run_at_the_same_time() -> None:
    barrier = threading.Barrier(2, timeout=10)

    @tool
    def meet() -> int:
        return barrier.wait()

    assert sorted(await asyncio.gather(run(meet), run(meet))) == [0, 1]


async def test_a_function_that_returns_an_awaitable_is_awaited() -> None:
    async def inner() -> str:
        return "done"

    @tool
    def outer() -> Any:
        return inner()

    class Callable_:
        async def __call__(self, n: int) -> int:
            return n + 1

    assert await run(outer) == "done"
    assert await run(Tool(Callable_(), name="plus"), n=1) == 2


async def test_the_context_is_filled_in() -> None:
    @tool
    def f(a: int, ctx: ToolContext) -> list[Any]:
        return [a, ctx.idempotency_key, ctx.attempt, ctx.step, ctx.cancelled.is_set()]

    assert await run(f, a=1) == [1, "key", 0, 2, False]
    stop = threading.Event()
    stop.set()
    ctx = ToolContext("t", "r", "run", "agent", 2, "call", "key", 3, stop)
    assert await run(f, ctx, a=1) == [1, "key", 3, 2, True]


async def test_the_model_cannot_pass_the_context() -> None:
    @tool
    def f(ctx: ToolContext) -> str:
        return ctx.run

    with pytest.raises(InvalidArguments):
        await f.run({"ctx": {"run": "other"}}, CTX, asyncio.to_thread)


@pytest.mark.parametrize("args", ["\ud800", {"a": "\ud800"}, {"a": object()}])
async def test_a_refusal_can_be_stored_whatever_the_arguments_are(args: Any) -> None:
    @tool
    def f(a: int) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        f.validate(args)
    assert to_json(caught.value.value)


async def test_bad_arguments_do_not_reach_the_function() -> None:
    called = []

    @tool
    def f(a: int) -> None:
        called.append(a)

    with pytest.raises(InvalidArguments):
        await run(f, a="x")
    with pytest.raises(InvalidArguments):
        await f.run("{", CTX, asyncio.to_thread)
    assert called == []


class Colour(enum.Enum):
    RED = "red"


class Model(BaseModel):
    at: dt.datetime


@dataclass
class Data:
    parts: tuple[int, ...]


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (None, None),
        ("", ""),
        (Model(at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC)), {"at": "2026-01-02T00:00:00Z"}),
        (Data((1, 2)), {"parts": [1, 2]}),
        ([Data((1,))], [{"parts": [1]}]),
        (b"\xff", "_w=="),
        ({1: Colour.RED}, {"1": "red"}),
        (Decimal("1.50"), "1.50"),
        (float("nan"), None),
        (10**30, 10**30),
        ({"a"}, ["a"]),
    ],
)
async def test_results_become_json(value: Any, json: Any) -> None:
    assert await run(Tool(lambda: value, name="f")) == json


def _loop() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize("make", [object, lambda: {"a": object()}, _loop, lambda: "\ud800"])
async def test_what_has_no_json_form_is_told_clearly(make: Callable[[], Any]) -> None:
    with pytest.raises(UnusableResult, match=r"tool 'f' returned a .* that has no JSON form"):
        await run(Tool(make, name="f"))


async def test_a_result_is_a_copy() -> None:
    kept: dict[str, list[int]] = {"a": []}
    result = await run(Tool(lambda: kept, name="f"))
    kept["a"].append(1)
    assert result == {"a": []}


async def test_what_the_function_raises_comes_through() -> None:
    def fails() -> None:
        raise LookupError("no such order")

    async def fails_too() -> None:
        raise LookupError("no such order")

    for made in (tool(fails), tool(fails_too)):
        with pytest.raises(LookupError, match="no such order"):
            await run(made)


async def test_a_stop_iteration_does_not_hang_the_caller() -> None:
    def f() -> Any:
        return next(iter([]))

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(run(tool(f)), 10)


async def test_a_tool_cannot_end_the_process() -> None:
    def f() -> None:
        raise SystemExit(1)

    async def g() -> None:
        raise SystemExit(1)

    for made in (tool(f), tool(g)):
        with pytest.raises(RuntimeError, match="tried to end the process"):
            await run(made)
