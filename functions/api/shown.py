"""Records as answers show them: camelCase, ISO times, nothing that only the system needs."""

from typing import Any

from pydantic.alias_generators import to_camel

from shared.core.choice import Waiting
from shared.core.entries import AnyEntry
from shared.core.records import Receipt, Run, Thread
from shared.core.signals import Signal, iso
from shared.services.threads import Page

Shown = dict[str, Any]

_INTERNAL = {"format", "nonce", "rows", "k0", "k1", "index0"}
_AS_THEY_ARE = {"args", "output", "provider_metadata"}
"""What models and tools made: its keys are theirs."""


def thread(thread: Thread) -> Shown:
    """Show a conversation (`docs/spec/signals.md` 8.11.1)."""
    return _given(
        id=thread.thread,
        title=thread.title,
        resourceId=thread.resource,
        createdAt=iso(thread.created_at),
        updatedAt=iso(thread.updated_at),
        metadata=thread.metadata,
    )


def paging(page: Page) -> Shown:
    """Show where a page is in the whole."""
    return {
        "total": page.total,
        "page": page.page,
        "perPage": page.per_page,
        "hasMore": page.has_more,
    }


def receipt(receipt: Receipt) -> Shown:
    """Show what became of a signal; `step` is a position in the journal of `runId`."""
    seen = receipt.state in ("delivered", "persisted")
    answered = receipt.answered_run if receipt.action in ("wake", "deliver") else None
    return _given(
        id=receipt.signal,
        state=receipt.state,
        runId=receipt.run or answered,
        step=receipt.position if seen else None,
        acceptedAt=iso(receipt.accepted_at),
        deliveredAt=iso(receipt.delivered_at) if seen and receipt.delivered_at else None,
        error=receipt.error,
    )


def waiting(waiting: Waiting) -> Shown:
    """Show a signal that nobody took yet; one of a newer version by its id alone."""
    item = waiting.item
    return _given(
        signal=_signal(item.signal or {}),
        state=item.receipt.state if item.receipt else "accepted",
        runId=None if item.kind == "keep" else item.run,
    )


def run(run: Run, thread: Thread) -> Shown:
    """Show a run's head."""
    return _given(
        runId=run.run,
        threadId=run.thread,
        resourceId=thread.resource,
        agentId=run.agent,
        status=run.status,
        createdAt=iso(run.created_at),
        startedAt=None if run.start is None else iso(run.start),
        finishedAt=None if run.finished_at is None else iso(run.finished_at),
        reason=run.reason,
        usage=_camel(run.usage),
        error=run.error,
    )


def entry(position: int, entry: AnyEntry) -> Shown:
    """Show a journal entry."""
    shown: Shown = _camel(entry.model_dump(exclude=_INTERNAL | {"signals"}, exclude_none=True))
    signals = getattr(entry, "signals", None)
    if signals is not None:
        shown["signals"] = [_signal(record) for record in signals]
    return {"position": position, **shown, "at": iso(entry.at)}


def _signal(record: Shown) -> Shown:
    try:
        return Signal.from_record(record).wire()
    except (KeyError, TypeError):
        return {"id": record.get("id")}


def _camel(value: Any) -> Any:
    if isinstance(value, list):
        return [_camel(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        to_camel(key): inner if key in _AS_THEY_ARE else _camel(inner)
        for key, inner in value.items()
    }


def _given(**shown: Any) -> Shown:
    return {key: value for key, value in shown.items() if value is not None}
