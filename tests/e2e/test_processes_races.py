"""Messages are sent at the very moment at which a run ends: each of them is answered.

`docs/design.md` 7.1, 7.2, 7.3.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest

from shared.bootstrap import build
from shared.settings import Settings
from tests.apps.killable import Notes
from tests.apps.killable import build as build_app
from tests.e2e.servers import Chunk, Machine, Reader, in_order, machine_in, send, until_stored
from tests.e2e.test_http_streams import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

ROUNDS = 200
MOMENTS = ("text-delta", "text-end", "step-finish", "finish")


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with machine_in(tmp_path) as machine:
        yield machine


async def send_at_the_end_of_runs(client: httpx.AsyncClient, reader: Reader) -> list[Any]:
    """Send each message when the reader sees that the answer to the one before it ends."""
    acked = [await send(client, "thread", "message 0")]
    moments = cycle(MOMENTS)
    while len(acked) < ROUNDS:
        moment, run, seen = next(moments), acked[-1]["runId"], len(reader.chunks)

        def is_ending(number: int, chunk: Chunk) -> bool:
            kinds = (moment, "finish") if number >= seen else ("finish",)  # noqa: B023
            return chunk["runId"] == run and chunk["type"] in kinds  # noqa: B023

        await reader.sees(is_ending)
        acked.append(await send(client, "thread", f"message {len(acked)}"))
    return acked


async def check(machine: Machine, reader: Reader, acked: list[Any]) -> None:
    for run in {answer["runId"] for answer in acked}:
        assert (await reader.end(run))["type"] == "finish"

    async def settled() -> bool:
        receipts = await machine.store.receipts("thread")
        return receipts == {answer["signal"]["id"]: "delivered" for answer in acked}

    await until_stored(settled, "each receipt is terminal")
    assert await machine.store.inbox("thread") == []
    log = await machine.store.log("thread")
    await reader.reaches(log[-1]["cursor"])
    assert reader.chunks == log
    assert in_order(log)
    ends = [end["runId"] for end in reader.ends()]
    assert len(ends) == len(set(ends)), "no run ends twice"
    assert {chunk["runId"] for chunk in log} == set(ends), "and none without an end"
    said = [chunk["data"]["id"] for chunk in log if chunk["type"] == "data-user-message"]
    assert said == [answer["signal"]["id"] for answer in acked], "each message once, in order"


async def test_200_messages_at_the_end_of_runs_in_one_process(
    machine: Machine, tmp_path: Path
) -> None:
    app = build_app(0, 0, 0, Notes(None), Notes(None))
    system = build(app, Settings(db_file=str(tmp_path / "machine.db")))
    await system.start()
    async with serving(system) as client:
        reader = await machine.reader("thread", url=str(client.base_url)).connected()
        acked = await send_at_the_end_of_runs(client, reader)
        await check(machine, reader, acked)
        await reader.stop()
    await system.stop()


async def test_200_messages_at_the_end_of_runs_of_another_process(machine: Machine) -> None:
    servers = [await machine.start(), await machine.start()]
    reader = await machine.reader("thread", servers[0]).connected()
    async with servers[1].client() as client:
        acked = await send_at_the_end_of_runs(client, reader)
    await check(machine, reader, acked)
