"""Signals as message rows and back (docs/spec/signals.md 1.9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.core.model import FilePart, TextPart
from shared.core.signal_rows import row, signal_of_row
from shared.core.signals import Contents, Signal, iso

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

NOW = 1_796_053_421_913
LATER = NOW + 1000


def make(contents: Contents = "hi", **fields: Any) -> Signal:
    fields = {"id": "s1", "type": "user", "tag_name": "user", "created_at": NOW, **fields}
    return Signal(contents=contents, **fields)


def test_1_9_a_whole_row() -> None:
    signal = make(
        (TextPart("a & b", {"p": {"x": 1}}), FilePart("d", "image/png", "n.png", {"q": {}})),
        type="notification",
        tag_name="github",
        attributes={"pr": 7},
        metadata={"k": "v"},
        provider_options={"openai": {}},
        accepted_at=NOW,
        transient=True,
    )
    assert row(signal, "t1", "r1", LATER) == {
        "id": "s1",
        "role": "signal",
        "type": "github",
        "createdAt": "2026-11-30T15:43:42.913Z",
        "threadId": "t1",
        "resourceId": "r1",
        "content": {
            "format": 2,
            "parts": [
                {"type": "text", "text": "a & b", "providerMetadata": {"p": {"x": 1}}},
                {
                    "type": "file",
                    "data": "d",
                    "mimeType": "image/png",
                    "filename": "n.png",
                    "providerMetadata": {"q": {}},
                },
            ],
            "providerMetadata": {"openai": {}},
            "metadata": {
                "signal": {
                    "id": "s1",
                    "type": "notification",
                    "tagName": "github",
                    "createdAt": "2026-11-30T15:43:42.913Z",
                    "acceptedAt": "2026-11-30T15:43:41.913Z",
                    "attributes": {"pr": 7},
                    "metadata": {"k": "v"},
                    "transient": True,
                }
            },
        },
    }


def test_1_9_a_small_row() -> None:
    assert row(make(), "t1", "r1", NOW)["content"] == {
        "format": 2,
        "parts": [{"type": "text", "text": "hi"}],
        "metadata": {
            "signal": {"id": "s1", "type": "user", "tagName": "user", "createdAt": iso(NOW)}
        },
    }


@pytest.mark.parametrize("empty", ["", ()])
def test_1_9_2_empty_contents_are_one_empty_text_part(empty: Contents) -> None:
    stored = row(make(empty), "t1", "r1", NOW)
    assert stored["content"]["parts"] == [{"type": "text", "text": ""}]
    back = signal_of_row(stored)
    assert back is not None
    assert back.contents == ""


UTF8 = st.text(st.characters(codec="utf-8"), max_size=20)
OPTIONS = st.none() | st.dictionaries(UTF8, st.dictionaries(UTF8, UTF8, max_size=2), max_size=2)
PARTS = st.builds(TextPart, UTF8, OPTIONS) | st.builds(
    FilePart, UTF8, UTF8.filter(bool), st.none() | UTF8.filter(bool), OPTIONS
)
CONTENTS = UTF8 | st.lists(PARTS, min_size=2, max_size=3).map(tuple)
SCALARS = UTF8 | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)


@CALM
@given(
    CONTENTS,
    st.sampled_from(["user", "state", "reactive", "notification"]),
    NAMES,
    st.dictionaries(NAMES, SCALARS, max_size=3),
    OPTIONS,
    OPTIONS,
    st.booleans(),
)
def test_1_9_rows_round_trip(
    contents: Contents,
    kind: Any,
    tag: str,
    attributes: Any,
    metadata: Any,
    options: Any,
    once: bool,
) -> None:
    signal = make(
        contents,
        type=kind,
        tag_name=tag,
        attributes=attributes,
        metadata=metadata,
        provider_options=options,
        accepted_at=NOW,
        transient=once,
    )
    assert signal_of_row(row(signal, "t", "r", LATER)) == replace(signal, created_at=LATER)


# ---- old rows --------------------------------------------------------------------------------


def old(signal: Any = None, *, content: Any = None, **fields: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": "fallback"}]
    metadata = {} if signal is None else {"metadata": {"signal": signal}}
    whole = {"format": 2, "parts": parts, **metadata}
    return {"id": "row1", "createdAt": iso(NOW), "content": content or whole, **fields}


@pytest.mark.parametrize(
    ("inner", "outer", "kind", "tag"),
    [
        (None, None, "user", "user"),
        (None, "system-reminder", "reactive", "system-reminder"),
        ("notification", "system-reminder", "notification", "notification"),
        ("user-message", "github", "user", "user"),
    ],
)
def test_1_9_4_the_type_is_found(inner: str | None, outer: str | None, kind: str, tag: str) -> None:
    found = signal_of_row(old({"type": inner} if inner else {}, type=outer))
    assert found is not None
    assert (found.type, found.tag_name) == (kind, tag)


def test_1_9_4_ids_times_and_maps() -> None:
    bare = signal_of_row(old({"attributes": [1], "metadata": "x"}))
    assert bare == make("fallback", id="row1")
    own = signal_of_row(old({"id": "own", "createdAt": LATER, "attributes": {"a": 1, "b": None}}))
    assert own == make("fallback", id="own", created_at=LATER, attributes={"a": 1})


IMAGE = FilePart("aGk=", "image/png")


@pytest.mark.parametrize(
    ("legacy", "contents"),
    [
        ("text", "text"),
        ("", ""),
        ([], ""),
        ({"type": "text", "text": "one"}, "one"),
        (["a", {"type": "text", "text": "b"}], (TextPart("a"), TextPart("b"))),
        ({"role": "user", "content": "said"}, "said"),
        (
            [{"role": "user", "content": ["x"]}, {"role": "user", "content": "y"}],
            (TextPart("x"), TextPart("y")),
        ),
        ({"type": "image", "image": "aGk="}, (IMAGE,)),
        (
            {"type": "image", "image": "aGk=", "mimeType": "image/gif"},
            (FilePart("aGk=", "image/gif"),),
        ),
        ({"type": "file", "data": "d", "mediaType": "a/b"}, (FilePart("d", "a/b"),)),
        ({"type": "file", "data": "d", "mimeType": "a/b"}, (FilePart("d", "a/b"),)),
        (
            [{"type": "text", "text": "t", "providerOptions": {"p": {}}}],
            (TextPart("t", {"p": {}}),),
        ),
        # what cannot be decoded falls back to the parts
        ({"role": "assistant", "content": "no"}, "fallback"),
        ({"type": "file", "data": "d"}, "fallback"),
        (["a", {"type": "audio"}], "fallback"),
        (5, "fallback"),
    ],
)
def test_1_9_5_legacy_contents(legacy: Any, contents: Contents) -> None:
    found = signal_of_row(old({"contents": legacy}))
    assert found is not None
    assert found.contents == contents


def test_1_9_5_parts_of_other_kinds_are_passed_over() -> None:
    parts = [{"type": "step-start"}, {"type": "text", "text": "kept"}]
    found = signal_of_row(old(content={"format": 2, "parts": parts}))
    assert found is not None
    assert found.contents == "kept"


def test_content_that_is_a_text() -> None:
    assert signal_of_row(old(content="plain")) == make("plain", id="row1")


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"id": "x"},
        {"id": "x", "content": None},
        {"id": "x", "content": 5},
        {"id": "x", "content": {"parts": [{"type": "step-start"}]}},
        {"id": 5, "content": "text"},
        {"id": "", "content": "text"},
        old(type="github"),
        old(type=5),
        old({"type": "unknown"}),
        old({"tagName": "a b"}),
        old({"tagName": 5}),
        old({"attributes": {"a b": 1}}),
        old({"attributes": {"a": [1]}}),
        old({"metadata": {"a": float("nan")}}),
        old({"contents": "\ud800"}),
    ],
)
def test_9_2_1_bad_rows_are_skipped(bad: dict[str, Any]) -> None:
    assert signal_of_row(bad) is None


def test_9_2_1_endless_nesting_is_skipped() -> None:
    inner: Any = "x"
    for _ in range(100_000):
        inner = {"role": "user", "content": [inner]}
    assert signal_of_row(old({"contents": inner})) is None


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "role", "content", "parts", "signal", "metadata", "id"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


@CALM
@given(st.dictionaries(st.sampled_from(["id", "type", "content", "createdAt"]), JUNK))
def test_9_2_1_reading_never_raises(junk: dict[str, Any]) -> None:
    found = signal_of_row(junk)
    assert found is None or found.id
