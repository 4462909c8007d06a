"""What a model is told of a function, and what is refused when a tool is defined."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

import shared.core.tool as tool_module
from shared.core.errors import Misconfigured
from shared.core.tool import InvalidArguments, Tool, ToolContext, tool
from shared.core.tool_schema import read_docstring

if TYPE_CHECKING:
    from collections.abc import Callable


class Line(BaseModel):
    sku: str
    n: int = 1


def test_a_signature_and_its_docstring_become_a_schema() -> None:
    @tool
    def order(
        lines: list[Line],
        to: str,
        when: dt.date | None = None,
        speed: Literal["slow", "fast"] = "slow",
    ) -> None:
        """Order things.

        They come by post.

        Args:
            lines: What to order,
                and how much of it: all lines.
            to (str): Where it goes.
            nobody: Not a parameter.

        Returns:
            Nothing.
        """

    assert order.name == "order"
    assert order.description == "Order things.\n\nThey come by post."
    schema = dict(order.schema)
    assert schema.pop("$defs").keys() == {"Line"}
    assert schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["lines", "to"],
        "properties": {
            "lines": {
                "type": "array",
                "items": {"$ref": "#/$defs/Line"},
                "description": "What to order, and how much of it: all lines.",
            },
            "to": {"type": "string", "description": "Where it goes."},
            "when": {
                "anyOf": [{"type": "string", "format": "date"}, {"type": "null"}],
                "default": None,
            },
            "speed": {"type": "string", "enum": ["slow", "fast"], "default": "slow"},
        },
    }
    assert order.spec.schema == order.schema


def test_a_tool_without_arguments_has_an_object_schema() -> None:
    @tool
    def ping() -> None: ...

    assert ping.schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert ping.description == ""
    assert ping.validate({}) == {}


def test_names_of_pydantic_itself_are_fine_as_parameters() -> None:
    @tool
    def odd(schema: str, model_config: int, json: str, copy: bool, _x: int = 1) -> None: ...

    names = {"schema": "s", "model_config": 1, "json": "j", "copy": True}
    assert odd.validate(names) == names | {"_x": 1}
    assert list(odd.schema["properties"]) == [*names, "_x"]


def test_field_descriptions_and_limits_of_the_author_win() -> None:
    @tool
    def f(
        a: Annotated[int, Field(ge=1, description="mine")],
        b: Annotated[int, Field(le=9)] = 2,
        c: int = Field(3, description="too"),
    ) -> None:
        """F.

        Args:
            a: not this
            b: but this
            c: not this
        """

    told = f.schema["properties"]
    assert [told[name]["description"] for name in "abc"] == ["mine", "but this", "too"]
    assert f.validate({"a": 1}) == {"a": 1, "b": 2, "c": 3}
    with pytest.raises(InvalidArguments):
        f.validate({"a": 0})


@pytest.mark.parametrize(
    "annotation",
    [
        ToolContext,
        Optional[ToolContext],  # noqa: UP045 - people write it
        ToolContext | None,
        "ToolContext",
        "ToolContext | None",
        "tool_module.ToolContext",
        "Optional[ToolContext]",
        "Nowhere.ToolContext",
    ],
)
def test_the_context_is_known_by_its_type_and_left_out(annotation: Any) -> None:
    def f(a: int, context: Any = None) -> None: ...

    f.__annotations__["context"] = annotation
    made = tool(f)
    assert list(made.schema["properties"]) == ["a"]
    assert made.validate({"a": 1}) == {"a": 1}
    assert tool_module.ToolContext is ToolContext


def test_arguments_are_converted_and_mutable_defaults_are_not_shared() -> None:
    @tool
    def f(line: Line, when: dt.datetime, tags: list[str] = []) -> None: ...  # noqa: B006

    args = f.validate({"line": {"sku": "x"}, "when": "2026-01-02T03:04:05Z"})
    assert args["line"] == Line(sku="x")
    assert args["when"] == dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    args["tags"].append("changed")
    assert f.validate({"line": {"sku": "x"}, "when": "2026-01-02T03:04:05Z"})["tags"] == []


def test_every_problem_is_told_at_once() -> None:
    @tool
    def f(a: int, line: Line) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        f.validate({"a": "many", "line": {"n": 1}, "zzz": 1})
    value = caught.value.value
    assert value["error"] is True
    assert [e["path"] for e in value["validationErrors"]] == ["a", "line.sku", "zzz"]
    assert "Tool input validation failed for f" in value["message"]
    assert "- line.sku: Field required" in value["message"]
    assert 'Provided arguments: {"a":"many"' in value["message"]


def test_arguments_that_are_no_object_are_told_as_such() -> None:
    @tool
    def f(a: int) -> None: ...

    with pytest.raises(InvalidArguments, match="not a JSON object") as caught:
        f.validate('{"a": 1')
    assert 'Provided arguments: {"a": 1' in str(caught.value)


def _bare(a): ...  # type: ignore[no-untyped-def]


def _star(*a: int) -> None: ...


def _stars(**a: int) -> None: ...


def _slash(a: int, /) -> None: ...


def _odd(a: object, b: Callable[[], int]) -> None: ...


def _two(a: ToolContext, b: ToolContext) -> None: ...


def _yields(a: int) -> Any:
    yield a


async def _yields_too(a: int) -> Any:
    yield a


def _unknown(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class _Opaque: ...


def _opaque(a: _Opaque) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_bare, "parameter 'a' has no type"),
        (_star, r"takes \*a: list every argument"),
        (_stars, r"takes \*\*a: list every argument"),
        (_slash, "positional-only parameter 'a'"),
        (_odd, "types of tool '_odd' cannot be read"),
        (_two, "takes two contexts: a and b"),
        (_yields, "yields"),
        (_yields_too, "yields"),
        (_unknown, "'Missing' is not defined"),
        (_opaque, "no JSON schema: .*_Opaque"),
        (lambda: 1, "cannot be called '<lambda>'"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_when_it_is_defined(
    function: Callable[..., Any], says: str
) -> None:
    with pytest.raises(Misconfigured, match=says):
        tool(function)


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "a/b"])
def test_a_name_that_providers_refuse_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match="cannot be called"):
        Tool(lambda: 1, name=name or " ")


def test_name_and_description_can_be_given() -> None:
    @tool(name="other-name", description="Says so.")
    def f() -> int:
        """Something else."""
        return 1

    assert (f.name, f.description, f()) == ("other-name", "Says so.", 1)


def test_a_local_type_can_be_used_under_postponed_annotations() -> None:
    class Local(BaseModel):
        n: int

    @tool
    def f(x: Local) -> None: ...

    @tool(name="g")
    def g(x: Local) -> None: ...

    assert f.validate({"x": {"n": 1}}) == g.validate({"x": {"n": 1}}) == {"x": Local(n=1)}


@pytest.mark.parametrize(
    ("text", "description", "arguments"),
    [
        (None, "", {}),
        ("One.", "One.", {}),
        ("One: two.\nArgs: not a heading", "One: two.\nArgs: not a heading", {}),
        ("D.\n\nArgs:\n  a: x: y\n  b (dict[str, int]):\n    z\n", "D.", {"a": "x: y", "b": "z"}),
        ("D.\n\nReturns:\n  a: b\n\nArgs:\n  c: d", "D.", {"c": "d"}),
        ("D.\n\nArgs:\n  loose text\n", "D.", {}),
    ],
)
def test_docstrings(text: str | None, description: str, arguments: dict[str, str]) -> None:
    assert read_docstring(text) == (description, arguments)
