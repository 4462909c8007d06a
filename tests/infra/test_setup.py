"""When `python3 -m infra` sets up anew, in place, or not at all. The steps themselves are faked."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra import __main__ as infra


class FakeTree:
    """A checkout in a folder, and a list of the steps that a set-up took in it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.refused = ""
        self.root = root
        self.requirements = root / "infra" / "requirements"
        self.requirements.mkdir(parents=True)
        (root / "pyproject.toml").write_text("[project]")
        for name in ("build", "cli", "models", "test"):
            (self.requirements / f"{name}.txt").write_text("a==1\n")
        venv = root / ".venv"
        for name, value in {
            "ROOT": root,
            "VENV": venv,
            "PYTHON": venv / "bin" / "python",
            "STAMPS": venv / "wakeline-setup",
            "LOCK": root / ".wakeline" / "setup.lock",
            "REQUIREMENTS": self.requirements,
            "run": self.run,
        }.items():
            monkeypatch.setattr(infra, name, value)

    def run(self, command: list[str], lock: int, *, must: bool = True) -> None:
        step = "editable" if "-e" in command else command[2]
        self.steps.append(step)
        if step == self.refused:
            raise infra.StepFailed("no")
        if step == "venv":
            (self.root / ".venv" / "bin").mkdir(parents=True)
            infra.PYTHON.symlink_to(sys.executable)

    def set_up(self, profile: str) -> list[str]:
        """Set up and return the steps that were taken."""
        self.steps.clear()
        assert infra.ensure(profile) == bool(self.steps)
        return list(self.steps)


WHOLE = ["venv", "pip", "editable", "compileall"]
IN_PLACE = WHOLE[1:]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTree:
    return FakeTree(tmp_path, monkeypatch)


def test_a_second_start_does_nothing(tree: FakeTree) -> None:
    assert tree.set_up("run") == WHOLE
    assert tree.set_up("run") == []


def test_the_test_tools_are_added_and_hold_all_of_the_rest(tree: FakeTree) -> None:
    tree.set_up("run")
    assert tree.set_up("test") == IN_PLACE
    assert tree.set_up("run") == []


def test_the_larger_set_up_serves_for_both(tree: FakeTree) -> None:
    tree.set_up("test")
    assert tree.set_up("run") == []


@pytest.mark.parametrize("name", ["pyproject.toml", "infra/requirements/test.txt"])
def test_what_changed_is_installed_in_place(tree: FakeTree, name: str) -> None:
    tree.set_up("test")
    (tree.root / name).write_text("b==2\n")
    assert tree.set_up("test") == IN_PLACE
    assert tree.set_up("test") == []


def test_a_change_that_is_taken_back_is_installed_again(tree: FakeTree) -> None:
    pins = [tree.requirements / "cli.txt", tree.requirements / "test.txt"]
    tree.set_up("test")
    for path in pins:
        path.write_text("b==2\n")
    tree.set_up("run")
    for path in pins:
        path.write_text("a==1\n")
    assert tree.set_up("test") == IN_PLACE


def test_a_cut_set_up_starts_from_nothing(tree: FakeTree) -> None:
    tree.set_up("run")
    infra.STAMPS.unlink()  # the first thing that an install does
    (tree.root / ".venv" / "half").touch()
    assert tree.set_up("run") == WHOLE
    assert not (tree.root / ".venv" / "half").exists()


def test_a_refused_step_is_tried_again_in_place(tree: FakeTree) -> None:
    tree.refused = "pip"
    with pytest.raises(infra.StepFailed):
        infra.ensure("run")
    tree.refused = ""
    assert tree.set_up("run") == IN_PLACE


def test_a_venv_of_another_python_or_place_is_made_anew(tree: FakeTree) -> None:
    tree.set_up("run")
    text = infra.STAMPS.read_text()
    infra.STAMPS.write_text(text.replace("home=3.", "home=2."))
    (tree.requirements / "cli.txt").write_text("b==2\n")
    assert tree.set_up("run") == WHOLE


def test_a_venv_whose_python_is_gone_is_made_anew(tree: FakeTree) -> None:
    tree.set_up("run")
    infra.PYTHON.unlink()
    infra.PYTHON.symlink_to(tree.root / "gone")
    assert tree.set_up("run") == WHOLE


def test_a_second_process_waits_for_the_first(
    tree: FakeTree, capfd: pytest.CaptureFixture[str]
) -> None:
    holder = (
        "import fcntl, sys; lock = open(sys.argv[1], 'a'); fcntl.flock(lock, fcntl.LOCK_EX);"
        "print(); sys.stdin.read()"
    )
    infra.LOCK.parent.mkdir()
    shell = [sys.executable, "-c", holder, str(infra.LOCK)]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin
        assert other.stdout
        other.stdout.readline()
        code = (
            "import pathlib, sys; from infra import __main__ as infra;"
            "infra.LOCK = pathlib.Path(sys.argv[1])\nwith infra.SetupLock(): print('mine')"
        )
        waiting = [sys.executable, "-c", code, str(infra.LOCK)]
        with subprocess.Popen(
            waiting, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as second:
            assert second.stderr
            assert second.stdout
            assert second.stderr.readline() == (
                "wakeline: another set-up is running; waiting for it\n"
            )
            other.stdin.close()
            assert second.stdout.read() == "mine\n"
