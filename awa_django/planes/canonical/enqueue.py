"""Many jobs at once, straight into the job tables (contract: schema section 4.1).

Triggers claim unique keys row by row and wake the workers of jobs that are due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import psycopg

from awa_django.encoding import dump_json
from awa_django.errors import UniqueConflict
from awa_django.jobs import JobInsert, claims
from awa_django.planes.base import Cursor
from awa_django.sql import statement
from awa_django.validation import warn_of_size

__all__ = ["copy_jobs", "enqueue"]

_UNIQUE_INDEX = "idx_awa_jobs_unique"


def enqueue(cursor: Cursor, jobs: Sequence[JobInsert]) -> int:
    """Store all of these jobs or, with ``UniqueConflict``, none; returns how many. In a savepoint of its own."""
    try:
        with cursor.connection.transaction():
            return len(copy_jobs(cursor, jobs))
    except psycopg.errors.UniqueViolation as error:
        if error.diag.constraint_name != _UNIQUE_INDEX:
            raise
        _raise_conflict(cursor, jobs, error)


def copy_jobs(
    cursor: Cursor, jobs: Sequence[JobInsert], *, ids: Sequence[int] | None = None
) -> Sequence[int]:
    """Store jobs in the caller's transaction and return their ids, in the order given.

    ``ids`` gives every job its id. A unique key that is held raises the driver's error; to avoid waiting for each
    other, let batches come with their keys ascending. The connection must not be in pipeline mode.
    """
    if not jobs:
        return ()
    if ids is None:
        cursor.execute(statement("canonical/enqueue", "reserve_ids"), {"total": len(jobs)})
        ids = [job_id for (job_id,) in cursor.fetchall()]
    ready = [(job_id, job) for job_id, job in zip(ids, jobs, strict=True) if job.run_at is None]
    waiting = [(job_id, job) for job_id, job in zip(ids, jobs, strict=True) if job.run_at is not None]
    if ready:
        _copy(cursor, "copy_hot", [_row(job_id, job) for job_id, job in ready])
    if waiting:
        _copy(cursor, "copy_scheduled", [(*_row(job_id, job), job.run_at) for job_id, job in waiting])
    return ids


def _copy(cursor: Cursor, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
    with cursor.copy(statement("canonical/enqueue", name)) as copy:
        for row in rows:
            copy.write_row(row)


def _row(job_id: int, job: JobInsert) -> tuple[Any, ...]:
    args = dump_json(job.args)
    warn_of_size(job.kind, args)
    return (
        job_id,
        job.kind,
        job.queue,
        args,
        job.priority,
        job.max_attempts,
        dump_json(job.metadata),
        list(job.tags),
        job.unique_key,
        job.unique_states,
    )


def _raise_conflict(cursor: Cursor, jobs: Sequence[JobInsert], error: psycopg.Error) -> NoReturn:
    """Say which job met the key of which: of this batch, or one that is stored."""
    wanted: dict[bytes, JobInsert] = {}
    repeated: JobInsert | None = None
    for job in jobs:
        if job.unique_key is not None and claims(job.unique_key, job.unique_states, job.state):
            if job.unique_key in wanted:
                repeated = repeated or job
            wanted.setdefault(job.unique_key, job)
    cursor.execute(statement("control/enqueue", "holders"), {"unique_keys": list(wanted)})
    for key, holder_id in cursor.fetchall():
        raise UniqueConflict(bytes(key), holder_id, wanted[bytes(key)].kind) from error
    if repeated is not None:
        raise UniqueConflict(repeated.unique_key or b"", None, repeated.kind) from error
    raise error  # the holder has let go since; the caller may try again
