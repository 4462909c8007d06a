"""The composition root: settings → adapters → services, built once per process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shared.adapters.models.resolve import resolve
from shared.adapters.sqlite import (
    Database,
    Notices,
    SqliteCoordinator,
    SqliteTable,
    SqliteWakeQueue,
)
from shared.adapters.system import SystemClock, SystemIds
from shared.services.accept import Accept
from shared.services.advance import Advance
from shared.services.context import Backend
from shared.services.deletion import Deletion
from shared.services.editing import Editing
from shared.services.follow import Follow
from shared.services.recover import Recover
from shared.services.threads import Threads
from shared.services.waiting import Waits
from shared.services.worker import Worker
from shared.settings import Settings

if TYPE_CHECKING:
    from shared.core.agent import Agent
    from shared.core.app import App
    from shared.ports import Clock, Ids, ModelClient, WakeSource


@dataclass(slots=True)
class System:
    """A deployment's services over one backend."""

    backend: Backend
    source: WakeSource
    accept: Accept
    advance: Advance
    deletion: Deletion
    editing: Editing
    follow: Follow
    recover: Recover
    threads: Threads
    waits: Waits
    database: Database
    worker: Worker | None = field(default=None)

    @property
    def app(self) -> App:
        """The agents."""
        return self.backend.app

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.backend.settings

    @property
    def clock(self) -> Clock:
        """The clock."""
        return self.backend.clock

    @property
    def ids(self) -> Ids:
        """Makes ids."""
        return self.backend.ids

    async def start(self) -> None:
        """Advance threads in this process, and tick."""
        self.worker = Worker(self.backend, self.source, self.advance, self.recover)
        self.worker.start()

    def drain(self) -> None:
        """Take nothing new, and begin to hand over what runs here."""
        if self.worker:
            self.worker.drain()

    async def stop(self) -> None:
        """End what `drain` began and close the store."""
        if self.worker:
            await self.worker.stop()
        self.database.close()


def build(app: App, settings: Settings | None = None) -> System:
    """Build the embedded system on the file that the settings name.

    Raises:
        Misconfigured: the file cannot be used.
    """
    settings = settings or Settings.from_env()
    Path(settings.db_file).parent.mkdir(parents=True, exist_ok=True)
    clock, ids = SystemClock(), SystemIds()
    database = Database(settings.db_file, synchronous=settings.db_sync)
    notices = Notices(database, clock)
    queue = SqliteWakeQueue(database, clock, notices)
    backend = Backend(
        app=app,
        settings=settings,
        table=SqliteTable(database, clock),
        coordinator=SqliteCoordinator(database, clock, notices),
        queue=queue,
        clock=clock,
        ids=ids,
        model=_model,
    )
    return assemble(backend, queue, database)


def _model(agent: Agent) -> ModelClient:
    """Give an agent's own model object, or the client that its model string names."""
    return resolve(agent.model) if isinstance(agent.model, str) else agent.model


def assemble(backend: Backend, source: WakeSource, database: Database) -> System:
    """Put the services over a backend."""
    return System(
        backend=backend,
        source=source,
        database=database,
        accept=Accept(backend),
        advance=Advance(backend),
        deletion=Deletion(backend),
        editing=Editing(backend),
        follow=Follow(backend),
        recover=Recover(backend),
        threads=Threads(backend),
        waits=Waits(backend),
    )
