"""What use cases work with: the ports of a backend, and one acquisition of a thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.core import keys
from shared.ports import Index

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.core.agent import Agent
    from shared.core.app import App
    from shared.core.prompt import Prompt
    from shared.core.records import Active, Run
    from shared.core.run import Happening, RunState
    from shared.ports import Clock, Coordinator, Ids, ModelClient, Table, WakeQueue
    from shared.services.heartbeat import Beat
    from shared.services.inbox import Inbox
    from shared.services.journal import Journal
    from shared.services.publisher import Publisher
    from shared.settings import Settings


@dataclass(frozen=True, slots=True)
class Backend:
    """The ports of one deployment, its agents and its settings."""

    app: App
    settings: Settings
    table: Table
    coordinator: Coordinator
    queue: WakeQueue
    clock: Clock
    ids: Ids
    model: Callable[[Agent], ModelClient]
    """Resolves an agent's model; raises Misconfigured with a text that says what to set."""


@dataclass(slots=True, eq=False)
class Slice:
    """What one invocation may still do (`docs/protocols.md` F4)."""

    ends_at: int
    steps_left: int
    stopping: bool = False

    def is_over(self, now: int) -> bool:
        """Tell whether to hand over before the next step."""
        return self.stopping or now >= self.ends_at or self.steps_left <= 0


@dataclass(frozen=True, slots=True)
class Head:
    """A run's head as it is stored, or, without a version, one to be read."""

    run: str
    body: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0


@dataclass(slots=True)
class Owner:
    """One acquisition of a thread: who may write its journal and its log, for now."""

    thread: str
    incarnation: int
    beat: Beat
    publisher: Publisher
    journal: Journal
    slice: Slice
    running: Running | None = None
    told_runs: list[Head] = field(default_factory=list)
    """Runs whose end is told, to be taken out of the index after release (F2)."""

    @property
    def partition(self) -> str:
        """Where the thread's records live."""
        return keys.partition(self.thread, self.incarnation)


@dataclass(slots=True)
class Running:
    """A run that this owner advances.

    `begin_with`: None to look into the inbox first; `inbox` is what was read of it already.
    """

    state: RunState
    run: Run
    run_version: int
    active: Active
    active_version: int
    prompt: Prompt
    begin_with: Happening | None
    inbox: Inbox | None = None
    drains: int = 0
    has_heir: bool = False
    """Set by the finish: another run was given the thread."""


def due_run(thread: str, now: int, settings: Settings) -> Index:
    """Index a run's head for the tick, which looks after it from one tick later on (H1)."""
    return Index(keys.due_runs(keys.shard(thread)), now + settings.tick)
