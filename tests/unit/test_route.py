"""Where a signal goes (docs/protocols.md A2, A4, A7; docs/spec/signals.md 2.2 to 2.4, 2.8)."""

from __future__ import annotations

from itertools import product
from typing import Literal, get_args

import pytest

from shared.core.records import Active
from shared.core.route import Behaviour, IfActive, IfIdle, Route, route

Status = Literal["reserved", "running", "suspended"]

MINE, OTHER = "agent", "other-agent"
NEW_RUN = Route("wake", "wake")
INTO_RUN = Route("deliver", "deliver", run="live")
BEHIND = Route("deliver", "queue")
DROPPED = Route("discard", None)
KEPT_IDLE = Route("persist", "keep")
KEPT_ACTIVE = Route("persist", "keep", run="live")


def routed(
    thread: Status | None,
    behaviour: Behaviour,
    agent: str = MINE,
    *,
    queue: bool = False,
    transient: bool = False,
) -> Route:
    active = thread and Active(run="live", agent=MINE, status=thread)
    return route(behaviour, active or None, agent, queue=queue, transient=transient)


IDLE: list[tuple[IfIdle, bool, bool, Route]] = [
    # ifIdle, queue, transient
    ("wake", False, False, NEW_RUN),
    ("wake", False, True, NEW_RUN),
    ("wake", True, False, NEW_RUN),
    ("persist", False, False, KEPT_IDLE),
    ("persist", False, True, DROPPED),
    ("persist", True, False, NEW_RUN),  # queueMessage wakes, whatever ifIdle says (2.8.2)
    ("discard", False, False, DROPPED),
    ("discard", False, True, DROPPED),
    ("discard", True, False, NEW_RUN),
]


@pytest.mark.parametrize("agent", [MINE, OTHER])
@pytest.mark.parametrize("if_active", get_args(IfActive))
@pytest.mark.parametrize(("if_idle", "queue", "transient", "expected"), IDLE)
def test_a2_an_idle_thread(
    if_idle: IfIdle,
    queue: bool,
    transient: bool,
    expected: Route,
    if_active: IfActive,
    agent: str,
) -> None:
    behaviour = Behaviour(if_active=if_active, if_idle=if_idle)
    assert routed(None, behaviour, agent, queue=queue, transient=transient) == expected


ACTIVE: list[tuple[IfActive, str, bool, bool, Route]] = [
    # ifActive, agent, queue, transient
    ("deliver", MINE, False, False, INTO_RUN),
    ("deliver", MINE, False, True, INTO_RUN),
    ("deliver", OTHER, False, False, BEHIND),
    ("deliver", OTHER, False, True, BEHIND),
    ("persist", MINE, False, False, KEPT_ACTIVE),
    ("persist", OTHER, False, False, KEPT_ACTIVE),
    ("persist", MINE, False, True, DROPPED),
    ("discard", MINE, False, False, DROPPED),
    ("discard", OTHER, False, True, DROPPED),
    # ifActive has no effect on queueMessage (2.8.5)
    ("deliver", MINE, True, False, BEHIND),
    ("persist", MINE, True, False, BEHIND),
    ("discard", OTHER, True, False, BEHIND),
]


@pytest.mark.parametrize("if_idle", get_args(IfIdle))
@pytest.mark.parametrize("status", get_args(Status))
@pytest.mark.parametrize(("if_active", "agent", "queue", "transient", "expected"), ACTIVE)
def test_a2_an_active_thread(
    if_active: IfActive,
    agent: str,
    queue: bool,
    transient: bool,
    expected: Route,
    status: Status,
    if_idle: IfIdle,
) -> None:
    """Reserved and suspended count as active."""
    behaviour = Behaviour(if_active=if_active, if_idle=if_idle)
    assert routed(status, behaviour, agent, queue=queue, transient=transient) == expected


def test_a4_who_loses_the_thread_decides_again() -> None:
    behaviour = Behaviour()
    assert routed(None, behaviour) == NEW_RUN
    assert routed("reserved", behaviour) == INTO_RUN
    assert routed("reserved", behaviour, OTHER) == BEHIND
    assert routed("reserved", Behaviour(if_active="discard")) == DROPPED


def test_a7_what_is_kept_never_owns_a_run() -> None:
    for if_active, if_idle, status in product(
        get_args(IfActive), get_args(IfIdle), (None, *get_args(Status))
    ):
        found = routed(status, Behaviour(if_active=if_active, if_idle=if_idle))
        assert (found.action == "persist") == (found.kind == "keep")
        assert (found.action == "discard") == (found.kind is None)
