"""Connections: the caller's for what belongs to a transaction of theirs, own ones for the worker.

A worker's statements run on sessions that no handler can touch. They are made from the Django
alias's parameters, without Django's wrapper, pool or cursor class, so that a LISTEN or a
session lock ends with the connection that took it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql
from psycopg.abc import AdaptContext, Buffer
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import set_json_loads

from awa_django.errors import ConfigurationError
from awa_django.unreadable import Unreadable, finite

__all__ = [
    "EARLIEST",
    "LATEST",
    "BoundedLoader",
    "connect",
    "job_cursor",
    "plain_cursor",
    "pool_size",
    "postgres",
    "read_any_job",
    "read_json",
]

_scan = json.JSONDecoder(parse_float=finite).scan_once  # type: ignore[attr-defined]


def read_json(data: str | bytes) -> Any:
    """JSON as the server prints it: UTF-8, with nothing around it. A third of what ``json.loads`` costs a claim.

    What Python cannot hold, though the database can, arrives as :class:`~awa_django.unreadable.Unreadable`, for one
    such job must not keep the others of its batch from being read (DEC-18).
    """
    text = data if isinstance(data, str) else str(data, "utf-8")
    try:
        # Whoever stores it again may be deeper in calls than we are here, and meet the interpreter's limit first.
        return _scan(text, 0)[0] if len(text) < 1000 else _scan_below(text, 50)
    except (ValueError, RecursionError) as error:
        return Unreadable(text, str(error))


def _scan_below(text: str, calls: int) -> Any:
    return _scan_below(text, calls - 1) if calls else _scan(text, 0)[0]


#: Nearly Python's first and last instant, with room for any time zone.
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
LATEST = datetime(9999, 12, 30, tzinfo=UTC)


class BoundedLoader(TimestamptzLoader):
    """Reads times that Python cannot hold, such as the infinities, as the nearest it can (DEC-18).

    The usual form, ISO as the server writes it, goes straight to the interpreter's own parser: every claimed job has
    several times, and the driver's loader in Python takes thirty times as long.
    """

    def load(self, data: Buffer) -> datetime:
        try:
            return datetime.fromisoformat(bytes(data).decode())
        except ValueError:
            pass
        try:
            return super().load(data)
        except psycopg.DataError:
            text = bytes(data)
            return EARLIEST if text.startswith(b"-") or text.endswith(b"BC") else LATEST


def read_any_job(context: AdaptContext) -> None:
    """Have a connection or cursor read whatever another client stored with a job, one row at a time (DEC-18)."""
    set_json_loads(read_json, context)
    context.adapters.register_loader("timestamptz", BoundedLoader)


def postgres(using: str) -> BaseDatabaseWrapper:
    """Django's connection of an alias; raises ``ConfigurationError`` unless it is PostgreSQL."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        raise ConfigurationError(
            f"AWA['DATABASE'] is {using!r}, a {connection.vendor} database; awa needs PostgreSQL 14 or newer"
        )
    return connection


def pool_size(using: str) -> int | None:
    """The most connections that Django's own pool of an alias holds; None without one."""
    pool = postgres(using).settings_dict["OPTIONS"].get("pool")
    if not pool:
        return None
    options = pool if isinstance(pool, dict) else {}
    # psycopg_pool's own default.
    return int(options.get("max_size") or options.get("min_size") or 4)


def plain_cursor(using: str) -> psycopg.Cursor[Any]:
    """A driver cursor with server-side binding on Django's own session of this alias.

    It shares the caller's transaction. Database errors arrive as the driver's, not as ``django.db``'s:
    wrap the block in ``connections[using].wrap_database_errors`` where callers see them.
    """
    connection = postgres(using)
    connection.ensure_connection()
    return psycopg.Cursor(cast("psycopg.Connection[Any]", connection.connection))


def job_cursor(using: str) -> psycopg.Cursor[Any]:
    """A :func:`plain_cursor` that reads jobs as a worker's session does; Django's own leaves JSON as text."""
    cursor = plain_cursor(using)
    read_any_job(cursor)
    return cursor


def connect(
    using: str, *, application_name: str, prepare: bool = True, repeatable: bool = False
) -> psycopg.Connection[Any]:
    """Open a session of the worker's own, in autocommit, with the parameters of a Django alias.

    It works as the role that ``assume_role`` in the alias's ``OPTIONS`` names, as Django's own connections do.
    ``prepare`` off sends every statement unprepared, as a pooler that hands out a session per transaction needs.
    ``repeatable`` says that a commit which a crash of the server undoes only makes us do the same again, as with claims
    and heartbeats: such commits do not wait for the disk (ADR-015).
    """
    params = dict(postgres(using).get_connection_params())
    for own in ("cursor_factory", "context", "prepare_threshold"):
        params.pop(own, None)
    params.setdefault("keepalives_idle", 30)
    params.setdefault("keepalives_interval", 10)
    params.setdefault("keepalives_count", 3)
    params.setdefault("connect_timeout", 10)
    params["application_name"] = application_name
    connection: psycopg.Connection[Any] = psycopg.connect(
        **params, autocommit=True, prepare_threshold=0 if prepare else None
    )
    # Instrumentation of the driver would make a span of every look the worker takes; it has spans of its own.
    connection.cursor_factory = psycopg.Cursor
    read_any_job(connection)
    if role := postgres(using).settings_dict["OPTIONS"].get("assume_role"):
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    if prepare:
        # Statements over partitioned rings plan for longer than they run; the generic plan prunes at run
        # time. Behind such a pooler the setting would stay with a session that others get next.
        connection.execute("SET plan_cache_mode = force_generic_plan")
        # Estimates over many small partitions look dear enough to compile for, which takes 300 ms.
        connection.execute("SET jit = off")
        if repeatable:
            connection.execute("SET synchronous_commit = off")
    return connection
