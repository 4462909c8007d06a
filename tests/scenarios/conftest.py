"""Scenes for the scenarios."""

from __future__ import annotations

import asyncio
import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.scenarios.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator
    from pathlib import Path

    from tests.apps.script import Turn


LONGEST = 40  # seconds for a test, below pytest-timeout's


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """End a test that waits for ever at a gate that nobody comes to."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _limited(pyfuncitem.obj)
    return (yield)


def _limited(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @wraps(test)
    async def limited(*args: Any, **options: Any) -> None:
        async with asyncio.timeout(LONGEST):
            await test(*args, **options)

    return limited


class MakeScene(Protocol):
    """Makes a scene whose agent plays these turns."""

    def __call__(self, *turns: Turn, **options: Any) -> Scene: ...


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[MakeScene]:
    made: list[Scene] = []

    def make(*turns: Turn, **options: Any) -> Scene:
        made.append(Scene(tmp_path / f"{len(made)}", *turns, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
