"""Gemini: its SDK forgets to close a stream that is not read to its end."""

from __future__ import annotations

from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.google import GoogleProvider

from shared.adapters.models.pydantic_ai import PydanticAIModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from shared.core.model import ModelPart, ModelRequest

_answers: ContextVar[list[Any] | None] = ContextVar("_answers", default=None)


class GeminiModel(PydanticAIModel):
    """Calls one model of the Gemini API."""

    def __init__(
        self, model: str, name: str, defaults: Mapping[str, Any], *, key: str, url: str | None
    ) -> None:
        """Make the client of the API at `url`, or of Google's own."""
        provider = GoogleProvider(api_key=key, base_url=url)
        http = getattr(provider, "_own_http_client", None)  # it has no public name
        if http is not None:
            http.event_hooks["response"].append(_note)
        super().__init__(GoogleModel(model, provider=provider), name, defaults)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelPart, None]:
        """Stream one answer; closing or cancelling it closes the connection.

        Raises:
            ModelFailed: the call failed, or its stream broke or ended early.
        """
        answers: list[Any] = []
        _answers.set(answers)
        try:
            async with aclosing(super().stream(request)) as parts:
                async for part in parts:
                    yield part
        finally:
            for answer in answers:
                await answer.aclose()  # does nothing after the end


async def _note(answer: Any) -> None:
    answers = _answers.get()
    if answers is not None:
        answers.append(answer)
