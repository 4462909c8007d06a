"""Agents and apps: what is checked when they are made, and how they are described."""

from __future__ import annotations

from typing import Any

import pytest

from shared.core.agent import Agent
from shared.core.app import App
from shared.core.errors import Misconfigured, NotFound
from shared.core.tool import tool
from tests.apps.script import ScriptModel


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent(id: str = "a", **more: Any) -> Agent:
    return Agent(id, **{"model": "openai/gpt-5-mini"} | more)


def test_defaults() -> None:
    made = agent()
    assert (made.name, made.instructions, made.max_steps, made.last_messages) == ("a", "", None, 10)
    assert (dict(made.tools), dict(made.model_settings)) == ({}, {})
    assert made.tool_call_concurrency == 10


@pytest.mark.parametrize(
    ("own", "asked", "steps"), [(None, None, 5), (7, None, 7), (7, 3, 3), (None, 3, 3)]
)
def test_the_call_decides_over_the_agent_over_the_default(
    own: int | None, asked: int | None, steps: int
) -> None:
    assert agent(max_steps=own).steps(asked) == steps


@pytest.mark.parametrize("id", ["support-agent", "Ä b", "a.b:c", "x" * 256])
def test_ids_that_are_fine(id: str) -> None:
    assert agent(id).id == id


@pytest.mark.parametrize("id", ["", "  ", "a/b", "a?b", "a#b", "a\nb", "x" * 257, None, 1])
def test_ids_that_are_not(id: Any) -> None:
    with pytest.raises(Misconfigured, match="id"):
        agent(id)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"max_steps": 0}, "max_steps is a whole number from 1, not 0"),
        ({"max_steps": "3"}, "max_steps"),
        ({"max_steps": True}, "max_steps"),
        ({"last_messages": -1}, "last_messages is a whole number from 0"),
        ({"tool_call_concurrency": 0}, "tool_call_concurrency"),
        ({"model": "gpt-5"}, "'gpt-5' is no model; write it as 'provider/model'"),
        ({"model": ""}, "is no model"),
        ({"model": object()}, r"with a stream\(\) method, not a object"),
        ({"tools": [add, add]}, "has two tools called 'add'"),
        ({"tools": [print]}, "print is no tool; put @tool above it"),
        ({"instructions": ["x"]}, "instructions is a text, not a list"),
    ],
)
def test_what_does_not_fit_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(Misconfigured, match=says):
        agent(**more)


def test_models_by_name_and_as_objects() -> None:
    assert (agent().provider, agent().model_id) == ("openai", "gpt-5-mini")
    assert agent(model="openai/org/model").model_id == "org/model"
    assert (agent(model="demo").provider, agent(model="demo").model_id) == ("demo", "demo")
    scripted = agent(model=ScriptModel([]))
    assert (scripted.provider, scripted.model_id) == ("script", "script")

    class Mine:
        def stream(self) -> None: ...

    assert agent(model=Mine()).model_name == "custom/Mine"


def test_tools_cannot_be_changed_behind_the_agents_back() -> None:
    made = agent(tools=[add])
    assert list(made.tools) == ["add"]
    with pytest.raises(TypeError):
        made.tools["x"] = add  # type: ignore[index]


def test_details() -> None:
    assert agent(name="A", instructions="Be.", tools=[add], description="D").details() == {
        "id": "a",
        "name": "A",
        "description": "D",
        "instructions": "Be.",
        "tools": {
            "add": {"id": "add", "description": "Add two numbers.", "inputSchema": add.schema}
        },
        "modelId": "gpt-5-mini",
        "provider": "openai",
        "defaultOptions": {"maxSteps": 5},
    }
    assert "description" not in agent().details()


def test_an_app_finds_its_agents_and_keeps_their_order() -> None:
    app = App(agents=[agent("b"), agent("a")])
    assert [one.id for one in app] == ["b", "a"]
    assert app.agent("a").id == "a"
    assert (len(app), "a" in app, "c" in app) == (2, True, False)
    with pytest.raises(NotFound, match=r"^Agent with id c not found$"):
        app.agent("c")


def test_an_app_refuses_duplicates_and_strangers() -> None:
    with pytest.raises(Misconfigured, match="two agents have the id 'a'"):
        App([agent(), agent()])
    with pytest.raises(Misconfigured, match="an app holds agents, not a str"):
        App(["a"])  # type: ignore[list-item]
