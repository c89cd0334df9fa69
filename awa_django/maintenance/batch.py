"""Going on with batch operations: the jobs of one are collected, then changed, a chunk at a time.

One runner of the fleet works at a time, whichever leader it is; it holds the runners' lock for one turn. All that is
known is in the tables, so the next leader goes on where this one stops. (contract: api/admin_ops section 5)
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg

from awa_django.conf import Settings
from awa_django.errors import said, without_details
from awa_django.maintenance import Context, Duty
from awa_django.operations.batch import (
    BatchChange,
    BatchOperation,
    BatchState,
    eligible_states,
    read_filter,
    read_operations,
    verb_of,
)
from awa_django.operations.change import Verb, change_on, narrowed
from awa_django.operations.desk import Desk, planes_of
from awa_django.operations.reading import JobFilter, waiting_ids
from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor, Plane
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage.operate import pass_tombstones
from awa_django.planes.queue_storage.rings import Look
from awa_django.sql import statement

__all__ = ["BatchRunner", "duties"]

logger = logging.getLogger("awa_django.maintenance")

INTERVAL = timedelta(seconds=1)
#: Jobs that are changed in one turn.
CHUNK = 100
#: Ids that are collected by one statement.
PAGE = 10_000
#: Ids come from the sequence of the plane that the jobs are on.
_SEQUENCES = {"queue_storage": "awa.job_id_seq", "canonical": "awa.jobs_id_seq"}


class _Cannot(Exception):
    """An operation that nobody can run: its stored words say nothing that can be done."""


@dataclass(slots=True)
class BatchRunner:
    """Goes on with the operation that was submitted first, a chunk in each turn."""

    retention: timedelta
    runner: uuid.UUID = field(default_factory=uuid.uuid4)

    def when(self, seen: Look) -> float | None:
        """Worth a turn while any operation is unfinished."""
        return 0.0 if seen.operations else None

    def run(self, context: Context) -> bool:
        """One turn; True if there is more to do at once. Does nothing while another runner has its turn."""
        with context.connection.cursor() as cursor:
            cursor.execute(statement("control/batch", "try_runner"))
            if cursor.fetchone() != (True,):
                return False
            try:
                found = read_operations(cursor, "next")
                return bool(found) and self._turn(context, found[0])
            finally:
                if not context.connection.closed:
                    cursor.execute(statement("control/batch", "release_runner"))

    def _turn(self, context: Context, operation: BatchOperation) -> bool:
        try:
            match operation.state:
                case BatchState.PENDING | BatchState.SCANNING:
                    return self._collect(context, operation)
                case BatchState.RUNNING:
                    return self._work(context, operation)
                case BatchState.CANCELLING:
                    return self._finish(context, operation, BatchState.CANCELLED)
        except _Cannot as fault:
            return self._finish(context, operation, BatchState.FAILED, str(fault))
        return False

    def _collect(self, context: Context, operation: BatchOperation) -> bool:
        """Note every job that the filter matches now, a page in each transaction."""
        chosen, change = _meaning(operation)
        with context.connection.transaction(), context.connection.cursor() as cursor:
            plane, _ = _place(cursor, operation, verb_of(change), chosen)
            begun = read_operations(
                cursor, "begin", id=operation.id, runner=self.runner, ids=_SEQUENCES[plane.name]
            )
        if not begun or begun[0].cursor is None:
            return True
        after, until = int(begun[0].cursor["after_job_id"]), int(begun[0].cursor["max_job_id"])
        while not context.stopping():
            with context.connection.transaction(), context.connection.cursor() as cursor:
                at = _desk(context, cursor, plane)
                page = waiting_ids(
                    at, plane, eligible_states(change, chosen), chosen, after=after, until=until, limit=PAGE
                ).ids
                after = page[-1] if page else until
                cursor.execute(
                    statement("control/batch", "collect"),
                    {"id": operation.id, "after": after, "job_ids": ints(page)},
                )
                if cursor.fetchone() is None:
                    return True
                if len(page) < PAGE:
                    cursor.execute(statement("control/batch", "collected"), {"id": operation.id})
                    return True
        return False

    def _work(self, context: Context, operation: BatchOperation) -> bool:
        """Change the next chunk; if that fails, its jobs one by one, to find out which is to blame."""
        chosen, change = _meaning(operation)
        with context.connection.cursor() as cursor:
            cursor.execute(statement("control/batch", "items"), {"id": operation.id, "limit": CHUNK})
            items = [row[0] for row in cursor.fetchall()]
            plane, guarded = _place(cursor, operation, verb_of(change), chosen)
        if not items:
            return self._finish(context, operation, BatchState.COMPLETED)
        try:
            self._change(context, operation, plane, guarded, items)
        except psycopg.OperationalError:
            raise
        except Exception:
            for job_id in items:
                if context.stopping():
                    return False
                try:
                    self._change(context, operation, plane, guarded, [job_id])
                except psycopg.OperationalError:
                    raise
                except Exception as error:
                    without_details(error)
                    logger.exception("batch operation %s could not change job %d", operation.id, job_id)
                    with context.connection.transaction(), context.connection.cursor() as cursor:
                        self._settle(cursor, operation, [job_id], "errored", said(error))
        return True

    def _change(
        self,
        context: Context,
        operation: BatchOperation,
        plane: Plane,
        verb: Verb,
        job_ids: Sequence[int],
    ) -> None:
        """Change some jobs and note what became of each, in one transaction."""
        with context.connection.transaction(), context.connection.cursor() as cursor:
            at = _desk(context, cursor, plane)
            changed = change_on(at, plane, verb, job_ids)
            self._settle(cursor, operation, changed.ids, "processed")
            self._settle(cursor, operation, [item.job_id for item in changed.skipped], "skipped")
        if at.spent:
            with context.connection.transaction(), context.connection.cursor() as cursor:
                pass_tombstones(cursor, at.spent)

    def _settle(
        self,
        cursor: Cursor,
        operation: BatchOperation,
        job_ids: Sequence[int],
        state: str,
        error: str | None = None,
    ) -> None:
        if job_ids:
            cursor.execute(
                statement("control/batch", "settle_items"),
                {
                    "id": operation.id,
                    "runner": self.runner,
                    "job_ids": ints(job_ids),
                    "states": [state] * len(job_ids),
                    "errors": [error] * len(job_ids),
                },
            )

    def _finish(
        self, context: Context, operation: BatchOperation, state: BatchState, error: str | None = None
    ) -> bool:
        with context.connection.transaction(), context.connection.cursor() as cursor:
            ended = read_operations(
                cursor,
                "finish",
                id=operation.id,
                runner=self.runner,
                state=state.value,
                from_state=operation.state.value,
                retention=self.retention,
                error=error,
            )
        for over in ended:
            logger.log(
                logging.ERROR if state is BatchState.FAILED else logging.INFO,
                "batch operation %s (%s) %s: %d changed, %d skipped, %d failed%s",
                over.id, over.op_kind, over.state, over.processed, over.skipped, over.errored,
                f"; {error}" if error else "",
            )  # fmt: skip
        return True


def _meaning(operation: BatchOperation) -> tuple[JobFilter, BatchChange]:
    """Which jobs an operation is about and what is done to them."""
    try:
        return read_filter(operation.filter), operation.change
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise _Cannot(f"filter or spec cannot be understood: {error}") from error


def _place(cursor: Cursor, operation: BatchOperation, verb: Verb, chosen: JobFilter) -> tuple[Plane, Verb]:
    """The plane that the ids of an operation are of, and its verb for the jobs there that are meant.

    That is where new jobs go. Where they have gone elsewhere since it began, its ids are those of canonical jobs,
    which by now may be other jobs of queue storage as well: none is meant that is younger than the operation.
    """
    plane = planes_of(cursor)[0]
    cursor.execute(statement("control/batch", "storage"))
    row = cursor.fetchone()
    began = operation.started_at
    if row is None or began is None or row[1] <= began:
        return plane, narrowed(verb, chosen)
    if row[0] == "mixed_transition":
        plane = CanonicalPlane()
    return plane, narrowed(verb, chosen, passes=lambda taken: taken.created_at <= began)


def _desk(context: Context, cursor: Cursor, plane: Plane) -> Desk:
    return Desk(cursor, [plane], context.connection.transaction)


def duties(settings: Settings) -> list[Duty]:
    """The runner, as a line of the timetable."""
    runner = BatchRunner(settings.batch_operation_retention)
    return [Duty("batch operations", INTERVAL, runner.run, runner.when)]
