"""Every setting of a deployment, read from the environment once. Times are in milliseconds."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shared.core.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_DB_FILE = ".wakeline/dev.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this process runs. The defaults are the embedded backend's."""

    backend: Literal["embedded"] = "embedded"
    db_file: str = DEFAULT_DB_FILE
    db_sync: Literal["NORMAL", "FULL"] = "NORMAL"
    """FULL also survives a power cut at any moment; NORMAL survives every crash of the process."""

    lease: int = 5_000
    heartbeat: int = 1_000
    tick: int = 2_000
    """Between two looks of the schedule, and the age at which an untold item is due."""

    flush_pause: int = 20
    flush_bytes: int = 16_384
    slice_time: int = 600_000
    """How long one invocation advances a thread before it hands over."""

    slice_steps: int = 500
    longest_pause: int = 20_000
    """A Retry-After above this hands the run over with a delayed wake-up."""

    concurrency: int = 64
    """Threads that one process advances at the same time."""

    heartbeat_comment: int = 15_000
    receipt_ttl: int = 7 * 24 * 3_600_000
    auth: Literal["none"] = "none"
    cors_origins: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            Misconfigured: the heartbeat is too slow for the lease.
        """
        if self.heartbeat * 3 > self.lease:
            raise Misconfigured(
                f"a lease of {self.lease} ms needs a heartbeat of at most {self.lease // 3} ms"
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read `DB_FILE`, `WAKELINE_DB_SYNC` and `WAKELINE_CORS_ORIGINS` (comma-separated).

        Raises:
            Misconfigured: a value is not among those allowed.
        """
        env = os.environ if env is None else env
        sync = env.get("WAKELINE_DB_SYNC", "NORMAL").upper()
        if sync not in ("NORMAL", "FULL"):
            raise Misconfigured(f"WAKELINE_DB_SYNC is {sync!r}; use NORMAL or FULL")
        origins = [part.strip() for part in env.get("WAKELINE_CORS_ORIGINS", "").split(",")]
        return cls(
            db_file=env.get("DB_FILE") or DEFAULT_DB_FILE,
            db_sync="FULL" if sync == "FULL" else "NORMAL",
            cors_origins=tuple(origin for origin in origins if origin),
        )
