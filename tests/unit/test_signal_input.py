"""What callers may send, and what they are told (docs/spec/signals.md 1.2-1.6, 8.7, 9.2; A1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from shared.core import limits
from shared.core.errors import BadRequest, TooLarge
from shared.core.model import FilePart, TextPart
from shared.core.signal_input import parse_attributes, parse_message, parse_signal
from shared.core.signals import Signal, render, with_attributes

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

NOW = 1_796_053_421_913


def signal(**fields: Any) -> Signal:
    return parse_signal({"type": "user", "contents": "hi", **fields}, id="new", now=NOW)


def message(body: object) -> Signal:
    return parse_message(body, id="new", now=NOW)


def refused(**fields: Any) -> tuple[str, str | None]:
    with pytest.raises(BadRequest) as caught:
        signal(**fields)
    return str(caught.value), caught.value.field


# ---- accepted --------------------------------------------------------------------------------


def test_1_2_the_least_signal() -> None:
    assert signal() == Signal(
        id="new", type="user", tag_name="user", contents="hi", created_at=NOW, accepted_at=NOW
    )


def test_8_7_the_fullest_signal() -> None:
    body = {
        "id": "mine",
        "type": "reactive",
        "tagName": "note",
        "contents": [
            {"type": "text", "text": "a", "providerOptions": {"p": {"x": 1}}},
            {"type": "file", "data": "aGk=", "mediaType": "image/png", "filename": "f"},
        ],
        "attributes": {"s": "x", "i": 1, "f": 1.5, "b": False, "not checked": None},
        "metadata": {"deep": [{"x": None}]},
        "providerOptions": {"openai": {"y": 2}},
        "createdAt": "2026-11-30T15:43:41.000Z",
        "acceptedAt": "1999-01-01",
        "transient": True,
        "extra": "dropped",
    }
    assert parse_signal(body, id="new", now=NOW) == Signal(
        id="mine",
        type="reactive",
        tag_name="note",
        contents=(TextPart("a", {"p": {"x": 1}}), FilePart("aGk=", "image/png", "f")),
        attributes={"s": "x", "i": 1, "f": 1.5, "b": False},
        metadata={"deep": [{"x": None}]},
        provider_options={"openai": {"y": 2}},
        created_at=NOW - 913,
        accepted_at=NOW,
        transient=True,
    )


def test_1_2_3_accepted_at_is_always_now() -> None:
    assert signal(acceptedAt="2020-01-01T00:00:00Z").accepted_at == NOW


@pytest.mark.parametrize(
    ("given_type", "kind", "tag"),
    [
        ("state", "state", "state"),
        ("notification", "notification", "notification"),
        ("reactive", "reactive", "system-reminder"),
        ("user-message", "user", "user"),
        ("system-reminder", "reactive", "system-reminder"),
    ],
)
def test_1_5_types_become_normal(given_type: str, kind: str, tag: str) -> None:
    made = signal(type=given_type)
    assert (made.type, made.tag_name) == (kind, tag)
    assert signal(type=given_type, tagName="own").tag_name == "own"


@pytest.mark.parametrize("empty", ["", []])
def test_1_2_7_empty_contents_are_accepted(empty: Any) -> None:
    assert not signal(contents=empty).contents
    assert not message(empty).contents


def test_nulls_count_as_absent() -> None:
    names = ["id", "tagName", "attributes", "metadata", "providerOptions", "createdAt"]
    assert signal(**dict.fromkeys([*names, "transient"])) == signal()


def test_transient_false_is_fine_everywhere() -> None:
    assert signal(type="state", transient=False).transient is False


# ---- refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_type", "name"),
    [("bad", "bad"), (None, "undefined"), (5, "5"), ("USER", "USER"), ("\ud800", "?")],
)
def test_1_2_2_unknown_types(given_type: Any, name: str) -> None:
    assert refused(type=given_type) == (
        f"Invalid signal type: {name}. Use one of user, state, reactive, notification,"
        " user-message, system-reminder.",
        "signal.type",
    )


def test_1_2_1_state_is_never_transient() -> None:
    assert refused(type="state", transient=True) == (
        "state signals cannot be transient",
        "signal.transient",
    )


def test_1_6_2_bad_tag() -> None:
    assert refused(tagName="a b") == ("Invalid signal XML tag name: a b", "signal.tagName")
    assert refused(tagName="") == ("Invalid signal XML tag name: ", "signal.tagName")


def test_9_2_1_bad_attribute_name() -> None:
    assert refused(attributes={"a b": 1}) == (
        "Invalid signal XML attribute name: a b",
        "signal.attributes.a b",
    )


PART = "signal.contents.0"


@pytest.mark.parametrize(
    ("fields", "field", "text"),
    [
        ({"id": ""}, "signal.id", "signal.id must have 1 to 256 characters, not 0"),
        ({"id": "x" * 257}, "signal.id", "signal.id must have 1 to 256 characters, not 257"),
        ({"id": "a\nb"}, "signal.id", "signal.id must not have control characters"),
        ({"id": "a\x85"}, "signal.id", "signal.id must not have control characters"),
        ({"id": 5}, "signal.id", "signal.id must be a string"),
        ({"tagName": 5}, "signal.tagName", "signal.tagName must be a string"),
        (
            {"contents": None},
            "signal.contents",
            "signal.contents must be a string or an array of text and file parts",
        ),
        ({"contents": {}}, "signal.contents", None),
        (
            {"contents": "a\ud800"},
            "signal.contents",
            "signal.contents has a lone surrogate at character 1; send valid Unicode",
        ),
        (
            {"contents": ["x"]},
            PART,
            'signal.contents.0 must be a part with type "text" or "file"',
        ),
        ({"contents": [{"type": "image"}]}, PART, None),
        ({"contents": [{"type": []}]}, PART, None),
        ({"contents": [{"type": "text"}]}, f"{PART}.text", f"{PART}.text must be a string"),
        ({"contents": [{"type": "text", "text": 1}]}, f"{PART}.text", None),
        ({"contents": [{"type": "text", "text": "\udfff"}]}, f"{PART}.text", None),
        (
            {"contents": [{"type": "text", "text": "", "providerOptions": []}]},
            f"{PART}.providerOptions",
            f"{PART}.providerOptions must be a JSON object",
        ),
        (
            {"contents": [{"type": "file", "data": "d"}]},
            f"{PART}.mediaType",
            f"{PART}.mediaType must be a string",
        ),
        (
            {"contents": [{"type": "file", "data": "d", "mediaType": ""}]},
            f"{PART}.mediaType",
            f"{PART}.mediaType must name a media type, such as image/png",
        ),
        ({"contents": [{"type": "file", "mediaType": "a/b"}]}, f"{PART}.data", None),
        *(
            (
                {"contents": [{"type": "file", "mediaType": "a/b", "data": data}]},
                f"{PART}.data",
                f"{PART}.data must be base64, a data: URL with base64, or an http(s) URL",
            )
            for data in ("???", "abc", "data:nonsense", "data:image/png;base64,???", "data:,hi")
        ),
        (
            {"contents": [{"type": "file", "mediaType": "a/b", "data": "", "filename": 1}]},
            f"{PART}.filename",
            None,
        ),
        (
            {"attributes": []},
            "signal.attributes",
            "signal.attributes must be an object of names and values",
        ),
        (
            {"attributes": {"a": [1]}},
            "signal.attributes.a",
            "signal.attributes.a must be a string, a number, a boolean or null",
        ),
        (
            {"attributes": {"a": float("nan")}},
            "signal.attributes.a",
            "signal.attributes.a must be a finite number",
        ),
        ({"attributes": {"a": float("-inf")}}, "signal.attributes.a", None),
        ({"attributes": {"a": 10**400}}, "signal.attributes.a", None),
        ({"attributes": {"a": "\ud800"}}, "signal.attributes.a", None),
        (
            {"attributes": {f"a{n}": n for n in range(65)}},
            "signal.attributes",
            "signal.attributes must have at most 64 attributes",
        ),
        ({"metadata": []}, "signal.metadata", "signal.metadata must be a JSON object"),
        (
            {"metadata": {"a": [float("inf")]}},
            "signal.metadata.a.0",
            "signal.metadata.a.0 must be a finite number",
        ),
        ({"metadata": {"a": {"\ud800": 1}}}, "signal.metadata.a.?", None),
        ({"metadata": {"a": "\ud800"}}, "signal.metadata.a", None),
        ({"metadata": {"a": b"x"}}, "signal.metadata.a", None),
        ({"providerOptions": "x"}, "signal.providerOptions", None),
        (
            {"providerOptions": {"openai": 1}},
            "signal.providerOptions.openai",
            "signal.providerOptions.openai must be a JSON object of this provider's options",
        ),
        (
            {"createdAt": "soon"},
            "signal.createdAt",
            "signal.createdAt must be an ISO 8601 time since 1970, as 2026-11-30T15:43:41.913Z",
        ),
        ({"createdAt": 5}, "signal.createdAt", None),
        ({"transient": "yes"}, "signal.transient", "signal.transient must be true or false"),
        ({"transient": 1}, "signal.transient", None),
    ],
)
def test_9_2_everything_is_checked_when_it_is_accepted(
    fields: dict[str, Any], field: str, text: str | None
) -> None:
    said, where = refused(**fields)
    assert where == field
    if text is not None:
        assert said == text


@pytest.mark.parametrize("body", [None, "hi", [], 5])
def test_8_7_a_signal_is_an_object(body: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_signal(body, id="new", now=NOW)
    assert caught.value.field == "signal"


def test_a1_deep_nesting_is_refused() -> None:
    deep: Any = {}
    for _ in range(100):
        deep = {"a": deep}
    text, field = refused(metadata=deep)
    assert text.endswith("is nested deeper than 64 levels")
    assert field is not None


def test_a1_64_attributes_and_any_number_of_nulls() -> None:
    many = {f"a{n}": n for n in range(64)} | {f"null {n}": None for n in range(10)}
    assert len(signal(attributes=many).attributes) == 64


# ---- attributes of a branch ------------------------------------------------------------------


def test_2_3_branch_attributes_are_merged_over_the_signal_s() -> None:
    base = signal(attributes={"a": 1, "b": 2})
    more = parse_attributes({"c": 3, "a": None, "b": True}, "ifActive.attributes")
    assert list(with_attributes(base, more).attributes.items()) == [("b", True), ("c", 3)]
    assert parse_attributes(None, "ifIdle.attributes") == {}


# ---- sizes -----------------------------------------------------------------------------------


def test_a1_a_body_of_3_mb_fits_and_one_byte_more_does_not() -> None:
    rest = len(to_json(signal(contents="").to_record()))
    fits = "x" * (limits.MAX_BODY - rest)
    assert limits.check_size(signal(contents=fits).to_record()) == limits.MAX_BODY
    with pytest.raises(TooLarge) as caught:
        signal(contents=fits + "x")
    assert str(caught.value) == (
        "signal has 3000001 bytes as JSON; at most 3000000 are allowed. Send large files as URLs."
    )
    assert caught.value.http_status == 413


def test_a1_bytes_count_and_not_characters() -> None:
    with pytest.raises(TooLarge):
        message("é" * (limits.MAX_BODY // 2))


# ---- anything --------------------------------------------------------------------------------

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.sampled_from(["type", "text", "data"]), inner, max_size=3)
    ),
    max_leaves=8,
)
BODIES = st.fixed_dictionaries(
    {"type": st.sampled_from(["user", "state", "reactive"]), "contents": st.text() | JUNK},
    optional=dict.fromkeys(
        ["id", "tagName", "attributes", "metadata", "providerOptions", "createdAt", "x"], JUNK
    ),
)


@CALM
@given(BODIES)
def test_9_2_what_is_accepted_can_be_stored_shown_and_rendered(body: dict[str, Any]) -> None:
    try:
        made = parse_signal(body, id="new", now=NOW)
    except BadRequest as error:
        told = f"{error}{error.field}"
    else:
        assert Signal.from_record(made.to_record()) == made
        assert to_json(made.wire())
        told = f"{render(made)}{made.wire()}"
    assert told.encode()
