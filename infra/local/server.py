"""A `wakeline dev` server as a child process, for commands and tests that need one."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

START_LIMIT = 30.0
STOP_LIMIT = 5.0
# `fetch` in Node refuses some ports; the highest of them is this one.
LAST_BLOCKED_PORT = 10080
# Set by whoever runs us for a server of their own; never meant for this one.
NOT_INHERITED = ("PORT", "DB_FILE", "WAKELINE_APP")


class ServerFailed(Exception):
    """The server did not come up."""


def free_port() -> int:
    """Return a port that is free now and that `fetch` accepts."""
    while True:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = int(found.getsockname()[1])
        if port > LAST_BLOCKED_PORT:
            return port


@contextlib.contextmanager
def dev_server(app: str, db: Path, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run `wakeline dev` for `app` and give its base URL once it answers; stop it at the end.

    Raises:
        ServerFailed: it ended, or gave no answer in time.
    """
    port = free_port()
    wakeline = str(Path(sys.executable).with_name("wakeline"))
    options = ["dev", "--app", app, "--port", str(port), "--db", str(db)]
    inherited = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
    child = subprocess.Popen(
        [sys.executable, wakeline, *options],
        env={**inherited, **(env or {})},
        cwd=Path(__file__).resolve().parents[2],
        stdin=subprocess.DEVNULL,
    )
    base_url = f"http://127.0.0.1:{port}"
    try:
        wait_until_up(base_url, child)
        yield base_url
    finally:
        stop(child)


def wait_until_up(base_url: str, child: subprocess.Popen[bytes]) -> None:
    """Return when the server lists its agents.

    Raises:
        ServerFailed: the child ended, or START_LIMIT passed.
    """
    import httpx

    limit = time.monotonic() + START_LIMIT
    while time.monotonic() < limit:
        if child.poll() is not None:
            raise ServerFailed(f"the server ended with exit code {child.returncode}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{base_url}/api/agents", timeout=5).is_success:
                return
        time.sleep(0.05)
    raise ServerFailed(f"no answer from {base_url}/api/agents within {START_LIMIT:.0f} s")


def stop(child: subprocess.Popen[bytes]) -> None:
    """Ask the child to end; kill it where it does not."""
    child.terminate()
    try:
        child.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
