"""The commit that ends a run (`docs/protocols.md` F1)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from shared.core import keys
from shared.core.records import Active, Run
from shared.ports import Check, Delete, Put
from shared.services import inbox
from shared.services.context import due_run
from shared.services.journal import RunLost

if TYPE_CHECKING:
    from shared.core.choice import Taken
    from shared.core.entries import Finish
    from shared.ports import Write
    from shared.services.context import Backend, Owner, Running


def finish_writes(
    backend: Backend, owner: Owner, running: Running, entry: Finish, taken: Taken
) -> list[Write]:
    """Make the run's head terminal and give the thread to its next owner, if one waits.

    The head stays in the index until its end is told (F2).
    """
    head = running.run.model_copy(
        update={
            "status": entry.status,
            "reason": entry.reason,
            "finished_at": entry.at,
            "usage": asdict(running.state.usage),
            "error": entry.error.model_dump() if entry.error else None,
        }
    )
    due = due_run(owner.thread, entry.at, backend.settings)
    writes: list[Write] = [
        Put(keys.run(head.run), keys.RUN, head.body(), running.run_version, due),
        *inbox.take(
            taken.cancels,
            "discarded",
            run=head.run,
            position=running.state.position,
            now=entry.at,
            settings=backend.settings,
        ),
    ]
    running.run, running.has_heir = head, False
    if running.active.doomed:
        gone = Active(run="", agent="", status="deleted", doomed=True)
        return [*writes, Put(owner.partition, keys.ACTIVE, gone.body(), running.active_version)]
    heir = taken.heir
    if heir is None:
        return [*writes, Delete(owner.partition, keys.ACTIVE, running.active_version)]
    running.has_heir = True
    reserved = Active(run=heir.item.run, agent=heir.item.agent, status="reserved", item=heir.sort)
    return [
        *writes,
        Put(owner.partition, keys.ACTIVE, reserved.body(), running.active_version),
        Check(owner.partition, heir.sort, heir.version),
    ]


async def read_again(backend: Backend, owner: Owner, running: Running) -> None:
    """Refresh the versions that a finish expects.

    Raises:
        RunLost: the run is no longer the thread's (C2).
    """
    head = await backend.table.get(keys.run(running.state.run), keys.RUN)
    active = await backend.table.get(owner.partition, keys.ACTIVE)
    if head is None or active is None or Active.of(active.body).run != running.state.run:
        raise RunLost(f"run {running.state.run} is no longer the thread's")
    running.run, running.run_version = Run.of(head.body), head.version
    running.active, running.active_version = Active.of(active.body), active.version
