"""Beginning a run: one commit, before history is looked at (`docs/protocols.md` B5, B6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.core import entries, keys, run, telling
from shared.core.choice import Discard, Keep, Leftovers, Owned, Waiting
from shared.core.entries import Fault
from shared.core.records import Active, Run
from shared.core.run import Failed, Resumed
from shared.ports import ABSENT, Check, Put
from shared.services import inbox
from shared.services.context import Head, Running, due_run
from shared.services.history import prompt_of_past
from shared.services.journal import Again

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.prompt import Prompt
    from shared.core.records import InboxItem, ReceiptState, RunStatus
    from shared.core.run import Happening
    from shared.ports import Expect, Item, Write
    from shared.services.context import Backend, Owner

CHANGED = "the inbox or the active run changed"


class Starter:
    """Starts what an idle thread's inbox holds."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend

    async def settle(
        self, owner: Owner, choice: Discard | Keep, active: Item | None, tail: list[Item]
    ) -> None:
        """Do away with what needs no run.

        Raises:
            ConditionFailed: somebody else changed the thread; look at it again.
            RunLost: another owner is at work.
        """
        if isinstance(choice, Keep):
            await self._keep(owner, choice.item, active, tail)
            return
        now = self._backend.clock.now()
        owner.beat.check(now)
        await self._backend.table.commit(self._take(choice.items, choice.state, "", now))

    async def _keep(
        self, owner: Owner, kept: Waiting, active: Item | None, tail: list[Item]
    ) -> None:
        """Store a signal as a run of one entry, if no run is live (A7, B5)."""
        start, at, rows = self._place(tail)
        signals = entries.stamp([kept.item.signal or {}], at)
        head = self._fresh(owner, kept.item, "completed").model_copy(
            update={"start": start, "finished_at": at}
        )
        note = entries.Note(
            run=head.run,
            agent=head.agent,
            signals=signals,
            at=at,
            rows=rows + entries.stored(signals),
        )
        note = note.model_copy(update={"k1": len(telling.opening(note))})

        async def rest(again: bool) -> Sequence[Write]:
            if again:
                raise Again(CHANGED)
            expect: Expect = active.version if active else ABSENT
            return [
                Check(owner.partition, keys.ACTIVE, expect),
                Put(
                    keys.run(head.run),
                    keys.RUN,
                    head.body(),
                    ABSENT,
                    due_run(head.thread, at, self._backend.settings),
                ),
                *self._take([kept], "persisted", head.run, at),
            ]

        await owner.journal.write(start, 0, note, rest)
        owner.publisher.place(start, 0, 0, 0)
        owner.publisher.tell(telling.opening(note))
        await owner.publisher.flush()
        owner.told_runs.append(Head(head.run, head.body(), 1))

    def _take(
        self, items: Sequence[Waiting], state: ReceiptState, run_id: str, now: int
    ) -> list[Write]:
        settings = self._backend.settings
        return inbox.take(items, state, run=run_id, position=0, now=now, settings=settings)

    def _fresh(self, owner: Owner, item: InboxItem, status: RunStatus) -> Run:
        """Make the head of a run that nobody was told of."""
        return Run(
            run=self._backend.ids.new(),
            thread=owner.thread,
            resource=item.resource,
            agent=item.agent,
            incarnation=owner.incarnation,
            status=status,
            options=item.options,
            created_at=self._backend.clock.now(),
        )

    async def start(
        self, owner: Owner, choice: Leftovers | Owned, active: Item | None, tail: list[Item]
    ) -> Running:
        """Begin a run.

        `tail` holds the newest journal entries, told already; `active` must not be a live run.

        Raises:
            ConditionFailed: somebody else changed the thread; look at it again.
            RunLost: another owner is at work.
        """
        head, version = await self._head(choice, owner)
        start, entry = self._input(head, choice.items, tail)
        head = head.model_copy(update={"start": start})
        live = Active(run=head.run, agent=head.agent, status="running", start=start)
        expect: Expect = active.version if active else ABSENT

        async def rest(again: bool) -> Sequence[Write]:
            if again:
                raise Again(CHANGED)
            return [
                Put(owner.partition, keys.ACTIVE, live.body(), expect),
                Put(
                    keys.run(head.run),
                    keys.RUN,
                    head.body(),
                    version,
                    due_run(head.thread, entry.at, self._backend.settings),
                ),
                *self._take(choice.items, "delivered", head.run, entry.at),
            ]

        await owner.journal.write(start, 0, entry, rest)
        owner.publisher.place(start, 0, 0, 0)
        owner.publisher.tell(telling.opening(entry))
        owner.publisher.place(start, 1, 0, entry.k1)
        return Running(
            state=run.begin(entry, start),
            run=head,
            run_version=_after(version),
            active=live,
            active_version=_after(expect),
            prompt=await self._prompt(owner, head, tail, entry),
            begin_with=_first(choice),
        )

    def _input(
        self, head: Run, items: Sequence[Waiting], tail: list[Item]
    ) -> tuple[int, entries.Input]:
        """Make entry 0, and give the start of its run."""
        start, at, rows = self._place(tail)
        readable = [w.item.signal for w in items if w.item.signal and not w.broken]
        signals = entries.stamp(readable, at)
        entry = entries.Input(
            run=head.run,
            agent=head.agent,
            message_id=self._backend.ids.new(),
            signals=signals,
            at=at,
            rows=rows + entries.stored(signals),
        )
        return start, entry.model_copy(update={"k1": len(telling.opening(entry))})

    async def _head(self, choice: Leftovers | Owned, owner: Owner) -> tuple[Run, Expect]:
        """Give the run to start, and the version of its stored head."""
        item = choice.items[0].item
        stored = await self._backend.table.get(keys.run(item.run), keys.RUN)
        fresh = self._fresh(owner, item, "running")
        if isinstance(choice, Owned):
            head = fresh.model_copy(update={"run": item.run})
            return head, stored.version if stored else ABSENT
        options = Run.of(stored.body).options if stored else {}
        return fresh.model_copy(update={"options": options}), ABSENT

    def _place(self, tail: list[Item]) -> tuple[int, int, int]:
        """Give the next run's start, its first moment, and the thread's rows so far (D1)."""
        now = self._backend.clock.now()
        if not tail:
            return now, now, 0
        last = entries.read(tail[-1].body)
        start, _ = keys.start_and_position(tail[-1].sort)
        return max(now, start + 1), max(now, entries.last_moment(last) + 1), last.rows

    async def _prompt(
        self, owner: Owner, head: Run, tail: list[Item], entry: entries.Input
    ) -> Prompt:
        """Load as much history as the agent wants, and add the run's input."""
        prompt = await prompt_of_past(self._backend, owner.partition, tail, head.agent)
        prompt.add(entry, past=False)
        return prompt


def _first(choice: Leftovers | Owned) -> Happening | None:
    """Say with what the loop begins; None: with a look into the inbox."""
    if any(each.broken for each in choice.items):
        message = "the signal that woke the run cannot be read by this version"
        return Failed(Fault(name="Unreadable", message=message))
    return None if isinstance(choice, Owned) and choice.more else Resumed()


def _after(version: Expect) -> int:
    """The version of an item after a put that expected this one."""
    return version + 1 if isinstance(version, int) else 1
