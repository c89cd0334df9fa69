"""The plane of workers that serve the canonical tables, also while a fleet leaves them for queue storage.

Claims, takes, heartbeats and everything that ends a job stay where the job is. Only a job that is put off, by a
snooze or for its next attempt, goes where new jobs go: once that is queue storage, it is taken from the canonical
tables and placed there, under a new id. Otherwise jobs that keep coming back would keep the move from ending.
(contract: queue-storage/transition, runtime/outcomes section 5)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from awa_django.jobs import Landed, Landing
from awa_django.planes.base import Cursor, Leases, Settlement, send
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.canonical.take import hold_attempts
from awa_django.planes.queue_storage.enqueue import reserve_ids
from awa_django.planes.queue_storage.place import place as place_in_queue_storage
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import Transition, land

__all__ = ["RoutedPlane"]

#: The only schema whose queue storage this release writes to.
_SCHEMA = "awa"
_PUT_OFF = (JobState.SCHEDULED, JobState.RETRYABLE)


class RoutedPlane(CanonicalPlane):
    """Takes from the canonical tables; places what is put off where new jobs go."""

    def finish(self, cursor: Cursor, transitions: Sequence[Transition]) -> Settlement:
        put_off = [item for item in transitions if item.rule.state in _PUT_OFF]
        if not put_off or not _is_leaving(cursor):
            return super().finish(cursor, transitions)
        rest = [item for item in transitions if item.rule.state not in _PUT_OFF]
        if rest:
            # One ascending run over all rows before the two parts change theirs.
            hold_attempts(cursor, [item.attempt for item in transitions])
        finished = super().finish(cursor, rest) if rest else Settlement()
        landed = self._move(cursor, put_off)
        by_pair = {item.pair: item for item in put_off}
        moved = [by_pair.pop(item.landing.taken.pair) for item in landed]
        return replace(
            finished,
            landed=[*finished.landed, *landed],
            transitions=[*finished.transitions, *moved],
            stale=[*finished.stale, *by_pair.values()],
        )

    def _move(self, cursor: Cursor, transitions: Sequence[Transition]) -> list[Landed]:
        """Put attempts off into queue storage; those with anything of a callback stay, so that it can be answered."""
        taken = self.take(
            cursor, Leases([item.attempt for item in transitions], [item.closes for item in transitions])
        )
        landings = land(taken, transitions)
        staying = [item for item in landings if item.taken.callback is not None]
        leaving = [item for item in landings if item.taken.callback is None]
        landed = self.place(cursor, staying) if staying else []
        if leaving:
            self.drop(cursor, [item.taken for item in leaving])
            landed = [*landed, *_arrive(cursor, leaving)]
        return landed


def _is_leaving(cursor: Cursor) -> bool:
    """Whether new jobs go to queue storage, which cannot change until this transaction ends.

    The lock and the answer are two statements: one that has waited for a step of the move would still see what was
    before it.
    """
    send(cursor, statement("canonical/transition", "hold_routing"), {})
    cursor.execute(statement("canonical/transition", "route"), {})
    row = cursor.fetchone()
    return row is not None and row[0] == _SCHEMA


def _arrive(cursor: Cursor, landings: Sequence[Landing]) -> list[Landed]:
    """Place jobs whose canonical rows are gone in queue storage, as new jobs that go on counting their leases.

    They take their unique keys anew; one whose key a newer job has taken meanwhile ends as a cancelled duplicate.
    What is returned still names the attempts that were taken.
    """
    ids = reserve_ids(cursor, len(landings))
    arrivals = [
        landing.replace(taken=replace(landing.taken, job_id=job_id, attempt=landing.attempt, canonical=False))
        for landing, job_id in zip(landings, ids, strict=True)
    ]
    before = dict(zip(ids, landings, strict=True))
    return [
        Landed(
            placed.landing.replace(taken=before[placed.landing.taken.job_id].taken),
            placed.run_at,
            placed.duplicate,
            placed.landing.taken.job_id,
        )
        for placed in place_in_queue_storage(cursor, arrivals, arriving=True)
    ]
