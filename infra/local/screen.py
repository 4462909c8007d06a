"""Chunks of a run as text on a terminal."""

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from infra.local.follow import Chunk

LONGEST_SHOWN = 200


class Screen:
    """Prints what a thread does: text as it comes, everything else on lines of its own."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._in_text = False

    def show(self, chunk: Chunk) -> None:
        """Print one chunk; kinds that say nothing to a person are left out."""
        payload = chunk.get("payload") or {}
        match chunk.get("type"):
            case "text-delta":
                self._console.print(Text(payload.get("text", "")), end="", soft_wrap=True)
                self._in_text = True
            case "text-end" | "finish":
                self._break_line()
            case "step-start" if payload.get("attempt"):
                self.note("(cut off; this step starts again)")
            case "tool-call":
                self.note(f"→ {payload.get('toolName')}({short(payload.get('args'))})")
            case "tool-result":
                self.note(f"← {payload.get('toolName')}: {short(payload.get('result'))}")
            case "tool-error":
                self.note(f"← {payload.get('toolName')} failed: {short(payload.get('error'))}")
            case "tool-call-approval" | "tool-call-suspended":
                self.note(f"? {payload.get('toolName')} waits for a decision", "yellow")
            case "error":
                self.note(f"error: {message_of(payload.get('error'))}", "red")
            case "abort":
                self.note("(cancelled)", "yellow")

    def note(self, text: str, style: str = "dim") -> None:
        """Print a line that is not the agent's text."""
        self._break_line()
        self._console.print(Text(text, style), soft_wrap=True)

    def _break_line(self) -> None:
        if self._in_text:
            self._console.print()
            self._in_text = False


def short(value: Any) -> str:
    """Return a value as JSON that fits on a line or two."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


def message_of(error: Any) -> str:
    """Return the text of an error in a chunk, which is an object or a text."""
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
