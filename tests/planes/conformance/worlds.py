"""A world of either storage, seen alike: where a job is, and what is stored of it."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from awa_django.jobs import Attempt, Callback, Landed
from awa_django.outcomes import Outcome, Rescued
from awa_django.planes.base import Claimed, Cursor, Due, Guard, Ids, Stale
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.transitions import land_one, promote
from tests import invariants
from tests.planes.sessions import session
from tests.planes.world import NO_DEADLINE, World, use_canonical_tables

NO_EXPRESSIONS = Callback(None, None)
LONG = timedelta(hours=1)
SILENCE = timedelta(seconds=90)
KEY = b"0123456789abcdef"

DEAD = """
    SELECT job_id AS id, queue, priority, state::text AS state, attempt, run_lease, max_attempts, run_at, finalized_at,
        coalesce(payload -> 'metadata', '{}') AS metadata, payload -> 'progress' AS progress,
        ARRAY(SELECT jsonb_array_elements(coalesce(payload -> 'errors', '[]'))) AS errors, dlq_reason
    FROM awa.dlq_entries
"""


@dataclass
class AnyWorld(World):
    """A world whose attempts get a deadline of one sort unless a test wants another."""

    deadline: timedelta = NO_DEADLINE

    @property
    def is_canonical(self) -> bool:
        return self.plane.name == "canonical"

    @property
    def deferred(self) -> str:
        """The table of jobs that wait for their time."""
        return "scheduled_jobs" if self.is_canonical else "deferred_jobs"

    def empty(self) -> None:
        """Begin anew, with job ids counting on."""
        self.connection.execute(statement("testing", "reset"), {})
        if self.is_canonical:
            use_canonical_tables(self.connection)

    # -- what can be done --------------------------------------------------------------------------------------

    def claim(
        self, queue: str = "q", limit: int = 100, *, deadline: timedelta | None = None
    ) -> list[Attempt]:
        return super().claim(queue, limit, deadline=self.deadline if deadline is None else deadline)

    def running(self, *jobs: Any, deadline: timedelta | None = None) -> list[Attempt]:
        return super().running(*jobs, deadline=self.deadline if deadline is None else deadline)

    def claimed(self, limit: int = 100, *, cursor: Cursor | None = None) -> Claimed:
        """One claim of queue ``q``, with what it refused; in a transaction of its own unless a cursor is given."""

        def work(at: Cursor) -> Claimed:
            return self.plane.claim(at, "q", limit, deadline=self.deadline, aging=NO_DEADLINE)

        return self.within(work) if cursor is None else work(cursor)

    def register(self, attempt: Attempt, timeout: timedelta = LONG) -> uuid.UUID:
        """The token of a callback that this attempt registers."""
        token = uuid.uuid4()
        assert self.within(
            lambda cursor: self.plane.register_callback(cursor, attempt, token, timeout, NO_EXPRESSIONS)
        )
        return token

    def change(
        self,
        guard: Guard,
        outcome: Outcome | None = None,
        *,
        connection: psycopg.Connection[Any] | None = None,
    ) -> list[Landed]:
        """Take by a guard and place by an outcome; without one the jobs become available."""

        def work(cursor: Cursor) -> list[Landed]:
            taken = self.plane.take(cursor, guard)
            return self.plane.place(
                cursor, [promote(job) if outcome is None else land_one(job, outcome) for job in taken]
            )

        if connection is None:
            return self.within(work)
        with connection.transaction(), connection.cursor() as cursor:
            return work(cursor)

    def named(self, *job_ids: int, states: Collection[JobState] = tuple(JobState), dead: bool = False) -> Ids:
        return Ids(job_ids, states, dead=dead)

    def rescue(self) -> list[Landed]:
        """Take away every running attempt as if its worker had been silent for long."""
        self.age()
        return [
            landed
            for receipts in (True, False)
            for landed in self.change(Stale(SILENCE, receipts=receipts), Rescued("worker presumed dead"))
        ]

    def promote_all(self) -> int:
        """Make every deferred job available."""
        self.run(f"UPDATE awa.{self.deferred} SET run_at = now() - interval '1 second'")
        return sum(len(self.change(Due(state))) for state in (JobState.SCHEDULED, JobState.RETRYABLE))

    def check(self) -> None:
        """Fail where queue storage's invariants do not hold."""
        if not self.is_canonical:
            assert invariants.violated(self.connection) == []

    # -- what can be seen --------------------------------------------------------------------------------------

    def state(self, job_id: int) -> JobState | None:
        """Where the plane says a job is; None if it is gone."""
        standing = self.within(lambda cursor: self.plane.standings(cursor, [job_id])).get(job_id)
        return None if standing is None else standing.state

    def states(self, job_ids: Sequence[int]) -> list[JobState | None]:
        found = self.within(lambda cursor: self.plane.standings(cursor, job_ids))
        return [found[job_id].state if job_id in found else None for job_id in job_ids]

    def jobs(self) -> dict[int, dict[str, Any]]:
        """Every job that readers see, by id; a running one of queue storage only with a lease."""
        found = self.rows("SELECT *, state::text AS state, NULL AS dlq_reason FROM awa.jobs")
        return {row["id"]: row for row in [*found, *self.rows(DEAD)]}

    def job(self, job_id: int) -> dict[str, Any]:
        return self.jobs()[job_id]

    def ids(self) -> list[int]:
        """The jobs that readers see, in the order they were stored."""
        return sorted(self.jobs())

    def holders(self) -> dict[bytes, int]:
        """Who holds which unique key."""
        return {
            bytes(row["unique_key"]): row["job_id"]
            for row in self.rows("SELECT * FROM awa.job_unique_claims")
        }


#: By name: the plane, and the deadline that makes its claims leave row receipts where there are receipts.
WORLDS: dict[str, tuple[type[QueueStoragePlane] | type[CanonicalPlane], timedelta]] = {
    "queue_storage": (QueueStoragePlane, NO_DEADLINE),
    "queue_storage-deadlines": (QueueStoragePlane, LONG),
    "canonical": (CanonicalPlane, NO_DEADLINE),
}


@contextmanager
def opened(name: str, database: str) -> Iterator[AnyWorld]:
    """An emptied database as one of :data:`WORLDS`."""
    plane, deadline = WORLDS[name]
    with session(database) as connection:
        world = AnyWorld(connection, plane(), deadline)
        world.empty()
        yield world
