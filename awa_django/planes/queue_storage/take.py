"""Lifting the jobs of attempts off their place (contract: queue-storage/attempts section 1, complete section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from awa_django.jobs import Attempt, Taken
from awa_django.planes.base import Cursor, Leases, send
from awa_django.planes.queue_storage.arrays import ints
from awa_django.sql import statement
from awa_django.states import JobState

__all__ = ["coordinates", "lock_attempts", "take_attempts", "taken_row"]


def taken_row(row: Sequence[Any]) -> Taken:
    """One row of ``take_receipts`` or ``take_leases``.

    Parts of the payload that have another shape than the contract's are treated as absent: a job must
    be able to end whatever a stranger stored with it (DEC-18).
    """
    (
        job_id, run_lease, kind, queue, args, state, priority, attempt, max_attempts, run_at, attempted_at,
        created_at, unique_key, unique_states, payload, progress, taken_at,
        ready_slot, ready_generation, enqueue_shard, lane_seq,
    ) = row  # fmt: skip
    stored = payload if isinstance(payload, dict) else {}
    metadata, tags, errors = stored.get("metadata"), stored.get("tags"), stored.get("errors")
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
        metadata=metadata if isinstance(metadata, dict) else {},
        tags=tuple(tags) if isinstance(tags, list) else (),
        errors=tuple(errors) if isinstance(errors, list) else (),
        progress=progress if progress is not None else stored.get("progress"),
        taken_at=taken_at,
        ready_slot=ready_slot,
        ready_generation=ready_generation,
        enqueue_shard=enqueue_shard,
        lane_seq=lane_seq,
        stored_payload=payload,
    )


def lock_attempts(cursor: Cursor, pairs: Iterable[tuple[int, int]]) -> None:
    """Take the advisory keys of attempts, ascending, to the end of the transaction."""
    pairs = list(pairs)
    send(
        cursor,
        statement("queue_storage/settle", "lock_attempts"),
        {"job_ids": ints(job_id for job_id, _ in pairs), "run_leases": ints(lease for _, lease in pairs)},
    )


def take_attempts(cursor: Cursor, guard: Leases) -> list[Taken]:
    """End attempts that are still current: receipts are closed, leases and attempt state removed.

    Attempts that have moved on are absent. Takes attempt keys, then the claim evidence.
    """
    attempts = guard.attempts
    lock_attempts(cursor, [(attempt.job_id, attempt.run_lease) for attempt in attempts])
    send(cursor, statement("queue_storage/settle", "lock_receipts"), coordinates(attempts))
    taken = _take(cursor, "take_receipts", attempts, guard.labels)
    found = {(job.job_id, job.run_lease) for job in taken}
    rest = [
        (attempt, label)
        for attempt, label in zip(attempts, guard.labels, strict=True)
        if (attempt.job_id, attempt.run_lease) not in found
    ]
    if rest:
        taken += _take(cursor, "take_leases", [item for item, _ in rest], [label for _, label in rest])
    return taken


def coordinates(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Where the receipts of attempts lie, as parameters."""
    return {
        "claim_slots": ints(attempt.claim_slot for attempt in attempts),
        "job_ids": ints(attempt.job_id for attempt in attempts),
        "run_leases": ints(attempt.run_lease for attempt in attempts),
        "receipt_ids": ints(attempt.receipt_id for attempt in attempts),
        "batch_ids": ints(attempt.batch_id for attempt in attempts),
    }


def _take(cursor: Cursor, name: str, attempts: Sequence[Attempt], labels: Sequence[str]) -> list[Taken]:
    parameters = {**coordinates(attempts), "labels": list(labels)}
    cursor.execute(statement("queue_storage/settle", name), parameters)
    return [taken_row(row) for row in cursor.fetchall()]
