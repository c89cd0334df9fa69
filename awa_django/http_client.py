"""Sending one request to a function, with the standard library.

:class:`HttpClient` is what HTTP jobs use unless they name another client, which is any function from
:class:`HttpCall` to :class:`HttpReply`.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

__all__ = ["KEPT_BYTES", "Client", "HttpCall", "HttpClient", "HttpReply", "RequestCancelled"]

#: Bytes of a response that are kept at most.
KEPT_BYTES = 4096
#: Between two looks whether a request is to be given up.
TICK_SECONDS = 0.1
_CHUNK_BYTES = 64 * 1024


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A request to send: ``POST url`` with these headers and this body.

    ``timeout`` is in seconds and for the whole exchange. Redirects are not to be followed. ``whole`` says that the
    response is what is waited for: one that breaks off is none. ``is_cancelled`` may be asked from any thread. A
    client raises any exception where there is no response. Neither headers nor body are in its repr.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    timeout: float
    whole: bool = False
    is_cancelled: Callable[[], bool] = field(default=_never, repr=False)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What a function answered. More of ``body`` than 4 KiB is not looked at, and nothing of a success."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)

    def header(self, name: str) -> str | None:
        """A header's value, whatever the case of its name."""
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), None)


Client: TypeAlias = Callable[[HttpCall], HttpReply]


class RequestCancelled(Exception):
    """The request was given up, because nobody wants its job any more."""


class HttpClient:
    """A client on ``http.client``: a connection for each request, TLS verified, no redirects, no proxies.

    ``ssl_context`` replaces the one of ``ssl.create_default_context()``, for a private authority or a certificate of
    one's own. Proxies that the environment names are not used: what a worker talks to is configured in one place.
    May be called from any number of threads.

    A request ends with its timeout, or when it is cancelled, at whatever it is just then; only the look-up of a host's
    name cannot be cut short, and ends with the resolver's own limit.
    """

    def __init__(self, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._ssl_context = ssl_context
        self._making = threading.Lock()

    def __call__(self, call: HttpCall) -> HttpReply:
        """Send a request. Raises ``TimeoutError``, :class:`RequestCancelled`, ``OSError`` or ``HTTPException``."""
        exchange = _Exchange(call.timeout, call.is_cancelled)
        with _watched(exchange):
            try:
                reply = self._send(call, exchange)
            except (OSError, http.client.HTTPException) as error:
                exchange.raise_if_ended(error)
                raise
            exchange.raise_if_ended()
            return reply

    def _send(self, call: HttpCall, exchange: _Exchange) -> HttpReply:
        parts = urlsplit(call.url)
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = self._context()
            port = parts.port or http.client.HTTPS_PORT
            connection = http.client.HTTPSConnection(host, port, context=context)
            opened = _opened(host, port, exchange)
            opened = context.wrap_socket(opened, server_hostname=host, do_handshake_on_connect=False)
            exchange.hold(opened)
            opened.do_handshake()
        else:
            port = parts.port or http.client.HTTP_PORT
            connection = http.client.HTTPConnection(host, port)
            opened = _opened(host, port, exchange)
        connection.sock = opened
        connection.response_class = _FinalResponse
        connection.putrequest("POST", _target(call.url), skip_accept_encoding=True)
        for name, value in {"Accept": "*/*", **call.headers}.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(call.body)))
        connection.endheaders(call.body)
        with connection.getresponse() as response:
            is_success = 200 <= response.status < 300
            body = b""
            if is_success and call.whole:
                _read(response, None)
            elif not is_success:
                body = _read(response, KEPT_BYTES + 1)
            return HttpReply(response.status, dict(response.getheaders()), body)

    def _context(self) -> ssl.SSLContext:
        # Reading the system's certificates takes long, so it is done once, and only for https.
        with self._making:
            if self._ssl_context is None:
                self._ssl_context = ssl.create_default_context()
                self._ssl_context.set_alpn_protocols(["http/1.1"])
            return self._ssl_context


class _FinalResponse(http.client.HTTPResponse):
    """The response that ends an exchange. Any number of others, such as 103 Early Hints, may come before it, of which
    ``http.client`` passes over 100 alone (RFC 9110 section 15.2)."""

    def _read_status(self) -> tuple[str, int, str]:
        read: Callable[[], tuple[str, int, str]] = super()._read_status  # type: ignore[misc]
        version, status, reason = read()
        while 100 < status < 200 and status != http.HTTPStatus.SWITCHING_PROTOCOLS:
            http.client.parse_headers(self.fp)
            version, status, reason = read()
        return version, status, reason


def _target(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"


def _opened(host: str, port: int, exchange: _Exchange) -> socket.socket:
    """A socket connected to the first address of a host that answers; each gets its share of the time."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    fault: OSError | None = None
    for tried, (family, kind, protocol, _, address) in enumerate(addresses):
        opened = socket.socket(family, kind, protocol)
        exchange.hold(opened)
        try:
            opened.settimeout(exchange.remaining() / (len(addresses) - tried))
            opened.connect(address)
            opened.settimeout(exchange.remaining())
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return opened
        except OSError as error:
            fault = error
            exchange.raise_if_ended(error)
    raise fault or OSError(f"the name {host} has no address")


def _read(response: http.client.HTTPResponse, most: int | None) -> bytes:
    """Up to ``most`` bytes of a body; None reads it to its end and keeps nothing. Raises for one that breaks off."""
    kept: list[bytes] = []
    size = 0
    while most is None or size < most:
        piece = response.read(_CHUNK_BYTES if most is None else most - size)
        if not piece:
            if response.length:  # what the announced length still lacks
                raise http.client.IncompleteRead(b"", response.length)
            break
        size += len(piece)
        if most is not None:
            kept.append(piece)
    return b"".join(kept)


class _Exchange:
    """One request on its way: until when, whether it was given up, and the socket that then has to be shut."""

    def __init__(self, seconds: float, is_cancelled: Callable[[], bool]) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._is_cancelled = is_cancelled
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._ended: Exception | None = None

    def remaining(self) -> float:
        """Seconds that are left; raises ``TimeoutError`` if none are."""
        seconds = self._until - time.monotonic()
        if seconds <= 0:
            raise self._timed_out()
        return seconds

    def hold(self, opened: socket.socket) -> None:
        """Take charge of a socket, and close the one before."""
        with self._lock:
            before, self._socket = self._socket, opened
            if before is not None:
                before.close()

    def look(self) -> None:
        """End the exchange if it is time to. Called by another thread than the one that sends."""
        if self._until <= time.monotonic():
            ended: Exception = self._timed_out()
        elif self._is_cancelled():
            ended = RequestCancelled("the job was cancelled while the function was asked")
        else:
            return
        # Under the lock, so that the socket's number cannot belong to somebody else by now.
        with self._lock:
            self._ended = self._ended or ended
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    # Past the method of TLS sockets, which another thread may be reading from.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def raise_if_ended(self, cause: Exception | None = None) -> None:
        """Raise why the exchange was given up, if it was. ``cause`` is what that looked like to the sender."""
        if self._ended is not None:
            raise self._ended from cause
        if isinstance(cause, TimeoutError):
            raise self._timed_out() from cause

    def close(self) -> None:
        """Let go of the socket."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _timed_out(self) -> TimeoutError:
        return TimeoutError(f"not done within {self._seconds:g} s")


class _Watcher:
    """One thread that looks at all exchanges of the process now and then.

    A socket's own timeout starts anew with each byte that arrives, and nobody who waits for one can see a flag.
    """

    def __init__(self) -> None:
        self._exchanges: set[_Exchange] = set()
        self._lock = threading.Lock()
        self._busy = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, exchange: _Exchange) -> None:
        with self._lock:
            self._exchanges.add(exchange)
            self._busy.set()
            if self._thread is None or not self._thread.is_alive():  # as in a process that was forked
                self._thread = threading.Thread(target=self._watch, name="awa-http-requests", daemon=True)
                self._thread.start()

    def remove(self, exchange: _Exchange) -> None:
        with self._lock:
            self._exchanges.discard(exchange)
            if not self._exchanges:
                self._busy.clear()

    def _watch(self) -> None:
        while self._busy.wait():
            time.sleep(TICK_SECONDS)
            with self._lock:
                exchanges = list(self._exchanges)
            for exchange in exchanges:
                exchange.look()


_watcher = _Watcher()


@contextmanager
def _watched(exchange: _Exchange) -> Iterator[None]:
    _watcher.add(exchange)
    try:
        yield
    finally:
        _watcher.remove(exchange)
        exchange.close()
