"""The embedded backend: every port on one SQLite file, for one machine and no account."""

from shared.adapters.sqlite.coordinator import SqliteCoordinator
from shared.adapters.sqlite.database import Database
from shared.adapters.sqlite.notices import Notices
from shared.adapters.sqlite.queue import SqliteWakeQueue
from shared.adapters.sqlite.table import SqliteTable

__all__ = ["Database", "Notices", "SqliteCoordinator", "SqliteTable", "SqliteWakeQueue"]
