"""Functions over HTTP for tests: a server in this process that remembers what it is asked and answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any


@dataclass(frozen=True)
class Asked:
    """One request as it arrived, with the names of its headers as they were spelled."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body, which is an object."""
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value

    def header(self, name: str) -> str | None:
        """A header's value, or None."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass
class Answer:
    """What the server answers with. ``before`` runs first; ``cut`` announces more bytes than it sends."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[Asked], None] = lambda asked: None
    trickle: Callable[[], bool] | None = None
    cut: bool = False


class Functions:
    """The server's side: what requests are answered with, and those that came, in order."""

    def __init__(self, server: ThreadingHTTPServer, scheme: str = "http") -> None:
        self.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
        self._answers: dict[str, Answer] = {}
        self._asked: Queue[Asked] = Queue()

    def tell(self, status: int = 200, body: bytes = b"", **changes: Any) -> None:
        """Have every request answered so, and forget what came before."""
        self._answers = {"": Answer(status, body, **changes)}
        while not self._asked.empty():
            self._asked.get_nowait()

    def tell_below(self, path: str, answer: Answer) -> str:
        """Have requests to one path answered so; its address."""
        self._answers[path] = answer
        return self.url + path

    def next(self, seconds: float = 30) -> Asked:
        """The next request."""
        return self._asked.get(timeout=seconds)

    def none_came(self) -> bool:
        """Whether no request is left that nobody looked at."""
        return self._asked.empty()

    def take(self, asked: Asked) -> Answer:
        """Note a request; what to answer."""
        answer = self._answers.get(asked.path) or self._answers[""]
        self._asked.put(asked)
        answer.before(asked)
        return answer


class _Handler(BaseHTTPRequestHandler):
    functions: Functions

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.functions.take(Asked(self.path, tuple(self.headers.items()), body))
        try:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.trickle is None:
                self.send_header("Content-Length", str(len(answer.body) + (10 if answer.cut else 0)))
            self.end_headers()
            self.wfile.write(answer.body)
            while answer.trickle is not None and answer.trickle():
                self.wfile.write(b".")
                self.wfile.flush()
        except OSError:
            pass  # the caller has hung up

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # callers hang up here, in the middle of a handshake too


@contextmanager
def serving(tls: Any = None) -> Iterator[Functions]:
    """A server of functions on a free port, with TLS if a server's context is given."""
    handler = type("Handler", (_Handler,), {})
    with _Server(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        functions = Functions(server, "http" if tls is None else "https")
        handler.functions = functions
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield functions
        finally:
            server.shutdown()
            thread.join(10)
