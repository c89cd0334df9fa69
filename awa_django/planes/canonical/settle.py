"""Ending canonical attempts (contract: runtime/outcomes, completion-heartbeat section 1)."""

from __future__ import annotations

from collections.abc import Sequence

from awa_django.jobs import claims
from awa_django.outcomes import Completed
from awa_django.planes.base import Cursor, Leases, Settlement
from awa_django.planes.canonical.place import place
from awa_django.planes.canonical.take import hold_attempts, pairs, take_attempts
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import Transition, land

__all__ = ["finish", "is_plain"]


def is_plain(transition: Transition) -> bool:
    """Whether a success changes nothing but the job's state and progress, and meets no other job's unique key."""
    attempt = transition.attempt
    return (
        isinstance(transition.outcome, Completed)
        and not transition.metadata
        and not transition.notes
        and (
            claims(attempt.unique_key, attempt.unique_states, JobState.RUNNING)
            or not claims(attempt.unique_key, attempt.unique_states, JobState.COMPLETED)
        )
    )


def finish(cursor: Cursor, transitions: Sequence[Transition]) -> Settlement:
    """Write the ends of attempts in the caller's transaction.

    Plain successes go in one statement for all; everything else is taken and placed. Locks the rows of all, ids
    ascending, as heartbeats do, then unique claims.
    """
    plain = [item for item in transitions if is_plain(item)]
    rest = [item for item in transitions if not is_plain(item)]
    if plain and rest:
        hold_attempts(cursor, [item.attempt for item in transitions])
    by_pair = {item.pair: item for item in transitions}
    completed: list[Transition] = []
    finalized_at = None
    if plain:
        cursor.execute(statement("canonical/settle", "complete"), pairs(item.attempt for item in plain))
        rows = cursor.fetchall()
        completed = [by_pair.pop((job_id, run_lease)) for _, job_id, run_lease in rows]
        finalized_at = rows[0][0] if rows else None
    if not rest:
        return Settlement(completed, finalized_at, stale=list(by_pair.values()))
    taken = take_attempts(cursor, Leases([item.attempt for item in rest], [item.closes for item in rest]))
    landed = place(cursor, land(taken, rest))
    ended = [by_pair.pop(item.landing.taken.pair) for item in landed]
    return Settlement(completed, finalized_at, landed, ended, list(by_pair.values()))
