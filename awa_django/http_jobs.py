"""Jobs that a function elsewhere runs, over HTTP (contract: api/http_worker).

A kind is declared in ``AWA["HTTP_JOBS"]`` or by :func:`http_job`, and is a kind like any other: it is enqueued, retried
and followed up alike. Instead of calling Python code, its attempt posts the job to the function. With mode ``async``
the function takes the job, answers at once, and ends it later by a callback; the job waits meanwhile and holds no
worker. With mode ``sync`` the response is the outcome.
"""

from __future__ import annotations

import base64
import email.utils
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import UUID

from django.conf import settings as django_settings
from django.db import connections
from django.urls import NoReverseMatch, get_script_prefix, reverse
from django.utils.module_loading import import_string

from awa_django import __version__
from awa_django.conf import Settings, get_settings
from awa_django.errors import AwaError, ConfigurationError, InvalidJob
from awa_django.http_client import KEPT_BYTES, Client, HttpCall, HttpClient, HttpReply
from awa_django.http_options import HttpOptions, http_options
from awa_django.jobs import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY, JsonValue
from awa_django.outcomes import Completed, Failed, Outcome, RetryAfter, Snooze, Terminal, WaitForCallback
from awa_django.redaction import MASK
from awa_django.registry import Descriptor, JobKind, JobOptions, checked_args_type, registry
from awa_django.setting_values import SettingFault
from awa_django.signatures import DEFAULT_PATH_PREFIX, SIGNATURE_HEADER, build_callback_url, sign
from awa_django.unreadable import Unreadable

if TYPE_CHECKING:
    from awa_django.uniqueness import Unique
    from awa_django.worker.context import JobContext

__all__ = ["HttpJobKind", "declare_from_settings", "http_job", "http_kinds"]

#: A function that asks for more is retried all the same after this time, which is also the longest backoff.
LONGEST_RETRY_AFTER = timedelta(hours=24).total_seconds()
#: Statuses that say "not now" (Request Timeout, Too Early, Too Many Requests).
_THROTTLED = frozenset({408, 425, 429})
#: Shorter header values than this are no secrets, and may be part of any text.
_LEAST_SECRET = 8

#: What commands a terminal; PostgreSQL cannot store the first of them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

_send = HttpClient()


class HttpJobKind(JobKind[..., Outcome]):
    """A kind whose jobs a function elsewhere runs. Calling it with a context, as a worker does, sends the request."""

    def __init__(
        self,
        kind: str | None,
        http: HttpOptions,
        *,
        module: str,
        args: type | None = None,
        from_settings: bool = False,
        descriptor: Descriptor = Descriptor(),  # noqa: B008 - an immutable value
        options: JobOptions = JobOptions(),  # noqa: B008
    ) -> None:
        handler = _handler(self, args)
        handler.__module__, handler.__name__, handler.__qualname__ = module, "http_job", "http_job"
        self._http = http
        self.from_settings = from_settings
        super().__init__(handler, kind=kind, args=args, descriptor=descriptor, options=options)

    @property
    def name(self) -> str:
        """Where the kind is declared."""
        if self.from_settings:
            return f"AWA['HTTP_JOBS'][{self.kind!r}]"
        return f"http_job({self.kind!r}) of {self.handler.__module__}"

    @property
    def http(self) -> HttpOptions:
        """Where the function is and how it is asked; of an entry of the settings, as the settings are now."""
        if self.from_settings and (entry := get_settings().http_jobs.get(self.kind)) is not None:
            return entry.http
        return self._http

    def decode(self, args: JsonValue) -> Mapping[str, Any]:
        """Whatever is stored is what the function gets; raises ``InvalidJob`` for what cannot be read."""
        if isinstance(args, Unreadable):
            raise InvalidJob("args", f"cannot be read: {args!r}")
        return {"args": args}

    def run(self, context: Any, arguments: Mapping[str, Any]) -> Outcome:
        """Ask the function to do the job of ``context``."""
        return dispatch(self.http, context, arguments["args"])


def _handler(kind: HttpJobKind, args: type | None) -> Callable[..., Any]:
    """What a kind is called as: with keyword arguments, or with one instance of its class of arguments."""
    if args is not None:

        def with_instance(ctx: Any, args: Any) -> Any:
            return kind.run(ctx, {"args": kind.request(args).args})

        return with_instance

    def with_names(ctx: Any, /, **args: Any) -> Any:
        return kind.run(ctx, {"args": kind.request(args).args})

    return with_names


# -- declaring -------------------------------------------------------------------------------------------------------


def http_job(
    kind: str | None = None,
    /,
    *,
    url: str,
    mode: Literal["async", "sync"] = "async",
    response_timeout: float | timedelta | None = None,
    request_timeout: float | timedelta | None = None,
    callback_timeout: float | timedelta | None = None,
    headers: Mapping[str, str] | None = None,
    secret: str | bytes | None = None,
    callback_base_url: str | None = None,
    callback_path_prefix: str | None = None,
    client: Client | str | None = None,
    retry_throttled: bool | None = None,
    args: type | None = None,
    queue: str = "default",
    priority: int = DEFAULT_PRIORITY,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
    tags: Iterable[str] = (),
    metadata: Mapping[str, Any] | None = None,
    unique: Unique | Mapping[str, Any] | bool | None = None,
    display_name: str | None = None,
    description: str | None = None,
    owner: str | None = None,
    docs_url: str | None = None,
) -> HttpJobKind:
    """Declare a kind that a function at ``url`` runs; in a jobs module, as ``@job`` does for one that Python runs.

    ``url`` and ``headers`` are the project's own, whatever the arguments of a job. With ``args``, a dataclass, jobs are
    enqueued with its fields, and the kind is derived from its name unless it is given. The options of the request are
    those of ``AWA["HTTP_JOBS"]``, the others those of ``@job``.

    Raises ``ConfigurationError`` if something else has the kind already, or an option is wrong.
    """
    module = sys._getframe(1).f_globals.get("__name__", "?")
    where = f"http_job({kind or getattr(args, '__name__', args)!r}) of {module}"
    if kind is None and args is None:
        raise ConfigurationError(f"{where}: a kind is needed, or a class of arguments to derive it from")
    given = {
        "url": url,
        "mode": mode,
        "response_timeout": response_timeout,
        "request_timeout": request_timeout,
        "callback_timeout": callback_timeout,
        "headers": headers,
        "secret": secret,
        "callback_base_url": callback_base_url,
        "callback_path_prefix": callback_path_prefix,
        "client": client,
        "retry_throttled": retry_throttled,
    }
    changes = {
        "queue": queue,
        "priority": priority,
        "max_attempts": max_attempts,
        "tags": tags,
        "metadata": metadata or {},
        "unique": unique,
    }
    try:
        declared = HttpJobKind(
            kind,
            http_options(where, given),
            module=module,
            args=checked_args_type(args),
            descriptor=Descriptor(display_name, description, owner, docs_url),
            options=JobOptions().changed(changes),
        )
    except SettingFault as fault:
        raise ConfigurationError(str(fault)) from None
    except InvalidJob as fault:
        raise ConfigurationError(f"{where}: {fault}") from None
    registry.add(declared)
    return declared


def declare_from_settings(settings: Settings) -> list[HttpJobKind]:
    """Declare the kinds of ``AWA["HTTP_JOBS"]``; done once, when Django starts.

    Raises ``ConfigurationError`` if something else has one of the kinds already.
    """
    declared = []
    for kind, entry in settings.http_jobs.items():
        descriptor = Descriptor(**{name: entry.job.get(name) for name in Descriptor._fields})
        options = {name: value for name, value in entry.job.items() if name not in Descriptor._fields}
        declared.append(
            HttpJobKind(
                kind,
                entry.http,
                module=__name__,
                from_settings=True,
                descriptor=descriptor,
                options=JobOptions().changed(options),
            )
        )
        registry.add(declared[-1])
    return declared


def http_kinds() -> list[HttpJobKind]:
    """The kinds of this process whose jobs functions run."""
    return [kind for kind in registry.values() if isinstance(kind, HttpJobKind)]


# -- asking the function ---------------------------------------------------------------------------------------------


def dispatch(http: HttpOptions, ctx: JobContext, args: JsonValue) -> Outcome:
    """Post one attempt to its function, and say how the attempt ends (contract: api/http_worker sections 2 and 3)."""
    if ctx.is_cancelled():  # also by the worker's stop: the next one asks
        return Snooze(0)
    job = ctx.job
    body: dict[str, Any] = {
        "job_id": job.id,
        "kind": job.kind,
        "args": args,
        "attempt": ctx.attempt,
        "max_attempts": job.max_attempts,
    }
    url, credentials = _split_credentials(http.url)
    headers = _overridden(
        {"Content-Type": "application/json", "User-Agent": f"awa-django/{__version__}", **credentials},
        http.headers,
    )
    token = None
    if not http.is_sync:
        # Before the request: the function may call back before it answers.
        token = ctx.register_callback(timeout=http.callback_timeout)
        body["callback_id"] = token.id
        if http.callback_base_url is not None:
            body["callback_url"] = build_callback_url(
                http.callback_base_url, callback_prefix(http), token.id, "complete"
            )
        if (secret := signing_secret(http)) is not None:
            headers[SIGNATURE_HEADER] = sign(token.id, secret)
    call = HttpCall(
        url,
        headers,
        json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
        timeout=http.timeout.total_seconds(),
        whole=http.is_sync,
        is_cancelled=lambda: _is_unwanted(ctx),
    )
    send = client_of(http)
    _release_connections()
    try:
        reply = send(call)
    except AwaError:
        raise  # a client of the project may say itself how the attempt ends
    except Exception as error:
        return Failed(
            _cut(f"no response from {http.origin}: {_unsaid(f'{type(error).__name__}: {error}', call)}")
        )
    if not isinstance(reply, HttpReply):
        raise ConfigurationError(
            f"the client of kind {job.kind!r} returned {type(reply).__name__}; an HttpReply is needed"
        )
    if 200 <= reply.status < 300:
        return Completed() if token is None else WaitForCallback(token)
    return _refusal(http, reply, call, is_last=ctx.attempt >= job.max_attempts)


def signing_secret(http: HttpOptions) -> bytes | None:
    """The secret that callbacks are signed with, if there is one."""
    if http.secret is not None:
        return http.secret
    return next(iter(get_settings().callback_secrets), None)


def callback_prefix(http: HttpOptions) -> str:
    """The path below which the receiver of callbacks is: as configured, where this project has it, or awa's own."""
    if http.callback_path_prefix is not None:
        return http.callback_path_prefix
    own = own_prefix()
    return DEFAULT_PATH_PREFIX if own is None else own


def own_prefix() -> str | None:
    """Where this project takes callbacks, if it includes ``awa_django.urls``."""
    if not getattr(django_settings, "ROOT_URLCONF", None):
        return None
    any_id = UUID(int=0)
    try:
        path = reverse("awa_django:callback", kwargs={"callback_id": str(any_id), "action": "complete"})
    except NoReverseMatch:
        return None
    # A worker's threads have not been told what the web server's begin every path with.
    below = path.removeprefix(get_script_prefix())
    path = f"{(django_settings.FORCE_SCRIPT_NAME or get_script_prefix()).rstrip('/')}/{below}"
    return unquote(path).removesuffix(f"/{any_id}/complete")


def client_of(http: HttpOptions) -> Client:
    """What sends the request. Raises ``ConfigurationError`` for a path to nowhere."""
    match http.client:
        case None:
            return _send
        case str() as path:
            try:
                found: Client = import_string(path)
            except ImportError as error:
                raise ConfigurationError(f"the client {path!r} cannot be imported: {error}") from error
            if not callable(found):
                raise ConfigurationError(f"the client {path!r} is no function but {type(found).__name__}")
            return found
        case given:
            return given


def _is_unwanted(ctx: JobContext) -> bool:
    """Whether nobody waits for the response any more.

    A worker that stops asks its handlers to be brief; but a request that is given up half-way may have reached the
    function, so it may take what is left of the grace time.
    """
    flight = ctx._flight
    return flight.done or (flight.cancelled and not flight.dispatcher.stopping.is_set())


def _release_connections() -> None:
    """Give up this thread's connections for the time of the request; Django opens them again when they are used."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """An address without the credentials in it, and the header that says them instead."""
    parts = urlsplit(url)
    if parts.username is None:
        return url, {}
    said = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    return bare.geturl(), {"Authorization": f"Basic {base64.b64encode(said).decode()}"}


def _overridden(headers: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower() for name in others}
    return {**{name: value for name, value in headers.items() if name.lower() not in given}, **others}


# -- what a response means -------------------------------------------------------------------------------------------


def _refusal(http: HttpOptions, reply: HttpReply, call: HttpCall, *, is_last: bool) -> Outcome:
    """The outcome of a response that is no success."""
    if 300 <= reply.status < 400:
        return Terminal(
            _cut(
                f"function returned {_status(reply.status)}: redirects are not followed, this one leads to "
                f"{_target(reply)}"
            )
        )
    body = reply.body[: KEPT_BYTES + 1].decode("utf-8", "replace")
    text = _cut(f"function returned {_status(reply.status)}: {_unsaid(body, call)}")
    if reply.status >= 500:
        return Failed(text)
    if http.retry_throttled and reply.status in _THROTTLED:
        seconds = _retry_after(reply)
        # A postponement of the last attempt would go on without end.
        return Failed(text) if seconds is None or is_last else RetryAfter(min(seconds, LONGEST_RETRY_AFTER))
    return Terminal(text)


def _target(reply: HttpReply) -> str:
    """The host of a redirect; the rest of its address may hold what is secret."""
    try:
        host = urlsplit(reply.header("Location") or "").hostname
    except ValueError:
        host = None
    return host or "the same host"


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _retry_after(reply: HttpReply) -> float | None:
    """Seconds that a function asks to be left alone; None if it says nothing that can be read."""
    value = (reply.header("Retry-After") or "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:10])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _cut(text: str) -> str:
    """At most 4 KiB of a text, without what would command a terminal."""
    text = _CONTROLS.sub("\ufffd", text)
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= KEPT_BYTES else raw[: KEPT_BYTES - 3].decode("utf-8", "ignore") + "…"


def _unsaid(text: str, call: HttpCall) -> str:
    """The text without what the request was to keep secret, which a server's error page may repeat.

    Of a page that was cut in the middle of a secret, its beginning is taken away as well.
    """
    query = urlsplit(call.url).query
    secrets = {query, *(value for _, value in parse_qsl(query))}
    secrets |= {part.partition("=")[2] for part in query.split("&")}  # as it is spelled in the address
    for name, value in call.headers.items():
        if name not in ("Content-Type", "User-Agent"):
            secrets |= {value, value.rpartition(" ")[2]}  # a token with and without the word before it
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) < _LEAST_SECRET:
            continue
        text = text.replace(secret, MASK)
        for length in range(len(secret) - 1, _LEAST_SECRET - 1, -1):
            if text.endswith(secret[:length]):
                text = text[:-length] + MASK
                break
    return text
