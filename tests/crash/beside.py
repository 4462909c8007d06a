"""Doing two things at once in a test."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do some work beside the block, and wait for its end."""
    task = asyncio.create_task(work)
    try:
        yield
        await task
    finally:
        task.cancel()
