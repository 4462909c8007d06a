"""What the model gets of a signal (docs/spec/signals.md 1.7)."""

from __future__ import annotations

from typing import Any

import pytest

from shared.core import signals
from shared.core.model import FilePart, TextPart, UserMessage
from shared.core.signals import Signal, render

FILE = FilePart("aGk=", "image/png")


def make(contents: signals.Contents = "hi", **fields: Any) -> Signal:
    kind: signals.SignalType = fields.pop("type", "user")
    fields = {"id": "s1", "tag_name": signals.DEFAULT_TAGS[kind], "created_at": 0, **fields}
    return Signal(type=kind, contents=contents, **fields)


def content(contents: signals.Contents, **fields: Any) -> signals.Contents:
    return render(make(contents, **fields)).content


def test_1_7_a_plain_user_signal_is_its_text_unescaped() -> None:
    assert content("a < b") == "a < b"
    assert content((TextPart("a < b"),)) == "a < b"


def test_1_7_other_user_parts_are_unchanged() -> None:
    for parts in [
        (TextPart("a"), TextPart("b")),
        (TextPart("a", {"p": {}}),),
        (TextPart("a"), FILE),
        (FILE,),
    ]:
        assert content(parts) == parts


@pytest.mark.parametrize("empty", ["", (), (TextPart(""),)])
def test_1_2_7_an_empty_user_signal_adds_nothing(empty: signals.Contents) -> None:
    assert not content(empty)


@pytest.mark.parametrize("empty", ["", (), (TextPart(""),)])
def test_1_7_empty_contents_of_a_wrapped_signal(empty: signals.Contents) -> None:
    assert content(empty, type="state") == "<state />"
    assert content(empty, attributes={"a": 1}) == '<user a="1" />'


def test_1_7_1_a_user_signal_with_attributes_is_wrapped() -> None:
    assert content("text", attributes={"name": "Jane", "sentFrom": "slack"}) == (
        '<user name="Jane" sentFrom="slack">text</user>'
    )


@pytest.mark.parametrize(
    ("kind", "xml"),
    [
        ("state", "<state>x &amp; y</state>"),
        ("reactive", "<system-reminder>x &amp; y</system-reminder>"),
        ("notification", "<notification>x &amp; y</notification>"),
    ],
)
def test_1_7_2_other_types_are_always_wrapped(kind: str, xml: str) -> None:
    assert content("x & y", type=kind) == xml


def test_1_7_3_provider_options_go_on_the_message() -> None:
    assert render(make(provider_options={"openai": {"x": 1}})) == UserMessage(
        "hi", {"openai": {"x": 1}}
    )


def test_1_7_4_multimodal_with_attributes() -> None:
    parts = (TextPart("look"), FILE, TextPart("two"))
    assert content(parts, attributes={"n": "x"}) == (
        TextPart('<user n="x">look</user>'),
        FILE,
        TextPart("two"),
    )


def test_1_7_5_texts_are_joined_by_newlines() -> None:
    assert content((TextPart("p1"), TextPart("p2")), attributes={"q": "1"}) == (
        '<user q="1">p1\np2</user>'
    )


def test_1_7_the_first_text_is_wrapped_where_it_stands() -> None:
    parts = (FILE, TextPart("<a>", {"p": {}}), TextPart("b"))
    assert content(parts, type="state") == (
        FILE,
        TextPart("<state>&lt;a&gt;</state>", {"p": {}}),
        TextPart("b"),
    )


def test_1_7_files_alone_get_an_empty_tag_in_front() -> None:
    assert content((FILE, FILE), type="notification", attributes={"a": True}) == (
        TextPart('<notification a="true" />'),
        FILE,
        FILE,
    )
