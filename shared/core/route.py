"""Where a signal goes, decided from the thread's active run (`docs/protocols.md` A2, A4, A7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.core.records import Action, Active, ItemKind
    from shared.core.xml import Scalar

IfActive = Literal["deliver", "persist", "discard"]
IfIdle = Literal["wake", "persist", "discard"]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What the sender asks for (`docs/spec/signals.md` 2.2, 2.3). `options`: those of a new run."""

    if_active: IfActive = "deliver"
    if_idle: IfIdle = "wake"
    active_attributes: Mapping[str, Scalar | None] = field(default_factory=dict)
    idle_attributes: Mapping[str, Scalar | None] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """What becomes of a signal.

    `run`: the run it is for; None when it gets a run of its own, whose id is yet to be made.
    `kind`: what goes into the inbox, if anything. A `wake` reserves the idle thread for its run.
    """

    action: Action
    kind: ItemKind | None
    run: str | None = None


def route(
    behaviour: Behaviour, active: Active | None, agent: str, *, queue: bool, transient: bool
) -> Route:
    """Decide; pure, and asked again by whoever loses the thread meanwhile (A4)."""
    if active is None:
        asked: str = "wake" if queue else behaviour.if_idle
    elif queue:
        return Route("deliver", "queue")
    else:
        asked = behaviour.if_active
    if asked == "discard" or (asked == "persist" and transient):
        return Route("discard", None)
    if asked == "persist":
        return Route("persist", "keep", run=active.run if active else None)
    if active is None:
        return Route("wake", "wake")
    if active.agent != agent:
        return Route("deliver", "queue")
    return Route("deliver", "deliver", run=active.run)
