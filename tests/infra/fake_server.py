"""A server with one scripted thread, for what talks to a server from outside."""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Chunk = dict[str, Any]


class FakeServer(ThreadingHTTPServer):
    """Answers a message with the chunks that it was given; `None` among them cuts the stream."""

    daemon_threads = True

    def __init__(self, *scripts: list[Chunk | None]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scripts = list(scripts)
        self.events: queue.Queue[tuple[str, Chunk] | None] = queue.Queue()
        self.cursors: list[str | None] = []
        self.messages: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def take(self, message: Any) -> str:
        self.messages.append(message)
        run = f"run-{len(self.messages)}"
        for n, chunk in enumerate(self.scripts.pop(0)):
            told = None if chunk is None else (f"{run}.{n}", {"runId": run, **chunk})
            self.events.put(told)
        return run


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        if "/events?" in self.path:
            self.stream()
        elif self.path == "/api/agents/echo":
            self.answer(200, {"id": "echo"})
        else:
            self.answer(404, {"error": "Agent with id nobody not found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        run = self.server.take(json.loads(body))
        self.answer(200, {"accepted": True, "runId": run})

    def stream(self) -> None:
        self.server.cursors.append(self.headers.get("last-event-id"))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"retry: 500\n\n: connected\n\n")
        while event := self.server.events.get():
            cursor, chunk = event
            self.wfile.write(f"id: {cursor}\ndata: {json.dumps(chunk)}\n\n".encode())

    def answer(self, status: int, body: Chunk) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


@contextmanager
def fake_server(*scripts: list[Chunk | None]) -> Iterator[FakeServer]:
    server = FakeServer(*scripts)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.events.put(None)
        server.shutdown()
        thread.join()
        server.server_close()
