"""Lifting the jobs of attempts off their place (contract: queue-storage/attempts section 1, complete section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from awa_django.jobs import Taken, payload_parts
from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor, Leases, send
from awa_django.sql import statement
from awa_django.states import JobState

__all__ = [
    "Receipt",
    "coordinates",
    "lock_attempts",
    "take_attempts",
    "take_leases",
    "take_receipts",
    "taken_row",
]


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
    metadata, tags, errors, stored_progress = payload_parts(payload)
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
        tags=tags,
        errors=errors,
        progress=progress if progress is not None else stored_progress,
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
    taken = take_receipts(cursor, attempts, guard.labels)
    found = {(job.job_id, job.run_lease) for job in taken}
    rest = [
        (attempt, label)
        for attempt, label in zip(attempts, guard.labels, strict=True)
        if (attempt.job_id, attempt.run_lease) not in found
    ]
    if rest:
        taken += take_leases(
            cursor,
            [attempt for attempt, _ in rest],
            ["completed" if label == "completed" else "rescue" for _, label in rest],
            # A success may end an attempt that waits; anything else only one that runs.
            any_state=[label == "completed" for _, label in rest],
        )
    return taken


class Receipt(NamedTuple):
    """An attempt by its numbers, with where its receipt lies; ``claim_slot`` None if it is gone."""

    job_id: int
    run_lease: int
    claim_slot: int | None = None
    receipt_id: int | None = None
    batch_id: int | None = None

    @property
    def pair(self) -> tuple[int, int]:
        """What identifies the attempt."""
        return self.job_id, self.run_lease


class Placed(Protocol):
    """An attempt, with where its receipt lies; ``claim_slot`` None where it has none any more."""

    @property
    def job_id(self) -> int: ...
    @property
    def run_lease(self) -> int: ...
    @property
    def claim_slot(self) -> int | None: ...
    @property
    def receipt_id(self) -> int | None: ...
    @property
    def batch_id(self) -> int | None: ...


def coordinates(attempts: Sequence[Placed]) -> dict[str, Any]:
    """Where the receipts of attempts lie, as parameters."""
    return {
        "claim_slots": ints(attempt.claim_slot for attempt in attempts),
        "job_ids": ints(attempt.job_id for attempt in attempts),
        "run_leases": ints(attempt.run_lease for attempt in attempts),
        "receipt_ids": ints(attempt.receipt_id for attempt in attempts),
        "batch_ids": ints(attempt.batch_id for attempt in attempts),
    }


def take_leases(
    cursor: Cursor,
    attempts: Sequence[Placed],
    labels: Sequence[str],
    *,
    any_state: Sequence[bool] | None = None,
) -> list[Taken]:
    """Remove the leases of attempts whose keys and evidence are held, close their receipts, and lift their jobs.

    ``any_state`` says for each whether its lease may be in any state, by default all; else it has to be running.
    """
    free = [True] * len(attempts) if any_state is None else list(any_state)
    return _take(cursor, "take_leases", attempts, labels, any_state=free)


def take_receipts(cursor: Cursor, attempts: Sequence[Placed], labels: Sequence[str]) -> list[Taken]:
    """Close those receipts of attempts that are open and have no lease, and lift their jobs."""
    return _take(cursor, "take_receipts", attempts, labels)


def _take(
    cursor: Cursor, name: str, attempts: Sequence[Placed], labels: Sequence[str], **values: Any
) -> list[Taken]:
    parameters = {**coordinates(attempts), "labels": list(labels), **values}
    cursor.execute(statement("queue_storage/settle", name), parameters)
    return [taken_row(row) for row in cursor.fetchall()]
