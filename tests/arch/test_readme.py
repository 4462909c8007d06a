"""What the README shows works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from shared import App

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_first_agent_is_ten_lines_and_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - it is ours
    assert isinstance(names["app"], App)
    assert names["get_weather"]("Rome") == "It is sunny in Rome."
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8")))
def test_every_link_leads_somewhere(path: str) -> None:
    assert (README.parent / path).exists()
