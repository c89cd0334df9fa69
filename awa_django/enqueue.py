"""Storing jobs in the caller's transaction.

:func:`enqueue` and :func:`enqueue_many` check what they are given, then insert on Django's connection of the
queue's database: jobs commit or roll back with the rows around them, and no commit hook is needed. Where the
queue lives in another database than the open transaction, that is impossible; jobs are then stored after
that transaction has committed, and ``manage.py check`` says so (``awa.W002``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple, NoReturn, overload

from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from awa_django import telemetry
from awa_django.conf import get_settings
from awa_django.db import plain_cursor, postgres
from awa_django.encoding import dump_json
from awa_django.errors import InvalidJob, SchemaOutOfDate, UniqueConflict
from awa_django.jobs import Job, JobInsert, claims
from awa_django.planes.base import Cursor
from awa_django.planes.canonical.enqueue import copy_jobs as copy_canonical
from awa_django.planes.queue_storage.enqueue import Copied, copy_jobs
from awa_django.sql import statement
from awa_django.telemetry import Telemetry
from awa_django.validation import validated, warn_of_size

__all__ = [
    "Enqueued",
    "OnConflict",
    "OnInvalid",
    "aenqueue",
    "aenqueue_many",
    "enqueue",
    "enqueue_many",
    "insert_jobs",
    "queue_alias",
    "stamped",
    "store",
    "store_many",
]

logger = logging.getLogger("awa_django.enqueue")

OnConflict = Literal["holder", "raise", "skip"]
OnInvalid = Literal["raise", "skip"]

#: The schema that our statements write to; another one goes through the database's insert function.
_SCHEMA = "awa"
_UNIQUE_INDEX = "idx_awa_jobs_unique"
_CHECK_VIOLATION, _UNIQUE_VIOLATION = "23514", "23505"
_NO_SUCH_TABLE, _NO_SUCH_SCHEMA, _NO_SUCH_FUNCTION = "42P01", "3F000", "42883"
#: How often a unique key may change hands while one call looks at it.
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What came of a batch.

    ``ids`` has one entry for each job given, in that order: the id of the job stored; for a duplicate the
    holder's id, or None with ``on_conflict="skip"``; None for a job that was invalid. ``count`` says how many
    were stored, ``duplicates`` has pairs of an index and the id of the job that holds its unique key.
    """

    ids: Sequence[int | None] = ()
    count: int = 0
    duplicates: Sequence[tuple[int, int]] = ()
    invalid: Sequence[InvalidJob] = ()


def queue_alias(using: str | None = None) -> str:
    """The alias of the queue's database: ``using``, else ``AWA["DATABASE"]``, else what the routers say."""
    if using is not None:
        return using
    alias = get_settings().database
    if alias != DEFAULT_DB_ALIAS or not router.routers:
        return alias
    model = next(apps.get_app_config("awa_django").get_models(), None)
    return alias if model is None else router.db_for_write(model)


@overload
def enqueue(
    job: JobInsert, *, using: str | None = None, on_conflict: Literal["holder", "raise"] = "holder"
) -> Job: ...
@overload
def enqueue(job: JobInsert, *, using: str | None = None, on_conflict: OnConflict) -> Job | None: ...
def enqueue(job: JobInsert, *, using: str | None = None, on_conflict: OnConflict = "holder") -> Job | None:
    """Store one job in the caller's transaction and return it.

    If another job holds its unique key the answer is that job, with ``duplicate`` true and its id; the other
    fields are those of the request. ``on_conflict="raise"`` raises ``UniqueConflict`` instead, ``"skip"``
    returns None. In each case the transaction stays usable: with a unique key the insert runs in a savepoint.

    Holds the job's lane until the transaction ends, so other producers of the same queue and priority wait:
    enqueue late, keep the rest short. Raises ``InvalidJob`` before any SQL, ``SchemaOutOfDate`` without the schema.
    """
    return store(validated(job), using=using, on_conflict=on_conflict)


aenqueue = sync_to_async(enqueue, thread_sensitive=True)


def enqueue_many(
    jobs: Iterable[JobInsert],
    *,
    using: str | None = None,
    on_conflict: OnConflict = "holder",
    on_invalid: OnInvalid = "raise",
) -> Enqueued:
    """Store many jobs in one transaction, by COPY where the queue storage engine takes them.

    By default one bad job refuses all, before any SQL, naming its index: ``jobs[7777].args.note``.
    ``on_invalid="skip"`` stores the others and lists what was refused. Jobs whose unique key is held, by a
    stored job or by an earlier one of the batch, are listed as duplicates; with ``on_conflict="raise"`` the first
    of them refuses all, and the caller's transaction stays usable.
    """
    good: list[JobInsert] = []
    places: list[int] = []
    invalid: list[InvalidJob] = []
    total = 0
    for index, job in enumerate(jobs):
        total += 1
        try:
            good.append(validated(job))
            places.append(index)
        except InvalidJob as fault:
            located = fault.below(f"jobs[{index}]")
            if on_invalid == "raise":
                raise located from None
            invalid.append(located)
    return store_many(good, using=using, on_conflict=on_conflict, places=places, total=total, invalid=invalid)


aenqueue_many = sync_to_async(enqueue_many, thread_sensitive=True)


# One job


def store(job: JobInsert, *, using: str | None = None, on_conflict: OnConflict = "holder") -> Job | None:
    """:func:`enqueue` for a job that has been validated."""
    _check_choice("on_conflict", on_conflict, ("holder", "raise", "skip"))
    alias = queue_alias(using)
    live = telemetry.current()
    with live.enqueue_span((job,)):
        (job,) = stamped(live, (job,))
        return _store_one(job, alias, on_conflict)


def stamped(
    live: Telemetry, jobs: Sequence[JobInsert], pair: tuple[int, int] | None = None
) -> Sequence[JobInsert]:
    """The jobs with the trace they come from, if the project wants them to carry it; ``pair`` names the attempt that
    they follow."""
    return live.stamped(jobs, pair=pair) if live.tracing and get_settings().trace_capture else jobs


def _count(jobs: Iterable[JobInsert], alias: str, seconds: float | None = None) -> None:
    """Count jobs once they are there for good."""
    if (live := telemetry.current()).metering:
        transaction.on_commit(partial(live.enqueued, list(jobs), seconds), using=alias)


def _store_one(job: JobInsert, alias: str, on_conflict: OnConflict) -> Job | None:
    connection = postgres(alias)
    if not connection.in_atomic_block and (others := _open_elsewhere(alias)):
        return _store_later(job, alias, others, on_conflict)
    if not claims(job.unique_key, job.unique_states, job.state):
        with translated(alias), connection.cursor() as cursor:
            cursor.execute(statement("control/enqueue", "insert_job"), _parameters(job))
            stored = _stored(job, *cursor.fetchone()[:3])
    else:
        with translated(alias):
            found, holder_id = _store_unique(job, connection)
        if found is None:
            return _conflict(job, holder_id, on_conflict)
        stored = found
    _count((job,), alias)
    return stored


def _store_unique(job: JobInsert, connection: BaseDatabaseWrapper) -> tuple[Job | None, int | None]:
    """The job stored, or None and the holder of its key."""
    assert job.unique_key is not None
    for _ in range(_ROUNDS):
        try:
            with _savepoint(connection), connection.cursor() as cursor:
                cursor.execute(statement("control/enqueue", "insert_unique_job"), _parameters(job))
                job_id, run_at, created_at, holder_id = cursor.fetchone()[:4]
        except DatabaseError as error:
            if not _is_unique_conflict(error):
                raise
            # The holder committed while the insert waited for it; by now it may have let go again.
            with connection.cursor() as cursor:
                cursor.execute(statement("control/enqueue", "holders"), {"unique_keys": [job.unique_key]})
                row = cursor.fetchone()
            if row is None:
                continue
            return None, row[1]
        return (None, holder_id) if job_id is None else (_stored(job, job_id, run_at, created_at), None)
    return None, None


@contextmanager
def _savepoint(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """A savepoint if a transaction is open; a single statement undoes itself otherwise."""
    if connection.in_atomic_block or not connection.get_autocommit():
        with transaction.atomic(using=connection.alias):
            yield
    else:
        yield


def _conflict(job: JobInsert, holder_id: int | None, on_conflict: OnConflict) -> Job | None:
    if on_conflict == "skip":
        return None
    if on_conflict == "raise" or holder_id is None:
        assert job.unique_key is not None
        raise UniqueConflict(job.unique_key, holder_id, job.kind)
    now = datetime.now(UTC)
    return _as_job(job, holder_id, job.run_at or now, now, duplicate=True)


def _parameters(job: JobInsert) -> dict[str, Any]:
    args = dump_json(job.args)
    warn_of_size(job.kind, args)
    return {
        "kind": job.kind,
        "queue": job.queue,
        "args": args,
        "state": job.state.value,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "run_at": job.run_at,
        "metadata": dump_json(job.metadata) if job.metadata else "{}",
        "tags": list(job.tags),
        "unique_key": job.unique_key,
        "unique_states": job.unique_states,
        "ordering_key": job.ordering_key,
    }


def _stored(job: JobInsert, job_id: int, run_at: datetime, created_at: datetime) -> Job:
    return _as_job(job, job_id, run_at, created_at)


def _as_job(
    job: JobInsert, job_id: int, run_at: datetime, created_at: datetime, *, duplicate: bool = False
) -> Job:
    return Job(
        id=job_id,
        kind=job.kind,
        queue=job.queue,
        args=job.args,
        state=job.state,
        priority=job.priority,
        attempt=0,
        max_attempts=job.max_attempts,
        run_at=run_at,
        created_at=created_at,
        metadata=job.metadata,
        tags=job.tags,
        unique_key=job.unique_key,
        duplicate=duplicate,
    )


# Many jobs


def store_many(
    jobs: Sequence[JobInsert],
    *,
    using: str | None = None,
    on_conflict: OnConflict = "holder",
    places: Sequence[int] | None = None,
    total: int | None = None,
    invalid: Sequence[InvalidJob] = (),
) -> Enqueued:
    """:func:`enqueue_many` for jobs that have been validated.

    ``places`` are the indexes that the answer calls them by, out of ``total``; ``invalid`` goes into the answer.
    """
    _check_choice("on_conflict", on_conflict, ("holder", "raise", "skip"))
    alias = queue_alias(using)
    connection = postgres(alias)
    copied = Copied()
    if jobs:
        live = telemetry.current()
        with live.enqueue_span(jobs):
            jobs = stamped(live, jobs)
            if not connection.in_atomic_block and (others := _open_elsewhere(alias)):
                copied = _store_many_later(jobs, alias, others, on_conflict)
            else:
                copied = _store_batch(jobs, alias, on_conflict)
    ids: list[int | None] = [None] * (len(jobs) if total is None else total)
    for index, job_id in copied.ids.items():
        ids[index if places is None else places[index]] = job_id
    duplicates = [
        (index if places is None else places[index], job_id)
        for index, job_id in sorted(copied.duplicates.items())
    ]
    if on_conflict == "holder":
        for index, job_id in duplicates:
            ids[index] = job_id
    return Enqueued(ids, len(copied.ids), duplicates, invalid)


def _store_batch(
    jobs: Sequence[JobInsert], alias: str, on_conflict: OnConflict, handed_out: _HandedOut | None = None
) -> Copied:
    """Insert a batch where the transition state sends it; all of it or, with an error, none.

    Ids that were handed out for another storage than that are of no use, as they may be those of other jobs there.
    """
    connection = postgres(alias)
    began = time.perf_counter()
    with translated(alias), transaction.atomic(using=alias):
        with connection.wrap_database_errors, plain_cursor(alias) as cursor:
            cursor.execute(statement("control/enqueue", "route"))
            row = cursor.fetchone()
            schema = None if row is None else row[0]
            ids = None
            if handed_out is not None and handed_out.schema == schema:
                ids = handed_out.ids
            elif handed_out is not None:
                logger.warning(
                    "jobs %s were not stored under these ids: since they were enqueued new jobs go to %s storage",
                    ", ".join(map(str, handed_out.ids)),
                    "canonical" if schema is None else "queue",
                )
            if schema == _SCHEMA:
                copied = copy_jobs(cursor, jobs, ids=ids)
            elif schema is None:
                copied = _insert_free(cursor, connection, jobs, copy_canonical, ids)
            else:
                copied = _insert_free(cursor, connection, jobs, insert_jobs)
        if on_conflict == "raise":
            for index, holder_id in sorted(copied.duplicates.items()):
                job = jobs[index]
                assert job.unique_key is not None
                raise UniqueConflict(job.unique_key, holder_id, job.kind)
    if copied.ids:
        _count((jobs[index] for index in copied.ids), alias, time.perf_counter() - began)
    return copied


def _insert_free(
    cursor: Cursor,
    connection: BaseDatabaseWrapper,
    jobs: Sequence[JobInsert],
    insert: Callable[..., Sequence[int]],
    ids: Sequence[int] | None = None,
) -> Copied:
    """Insert those jobs whose unique keys are free, by what raises the driver's error for one that is not.

    ``ids`` were handed out before, for every job one.
    """
    copied = Copied()
    firsts: dict[bytes, int] = {}
    repeats: list[tuple[int, bytes]] = []
    # Keys ascending, as every transaction takes them; then the others.
    plain: list[int] = []
    for index, job in enumerate(jobs):
        if job.unique_key is None or not claims(job.unique_key, job.unique_states, job.state):
            plain.append(index)
        elif job.unique_key in firsts:
            repeats.append((index, job.unique_key))
        else:
            firsts[job.unique_key] = index
    for round_ in range(_ROUNDS):
        held = _holders(cursor, list(firsts))
        order = [firsts[key] for key in sorted(firsts) if key not in held] + plain
        try:
            with transaction.atomic(using=connection.alias), connection.wrap_database_errors:
                given = {} if ids is None else {"ids": [ids[index] for index in order]}
                inserted = insert(cursor, [jobs[index] for index in order], **given)
            break
        except DatabaseError as error:
            if not _is_unique_conflict(error) or round_ == _ROUNDS - 1:
                raise
    copied.ids = dict(zip(order, inserted, strict=True))
    copied.duplicates = {firsts[key]: holder_id for key, holder_id in held.items()}
    for index, key in repeats:
        copied.duplicates[index] = held[key] if key in held else copied.ids[firsts[key]]
    return copied


def _holders(cursor: Cursor, keys: list[bytes]) -> dict[bytes, int]:
    if not keys:
        return {}
    cursor.execute(statement("control/enqueue", "holders"), {"unique_keys": keys})
    return {bytes(key): job_id for key, job_id in cursor.fetchall()}


def insert_jobs(cursor: Cursor, jobs: Sequence[JobInsert]) -> Sequence[int]:
    """Store validated jobs in this order, on whichever engine takes new jobs, and return their ids.

    In the caller's transaction; a unique key that is held raises the driver's error.
    """
    if not jobs:
        return ()
    parameters: dict[str, Any] = {
        "kinds": [job.kind for job in jobs],
        "queues": [job.queue for job in jobs],
        "args": [dump_json(job.args) for job in jobs],
        "states": [job.state.value for job in jobs],
        "priorities": [job.priority for job in jobs],
        "max_attempts": [job.max_attempts for job in jobs],
        "run_at": [job.run_at for job in jobs],
        "metadata": [dump_json(job.metadata) for job in jobs],
        "tags": [dump_json(job.tags) for job in jobs],
        "unique_keys": [job.unique_key for job in jobs],
        "unique_states": [job.unique_states for job in jobs],
        "ordering_keys": [job.ordering_key for job in jobs],
    }
    cursor.execute(statement("control/enqueue", "insert_jobs"), parameters)
    return [job_id for _, job_id, _ in sorted(cursor.fetchall())]


# A queue in another database than the open transaction


def _open_elsewhere(alias: str) -> list[str]:
    """Aliases of other databases with an open transaction of this thread."""
    return [
        connection.alias
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block and connection.alias != alias
    ]


def _after_commits(aliases: Sequence[str], action: Callable[[], object]) -> None:
    """Run ``action`` once every one of these transactions has committed; never, if one of them rolls back."""
    waiting = set(aliases)

    def committed(alias: str) -> None:
        waiting.discard(alias)
        if not waiting:
            action()

    for alias in aliases:
        transaction.on_commit(partial(committed, alias), using=alias)


class _HandedOut(NamedTuple):
    """Ids for jobs that are stored later, and the schema that they mean something in; None for the canonical tables."""

    ids: Sequence[int]
    schema: str | None


def _hand_out_ids(alias: str, total: int) -> _HandedOut:
    with translated(alias), postgres(alias).cursor() as cursor:
        cursor.execute(statement("control/enqueue", "hand_out_ids"), {"total": total})
        rows = cursor.fetchall()
    return _HandedOut([job_id for job_id, _ in rows], rows[0][1])


def _current_holders(jobs: Sequence[JobInsert], alias: str) -> dict[int, int]:
    """The jobs of a batch whose key is held already, by a stored job."""
    keys = [
        job.unique_key
        for job in jobs
        if job.unique_key is not None and claims(job.unique_key, job.unique_states, job.state)
    ]
    if not keys:
        return {}
    connection = postgres(alias)
    with translated(alias), connection.wrap_database_errors, plain_cursor(alias) as cursor:
        held = _holders(cursor, keys)
    return {
        index: held[job.unique_key]
        for index, job in enumerate(jobs)
        if job.unique_key in held and claims(job.unique_key, job.unique_states, job.state)
    }


def _store_many_later(
    jobs: Sequence[JobInsert], alias: str, others: Sequence[str], on_conflict: OnConflict
) -> Copied:
    """Hand out ids now and store after the other transactions; a key taken meanwhile drops its job, with a log line."""
    duplicates = _current_holders(jobs, alias)
    for index, holder_id in duplicates.items() if on_conflict == "raise" else ():
        raise UniqueConflict(jobs[index].unique_key or b"", holder_id, jobs[index].kind)
    order = [index for index in range(len(jobs)) if index not in duplicates]
    kept = [jobs[index] for index in order]
    handed_out = _hand_out_ids(alias, len(kept)) if kept else _HandedOut((), None)
    ids = handed_out.ids

    def action() -> None:
        late = _store_batch(kept, alias, "holder", handed_out)
        for index, holder_id in late.duplicates.items():
            logger.warning(
                "job %d of kind %s was not stored: job %d has taken its unique key since it was enqueued",
                ids[index],
                kept[index].kind,
                holder_id,
            )

    if kept:
        _after_commits(others, action)
    return Copied(dict(zip(order, ids, strict=True)), duplicates)


def _store_later(job: JobInsert, alias: str, others: Sequence[str], on_conflict: OnConflict) -> Job | None:
    copied = _store_many_later([job], alias, others, on_conflict)
    if copied.duplicates:
        return _conflict(job, copied.duplicates[0], on_conflict)
    now = datetime.now(UTC)
    return _as_job(job, copied.ids[0], job.run_at or now, now)


# Errors


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidJob(name, f"one of {', '.join(map(repr, choices))} is needed, not {value!r}")


def _is_unique_conflict(error: DatabaseError) -> bool:
    cause = error.__cause__
    return (
        getattr(cause, "sqlstate", None) == _UNIQUE_VIOLATION
        and getattr(getattr(cause, "diag", None), "constraint_name", None) == _UNIQUE_INDEX
    )


@contextmanager
def translated(alias: str) -> Iterator[None]:
    """Errors of the database that mean something special here, in our words; others unchanged."""
    try:
        yield
    except DatabaseError as error:
        _raise_translated(error, alias)


def _raise_translated(error: DatabaseError, alias: str) -> NoReturn:
    sqlstate = getattr(error.__cause__, "sqlstate", None)
    if sqlstate == _CHECK_VIOLATION:
        raise InvalidJob("job", str(error).partition("\n")[0]) from error
    if sqlstate in (_NO_SUCH_TABLE, _NO_SUCH_SCHEMA, _NO_SUCH_FUNCTION):
        if apps.is_installed("awa_django"):
            command = "manage.py migrate"
            if alias != DEFAULT_DB_ALIAS:
                command += f" --database {alias}"
            way_out = f"run: {command}"
        else:
            way_out = "add 'awa_django' to INSTALLED_APPS, then run: manage.py migrate"
        raise SchemaOutOfDate(
            f"schema awa of database {alias!r} is missing or older than this release needs; {way_out} "
            f"({str(error).partition(chr(10))[0]})"
        ) from error
    raise error
