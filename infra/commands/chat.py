"""`wakeline chat`: lines of text go to an agent, what its thread does is printed as it happens."""

import secrets
import sys
import threading

import httpx
from rich.console import Console

from infra.local.follow import Chunk, Follower, error_text
from infra.local.screen import Screen

CONNECT_LIMIT = 10.0
ENDS = ("finish", "error", "abort", "tool-call-approval", "tool-call-suspended")


class Refused(Exception):
    """The server said no, or is not there; the text tells it to a person."""


class Conversation:
    """One thread of one agent, seen from a terminal."""

    def __init__(self, url: str, agent: str, thread: str, resource: str, screen: Screen) -> None:
        self._api = httpx.Client(base_url=f"{url.rstrip('/')}/api", timeout=30)
        self._agent = agent
        self._target = {"threadId": thread, "resourceId": resource}
        self._screen = screen
        self._news = threading.Condition()
        self._ended: dict[str, str] = {}
        self._lost: str | None = None
        events = f"{self._api.base_url}threads/{thread}/events"
        self._follower = Follower(events, resource, self._on_chunk, self._on_end)

    def open(self) -> None:
        """Check that the agent is there and follow the thread.

        Raises:
            Refused: no server, no such agent, or the thread is somebody else's.
        """
        self._ask("GET", f"agents/{self._agent}")
        self._follower.start()
        if not self._follower.connected.wait(CONNECT_LIMIT):
            raise Refused(self._lost or "the thread's events cannot be read")

    def close(self) -> None:
        """Let go of the server."""
        self._follower.stop()
        self._api.close()

    def send(self, text: str) -> str:
        """Send a message and return the id of the run that takes it.

        Raises:
            Refused: the server did not accept it, or its events ended before.
        """
        if self._lost:
            raise Refused(self._lost)
        body = {"message": text, **self._target}
        answer = self._ask("POST", f"agents/{self._agent}/send-message", body)
        return str(answer.json()["runId"])

    def wait(self, run_id: str) -> str:
        """Wait until the run has ended or asks for a decision; return the type of that chunk.

        Raises:
            Refused: the events ended before.
        """
        with self._news:
            self._news.wait_for(lambda: run_id in self._ended or self._lost)
            if run_id in self._ended:
                return self._ended[run_id]
        raise Refused(self._lost or "")

    def _ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        try:
            response = self._api.request(method, path, json=body)
        except httpx.TransportError as error:
            where = str(self._api.base_url).removesuffix("/api/")
            raise Refused(f"no server answers at {where}; start one with `wakeline dev`") from error
        if response.is_success:
            return response
        raise Refused(error_text(response))

    def _on_chunk(self, chunk: Chunk) -> None:
        self._screen.show(chunk)
        if chunk.get("type") in ENDS:
            with self._news:
                self._ended[str(chunk.get("runId"))] = str(chunk["type"])
                self._news.notify_all()

    def _on_end(self, reason: str) -> None:
        with self._news:
            self._lost = reason
            self._news.notify_all()


def talk(agent: str, *, url: str, thread: str | None, resource: str) -> int:
    """Hold a conversation until the input ends; return the exit code.

    From a terminal, lines may be sent while a run goes on. From a pipe, each line waits for the
    end of the run before it, and an error makes the exit code 1.
    """
    console = Console(highlight=False)
    screen = Screen(console)
    thread = thread or f"chat-{secrets.token_hex(6)}"
    conversation = Conversation(url, agent, thread, resource, screen)
    try:
        conversation.open()
        if sys.stdin.isatty():
            screen.note(f"thread {thread} of {resource}; end with Ctrl-D")
            return from_terminal(conversation)
        return from_pipe(conversation)
    except Refused as error:
        Console(stderr=True).print(
            f"wakeline chat: {error}", style="red", markup=False, soft_wrap=True
        )
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        conversation.close()


def from_terminal(conversation: Conversation) -> int:
    """Send each line at once; answers come in between, printed by the follower."""
    while True:
        try:
            line = input()
        except EOFError:
            return 0
        if line.strip():
            conversation.send(line)


def from_pipe(conversation: Conversation) -> int:
    """Send each line of stdin when the run of the line before it has ended."""
    failed = False
    for line in sys.stdin:
        if line.strip():
            failed |= conversation.wait(conversation.send(line.rstrip("\n"))) == "error"
    return 1 if failed else 0
