"""Who may import whom: by the text of modules, and by what a process really loads."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.arch.tree import ROOT, modules, shown

# module of ours → what must not be loaded with it
NOT_LOADED = {
    "functions.api.app": ("openai", "pydantic_ai", "uvicorn", "typer"),
    "functions.worker": ("fastapi", "starlette", "typer"),
    "functions.github": ("openai", "pydantic_ai", "fastapi"),
    "functions.slack": ("openai", "pydantic_ai", "fastapi"),
    "infra.cli": ("boto3", "fastapi", "httpx", "pydantic", "uvicorn"),
    "shared": ("boto3", "fastapi", "pydantic", "pydantic_ai", "sqlite3"),
}


def imported(path: Path) -> Iterator[str]:
    """Yield the name of every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def top(name: str) -> str:
    return name.partition(".")[0]


def exists(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def loaded_with(name: str) -> set[str]:
    """Import a module in a fresh interpreter and return the names of all that came with it."""
    code = f"import sys, {name}; print(*sys.modules)"
    shell = [sys.executable, "-c", code]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("checker", [("lint-imports", "--no-cache"), ("deptry", ".")])
def test_layers_and_declared_packages_are_kept(checker: tuple[str, str]) -> None:
    name, option = checker
    command = [str(Path(sys.executable).with_name(name)), option]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_knows_pydantic_and_the_standard_library_only() -> None:
    allowed = {*sys.stdlib_module_names, "annotated_types", "pydantic", "pydantic_core", "shared"}
    found = {
        f"{shown(path)}: {name}"
        for path in modules("shared/core")
        for name in imported(path)
        if top(name) not in allowed
    }
    assert found == set()


def test_the_set_up_needs_the_standard_library_only() -> None:
    path = ROOT / "infra" / "__main__.py"
    assert {top(name) for name in imported(path)} <= sys.stdlib_module_names


def test_what_is_shipped_imports_no_tests() -> None:
    found = [
        shown(path)
        for path in modules("shared", "functions", "infra")
        if any(top(name) == "tests" for name in imported(path))
    ]
    assert found == []


@pytest.mark.parametrize("name", [name for name in NOT_LOADED if exists(name)])
def test_a_process_loads_no_more_than_it_needs(name: str) -> None:
    assert loaded_with(name).isdisjoint(NOT_LOADED[name])


def test_public_names_are_there_and_load_when_asked_for() -> None:
    ours = {name for name in loaded_with("shared") if name.startswith("shared.")}
    assert ours == set(), "`import shared` loads nothing but itself"
    code = "import shared; print([name for name in shared.__all__ if not hasattr(shared, name)])"
    shell = [sys.executable, "-c", f"{code}; assert shared.__all__"]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
