"""Messages as callers send them (docs/spec/signals.md 1.4, 9.2)."""

from __future__ import annotations

import pytest

from shared.core.errors import BadRequest
from shared.core.model import TextPart
from shared.core.signal_input import parse_message
from shared.core.signals import Signal

NOW = 1_796_053_421_913


def message(body: object) -> Signal:
    return parse_message(body, id="new", now=NOW)


def test_1_4_a_string() -> None:
    assert message("hi") == Signal(
        id="new", type="user", tag_name="user", contents="hi", created_at=NOW, accepted_at=NOW
    )


def test_1_4_an_array_of_parts() -> None:
    assert message([{"type": "text", "text": "a"}]).contents == (TextPart("a"),)


def test_1_4_an_object() -> None:
    made = message(
        {
            "contents": "hi",
            "attributes": {"a": 1},
            "metadata": {"clientMessageId": "c"},
            "providerOptions": {"p": {}},
            "id": "ignored",
            "type": "state",
            "tagName": "ignored",
            "transient": True,
        }
    )
    assert made == Signal(
        id="new",
        type="user",
        tag_name="user",
        contents="hi",
        attributes={"a": 1},
        metadata={"clientMessageId": "c"},
        provider_options={"p": {}},
        created_at=NOW,
        accepted_at=NOW,
    )


@pytest.mark.parametrize("body", [None, 5, True, {}, {"contents": 5}, {"content": "x"}])
def test_1_4_anything_else_is_refused(body: object) -> None:
    with pytest.raises(BadRequest) as caught:
        message(body)
    assert str(caught.value) == (
        "message must be a string, an array of parts, or an object with `contents`"
    )
    assert caught.value.field == "message"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([{"type": "text"}], "message.0.text"),
        ({"contents": [{"type": "text"}]}, "message.contents.0.text"),
        ({"contents": "x", "attributes": {"a b": 1}}, "message.attributes.a b"),
        ({"contents": "x", "metadata": 1}, "message.metadata"),
        ({"contents": "x", "providerOptions": 1}, "message.providerOptions"),
    ],
)
def test_9_2_mistakes_in_messages_name_their_field(body: object, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        message(body)
    assert caught.value.field == field
