"""A follower whose connection is cut again and again sees each event once, in order (7.7)."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from shared.core.model import Finished, TextDelta, TextEnded, TextStarted, Usage
from tests.readers.clients import Client, read_in, stored_in
from tests.readers.proxy import CuttingProxy
from tests.readers.serving import machine, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shared.core.model import ModelPart, ModelRequest
    from tests.readers.clients import Form

CUTS = 50
WORDS = 700


class Paced:
    """A model that speaks only a little ahead of its reader, so that the reader lives with it."""

    name = "script/paced"

    def __init__(self, ahead: int) -> None:
        self._ahead, self._said, self.read = ahead, 0, 0
        self._moved = asyncio.Event()

    def heard(self) -> None:
        """The reader has read one more."""
        self.read += 1
        self._moved.set()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        yield TextStarted("t")
        for number in range(WORDS):
            self._said += 1
            while self._said > self.read + self._ahead:
                self._moved.clear()
                await self._moved.wait()
            yield TextDelta("t", f"wörd{number} ")
        yield TextEnded("t")
        yield Finished("stop", Usage(1, 1))


@pytest.mark.parametrize("form", ["subscribe", "events-header", "events-query"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_50_cuts_at_random_lose_and_repeat_nothing(
    tmp_path: Path, form: Form, seed: int
) -> None:
    model = Paced(ahead=100)
    async with (
        machine(tmp_path, model) as made,
        serving(made),
        CuttingProxy(made.url, cuts=CUTS, most=6_000, seed=seed).running() as proxy,
        Client(proxy.url, form) as client,
    ):
        client.on_chunk = lambda chunk: model.heard()
        for number in range(1, 4):
            await made.say(f"message {number}")
            await client.sees("finish", number)
        log = [json.loads(event.json) for event in await made.log()]
        rows = await made.rows()
    assert proxy.cuts == CUTS
    assert client.connections > CUTS // 2, "some are cut in the head of the answer"
    assert client.chunks == log
    assert len(log) > 3 * WORDS
    assert read_in(client.chunks) == stored_in(rows)
