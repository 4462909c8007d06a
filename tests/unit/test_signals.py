"""Signals: stored, on the wire, rendered, echoed (docs/spec/signals.md 1.2-1.8, 2.3)."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from shared.core import signals
from shared.core.model import FilePart, TextPart
from shared.core.signals import Signal, echo, iso, millis, render, with_attributes

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

NOW = 1_796_053_421_913
NOW_ISO = "2026-11-30T15:43:41.913Z"
FILE = FilePart("aGk=", "image/png")


def make(contents: signals.Contents = "hi", **fields: Any) -> Signal:
    kind: signals.SignalType = fields.pop("type", "user")
    fields = {"id": "s1", "tag_name": signals.DEFAULT_TAGS[kind], "created_at": NOW, **fields}
    return Signal(type=kind, contents=contents, **fields)


# ---- times -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (NOW, NOW_ISO),
        (0, "1970-01-01T00:00:00.000Z"),
        (5, "1970-01-01T00:00:00.005Z"),
        (signals.LAST_TIME, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_1_2_times_have_milliseconds_and_z(at: int, text: str) -> None:
    assert iso(at) == text
    assert millis(text) == at


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-30T16:43:41.913+01:00", NOW),
        ("2026-11-30T15:43:41.913", NOW),
        ("2026-11-30T15:43:41.913999Z", NOW),
        ("1970-01-02", 86_400_000),
        ("", None),
        ("yesterday", None),
        ("1969-12-31T23:59:59Z", None),
        ("0001-01-01T00:00:00+23:00", None),
        ("9999-12-31T23:59:59-23:00", None),
        ("\ud800", None),
    ],
)
def test_1_2_reading_times(text: str, at: int | None) -> None:
    assert millis(text) == at


@CALM
@given(st.integers(0, signals.LAST_TIME))
def test_times_round_trip(at: int) -> None:
    assert millis(iso(at)) == at


# ---- types -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "tag"),
    [
        ("user", "user", "user"),
        ("state", "state", "state"),
        ("notification", "notification", "notification"),
        ("reactive", "reactive", "system-reminder"),
        ("user-message", "user", "user"),
        ("system-reminder", "reactive", "system-reminder"),
    ],
)
def test_1_5_types_and_default_tags(name: str, kind: str, tag: str) -> None:
    found = signals.normal_type(name)
    assert found == kind
    assert found is not None
    assert signals.DEFAULT_TAGS[found] == tag


def test_1_5_other_types_are_unknown() -> None:
    assert signals.normal_type("User") is None


def test_signals_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        make().id = "other"  # type: ignore[misc]


# ---- records ---------------------------------------------------------------------------------


def test_a_plain_record_is_compact() -> None:
    assert make(accepted_at=NOW).to_record() == {
        "id": "s1",
        "type": "user",
        "tag_name": "user",
        "contents": "hi",
        "created_at": NOW,
        "accepted_at": NOW,
    }


def test_a_full_record() -> None:
    signal = make(
        (TextPart("t", {"p": {}}), FilePart("d", "image/png", "n.png", {"p": {}}), FILE),
        type="notification",
        tag_name="github",
        attributes={"b": 1, "a": True},
        metadata={"m": [None]},
        provider_options={"openai": {"x": 1}},
        transient=True,
    )
    record = signal.to_record()
    assert record == {
        "id": "s1",
        "type": "notification",
        "tag_name": "github",
        "contents": [
            {"type": "text", "text": "t", "provider_options": {"p": {}}},
            {
                "type": "file",
                "data": "d",
                "media_type": "image/png",
                "filename": "n.png",
                "provider_options": {"p": {}},
            },
            {"type": "file", "data": "aGk=", "media_type": "image/png"},
        ],
        "attributes": {"b": 1, "a": True},
        "metadata": {"m": [None]},
        "provider_options": {"openai": {"x": 1}},
        "created_at": NOW,
        "transient": True,
    }
    assert Signal.from_record(json.loads(json.dumps(record))) == signal


UTF8 = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | UTF8,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(UTF8, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.none() | st.dictionaries(UTF8, JSON, max_size=3)
PARTS = st.builds(TextPart, UTF8, OBJECTS) | st.builds(
    FilePart, UTF8, UTF8, st.none() | UTF8, OBJECTS
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = UTF8 | st.booleans() | st.integers(-(2**63), 2**63) | FINITE
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
SIGNALS = st.builds(
    Signal,
    id=UTF8,
    type=st.sampled_from(sorted(signals.DEFAULT_TAGS)),
    tag_name=NAMES,
    contents=UTF8 | st.lists(PARTS, max_size=3).map(tuple),
    attributes=st.dictionaries(NAMES, SCALARS, max_size=4),
    metadata=OBJECTS,
    provider_options=OBJECTS,
    created_at=st.integers(0, signals.LAST_TIME),
    accepted_at=st.none() | st.integers(0, signals.LAST_TIME),
    transient=st.booleans(),
)


@CALM
@given(SIGNALS)
def test_records_round_trip_exactly(signal: Signal) -> None:
    back = Signal.from_record(from_json(to_json(signal.to_record())))
    assert back == signal
    assert list(back.attributes.items()) == list(signal.attributes.items())
    assert [type(v) for v in back.attributes.values()] == [
        type(v) for v in signal.attributes.values()
    ]


# ---- the wire --------------------------------------------------------------------------------


def test_1_2_a_created_signal() -> None:
    assert make(accepted_at=NOW).wire() == {
        "contents": "hi",
        "type": "user",
        "tagName": "user",
        "id": "s1",
        "acceptedAt": NOW_ISO,
        "createdAt": NOW_ISO,
        "__isCreatedSignal": True,
    }


def test_1_2_what_was_given_is_shown() -> None:
    wire = make(
        type="reactive",
        attributes={"a": 1},
        metadata={},
        provider_options={"p": {}},
        transient=True,
    ).wire()
    assert wire["attributes"] == {"a": 1}
    assert wire["metadata"] == {}
    assert wire["providerOptions"] == {"p": {}}
    assert wire["transient"] is True
    assert "acceptedAt" not in wire


@pytest.mark.parametrize(
    ("contents", "shown"),
    [
        ("", ""),
        ((), []),
        ((TextPart("one"),), "one"),
        (
            (TextPart("one", {}),),
            [{"type": "text", "text": "one", "providerOptions": {}}],
        ),
        (
            (TextPart("a"), FilePart("d", "text/csv", "t.csv", {"p": {}})),
            [
                {"type": "text", "text": "a"},
                {
                    "type": "file",
                    "data": "d",
                    "mediaType": "text/csv",
                    "filename": "t.csv",
                    "providerOptions": {"p": {}},
                },
            ],
        ),
        ((FILE,), [{"type": "file", "data": "aGk=", "mediaType": "image/png"}]),
    ],
)
def test_1_3_contents_on_the_wire(contents: signals.Contents, shown: Any) -> None:
    signal = make(contents)
    assert signal.wire()["contents"] == shown
    assert echo(signal)["data"]["contents"] == shown


def test_1_8_the_echo_of_a_user_signal() -> None:
    assert echo(make(accepted_at=NOW)) == {
        "type": "data-user-message",
        "data": {
            "id": "s1",
            "type": "user",
            "tagName": "user",
            "contents": "hi",
            "createdAt": NOW_ISO,
            "acceptedAt": NOW_ISO,
        },
        "transient": True,
    }


@pytest.mark.parametrize("kind", ["state", "reactive", "notification"])
def test_1_8_every_other_type_echoes_as_data_signal(kind: str) -> None:
    chunk = echo(make(type=kind, metadata={"m": 1}, attributes={"a": "b"}))
    assert chunk["type"] == "data-signal"
    assert chunk["transient"] is True
    assert "transient" not in chunk["data"]
    assert chunk["data"]["metadata"] == {"m": 1}
    assert chunk["data"]["attributes"] == {"a": "b"}


def test_1_8_3_inner_transient_is_the_signal_s_own() -> None:
    assert echo(make(type="reactive", transient=True))["data"]["transient"] is True


# ---- rendering: the table is in test_signal_render -------------------------------------------


@CALM
@given(SIGNALS)
def test_invariant_11_a_wrapped_signal_opens_and_closes_one_tag(signal: Signal) -> None:
    """1.6.6, 1.6.7: whatever the text and the values are, the tag is the signal's own."""
    if signal.type == "user" and not signal.attributes:
        return
    made = render(signal).content
    text = made if isinstance(made, str) else next(p.text for p in made if isinstance(p, TextPart))
    cleaned = "".join(c for c in text if c >= " " and c not in "\ufffe\uffff")
    root = ET.fromstring(cleaned)  # noqa: S314 - made here
    assert root.tag == signal.tag_name
    assert list(root.attrib) == list(signal.attributes)
    assert len(root) == 0


# ---- conditional attributes ------------------------------------------------------------------


def test_1_6_8_merged_attributes_keep_their_place() -> None:
    signal = make(attributes={"a": 1, "b": 2})
    merged = with_attributes(signal, {"c": 4, "a": 3})
    assert list(merged.attributes.items()) == [("a", 3), ("b", 2), ("c", 4)]
    assert signal.attributes == {"a": 1, "b": 2}
    assert render(merged).content == '<user a="3" b="2" c="4">hi</user>'


def test_1_6_4_a_null_takes_an_attribute_away() -> None:
    assert with_attributes(make(attributes={"a": 1}), {"a": None, "b": None}).attributes == {}
