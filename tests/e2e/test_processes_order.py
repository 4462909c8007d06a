"""The order of one sender's messages, where runs end and begin between them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shared.bootstrap import assemble, build
from shared.core.agent import Agent
from shared.core.app import App
from shared.core.signal_input import parse_signal
from shared.ports import WakeUp
from shared.services.accept import Target
from shared.settings import Settings
from tests.apps.script import HANG, Gate, ScriptModel, T

if TYPE_CHECKING:
    from pathlib import Path

    from shared.bootstrap import System
    from shared.services.accept import Accepted

pytestmark = pytest.mark.anyio

TARGET = Target("agent", "thread", "owner")
WAKE = WakeUp("thread", 1)


class SlowTable:
    """A table whose next commit can be held up, as that of another process may be."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.gate: Gate | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    async def commit(self, writes: Any) -> Any:
        if self.gate:
            gate, self.gate = self.gate, None
            await gate.pass_through()
        return await self._table.commit(writes)


async def say(system: System, text: str) -> Accepted:
    signal = parse_signal({"id": text, "type": "user", "contents": text}, id=text, now=1)
    return await system.accept.send(TARGET, signal)


async def test_b5_what_a_run_left_over_lets_nobody_overtake_the_owner_behind_it(
    tmp_path: Path,
) -> None:
    first, left = Gate(), Gate()
    model = ScriptModel([HANG(first, T("one")), HANG(left, T("two")), T("three"), T("four")])
    app = App([Agent("agent", model=model, max_steps=9)])
    built = build(app, Settings(db_file=str(tmp_path / "test.db")))
    table = SlowTable(built.backend.table)
    system = assemble(replace(built.backend, table=table), built.source, built.database)
    await say(system, "begin")
    running = asyncio.create_task(system.advance.advance(WAKE))
    await first.reached.wait()
    held = table.gate = Gate()
    late = asyncio.create_task(say(system, "left over"))  # was decided while the run was active,
    await held.reached.wait()
    first.open()
    await running  # but is committed after its end
    earlier = await say(system, "earlier")
    held.open()
    await late
    assert earlier.action == "wake"

    one_step = system.advance.slice()
    one_step.steps_left = 1
    running = asyncio.create_task(system.advance.advance(WAKE, one_step))
    await left.reached.wait()
    await say(system, "later")
    left.open()
    await running
    await say(system, "last")
    await system.advance.advance(WAKE)

    found = await system.threads.messages("thread", "owner", 0, 40, ascending=True)
    said = [
        part["text"]
        for row in found.items
        if row["role"] != "assistant"
        for part in row["content"]["parts"]
    ]
    assert said == ["begin", "left over", "earlier", "later", "last"]
    system.database.close()
