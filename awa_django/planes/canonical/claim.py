"""Handing out canonical jobs (contract: runtime/dispatcher section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from awa_django.jobs import NO_RECEIPT, Attempt
from awa_django.planes.base import Claimed, Cursor, Ids
from awa_django.planes.canonical.place import place
from awa_django.planes.canonical.take import take_ids
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import duplicate_of, promote

__all__ = ["claim", "has_backlog", "refuse"]


def claim(cursor: Cursor, queue: str, limit: int, *, deadline: timedelta) -> Claimed:
    """Make at most ``limit`` due jobs of a queue running, by priority, time and id, in one statement.

    No handler may start before it has committed. A ``deadline`` of zero is none (DEC-14). A job whose key the
    running state claims while another job holds it comes back as refused, and stays available.
    """
    cursor.execute(
        statement("canonical/claim", "claim"), {"queue": queue, "limit": limit, "deadline": deadline}
    )
    attempts: list[Attempt] = []
    refused: list[Attempt] = []
    for *row, is_refused in cursor.fetchall():
        (refused if is_refused else attempts).append(_attempt(row))
    return Claimed(attempts, refused)


def _attempt(row: Sequence[Any]) -> Attempt:
    (
        job_id, run_lease, kind, queue, args, attempt, max_attempts, priority, run_at, deadline_at, attempted_at,
        created_at, unique_key, unique_states, payload,
    ) = row  # fmt: skip
    return Attempt(
        job_id=job_id,
        run_lease=run_lease,
        kind=kind,
        queue=queue,
        args=args,
        attempt=attempt,
        max_attempts=max_attempts,
        priority=priority,
        # Aging changes the row itself, and notes in its metadata where it began.
        lane_priority=priority,
        ready_slot=NO_RECEIPT,
        ready_generation=NO_RECEIPT,
        lane_seq=NO_RECEIPT,
        enqueue_shard=0,
        claim_slot=NO_RECEIPT,
        receipt_id=NO_RECEIPT,
        batch_id=None,
        batch_index=None,
        run_at=run_at,
        deadline_at=deadline_at,
        attempted_at=attempted_at,
        created_at=created_at,
        unique_key=unique_key,
        unique_states=unique_states,
        payload=payload,
    )


def refuse(cursor: Cursor, attempts: Sequence[Attempt]) -> None:
    """End refused jobs, which are still available, as cancelled duplicates (DEC-18), so that no claim meets them again.

    One that somebody has taken up meanwhile, the key having become free, is left alone.
    """
    leases = {attempt.job_id: attempt.run_lease for attempt in attempts}
    taken = take_ids(cursor, Ids(leases.keys(), [JobState.AVAILABLE]))
    place(cursor, [duplicate_of(promote(job)) for job in taken if job.run_lease == leases[job.job_id]])


def has_backlog(cursor: Cursor, queue: str) -> bool:
    """Whether a queue that is not paused has jobs that are due, though others may hold their rows just now."""
    cursor.execute(statement("canonical/claim", "backlog"), {"queue": queue})
    row = cursor.fetchone()
    return row is not None and bool(row[0])
