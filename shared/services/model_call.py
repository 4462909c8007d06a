"""One model call: streamed to readers as it comes, tried again when that can help."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shared.core import chunks, entries, model, telling
from shared.core.errors import LeaseLost, ModelFailed, WakelineError
from shared.core.limits import MODEL_RETRIES
from shared.core.run import Answered, Cancelled, Failed
from shared.services.faults import fault_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from shared.core.model import ModelPart, ModelRequest
    from shared.core.run import Happening
    from shared.services.context import Backend, Owner, Running

T = TypeVar("T")

log = logging.getLogger(__name__)

BACKOFF = 500
CLOSING = 1.0


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """What came to its end gave this."""

    value: T


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
        state, clock = running.state, self._backend.clock
        opening = telling.before_step(state, clock.now(), state.attempt)
        for attempt in range(MODEL_RETRIES + 1):
            owner.beat.check(clock.now())
            owner.publisher.tell(opening)
            answer = _Answer(owner, state.run)
            try:
                request = self._request(running)
                client = self._backend.model(self._backend.app.agent(state.agent))
                done = await self._unless_halted(owner, answer.read(client.stream(request)))
                answer.close()
                return done.value if done else Cancelled(answer.stored())
            except ModelFailed as failed:
                if not failed.retryable or attempt == MODEL_RETRIES:
                    return Failed(fault_of(failed), answer.stored())
                if not await self._pause(owner, failed, attempt):
                    return Cancelled(answer.stored())
            except LeaseLost:
                raise
            except Exception as error:
                if not isinstance(error, WakelineError):
                    log.exception("%s: the model client broke", state.run)
                return Failed(fault_of(error), answer.stored())
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

    async def _pause(self, owner: Owner, failed: ModelFailed, attempt: int) -> bool:
        """Wait before another attempt; False when the run is to stop meanwhile."""
        pause = BACKOFF << attempt if failed.retry_after is None else failed.retry_after
        if pause > self._backend.settings.longest_pause:
            raise HandOver(pause)
        return await self._unless_halted(owner, self._backend.clock.sleep(pause)) is not None

    async def _unless_halted(self, owner: Owner, work: Coroutine[Any, Any, T]) -> Done[T] | None:
        """Do something to its end; None when it was cut since the run is to stop.

        Raises:
            LeaseLost: it was cut since another owner may be at work.
        """
        task = asyncio.ensure_future(work)
        waits: set[asyncio.Future[Any]] = {task, owner.beat.halt}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if task.done() and not task.cancelled():
            return Done(task.result())
        await asyncio.wait({task}, timeout=CLOSING)
        task.add_done_callback(_forget)
        if owner.beat.lost:
            raise LeaseLost("the lease was lost during a model call")
        return None


class _Answer:
    """An answer as it comes in: told to readers, and gathered for the journal."""

    def __init__(self, owner: Owner, run: str) -> None:
        self._publisher, self._run = owner.publisher, run
        self._parts: dict[str, entries.Part] = {}
        self._texts: dict[str, list[str]] = {}
        self._closed = False

    def close(self) -> None:
        """Take nothing more: a client may be slow to stop, and its run may be over."""
        self._closed = True

    async def read(self, stream: AsyncIterator[ModelPart]) -> Happening:
        async for part in stream:
            if self._closed:
                break
            if isinstance(part, model.Finished):
                return Answered(self.stored(), part.reason, part.usage, part.model_id)
            self._gather(part)
            shown = chunks.streamed(self._run, part)
            if shown:
                self._publisher.tell([shown])
        raise ModelFailed("the model's answer ended without a finish", retryable=True)

    def stored(self) -> tuple[entries.Part, ...]:
        for key, texts in self._texts.items():
            block = self._parts[key]
            if not isinstance(block, entries.Call):
                block.text = "".join(texts)
        return tuple(self._parts.values())

    def _gather(self, part: ModelPart) -> None:
        match part:
            case model.TextStarted():
                self._parts[f"text {part.id}"] = entries.Text(id=part.id, text="")
            case model.TextDelta():
                self._more(f"text {part.id}", part.text)
            case model.TextEnded(provider_metadata=dict() as known):
                text = self._parts[f"text {part.id}"]
                text.provider_metadata = known
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
                self._parts[f"call {id}"] = entries.Call(
                    call_id=id,
                    name=call.name,
                    args=call.args,
                    provider_metadata=call.provider_metadata,
                )
            case _:
                pass

    def _more(self, key: str, text: str) -> None:
        self._texts.setdefault(key, []).append(text)

    def _fresh(self, call_id: str) -> str:
        """Two calls of one answer never share an id, whatever the provider sends."""
        id = call_id or "call"
        while f"call {id}" in self._parts:
            id += "+"
        return id


def _forget(task: asyncio.Future[Any]) -> None:
    """Let nobody complain of how a task ended that was cut."""
    if not task.cancelled():
        task.exception()
