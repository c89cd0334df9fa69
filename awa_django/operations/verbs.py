"""What can be done to jobs: retried, cancelled, discarded, moved, dead-lettered.

Every function runs in the caller's transaction on Django's connection of the queue's database, or in one of its own,
and takes an id, several, or a :class:`~awa_django.operations.JobFilter`. Its answer says which jobs changed, which did
not, and why. The state of a job is asked again under its lock.

All of a call is one transaction, whose jobs are locked until it ends and are all in its answer. A filter that more than
10 000 jobs pass is refused with :class:`~awa_django.errors.TooManyJobs`, before anything is locked: that is for a batch
operation (:func:`~awa_django.operations.submit_batch`).
(contract: api/admin_ops sections 1, 2 and 4, queue-storage/admin sections 1 to 4)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import transaction

from awa_django import telemetry
from awa_django.encoding import encode
from awa_django.enqueue import queue_alias
from awa_django.errors import TooManyJobs, UniqueConflict
from awa_django.jobs import Job, Landing, Taken
from awa_django.operations.change import (
    Changed,
    Reason,
    Skipped,
    Verb,
    change,
    change_chosen,
    change_on,
    chunks,
    narrowed,
)
from awa_django.operations.desk import Desk, desk
from awa_django.operations.reading import HIGHEST_ID, JobFilter, candidates, load, storable_ids
from awa_django.outcomes import OperatorCancel, OperatorRetry
from awa_django.planes.arrays import ints
from awa_django.planes.base import Plane
from awa_django.planes.records import PlaneName
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import land_one, promote
from awa_django.uniqueness import canonical_json, unique_key
from awa_django.validation import checked_priority, checked_queue, checked_run_at

__all__ = [
    "CANCEL",
    "DISCARD",
    "PURGE",
    "RETRY",
    "RUN_NOW",
    "Selection",
    "cancel",
    "cancel_by_unique_key",
    "count_dead_lettered",
    "dead_letter",
    "dead_letter_verb",
    "discard",
    "move_queue",
    "move_verb",
    "purge_dead",
    "redrive_verb",
    "retry",
    "retry_dead",
    "retry_failed",
    "run_now",
    "set_priority",
]

Selection = int | Iterable[int] | JobFilter

#: Jobs that a filter may mean. So many are locked for some seconds, and nobody claims from their lanes meanwhile.
MOST = 10_000

_LIVE = frozenset(state for state in JobState if not state.is_terminal)
_FAILED = frozenset({JobState.FAILED})
_RETRYABLE = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.WAITING_EXTERNAL})
_MOVABLE = frozenset({JobState.AVAILABLE, JobState.SCHEDULED})


def _again(taken: Taken) -> Landing:
    return land_one(replace(taken, attempted_at=None), OperatorRetry())


def _cancelled(taken: Taken) -> Landing:
    return land_one(taken, OperatorCancel())


def _dropped(taken: Taken) -> None:
    return None


RETRY = Verb(_again, _RETRYABLE, closes="rescue")
CANCEL = Verb(_cancelled, _LIVE, yields_key=True, notifies=True)
RUN_NOW = Verb(promote, frozenset({JobState.SCHEDULED, JobState.RETRYABLE}))
DISCARD = Verb(_dropped, _FAILED, dead=True)
PURGE = Verb(_dropped, dead=True)


def _apply(
    verb: Verb,
    selection: Selection,
    *,
    using: str | None,
    plane: PlaneName | None,
    allow_all: bool = False,
    conflicts: str = "skip",
) -> Changed:
    if conflicts not in ("skip", "raise"):
        raise ValueError(f"on_conflict: 'skip' or 'raise' is needed, not {conflicts!r}")
    if isinstance(selection, JobFilter) and selection.is_empty and not allow_all:
        raise ValueError("the filter means all jobs; say allow_all=True if that is what you want")
    with desk(using, plane) as at:
        if isinstance(selection, JobFilter):
            changed = _change_matching(at, verb, selection)
        else:
            changed = change(at, verb, _ids(selection))
        if conflicts == "raise":
            for item in changed.skipped:
                if item.reason is Reason.UNIQUE_CONFLICT:
                    raise UniqueConflict(item.unique_key or b"", item.holder_id, item.kind)
    return changed


def _ids(selection: int | Iterable[int]) -> list[int]:
    given = [selection] if isinstance(selection, int) else list(selection)
    for job_id in given:
        if isinstance(job_id, bool) or not isinstance(job_id, int):
            raise TypeError(f"job_ids: whole numbers are needed, not {job_id!r}")
    return storable_ids(given)


def _change_matching(at: Desk, verb: Verb, chosen: JobFilter) -> Changed:
    """Change what passes the filter, plane by plane. It is chosen before anything changes."""
    jobs: list[Job] = []
    skipped: list[Skipped] = []
    states = chosen.wanted & (verb.states | (_FAILED if verb.dead else frozenset()))
    eligible = replace(chosen, state=None, states=states)
    guarded = narrowed(verb, chosen)
    for plane, ids in _chosen(at, verb, eligible):
        for piece in chunks(ids):
            done = change_chosen(at, plane, guarded, piece)
            jobs += done.jobs
            skipped += [item for item in done.skipped if item.reason is not Reason.NOT_MEANT]
    return Changed(jobs, skipped)


def _chosen(at: Desk, verb: Verb, eligible: JobFilter) -> list[tuple[Plane, list[int]]]:
    """The jobs of each plane that may pass a filter; raises ``TooManyJobs`` if more do than one call may change."""
    chosen: list[tuple[Plane, list[int]]] = []
    room = MOST
    for plane in at.planes:
        ids = candidates(at, plane, eligible, dead_only=not verb.states)
        if len(ids) > room:
            # Some of them may not be meant after all, which only the jobs themselves tell.
            ids = _meant(at, plane, verb, eligible, ids, room)
        room -= len(ids)
        chosen.append((plane, ids))
    return chosen


def _meant(
    at: Desk, plane: Plane, verb: Verb, eligible: JobFilter, ids: Iterable[int], most: int
) -> list[int]:
    meant: list[int] = []
    for piece in chunks(ids):
        records = load(at.cursor, plane, piece)
        meant += sorted(
            record.job.id for record in records if verb.fits(record) and eligible.passes(record.job)
        )
        if len(meant) > most:
            raise TooManyJobs(
                f"more than {MOST:,} jobs match the filter, too many to be changed in one transaction; have them "
                "changed bit by bit: submit_batch(), or --batch on the command line"
            )
    return meant


# Single jobs and many


def retry(
    jobs: Selection,
    *,
    on_conflict: str = "skip",
    using: str | None = None,
    plane: PlaneName | None = None,
    allow_all: bool = False,
) -> Changed:
    """Have failed, cancelled and waiting jobs run again, now, with all their attempts.

    Errors, tags, metadata and progress stay. Dead letters are not meant: :func:`retry_dead`. A job whose unique key
    another one holds stays as it is; with ``on_conflict="raise"`` it refuses the whole call with ``UniqueConflict``.
    """
    return _apply(RETRY, jobs, using=using, plane=plane, allow_all=allow_all, conflicts=on_conflict)


def retry_failed(
    *,
    kind: str | None = None,
    queue: str | None = None,
    on_conflict: str = "skip",
    using: str | None = None,
    plane: PlaneName | None = None,
) -> Changed:
    """:func:`retry` of all failed jobs of a kind, or of a queue, dead letters left out.

    For a queue, ``pruned_failed`` of the answer says how many failures its history has forgotten already.
    """
    if (kind is None) == (queue is None):
        raise ValueError("retry_failed needs either a kind or a queue")
    chosen = JobFilter(state=JobState.FAILED, kind=kind, queue=queue)
    changed = _apply(RETRY, chosen, using=using, plane=plane, conflicts=on_conflict)
    if queue is None:
        return changed
    with desk(using, "queue_storage") as at:
        at.cursor.execute(statement("control/queues", "pruned_failures"), {"queue": queue})
        row = at.cursor.fetchone()
    return replace(changed, pruned_failed=0 if row is None else row[0])


def cancel(
    jobs: Selection, *, using: str | None = None, plane: PlaneName | None = None, allow_all: bool = False
) -> Changed:
    """End jobs that have not finished.

    A running job ends in the database at once; its worker is told when the transaction commits, and whatever the
    handler returns is ignored. Its progress stays. No error is recorded.
    """
    return _apply(CANCEL, jobs, using=using, plane=plane, allow_all=allow_all)


def run_now(
    jobs: Selection, *, using: str | None = None, plane: PlaneName | None = None, allow_all: bool = False
) -> Changed:
    """Make scheduled and retryable jobs available at once. Attempts, errors, metadata and progress stay."""
    return _apply(RUN_NOW, jobs, using=using, plane=plane, allow_all=allow_all)


def cancel_by_unique_key(
    kind: str | None = None,
    *,
    queue: str | None = None,
    args: Any = None,
    period: int | None = None,
    key: bytes | None = None,
    using: str | None = None,
    plane: PlaneName | None = None,
) -> Job | None:
    """Cancel the job with the lowest id that has this unique key and has not finished; None if there is none.

    The key is given, or made from exactly what it was made from when the job was stored: ``queue``, ``args`` and the
    number of the ``period`` only where they took part. Called again it cancels the next one: several jobs share a key
    when their states are outside the mask.
    """
    if (key is None) == (kind is None):
        raise ValueError("cancel_by_unique_key needs either a kind or a key")
    if key is None:
        assert kind is not None
        canonical_args = None if args is None else canonical_json(encode(args))
        key = unique_key(kind, queue=queue, canonical_args=canonical_args, bucket=period)
    with desk(using, plane) as at:
        for each in at.planes:
            for job_id in _jobs_of_key(at, each, key):
                if done := change_on(at, each, CANCEL, [job_id]).jobs:
                    return done[0]
    return None


def _jobs_of_key(at: Desk, plane: Plane, key: bytes) -> list[int]:
    values: dict[str, Any] = {"unique_key": key}
    if plane.name == "queue_storage":
        everything = {"queue": None, "before": HIGHEST_ID, "size": HIGHEST_ID}
        at.cursor.execute(statement("queue_storage/newest", "newest_open"), everything, prepare=False)
        values["open_ids"] = ints(job_id for row in at.cursor.fetchall() for job_id in row[1])
    at.cursor.execute(statement(f"{plane.name}/listing", "jobs_of_key"), values, prepare=False)
    return [row[0] for row in at.cursor.fetchall()]


def discard(
    jobs: Selection | None = None,
    *,
    kind: str | None = None,
    using: str | None = None,
    plane: PlaneName | None = None,
    allow_all: bool = False,
) -> Changed:
    """Forget failed jobs and dead letters for good: these, or all of a kind. Their unique keys are free."""
    if (jobs is None) == (kind is None):
        raise ValueError("discard needs either jobs or a kind")
    selection = JobFilter(kind=kind) if jobs is None else jobs
    return _apply(DISCARD, selection, using=using, plane=plane, allow_all=allow_all)


# Moving jobs that wait


def move_verb(queue: str | None, priority: int | None) -> Verb:
    """What gives scheduled and available jobs another queue, another priority, or both.

    Metadata keep the first of each (``_awa_original_queue``, ``_awa_original_priority``). The unique key stays.
    """

    def decide(taken: Taken) -> Landing | Reason:
        moved = replace(taken, queue=queue or taken.queue, priority=priority or taken.priority)
        if (moved.queue, moved.priority) == (taken.queue, taken.priority):
            return Reason.UNCHANGED
        metadata = dict(taken.metadata)
        if moved.queue != taken.queue:
            metadata.setdefault("_awa_original_queue", taken.queue)
        if priority is not None:
            metadata.setdefault("_awa_original_priority", taken.priority)
        return Landing(
            taken=moved,
            state=taken.state,
            attempt=taken.attempt,
            errors=taken.errors,
            metadata=metadata,
            progress=taken.progress,
            run_at=taken.run_at,
            finalized_at=taken.finalized_at,
        )

    return Verb(decide, _MOVABLE)


def set_priority(
    jobs: Selection,
    priority: int,
    *,
    using: str | None = None,
    plane: PlaneName | None = None,
    allow_all: bool = False,
) -> Changed:
    """Give scheduled and available jobs another priority, 1 (first) to 4; they go to the end of its lane."""
    verb = move_verb(None, checked_priority(priority))
    return _apply(verb, jobs, using=using, plane=plane, allow_all=allow_all)


def move_queue(
    jobs: Selection,
    queue: str,
    *,
    priority: int | None = None,
    using: str | None = None,
    plane: PlaneName | None = None,
    allow_all: bool = False,
) -> Changed:
    """Have scheduled and available jobs wait on another queue, which may be paused, at the end of its lane."""
    checked = None if priority is None else checked_priority(priority)
    verb = move_verb(checked_queue(queue), checked)
    return _apply(verb, jobs, using=using, plane=plane, allow_all=allow_all)


# Dead letters


def dead_letter_verb(reason: str) -> Verb:
    """What makes failed jobs dead letters; raises ``ValueError`` for a reason that is no text."""

    def decide(taken: Taken) -> Landing:
        return Landing(
            taken=taken,
            state=JobState.FAILED,
            attempt=taken.attempt,
            errors=taken.errors,
            metadata=taken.metadata,
            progress=taken.progress,
            finalized_at=taken.finalized_at,
            dlq_reason=reason,
        )

    if not isinstance(reason, str) or not reason or "\0" in reason:
        raise ValueError(f"reason: text is needed, not {reason!r}")
    return Verb(decide, _FAILED, to_dead_letters=True)


def dead_letter(
    jobs: Selection,
    reason: str,
    *,
    using: str | None = None,
    allow_all: bool = False,
) -> Changed:
    """Move failed jobs to the dead letters, where history does not forget them so soon.

    The canonical tables have none.
    """
    changed = _apply(dead_letter_verb(reason), jobs, using=using, plane=None, allow_all=allow_all)
    if isinstance(jobs, JobFilter):
        live = telemetry.current()
        _after_commit(
            using, partial(live.dlq_moved, len(changed.jobs), reason, kind=jobs.kind, queue=jobs.queue)
        )
    else:
        _after_commit(using, partial(count_dead_lettered, changed.jobs, reason))
    return changed


def count_dead_lettered(jobs: Iterable[Job], reason: str) -> None:
    """Count jobs that became dead letters, by kind and queue; after the commit."""
    for (kind, name), count in Counter((job.kind, job.queue) for job in jobs).items():
        telemetry.current().dlq_moved(count, reason, kind=kind, queue=name)


def redrive_verb(run_at: datetime | None, priority: int | None, queue: str | None) -> Verb:
    """What has dead letters run again: now, or at an instant to come; on this queue and at this priority, if given."""

    def decide(taken: Taken) -> Landing:
        moved = replace(taken, queue=queue or taken.queue, priority=priority or taken.priority)
        landing = _again(moved).replace(progress=None)
        if run_at is not None and run_at > taken.taken_at:
            return landing.replace(state=JobState.SCHEDULED, run_at=run_at)
        return landing

    return Verb(decide, dead=True)


def retry_dead(
    jobs: Selection,
    *,
    run_at: datetime | timedelta | None = None,
    priority: int | None = None,
    queue: str | None = None,
    on_conflict: str = "skip",
    using: str | None = None,
    allow_all: bool = False,
) -> Changed:
    """Have dead letters run again, with all their attempts: now, or scheduled for a time to come.

    Errors, tags and metadata stay, progress does not. A job whose unique key another one holds stays a dead letter;
    with ``on_conflict="raise"`` it refuses the whole call with ``UniqueConflict``.
    """
    verb = redrive_verb(
        checked_run_at(run_at),
        None if priority is None else checked_priority(priority),
        None if queue is None else checked_queue(queue),
    )
    changed = _apply(
        verb, jobs, using=using, plane="queue_storage", allow_all=allow_all, conflicts=on_conflict
    )
    return _counted(changed, telemetry.current().dlq_retried, using)


def purge_dead(
    jobs: Selection,
    *,
    using: str | None = None,
    allow_all: bool = False,
) -> Changed:
    """Forget dead letters for good. Their unique keys are free (H-07)."""
    changed = _apply(PURGE, jobs, using=using, plane="queue_storage", allow_all=allow_all)
    return _counted(changed, telemetry.current().dlq_purged, using)


def _counted(changed: Changed, count: Callable[..., None], using: str | None) -> Changed:
    """Count what became of dead letters, by queue."""
    for name, jobs in Counter(job.queue for job in changed.jobs).items():
        _after_commit(using, partial(count, jobs, queue=name))
    return changed


def _after_commit(using: str | None, count: Callable[[], None]) -> None:
    if telemetry.current().metering:
        transaction.on_commit(count, using=queue_alias(using), robust=True)
