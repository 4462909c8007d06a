"""What an owner takes from the inbox next (`docs/protocols.md` B3, B5, E1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic_core import to_json

from shared.core.limits import DRAIN_BYTES, DRAIN_ITEMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shared.core.records import InboxItem


@dataclass(frozen=True, slots=True)
class Waiting:
    """An inbox item where it is stored: its sort key and version.

    `broken`: its signal cannot be read by this version.
    """

    sort: str
    version: int
    item: InboxItem
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Discard:
    """What comes to nothing: cancels of runs that are over, signals that cannot be read."""

    items: Sequence[Waiting]
    state: Literal["discarded", "failed"]


@dataclass(frozen=True, slots=True)
class Keep:
    """A signal to store without a run (A7)."""

    item: Waiting


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Signals that a run did not see before it ended: a run of their own, as `run` was."""

    run: str
    items: Sequence[Waiting]


@dataclass(frozen=True, slots=True)
class Owned:
    """The oldest item that owns a run, with what already waits for that run.

    `more`: the run's inbox holds more than one start takes, or a cancel.
    """

    owner: Waiting
    items: Sequence[Waiting]
    more: bool = False


Choice = Discard | Keep | Leftovers | Owned


def next_start(waiting: Sequence[Waiting], owned: frozenset[str]) -> Choice | None:
    """Choose what to start in a thread without a live run.

    `waiting` is in inbox order. `owned`: the runs that some inbox item still owns; any other run
    that an item names is over.
    """
    stale = [w for w in waiting if w.item.kind == "cancel" and w.item.run not in owned]
    if stale:
        return Discard(stale[:DRAIN_ITEMS], "discarded")
    broken = [w for w in waiting if w.broken and w.item.kind in ("deliver", "keep")]
    if broken:
        return Discard(broken[:DRAIN_ITEMS], "failed")
    for each in waiting:
        if each.item.kind == "keep":
            return Keep(each)
    delivered = [w for w in waiting if w.item.kind == "deliver" and not w.broken]
    over = [w for w in delivered if w.item.run not in owned and not _is_behind(w, waiting)]
    if over:
        run = over[0].item.run
        return Leftovers(run, fitting(w for w in over if w.item.run == run))
    owner = next((w for w in waiting if w.item.kind in ("wake", "queue")), None)
    if owner is None:
        return None
    others = [w for w in waiting if w is not owner]
    mine = [w for w in delivered if _joins(w, owner, owned) and not _is_behind(w, others)]
    items = fitting([owner, *mine])
    stopped = any(w.item.kind == "cancel" and w.item.run == owner.item.run for w in waiting)
    return Owned(owner, items, more=stopped or len(items) <= len(mine))


@dataclass(frozen=True, slots=True)
class Taken:
    """What a drain found for a running run, and who runs next if it finishes now."""

    cancels: Sequence[Waiting] = ()
    signals: Sequence[Waiting] = ()
    notes: Sequence[Waiting] = ()
    heir: Waiting | None = None
    more: bool = False


def drain(
    waiting: Sequence[Waiting], run: str, agent: str, waiting_runs: frozenset[str], *, takes: bool
) -> Taken:
    """Choose what a running run takes: what names it, or a run of the same agent that is over.

    Never what names a run that has yet to start (`waiting_runs`), nor what came after a message
    that waits for such a run. Notes go first, in a commit of their own. Without `takes`, it only
    sees cancels, and who runs next.
    """
    here = [w for w in waiting if w.item.run == run or w.item.run not in waiting_runs]
    cancels = [w for w in here if w.item.kind == "cancel"][:DRAIN_ITEMS]
    heir = next((w for w in waiting if w.item.kind in ("wake", "queue")), None)
    if not takes:
        return Taken(cancels, heir=heir)
    mine = [w for w in here if w.item.agent == agent and not w.broken]
    notes = fitting(w for w in mine if w.item.kind == "keep")
    signals = [w for w in mine if w.item.kind == "deliver" and not _is_behind(w, waiting)]
    taken = fitting(signals)
    return Taken(cancels, taken, notes, heir, more=len(taken) < len(signals))


def _joins(each: Waiting, owner: Waiting, owned: frozenset[str]) -> bool:
    """Tell whether a signal can enter an owner's run: it is for it, or for one that is over."""
    if each.item.run == owner.item.run:
        return True
    return each.item.run not in owned and each.item.agent == owner.item.agent


def _is_behind(each: Waiting, waiting: Sequence[Waiting]) -> bool:
    """Tell whether a signal came after one to the same agent that waits for a run of its own.

    It must not overtake that one, which its sender was told is the next to be seen.
    """
    wakes = (w for w in waiting if w.item.kind == "wake" and w.item.agent == each.item.agent)
    return any(_age(wake) < _age(each) for wake in wakes)


def _age(each: Waiting) -> str:
    """The part of the sort key that grows with time."""
    return each.sort.split("#", 2)[2]


def fitting(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Take from the front what fits into one commit; a larger single item goes alone (E1)."""
    taken: list[Waiting] = []
    size = 0
    for each in waiting:
        size += len(to_json(each.item.signal))
        if taken and (len(taken) == DRAIN_ITEMS or size > DRAIN_BYTES):
            break
        taken.append(each)
    return taken
