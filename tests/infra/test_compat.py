"""How `wakeline compat` and `wakeline test` count, with stand-ins for node and npm."""

import os
from pathlib import Path

import pytest

from infra.commands.compat import run_cases
from infra.commands.test import Outcome, compat_stage
from infra.local import npm

# Answers like the script: one line per case, the last line counts; `broken` dies on the way.
NODE = """#!/bin/sh
case "$3" in
  good) echo "ok one"; echo "ok two"; echo "2 passed, 0 failed";;
  bad) echo "ok one"; echo "FAIL two: why"; echo "1 passed, 1 failed"; exit 1;;
  broken) echo "ok one"; exit 7;;
  *) echo "0 passed, 0 failed";;
esac
"""
NPM = """#!/bin/sh
echo installed >> "$NPM_LOG"
mkdir node_modules
exit ${NPM_EXIT:-0}
"""


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a `node` and an `npm` of our own first on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("node", NODE), ("npm", NPM)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NPM_LOG", str(tmp_path / "npm.log"))
    return folder


@pytest.mark.parametrize(
    ("only", "code", "total"),
    [
        (["good"], 0, "2 passed, 0 failed"),
        (["good", "bad", "good"], 1, "5 passed, 1 failed"),
        (["good", "broken"], 1, "2 passed, 1 failed"),
        (["good", "no such case"], 1, "2 passed, 1 failed"),
    ],
)
def test_the_parts_are_summed(
    only: list[str], code: int, total: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_cases(Path("conformance.mjs"), "http://127.0.0.1:9", only) == code
    assert capfd.readouterr().out.splitlines()[-1] == f"compat: {total}"


def test_the_client_is_installed_once_for_the_same_packages(tmp_path: Path) -> None:
    wanted = tmp_path / "package.json"
    wanted.write_text("{}")
    first = npm.installed_client(wanted)
    assert (first / "node_modules").is_dir()
    assert npm.installed_client(wanted) == first
    assert (tmp_path / "npm.log").read_text() == "installed\n"
    wanted.write_text('{"name": "other"}')
    assert npm.installed_client(wanted) != first


def test_a_failed_install_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tmp_path / "package.json"
    wanted.write_text("{}")
    monkeypatch.setenv("NPM_EXIT", "1")
    with pytest.raises(npm.InstallFailed, match="exit code 1"):
        npm.installed_client(wanted)
    assert list(npm.cache_root().iterdir()) == []


def test_without_node_the_stage_is_skipped_and_on_ci_fails(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    assert compat_stage() == Outcome("skip", "node and npm are not installed")
    monkeypatch.setenv("CI", "true")
    assert compat_stage() == Outcome("FAIL", "node and npm are not installed")


def test_an_old_node_is_not_used(tools: Path) -> None:
    (tools / "node").write_text("#!/bin/sh\necho v18.19.0\n")
    assert npm.missing_node() == "Node 20 or newer is needed, this is 18.19.0"
