"""Where a worker says how it does: ``/healthz`` and ``/readyz`` (contract: runtime/shutdown-health section 3).

One thread serves any number of connections, each of which has five seconds for one request; a second thread asks the
database, since that may never answer, and nobody is kept waiting for it longer than two seconds. Nothing is written,
and nothing is done while nobody asks.

With ``--processes`` the supervisor listens at the address, asks each child over a socket in the file system, and is
ready if all of them are.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http
import json
import os
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from awa_django.errors import ConfigurationError
from awa_django.schema import VERSION
from awa_django.sql import statement
from awa_django.worker.instance import Numbers
from awa_django.worker.service import Service

__all__ = [
    "HealthListener",
    "Look",
    "readiness_of_children",
    "readiness_of_worker",
    "tcp_socket",
    "unix_socket",
]

#: Bytes of a request's head, and seconds for a connection from beginning to end.
MAX_HEAD_BYTES = 4096
CONNECTION_SECONDS = 5.0
#: Connections at once. For one more the oldest is closed: a probe is served at once, and whoever is held up is not one.
MAX_CONNECTIONS = 100
#: How long an answer of the database serves everybody, and how long one is waited for.
FRESH_SECONDS = 1.0
LOOK_SECONDS = 2.0
#: Seconds for the answer of a child, which waits for its database.
CHILD_SECONDS = 3.0

#: What is said of a worker, each key of the contract in its order.
Readiness = dict[str, Any]
_EMPTY_LINE = re.compile(rb"\r?\n\r?\n")
_ALIVE = ("poll_loop_alive", "heartbeat_alive", "maintenance_alive")


# -- sockets --------------------------------------------------------------------------------------------------------


def tcp_socket(address: str) -> socket.socket:
    """A socket that listens at ``HOST:PORT``; an empty host, or ``0.0.0.0``, is any interface. IPv6 in brackets.

    Raises ``ConfigurationError`` for an address that is none, or where nothing can listen.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigurationError(f"health address {address!r}: HOST:PORT is needed, such as 0.0.0.0:8080")
    host = host.removeprefix("[").removesuffix("]") or "0.0.0.0"
    try:
        (family, *_, where), *_ = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        both = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(where, family=family, backlog=MAX_CONNECTIONS, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"health address {address!r}: something else listens there; choose another port with --health-addr"
            ) from error
        raise ConfigurationError(
            f"health address {address!r}: cannot listen there: {error.strerror or error}"
        ) from error


def unix_socket(path: Path) -> socket.socket:
    """A socket that listens at a path, in place of one that is left from before."""
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(os.fspath(path))
    made.listen(MAX_CONNECTIONS)
    return made


# -- what is answered -----------------------------------------------------------------------------------------------


class Look(Service):
    """Asks the database for the version of its schema whenever somebody wants to know, at most once a second.

    ``version`` waits two seconds at most: None is no answer by then, 0 a database without the schema.
    ``open_session`` is what opens a session of the worker's.
    """

    def __init__(self, open_session: Callable[[], psycopg.Connection[Any]]) -> None:
        super().__init__("health look")
        self._open = open_session
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._last: tuple[float, Future[int | None]] | None = None

    async def version(self) -> int | None:
        """The version of the database's schema."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await asyncio.shield(asyncio.wrap_future(self._answer()))
        except TimeoutError:
            return None

    def _answer(self) -> Future[int | None]:
        """The answer that is fresh, or on its way."""
        with self._lock:
            if self._last is not None:
                at, answer = self._last
                if not answer.done() or time.monotonic() - at < FRESH_SECONDS:
                    return answer
            self._last = time.monotonic(), Future()
            self._wanted.set()
            return self._last[1]

    def stop(self) -> None:
        super().stop()
        self._wanted.set()

    def run(self) -> None:
        self.alive = True
        session: psycopg.Connection[Any] | None = None
        try:
            while self._wanted.wait() and not self.stopping.is_set():
                self._wanted.clear()
                version = None
                try:
                    session = session or self._open()
                    version = _version(session)
                except (psycopg.Error, OSError):
                    # The services that lost it say so in the log; whoever asks next has it tried again.
                    if session is not None:
                        session.close()
                    session = None
                finally:
                    self._tell(version)
        finally:
            if session is not None:
                session.close()

    def _tell(self, version: int | None) -> None:
        with self._lock:
            assert self._last is not None
            answer = self._last[1]
            # Fresh from when it was answered, not from when it was asked.
            self._last = time.monotonic(), answer
            answer.set_result(version)


def _version(session: psycopg.Connection[Any]) -> int:
    try:
        row = session.execute(statement("schema", "greatest_version")).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
        return 0
    return 0 if row is None else row[0] or 0


def readiness_of_worker(numbers: Callable[[], Numbers], look: Look) -> Callable[[], Awaitable[Readiness]]:
    """What asks how one worker does: ready if it is healthy and the schema is as new as it needs."""

    async def ask() -> Readiness:
        version = await look.version()
        now = numbers()
        return _readiness(
            connected=version is not None,
            version=version or None,
            flags={name: getattr(now, name) for name in (*_ALIVE, "shutting_down", "leader")},
        )

    return ask


def _readiness(*, connected: bool, version: int | None, flags: Mapping[str, bool]) -> Readiness:
    compatible = version is not None and version >= VERSION
    healthy = connected and all(flags[name] for name in _ALIVE) and not flags["shutting_down"]
    return {
        "ready": healthy and compatible,
        "postgres_connected": connected,
        "schema_version": version,
        "expected_schema_version": VERSION,
        "schema_compatible": compatible,
        **{name: flags[name] for name in (*_ALIVE, "shutting_down", "leader")},
    }


def readiness_of_children(paths: Sequence[Path]) -> Callable[[], Awaitable[Readiness]]:
    """What asks the children of a supervisor over their sockets: ready if all of them are.

    Something is alive if it is in all of them; the supervisor leads if one of them does, and is shutting down with the
    first. ``processes`` says how many there should be, ``processes_ready`` how many are ready.
    """

    async def ask() -> Readiness:
        answers = await asyncio.gather(*map(_of_child, paths))
        versions = [answer["schema_version"] for answer in answers if answer.get("schema_version")]
        readiness = _readiness(
            connected=all(answer.get("postgres_connected", False) for answer in answers),
            version=min(versions, default=None),
            flags={
                **{name: all(answer.get(name, False) for answer in answers) for name in _ALIVE},
                **{
                    name: any(answer.get(name, False) for answer in answers)
                    for name in ("shutting_down", "leader")
                },
            },
        )
        ready = sum(answer.get("ready", False) for answer in answers)
        return {
            **readiness,
            "ready": ready == len(paths),
            "processes": len(paths),
            "processes_ready": ready,
        }

    return ask


async def _of_child(path: Path) -> Readiness:
    """What a child says of itself; nothing if it does not answer, being dead, or not started yet."""
    try:
        async with asyncio.timeout(CHILD_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
                answer = await reader.read()
            finally:
                writer.close()
        found = json.loads(answer.partition(b"\r\n\r\n")[2])
    except (OSError, TimeoutError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# -- the listener ---------------------------------------------------------------------------------------------------


class HealthListener(Service):
    """Answers at a socket that listens already; ``ready`` is asked for each ``/readyz``.

    ``stop`` closes the socket and what is connected.
    """

    def __init__(self, listening: socket.socket, ready: Callable[[], Awaitable[Readiness]]) -> None:
        super().__init__("health")
        self._listening = listening
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()
        #: In the order in which they came.
        self._connections: dict[asyncio.Task[None], None] = {}

    def stop(self) -> None:
        super().stop()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop may have ended by itself just now
                self._loop.call_soon_threadsafe(self._told.set)

    def ended(self) -> None:
        self._listening.close()

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._told = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        # A copy, for the server closes what it has, and after a crash the next one needs it.
        own = self._listening.dup()
        start = asyncio.start_unix_server if own.family == socket.AF_UNIX else asyncio.start_server
        server = await start(self._connected, sock=own, limit=MAX_HEAD_BYTES)
        self.alive = True
        try:
            if not self.stopping.is_set():
                await self._told.wait()
        finally:
            server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        self._connections[task] = None
        try:
            async with asyncio.timeout(CONNECTION_SECONDS):
                await self._converse(reader, writer)
        except (TimeoutError, OSError, asyncio.CancelledError):
            pass  # whoever is slow or gone, or has to make room, gets no answer
        finally:
            self._connections.pop(task, None)
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # closing would wait for whoever does not read
            else:
                writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await _read_head(reader)
        if head is None:
            return
        writer.write(await self._answer(head))
        await writer.drain()
        if writer.can_write_eof():
            # A socket that is closed on unread bytes takes the answer back, so let the other side close first.
            writer.write_eof()
            while await reader.read(MAX_HEAD_BYTES):
                pass

    async def _answer(self, head: bytes) -> bytes:
        if len(head) > MAX_HEAD_BYTES:
            return _response(431, {"error": f"a request of at most {MAX_HEAD_BYTES} bytes is needed"})
        try:
            method, target, version = head.split(b"\n", 1)[0].decode("ascii").split()
            path = urlsplit(target).path
        except ValueError:
            method = path = version = ""
        if not version.startswith("HTTP/1."):
            return _response(400, {"error": "an HTTP/1.1 request is needed"})
        if path not in ("/healthz", "/readyz"):
            return _response(404, {"error": "/healthz and /readyz are here"})
        if method != "GET":
            return _response(405, {"error": "GET is needed"}, "Allow: GET\r\n")
        if path == "/healthz":
            return _response(200, {"status": "ok"})
        readiness = await self._ready()
        return _response(200 if readiness["ready"] else 503, readiness)


async def _read_head(reader: asyncio.StreamReader) -> bytes | None:
    """A request up to its empty line, or more than it may have; None if the other side left before that."""
    head = b""
    while len(head) <= MAX_HEAD_BYTES:
        part = await reader.read(MAX_HEAD_BYTES)
        if not part:
            return None
        head += part
        if end := _EMPTY_LINE.search(head):
            return head[: end.end()]
    return head


def _response(status: int, body: Mapping[str, Any], more: str = "") -> bytes:
    content = json.dumps(body).encode()
    return (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n"
        "Cache-Control: no-store\r\n"
        f"{more}"
        "Connection: close\r\n\r\n"
    ).encode() + content
