"""Going on with batch operations that only we know: jobs are looked for, then changed, a chunk in each transaction.

One runner of a database works at a time, in whichever process; it holds the runners' lock for as long as there is
something to do. All that is known is in the operation's row and commits with the chunk, so another runner goes on where
this one stops or dies. A runner need not lead the fleet, whose leader may be a client of another kind.
(contract: api/admin_ops section 5; ADR-024)
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg

from awa_django import telemetry
from awa_django.conf import Settings
from awa_django.encoding import dump_json
from awa_django.errors import ConfigurationError, said, without_details
from awa_django.jobs import Job
from awa_django.operations.batch import (
    BatchOperation,
    BatchState,
    Found,
    Walk,
    has_bulk_table,
    kind_of,
    read_bulk,
    read_filter,
    tell_runners,
)
from awa_django.operations.change import Changed, Reason, change_chosen, narrowed
from awa_django.operations.desk import Desk, planes_of
from awa_django.planes.base import Cursor
from awa_django.planes.queue_storage.operate import pass_all_tombstones
from awa_django.sql import statement

__all__ = ["RUNNER_KEY", "BulkRunner", "has_work"]

logger = logging.getLogger("awa_django.maintenance")

#: The advisory lock of the runners of our operations: "awa_bulk".
RUNNER_KEY = int.from_bytes(b"awa_bulk")
#: Seconds that one chunk should take: what it locks is locked for so long.
CHUNK_SECONDS = 0.08
#: Jobs of the first chunk, and of any. A job costs some 0.16 ms, whether there are 100 of them at once or 500.
FIRST_CHUNK = 100
LARGEST_CHUNK = 500
#: The part of a chunk's time for which the runner pauses after it, for those who waited and for the handlers beside it.
PAUSE = 0.2
#: Milliseconds that a statement waits for what somebody else holds.
LOCK_TIMEOUT = 1000
#: Attempts at a job that somebody else holds, before it is left alone.
LOCK_ATTEMPTS = 3
#: Jobs of which is noted why they did not change, for each reason.
NOTED = 100
#: Seconds between two signs that a runner is at it, while it only looks.
SIGN_SECONDS = 1.0
#: Seconds without a sign after which another process looks after an operation.
SILENCE_SECONDS = 5.0
_ONCE_MORE = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
_HELD_UP = (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)
#: What is wrong with a statement or its values, and not with the moment.
_HOPELESS = (psycopg.DataError, psycopg.ProgrammingError)


class _Cannot(Exception):
    """An operation that nobody can run: its stored words say nothing that can be done."""


class _Moved(Exception):
    """The operation is not where it was left: somebody stopped it, or ran on with it."""


class _Chunk(NamedTuple):
    """What became of some jobs. ``errors`` are those that the database refused, with its words."""

    changed: Changed
    missed: int = 0
    errors: Mapping[int, str] = {}


def has_work(cursor: Cursor) -> bool:
    """Whether an operation waits for a runner, or some are to be forgotten. Cheap; in the caller's transaction."""
    if not has_bulk_table(cursor, writes=True):
        return False
    cursor.execute(statement("control/bulk", "has_work"), {"silence": f"{SILENCE_SECONDS} seconds"})
    return cursor.fetchone() == (True,)


@dataclass(slots=True)
class BulkRunner:
    """Works off the operations, the one submitted first first, on a session of its own in autocommit.

    ``stopping`` is asked between chunks, ``pause`` waits so many seconds, or less if it is to stop.
    """

    connection: psycopg.Connection[Any]
    settings: Settings
    stopping: Callable[[], bool] = lambda: False
    pause: Callable[[float], object] = time.sleep
    runner: uuid.UUID = field(default_factory=uuid.uuid4)

    def run(self) -> bool:
        """Work until nothing is left; False if another runner is at it, or this one was asked to stop."""
        with self.connection.cursor() as cursor:
            if not has_bulk_table(cursor, writes=True):
                return True
            cursor.execute(statement("control/bulk", "try_runner"), {"key": RUNNER_KEY})
            if cursor.fetchone() != (True,):
                return False
            cursor.execute(statement("control/bulk", "limit_waits"), {"milliseconds": str(LOCK_TIMEOUT)})
            try:
                self._forget(cursor)
                while not self.stopping():
                    found = read_bulk(cursor, "next")
                    if not found:
                        return True
                    self._go_on(found[0])
                tell_runners(cursor)
                return False
            finally:
                if not self.connection.closed:
                    cursor.execute(statement("control/bulk", "release_runner"), {"key": RUNNER_KEY})

    def _forget(self, cursor: Cursor) -> None:
        cursor.execute(statement("control/bulk", "expire"), {"limit": 1000})
        if cursor.rowcount > 0:
            logger.info("cleanup of bulk operations: %d rows removed", cursor.rowcount)

    def _go_on(self, operation: BatchOperation) -> None:
        """Run one operation as far as it goes before somebody says stop."""
        try:
            if operation.state is BatchState.CANCELLING:
                self._finish(operation, BatchState.CANCELLED)
                return
            run = _Run.of(self, operation)
            if operation.state is not BatchState.RUNNING:
                run.count()
            run.change()
        except _Cannot as fault:
            self._finish(operation, BatchState.FAILED, error=str(fault))
        except _HOPELESS as error:
            # Tried again it would fail again, and keep those behind it waiting for ever.
            without_details(error)
            logger.exception("batch operation %s cannot go on", operation.id)
            with self.connection.cursor() as cursor:
                for now in read_bulk(cursor, "load", id=operation.id):
                    self._finish(now, BatchState.FAILED, error=said(error))
        except _Moved:
            return

    def _finish(self, operation: BatchOperation, state: BatchState, *, error: str | None = None) -> None:
        with self.connection.transaction(), self.connection.cursor() as cursor:
            ended = read_bulk(
                cursor,
                "finish",
                id=operation.id,
                runner=self.runner,
                state=state.value,
                from_state=operation.state.value,
                retention=self.settings.batch_operation_retention,
                error=error,
                rest_reason="moved_on" if state is BatchState.COMPLETED else "stopped",
            )
        for over in ended:
            logger.log(
                logging.ERROR if state is BatchState.FAILED else logging.INFO,
                "batch operation %s (%s) %s: %d changed, %d skipped, %d failed%s",
                over.id, over.description, over.state, over.processed, over.skipped, over.errored,
                f"; {error}" if error else "",
            )  # fmt: skip
        self._pass_tombstones()

    def _pass_tombstones(self) -> None:
        """Move claim cursors past what was lifted off its lanes, highest id first, so not chunk by chunk."""
        try:
            with self.connection.transaction(), self.connection.cursor() as cursor:
                pass_all_tombstones(cursor)
        except (*_HELD_UP, *_ONCE_MORE) as error:
            # Whoever claims from the lane passes them as well.
            logger.info("cursors were not moved past jobs that are gone: %s", said(error))


@dataclass(slots=True)
class _Run:
    """One operation in the hands of a runner. ``mark`` is the cursor that it stored last."""

    of_runner: BulkRunner
    operation: BatchOperation
    walk: Walk | None
    round: int
    mark: Mapping[str, Any]
    size: int = field(default_factory=lambda: FIRST_CHUNK)

    @classmethod
    def of(cls, runner: BulkRunner, operation: BatchOperation) -> _Run:
        """Take an operation up where it is, or begin with it."""
        try:
            change = operation.change
            chosen = read_filter(operation.filter, is_wire=False)
            kind_of(change).states(change)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise _Cannot(f"filter or spec cannot be understood: {error}") from error
        with runner.connection.transaction(), runner.connection.cursor() as cursor:
            mark = operation.cursor
            if mark is None:
                try:
                    planes = planes_of(cursor)
                except ConfigurationError as error:
                    raise _Cannot(str(error)) from error
                beginning = Walk.begin(Desk(cursor, planes, runner.connection.transaction), change, chosen)
                mark = _mark(beginning, 1)
            if operation.state is not BatchState.RUNNING:
                begun = read_bulk(
                    cursor, "begin", id=operation.id, runner=runner.runner, mark=dump_json(mark)
                )
                if not begun:
                    raise _Moved
                operation = begun[0]
            try:
                walk = None if mark["plane"] is None else Walk.restore(change, chosen, mark)
                return cls(runner, operation, walk, int(mark["round"]), mark)
            except (ValueError, TypeError, LookupError) as error:
                raise _Cannot(f"cursor cannot be understood: {error}") from error

    # -- looking ---------------------------------------------------------------------------------------

    def count(self) -> None:
        """Find out how many jobs are meant, so that there is a whole to be a part of. Locks nothing."""
        total, walk = 0, self.walk
        told = time.monotonic()
        while walk is not None:
            if self.of_runner.stopping():
                raise _Moved
            found, walk = walk.look(self._desk(self.of_runner.connection.cursor()))
            total += len(found)
            if time.monotonic() > told + SIGN_SECONDS:
                self._give_sign()
                told = time.monotonic()
        self._execute("counted", id=self.operation.id, total=total)

    def _give_sign(self) -> None:
        """Say that somebody is at it; raises ``_Moved`` if the operation is to stop."""
        if self._execute("counting", id=self.operation.id, runner=self.of_runner.runner) != 1:
            raise _Moved

    def _execute(self, name: str, **values: Any) -> int:
        with self.of_runner.connection.cursor() as cursor:
            cursor.execute(statement("control/bulk", name), values)
            return cursor.rowcount

    # -- changing --------------------------------------------------------------------------------------

    def change(self) -> None:
        """Change what is meant, chunk by chunk, to the end; raises ``_Moved`` when told to stop."""
        self.operation = self._reread()
        told = time.monotonic()
        while self.walk is not None:
            looked_from = self.walk
            found, following = looked_from.look(self._desk(self.of_runner.connection.cursor()))
            while found:
                if self.of_runner.stopping():
                    raise _Moved
                chunk, found = found[: self.size], found[self.size :]
                self._change(looked_from, chunk, looked_from.after(chunk[-1]) if found else following)
                told = time.monotonic()
            self.walk = following
            if self.walk is None and self.round < kind_of(looked_from.change).rounds:
                self.round += 1
                self.walk = looked_from.again()
            if self.of_runner.stopping():
                self._keep()
                raise _Moved
            if time.monotonic() > told + SIGN_SECONDS:
                self._keep()
                told = time.monotonic()
        self.of_runner._finish(self.operation, BatchState.COMPLETED)

    def _keep(self) -> None:
        """Store how far the looks have come that found nothing, which also says that somebody is at it."""
        with self.of_runner.connection.transaction(), self.of_runner.connection.cursor() as cursor:
            reasons, problems = self._hold(cursor)
            mark = self._settle(cursor, _Chunk(Changed()), self.walk, reasons, problems)
        self.mark = mark

    def _reread(self) -> BatchOperation:
        with self.of_runner.connection.cursor() as cursor:
            for operation in read_bulk(cursor, "load", id=self.operation.id):
                if operation.state is BatchState.RUNNING:
                    return operation
        raise _Moved

    def _change(self, walk: Walk, found: Sequence[Found], following: Walk | None) -> None:
        """Change one chunk. Where the whole cannot be done, its jobs one by one, to find out which is to blame."""
        job_ids = [job.id for job in found]
        began = time.monotonic()
        for attempt in range(1, LOCK_ATTEMPTS + 1):
            try:
                done = self._attempt(walk, job_ids, following)
            except _ONCE_MORE:
                if attempt < LOCK_ATTEMPTS:
                    continue
            except _HELD_UP:
                self.size = max(1, self.size // 4)
            except (_Moved, psycopg.OperationalError):
                raise
            except Exception:
                logger.debug("batch operation %s goes on job by job", self.operation.id)
            else:
                self._count(walk, done)
                self._fit(len(found), max(time.monotonic() - began, 0.001))
                return
            self._one_by_one(walk, found, following)
            return

    def _fit(self, jobs: int, took: float) -> None:
        """Make the next chunk as large as fits into its time, and give others some time now."""
        fitting = round(jobs * CHUNK_SECONDS / took)
        if jobs == self.size or fitting < self.size:
            self.size = min(max(fitting, self.size // 2, 1), self.size * 2, LARGEST_CHUNK)
        self.of_runner.pause(took * PAUSE)

    def _one_by_one(self, walk: Walk, found: Sequence[Found], following: Walk | None) -> None:
        for place, job in enumerate(found, 1):
            if self.of_runner.stopping():
                raise _Moved
            self._single(walk, job, following if place == len(found) else walk.after(job))

    def _single(self, walk: Walk, job: Found, following: Walk | None) -> None:
        """Change one job, or note why it cannot be changed."""
        for attempt in range(1, LOCK_ATTEMPTS + 1):
            try:
                self._count(walk, self._attempt(walk, [job.id], following))
                return
            except (*_HELD_UP, *_ONCE_MORE) as error:
                if attempt == LOCK_ATTEMPTS:
                    self._note_error(job, following, f"somebody else holds it: {said(error)}")
            except (_Moved, psycopg.OperationalError):
                raise
            except Exception as error:
                without_details(error)
                logger.exception("batch operation %s could not change job %d", self.operation.id, job.id)
                self._note_error(job, following, said(error))
                return

    def _attempt(self, walk: Walk, job_ids: Sequence[int], following: Walk | None) -> Sequence[Job]:
        """Change jobs and store what became of them, in one transaction."""
        connection = self.of_runner.connection
        if self.round > 1:
            # Those that could not be changed had their turn.
            failed = self._failed_before()
            job_ids = [job_id for job_id in job_ids if job_id not in failed]
        verb = narrowed(
            kind_of(walk.change).verb(walk.change),
            walk.filter,
            passes=lambda taken: walk.ended_in_time(taken.state, taken.finalized_at),
        )
        with (
            telemetry.current().duty("batch operations"),
            connection.transaction(),
            connection.cursor() as cursor,
        ):
            reasons, problems = self._hold(cursor)
            at = self._desk(cursor)
            changed = change_chosen(at, walk.on, verb, job_ids)
            missed = len(job_ids) - len(changed.jobs) - len(changed.skipped)
            if kind_of(walk.change).rounds > 1:
                # What moved on may yet be met where it went; what is not is accounted for at the end.
                missed = 0
            mark = self._settle(cursor, _Chunk(changed, missed), following, reasons, problems)
        self.mark = mark
        return changed.jobs

    def _count(self, walk: Walk, done: Sequence[Job]) -> None:
        """Tell the meters, after the commit."""
        if (counted := kind_of(walk.change).counted) is not None and telemetry.current().metering:
            counted(walk.change, done)

    def _note_error(self, job: Found, following: Walk | None, text: str) -> None:
        with self.of_runner.connection.transaction(), self.of_runner.connection.cursor() as cursor:
            reasons, problems = self._hold(cursor)
            chunk = _Chunk(Changed(), errors={job.id: text})
            mark = self._settle(cursor, chunk, following, reasons, problems)
        self.mark = mark

    def _failed_before(self) -> set[int]:
        with self.of_runner.connection.cursor() as cursor:
            cursor.execute(
                statement("control/bulk", "problems"), {"id": self.operation.id, "limit": 2 * NOTED}
            )
            return {job_id for job_id, reason, _ in cursor.fetchall() if reason == "error"}

    def _hold(self, cursor: Cursor) -> tuple[dict[str, int], list[dict[str, Any]]]:
        """Lock the operation where it was left; its reasons and problems. Raises ``_Moved`` if it is elsewhere."""
        cursor.execute(statement("control/bulk", "hold"), {"id": self.operation.id})
        row = cursor.fetchone()
        if row is None or row[0] != BatchState.RUNNING or row[1] != self.mark:
            raise _Moved
        return row[2], row[3]

    def _settle(
        self,
        cursor: Cursor,
        chunk: _Chunk,
        following: Walk | None,
        reasons: dict[str, int],
        problems: list[dict[str, Any]],
    ) -> dict[str, Any]:
        """Store what became of a chunk, and where to go on, which is returned."""
        skipped = Counter(item.reason.value for item in chunk.changed.skipped)
        if chunk.missed:
            skipped["moved_on"] += chunk.missed
        for reason, count in skipped.items():
            reasons[reason] = reasons.get(reason, 0) + count
        noted = _noted(chunk, problems)
        errors = [f"job_id={job_id}: {text}" for job_id, text in chunk.errors.items()]
        mark = _mark(following, self.round)
        cursor.execute(
            statement("control/bulk", "settle"),
            {
                "id": self.operation.id,
                "runner": self.of_runner.runner,
                "processed": len(chunk.changed.jobs),
                "skipped": skipped.total(),
                "errored": len(chunk.errors),
                "skip_reasons": dump_json(reasons),
                "problems": dump_json([*problems, *noted]) if noted else None,
                "error": errors[-1] if errors else None,
                "mark": dump_json(mark),
            },
        )
        return mark

    def _desk(self, cursor: Cursor) -> Desk:
        return Desk(cursor, [], self.of_runner.connection.transaction)


def _mark(walk: Walk | None, round: int) -> dict[str, Any]:
    """Where to go on, as it is stored; at the end of all places there is none."""
    place = {"plane": None} if walk is None else walk.mark
    return {**place, "round": round}


def _noted(chunk: _Chunk, problems: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Jobs to be named as problems, as long as there are not too many of their sort."""
    had = Counter(problem["reason"] for problem in problems)
    conflicts = [item for item in chunk.changed.skipped if item.reason is Reason.UNIQUE_CONFLICT]
    return [
        *(
            {"job_id": job_id, "reason": "error", "text": text}
            for job_id, text in list(chunk.errors.items())[: max(0, NOTED - had["error"])]
        ),
        *(
            {"job_id": item.job_id, "reason": item.reason.value, "text": item.why}
            for item in conflicts[: max(0, NOTED - had[Reason.UNIQUE_CONFLICT.value])]
        ),
    ]
