"""Stages for tests of the protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.protocol.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.apps.script import Turn


class MakeStage(Protocol):
    """Makes a stage whose agent plays these turns."""

    def __call__(self, *turns: Turn, **options: Any) -> Stage: ...


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[MakeStage]:
    made: list[Stage] = []

    def make(*turns: Turn, **options: Any) -> Stage:
        made.append(Stage(tmp_path / f"{len(made)}", *turns, **options))
        return made[-1]

    yield make
    for each in made:
        each.database.close()
