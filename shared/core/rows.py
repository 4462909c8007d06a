"""The transcript as clients read it: message rows (`docs/spec/signals.md` 1.9).

A signal is a row of its own; what the model said between two of them is one assistant row, over
all its tool steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.core import entries
from shared.core.signal_rows import row as signal_row
from shared.core.signals import Signal, iso

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.core.entries import AnyEntry

Row = dict[str, Any]


def rows(stored: Iterable[AnyEntry], thread: str, resource: str) -> list[Row]:
    """Fold entries (oldest first, beginning at a row's first entry) into rows."""
    folding = _Folding(thread, resource)
    for entry in stored:
        folding.add(entry)
    return folding.rows


class _Folding:
    def __init__(self, thread: str, resource: str) -> None:
        self.rows: list[Row] = []
        self._thread, self._resource = thread, resource
        self._open: Row | None = None

    def add(self, entry: AnyEntry) -> None:
        match entry:
            case entries.Input() | entries.Signals() | entries.Note():
                self._add_signals(entry)
                self._open = None
            case entries.ModelAnswer():
                self._row(entry)["content"]["parts"] += [_part(part) for part in entry.parts]
                if entry.model_id:
                    self._row(entry)["content"]["metadata"] = {"modelId": entry.model_id}
            case entries.Result():
                self._answer_call(entry)
            case entries.Finish():
                self._finish(entry)
            case entries.Claim():
                pass

    def _add_signals(self, entry: entries.Input | entries.Signals | entries.Note) -> None:
        for place, record in enumerate(entry.signals):
            if not record.get("transient"):
                signal = Signal.from_record(record)
                self.rows.append(signal_row(signal, self._thread, self._resource, entry.at + place))

    def _row(self, entry: entries.ModelAnswer | entries.Finish) -> Row:
        if self._open is None:
            self._open = {
                "id": entry.message_id,
                "role": "assistant",
                "type": "text",
                "createdAt": iso(entry.at),
                "threadId": self._thread,
                "resourceId": self._resource,
                "content": {"format": 2, "parts": []},
            }
            self.rows.append(self._open)
        return self._open

    def _answer_call(self, entry: entries.Result) -> None:
        if self._open is None:
            return
        # The newest one: a provider may use the same id in every step.
        for part in reversed(self._open["content"]["parts"]):
            invocation = part.get("toolInvocation", {})
            if invocation.get("toolCallId") == entry.call_id:
                if entry.error:
                    invocation |= {"state": "output-error", "errorText": entry.error.message}
                else:
                    invocation |= {"state": "result", "result": entry.output}
                return

    def _finish(self, entry: entries.Finish) -> None:
        parts = [_part(part) for part in entry.parts]
        if entry.error:
            parts.append({"type": "error", "error": entry.error.model_dump()})
        if parts:
            self._row(entry)["content"]["parts"] += parts
        self._open = None


def _part(part: entries.Part) -> Row:
    match part:
        case entries.Text():
            return {"type": "text", "text": part.text}
        case entries.Reasoning():
            details = [{"type": "text", "text": part.text}]
            return {"type": "reasoning", "reasoning": part.text, "details": details}
        case entries.Call():
            invocation = {
                "state": "call",
                "toolCallId": part.call_id,
                "toolName": part.name,
                "args": part.args,
            }
            return {"type": "tool-invocation", "toolInvocation": invocation}
