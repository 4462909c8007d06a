"""The dev server's start and end, with a system that only notes what it is told."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import httpx
import pytest

from infra.local import server
from infra.local.dev import CannotStart, DevOptions, load_app, run

ROOT = Path(__file__).resolve().parents[2]
# A server whose `stop` takes longer than it may, with a stream that ends when its client is gone,
# or not even then.
PROGRAM = textwrap.dedent("""
    import asyncio
    from infra.local.serve import bind, serve

    class System:
        async def start(self):
            print("start", flush=True)

        def drain(self):
            print("drain", flush=True)

        async def stop(self):
            print("stop", flush=True)
            await asyncio.sleep(60)

    async def asgi(scope, receive, send):
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first ", "more_body": True})
        while STUCK or (await receive())["type"] != "http.disconnect":
            await asyncio.sleep(0.01)

    listener = bind("127.0.0.1", 0)
    serve(asgi, System(), listener, lambda: print(listener.getsockname()[1], flush=True))
""")


def stream_until_sigterm(stuck: bool) -> tuple[list[str], str, float]:
    """Return what the system was told, what a reader got, and how long the end took."""
    shell = [sys.executable, "-c", PROGRAM.replace("STUCK", str(stuck))]
    with subprocess.Popen(shell, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        told = [child.stdout.readline().strip()]
        port = child.stdout.readline().strip()
        body, began = "", time.monotonic()
        try:
            with httpx.stream("GET", f"http://127.0.0.1:{port}/", timeout=10) as response:
                for part in response.iter_text():
                    body += part
                    if body == "first ":
                        began = time.monotonic()
                        child.send_signal(signal.SIGTERM)
        except httpx.RemoteProtocolError:
            body += "(cut)"
        child.wait(10)
        took = time.monotonic() - began
        return told + child.stdout.read().split(), body, took


@pytest.mark.alone
def test_sigterm_ends_streams_and_gives_up_on_a_slow_stop_within_two_seconds() -> None:
    told, body, took = stream_until_sigterm(stuck=False)
    assert told == ["start", "drain", "stop"]
    assert body == "first "
    assert took < 2


@pytest.mark.alone
def test_sigterm_cuts_a_stream_that_does_not_end() -> None:
    told, body, took = stream_until_sigterm(stuck=True)
    assert told == ["start", "drain", "stop"]
    assert body == "first (cut)"
    assert took < 2


def test_a_taken_port_is_told_before_anything_is_built(tmp_path: Path) -> None:
    taken = server.free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", str(taken), "--bind", "127.0.0.1"],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={"PYTHONUNBUFFERED": "1"},
    ) as other:
        assert other.stdout
        other.stdout.readline()
        options = DevOptions("no_such:app", "127.0.0.1", taken, tmp_path / "dev.db")
        with pytest.raises(CannotStart, match=f"cannot listen on 127.0.0.1:{taken}"):
            run(options)
        other.terminate()


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("no_such:app", "there is no module 'no_such'"),
        ("infra.no_such:app", "there is no module 'infra.no_such'"),
        ("infra.cli:app", "infra.cli has no App named 'app'"),
    ],
)
def test_a_missing_app_is_one_line(spec: str, why: str) -> None:
    with pytest.raises(CannotStart, match=why):
        load_app(spec)


def test_free_ports_are_those_that_fetch_accepts() -> None:
    assert server.free_port() > server.LAST_BLOCKED_PORT
