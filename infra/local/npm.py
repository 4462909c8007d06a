"""The npm client that the conformance script drives: installed once, outside the tree."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NODE_MAJOR = 20
INSTALL = (
    "npm install --legacy-peer-deps --ignore-scripts --no-package-lock --no-audit --no-fund "
    "--loglevel=error"
)


class InstallFailed(Exception):
    """npm did not install the client; its own output says why."""


def missing_node() -> str | None:
    """Return why Node cannot be used here, or None where it can."""
    if not (shutil.which("node") and shutil.which("npm")):
        return "node and npm are not installed"
    shown = subprocess.run(["node", "--version"], check=False, capture_output=True, text=True)
    version = shown.stdout.strip().removeprefix("v")
    major = version.split(".")[0]
    if not (major.isdigit() and int(major) >= NODE_MAJOR):
        return f"Node {NODE_MAJOR} or newer is needed, this is {version or 'broken'}"
    return None


def cache_root() -> Path:
    """Return the folder where wakeline keeps what can be made again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wakeline"


def installed_client(package_json: Path) -> Path:
    """Return a folder whose `node_modules` holds what `package_json` asks for.

    The folder is named after the file's content and appears whole or not at all, so that several
    processes and checkouts can share it.

    Raises:
        InstallFailed: npm failed.
    """
    content = package_json.read_bytes()
    name = package_json.parent.name
    target = cache_root() / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    if target.is_dir():
        return target
    print(f"installing npm packages once, into {target}", file=sys.stderr, flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.") as parent:
        part = Path(parent) / "client"
        part.mkdir()
        (part / "package.json").write_bytes(content)
        done = subprocess.run(INSTALL.split(), check=False, cwd=part, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise InstallFailed(f"`{INSTALL}` failed with exit code {done.returncode}")
        try:
            part.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster
                raise
    return target
