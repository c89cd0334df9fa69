"""Callbacks of canonical attempts (contract: runtime/attempt section 5).

Everything of a callback lies in the job's own row, and the payload of a resume in its metadata until the handler takes
it. The row's lock is the attempt's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

from awa_django.errors import UniqueConflict
from awa_django.jobs import Attempt, Callback, JsonValue, Landed, Taken
from awa_django.planes import unique
from awa_django.planes.arrays import dump_json, ints, jsons
from awa_django.planes.base import Answered, Cursor, send
from awa_django.planes.canonical.place import place
from awa_django.planes.canonical.take import pairs, taken_row
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import Standing, Transition, duplicate_of, land_one

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


# -- what the worker that runs the attempt does ------------------------------------------------------------------


def register(
    cursor: Cursor, attempt: Attempt, callback_id: UUID, timeout: timedelta, expressions: Callback
) -> bool:
    """Give a running attempt a token, and the expressions that judge its answer."""
    values = {
        "callback_id": callback_id,
        "timeout": timeout,
        "filter": expressions.filter,
        "on_complete": expressions.on_complete,
        "on_fail": expressions.on_fail,
        "transform": expressions.transform,
    }
    return _changed(cursor, "set_callback", attempt, **values)


def withdraw(cursor: Cursor, attempt: Attempt) -> bool:
    """Forget the token and the expressions of a running attempt."""
    return _changed(cursor, "clear_callback", attempt)


def park(cursor: Cursor, transitions: Sequence[Transition]) -> list[Landed]:
    """Have attempts wait for whichever callback they have (DEC-4), with their progress stored.

    One that may not enter the waiting state, because a newer job holds its unique key, ends as a cancelled
    duplicate. Locks rows in id order, then unique claims.
    """
    by_pair = {item.pair: item for item in transitions}
    landings = [
        land_one(job, item.outcome, rule=item.rule, progress=item.progress)
        for job in _hold(cursor, [item.attempt for item in transitions])
        if job.state is JobState.RUNNING and job.callback is not None and job.callback.id is not None
        for item in [by_pair[job.pair]]
    ]
    lost = unique.acquire(
        cursor,
        (
            (landing.taken.unique_key, landing.taken.job_id)
            for landing in landings
            if _enters(landing.taken, landing.state)
        ),
    )
    waiting = [landing for landing in landings if landing.taken.job_id not in lost]
    if waiting:
        _park(
            cursor,
            [landing.taken.job_id for landing in waiting],
            [by_pair[landing.taken.pair].progress for landing in waiting],
        )
    landed = [Landed(landing, landing.taken.run_at) for landing in waiting]
    duplicates = [duplicate_of(landing) for landing in landings if landing.taken.job_id in lost]
    if duplicates:
        landed += [replace(item, duplicate=True) for item in place(cursor, duplicates)]
    return landed


def begin_wait(cursor: Cursor, attempt: Attempt, callback_id: UUID) -> bool:
    """Have a running attempt wait for this token.

    Raises ``UniqueConflict`` if its key is claimed by the waiting state and a newer job holds it.
    """
    job = _held_with(cursor, attempt, callback_id, JobState.RUNNING)
    if job is None:
        return False
    _enter(cursor, job, JobState.WAITING_EXTERNAL)
    _park(cursor, [job.job_id], [None])
    return True


def end_wait(cursor: Cursor, attempt: Attempt, callback_id: UUID) -> bool:
    """Have it run again, with a fresh heartbeat and its token kept.

    False also if a newer job took its unique key while it waited: it waits on, and its callback's time decides.
    """
    job = _held_with(cursor, attempt, callback_id, JobState.WAITING_EXTERNAL)
    if job is None:
        return False
    try:
        _enter(cursor, job, JobState.RUNNING)
    except UniqueConflict:
        return False
    send(cursor, _named("unpark"), {"job_id": job.job_id})
    return True


def consume_result(cursor: Cursor, attempt: Attempt) -> Standing | None:
    """Where the job is; an answer that lies ready is taken away with the look that finds it."""
    found = standings(cursor, [attempt.job_id]).get(attempt.job_id)
    if found is None or not found.resumed:
        return found
    is_ready = found.state is JobState.RUNNING and found.callback_id is None
    if is_ready and found.run_lease == attempt.run_lease:
        if _changed(cursor, "consume_result", attempt):
            return found
        # Somebody took the attempt away between the two looks.
        found = standings(cursor, [attempt.job_id]).get(attempt.job_id)
    return None if found is None else found._replace(resumed=False, result=None)


def standings(cursor: Cursor, job_ids: Sequence[int]) -> dict[int, Standing]:
    """Where these jobs are."""
    cursor.execute(_named("standings"), {"job_ids": ints(job_ids)})
    return {
        job_id: Standing(job_id, run_lease, JobState(state), callback_id, resumed, result)
        for job_id, run_lease, state, callback_id, resumed, result in cursor.fetchall()
    }


# -- what the outside does ---------------------------------------------------------------------------------------


def find(
    cursor: Cursor, callback_id: UUID, run_lease: int | None, states: Collection[JobState]
) -> Taken | None:
    """The attempt that this token may answer; locks its row, waiting for it."""
    cursor.execute(_named("hold_callback"), {"callback_id": callback_id})
    for row in cursor.fetchall():
        job = taken_row(row)
        if job.state in states and run_lease in (None, job.run_lease):
            return job
    return None


def take_answered(cursor: Cursor, guard: Answered) -> list[Taken]:
    """The attempt that this token may answer, in whichever of the states it is; locks its row."""
    job = find(cursor, guard.callback_id, guard.run_lease, guard.states)
    return [] if job is None else [job]


def resume(cursor: Cursor, pending: Taken, payload: JsonValue) -> None:
    """Have a found attempt run on with this payload, JSON null included.

    Raises ``UniqueConflict`` if a newer job took its unique key while it waited.
    """
    _enter(cursor, pending, JobState.RUNNING)
    send(cursor, _named("resume"), {"job_id": pending.job_id, "payload": dump_json(payload)})


def extend(cursor: Cursor, pending: Taken, timeout: timedelta) -> None:
    """Give a found attempt this much time from the database's now."""
    send(cursor, _named("extend"), {"job_id": pending.job_id, "timeout": timeout})


# -- one statement each --------------------------------------------------------------------------------------------


def _named(name: str) -> LiteralString:
    return statement("canonical/callbacks", name)


def _changed(cursor: Cursor, name: str, attempt: Attempt, **values: Any) -> bool:
    cursor.execute(_named(name), {"job_id": attempt.job_id, "run_lease": attempt.run_lease, **values})
    return cursor.fetchone() is not None


def _hold(cursor: Cursor, attempts: Iterable[Attempt]) -> list[Taken]:
    cursor.execute(_named("hold_attempts"), pairs(attempts))
    return [taken_row(row) for row in cursor.fetchall()]


def _held_with(cursor: Cursor, attempt: Attempt, callback_id: UUID, state: JobState) -> Taken | None:
    """The attempt, locked, if it has this token and is in this state."""
    for job in _hold(cursor, [attempt]):
        if job.callback is not None and job.callback.id == callback_id and job.state is state:
            return job
    return None


def _park(cursor: Cursor, job_ids: Sequence[int], progress: Sequence[JsonValue]) -> None:
    send(cursor, _named("park"), {"job_ids": ints(job_ids), "progress": jsons(progress)})


def _enters(job: Taken, state: JobState) -> bool:
    """Whether a state claims the job's unique key, and the present one does not."""
    return job.claims(state) and not job.claims(job.state)


def _enter(cursor: Cursor, job: Taken, state: JobState) -> None:
    """Take the job's unique key if it needs it in a state; triggers let it go.

    Raises ``UniqueConflict`` if another job holds it; nothing has been changed then.
    """
    if _enters(job, state) and unique.acquire(cursor, [(job.unique_key, job.job_id)]):
        raise unique.conflict(cursor, job)
