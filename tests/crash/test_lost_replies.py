"""A write without an answer: applied or not, seen or not, now or a little later.

`docs/protocols.md` C1, C2, B1; `docs/design.md` 7.1, 7.2, 7.7.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from shared.core.errors import ConditionFailed, Unavailable
from shared.core.tool import ToolContext, tool
from shared.ports import Lease
from shared.services.heartbeat import Heartbeat
from tests.apps.script import HANG, C, Gate, T
from tests.clock import VirtualClock
from tests.contract.faults import Fault, Faults
from tests.contract.waiting import until
from tests.crash.beside import beside
from tests.protocol.stage import PERSIST, Hooks, Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shared.core.tool import Tool
    from shared.ports import Coordinator, Write
    from tests.apps.script import Turn
    from tests.contract.faults import Rival
    from tests.crash.conftest import MakeStage

pytestmark = pytest.mark.anyio

CALL = C(("c1", "act", {}))


def saying(box: list[Stage]) -> Tool:
    """A tool during which another message comes."""

    @tool
    async def act(ctx: ToolContext) -> str:
        await box[0].say("m2", "also this")
        return ctx.call_id

    return act


class Unseen(Faults):
    """The `number`-th commit is applied; neither it nor the look for it is answered."""

    def __init__(self, number: int) -> None:
        super().__init__({("commit", number): Fault.CUT})
        self._number, self._looks = number, False

    def _next(self, name: str) -> Fault | Rival | None:
        if name == "get" and self._looks:
            super()._next(name)
            self._looks = False
            return Fault.REFUSED
        fault = super()._next(name)
        self._looks = self._looks or (fault is Fault.CUT)
        return fault


@pytest.mark.parametrize("when", ["a tool runs", "the model answers"])
async def test_a_commit_and_the_look_for_it_without_an_answer(stage: MakeStage, when: str) -> None:
    """C2: commit n is applied, its reply is lost, and the look at the position gets no answer.

    The owner then decides anew, maybe another entry (the inbox is empty now: a finish), and finds
    an entry of its own there. It is not the one that it means: nonces are of an entry, not an
    owner. Once for each commit of the run, with a message that comes in while `when`.
    """

    async def lived(faults: Callable[[], Faults]) -> tuple[Stage, Faults]:
        box: list[Stage] = []
        gate = Gate()
        turns: list[Turn] = [HANG(gate), T("two")]
        if when == "a tool runs":
            turns = [CALL, T("one"), T("two")]
        box.append(world := stage(*turns, tools=[saying(box)]))
        await world.say("m1", "go")
        used = faults()
        if when == "the model answers":
            process = world.process(used)
            async with world.time_passes(), beside(world.work(process)):
                await gate.reached.wait()
                await world.say("m2", "also this")
                gate.open()
        else:
            await world.settle(used)
        await world.heal()
        return world, used

    expected, plain = await lived(Faults)
    for number in range(1, plain.calls.count("commit") + 1):
        world, _ = await lived(lambda number=number: Unseen(number))  # type: ignore[misc]
        assert await world.transcript() == await expected.transcript(), number
        assert await world.receipts() == {"m1": "delivered", "m2": "delivered"}, number
        assert await _milestones(world) == await _milestones(expected), number
        assert await world.prompts() == await expected.prompts(), number


async def _milestones(world: Stage) -> list[str]:
    """What readers were told that no second attempt may repeat."""
    chunks = await world.chunks()
    return [
        c["type"] if c["type"] in ("finish", "tool-result") else c["data"]["id"]
        for c in chunks
        if c["type"] in ("finish", "tool-result", "data-user-message")
    ]


class Late(Hooks):
    """The first commit of a kind gets no answer, and lands just before the next commit."""

    def __init__(self, kind: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(before={kind: self._hold})
        self._meanwhile, self._holds = meanwhile, False
        self._held: Callable[[], Awaitable[Any]] | None = None

    async def _hold(self, _: Sequence[Write]) -> None:
        self._holds = True

    async def around(
        self, name: str, call: Callable[[], Awaitable[Any]], conflict: Rival | None = None
    ) -> Any:
        if name == "commit" and self._holds:
            self._holds, self._held = False, call
            await self._meanwhile()
            raise Unavailable("injected: on its way")
        if name == "commit" and self._held:
            held, self._held = self._held, None
            with suppress(ConditionFailed):
                await held()
        return await super().around(name, call, conflict)


@pytest.mark.parametrize("kind", ["note", "input", "model", "result", "signals", "finish"])
async def test_a_commit_that_lands_after_it_was_looked_for(stage: MakeStage, kind: str) -> None:
    """C2: no answer to a commit, nothing at its position, and then it lands after all.

    Meanwhile another message has come, so what the owner would write now is another entry. Every
    signal is still seen by the model once, and every end told once.
    """
    box: list[Stage] = []
    turns: list[Turn] = [T("zero"), CALL, T("one"), T("two"), T("three")]
    box.append(world := stage(*turns, tools=[saying(box)]))
    await world.say("m0")
    await world.settle()  # so that there is a log, and nothing of it is lost
    if kind == "note":
        await world.say("k1", "kept", behaviour=PERSIST)
    await world.say("m1", "go")

    async def meanwhile() -> None:
        await world.say("m3", "and this")

    await world.settle(Late(kind, meanwhile))
    await world.heal()
    sent = (["kept"] if kind == "note" else []) + ["go", "also this", "and this"]
    seen = [text for text in (await world.prompts())[-1] if text in sent]
    assert sorted(seen) == sorted(sent)
    assert seen.index("go") < seen.index("also this")
    states = dict.fromkeys(("m0", "m1", "m2", "m3"), "delivered")
    assert await world.receipts() == states | ({"k1": "persisted"} if kind == "note" else {})
    stored = await world.kinds()
    told = await _milestones(world)
    assert told.count("finish") == stored.count("finish") + stored.count("note")
    assert told.count("tool-result") == stored.count("result") == 1
    assert sorted(id for id in told if id[0] in "km") == sorted(await world.receipts())
    assert await world.counts_its_rows()


class Flaky:
    """A Coordinator whose first renewal comes back as something that is no answer."""

    def __init__(self) -> None:
        self.renewed: list[str] = []

    def renew(self, lease: Lease, ttl: int) -> str | None:
        self.renewed.append(lease.log)
        if len(self.renewed) == 1:
            raise ValueError("a reply that is no JSON")
        return None


async def test_a_renewal_that_breaks_does_not_end_the_heartbeat() -> None:
    """B1: an error that nobody expected, in the one thread that renews all leases of a process."""
    flaky = Flaky()
    coordinator: Coordinator = flaky  # type: ignore[assignment]
    heartbeat = Heartbeat(coordinator, VirtualClock(), 5_000, 1)

    async def was_renewed(log: str, times: int) -> bool:
        return flaky.renewed.count(log) >= times

    for log in ("a", "b"):
        async with heartbeat.keep(Lease(log, "token", 1, None, -1), 0) as beat:
            await until(lambda log=log: was_renewed(log, 3), expected=True)  # type: ignore[misc]
            assert not beat.lost
