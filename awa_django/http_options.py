"""What is configured of a job that a function elsewhere runs over HTTP (contract: api/http_worker section 1).

Values, checked where they are made. Where a function is and which headers it is sent come from here alone, never from
a job's arguments: whoever may enqueue a job must not choose whom the worker talks to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import SplitResult, urlsplit

from awa_django.errors import InvalidJob
from awa_django.setting_values import SettingFault, as_duration, as_flag, as_secret, as_text, unknown_key
from awa_django.signatures import SIGNATURE_HEADER
from awa_django.validation import (
    checked_kind,
    checked_max_attempts,
    checked_metadata,
    checked_priority,
    checked_queue,
    checked_tags,
)

if TYPE_CHECKING:
    from awa_django.http_client import HttpCall, HttpReply

__all__ = ["MAX_CALLBACK_TIMEOUT", "HttpJobConfig", "HttpOptions", "http_jobs_of", "http_options"]

#: As for every callback: :data:`awa_django.callbacks.MAX_TIMEOUT`.
MAX_CALLBACK_TIMEOUT = timedelta(days=3652.5)

#: Headers that say what the request is; they are not for the project to set.
_OWN_HEADERS = frozenset(
    {"connection", "content-length", "content-type", "host", "transfer-encoding", SIGNATURE_HEADER.lower()}
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
#: Printable ASCII and tabs, as every server reads them alike.
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
#: What an address is written in; anything else is percent-encoded, or the ASCII form of a host name.
_ADDRESS = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True, repr=False)
class HttpOptions:
    """How jobs of one kind are handed to their function. Made by :func:`http_options`.

    ``secret`` None means the first of ``AWA["CALLBACK_SECRETS"]``, if there is one; ``callback_path_prefix`` None where
    this project takes callbacks itself, else where awa's own receivers do. Its repr shows nothing that may be secret.
    """

    url: str
    mode: Literal["async", "sync"] = "async"
    #: With ``sync``: time for the whole exchange.
    response_timeout: timedelta | None = None
    #: With ``async``: time for the whole exchange, which ends when the function has taken the job.
    request_timeout: timedelta = timedelta(seconds=30)
    #: With ``async``: time for the callback, from the moment before the request.
    callback_timeout: timedelta = timedelta(hours=1)
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    secret: bytes | None = None
    callback_base_url: str | None = None
    callback_path_prefix: str | None = None
    #: A function that sends the request, or its dotted path.
    client: Callable[[HttpCall], HttpReply] | str | None = None
    #: Whether 408, 425 and 429 are retried.
    retry_throttled: bool = False

    @property
    def is_sync(self) -> bool:
        """Whether the response is the outcome."""
        return self.mode == "sync"

    @property
    def timeout(self) -> timedelta:
        """Time for the whole exchange."""
        return self.response_timeout or self.request_timeout

    @property
    def origin(self) -> str:
        """Scheme, host and port of the function: what may be shown of its address."""
        return _origin(urlsplit(self.url))

    @property
    def shown_url(self) -> str:
        """The address without what may be secret in it: credentials and query."""
        parts = urlsplit(self.url)
        scheme, _, host = _origin(parts).partition("://")
        credentials = "***@" if parts.username is not None else ""
        query = "?***" if parts.query else ""
        return f"{scheme}://{credentials}{host}{parts.path}{query}"

    def __repr__(self) -> str:
        hidden = {
            "url": repr(self.shown_url),
            "headers": repr(dict.fromkeys(self.headers, "***")),
            "secret": "***" if self.secret is not None else "None",
        }
        shown = (
            f"{item.name}={hidden.get(item.name) or repr(getattr(self, item.name))}" for item in fields(self)
        )
        return f"HttpOptions({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class HttpJobConfig:
    """One entry of ``AWA["HTTP_JOBS"]``: the function, and the options of ``@job`` that are not about it."""

    http: HttpOptions
    job: Mapping[str, Any] = field(default_factory=dict)


def _origin(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{'' if parts.port is None else f':{parts.port}'}"


# -- reading options -------------------------------------------------------------------------------------------------


def http_options(path: str, given: Mapping[str, object]) -> HttpOptions:
    """Check the options of one function. Raises ``SettingFault`` for the first that is wrong; ``path`` starts it.

    Neither an address nor a header's value is repeated there: both may hold what is secret.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _OPTIONS:
            raise unknown_key(path, name, _OPTIONS)
        if value is not None:
            values[name] = _OPTIONS[name](f"{path}[{name!r}]", value)
    if "url" not in values:
        raise SettingFault(f"{path}['url']", "the address of the function is needed")
    options = HttpOptions(**values)
    if options.is_sync and options.response_timeout is None:
        raise SettingFault(
            f"{path}['response_timeout']", "with mode 'sync' the time for the function to answer is needed"
        )
    for name in values:
        if name in (_ASYNC_ONLY if options.is_sync else _SYNC_ONLY):
            raise SettingFault(f"{path}[{name!r}]", f"means nothing with mode {options.mode!r}; leave it out")
    return options


def http_jobs_of(path: str, value: object) -> dict[str, HttpJobConfig]:
    """``AWA["HTTP_JOBS"]``, checked: from each kind to its options."""
    if not isinstance(value, Mapping):
        raise SettingFault(path, f"a dict from kind to its options is needed, not {type(value).__name__}")
    found: dict[str, HttpJobConfig] = {}
    for kind, options in value.items():
        try:
            checked_kind(kind)
        except InvalidJob as fault:
            raise SettingFault(path, str(fault)) from None
        here = f"{path}[{kind!r}]"
        if not isinstance(options, Mapping):
            raise SettingFault(here, f"a dict of options is needed, not {type(options).__name__}")
        for name in options:
            if name not in _OPTIONS and name not in _JOB_OPTIONS:
                raise unknown_key(here, name, [*_OPTIONS, *_JOB_OPTIONS])
        job = {name: _job_option(here, name, options[name]) for name in _JOB_OPTIONS if name in options}
        http = {name: given for name, given in options.items() if name in _OPTIONS}
        found[kind] = HttpJobConfig(http_options(here, http), job)
    return found


def _job_option(path: str, name: str, value: object) -> Any:
    try:
        return _JOB_OPTIONS[name](value)
    except InvalidJob as fault:
        raise SettingFault(f"{path}[{name!r}]", fault.reason) from None


def _description(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidJob("", f"text is needed, not {value!r}")
    return value


#: Options of ``@job`` that an entry of the setting may have, and what checks them.
_JOB_OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "queue": checked_queue,
    "priority": checked_priority,
    "max_attempts": checked_max_attempts,
    "tags": checked_tags,
    "metadata": checked_metadata,
    "display_name": _description,
    "description": _description,
    "owner": _description,
    "docs_url": _description,
}


def _address(path: str, value: object) -> str:
    """An http or https address of which only the scheme is repeated when it is wrong."""
    if not isinstance(value, str) or not value:
        raise SettingFault(path, "an address beginning with http:// or https:// is needed")
    if not _ADDRESS.fullmatch(value):
        raise SettingFault(path, "an address is printable ASCII without spaces; percent-encode the rest")
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as error:
        raise SettingFault(path, "host or port of the address cannot be read") from error
    if parts.scheme not in ("http", "https"):
        raise SettingFault(
            path,
            f"an address beginning with http:// or https:// is needed, not {parts.scheme or 'no scheme'}",
        )
    if not parts.hostname:
        raise SettingFault(path, "the address has no host")
    if parts.fragment:
        raise SettingFault(path, "the address has a fragment (#...), which no server is sent")
    return value


def _base_url(path: str, value: object) -> str:
    address = _address(path, value)
    parts = urlsplit(address)
    if parts.query or parts.username is not None:
        raise SettingFault(path, "a base address has neither a query nor credentials")
    return address


def _prefix(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise SettingFault(path, f"a path such as '/awa/callbacks' is needed, not {value!r}")
    return value


def _mode(path: str, value: object) -> str:
    if value not in ("async", "sync"):
        raise SettingFault(path, f"'async' or 'sync' is needed, not {value!r}")
    return str(value)


def _callback_timeout(path: str, value: object) -> timedelta:
    span = as_duration(path, value)
    if span > MAX_CALLBACK_TIMEOUT:
        raise SettingFault(path, f"a callback waits for at most ten years, not {value!r}")
    return span


def _headers(path: str, value: object) -> Mapping[str, str]:
    """Static headers. Their values are secrets, and are not repeated."""
    if not isinstance(value, Mapping):
        raise SettingFault(path, f"a dict from header to its value is needed, not {type(value).__name__}")
    for name, given in value.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise SettingFault(path, f"{name!r} is no name of a header")
        if name.lower() in _OWN_HEADERS:
            raise SettingFault(f"{path}[{name!r}]", "this header belongs to the request itself; leave it out")
        if not isinstance(given, str) or not _HEADER_VALUE.fullmatch(given):
            raise SettingFault(f"{path}[{name!r}]", "a header's value is printable ASCII text on one line")
    return MappingProxyType(dict(value))


def _client(path: str, value: object) -> Callable[..., Any] | str:
    if callable(value):
        return value
    if isinstance(value, str) and "." in as_text(path, value):
        return value
    raise SettingFault(
        path, f"a function that sends the request, or its dotted path, is needed, not {value!r}"
    )


_OPTIONS: Mapping[str, Callable[[str, Any], Any]] = {
    "url": _address,
    "mode": _mode,
    "response_timeout": as_duration,
    "request_timeout": as_duration,
    "callback_timeout": _callback_timeout,
    "headers": _headers,
    "secret": as_secret,
    "callback_base_url": _base_url,
    "callback_path_prefix": _prefix,
    "client": _client,
    "retry_throttled": as_flag,
}
_SYNC_ONLY = frozenset({"response_timeout"})
_ASYNC_ONLY = frozenset(
    {"request_timeout", "callback_timeout", "secret", "callback_base_url", "callback_path_prefix"}
)
