"""Putting taken canonical jobs where they go (contract: runtime/outcomes section 3).

A job lies in one table while it waits for its time and in the other otherwise, so it stays or it moves. Triggers keep
unique keys, counters and, for rows that come in, wake-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from awa_django.jobs import Landed, Landing, Taken
from awa_django.planes import unique
from awa_django.planes.arrays import ints, jsons
from awa_django.planes.base import Cursor, send
from awa_django.planes.canonical.take import DEFERRED
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import RESCUED_DUPLICATE, duplicate_of

__all__ = ["drop", "place"]

#: What the error of a rescued attempt says, and what that of a duplicate calls it (contract: runtime/maintenance 3).
_CAUSES = {
    "heartbeat stale: worker presumed dead": "heartbeat stale",
    "hard deadline exceeded": "deadline expired",
    "callback timed out": "callback timed out",
}


#: Statements that answer with the time a job is due.
_DECIDES_TIME = ("defer", "update_deferred")


def place(cursor: Cursor, landings: Sequence[Landing]) -> list[Landed]:
    """Write every landing where its state belongs.

    A job that may not enter its state, because a newer one holds the key, ends as a cancelled duplicate; the others are
    not affected. There are no dead letters here: a job that would be one is failed. Parked attempts are not placed but
    parked (:func:`awa_django.planes.canonical.callbacks.park`).
    """
    for landing in landings:
        _check(landing)
    settled = _with_keys(cursor, [landing.replace(dlq_reason=None) for landing in landings])
    groups: dict[str, list[Landing]] = {}
    for landing, _ in settled:
        groups.setdefault(_way(landing), []).append(landing)
    due: dict[int, datetime] = {}
    for name, group in groups.items():
        if name in _DECIDES_TIME:
            cursor.execute(statement("canonical/place", name), _parameters(group) | _delays(group))
            due.update(cursor.fetchall())
        else:
            send(cursor, statement("canonical/place", name), _parameters(group))
            due.update((landing.taken.job_id, _run_at(landing)) for landing in group)
    if woken := {landing.taken.queue for landing in groups.get("update_hot", ()) if _is_available(landing)}:
        send(cursor, statement("canonical/place", "wake"), {"queues": sorted(woken)})
    return [Landed(landing, due[landing.taken.job_id], duplicate) for landing, duplicate in settled]


def drop(cursor: Cursor, taken: Sequence[Taken]) -> None:
    """Delete taken jobs; their unique keys are free with that."""
    for name, deferred in (("drop_hot", False), ("drop_deferred", True)):
        if job_ids := [job.job_id for job in taken if (job.state in DEFERRED) is deferred]:
            send(cursor, statement("canonical/place", name), {"job_ids": ints(job_ids)})


def _check(landing: Landing) -> None:
    taken = landing.taken
    if not taken.canonical:
        raise ValueError(f"job {taken.job_id} was not taken from the canonical tables; it has no row here")
    if landing.state in (JobState.RUNNING, JobState.WAITING_EXTERNAL):
        raise ValueError(f"job {taken.job_id}: nothing places a job as {landing.state}")


def _with_keys(cursor: Cursor, landings: Sequence[Landing]) -> list[tuple[Landing, bool]]:
    """The landings as they may be written, each with whether it became a duplicate; those that may have got their keys.

    Keys that jobs of the batch give up are free for others of it, as they would be if one came after the other.
    """
    keyed = [item for item in landings if item.taken.unique_key is not None]
    entering = [
        item for item in keyed if item.taken.claims(item.state) and not item.taken.claims(item.taken.state)
    ]
    if not entering:
        return [(item, False) for item in landings]
    unique.release(
        cursor,
        (
            (item.taken.unique_key, item.taken.job_id)
            for item in keyed
            if item.taken.claims(item.taken.state) and not item.taken.claims(item.state)
        ),
    )
    lost = unique.acquire(cursor, ((item.taken.unique_key, item.taken.job_id) for item in entering))
    return [(_duplicate(item), True) if item.taken.job_id in lost else (item, False) for item in landings]


def _duplicate(landing: Landing) -> Landing:
    """The cancelled row of a job that lost its key. Its error names the rescue that it was lost in."""
    added = landing.errors[len(landing.taken.errors) :]
    cause = _CAUSES.get(str(added[-1].get("error"))) if added else None
    text = RESCUED_DUPLICATE if cause is None else RESCUED_DUPLICATE.replace(": ", f": {cause} and ")
    return duplicate_of(landing, text=text)


def _way(landing: Landing) -> str:
    """The statement that writes a landing."""
    match landing.taken.state in DEFERRED, landing.state in DEFERRED:
        case False, False:
            return "update_hot"
        case False, True:
            return "defer"
        case True, False:
            return "undefer"
    return "update_deferred"


def _is_available(landing: Landing) -> bool:
    return landing.state is JobState.AVAILABLE


def _run_at(landing: Landing) -> datetime:
    """When a job is due that is not deferred now: at once if it is to run, else as before."""
    return landing.run_at or (landing.taken.taken_at if _is_available(landing) else landing.taken.run_at)


def _finalized_at(landing: Landing) -> datetime | None:
    """An end that no new one replaces stays on record, save for a job that starts all over."""
    if landing.finalized_at is not None:
        return landing.finalized_at
    starts_over = _is_available(landing) and landing.taken.state not in (JobState.AVAILABLE, *DEFERRED)
    return None if starts_over else landing.taken.finalized_at


def _keeps_clock(landing: Landing) -> bool:
    """Whether heartbeat and deadline stay: where the attempt ended by itself, not where an outside system ended it."""
    return landing.state.is_terminal and landing.taken.callback is None


def _keeps_metadata(landing: Landing) -> bool:
    """Whether the very object that was read goes back; the stored one is then left as it is, to the last digit."""
    return landing.metadata is (landing.taken.stored_payload or {}).get("metadata")


def _parameters(landings: Sequence[Landing]) -> dict[str, Any]:
    """What the statements want to know; some leave a part of it aside."""
    taken = [landing.taken for landing in landings]
    return {
        "job_ids": ints(job.job_id for job in taken),
        "queues": [job.queue for job in taken],
        "states": [landing.state.value for landing in landings],
        "priorities": ints(job.priority for job in taken),
        "attempts": ints(landing.attempt for landing in landings),
        "run_at": [_run_at(landing) for landing in landings],
        "keeps_clock": [_keeps_clock(landing) for landing in landings],
        "attempted_at": [job.attempted_at for job in taken],
        "finalized_at": [_finalized_at(landing) for landing in landings],
        "added_errors": jsons(
            list(landing.errors[len(landing.taken.errors) :]) or None for landing in landings
        ),
        "metadata": jsons(None if _keeps_metadata(landing) else landing.metadata for landing in landings),
        "unique_states": [job.unique_states for job in taken],
        "progress": jsons(landing.progress for landing in landings),
    }


def _delays(landings: Sequence[Landing]) -> dict[str, Any]:
    return {
        "taken_at": [landing.taken.taken_at for landing in landings],
        "delays": [landing.delay for landing in landings],
        "run_at": [landing.run_at for landing in landings],
        "keeps_callback": [landing.taken.callback is not None for landing in landings],
    }
