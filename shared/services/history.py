"""What a model is shown of a thread's past (`docs/spec/durable.md` M-2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.core import entries
from shared.core.prompt import Prompt, recent
from shared.services import journal

if TYPE_CHECKING:
    from shared.ports import Item
    from shared.services.context import Backend


def rows_wanted(backend: Backend, agent: str) -> int:
    """Give how many message rows of the past an agent sees; none if it is not deployed."""
    return backend.app.agent(agent).last_messages if agent in backend.app else 0


async def prompt_of_past(backend: Backend, partition: str, tail: list[Item], agent: str) -> Prompt:
    """Begin a prompt with the last messages up to `tail`'s end (a page, or all there was)."""
    prompt, rows = Prompt(), rows_wanted(backend, agent)
    if rows:
        past = await journal.back_to(backend.table, partition, tail, rows)
        for old in recent([entries.read(item.body) for item in past], rows):
            prompt.add(old, past=True)
    return prompt
