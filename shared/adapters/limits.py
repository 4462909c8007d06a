"""What every Table adapter refuses, because DynamoDB would.

An embedded backend that took more would let a program work on a laptop and fail on AWS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_core import PydanticSerializationError, to_json

from shared.core.errors import BadRequest, TooLarge
from shared.ports import Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.ports import Write

MAX_WRITES = 100
MAX_COMMIT = 4 * 1024 * 1024
MAX_PARTITION = 2048
MAX_SORT = 1024
MAX_INTEGER = 2**63 - 1


def check_limits(writes: Sequence[Write]) -> list[bytes]:
    """Return the body of each write as JSON (of a Delete or Check: nothing) if all may be stored.

    Raises:
        BadRequest: over 100 writes, two on one key, an empty or too long key, or a body, order or
            expiry that cannot be stored.
        TooLarge: over 4 MB with the keys.
    """
    if len(writes) > MAX_WRITES:
        raise BadRequest(f"a commit of {len(writes)} writes; at most {MAX_WRITES} are allowed")
    if len({(write.partition, write.sort) for write in writes}) < len(writes):
        raise BadRequest("a commit has two writes on one key")
    bodies = [_checked(write) for write in writes]
    size = sum(map(len, bodies))
    size += sum(len(w.partition.encode()) + len(w.sort.encode()) for w in writes)
    if size > MAX_COMMIT:
        raise TooLarge(f"a commit of {size} bytes; at most {MAX_COMMIT} are allowed")
    return bodies


def _checked(write: Write) -> bytes:
    _check_key("partition key", write.partition, MAX_PARTITION)
    _check_key("sort key", write.sort, MAX_SORT)
    if not isinstance(write, Put):
        return b""
    if write.index is not None:
        _check_key("index group", write.index.group, MAX_PARTITION)
        _check_integer("index order", write.index.order)
    if write.expires is not None:
        _check_integer("expiry", write.expires)
    try:
        return to_json(write.body)
    except (PydanticSerializationError, ValueError) as error:
        raise BadRequest(
            f"the body of {write.partition}/{write.sort} is not JSON: {error}"
        ) from error


def _check_key(name: str, key: str, limit: int) -> None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise BadRequest(f"{name} {key[:80]!r} is not valid Unicode") from error
    if size == 0:
        raise BadRequest(f"an empty {name}")
    if size > limit:
        raise BadRequest(f"{name} {key[:80]!r}… has {size} bytes; at most {limit} are allowed")


def _check_integer(name: str, value: int) -> None:
    if not 0 <= value <= MAX_INTEGER:
        raise BadRequest(f"{name} {value} is not between 0 and {MAX_INTEGER}")
