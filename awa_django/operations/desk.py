"""Where an operator's function works: one transaction, one cursor, and the planes that may hold the jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import Error, transaction

from awa_django.db import job_cursor, postgres
from awa_django.enqueue import queue_alias
from awa_django.errors import ConfigurationError, said
from awa_django.jobs import Taken
from awa_django.planes.base import Cursor, Plane
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.planes.queue_storage.operate import pass_tombstones
from awa_django.planes.records import PlaneName
from awa_django.sql import statement

__all__ = ["Desk", "desk", "looking", "one_look", "planes_of"]

logger = logging.getLogger("awa_django.operations")

_SCHEMA = "awa"


@dataclass(frozen=True, slots=True)
class Desk:
    """What a function of this package works with.

    ``planes`` are those that may hold the jobs, in the order in which they are asked: an id may name a job on each.
    ``savepoint`` begins what can be undone alone. ``spent`` collects jobs that were lifted off their lanes; whoever
    made the desk moves the cursors past them after the commit. ``read_only`` says that the database takes no changes.
    ``known`` is what one read of a look found out and another may use.
    """

    cursor: Cursor
    planes: Sequence[Plane]
    savepoint: Callable[[], AbstractContextManager[Any]]
    spent: list[Taken] = field(default_factory=list)
    read_only: bool = False
    known: dict[Any, Any] = field(default_factory=dict)


def planes_of(cursor: Cursor, plane: PlaneName | None = None) -> list[Plane]:
    """The planes that may hold jobs, the one that takes new jobs first; ``plane`` names the only one to ask."""
    match plane:
        case "queue_storage":
            return [QueueStoragePlane()]
        case "canonical":
            return [CanonicalPlane()]
        case None:
            pass
        case _:
            raise ValueError(f"plane: 'queue_storage' or 'canonical' is needed, not {plane!r}")
    cursor.execute(statement("control/enqueue", "route"))
    row = cursor.fetchone()
    return _planes(None if row is None else row[0], has_canonical=True)


def _planes(schema: str | None, has_canonical: bool) -> list[Plane]:
    if schema is None:
        return [CanonicalPlane()]
    if schema != _SCHEMA:
        raise ConfigurationError(
            f"queue storage is active in schema {schema!r}; this release serves {_SCHEMA!r} only"
        )
    # New jobs go to queue storage, so canonical tables that are empty stay so.
    return [QueueStoragePlane(), CanonicalPlane()] if has_canonical else [QueueStoragePlane()]


@contextmanager
def desk(using: str | None = None, plane: PlaneName | None = None) -> Iterator[Desk]:
    """A desk on Django's connection of the queue's database, in the caller's transaction or else in one of its own.

    Database errors arrive as ``django.db``'s; with any, what was done here is undone and the caller's transaction
    stays usable. Within :func:`one_look` of the same database it is that one's.
    """
    alias = queue_alias(using)
    shared = _looking.get()
    if shared is not None and shared[0] == alias:
        at = shared[1]
        yield at if plane is None else replace(at, planes=planes_of(at.cursor, plane))
        return
    with _opened(alias, plane) as made:
        yield made
        if made.spent:
            transaction.on_commit(partial(_pass_tombstones, alias, made.spent), using=alias)


@contextmanager
def one_look(using: str | None = None, *, statement_timeout: timedelta | None = None) -> Iterator[Desk]:
    """Have the reads of this package that the block makes share a transaction, and a time limit for each statement.

    For a page of many figures: each by itself would open a transaction, and ask where jobs are. A database error in the
    block leaves nothing readable until it ends. For reads only. Within another look it is that one, unless it sets a
    limit of its own.
    """
    alias = queue_alias(using)
    if statement_timeout is None and (at := looking(alias)) is not None:
        yield at
        return
    with _opened(alias, None, statement_timeout) as made:
        token = _looking.set((alias, made))
        try:
            yield made
        finally:
            _looking.reset(token)


def looking(using: str | None = None) -> Desk | None:
    """The desk of the look that goes on at this database; None outside of any."""
    shared = _looking.get()
    return shared[1] if shared is not None and shared[0] == queue_alias(using) else None


_looking: ContextVar[tuple[str, Desk] | None] = ContextVar("looking", default=None)


@contextmanager
def _opened(
    alias: str, plane: PlaneName | None, statement_timeout: timedelta | None = None
) -> Iterator[Desk]:
    """A desk of its own.

    Statements run without compiled plans: over rings of partitions a plan looks dear enough for that and never is. A
    caller's transaction has its settings back afterwards; an error undoes the change anyway.
    """
    connection = postgres(alias)
    nested = connection.in_atomic_block
    limit = (
        None if statement_timeout is None else max(1, round(statement_timeout / timedelta(milliseconds=1)))
    )
    with (
        transaction.atomic(using=alias),
        connection.wrap_database_errors,
        job_cursor(alias) as cursor,
    ):
        cursor.execute(statement("control/operations", "open_desk"), {"statement_timeout": limit})
        row = cursor.fetchone()
        assert row is not None
        schema, has_canonical, read_only, jit, timeout, *_ = row
        if plane is None:
            planes = _planes(schema, has_canonical)
        else:
            planes = planes_of(cursor, plane)
        yield Desk(cursor, planes, partial(transaction.atomic, using=alias), read_only=read_only)
        if nested:
            cursor.execute(
                statement("control/operations", "close_desk"), {"jit": jit, "statement_timeout": timeout}
            )


def _pass_tombstones(alias: str, spent: Sequence[Taken]) -> None:
    try:
        with postgres(alias).wrap_database_errors, job_cursor(alias) as cursor:
            pass_tombstones(cursor, spent)
    except Error as error:
        # The change is committed, and whoever claims from the lanes passes them as well.
        logger.info("cursors were not moved past jobs that are gone: %s", said(error))
