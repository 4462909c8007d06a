"""Waiting on a condition with a limit, instead of sleeping."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

LIMIT = 10.0  # seconds


async def until(read: Callable[[], Awaitable[T]], expected: T) -> None:
    """Ask until the answer is the expected one; fail with the last answer after a limit."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LIMIT
    while (found := await read()) != expected:
        assert loop.time() < deadline, f"still {found!r}, not {expected!r}"
        await asyncio.sleep(0.01)
