"""Where an operator's function works: one transaction, one cursor, and the planes that may hold the jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import transaction

from awa_django.db import job_cursor, postgres
from awa_django.enqueue import queue_alias
from awa_django.errors import ConfigurationError
from awa_django.jobs import Taken
from awa_django.planes.base import Cursor, Plane
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.planes.queue_storage.operate import pass_tombstones
from awa_django.planes.records import PlaneName
from awa_django.sql import statement

__all__ = ["Desk", "desk", "planes_of"]

_SCHEMA = "awa"


@dataclass(frozen=True, slots=True)
class Desk:
    """What a function of this package works with.

    ``planes`` are those that may hold the jobs, in the order in which they are asked: an id may name a job on each.
    ``savepoint`` begins what can be undone alone. ``spent`` collects jobs that were lifted off their lanes; whoever
    made the desk moves the cursors past them after the commit.
    """

    cursor: Cursor
    planes: Sequence[Plane]
    savepoint: Callable[[], AbstractContextManager[Any]]
    spent: list[Taken] = field(default_factory=list)


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
    schema = None if row is None else row[0]
    if schema is None:
        return [CanonicalPlane()]
    if schema != _SCHEMA:
        raise ConfigurationError(
            f"queue storage is active in schema {schema!r}; this release serves {_SCHEMA!r} only"
        )
    return [QueueStoragePlane(), CanonicalPlane()]


@contextmanager
def desk(using: str | None = None, plane: PlaneName | None = None) -> Iterator[Desk]:
    """A desk on Django's connection of the queue's database, in the caller's transaction or else in one of its own.

    Database errors arrive as ``django.db``'s; with any, what was done here is undone and the caller's transaction
    stays usable.
    """
    alias = queue_alias(using)
    connection = postgres(alias)
    with (
        transaction.atomic(using=alias),
        connection.wrap_database_errors,
        job_cursor(alias) as cursor,
        _uncompiled(cursor),
    ):
        made = Desk(cursor, planes_of(cursor, plane), partial(transaction.atomic, using=alias))
        yield made
        if made.spent:
            transaction.on_commit(partial(_pass_tombstones, alias, made.spent), using=alias, robust=True)


@contextmanager
def _uncompiled(cursor: Cursor) -> Iterator[None]:
    """Without compiled plans: over rings of partitions a plan looks dear enough for that and never is.

    A caller's transaction has its setting back afterwards; an error undoes the change anyway.
    """
    cursor.execute(statement("control/operations", "jit_off"))
    row = cursor.fetchone()
    yield
    if row is not None and row[0] == "on":
        cursor.execute(statement("control/operations", "jit_on"))


def _pass_tombstones(alias: str, spent: Sequence[Taken]) -> None:
    with postgres(alias).wrap_database_errors, job_cursor(alias) as cursor:
        pass_tombstones(cursor, spent)
