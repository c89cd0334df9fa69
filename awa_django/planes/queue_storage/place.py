"""Putting taken jobs where they go (contract: queue-storage/attempts section 2, rescue section 6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from awa_django.jobs import Landed, Landing, Taken, join_payload
from awa_django.planes.arrays import ints, jsons
from awa_django.planes.base import Cursor, send
from awa_django.planes.queue_storage.enqueue import Lane, insert_ready, register_lanes
from awa_django.planes.unique import acquire, release
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import RESCHEDULED_DUPLICATE, RESCUED_DUPLICATE, duplicate_of

__all__ = ["drop", "follow_unique_claims", "place"]


def place(cursor: Cursor, landings: Sequence[Landing], *, arriving: bool = False) -> list[Landed]:
    """Write every landing where its state belongs, with its unique claim.

    A job that may not enter its state, because a newer one holds the key, ends as a cancelled duplicate;
    the others are not affected. Jobs that are ``arriving`` come from the other plane and hold no key yet.
    """
    settled = follow_unique_claims(cursor, landings, arriving=arriving)
    rows: dict[Callable[..., dict[int, Any]], list[Landing]] = {}
    for landing, _ in settled:
        rows.setdefault(_table(landing), []).append(landing)
    due: dict[int, Any] = {}
    for write, group in rows.items():
        due.update(write(cursor, group))
    return [
        Landed(landing, due.get(landing.taken.job_id, landing.taken.run_at), duplicate)
        for landing, duplicate in settled
    ]


def drop(cursor: Cursor, taken: Sequence[Taken]) -> None:
    """Let go of the unique keys of taken jobs, which go nowhere."""
    release(cursor, ((job.unique_key, job.job_id) for job in taken if job.claims(job.state)))


def follow_unique_claims(
    cursor: Cursor, landings: Sequence[Landing], *, arriving: bool = False
) -> list[tuple[Landing, bool]]:
    """The landings as they may be written, each with whether it became a duplicate."""
    keyed = [landing for landing in landings if landing.taken.unique_key is not None]
    if not keyed:
        return [(landing, False) for landing in landings]

    def holds(taken: Taken) -> bool:
        return not arriving and taken.claims(taken.state)

    def may_hold(taken: Taken) -> bool:
        # Reference clients do not let go of the key of the running state when they park.
        parked = taken.state is JobState.WAITING_EXTERNAL
        return holds(taken) or (parked and taken.claims(JobState.RUNNING))

    # A landing made a duplicate by the caller is an ordinary landing here.
    release(
        cursor,
        (
            (item.taken.unique_key, item.taken.job_id)
            for item in keyed
            if may_hold(item.taken) and not item.taken.claims(item.state)
        ),
    )
    lost = acquire(
        cursor,
        (
            (item.taken.unique_key, item.taken.job_id)
            for item in keyed
            if item.taken.claims(item.state) and not holds(item.taken)
        ),
    )
    text = RESCHEDULED_DUPLICATE if arriving else RESCUED_DUPLICATE
    return [
        (duplicate_of(landing, text=text), True) if landing.taken.job_id in lost else (landing, False)
        for landing in landings
    ]


def _table(landing: Landing) -> Callable[[Cursor, Sequence[Landing]], dict[int, Any]]:
    """What writes a landing; each answers with the due times it decided."""
    if landing.dlq_reason is not None:
        return _insert_dead
    match landing.state:
        case JobState.SCHEDULED | JobState.RETRYABLE:
            return _insert_deferred
        case JobState.AVAILABLE:
            return insert_ready
        case JobState.COMPLETED | JobState.FAILED | JobState.CANCELLED:
            return _insert_done
    raise ValueError(f"job {landing.taken.job_id}: nothing places a job as {landing.state}")


def _payload(landing: Landing) -> dict[str, Any] | None:
    return join_payload(landing.metadata, landing.taken.tags, landing.errors, landing.progress)


def _body(landings: Sequence[Landing]) -> dict[str, Any]:
    """The parameters that every place of a job has."""
    taken = [landing.taken for landing in landings]
    return {
        "job_ids": ints(job.job_id for job in taken),
        "kinds": [job.kind for job in taken],
        "queues": [job.queue for job in taken],
        # JSON null is a value here: the column takes no NULL.
        "args": [text or "null" for text in jsons(job.args for job in taken)],
        "priorities": ints(job.priority for job in taken),
        "attempts": ints(landing.attempt for landing in landings),
        "run_leases": ints(job.run_lease for job in taken),
        "max_attempts": ints(job.max_attempts for job in taken),
        "attempted_at": [job.attempted_at for job in taken],
        "finalized_at": [landing.finalized_at for landing in landings],
        "created_at": [job.created_at for job in taken],
        "unique_keys": [job.unique_key for job in taken],
        "unique_states": [job.unique_states for job in taken],
    }


def _insert_deferred(cursor: Cursor, landings: Sequence[Landing]) -> dict[int, Any]:
    cursor.execute(
        statement("queue_storage/place", "insert_deferred"),
        {
            **_body(landings),
            "states": [landing.state.value for landing in landings],
            "taken_at": [landing.taken.taken_at for landing in landings],
            "delays": [landing.delay for landing in landings],
            "run_at": [landing.run_at for landing in landings],
            "payloads": jsons(_payload(landing) for landing in landings),
        },
    )
    return dict(cursor.fetchall())


def _elided(landing: Landing) -> dict[str, Any] | None:
    """The payload of a finished row; None where readers find the same in the ready row."""
    payload = _payload(landing)
    taken = landing.taken
    if taken.lane_seq is None:
        return payload or {}
    return None if payload is None or payload == (taken.stored_payload or {}) else payload


def _ran(job: Taken) -> bool:
    """Whether it was an attempt that was taken, which other clients store without its body."""
    return job.state in (JobState.RUNNING, JobState.WAITING_EXTERNAL)


def _insert_done(cursor: Cursor, landings: Sequence[Landing]) -> dict[int, Any]:
    taken = [landing.taken for landing in landings]
    # A job that had no position is counted with the lane's first shard, which may not have been used before.
    if unlaned := {Lane(job.queue, job.priority, 0) for job in taken if job.lane_seq is None}:
        register_lanes(cursor, unlaned)
    send(
        cursor,
        statement("queue_storage/place", "insert_done"),
        {
            **_body(landings),
            "states": [landing.state.value for landing in landings],
            "ready_slots": ints(job.ready_slot for job in taken),
            "ready_generations": ints(job.ready_generation for job in taken),
            "lane_seqs": ints(job.lane_seq for job in taken),
            "shards": ints(job.enqueue_shard for job in taken),
            "run_at": [job.run_at for job in taken],
            "payloads": jsons(_elided(landing) for landing in landings),
            "whole": [not (_ran(job) and job.lane_seq is not None) for job in taken],
        },
    )
    return {}


def _insert_dead(cursor: Cursor, landings: Sequence[Landing]) -> dict[int, Any]:
    send(
        cursor,
        statement("queue_storage/place", "insert_dead"),
        {
            **_body(landings),
            "run_at": [landing.taken.run_at for landing in landings],
            "payloads": jsons(_payload(landing) or {} for landing in landings),
            "reasons": [landing.dlq_reason for landing in landings],
            "taken_at": [landing.taken.taken_at for landing in landings],
        },
    )
    return {}
