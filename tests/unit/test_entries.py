"""Journal entries as they are stored (docs/design.md 4, format versions)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from shared.core import entries, run, telling
from shared.core.entries import AnyEntry, Note, Signals
from shared.core.model import Usage
from shared.core.prompt import Prompt
from shared.core.rows import rows
from shared.core.signals import Signal
from tests.clock import START
from tests.protocol.making import answer, begun, call, record, result, text

FIXTURES = Path(__file__).parents[1] / "fixtures"
FORMATS = sorted(FIXTURES.glob("entries-v*.json"))


def stored(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return found


def test_there_is_a_fixture_of_each_format() -> None:
    expected = [f"entries-v{n}.json" for n in range(1, entries.FORMAT + 1)]
    assert [path.name for path in FORMATS] == expected


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.stem)
def test_entries_of_every_format_stay_loadable(path: Path) -> None:
    """A change that breaks this needs a new format, with an upcaster; never edit the fixture."""
    loaded = [entries.read(body) for body in stored(path)]
    assert {type(entry) for entry in loaded} == set(get_args(AnyEntry))
    for entry in loaded:
        for signal in getattr(entry, "signals", []):
            assert Signal.from_record(signal).to_record() == signal
    *first_run, failed, lone = loaded
    state = run.begin(first_run[0], START)
    prompt = Prompt()
    for entry in first_run[1:]:
        assert telling.told(state, entry) is not None
        assert telling.whole(state, entry, step_open=True) is not None
        state = run.fold(state, entry)
        prompt.add(entry, past=True)
    assert (state.status, state.steps, state.index) == ("completed", 2, 25)
    assert prompt.messages()
    assert failed.kind == "finish"
    assert telling.opening(lone)
    assert [row["role"] for row in rows(loaded, "t", "r")].count("assistant") >= 2


@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.stem)
def test_nothing_that_was_stored_is_lost_or_changed(path: Path) -> None:
    """But for the format, which an upcaster raises."""
    for body in stored(path):
        again = entries.read(body).body()
        usage = again.get("usage", {})
        if usage:  # a field that came later is null in what is older
            assert usage == {"cost": None, **body["usage"]}
        kept = {key: value for key, value in body.items() if key != "usage"}
        assert {**again, **kept, "format": again["format"]} == again


def test_what_newer_versions_add_is_passed_over() -> None:
    body = begun().body()
    assert entries.read({**body, "something": "new"}) == entries.read(body)


@pytest.mark.parametrize("body", [{}, {"kind": "of another world"}, {"kind": "result"}])
def test_what_is_no_entry(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        entries.read(body)


ROUND = [
    begun(record("m", "é", attributes={"a": 1.5, "b": True})),
    answer(
        entries.Reasoning(id="r", text="hm", provider_metadata={"a": [1]}),
        text("so"),
        call("c", x={"y": None}),
        entries.Call(call_id="d", name="add", args="{no json"),
        usage=Usage(1, 2, 3, 4),
    ),
    result("c", [1, 2.5, None, {"é": ""}]),
]


@pytest.mark.parametrize("entry", ROUND, ids=lambda entry: entry.kind)
def test_round_trip_as_json(entry: AnyEntry) -> None:
    assert entries.read(json.loads(json.dumps(entry.body()))) == entry


def test_calls_are_in_the_models_order() -> None:
    made = answer(call("c2"), text("so"), call("c1"))
    assert [each.call_id for each in made.calls] == ["c2", "c1"]


TWO = [record("a"), record("b")]
MOMENTS: list[tuple[AnyEntry, int]] = [
    (begun(*TWO, at=5), 6),
    (Signals(message_id="m", signals=TWO, at=5), 6),
    (Note(signals=TWO, at=5), 6),
    (Note(signals=[], at=5), 5),
    (answer(at=5), 5),
]


@pytest.mark.parametrize(("entry", "last"), MOMENTS, ids=lambda value: str(value)[:20])
def test_the_last_moment_of_an_entry(entry: AnyEntry, last: int) -> None:
    assert entries.last_moment(entry) == last


def test_1_2_4_signals_are_dated_as_they_enter() -> None:
    made = entries.stamp([record("a"), record("b")], 7)
    assert [(s["id"], s["created_at"]) for s in made] == [("a", 7), ("b", 8)]
