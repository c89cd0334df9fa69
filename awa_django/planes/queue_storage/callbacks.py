"""Callbacks of attempts (contract: queue-storage/attempts sections 5 and 6).

An attempt that registers a callback gets a lease, a row that can change, beside its receipt, which stays open. Every
function takes the attempt's key before it looks, so what it finds stays so; the caller's transaction decides how long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

from awa_django.errors import UniqueConflict
from awa_django.jobs import Attempt, Callback, JsonValue, Landed, Landing, Taken
from awa_django.planes.arrays import dump_json, ints, jsons
from awa_django.planes.base import Answered, Cursor, send
from awa_django.planes.queue_storage.place import follow_unique_claims, place
from awa_django.planes.queue_storage.take import Receipt, coordinates, lock_attempts, take_leases, taken_row
from awa_django.planes.unique import conflict
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import Standing, Transition, land_one

__all__ = [
    "begin_wait",
    "consume_result",
    "end_wait",
    "extend",
    "find",
    "park",
    "register",
    "resume",
    "standings",
    "take_answered",
    "withdraw",
]

Pair = tuple[int, int]
#: Columns of a lifted job; the callback's follow them.
_TAKEN_COLUMNS = 21


# -- what the worker that runs the attempt does ------------------------------------------------------------------


def register(
    cursor: Cursor, attempt: Attempt, callback_id: UUID, timeout: timedelta, expressions: Callback
) -> bool:
    """Give a running attempt a token; its first one also gives it a lease.

    The lease has the deadline and the start of the claim and the priority of the lane (DEC-24). Locks the attempt
    key, the evidence for key share, the lease, then the attempt's state.
    """
    lock_attempts(cursor, [_pair(attempt)])
    send(cursor, _named("share_evidence"), _place(attempt))
    send(
        cursor,
        _named("make_lease"),
        {
            **_place(attempt),
            "receipt_id": attempt.receipt_id,
            "ready_slot": attempt.ready_slot,
            "ready_generation": attempt.ready_generation,
            "queue": attempt.queue,
            "priority": attempt.lane_priority,
            "attempt": attempt.attempt,
            "max_attempts": attempt.max_attempts,
            "lane_seq": attempt.lane_seq,
            "shard": attempt.enqueue_shard,
        },
    )
    values: dict[str, Any] = {**_one(_pair(attempt)), "callback_id": callback_id, "timeout": timeout}
    if not _changed(cursor, "set_callback", values):
        return False
    judges = {
        "filter": expressions.filter,
        "on_complete": expressions.on_complete,
        "on_fail": expressions.on_fail,
        "transform": expressions.transform,
    }
    if any(value is not None for value in judges.values()):
        send(cursor, _named("set_expressions"), {**_one(_pair(attempt)), **judges})
    else:
        send(cursor, _named("forget_expressions"), _one(_pair(attempt)))
    return True


def withdraw(cursor: Cursor, attempt: Attempt) -> bool:
    """Forget the token and the expressions of a running attempt; its lease stays."""
    lock_attempts(cursor, [_pair(attempt)])
    if not _changed(cursor, "clear_callback", _one(_pair(attempt))):
        return False
    send(cursor, _named("forget_expressions"), _one(_pair(attempt)))
    return True


def park(cursor: Cursor, transitions: Sequence[Transition]) -> list[Landed]:
    """Have attempts wait for whichever callback they have (DEC-4), with their progress stored (DEC-5).

    One that may not enter the waiting state, because a newer job holds its unique key, ends as a cancelled
    duplicate. Locks attempt keys ascending, leases, then unique claims.
    """
    by_pair = {item.pair: item for item in transitions}
    held = [
        job
        for job in _hold(cursor, by_pair)
        if job.state is JobState.RUNNING and job.callback is not None and job.callback.id is not None
    ]
    landings = [
        land_one(job, item.outcome, rule=item.rule, progress=item.progress)
        for job in held
        for item in [by_pair[job.pair]]
    ]
    followed = follow_unique_claims(cursor, landings)
    waiting = [landing for landing, lost in followed if not lost]
    if waiting:
        _park(
            cursor,
            [landing.taken.pair for landing in waiting],
            [by_pair[landing.taken.pair].progress for landing in waiting],
        )
    landed = [Landed(landing, landing.taken.run_at) for landing in waiting]
    duplicates = [landing for landing, lost in followed if lost]
    if duplicates:
        attempts = [by_pair[landing.taken.pair].attempt for landing in duplicates]
        send(cursor, statement("queue_storage/settle", "lock_receipts"), coordinates(attempts))
        take_leases(cursor, attempts, ["cancelled"] * len(attempts))
        landed += [replace(item, duplicate=True) for item in place(cursor, duplicates)]
    return landed


def begin_wait(cursor: Cursor, attempt: Attempt, callback_id: UUID) -> bool:
    """Have a running attempt wait for this token.

    Raises ``UniqueConflict`` if its key is claimed by the waiting state and a newer job holds it.
    """
    job = _held_with(cursor, _pair(attempt), callback_id, (JobState.RUNNING,))
    if job is None:
        return False
    _follow_key(cursor, job, JobState.WAITING_EXTERNAL)
    _park(cursor, [job.pair], [None])
    return True


def end_wait(cursor: Cursor, attempt: Attempt, callback_id: UUID) -> bool:
    """Have it run again, with a fresh heartbeat and its token kept.

    False also if a newer job took its unique key while it waited: it waits on, and its callback's time decides.
    """
    job = _held_with(cursor, _pair(attempt), callback_id, (JobState.WAITING_EXTERNAL,))
    if job is None:
        return False
    try:
        _follow_key(cursor, job, JobState.RUNNING)
    except UniqueConflict:
        return False
    send(cursor, _named("unpark"), _one(job.pair))
    return True


def consume_result(cursor: Cursor, attempt: Attempt) -> Standing | None:
    """Where the job is; an answer that lies ready is taken away with the look that finds it.

    Takes no attempt key: an answer can be taken by nobody but its attempt, and cannot be replaced.
    """
    cursor.execute(_named("newest_lease"), {"job_id": attempt.job_id})
    row = cursor.fetchone()
    if row is None:
        return standings(cursor, [attempt.job_id]).get(attempt.job_id)
    found = _standing(row)
    if found.run_lease != attempt.run_lease or not found.resumed:
        return found._replace(resumed=False, result=None)
    if found.state is JobState.RUNNING and found.callback_id is None:
        if _changed(cursor, "consume_result", _one(_pair(attempt))):
            return found
        # Somebody took the attempt away between the two looks.
        return standings(cursor, [attempt.job_id]).get(attempt.job_id)
    return found._replace(resumed=False, result=None)


def standings(cursor: Cursor, job_ids: Sequence[int]) -> dict[int, Standing]:
    """Where these jobs are. Looks through every table that may tell: not for what is asked often."""
    cursor.execute(_named("standings"), {"job_ids": ints(job_ids)})
    return {row[0]: _standing(row) for row in cursor.fetchall()}


# -- what the outside does ---------------------------------------------------------------------------------------


def find(
    cursor: Cursor, callback_id: UUID, run_lease: int | None, states: Collection[JobState]
) -> Taken | None:
    """The attempt that this token may answer. Locks its key, waiting for it, then its lease."""
    cursor.execute(_named("attempt_of_callback"), {"callback_id": callback_id})
    row = cursor.fetchone()
    if row is None or (run_lease is not None and row[1] != run_lease):
        return None
    return _held_with(cursor, (row[0], row[1]), callback_id, states)


def take_answered(cursor: Cursor, guard: Answered) -> list[Taken]:
    """End the attempt that this token may answer, in whichever of the states it is.

    Locks its key, its lease, then its evidence for key share.
    """
    job = find(cursor, guard.callback_id, guard.run_lease, guard.states)
    if job is None:
        return []
    pair = _one(job.pair)
    cursor.execute(_named("receipt_of_lease"), pair)
    row = cursor.fetchone()
    receipt = None if row is None else Receipt(*job.pair, *row)
    if receipt is not None:
        place = {**pair, "claim_slot": receipt.claim_slot, "batch_id": receipt.batch_id}
        send(cursor, _named("share_evidence"), place)
    return take_leases(cursor, [receipt or Receipt(*job.pair)], [guard.closes])


def resume(cursor: Cursor, pending: Taken, payload: JsonValue) -> None:
    """Have a found attempt run on with this payload, JSON null included.

    Raises ``UniqueConflict`` if a newer job took its unique key while it waited.
    """
    _follow_key(cursor, pending, JobState.RUNNING)
    values = {**_one(pending.pair), "payload": dump_json(payload)}
    send(cursor, _named("resume"), values)


def extend(cursor: Cursor, pending: Taken, timeout: timedelta) -> None:
    """Give a found attempt this much time from the database's now."""
    send(cursor, _named("extend"), {**_one(pending.pair), "timeout": timeout})


# -- one statement each --------------------------------------------------------------------------------------------


def _named(name: str) -> LiteralString:
    return statement("queue_storage/callbacks", name)


def _pair(attempt: Attempt) -> Pair:
    return attempt.job_id, attempt.run_lease


def _one(pair: Pair) -> dict[str, Any]:
    """One attempt, as parameters."""
    return {"job_id": pair[0], "run_lease": pair[1]}


def _place(attempt: Attempt) -> dict[str, Any]:
    """Where the evidence of an attempt lies, as parameters."""
    return {**_one(_pair(attempt)), "claim_slot": attempt.claim_slot, "batch_id": attempt.batch_id}


def _changed(cursor: Cursor, name: str, values: dict[str, Any]) -> bool:
    cursor.execute(_named(name), values)
    return cursor.fetchone() is not None


def _hold(cursor: Cursor, pairs: Iterable[Pair]) -> list[Taken]:
    """The leases of these attempts, locked after their keys, each with its job and callback."""
    pairs = list(pairs)
    lock_attempts(cursor, pairs)
    cursor.execute(
        _named("hold_leases"),
        {"job_ids": ints(job_id for job_id, _ in pairs), "run_leases": ints(lease for _, lease in pairs)},
    )
    return [
        replace(taken_row(row[:_TAKEN_COLUMNS]), callback=Callback(*row[_TAKEN_COLUMNS:]))
        for row in cursor.fetchall()
    ]


def _held_with(cursor: Cursor, pair: Pair, callback_id: UUID, states: Collection[JobState]) -> Taken | None:
    """The lease of this attempt, locked, if it has this token and is in one of these states."""
    for job in _hold(cursor, [pair]):
        if job.callback is not None and job.callback.id == callback_id and job.state in states:
            return job
    return None


def _park(cursor: Cursor, pairs: Sequence[Pair], progress: Sequence[JsonValue]) -> None:
    values = {
        "job_ids": ints(job_id for job_id, _ in pairs),
        "run_leases": ints(lease for _, lease in pairs),
        "progress": jsons(progress),
    }
    send(cursor, _named("park"), values)


def _follow_key(cursor: Cursor, job: Taken, state: JobState) -> None:
    """Let go of the job's unique key, or take it, as it enters a state.

    Raises ``UniqueConflict`` if another job holds it; nothing has been changed then.
    """
    landing = Landing(job, state, job.attempt, job.errors, job.metadata, job.progress)
    ((_, lost),) = follow_unique_claims(cursor, [landing])
    if lost:
        raise conflict(cursor, job)


def _standing(row: Sequence[Any]) -> Standing:
    job_id, run_lease, state, callback_id, resumed, result = row
    return Standing(job_id, run_lease, JobState(state), callback_id, resumed, result)
