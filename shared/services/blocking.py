"""Running blocking functions beside the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Run a function in a thread of its own, which cannot keep the process from ending.

    A pool would: one tool that blocks for a minute would delay every shutdown by a minute.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(call: Callable[..., None], value: object) -> None:
        if not result.done():
            call(value)

    def work() -> None:
        try:
            value = context.run(function)
        except BaseException as error:
            outcome: tuple[Callable[..., None], object] = (result.set_exception, error)
        else:
            outcome = (result.set_result, value)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, name="blocking", daemon=True).start()
    return await result
