"""Tools: typed functions that a model may call."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from shared.core.errors import BadRequest, Misconfigured, WakelineError
from shared.core.model import ToolSpec
from shared.core.tool_schema import read_docstring, read_signature

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

T = TypeVar("T")

_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
_SHOWN = 1000


class CancelFlag(Protocol):
    """Set when somebody asked the run to stop; long tools look at it."""

    def is_set(self) -> bool:
        """Tell whether to stop."""
        ...


class InThread(Protocol):
    """Runs a blocking function beside the event loop, as `asyncio.to_thread` does."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Return what the function returns."""
        ...


class Never:
    """A cancel flag that nobody sets."""

    def is_set(self) -> bool:
        """Say no."""
        return False


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know about the call that it answers.

    A parameter annotated with this type is filled in, and is not shown to the model.
    """

    thread: str
    resource: str
    run: str
    agent: str
    step: int
    call_id: str
    idempotency_key: str
    """The same in every attempt of this call: hand it to whatever must happen only once."""

    attempt: int = 0
    """0, or more when the call was cut short and is made again."""

    cancelled: CancelFlag = field(default_factory=Never)
    request_context: Mapping[str, Any] = field(default_factory=dict)


class InvalidArguments(BadRequest):
    """A model's arguments do not fit the tool; `value` is what it gets to see."""

    code = "INVALID_ARGUMENTS"

    def __init__(self, tool: str, args: object, errors: list[dict[str, str]]) -> None:
        """List every problem, so that the model can correct all of them at once."""
        problems = "\n".join(f"- {e['path'] or 'arguments'}: {e['message']}" for e in errors)
        super().__init__(
            f"Tool input validation failed for {tool}. Please fix the following errors and try "
            f"again:\n{problems}\n\nProvided arguments: {_shown(args)}"
        )
        self.errors = errors

    @property
    def value(self) -> dict[str, Any]:
        """The tool result for the model (`docs/spec/durable.md` L-17)."""
        return {"error": True, "message": str(self), "validationErrors": self.errors}


class UnusableResult(WakelineError):
    """A tool returned something that has no JSON form."""

    code = "UNUSABLE_RESULT"


class Tool:
    """A function that a model may call, with what the model is told about it."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        scope: Mapping[str, Any] | None = None,
    ) -> None:
        """Read the function's signature and docstring.

        Raises:
            Misconfigured: the function cannot be a tool; the text says what to change.
        """
        self.function = function
        self.name = name or str(getattr(function, "__name__", ""))
        if not _NAME.match(self.name):
            text = "give it a name of 1 to 64 letters, digits, '_' or '-'"
            raise Misconfigured(f"a tool cannot be called {self.name!r}: {text}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise Misconfigured(f"tool {self.name!r} yields: return the whole result instead")
        self.is_async = inspect.iscoroutinefunction(function)
        self.description: str = description or read_docstring(function.__doc__)[0]
        self._arguments = read_signature(function, self.name, ToolContext, scope or {})

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return self._arguments.schema

    @property
    def spec(self) -> ToolSpec:
        """The tool as a model sees it."""
        return ToolSpec(self.name, self.description, self.schema)

    def validate(self, args: Mapping[str, Any] | str) -> dict[str, Any]:
        """Return the arguments converted to the function's types, with its defaults.

        Raises:
            InvalidArguments: they do not fit, or are not an object at all.
        """
        if isinstance(args, str):
            problem = {"path": "", "message": "this is not a JSON object"}
            raise InvalidArguments(self.name, args, [problem])
        try:
            return self._arguments.check(args)
        except ValidationError as error:
            problems = [
                {"path": ".".join(map(str, e["loc"])), "message": e["msg"]}
                for e in error.errors(include_url=False, include_context=False, include_input=False)
            ]
            raise InvalidArguments(self.name, args, problems) from error

    async def run(
        self, args: Mapping[str, Any] | str, ctx: ToolContext, in_thread: InThread
    ) -> Any:
        """Check the arguments, call the function and return its result as a JSON value.

        A function that is not async is handed to `in_thread`. What the function raises comes
        through; the loop shows it to the model.

        Raises:
            InvalidArguments: the function was not called.
            UnusableResult: the function ran, but its result has no JSON form.
        """
        kwargs = self.validate(args)
        if self._arguments.context:
            kwargs[self._arguments.context] = ctx
        try:
            if self.is_async:
                result = await self.function(**kwargs)
            else:
                result = await in_thread(lambda: self._call(kwargs))
                if inspect.isawaitable(result):
                    result = await result
        except SystemExit as error:
            raise RuntimeError(f"tool {self.name!r} tried to end the process") from error
        return self._jsonable(result)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as if it were not a tool."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    def _call(self, kwargs: dict[str, Any]) -> Any:
        try:
            return self.function(**kwargs)
        except StopIteration as error:  # a future cannot carry it: the caller would wait for ever
            raise RuntimeError("StopIteration was raised") from error
        except SystemExit as error:
            raise RuntimeError(f"tool {self.name!r} tried to end the process") from error

    def _jsonable(self, result: Any) -> Any:
        try:
            return from_json(to_json(result, bytes_mode="base64", inf_nan_mode="null"))
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            kind = type(result).__name__
            text = f"tool {self.name!r} returned a {kind} that has no JSON form: {error}"
            raise UnusableResult(text) from error


def _shown(args: object) -> str:
    """Quote the model's arguments: short, and always valid UTF-8."""
    try:
        text = args if isinstance(args, str) else to_json(args, fallback=repr).decode()
    except ValueError:
        text = repr(args)
    return text[:_SHOWN].encode("utf-8", "replace").decode()


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, sync or async; bare, or with a name and description.

    The description and those of the arguments come from the docstring (`Args:`, Google style).
    A parameter annotated `ToolContext` is filled in and is not shown to the model.

    Raises:
        Misconfigured: the function cannot be a tool; the text says what to change.
    """
    frame = inspect.currentframe()
    scope = dict(frame.f_back.f_locals) if frame and frame.f_back else {}
    if function is not None:
        return Tool(function, scope=scope)
    return lambda decorated: Tool(decorated, name=name, description=description, scope=scope)
