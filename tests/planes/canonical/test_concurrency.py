"""Sessions that change the same canonical rows at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from awa_django.outcomes import Cancel, Completed, Failed, Outcome, Snooze, Terminal
from awa_django.planes.base import Beat
from awa_django.settle import settle
from awa_django.transitions import plan
from tests.planes.canonical.rows import states
from tests.planes.world import NO_DEADLINE, World, job

ROUNDS = 20
BATCH = 120


def side_by_side(*works: Callable[[], None]) -> None:
    """Run these at once; raises what any of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        try:
            start.wait(30)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def test_heartbeats_and_ends_of_the_same_rows_never_deadlock(canonical: World, world_database: str) -> None:
    """Whatever the order they are asked in, both lock rows by id."""
    kinds: list[Outcome] = [Completed(), Failed("no"), Completed(), Snooze(1), Terminal("no"), Cancel()]
    canonical.enqueue(*[job() for _ in range(ROUNDS * BATCH)])
    with psycopg.connect(world_database, autocommit=True) as settling:
        for _ in range(ROUNDS):
            attempts = canonical.claim(limit=BATCH)
            ends = [plan(attempt, kinds[n % len(kinds)]) for n, attempt in enumerate(attempts)]
            backwards = [Beat(attempt, {"percent": 1}) for attempt in reversed(attempts)]

            def beat(beats: list[Beat] = backwards) -> None:
                canonical.within(lambda cursor: canonical.plane.heartbeat(cursor, beats))

            def end(ends: Any = ends) -> None:
                assert not settle(settling, canonical.plane, ends[::-1]).stale

            side_by_side(beat, end)
    left = states(canonical)
    assert len(left) == ROUNDS * BATCH
    assert set(left) == {"completed", "retryable", "scheduled", "failed", "cancelled"}


def test_each_job_is_handed_out_once_to_claimers_that_hurry(canonical: World, world_database: str) -> None:
    canonical.enqueue(*[job() for _ in range(1500)])
    got: list[int] = []

    def claim() -> None:
        with psycopg.connect(world_database, autocommit=True) as connection, connection.cursor() as cursor:
            # A claim that comes back empty may have met rows that the others were just about to take.
            while attempts := canonical.plane.claim(
                cursor, "q", 40, deadline=NO_DEADLINE, aging=NO_DEADLINE
            ).attempts:
                got.extend(attempt.job_id for attempt in attempts)

    side_by_side(claim, claim, claim)
    got.extend(attempt.job_id for attempt in canonical.claim(limit=1500))
    assert len(got) == len(set(got)) == 1500
    assert {row["run_lease"] for row in canonical.rows("SELECT run_lease FROM awa.jobs_hot")} == {1}


def test_of_two_ends_of_one_attempt_one_counts(canonical: World, world_database: str) -> None:
    attempts = canonical.running(*[job() for _ in range(60)])
    with (
        psycopg.connect(world_database, autocommit=True) as first,
        psycopg.connect(world_database, autocommit=True) as second,
    ):
        answers: list[int] = []

        def end(connection: psycopg.Connection[Any], outcome: Outcome) -> None:
            for attempt in attempts:
                settlement = settle(connection, canonical.plane, [plan(attempt, outcome)])
                answers.append(len(settlement.completed) + len(settlement.landed))

        side_by_side(lambda: end(first, Completed()), lambda: end(second, Failed("no")))
    assert sum(answers) == 60
    assert len(answers) == 120
    assert len(states(canonical)) == 60
