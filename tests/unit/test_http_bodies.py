"""Targets and behaviours as callers write them (`docs/spec/signals.md` 8.7)."""

from typing import Any

import pytest
from pydantic import ValidationError

from functions.api.schemas import SendMessage
from shared.core.errors import BadRequest
from shared.services.accept import Behaviour, Target

THREAD = {"resourceId": "r", "threadId": "t"}


def read(**fields: Any) -> SendMessage:
    return SendMessage.model_validate({"message": "hi", **fields})


def test_a_thread_with_its_resource_is_a_target() -> None:
    body = read(**THREAD)
    assert body.target("a", body.resource_id) == Target("a", "t", "r")
    assert body.behaviour() == Behaviour()


@pytest.mark.parametrize("more", [{}, THREAD, {"threadId": "t"}, {"ifIdle": None}])
def test_a_run_is_a_target(more: dict[str, Any]) -> None:
    body = read(runId="run", ifActive={"behavior": "persist"}, **more)
    target = body.target("a", body.resource_id)
    assert target == Target("a", more.get("threadId"), more.get("resourceId"), "run")
    assert body.behaviour().if_active == "persist"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "resourceId"),
        ({"resourceId": "r"}, "threadId"),
        ({"threadId": "t"}, "resourceId"),
        ({"threadId": None, "resourceId": "r"}, "threadId"),
        ({"runId": "run", "ifIdle": {}}, "ifIdle"),
        ({"runId": "run", **THREAD, "ifIdle": {"behavior": "wake"}}, "ifIdle"),
    ],
)
def test_anything_between_the_two_forms_is_refused(fields: dict[str, Any], field: str) -> None:
    body = read(**fields)
    with pytest.raises(BadRequest) as refused:
        body.target("a", body.resource_id)
    assert refused.value.field == field
    assert field in str(refused.value)


def test_branches_and_options_are_passed_on() -> None:
    body = read(
        **THREAD,
        ifActive={"behavior": "discard", "attributes": {"a": 1, "gone": None}, "junk": 1},
        ifIdle={
            "behavior": "persist",
            "attributes": {"b": True},
            "streamOptions": {"maxSteps": 3, "modelSettings": {"temperature": 0.5}},
        },
    )
    assert body.behaviour() == Behaviour(
        if_active="discard",
        if_idle="persist",
        active_attributes={"a": 1, "gone": None},
        idle_attributes={"b": True},
        options={"maxSteps": 3, "modelSettings": {"temperature": 0.5}},
    )


@pytest.mark.parametrize(
    ("branch", "field"),
    [
        ({"ifActive": {"attributes": {"a b": 1}}}, "ifActive.attributes.a b"),
        ({"ifIdle": {"attributes": {"a": []}}}, "ifIdle.attributes.a"),
        ({"ifIdle": {"attributes": "x"}}, "ifIdle.attributes"),
        ({"ifIdle": {"streamOptions": {"system": "\ud800"}}}, "ifIdle.streamOptions.system"),
    ],
)
def test_attributes_and_options_are_checked(branch: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read(**THREAD, **branch).behaviour()
    assert refused.value.field == field


@pytest.mark.parametrize(
    "fields",
    [
        {"threadId": ""},
        {"threadId": "x" * 257},
        {"threadId": 7},
        {"threadId": "a\nb"},
        {"runId": []},
        {"ifActive": {"behavior": "wake"}},
        {"ifIdle": {"behavior": "deliver"}},
        {"ifIdle": []},
        {"ifIdle": {"streamOptions": {"maxSteps": 0}}},
        {"ifIdle": {"streamOptions": {"maxSteps": "3"}}},
        {"ifIdle": {"streamOptions": {"maxSteps": True}}},
    ],
)
def test_wrong_types_and_values_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        read(**{**THREAD, **fields})
