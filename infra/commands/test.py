"""`wakeline test`: every check, one after the other, and a summary."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
NO_TESTS = 5  # pytest's exit code where nothing was collected


class Outcome(NamedTuple):
    """What became of a stage: `ok`, `FAIL`, or `skip` with the reason."""

    state: str
    note: str = ""


def run_all() -> int:
    """Run all stages, print one line for each, and return 0 if none failed."""
    stages: dict[str, Callable[[], Outcome]] = {
        "ruff check": lambda: tool("ruff", "check", "."),
        "ruff format": lambda: tool("ruff", "format", "--check", "."),
        "mypy": lambda: tool("mypy"),
        "imports": lambda: tool("lint-imports"),
        "pytest": lambda: pytest_stage("-n", "2", "-m", "not alone"),
        "pytest alone": lambda: pytest_stage("-m", "alone"),
        "compat": compat_stage,
    }
    lines, failed = [], 0
    for name, stage in stages.items():
        print(f"\n=== {name}", flush=True)
        began = time.monotonic()
        outcome = stage()
        seconds = time.monotonic() - began
        failed += outcome.state == "FAIL"
        lines.append(f"{outcome.state:<5} {name:<13} {seconds:6.1f} s  {outcome.note}".rstrip())
    print("\n=== summary", *lines, sep="\n", flush=True)
    return 1 if failed else 0


def run_pytest(args: list[str]) -> int:
    """Run pytest with these arguments, in the project's folder, and return its exit code."""
    return subprocess.run([tool_path("pytest"), *args], check=False, cwd=ROOT).returncode


def pytest_stage(*args: str) -> Outcome:
    """Run pytest; that a marker selects no test is no failure."""
    code = run_pytest(list(args))
    if code == NO_TESTS:
        return Outcome("ok", "no tests")
    return Outcome("FAIL" if code else "ok")


def tool(name: str, *args: str) -> Outcome:
    """Run a checker of the venv on the project."""
    code = subprocess.run([tool_path(name), *args], check=False, cwd=ROOT).returncode
    return Outcome("FAIL" if code else "ok")


def tool_path(name: str) -> str:
    """Return the path of a test tool, or end with the line that says how to get it."""
    path = BIN / name
    if not path.exists():
        sys.exit(f"wakeline test: {name} is not installed; run `python3 -m infra setup` first")
    return str(path)


def compat_stage() -> Outcome:
    """Run the npm client's cases that must pass; without Node: a skip, on CI a failure."""
    from infra.commands.compat import PASSING, run
    from infra.local.npm import missing_node

    reason = missing_node()
    if reason:
        return Outcome("FAIL" if os.environ.get("CI") else "skip", reason)
    return Outcome("FAIL" if run(PASSING) else "ok")
