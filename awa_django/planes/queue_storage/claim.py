"""Handing out jobs (contract: queue-storage/claim)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from awa_django.jobs import Attempt, claims
from awa_django.planes.base import Cursor, Leases
from awa_django.planes.queue_storage.arrays import ints
from awa_django.planes.queue_storage.place import acquire, place, release
from awa_django.planes.queue_storage.take import take_attempts
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import duplicate_of, promote

__all__ = ["advance", "claim", "has_backlog", "moves_cursors"]


def claim(cursor: Cursor, queue: str, limit: int, *, deadline: timedelta, aging: timedelta) -> list[Attempt]:
    """Hand out at most ``limit`` jobs; the caller commits before it starts any of them.

    A job whose key the running state claims while a newer job holds it ends as a cancelled duplicate and is
    not handed out (DEC-18), so that it cannot block its lane (H-08).
    """
    cursor.execute(
        statement("queue_storage/claim", "claim"),
        {
            "queue": queue,
            "limit": limit,
            "deadline": deadline.total_seconds(),
            "aging": aging.total_seconds(),
        },
    )
    attempts = [Attempt(*row) for row in cursor.fetchall()]
    keyed = [attempt for attempt in attempts if attempt.unique_key is not None]
    if not keyed:
        return attempts
    lost = _follow_unique_claims(cursor, keyed)
    if not lost:
        return attempts
    refused = [attempt for attempt in keyed if attempt.job_id in lost]
    taken = take_attempts(cursor, Leases(refused, ["cancelled"] * len(refused)))
    place(cursor, [duplicate_of(promote(job)) for job in taken])
    return [attempt for attempt in attempts if attempt.job_id not in lost]


def _follow_unique_claims(cursor: Cursor, attempts: Sequence[Attempt]) -> set[int]:
    """Move unique claims from available to running; returns the jobs whose key another job holds."""

    def holds(attempt: Attempt, state: JobState) -> bool:
        return claims(attempt.unique_key, attempt.unique_states, state)

    moving = [
        (attempt.unique_key, attempt.job_id, holds(attempt, JobState.RUNNING))
        for attempt in attempts
        if holds(attempt, JobState.AVAILABLE) != holds(attempt, JobState.RUNNING)
    ]
    release(cursor, [(key, job_id) for key, job_id, entering in moving if not entering])
    return acquire(cursor, [(key, job_id) for key, job_id, entering in moving if entering])


def advance(cursor: Cursor, attempts: Sequence[Attempt]) -> None:
    """Move the claim cursors past attempts whose claim has committed."""
    lanes: dict[tuple[str, int, int], int] = {}
    for attempt in attempts:
        lane = (attempt.queue, attempt.lane_priority, attempt.enqueue_shard)
        if lanes.get(lane, 0) <= attempt.lane_seq:
            lanes[lane] = attempt.lane_seq + 1
    cursor.execute(
        statement("queue_storage/claim", "advance"),
        {
            "queues": [queue for queue, _, _ in lanes],
            "priorities": ints(priority for _, priority, _ in lanes),
            "shards": ints(shard for _, _, shard in lanes),
            "next_lane_seqs": ints(lanes.values()),
        },
    )


def moves_cursors(cursor: Cursor) -> bool:
    """Whether a claim on this schema moves cursors past what earlier claims emitted."""
    cursor.execute(statement("queue_storage/claim", "moves_cursors"))
    row = cursor.fetchone()
    return row is not None and bool(row[0])


def has_backlog(cursor: Cursor, queue: str) -> bool:
    """Whether a queue has positions that no committed claim is known to have passed."""
    cursor.execute(statement("queue_storage/claim", "backlog"), {"queue": queue})
    row = cursor.fetchone()
    return row is not None and bool(row[0])
