"""A follower is bound to the resource that it named (`docs/protocols.md` I2, invariant 7.10)."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from shared.core.errors import Forbidden, Unavailable
from shared.services.tails import Tails
from tests.apps.script import HANG, Gate, ScriptModel, T
from tests.readers.clients import Client, Refused
from tests.readers.serving import THREAD, machine, serving

if TYPE_CHECKING:
    from pathlib import Path

    from shared.core.events import LogEvent
    from shared.core.records import Thread
    from shared.services.follow import Following
    from tests.readers.clients import Form

SECRET = "a secret of somebody else"
MINE, THEIRS = "mine", "theirs"
FORMS = ["subscribe", "events-header"]


@pytest.mark.parametrize("form", FORMS)
async def test_a_thread_that_another_resource_makes_ends_the_stream(
    tmp_path: Path, form: Form
) -> None:
    """It was followed before there was any; the stream tells no event of it, and ends."""
    async with machine(tmp_path, ScriptModel([T(SECRET)])) as made, serving(made):
        following = Client(made.url, form, resource=MINE)
        async with following, Client(made.url, form, resource=THEIRS) as owner:
            await made.say(SECRET, resource=THEIRS)
            await owner.sees("finish")
            if form == "subscribe":
                await following.ended()
            else:  # an EventSource comes back, and is refused then
                with pytest.raises(Refused, match="403"):
                    await following.ended()
            assert following.types == ["error"]
            assert following.chunks[0]["payload"]["error"]["name"] == "Forbidden"
            assert SECRET not in str(following.chunks)


@pytest.mark.parametrize("form", FORMS)
async def test_a_thread_of_another_resource_is_refused_at_once(tmp_path: Path, form: Form) -> None:
    async with machine(tmp_path, ScriptModel([T(SECRET)])) as made, serving(made):
        async with Client(made.url, form, resource=THEIRS) as owner:
            await made.say(SECRET, resource=THEIRS)
            await owner.sees("finish")
            cursor = owner.chunks[1]["cursor"]
        for given in ("", cursor):
            async with Client(made.url, form, resource=MINE, cursor=given) as client:
                with pytest.raises(Refused, match="403"):
                    await client.ended()
                assert client.chunks == []


@pytest.mark.parametrize("when", ["before it begins", "while it runs", "when it is over"])
async def test_a_lost_log_shows_nothing_to_whom_the_thread_is_not(
    tmp_path: Path, when: str
) -> None:
    """The first that the follower hears of the thread is `resync`: it must not be filled in."""
    gate = Gate()
    async with machine(tmp_path, ScriptModel([HANG(gate, T(SECRET)), T(SECRET)])) as made:
        following = await made.system.follow.open(THREAD, MINE, None)
        if when == "before it begins":
            made.lose_the_coordinator()
        await made.say(SECRET, resource=THEIRS)
        await gate.reached.wait()
        if when == "while it runs":
            made.lose_the_coordinator()
        gate.open()
        owner = await made.system.follow.open(THREAD, THEIRS, None)
        await _finished(owner)
        if when == "when it is over":
            made.lose_the_coordinator()
            await made.say(SECRET, resource=THEIRS)
            await _finished(await made.system.follow.open(THREAD, THEIRS, None))
        shown: list[LogEvent] = []
        with pytest.raises(Forbidden):
            await _read(following, shown)
        assert SECRET not in str(shown)


async def _read(following: Following, shown: list[LogEvent]) -> None:
    async with aclosing(following.batches(100)) as batches:
        async for batch in batches:
            shown += batch


async def _finished(following: Following) -> None:
    async with aclosing(following.batches(10_000)) as batches:
        async for batch in batches:
            if any('"finish"' in event.json for event in batch):
                return


async def test_a_thread_that_is_made_anew_by_another_resource_ends_the_stream(
    tmp_path: Path,
) -> None:
    model = ScriptModel([T("mine"), T(SECRET)])
    async with (
        machine(tmp_path, model) as made,
        serving(made),
        Client(made.url, resource=MINE) as client,
    ):
        await made.say("hello", resource=MINE)
        await client.sees("finish")
        await made.system.deletion.delete(THREAD, MINE)
        await client.sees("thread-deleted")
        await made.say(SECRET, resource=THEIRS)
        await client.ended()
        assert client.types[-2:] == ["thread-deleted", "error"]
        assert SECRET not in str(client.chunks)


async def test_a_check_without_an_answer_is_asked_again(tmp_path: Path) -> None:
    """One follower's reading of the thread gets no answer; the next one must not inherit that."""
    answers: list[Exception | None] = [Unavailable("no answer"), None]

    async def read() -> Thread | None:
        answer = answers.pop(0)
        if answer:
            raise answer
        return None

    async with machine(tmp_path, works=False) as made, Tails(made.coordinator).listen("log") as one:
        with pytest.raises(Unavailable):
            await one.once(1, read)
        assert await one.once(1, read) is None
    assert answers == []
