"""Sessions as a worker has them, kept from test to test.

A new session has to read what three hundred tables are before its first statement is planned, and a statement over the
rings plans for longer than it runs. So sessions are handed on, and statements are prepared with generic plans, as
:func:`awa_django.db.connect` has it.
"""

from __future__ import annotations

import atexit
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

__all__ = ["session"]

OPTIONS = "-c plan_cache_mode=force_generic_plan -c jit=off"

_idle: dict[str, list[psycopg.Connection[Any]]] = defaultdict(list)


@contextmanager
def session(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session of this database in autocommit, with no settings, locks or channels of whoever had it before."""
    connection = _idle[url].pop() if _idle[url] else _opened(url)
    try:
        yield connection
    finally:
        if _restored(connection):
            _idle[url].append(connection)
        else:
            connection.close()


def _opened(url: str) -> psycopg.Connection[Any]:
    connection: psycopg.Connection[Any] = psycopg.connect(
        url, autocommit=True, options=OPTIONS, prepare_threshold=0
    )
    connection.prepared_max = 500
    return connection


def _restored(connection: psycopg.Connection[Any]) -> bool:
    """Whether it can be handed on."""
    with suppress(psycopg.Error):
        if connection.info.transaction_status is TransactionStatus.IDLE and connection.autocommit:
            connection.row_factory = tuple_row
            connection.prepare_threshold = 0
            for statement in ("RESET ALL", "UNLISTEN *", "SELECT pg_advisory_unlock_all()"):
                connection.execute(statement)
            return True
    return False


@atexit.register
def _close() -> None:
    for connections in _idle.values():
        for connection in connections:
            connection.close()
