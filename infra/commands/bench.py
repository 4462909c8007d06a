"""`wakeline bench`: the benchmark over HTTP, alone or in turns with the reference system."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from infra.local.npm import InstallFailed, installed_client, missing_node
from infra.local.server import free_port

ROOT = Path(__file__).resolve().parents[2]
COMPAT = ROOT / "tests" / "compat"
APP = "tests.apps.scripted:app"

NUMBER = re.compile(r"(?:p50 |all seen after |^)([\d.]+) (ms|MB|messages/s)")
MORE_IS_BETTER = "messages/s"
TOO_SLOW = 900
"""Seconds of one turn."""

Measures = dict[str, list[float]]


def run(parts: str, *, peer: bool, rounds: int) -> int:
    """Measure in turns and print the medians, with ratios to the peer when there is one."""
    reason = missing_node()
    if reason:
        print(f"wakeline bench: {reason}", file=sys.stderr)
        return 2
    try:
        client = installed_client(COMPAT / "package.json")
        commands = {"wakeline": own_command()}
        if peer:
            commands["peer"] = peer_command(installed_client(COMPAT / "peer" / "package.json"))
    except InstallFailed as error:
        print(f"wakeline bench: {error}", file=sys.stderr)
        return 1
    measured: dict[str, Measures] = {name: {} for name in commands}
    with tempfile.TemporaryDirectory(dir=client, prefix="bench-") as folder:
        script = Path(folder) / "bench.mjs"
        shutil.copyfile(COMPAT / script.name, script)
        for turn in range(rounds):
            for name, command in commands.items():
                print(f"-- {name}, turn {turn + 1} of {rounds}", flush=True)
                if not take_turn(script, command, parts, measured[name]):
                    return 1
    report(measured)
    return 0


def own_command() -> str:
    """The shell command that serves the scripted agents."""
    wakeline = Path(sys.executable).with_name("wakeline")
    return f"{sys.executable} {wakeline} dev --app {APP}"


def peer_command(packages: Path) -> str:
    """The shell command that serves the same agents with the reference system."""
    for name in ("server.mjs", "mock-model.mjs"):
        shutil.copyfile(COMPAT / "peer" / name, packages / name)
    return f"node {packages / 'server.mjs'}"


def take_turn(script: Path, command: str, parts: str, measures: Measures) -> bool:
    """Run the script once against a server that it starts; keep its first number of each line."""
    env = {**os.environ, "SERVER_CMD": command}
    url = f"http://127.0.0.1:{free_port()}"
    done = subprocess.run(
        ["node", str(script), url, parts],
        check=False, capture_output=True, text=True, env=env, cwd=ROOT, timeout=TOO_SLOW,
    )  # fmt: skip
    print(done.stdout, end="", flush=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return False
    for line in done.stdout.splitlines():
        name, _, value = line.partition(": ")
        found = NUMBER.search(value)
        if found:
            measures.setdefault(f"{name} [{found[2]}]", []).append(float(found[1]))
    return True


def report(measured: dict[str, Measures]) -> None:
    """Print the best value of each measure, and its ratio to the peer's."""
    print("-- best of all turns")
    for name, values in measured["wakeline"].items():
        choose = max if MORE_IS_BETTER in name else min
        own = choose(values)
        line = f"{name}: {own:g}"
        theirs = measured.get("peer", {}).get(name)
        if theirs:
            line += f", peer {choose(theirs):g}, ratio {own / choose(theirs):.2f}"
        print(line)
