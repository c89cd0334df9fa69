"""Handing out jobs (contract: queue-storage/claim)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from awa_django.jobs import Attempt
from awa_django.planes.arrays import ints
from awa_django.planes.base import Claimed, Cursor, Leases
from awa_django.planes.queue_storage.place import place
from awa_django.planes.queue_storage.take import take_attempts
from awa_django.sql import statement
from awa_django.transitions import duplicate_of, promote

__all__ = ["advance", "claim", "has_backlog", "moves_cursors", "refuse"]


def claim(cursor: Cursor, queue: str, limit: int, *, deadline: timedelta, aging: timedelta) -> Claimed:
    """Hand out at most ``limit`` jobs in one statement; no handler may start before it has committed.

    A job whose key the running state claims while a newer job holds it comes back as refused.
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
    rows = cursor.fetchall()
    refused = [Attempt(*row[:-1]) for row in rows if row[-1]]
    return Claimed([Attempt(*row[:-1]) for row in rows if not row[-1]], refused)


def refuse(cursor: Cursor, attempts: Sequence[Attempt]) -> None:
    """End refused attempts as cancelled duplicates (DEC-18), so that they cannot block their lane (H-08).

    In a transaction after the claim's: an attempt that is lost in between is rescued, and ends the same way.
    """
    taken = take_attempts(cursor, Leases(attempts, ["cancelled"] * len(attempts)))
    place(cursor, [duplicate_of(promote(job)) for job in taken])


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
