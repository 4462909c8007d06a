"""The shape of the tree: sizes, and nothing of the machine that it was written on."""

import re
from pathlib import Path

from tests.arch.tree import ROOT, files, modules, shown

LONGEST_MODULE = 400
LONGEST_ROUTER = 250
LONGEST_ENTRY = 60
NOT_ENTRIES = {"agents.py"}  # what a user edits first


def too_long(paths: list[Path], limit: int) -> list[str]:
    sizes = {path: len(path.read_text().splitlines()) for path in paths}
    return [f"{shown(path)}: {lines} lines" for path, lines in sizes.items() if lines > limit]


def test_no_module_is_too_long_to_be_read() -> None:
    assert too_long(modules("shared", "functions", "infra"), LONGEST_MODULE) == []


def test_routers_are_short() -> None:
    assert too_long(modules("functions/api"), LONGEST_ROUTER) == []


def test_entries_are_thin() -> None:
    entries = [path for path in modules("functions") if path.parent == ROOT / "functions"]
    assert too_long([path for path in entries if path.name not in NOT_ENTRIES], LONGEST_ENTRY) == []


def test_no_file_names_a_path_of_this_machine() -> None:
    places = {str(ROOT), str(Path.home())} - {"/"}
    here = "|".join(re.escape(place) for place in sorted(places))
    path_of_machine = re.compile(rf"(?<![\w.])(?:(?:{here})\b|/(?:home|Users)/\w+/)")
    found = []
    for path in files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found += [f"{shown(path)}: {match[0]}" for match in path_of_machine.finditer(text)]
    assert found == []


def test_no_requirement_names_an_index_or_a_file() -> None:
    pin = re.compile(r"[a-z0-9.-]+==\S+( ; .+)?")
    for path in (ROOT / "infra" / "requirements").glob("*.txt"):
        lines = path.read_text().splitlines()
        assert lines
        assert [line for line in lines if not pin.fullmatch(line)] == [], shown(path)
