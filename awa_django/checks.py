"""System checks: what ``manage.py check`` says about a project's use of awa.

=========  =====================================================================================
awa.E001   a wrong setting in ``AWA``
awa.E002   the queue's database is not in ``DATABASES``, or is not PostgreSQL
awa.E003   annotations of a job that cannot be read, so that its arguments cannot be restored
awa.E004   the server is older than PostgreSQL 14 (with ``--database``)
awa.E005   a receiver of callbacks without a secret to check signatures with
awa.E010   the client of an HTTP job cannot be imported
awa.E011   the function that ``REDACT`` names cannot be imported
awa.W001   LISTEN behind a pooler that hands out a session for each transaction
awa.W002   the queue is in another database than the project's rows
awa.W003   unique states that a job can leave and take again
awa.W004   jobs for a queue that no worker serves by default
awa.W005   options of a queue that mean nothing with, or without, ``GLOBAL_MAX_WORKERS``
awa.W006   a queue that can never run a job
awa.W007   ``CALLBACK_UNSIGNED`` beside ``CALLBACK_SECRETS``, where it means nothing
awa.W010   a function that is to call back and is not told where
awa.W011   a function whose callbacks are not signed
awa.W012   a signature that travels without TLS
awa.W013   callbacks that this project's own receiver refuses, for they are signed with another secret
=========  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DEFAULT_DB_ALIAS, connections
from django.urls import URLPattern, URLResolver, get_resolver

from awa_django.conf import QueueConfig, Settings, get_settings, setting_faults
from awa_django.enqueue import queue_alias
from awa_django.errors import ConfigurationError
from awa_django.http_jobs import (
    HttpJobKind,
    callback_prefix,
    client_of,
    http_kinds,
    own_prefix,
    signing_secret,
)
from awa_django.http_options import HttpOptions
from awa_django.redaction import redactor
from awa_django.registry import registry
from awa_django.schema import MINIMUM_SERVER
from awa_django.uniqueness import mask_hazards

__all__ = [
    "check_http_jobs",
    "check_jobs",
    "check_receiver",
    "check_redaction",
    "check_server",
    "check_settings",
]


@register("awa")
def check_settings(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """The dict ``AWA`` and the database it points to. Opens no connection."""
    faults = setting_faults()
    if faults:
        return [Error(fault, hint="Correct the setting AWA.", id="awa.E001") for fault in faults]
    return [*_database_faults(), *_slot_faults(get_settings())]


def _slot_faults(settings: Settings) -> Iterator[CheckMessage]:
    """Queues whose slots are not what their options say."""
    in_all = settings.global_max_workers
    ignored = ("min_workers", "weight") if in_all is None else ("max_workers",)
    spare = 0 if in_all is None else in_all - sum(queue.min_workers for queue in settings.queues.values())
    for queue in settings.queues.values():
        usual = QueueConfig(queue.name)
        if unused := [name for name in ignored if getattr(queue, name) != getattr(usual, name)]:
            yield Warning(
                f"AWA['QUEUES'][{queue.name!r}] has {' and '.join(unused)}, which mean nothing "
                f"{'without' if in_all is None else 'with'} AWA['GLOBAL_MAX_WORKERS'].",
                hint="Set GLOBAL_MAX_WORKERS for queues that share their slots."
                if in_all is None
                else "Use min_workers and weight, or drop GLOBAL_MAX_WORKERS.",
                id="awa.W005",
            )
        if in_all is not None and not queue.min_workers and spare == 0:
            yield Warning(
                f"Queue {queue.name!r} can never run a job: all {in_all} slots of AWA['GLOBAL_MAX_WORKERS'] are "
                "guaranteed to other queues.",
                hint="Raise GLOBAL_MAX_WORKERS, give the queue min_workers, or lower those of the others.",
                id="awa.W006",
            )


def _database_faults() -> Iterator[CheckMessage]:
    alias = queue_alias()
    if alias not in connections:
        yield Error(
            f"AWA['DATABASE'] is {alias!r}, which DATABASES does not have.",
            hint=f"Known are {', '.join(sorted(connections))}.",
            id="awa.E002",
        )
        return
    connection = connections[alias]
    if connection.vendor != "postgresql":
        yield Error(
            f"The queue's database {alias!r} is {connection.vendor}; awa needs PostgreSQL 14 or newer.",
            hint="Point AWA['DATABASE'] to a PostgreSQL alias.",
            id="awa.E002",
        )
        return
    if get_settings().listen and connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        yield Warning(
            f"DISABLE_SERVER_SIDE_CURSORS says that database {alias!r} is behind a transaction pooler, "
            "where LISTEN does not work.",
            hint="Set AWA['LISTEN'] to False and workers poll, or give the worker an alias that goes to the server.",
            id="awa.W001",
        )
    default = connections.settings.get(DEFAULT_DB_ALIAS, {})
    if alias != DEFAULT_DB_ALIAS and default.get("ENGINE") != "django.db.backends.dummy":
        yield Warning(
            f"The queue is in database {alias!r}, and rows of {DEFAULT_DB_ALIAS!r} cannot share a transaction with it: "
            "their jobs are stored after the commit, and a crash between the two loses them.",
            hint="Keep the queue in the database whose rows cause the jobs; silence this where none do.",
            id="awa.W002",
        )


@register("awa")
def check_jobs(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """The declared jobs."""
    return list(_job_faults())


def _job_faults() -> Iterator[CheckMessage]:
    served = None if setting_faults() else get_settings().queues
    for kind in registry.values():
        try:
            kind.prepare()
        except ConfigurationError as error:
            yield Error(str(error), obj=kind.name, id="awa.E003")
        unique = kind.options.unique
        if unique is not None and (hazards := mask_hazards(unique.mask)):
            yield Warning(
                f"Job {kind.kind!r} has unique states {unique.mask}, which take the key again when a job moves "
                f"from {', '.join(hazards)}; if a newer job holds it then, the older one ends cancelled.",
                hint="Use the default states, or make sure that is what you want.",
                obj=kind.name,
                id="awa.W003",
            )
        if served is not None and kind.options.queue not in served:
            yield Warning(
                f"Job {kind.kind!r} goes to queue {kind.options.queue!r}, which AWA['QUEUES'] does not name; "
                "a worker without --queue leaves it waiting.",
                hint=f"Add {kind.options.queue!r} to AWA['QUEUES'], or run a worker with --queue {kind.options.queue}.",
                obj=kind.name,
                id="awa.W004",
            )


@register("awa")
def check_http_jobs(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """The kinds whose jobs a function elsewhere runs. Asks no function."""
    return [] if setting_faults() else [fault for kind in http_kinds() for fault in _http_faults(kind)]


def _http_faults(kind: HttpJobKind) -> Iterator[CheckMessage]:
    http = kind.http
    try:
        client_of(http)
    except ConfigurationError as error:
        yield Error(
            f"HTTP job {kind.kind!r}: {error}",
            hint="Correct the option client: a function from HttpCall to HttpReply, or its dotted path.",
            obj=kind.name,
            id="awa.E010",
        )
    if http.is_sync:
        return
    secret, base = signing_secret(http), http.callback_base_url
    if base is None:
        yield Warning(
            f"HTTP job {kind.kind!r} waits for a callback, and its function is not told where to send it.",
            hint="Set callback_base_url to where the function reaches the receiver, such as https://shop.example; "
            "silence this where the function knows.",
            obj=kind.name,
            id="awa.W010",
        )
    if secret is None:
        yield Warning(
            f"HTTP job {kind.kind!r} has no secret: its function cannot tell who calls it, and sends its callbacks "
            "unsigned.",
            hint="Set AWA['CALLBACK_SECRETS'], or the secret of this kind, to one from `openssl rand -hex 32`.",
            obj=kind.name,
            id="awa.W011",
        )
        return
    if plain := [url for url in (http.origin, base) if url is not None and _is_exposed(url)]:
        yield Warning(
            f"HTTP job {kind.kind!r} sends its signature without TLS ({', '.join(plain)}): whoever reads it can end "
            "the job.",
            hint="Use https.",
            obj=kind.name,
            id="awa.W012",
        )
    known = get_settings().callback_secrets
    if http.secret is not None and http.secret not in known and base is not None and _is_own_receiver(http):
        yield Warning(
            f"HTTP job {kind.kind!r} signs with a secret that is not in AWA['CALLBACK_SECRETS']: the receiver of this "
            "project refuses its callbacks.",
            hint="Add the secret to AWA['CALLBACK_SECRETS'], or leave it out and the first of those is used.",
            obj=kind.name,
            id="awa.W013",
        )


def _is_own_receiver(http: HttpOptions) -> bool:
    """Whether callbacks come to this project, as far as one can tell."""
    return callback_prefix(http).strip("/") == (own_prefix() or "").strip("/") != ""


def _is_exposed(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")


@register("awa")
def check_redaction(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """The project's function that says what may be shown."""
    if setting_faults():
        return []
    try:
        redactor()
    except ConfigurationError as error:
        return [
            Error(str(error), hint="Correct it: pages that show values fail until then.", id="awa.E011"),
        ]
    return []


@register("awa")
def check_receiver(app_configs: Sequence[AppConfig] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Whether callbacks that arrive over HTTP are signed, where the project's URLs take any."""
    if setting_faults():
        return []
    settings = get_settings()
    if settings.callback_secrets and settings.callback_unsigned:
        return [
            Warning(
                "AWA['CALLBACK_UNSIGNED'] means nothing beside AWA['CALLBACK_SECRETS']: every callback must be signed.",
                hint="Remove one of them.",
                id="awa.W007",
            )
        ]
    if settings.callback_secrets or settings.callback_unsigned:
        return []
    if not getattr(django_settings, "ROOT_URLCONF", None) or not _receives(get_resolver().url_patterns):
        return []
    return [
        Error(
            "The project's URLs include the receiver of callbacks, and there is no secret to check signatures with: "
            "it refuses every call.",
            hint="Set AWA['CALLBACK_SECRETS'] to a list of secrets from `openssl rand -hex 32`; or, where whoever "
            "knows an id may answer, AWA['CALLBACK_UNSIGNED'] to True.",
            id="awa.E005",
        )
    ]


def _receives(patterns: Iterable[URLPattern | URLResolver]) -> bool:
    """Whether the receiver is among these patterns, below any include and any decorator that keeps its attributes."""
    return any(
        _receives(each.url_patterns)
        if isinstance(each, URLResolver)
        else hasattr(each.callback, "awa_receiver")
        for each in patterns
    )


@register(Tags.database)
def check_server(
    app_configs: Sequence[AppConfig] | None = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The server of the queue's database; runs only where that database is checked."""
    if not databases or setting_faults():
        return []
    alias = queue_alias()
    if alias not in databases or alias not in connections or connections[alias].vendor != "postgresql":
        return []
    with connections[alias].temporary_connection() as cursor:
        version: int = cursor.connection.info.server_version
    if version >= MINIMUM_SERVER:
        return []
    return [
        Error(
            f"Database {alias!r} is PostgreSQL {version // 10000}; awa needs {MINIMUM_SERVER // 10000} or newer.",
            hint="Upgrade the server, or point AWA['DATABASE'] to another one.",
            id="awa.E004",
        )
    ]
