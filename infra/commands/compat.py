"""`wakeline compat`: the real npm client against a server, case by case."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from infra.local.npm import InstallFailed, installed_client, missing_node
from infra.local.server import ServerFailed, dev_server

ROOT = Path(__file__).resolve().parents[2]
COMPAT = ROOT / "tests" / "compat"
APP = "tests.apps.scripted:app"

# The cases that pass so far, as parts of their names; `wakeline test` runs these.
PASSING = (
    "send ",
    "XML",
    "notification wakes",
    "reactive signal",
    "custom tagName",
    "legacy type",
    "state signal over /signals",
    "null attributes",
    "two subscribers",
    "a subscriber that joins in mid-run",
    "queued messages",
    "ifIdle ",
    "ifActive ",
    "reconnect",
    "abort ends",
    "memory:",
    "unknown agent",
    "another resource",
    "approval of an unknown",
)


def run(only: Sequence[str], base_url: str | None = None) -> int:
    """Run the cases whose names contain one of `only`, or all, and return 0 if all passed.

    Without `base_url` a server with the scripted agents is started, and stopped at the end.
    """
    reason = missing_node()
    if reason:
        print(f"wakeline compat: {reason}", file=sys.stderr)
        return 2
    try:
        client = installed_client(COMPAT / "package.json")
        with tempfile.TemporaryDirectory(dir=client, prefix="run-") as folder:
            # Node looks for packages beside and above a script: so the script goes to the client.
            script = Path(folder) / "conformance.mjs"
            shutil.copyfile(COMPAT / script.name, script)
            if base_url:
                return run_cases(script, base_url, only)
            with dev_server(APP, Path(folder) / "compat.db") as own_url:
                return run_cases(script, own_url, only)
    except (InstallFailed, ServerFailed) as error:
        print(f"wakeline compat: {error}", file=sys.stderr)
        return 1


def run_cases(script: Path, base_url: str, only: Sequence[str]) -> int:
    """Run the script once per part of a name and sum what it counted."""
    passed = failed = 0
    for part in only or [""]:
        counts = run_script(script, base_url, part)
        if sum(counts) == 0:
            print(f"FAIL no case has {part!r} in its name, or the script broke", flush=True)
            counts = (0, 1)
        passed, failed = passed + counts[0], failed + counts[1]
    print(f"compat: {passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


def run_script(script: Path, base_url: str, part: str) -> tuple[int, int]:
    """Run the cases with `part` in their names, show their lines, count passed and failed."""
    command = ["node", str(script), base_url, part]
    total = re.compile(r"(\d+) passed, (\d+) failed$")
    counts = (0, 0)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as node:
        for line in node.stdout or ():
            found = total.match(line)
            if found:
                counts = (int(found[1]), int(found[2]))
            else:
                print(line, end="", flush=True)
    if node.returncode and not counts[1]:
        counts = (counts[0], 1)  # it broke on the way
    return counts
