"""Every error that wakeline raises on purpose, in one tree.

    WakelineError
    ├── BadRequest            400  the caller sent something that cannot be accepted
    │   └── TooLarge          413
    ├── Forbidden             403  the thread, run or signal belongs to another resource
    ├── NotFound              404
    ├── Conflict              409  true a moment ago, or already decided otherwise
    ├── ConditionFailed       409  a commit met a stored item that it did not expect
    ├── LeaseLost             409  another owner has the thread; stop at once
    │   └── LogLost           409  the event log lost what was told; stop, and start it anew
    ├── Unavailable           503  a store or queue did not answer; try again
    ├── ModelFailed           502  the model refused or broke; `retryable` tells which
    │   └── ContextOverflow   502  the prompt is longer than the model takes
    └── Misconfigured         500  a key, an extra or a setting is missing

Who is at fault and whether trying again can help are attributes, so that an edge maps an error
without knowing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.ports import Failure


class WakelineError(Exception):
    """Base of all errors; `str(error)` is a text that may be shown to a caller."""

    code = "INTERNAL"
    http_status = 500
    retryable = False


class BadRequest(WakelineError):
    """The request cannot be accepted as it is; the text says what to change."""

    code = "BAD_REQUEST"
    http_status = 400

    def __init__(self, message: str, field: str | None = None) -> None:
        """Keep the name of the offending field, when there is one."""
        super().__init__(message)
        self.field = field


class TooLarge(BadRequest):
    """A body or a request is over its limit in bytes."""

    code = "TOO_LARGE"
    http_status = 413


class Forbidden(WakelineError):
    """The addressed thing belongs to another resource."""

    code = "FORBIDDEN"
    http_status = 403


class NotFound(WakelineError):
    """The addressed thing does not exist."""

    code = "NOT_FOUND"
    http_status = 404


class Conflict(WakelineError):
    """The addressed thing is in a state that excludes what was asked."""

    code = "CONFLICT"
    http_status = 409


class ConditionFailed(WakelineError):
    """A commit was refused as a whole; `failures`: every failing write with its stored item."""

    code = "CONDITION_FAILED"
    http_status = 409
    retryable = True

    def __init__(self, failures: Sequence[Failure]) -> None:
        """Keep the failing writes in the order of the commit."""
        names = ", ".join(f"{f.write.partition}/{f.write.sort}" for f in failures)
        super().__init__(f"condition failed on {names}")
        self.failures = tuple(failures)


class LeaseLost(WakelineError):
    """A newer owner holds the thread; nothing of the call was kept, and the caller must stop."""

    code = "LEASE_LOST"
    http_status = 409


class LogLost(LeaseLost):
    """The event log no longer holds what was appended before; the next owner starts it anew."""

    code = "LOG_LOST"


class Unavailable(WakelineError):
    """A backend did not answer, or asked to slow down."""

    code = "UNAVAILABLE"
    http_status = 503
    retryable = True


class ModelFailed(WakelineError):
    """A model call failed; `retry_after` is in milliseconds, when the provider named a time."""

    code = "MODEL_FAILED"
    http_status = 502

    def __init__(
        self, message: str, *, retryable: bool = False, retry_after: int | None = None
    ) -> None:
        """Keep whether another attempt can help."""
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after


class ContextOverflow(ModelFailed):
    """The prompt does not fit the model's context window; the text says what to change."""

    code = "CONTEXT_OVERFLOW"


class Misconfigured(WakelineError):
    """Something must be set up before this can work; the text says what."""

    code = "MISCONFIGURED"
