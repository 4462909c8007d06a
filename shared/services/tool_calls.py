"""Running the tool calls of a step.

`docs/protocols.md` E3, E4; `docs/spec/durable.md` L-15 to L-18.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from shared.core import entries
from shared.core.errors import LeaseLost
from shared.core.run import Cancelled, Resumed
from shared.core.tool import InvalidArguments, ToolContext
from shared.services.blocking import in_thread
from shared.services.faults import fault, fault_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from shared.core.entries import Call, Fault, Result
    from shared.core.run import Happening
    from shared.services.context import Backend, Owner, Running

MAX_RESULT = 3_000_000
"""Bytes of one result as JSON: a commit holds at most 4 MB."""


class ToolRunner:
    """Runs tool calls, at most as many at a time as the agent allows."""

    def __init__(self, backend: Backend) -> None:
        """Work on a backend."""
        self._backend = backend

    async def run(
        self,
        owner: Owner,
        running: Running,
        calls: Sequence[Call],
        commit: Callable[[Result], Awaitable[None]],
    ) -> Happening:
        """Run the calls and commit each result as it comes, one commit at a time.

        Raises:
            LeaseLost: another owner may be at work; what still runs is cut.
        """
        limit = self._backend.app.agent(running.state.agent).tool_call_concurrency
        stopped = threading.Event()
        waiting = list(calls)
        tasks: list[asyncio.Future[Result]] = []
        try:
            while waiting or tasks:
                while waiting and len(tasks) < limit:
                    # Every earlier put is acknowledged here, and the lease must be ours (C3).
                    owner.beat.check(self._backend.clock.now())
                    answer = self._answer(running, waiting.pop(0), stopped)
                    tasks.append(asyncio.ensure_future(answer))
                waits: set[asyncio.Future[Any]] = {*tasks, owner.beat.halt}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                done = [task for task in tasks if task.done()]
                tasks = [task for task in tasks if not task.done()]
                for task in done:
                    await commit(task.result())
                if owner.beat.lost:
                    raise LeaseLost("the lease was lost while tools ran")
                if (waiting or tasks) and owner.beat.halt.done():
                    return Cancelled()
        finally:
            stopped.set()
            for task in tasks:
                task.cancel()
        return Resumed()

    async def _answer(self, running: Running, call: Call, stopped: threading.Event) -> Result:
        agent = self._backend.app.agent(running.state.agent)
        offered = agent.offered(running.run.options.get("activeTools"))
        tool = offered.get(call.name)
        if tool is None:
            known = ", ".join(offered) or "none"
            text = f"Tool {call.name!r} not found. Available tools: {known}"
            return _failed(call, fault("ToolNotFoundError", text))
        try:
            output = await tool.run(call.args, self._context(running, call, stopped), in_thread)
        except InvalidArguments as error:
            output = error.value
        except Exception as error:
            return _failed(call, fault_of(error))
        except asyncio.CancelledError:
            if _is_cut():
                raise
            return _failed(call, fault("CancelledError", "the tool cancelled itself"))
        size = len(to_json(output))
        if size > MAX_RESULT:
            text = f"the result has {size} bytes as JSON; at most {MAX_RESULT} can be stored"
            return _failed(call, fault("ResultTooLarge", text))
        return entries.Result(call_id=call.call_id, name=call.name, output=output)

    @staticmethod
    def _context(running: Running, call: Call, stopped: threading.Event) -> ToolContext:
        state, head = running.state, running.run
        step = state.steps - 1
        return ToolContext(
            thread=head.thread,
            resource=head.resource,
            run=state.run,
            agent=state.agent,
            step=step,
            call_id=call.call_id,
            idempotency_key=f"{state.run}:{step}:{call.call_id}",
            attempt=state.claims,
            cancelled=stopped,
            request_context=head.options.get("requestContext", {}),
        )


def _is_cut() -> bool:
    """Tell whether this task was cancelled from outside, not by what it runs."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _failed(call: Call, error: Fault) -> Result:
    return entries.Result(call_id=call.call_id, name=call.name, error=error)
