"""The `ModelClient` over `pydantic_ai.direct`: one streamed call of any provider's model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai.direct import model_request_stream

from shared.adapters.models.answer import Answer
from shared.adapters.models.failures import cut, failure
from shared.adapters.models.prompt import to_messages, to_parameters, to_settings
from shared.core.errors import ModelFailed
from shared.core.model import AssistantMessage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from pydantic_ai.models import Model, StreamedResponse

    from shared.core.model import ModelPart, ModelRequest


class PydanticAIModel:
    """Calls one model. It holds the connections of the event loop that uses it."""

    def __init__(self, model: Model, name: str, defaults: Mapping[str, Any]) -> None:
        """Keep the vendor's model, and the settings of every call."""
        self.name = name
        self._model = model
        self._defaults = defaults

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelPart, None]:
        """Stream one answer; closing or cancelling it closes the connection.

        Raises:
            ModelFailed: the call failed, or its stream broke or ended early.
        """
        try:
            opened = model_request_stream(
                self._model,
                to_messages(request.messages),
                model_settings=to_settings(request, self._defaults),
                model_request_parameters=to_parameters(request),
            )
            async with opened as events:
                answer = Answer(_call_ids(request))
                async for event in events:
                    for part in answer.read(event):
                        yield part
                ending = self._end(answer, events)
        except ModelFailed:
            raise
        except Exception as error:
            raise failure(self.name, error) from error
        for part in ending:  # the connection is free again: who reads may stop at `Finished`
            yield part

    def _end(self, answer: Answer, events: StreamedResponse) -> list[ModelPart]:
        response = events.get()
        said = response.finish_reason or (response.provider_details or {}).get("finish_reason")
        if response.state != "complete" or not said:
            raise cut(self.name)
        if response.finish_reason == "error":
            raise ModelFailed(f"model {self.name}: the provider broke off", retryable=True)
        return list(answer.end(response))

    async def aclose(self) -> None:
        """Close the idle connections."""
        async with self._model:
            pass


def _call_ids(request: ModelRequest) -> set[str]:
    return {
        call.call_id
        for message in request.messages
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls
    }
