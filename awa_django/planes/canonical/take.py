"""Locking the rows of jobs that are to go elsewhere (contract: runtime/outcomes section 2, runtime/maintenance 3, 4).

A canonical job is one row, so taking it is locking it: whoever comes next waits, or passes it over, until it has
been placed. The database's clock judges, which here is the time the transaction began.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from awa_django.db import BoundedLoader
from awa_django.jobs import Attempt, Callback, Taken
from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor, Due, Ids, Leases, PastDeadline, Stale, Unanswered, send
from awa_django.sql import statement
from awa_django.states import JobState

__all__ = [
    "DEFERRED",
    "hold_attempts",
    "pairs",
    "take_attempts",
    "take_due",
    "take_ids",
    "take_past_deadline",
    "take_stale",
    "take_unanswered",
    "taken_row",
]

#: The states of table ``scheduled_jobs``; all others are in ``jobs_hot``.
DEFERRED = frozenset({JobState.SCHEDULED, JobState.RETRYABLE})


def taken_row(row: Sequence[Any]) -> Taken:
    """One row of any statement of ``canonical/take``: the transaction's time and the columns of the job tables.

    Columns of another shape than the contract's are treated as empty: a job must be able to end whatever a stranger
    stored with it (DEC-18).
    """
    (
        taken_at, job_id, kind, queue, args, state, priority, attempt, max_attempts, run_at, _heartbeat_at,
        _deadline_at, attempted_at, finalized_at, created_at, errors, metadata, tags, unique_key, unique_states,
        *callback, run_lease, progress,
    ) = row  # fmt: skip
    metadata = metadata if isinstance(metadata, dict) else {}
    return Taken(
        job_id=job_id,
        run_lease=run_lease,
        kind=kind,
        queue=queue,
        args=args,
        state=JobState(state),
        priority=priority,
        attempt=attempt,
        max_attempts=max_attempts,
        run_at=run_at,
        attempted_at=attempted_at,
        created_at=created_at,
        unique_key=unique_key,
        unique_states=unique_states,
        metadata=metadata,
        tags=tuple(tags),
        errors=tuple(errors or ()),
        progress=progress,
        taken_at=taken_at,
        finalized_at=finalized_at,
        stored_payload={"metadata": metadata},
        callback=None if all(value is None for value in callback) else Callback(*callback),
        canonical=True,
    )


def pairs(attempts: Iterable[Attempt]) -> dict[str, str]:
    """What identifies attempts, as parameters."""
    attempts = list(attempts)
    return {
        "job_ids": ints(attempt.job_id for attempt in attempts),
        "run_leases": ints(attempt.run_lease for attempt in attempts),
    }


def hold_attempts(cursor: Cursor, attempts: Iterable[Attempt]) -> None:
    """Lock the rows of attempts, ids ascending, so that several statements may follow in any order."""
    send(
        cursor,
        statement("canonical/take", "hold_attempts"),
        {"job_ids": ints(attempt.job_id for attempt in attempts)},
    )


def take_attempts(cursor: Cursor, guard: Leases) -> list[Taken]:
    """Take attempts that are still running under their lease, by id; waits for whoever holds them.

    One that waits for a callback is not among them: it is made to run again first (DEC-20).
    """
    return _take(cursor, "take_attempts", **pairs(guard.attempts))


def take_stale(cursor: Cursor, guard: Stale) -> list[Taken]:
    """Take running attempts without a sign of life, longest silence first; there are no receipts to look at."""
    if guard.receipts:
        return []
    return _ended(_take(cursor, "take_stale", silence=guard.silence, **_bounds(guard)))


def take_past_deadline(cursor: Cursor, guard: PastDeadline) -> list[Taken]:
    """Take running attempts that outlived their deadline, earliest first."""
    return _ended(_take(cursor, "take_past_deadline", **_bounds(guard)))


def take_unanswered(cursor: Cursor, guard: Unanswered) -> list[Taken]:
    """Take parked attempts whose callback did not come in time, earliest first."""
    return _ended(_take(cursor, "take_unanswered", **_bounds(guard)))


def take_due(cursor: Cursor, guard: Due) -> list[Taken]:
    """Take deferred jobs of one state that are due, by time and id; those of paused queues too, which then wait."""
    if guard.state not in DEFERRED:
        raise ValueError(f"jobs that are {guard.state} do not fall due; scheduled and retryable ones do")
    return _take(cursor, f"take_due_{guard.state}", **_bounds(guard))


def take_ids(cursor: Cursor, guard: Ids) -> list[Taken]:
    """Take jobs by id, each if it is in one of the states; waits for whoever holds them. None is a dead letter here.

    A job may change tables between two looks, so those that were in neither are looked for once more in the first.
    """
    missing = set() if guard.dead else set(guard.job_ids)
    hot = [state.value for state in guard.states if state not in DEFERRED]
    deferred = [state.value for state in guard.states if state in DEFERRED]
    taken: list[Taken] = []
    for name, states in (("take_named", hot), ("take_named_deferred", deferred), ("take_named", hot)):
        if missing and states:
            taken += _take(cursor, name, job_ids=ints(sorted(missing)), states=states)
            missing -= {job.job_id for job in taken}
    return taken


def _take(cursor: Cursor, name: str, **values: Any) -> list[Taken]:
    cursor.adapters.register_loader("timestamptz", BoundedLoader)
    cursor.execute(statement("canonical/take", name), values)
    return [taken_row(row) for row in cursor.fetchall()]


def _bounds(guard: Stale | PastDeadline | Unanswered | Due) -> dict[str, Any]:
    return {"limit": guard.limit, "passed_over": ints(guard.passed_over)}


def _ended(taken: Collection[Taken]) -> list[Taken]:
    """Attempts whose callback dies with them."""
    return [job if job.callback is None else replace(job, callback=None) for job in taken]
