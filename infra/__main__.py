"""Make `.venv` with the pinned packages, then become the `wakeline` command inside it.

`python3 -m infra COMMAND …` needs nothing but Python 3.11 or newer: this module imports the
standard library only, and most of that when there is something to do. A start that finds the
set-up done reads a few small files and goes on. A set-up that was cut is made anew.
"""

import hashlib
import os
import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - an older one must get this line, no traceback
    sys.exit(f"wakeline: Python 3.11 or newer is needed, this is {sys.version.split()[0]}")

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / "wakeline-setup"
LOCK = ROOT / ".wakeline" / "setup.lock"
REQUIREMENTS = ROOT / "infra" / "requirements"
# What is installed for whom. `test` holds all of `run`, with the same versions.
PROFILES = {"run": ("build", "cli", "models"), "test": ("build", "test")}
PROJECT = ("shared", "functions", "infra")


def main() -> None:
    """Do the set-up that the command needs; then replace this process with `wakeline`."""
    args = sys.argv[1:]
    try:
        if args[:1] == ["setup"]:
            set_up()
            return
        changed = ensure("test" if args[:1] == ["test"] else "run")
    except KeyboardInterrupt:
        sys.exit(130)
    if sys.dont_write_bytecode and not changed:
        refresh_bytecode()
    os.execv(PYTHON, [str(PYTHON), str(VENV / "bin" / "wakeline"), *args])


def set_up() -> None:
    """Do the whole set-up, test tools too, and say how it went."""
    say("set-up done" if ensure("test") else "set-up is up to date")


def ensure(profile: str) -> bool:
    """Install what `profile` needs unless it is there; return whether anything was done."""
    if is_current(profile):
        return False
    check_machine()
    with SetupLock() as lock:
        if is_current(profile):  # another process was faster
            return False
        install(profile, lock)
    return True


def is_current(profile: str) -> bool:
    """Tell whether a finished set-up of this profile, or of the larger one, is there."""
    stamps = read_stamps()
    wanted = [profile] if profile == "test" else [profile, "test"]
    return any(stamps.get(name) == digest(name) for name in wanted) and os.access(PYTHON, os.X_OK)


def read_stamps() -> dict[str, str]:
    """Read what the last finished set-ups wrote: `home` and one digest per profile."""
    try:
        lines = STAMPS.read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in lines if "=" in line)


def home() -> str:
    """Name what a venv is bound to: its Python and its place."""
    return f"{sys.version_info.major}.{sys.version_info.minor} {VENV}"


def digest(profile: str) -> str:
    """Return a hash over all that decides what is installed."""
    found = hashlib.sha256(home().encode())
    files = [REQUIREMENTS / f"{name}.txt" for name in PROFILES[profile]]
    for path in [ROOT / "pyproject.toml", *files]:
        found.update(path.read_bytes())
    return found.hexdigest()


def check_machine() -> None:
    """Stop with one clear line where no set-up is possible."""
    from importlib.util import find_spec

    if not (ROOT / "pyproject.toml").is_file():
        sys.exit("wakeline: `python3 -m infra` is for a checkout of the project; use `wakeline`")
    if not (find_spec("venv") and find_spec("ensurepip")):
        hint = "on Debian and Ubuntu: apt install python3-venv"
        sys.exit(f"wakeline: this Python has no venv module ({hint})")


class SetupLock:
    """One set-up at a time in this tree; the others wait."""

    def __enter__(self) -> int:
        """Take the lock and return its file descriptor."""
        import fcntl

        LOCK.parent.mkdir(exist_ok=True)
        self.fd = os.open(LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is running; waiting for it")
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        return self.fd

    def __exit__(self, *_: object) -> None:
        """Let the lock go."""
        os.close(self.fd)


def install(profile: str, lock: int) -> None:
    """Bring `.venv` to what `profile` needs, in place where it is sound, else from nothing."""
    stamps = read_stamps()
    sound = stamps.get("home") == home() and os.access(PYTHON, os.X_OK)
    # Without stamps a .venv is not sound: who is killed from here on leaves one to be made anew.
    STAMPS.unlink(missing_ok=True)
    if not sound:
        make_venv(lock)
    try:
        install_packages(profile, lock)
    except StepFailed:
        write_stamps({"home": home()})  # not cut, only refused: the next try need not start over
        raise
    others = [name for name in PROFILES if sound and stamps.get(name) == digest(name)]
    write_stamps({"home": home(), **{name: digest(name) for name in [*others, profile]}})


def make_venv(lock: int) -> None:
    """Make an empty `.venv`, in place of a broken, moved or half-made one."""
    import shutil

    if VENV.exists():
        say("removing a .venv that is incomplete or of another Python or place")
        shutil.rmtree(VENV)
    say(f"making .venv with Python {sys.version.split()[0]}")
    # The base interpreter: this may be the Python of the very .venv that was removed.
    base = getattr(sys, "_base_executable", None) or sys.executable
    run([base, "-m", "venv", "--prompt", "wakeline", str(VENV)], lock)


def install_packages(profile: str, lock: int) -> None:
    """Install the pinned packages and this project, and compile all of it."""
    files = [REQUIREMENTS / f"{name}.txt" for name in PROFILES[profile]]
    # The files are complete: nothing to resolve. Bytecode is made at the end, in parallel.
    pip = [str(PYTHON), "-m", "pip", "install", "-qq", "--no-deps", "--no-compile"]
    say(f"installing pinned packages ({', '.join(path.name for path in files)})")
    run([*pip, *(f"-r{path}" for path in files)], lock)
    say("installing wakeline itself (editable)")
    # `compat` puts the tree on the path by a .pth file: quicker at each start than an import hook.
    mode = ["--no-build-isolation", "--config-settings", "editable_mode=compat"]
    run([*pip, *mode, "-e", str(ROOT)], lock)
    say("compiling bytecode")
    trees = [str(VENV / "lib"), *(str(ROOT / name) for name in PROJECT)]
    # Some packages hold files that are not meant to compile: a failure here tells nothing.
    run([str(PYTHON), "-m", "compileall", "-qq", "-j0", *trees], lock, must=False)


class StepFailed(SystemExit):
    """A step of the set-up said no; the text is shown and the process ends."""


def run(command: list[str], lock: int, *, must: bool = True) -> None:
    """Run a step of the set-up.

    The child holds the lock, too: where only its parent is killed, nobody touches `.venv` before
    the child has ended.

    Raises:
        StepFailed: the command failed, and it `must` not.
    """
    import subprocess

    done = subprocess.run(command, check=False, pass_fds=[lock], stdin=subprocess.DEVNULL)
    if done.returncode and must:
        step = " ".join(command[1:4])
        raise StepFailed(f"wakeline: set-up failed in `{step} …` (exit code {done.returncode})")


def write_stamps(stamps: dict[str, str]) -> None:
    """Write the stamps whole or not at all."""
    part = STAMPS.with_suffix(".part")
    part.write_text("".join(f"{key}={value}\n" for key, value in stamps.items()))
    part.replace(STAMPS)


def refresh_bytecode() -> None:
    """Compile project files that changed, where Python was told not to do so itself."""
    import compileall

    for name in PROJECT:
        compileall.compile_dir(ROOT / name, quiet=2)


def say(text: str) -> None:
    """Print one line about what is being done; stdout stays the command's own."""
    print(f"wakeline: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
