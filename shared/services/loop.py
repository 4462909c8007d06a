"""The loop of a run: ask what comes next, do it, journal it, tell it (`docs/protocols.md` E)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shared.core import choice, entries, run, telling
from shared.core.entries import Fault
from shared.core.limits import DRAIN_COMMITS
from shared.core.run import CallModel, Commit, Drain, Drained, Failed, Resumed, RunTools, Stop
from shared.services import inbox
from shared.services.context import Head
from shared.services.finish import finish_writes, read_again
from shared.services.journal import Stale
from shared.services.model_call import ModelCaller
from shared.services.tool_calls import ToolRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.core.entries import AnyEntry
    from shared.core.run import Happening
    from shared.ports import Write
    from shared.services.context import Backend, Owner, Running
    from shared.services.journal import Rest

log = logging.getLogger(__name__)


class RunLoop:
    """Advances one run until it is over or the slice is."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend
        self._model, self._tools = ModelCaller(backend), ToolRunner(backend)

    async def drive(self, owner: Owner, running: Running) -> bool:
        """Advance the run; True when it is over and told, False to hand it over.

        Raises:
            LeaseLost: another owner has the run; nothing more may be done here.
            HandOver: the model's provider asked for a long pause.
        """
        owner.running = running
        owner.beat.watch(running.state.run)
        happening = await self._begin(owner, running)
        while True:
            match run.decide(running.state, happening, self._max_steps(running)):
                case Commit(entry):
                    happening = await self._journal(owner, running, entry, happening)
                case Drain():
                    happening = await self._drain(owner, running)
                case CallModel():
                    if owner.slice.is_over(self._backend.clock.now()):
                        return False
                    owner.slice.steps_left -= 1
                    running.drains = 0
                    happening = await self._model.call(owner, running)
                case RunTools(calls):
                    happening = await self._tools.run(
                        owner, running, calls, lambda entry: self._commit(owner, running, entry)
                    )
                case Stop():
                    await owner.publisher.flush()
                    head = running.run
                    told = Head(head.run, head.body(), running.run_version + 1)
                    owner.told_runs.append(told)
                    return True

    async def _begin(self, owner: Owner, running: Running) -> Happening:
        agent = running.state.agent
        if agent not in self._backend.app:
            message = f"Agent with id {agent} is not in this deployment"
            return Failed(Fault(name="AgentNotFound", message=message))
        return running.begin_with or await self._drain(owner, running)

    def _max_steps(self, running: Running) -> int:
        if running.state.agent not in self._backend.app:
            return 1
        agent = self._backend.app.agent(running.state.agent)
        return agent.steps(running.run.options.get("maxSteps"))

    async def _drain(self, owner: Owner, running: Running) -> Drained:
        """Look into the inbox: what it holds for this run, as a happening (E1)."""
        found, running.inbox = running.inbox, None
        if found is None:
            found = await inbox.read(self._backend.table, owner.partition)
        state = running.state
        sees_more = run.takes_signals(state, self._max_steps(running))
        takes = sees_more and running.drains < DRAIN_COMMITS
        taken = choice.drain(found.waiting, state.run, state.agent, found.owned, takes=takes)
        asked = any(each.item.run == state.run for each in taken.cancels)
        return Drained(
            taken=taken,
            cancelled=asked or (owner.beat.halt.done() and not owner.beat.lost),
            message_id=self._backend.ids.new(),
        )

    async def _journal(
        self, owner: Owner, running: Running, entry: AnyEntry, happening: Happening
    ) -> Happening:
        """Commit what was decided; after a drain that left something, drain again (E1)."""
        drained = happening if isinstance(happening, Drained) else None
        try:
            await self._commit(owner, running, entry, drained)
        except Stale:
            return await self._drain(owner, running)
        if drained is None:
            return Resumed()
        running.drains += 1
        left = drained.taken.notes or drained.taken.more
        return await self._drain(owner, running) if left else Resumed()

    async def _commit(
        self, owner: Owner, running: Running, entry: AnyEntry, drained: Drained | None = None
    ) -> None:
        """Journal an entry at the run's next position, then tell it (E3, D2)."""
        state, publisher = running.state, owner.publisher
        at = max(self._backend.clock.now(), state.at + 1)
        changes: dict[str, object] = {
            "at": at,
            "k0": publisher.k,
            "index0": publisher.index,
            "rows": run.rows_after(state, entry),
        }
        if isinstance(entry, entries.Signals | entries.Note):
            changes["signals"] = entries.stamp(entry.signals, at)
        entry = entry.model_copy(update=changes)
        chunks = telling.told(state, entry)
        entry = entry.model_copy(update={"k1": entry.k0 + len(chunks)})
        rest = self._rest(owner, running, entry, drained)
        await owner.journal.write(state.start, state.position, entry, rest)
        publisher.tell(chunks)
        if isinstance(entry, entries.Finish) and entry.error:
            log.warning("run %s failed: %s: %s", state.run, entry.error.name, entry.error.message)
        running.state = run.fold(state, entry)
        running.prompt.add(entry, past=False)
        publisher.place(state.start, running.state.position, 0, publisher.index)

    def _rest(
        self, owner: Owner, running: Running, entry: AnyEntry, drained: Drained | None
    ) -> Rest | None:
        """Give what else belongs into the entry's commit."""

        async def take(again: bool) -> Sequence[Write]:
            if again or drained is None:
                raise Stale("the inbox changed")
            kept = isinstance(entry, entries.Note)
            return inbox.take(
                drained.taken.notes if kept else drained.taken.signals,
                "persisted" if kept else "delivered",
                run=running.state.run,
                position=running.state.position,
                now=entry.at,
                settings=self._backend.settings,
            )

        async def finish(again: bool) -> Sequence[Write]:
            seen = drained
            if again:
                await read_again(self._backend, owner, running)
                seen = None
            seen = seen or await self._drain(owner, running)
            assert isinstance(entry, entries.Finish)  # noqa: S101 - for the type checker
            return finish_writes(self._backend, owner, running, entry, seen.taken)

        match entry:
            case entries.Signals() | entries.Note():
                return take
            case entries.Finish():
                return finish
            case _:
                return None
