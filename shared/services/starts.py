"""Beginning a run: one commit, before history is looked at (`docs/protocols.md` B5, B6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.core import entries, keys, run, telling
from shared.core.choice import Discard, Keep, Leftovers, Owned, Waiting, next_start
from shared.core.errors import ConditionFailed
from shared.core.prompt import Prompt, recent
from shared.core.records import Active, Run
from shared.core.run import Resumed
from shared.ports import ABSENT, Check, Index, Put
from shared.services import inbox, journal
from shared.services.context import Running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.ports import Expect, Item, Write
    from shared.services.context import Backend, Owner

HISTORY_PAGE = 40


class Starter:
    """Starts what an idle thread's inbox holds."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend

    async def next(self, owner: Owner, active: Item | None, tail: list[Item]) -> Running | None:
        """Start the next run, after whatever needs none; None when nothing is startable.

        `tail` holds the newest journal entries, told already; `active` must not be a live run.

        Raises:
            ConditionFailed: somebody else changed the thread; read it again.
            RunLost: another owner is at work.
        """
        waiting, owned = await inbox.read(self._backend.table, owner.partition)
        choice = next_start(waiting, owned)
        while isinstance(choice, Discard | Keep):
            tail = await self._settle(owner, choice, active, tail)
            waiting, owned = await inbox.read(self._backend.table, owner.partition)
            choice = next_start(waiting, owned)
        if choice is None:
            return None
        return await self._start(owner, choice, active, tail)

    async def _settle(
        self, owner: Owner, choice: Discard | Keep, active: Item | None, tail: list[Item]
    ) -> list[Item]:
        if isinstance(choice, Keep):
            return await self._keep(owner, choice.item, active, tail)
        now = self._backend.clock.now()
        owner.beat.check(now)
        writes = inbox.take(
            choice.items, "discarded", run="", position=0, now=now, settings=self._backend.settings
        )
        await self._backend.table.commit(writes)
        return tail

    async def _keep(
        self, owner: Owner, kept: Waiting, active: Item | None, tail: list[Item]
    ) -> list[Item]:
        """Store a signal as a run of one entry, if no run is live (A7, B5)."""
        start, at, rows = self._place(tail)
        signal = kept.item.signal or {}
        name = str(signal.get("id"))
        note = entries.Note(run=name, agent=kept.item.agent, signals=entries.stamp([signal], at))
        note = note.model_copy(update={"at": at, "rows": rows + _stored(note.signals)})
        note = note.model_copy(update={"k1": len(telling.opening(note))})

        async def rest(again: bool) -> Sequence[Write]:
            if again:
                raise Changed
            taken = inbox.take(
                [kept], "persisted", run=name, position=0, now=at, settings=self._backend.settings
            )
            expect: Expect = active.version if active else ABSENT
            return [Check(owner.partition, keys.ACTIVE, expect), *taken]

        await owner.journal.write(start, 0, note, rest)
        owner.publisher.place(start, 0, 0, 0)
        owner.publisher.tell(telling.opening(note))
        return await journal.newest(self._backend.table, owner.partition, HISTORY_PAGE)

    async def _start(
        self, owner: Owner, choice: Leftovers | Owned, active: Item | None, tail: list[Item]
    ) -> Running:
        head, version = await self._head(choice, owner)
        items = choice.items
        start, at, rows = self._place(tail)
        signals = entries.stamp([w.item.signal for w in items if w.item.signal], at)
        entry = entries.Input(
            run=head.run,
            agent=head.agent,
            message_id=self._backend.ids.new(),
            signals=signals,
            at=at,
            rows=rows + _stored(signals),
        )
        entry = entry.model_copy(update={"k1": len(telling.opening(entry))})
        head = head.model_copy(update={"start": start})
        now_active = Active(run=head.run, agent=head.agent, status="running", start=start)

        async def rest(again: bool) -> Sequence[Write]:
            if again:
                raise Changed
            expect: Expect = active.version if active else ABSENT
            return [
                Put(owner.partition, keys.ACTIVE, now_active.body(), expect),
                Put(keys.run(head.run), keys.RUN, head.body(), version, self._due(head, at)),
                *inbox.take(
                    items,
                    "delivered",
                    run=head.run,
                    position=0,
                    now=at,
                    settings=self._backend.settings,
                ),
            ]

        await owner.journal.write(start, 0, entry, rest)
        owner.publisher.place(start, 0, 0, 0)
        owner.publisher.tell(telling.opening(entry))
        owner.publisher.place(start, 1, 0, entry.k1)
        return Running(
            state=run.begin(entry, start),
            run=head,
            run_version=_after(version),
            active=now_active,
            active_version=_after(active.version if active else ABSENT),
            prompt=await self._prompt(owner, head, tail, entry),
            begin_with=None if isinstance(choice, Owned) and choice.more else Resumed(),
        )

    async def _head(self, choice: Leftovers | Owned, owner: Owner) -> tuple[Run, Expect]:
        """Give the run to start, and the version of its stored head."""
        item = choice.items[0].item
        stored = await self._backend.table.get(keys.run(item.run), keys.RUN)
        head = Run(
            run=item.run if isinstance(choice, Owned) else self._backend.ids.new(),
            thread=owner.thread,
            resource=item.resource,
            agent=item.agent,
            incarnation=owner.incarnation,
            status="running",
            options=Run.of(stored.body).options if stored else item.options,
            created_at=self._backend.clock.now(),
        )
        return head, stored.version if stored and isinstance(choice, Owned) else ABSENT

    def _place(self, tail: list[Item]) -> tuple[int, int, int]:
        """Give the next run's start, its first moment, and the thread's rows so far (D1)."""
        now = self._backend.clock.now()
        if not tail:
            return now, now, 0
        last = entries.read(tail[-1].body)
        start, _ = keys.start_and_position(tail[-1].sort)
        return max(now, start + 1), max(now, entries.last_moment(last) + 1), last.rows

    def _due(self, head: Run, now: int) -> Index:
        settings = self._backend.settings
        return Index(keys.due_runs(keys.shard(head.thread)), now + settings.tick)

    async def _prompt(
        self, owner: Owner, head: Run, tail: list[Item], entry: entries.Input
    ) -> Prompt:
        """Load as much history as the agent wants, and add the run's input."""
        prompt = Prompt()
        if head.agent in self._backend.app:
            rows = self._backend.app.agent(head.agent).last_messages
            past = await journal.reaching(self._backend.table, owner.partition, tail, rows)
            for old in recent(past, rows):
                prompt.add(old, past=True)
        prompt.add(entry, past=False)
        return prompt


class Changed(ConditionFailed):
    """The thread is no longer as it was read; look at it again."""

    def __init__(self) -> None:
        super().__init__(())


def _after(version: Expect) -> int:
    """The version of an item after a put that expected this one."""
    return version + 1 if isinstance(version, int) else 1


def _stored(signals: Sequence[dict[str, object]]) -> int:
    return sum(1 for signal in signals if not signal.get("transient"))
