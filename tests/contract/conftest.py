"""Fixtures: every contract test runs on every backend."""

from __future__ import annotations

import asyncio
import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.backends import BACKENDS, Backend, Ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator
    from pathlib import Path

LIMIT = 40  # seconds for a test, below pytest-timeout's


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """End a test that waits for ever.

    pytest-timeout cannot: after it has failed the test, the teardown of an async fixture waits for
    the event loop, where the test still runs.
    """
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _limited(pyfuncitem.obj)
    return (yield)


def _limited(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @wraps(test)
    async def limited(*args: Any, **options: Any) -> None:
        async with asyncio.timeout(LIMIT):
            await test(*args, **options)

    return limited


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    chosen: Backend = request.param
    return chosen


@pytest.fixture
async def ports(backend: Backend, tmp_path: Path) -> AsyncIterator[Ports]:
    async with backend.open(tmp_path) as opened:
        yield opened
