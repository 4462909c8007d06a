"""Messages are sent at the very moment at which a run ends: each of them is answered.

`docs/design.md` 7.1, 7.2, 7.3.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn

from functions.api.app import create_app
from infra.local.serve import bind
from shared.bootstrap import build
from shared.settings import Settings
from tests.apps.killable import Notes
from tests.apps.killable import build as build_app
from tests.e2e.servers import (
    LIMIT,
    Chunk,
    Machine,
    Reader,
    in_order,
    machine_in,
    send,
    until_stored,
)
from tests.e2e.test_http_streams import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


pytestmark = [pytest.mark.anyio, pytest.mark.timeout(150)]

ROUNDS = 200
SENDERS = 5
MOMENTS = ("", "step-start", "", "text-end", "", "finish")


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with machine_in(tmp_path) as machine:
        yield machine


async def race(client: httpx.AsyncClient, reader: Reader) -> list[Any]:
    """Send from several senders at once: one's run ends while another's message comes in.

    Each waits in turn for nothing, or until its run has come to this or that moment.
    """
    acked: list[Any] = []

    async def sender(name: int) -> None:
        for turn in range(ROUNDS // SENDERS):
            seen = len(reader.chunks)
            sent = await send(client, "thread", f"{name}/{turn:02d}")
            acked.append(sent)
            moment = MOMENTS[(name + turn) % len(MOMENTS)]
            if moment:
                await reader.sees(_comes_to(moment, sent["runId"], seen))

    await asyncio.gather(*(sender(name) for name in range(SENDERS)))
    return acked


def _comes_to(moment: str, run: str, seen: int) -> Callable[[int, Chunk], bool]:
    def wanted(number: int, chunk: Chunk) -> bool:
        kinds = (moment, "finish") if number >= seen else ("finish",)
        return chunk["runId"] == run and chunk["type"] in kinds

    return wanted


async def check(machine: Machine, reader: Reader, acked: list[Any]) -> None:
    for run in {answer["runId"] for answer in acked}:
        assert (await reader.end(run))["type"] == "finish"

    await until_stored(lambda: machine.store.is_idle("thread"), "an idle thread")
    receipts = await machine.store.receipts("thread")
    assert receipts == {answer["signal"]["id"]: "delivered" for answer in acked}
    log = await machine.store.log("thread")
    await reader.reaches(log[-1]["cursor"])
    assert reader.chunks == log
    assert in_order(log)
    ends = [end["runId"] for end in reader.ends()]
    assert len(ends) == len(set(ends)), "no run ends twice"
    assert {chunk["runId"] for chunk in log} == set(ends), "and none without an end"
    said = [chunk["data"]["id"] for chunk in log if chunk["type"] == "data-user-message"]
    assert sorted(said) == sorted(answer["signal"]["id"] for answer in acked), "each message once"
    texts = [chunk["data"]["contents"] for chunk in log if chunk["type"] == "data-user-message"]
    for name in range(SENDERS):
        mine = [text for text in texts if text.startswith(f"{name}/")]
        assert mine == sorted(mine), "one sender's messages stay in order"


async def test_200_messages_at_the_end_of_runs_in_one_process(
    machine: Machine, tmp_path: Path
) -> None:
    app = build_app(0, 0, 0, Notes(None), Notes(None))
    system = build(app, Settings(db_file=str(tmp_path / "machine.db")))
    await system.start()
    with bind("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = Server(uvicorn.Config(create_app(system), log_level="warning", lifespan="off"))
        serving = asyncio.create_task(server.serve([listener]))
        await asyncio.wait_for(server.up.wait(), LIMIT)
        reader = await machine.reader("thread", url=url).connected()
        async with httpx.AsyncClient(base_url=url, timeout=LIMIT) as client:
            acked = await race(client, reader)
        await check(machine, reader, acked)
        await reader.stop()
        server.should_exit = True
        await serving
    await system.stop()


async def test_200_messages_at_the_end_of_runs_of_another_process(machine: Machine) -> None:
    servers = [await machine.start(), await machine.start()]
    reader = await machine.reader("thread", servers[0]).connected()
    async with servers[1].client() as client:
        acked = await race(client, reader)
    await check(machine, reader, acked)
