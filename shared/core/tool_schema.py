"""What a model may pass to a function, read from its signature and its Google-style docstring.

Plain pydantic, no model SDK: the API describes tools without loading one.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from shared.core.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SECTION = re.compile(
    r"^(?:(?P<args>Args|Arguments|Parameters)|Returns?|Yields?|Raises|Examples?):\s*$"
)
_ARGUMENT = re.compile(r"^\*{0,2}(?P<name>\w+)\s*(?:\(.*?\))?\s*:\s*(?P<text>.*)$")
_CONTEXT = re.compile(r"^(?:[\w.]*Optional\[)?(?:[\w.]+\.)?ToolContext\]?(?:\s*\|\s*None)?$")
_KINDS = {
    inspect.Parameter.VAR_POSITIONAL: "takes *{}: list every argument by name",
    inspect.Parameter.VAR_KEYWORD: "takes **{}: list every argument by name",
    inspect.Parameter.POSITIONAL_ONLY: "has the positional-only parameter {!r}: drop the '/'",
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a function: how to check them, and how a model is told of them."""

    model: type[BaseModel]
    names: tuple[str, ...]
    context: str | None
    """The parameter that takes the `ToolContext`; a model never sees it."""

    schema: dict[str, Any]

    def check(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by parameter name, converted to their types, with defaults.

        Raises:
            pydantic.ValidationError: they do not fit.
        """
        checked = self.model.model_validate(args)
        return {name: getattr(checked, f"p{i}") for i, name in enumerate(self.names)}


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """Split a docstring into its description and what its `Args:` say of each parameter."""
    description: list[str] = []
    arguments: dict[str, str] = {}
    section, name, margin = "", "", 0
    for line in inspect.cleandoc(text or "").splitlines():
        if heading := _SECTION.match(line):
            section, name = ("args" if heading["args"] else "other"), ""
        elif not section:
            description.append(line)
        elif section == "args" and line.strip():
            indent = len(line) - len(line.lstrip())
            entry = _ARGUMENT.match(line.strip()) if not name or indent <= margin else None
            if entry:
                name, margin = entry["name"], indent
                arguments[name] = entry["text"]
            elif name:
                arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    return "\n".join(description).strip(), arguments


def read_signature(
    function: Callable[..., Any], tool: str, context: type, scope: Mapping[str, Any]
) -> Arguments:
    """Read what a function takes; `scope` holds names that its annotations may use.

    Raises:
        Misconfigured: the signature cannot be told to a model; the text says what to change.
    """
    raw = _parameters(function, tool)
    takers = [name for name, p in raw.items() if _is_context(p.annotation, context)]
    if len(takers) > 1:
        raise Misconfigured(f"tool {tool!r} takes two contexts: {' and '.join(takers)}")
    plain = {name: p for name, p in raw.items() if name not in takers}
    types = _resolve(function, tool, plain, scope)
    _, texts = read_docstring(function.__doc__)
    fields: dict[str, Any] = {
        f"p{i}": (_described(types[name], name, p.default, texts.get(name)), _default(p))
        for i, (name, p) in enumerate(plain.items())
    }
    config = ConfigDict(extra="forbid", use_attribute_docstrings=True)
    try:
        model: type[BaseModel] = create_model(f"{tool}_arguments", __config__=config, **fields)
        schema = model.model_json_schema(schema_generator=_Schema)
    except (PydanticUserError, NameError) as error:
        why = str(error).splitlines()[0].split(". ")[0]
        raise Misconfigured(f"the arguments of tool {tool!r} have no JSON schema: {why}") from error
    schema.pop("title", None)
    return Arguments(model, tuple(plain), takers[0] if takers else None, schema)


class _Schema(GenerateJsonSchema):
    """Says nothing that a model does not need: no titles, no warnings."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _parameters(function: Callable[..., Any], tool: str) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(function).parameters)
    for name, parameter in parameters.items():
        if parameter.kind in _KINDS:
            raise Misconfigured(f"tool {tool!r} {_KINDS[parameter.kind].format(name)}")
        if parameter.annotation is inspect.Parameter.empty:
            raise Misconfigured(f"tool {tool!r}: parameter {name!r} has no type; annotate it")
    return parameters


def _is_context(annotation: Any, context: type) -> bool:
    """Tell, also for a name that exists for type checkers only."""
    if isinstance(annotation, str):
        return _CONTEXT.match(annotation) is not None
    return annotation is context or context in get_args(annotation)


def _resolve(
    function: Callable[..., Any],
    tool: str,
    parameters: Mapping[str, inspect.Parameter],
    scope: Mapping[str, Any],
) -> dict[str, Any]:
    holder = SimpleNamespace(__annotations__={n: p.annotation for n, p in parameters.items()})
    names = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return get_type_hints(holder, dict(names), dict(scope), include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        text = f"the types of tool {tool!r} cannot be read: {error}; import them at run time"
        raise Misconfigured(text) from error


def _described(annotation: Any, name: str, default: Any, text: str | None) -> Any:
    """Name the field after its parameter and describe it, unless the author already did."""
    marks = [m for m in (default, *get_args(annotation)[1:]) if isinstance(m, FieldInfo)]
    if text is None or any(mark.description for mark in marks):
        return Annotated[annotation, Field(alias=name)]
    return Annotated[annotation, Field(alias=name, description=text)]


def _default(parameter: inspect.Parameter) -> Any:
    return ... if parameter.default is inspect.Parameter.empty else parameter.default
