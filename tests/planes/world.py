"""A small world for tests of a plane: jobs enqueued, claimed and ended through the plane itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.rows import dict_row

from awa_django.jobs import Attempt, JobInsert, Taken
from awa_django.outcomes import Completed, Outcome
from awa_django.planes.base import Beat, Cursor, Plane, Settlement
from awa_django.transitions import plan
from tests.moves import make_canonical

Answer = TypeVar("Answer")

NO_DEADLINE = timedelta(0)


@dataclass
class World:
    """One database and one session of it, in autocommit."""

    connection: psycopg.Connection[Any]
    plane: Plane

    def within(self, work: Callable[[Cursor], Answer]) -> Answer:
        """Do something in a transaction of its own."""
        with self.connection.transaction(), self.connection.cursor() as cursor:
            return work(cursor)

    def enqueue(self, *jobs: JobInsert) -> None:
        self.within(lambda cursor: self.plane.enqueue(cursor, jobs))

    def claim(
        self, queue: str = "q", limit: int = 100, *, deadline: timedelta = NO_DEADLINE
    ) -> list[Attempt]:
        attempts = self.within(
            lambda cursor: (
                self.plane.claim(cursor, queue, limit, deadline=deadline, aging=NO_DEADLINE).attempts
            )
        )
        if attempts:
            self.within(lambda cursor: self.plane.advance(cursor, attempts))
        return attempts

    def running(self, *jobs: JobInsert, deadline: timedelta = NO_DEADLINE) -> list[Attempt]:
        """These jobs, enqueued and claimed."""
        self.enqueue(*jobs)
        return self.claim(jobs[0].queue, len(jobs), deadline=deadline)

    def end(
        self, attempts: Sequence[Attempt], outcome: Outcome | None = None, *, progress: Any = None
    ) -> Settlement:
        transitions = [plan(attempt, outcome or Completed(), progress=progress) for attempt in attempts]
        return self.within(lambda cursor: self.plane.settle(cursor, transitions))

    def beat(self, attempt: Attempt, progress: Any = None) -> None:
        self.within(lambda cursor: self.plane.heartbeat(cursor, [Beat(attempt, progress)]))

    def lease(
        self,
        attempt: Attempt,
        *,
        state: str = "running",
        deadline: str | None = None,
        callback_in: str | None = None,
    ) -> None:
        """What registering a callback makes of an attempt: a lease beside its open receipt."""
        self.run(
            """
            INSERT INTO awa.leases (
                lease_slot, lease_generation, ready_slot, ready_generation, job_id, queue, state, priority,
                attempt, run_lease, max_attempts, lane_seq, enqueue_shard, heartbeat_at, attempted_at, deadline_at,
                callback_timeout_at
            )
            SELECT current_slot, generation, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, now(), now(),
                now() + %s::text::interval, now() + %s::text::interval
            FROM awa.lease_ring_state
            """,
            attempt.ready_slot,
            attempt.ready_generation,
            attempt.job_id,
            attempt.queue,
            state,
            attempt.lane_priority,
            attempt.attempt,
            attempt.run_lease,
            attempt.max_attempts,
            attempt.lane_seq,
            attempt.enqueue_shard,
            deadline,
            callback_in,
        )

    def age(self, by: str = "10 minutes") -> None:
        """Let every claim, heartbeat, deadline and callback's time be this much older."""
        self.run(
            """
            UPDATE awa.jobs_hot
            SET heartbeat_at = heartbeat_at - %s::text::interval, deadline_at = deadline_at - %s::text::interval,
                callback_timeout_at = callback_timeout_at - %s::text::interval
            """,
            by,
            by,
            by,
        )
        for table in ("lease_claims", "lease_claim_batches"):
            self.run(f"UPDATE awa.{table} SET claimed_at = claimed_at - %s::text::interval", by)
        self.run("UPDATE awa.lease_claims SET deadline_at = deadline_at - %s::text::interval", by)
        self.run("UPDATE awa.attempt_state SET heartbeat_at = heartbeat_at - %s::text::interval", by)
        self.run(
            """
            UPDATE awa.leases
            SET heartbeat_at = heartbeat_at - %s::text::interval, deadline_at = deadline_at - %s::text::interval
            """,
            by,
            by,
        )

    def run(self, query: str, *values: Any) -> None:
        self.connection.execute(query, values or None)

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query, values or None).fetchall()

    def one(self, query: str, *values: Any) -> Any:
        """The first column of the only row."""
        (row,) = self.connection.execute(query, values or None).fetchall()
        return row[0]


def use_canonical_tables(connection: psycopg.Connection[Any]) -> None:
    """Have new jobs go to the canonical tables, as in an installation that a client has used before any worker."""
    make_canonical(connection)


def job(**fields: Any) -> JobInsert:
    """A job on queue ``q``."""
    return JobInsert(**{"kind": "k", "args": {}, "queue": "q", **fields})


def ids(taken: Sequence[Taken]) -> list[int]:
    """The jobs that were taken, in order."""
    return [item.job_id for item in taken]
