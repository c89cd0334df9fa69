"""The operator's side of batch operations: what would be matched, submitting, looking, stopping, forgetting."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from datetime import datetime
from heapq import nsmallest

from awa_django.conf import get_settings
from awa_django.encoding import dump_json
from awa_django.errors import BatchOperationNotFound, ConfigurationError, WrongState
from awa_django.operations.batch.changes import BatchChange, kind_of, spec_of
from awa_django.operations.batch.filters import checked_filter, stored_filter
from awa_django.operations.batch.records import (
    BatchOperation,
    BatchProblems,
    BatchState,
    Preview,
    Problem,
    read_bulk,
    read_operations,
)
from awa_django.operations.batch.walk import Walk
from awa_django.operations.desk import Desk, desk
from awa_django.operations.reading import JobFilter
from awa_django.planes.base import Cursor
from awa_django.sql import statement

__all__ = [
    "BULK_CHANNEL",
    "batch_operation",
    "batch_operations",
    "batch_problems",
    "cancel_batch",
    "has_bulk_table",
    "preview_batch",
    "purge_batches",
    "submit_batch",
    "tell_runners",
]

#: Where workers are told that there is an operation of ours to run or to stop.
BULK_CHANNEL = "awa_django_bulk"
#: Ids that a preview names.
SAMPLE = 10
#: Seconds after which a preview counts no further, so that the page it is on is there within half a second.
PREVIEW_SECONDS = 0.3
#: Looks that it takes in any case: as many as there are places where little lies, however slow the server is just then.
PREVIEW_LOOKS = 12


def has_bulk_table(cursor: Cursor, *, writes: bool = False) -> bool:
    """Whether the table of our own operations is there, and this role may read or also write it.

    A project may not have migrated since it got this release, or a role of another name made the table.
    """
    cursor.execute(statement("control/bulk", "has_table"), {})
    row = cursor.fetchone()
    assert row is not None
    may_read, may_write = row
    return bool(may_read and (may_write or not writes))


def tell_runners(cursor: Cursor) -> None:
    """Have the workers look for operations once the transaction commits."""
    cursor.execute(statement("control/bulk", "tell_runners"), {"channel": BULK_CHANNEL})


def preview_batch(
    change: BatchChange,
    filter: JobFilter | Mapping[str, object],
    *,
    allow_all: bool = False,
    using: str | None = None,
) -> Preview:
    """What an operation would match if it began now; writes nothing.

    Of very many jobs it counts no more than it can at once, and says so.
    """
    chosen = checked_filter(change, filter, allow_all=allow_all)
    seen = looks = 0
    lowest: list[int] = []
    until = time.monotonic() + PREVIEW_SECONDS
    with desk(using) as at:
        walk = Walk.begin(at, change, chosen)
        while walk is not None and (looks < PREVIEW_LOOKS or time.monotonic() < until):
            page, walk = walk.look(at)
            looks += 1
            seen += len(page)
            lowest = nsmallest(SAMPLE, {*lowest, *(job.id for job in page)})
    return Preview(seen, lowest, is_exact=walk is None)


def submit_batch(
    change: BatchChange,
    filter: JobFilter | Mapping[str, object],
    *,
    submitted_by: str | None = None,
    allow_all: bool = False,
    using: str | None = None,
) -> BatchOperation:
    """Store an operation; it begins within a second or two after the commit, when earlier ones are done.

    Which jobs it is about is settled when it begins. Another priority or queue is the leader's work, whichever client
    that is; everything else is done by a worker of this package that takes part in maintenance. Raises
    ``InvalidJob`` for a filter that does not mean what it says.
    """
    kind = kind_of(change)
    chosen = checked_filter(change, filter, allow_all=allow_all)
    values = {
        "id": uuid.uuid4(),
        "op_kind": kind.name,
        "filter": dump_json(stored_filter(chosen)),
        "spec": dump_json(spec_of(change)),
        "submitted_by": submitted_by,
    }
    with desk(using) as at:
        if kind.is_wire:
            (operation,) = read_operations(at.cursor, "submit", **values)
        else:
            if not has_bulk_table(at.cursor, writes=True):
                raise ConfigurationError(
                    "batch operations need table awa_django_batchoperation, and the rights to write to it; run "
                    "manage.py migrate, and grant what manage.py awa_sql --grants-only --grant-to ROLE prints"
                )
            (operation,) = read_bulk(at.cursor, "submit", **values)
            tell_runners(at.cursor)
    return operation


def batch_operation(operation_id: uuid.UUID | str, *, using: str | None = None) -> BatchOperation:
    """One operation; raises ``BatchOperationNotFound``."""
    with desk(using) as at:
        return _one(at, operation_id)


def batch_operations(
    state: BatchState | str | None = None, *, limit: int = 100, using: str | None = None
) -> list[BatchOperation]:
    """Operations, the newest first, at most 1000; a state that there is not has none."""
    most = max(1, min(limit, 1000))
    with desk(using) as at:
        found = read_operations(at.cursor, "list", state=state, limit=most)
        if has_bulk_table(at.cursor):
            found += read_bulk(at.cursor, "list", state=state, limit=most)
    found.sort(key=lambda operation: (operation.submitted_at, operation.id), reverse=True)
    return found[:most]


def batch_problems(
    operation_id: uuid.UUID | str, *, limit: int = 100, using: str | None = None
) -> BatchProblems:
    """What of an operation did not go through; raises ``BatchOperationNotFound``."""
    with desk(using) as at:
        operation = _one(at, operation_id)
        values = {"id": operation.id, "limit": max(0, limit)}
        if operation.is_wire:
            at.cursor.execute(statement("control/batch", "problems"), values)
        else:
            at.cursor.execute(statement("control/bulk", "problems"), values)
        return BatchProblems(operation.skip_reasons, [Problem(*row) for row in at.cursor.fetchall()])


def cancel_batch(operation_id: uuid.UUID | str, *, using: str | None = None) -> BatchOperation:
    """Have an operation stop after the jobs it is at; what is left counts as skipped.

    One of ours that has not begun is over at once. Raises ``BatchOperationNotFound``, or ``WrongState`` for one that
    has ended or is being stopped.
    """
    wanted = _uuid(operation_id)
    with desk(using) as at:
        for operation in read_operations(at.cursor, "request_cancel", id=wanted):
            return operation
        if has_bulk_table(at.cursor, writes=True):
            retention = get_settings().batch_operation_retention
            for operation in read_bulk(at.cursor, "request_cancel", id=wanted, retention=retention):
                tell_runners(at.cursor)
                return operation
        found = _one(at, wanted)
    raise WrongState(f"batch operation {operation_id} is {found.state}")


def purge_batches(before: datetime, *, limit: int = 1000, using: str | None = None) -> int:
    """Forget operations that ended before an instant, the oldest first; returns how many.

    Those whose ``retention_until`` has passed are forgotten without it.
    """
    if before.tzinfo is None:
        raise ValueError(f"before: an aware instant is needed, not {before!r}")
    with desk(using) as at:
        subjects = ["control/batch", *(["control/bulk"] if has_bulk_table(at.cursor, writes=True) else [])]
        purged = 0
        for subject in subjects:
            at.cursor.execute(statement(subject, "purge"), {"before": before, "limit": limit - purged})
            purged += max(at.cursor.rowcount, 0)
    return purged


def _one(at: Desk, operation_id: uuid.UUID | str) -> BatchOperation:
    wanted = _uuid(operation_id)
    for operation in read_operations(at.cursor, "load", id=wanted):
        return operation
    if has_bulk_table(at.cursor):
        for operation in read_bulk(at.cursor, "load", id=wanted):
            return operation
    raise BatchOperationNotFound(f"there is no batch operation {operation_id}")


def _uuid(operation_id: uuid.UUID | str) -> uuid.UUID:
    if isinstance(operation_id, uuid.UUID):
        return operation_id
    try:
        return uuid.UUID(operation_id)
    except (ValueError, AttributeError, TypeError):
        raise BatchOperationNotFound(f"{operation_id!r} is no id of a batch operation") from None
