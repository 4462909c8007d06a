"""One model call: streamed to readers as it comes, tried again when that can help."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from shared.core import chunks, entries, model, telling
from shared.core.entries import Fault
from shared.core.errors import LeaseLost, ModelFailed, WakelineError
from shared.core.run import Answered, Cancelled, Failed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shared.core.model import ModelPart, ModelRequest
    from shared.core.run import Happening
    from shared.services.context import Backend, Owner, Running

BACKOFF = 500
CLOSING = 1.0


class HandOver(Exception):
    """Go on later, in another invocation; `delay` in ms."""

    def __init__(self, delay: int) -> None:
        """Keep the delay."""
        super().__init__(f"go on in {delay} ms")
        self.delay = delay


class ModelCaller:
    """Calls an agent's model for a run."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend

    async def call(self, owner: Owner, running: Running) -> Happening:
        """Make the call, with retries (`docs/spec/durable.md` L-8, L-10).

        Raises:
            LeaseLost: another owner may be at work.
            HandOver: the provider asked for a long pause.
        """
        state, clock, settings = running.state, self._backend.clock, self._backend.settings
        opening = telling.before_step(state, clock.now(), state.attempt)
        for attempt in range(settings.model_retries + 1):
            owner.beat.check(clock.now())
            owner.publisher.tell(opening)
            answer = _Answer(owner, state.run)
            try:
                request = self._request(running)
                client = self._backend.model(self._backend.app.agent(state.agent))
                return await self._consume(owner, answer, client.stream(request))
            except ModelFailed as failed:
                if not failed.retryable or attempt == settings.model_retries:
                    return Failed(_fault(failed), answer.stored())
                await self._pause(failed, attempt)
            except LeaseLost:
                raise
            except WakelineError as error:
                return Failed(_fault(error), answer.stored())
            number = state.attempt + attempt + 1
            opening = [chunks.step_start(state.run, state.message_id, clock.now(), number)]
        raise AssertionError("unreachable: the last attempt returns")

    def _request(self, running: Running) -> ModelRequest:
        agent = self._backend.app.agent(running.state.agent)
        options = running.run.options
        return model.ModelRequest(
            model=agent.model_name,
            instructions=str(options.get("instructions") or agent.instructions),
            messages=running.prompt.messages(),
            tools=tuple(tool.spec for tool in agent.offered(options.get("activeTools")).values()),
            settings={**agent.model_settings, **options.get("modelSettings", {})},
            tool_choice=options.get("toolChoice"),
        )

    async def _pause(self, failed: ModelFailed, attempt: int) -> None:
        pause = BACKOFF << attempt if failed.retry_after is None else failed.retry_after
        if pause > self._backend.settings.longest_pause:
            raise HandOver(pause)
        await self._backend.clock.sleep(pause)

    async def _consume(
        self, owner: Owner, answer: _Answer, stream: AsyncIterator[ModelPart]
    ) -> Happening:
        reading = asyncio.ensure_future(answer.read(stream))
        waits: set[asyncio.Future[Any]] = {reading, owner.beat.halt}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            reading.cancel()
            raise
        if reading.done():
            return reading.result()
        reading.cancel()
        await asyncio.wait({reading}, timeout=CLOSING)
        if owner.beat.lost:
            raise LeaseLost("the lease was lost during a model call")
        return Cancelled(answer.stored())


class _Answer:
    """An answer as it comes in: told to readers, and gathered for the journal."""

    def __init__(self, owner: Owner, run: str) -> None:
        self._publisher, self._run = owner.publisher, run
        self._parts: dict[str, entries.Part] = {}

    async def read(self, stream: AsyncIterator[ModelPart]) -> Happening:
        async for part in stream:
            if isinstance(part, model.Finished):
                return Answered(self.stored(), part.reason, part.usage, part.model_id)
            self._gather(part)
            shown = chunks.streamed(self._run, part)
            if shown:
                self._publisher.tell([shown])
        raise ModelFailed("the model's answer ended without a finish", retryable=True)

    def stored(self) -> tuple[entries.Part, ...]:
        return tuple(self._parts.values())

    def _gather(self, part: ModelPart) -> None:
        match part:
            case model.TextStarted():
                self._parts[f"text {part.id}"] = entries.Text(id=part.id, text="")
            case model.TextDelta():
                self._more(f"text {part.id}", part.text)
            case model.ReasoningStarted():
                self._parts[f"reasoning {part.id}"] = entries.Reasoning(id=part.id, text="")
            case model.ReasoningDelta():
                self._more(f"reasoning {part.id}", part.text)
            case model.ReasoningEnded():
                block = self._parts[f"reasoning {part.id}"]
                if isinstance(block, entries.Reasoning):
                    block.signature = part.signature
                    block.provider_metadata = part.provider_metadata
            case model.ToolCalled(call=call):
                id = self._fresh(call.call_id)
                self._parts[f"call {id}"] = entries.Call(call_id=id, name=call.name, args=call.args)
            case _:
                pass

    def _more(self, key: str, text: str) -> None:
        block = self._parts[key]
        if not isinstance(block, entries.Call):
            block.text += text

    def _fresh(self, call_id: str) -> str:
        """Two calls of one answer never share an id, whatever the provider sends."""
        id = call_id or "call"
        while f"call {id}" in self._parts:
            id += "+"
        return id


def _fault(error: WakelineError) -> Fault:
    return Fault(name=type(error).__name__, message=str(error))
