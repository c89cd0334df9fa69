"""An operator's cancel against whoever else moves the job, in a written order: one of the two has it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
import pytest

from awa_django.jobs import Attempt, Landed
from awa_django.operations.change import change_on
from awa_django.operations.desk import Desk
from awa_django.operations.verbs import RETRY
from awa_django.outcomes import Completed, Failed, OperatorCancel, Outcome, Rescued, Terminal
from awa_django.planes.base import Cursor, Ids, PastDeadline, Stale
from awa_django.states import JobState
from awa_django.transitions import land_one, plan
from tests.invariants import violated
from tests.planes.world import NO_DEADLINE, World, job

LIVE = [state for state in JobState if not state.is_terminal]
LIMIT = 60.0
MINUTES = timedelta(minutes=5)

Answer = TypeVar("Answer")
Work = Callable[[Cursor], Answer]


class Rival:
    """A second session that does one thing at a time, in a thread."""

    def __init__(self, url: str, watcher: psycopg.Connection[Any]) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("SET statement_timeout = '60s'")
        self._watcher = watcher
        self._threads = ThreadPoolExecutor(max_workers=1)

    def start(self, work: Work[Answer]) -> Future[Answer]:
        """Begin something in a transaction of its own that commits when it is done."""

        def run() -> Answer:
            with self.connection.transaction(), self.connection.cursor() as cursor:
                return work(cursor)

        return self._threads.submit(run)

    def wait_until_blocked(self, future: Future[Any]) -> None:
        """Return once the session waits for a lock; fails if it need not."""
        give_up = time.monotonic() + LIMIT
        while not self._watcher.execute(
            "SELECT true FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
            [self.connection.info.backend_pid],
        ).fetchone():
            assert not future.done(), f"it did not wait: {future.result()}"
            assert time.monotonic() < give_up

    def close(self) -> None:
        self._threads.shutdown()
        self.connection.close()


@pytest.fixture
def rival(world: World, world_database: str) -> Iterator[Rival]:
    with psycopg.connect(world_database, autocommit=True) as watcher:
        other = Rival(world_database, watcher)
        try:
            yield other
        finally:
            other.close()


def cancelling(world: World, *job_ids: int) -> Work[list[Landed]]:
    def work(cursor: Cursor) -> list[Landed]:
        taken = world.plane.take(cursor, Ids(job_ids, LIVE))
        return world.plane.place(cursor, [land_one(item, OperatorCancel()) for item in taken])

    return work


def settling(world: World, attempt: Attempt, outcome: Outcome, *, leased: bool) -> Work[bool]:
    transition = plan(attempt, outcome)._replace(has_lease=leased)

    def work(cursor: Cursor) -> bool:
        return not world.plane.settle(cursor, [transition]).stale

    return work


def rescuing(world: World, deadline: bool) -> Work[list[Landed]]:
    def work(cursor: Cursor) -> list[Landed]:
        guard = PastDeadline(10) if deadline else Stale(timedelta(seconds=90), 10, receipts=True)
        taken = world.plane.take(cursor, guard)
        return world.plane.place(cursor, [land_one(item, Rescued("stale")) for item in taken])

    return work


def states(world: World, job_id: int) -> list[str]:
    """Every state that is stored of a job; more than one would be two jobs of one."""
    rows = world.rows(
        """
        SELECT state::text FROM awa.terminal_jobs WHERE job_id = %(id)s
        UNION ALL SELECT state::text FROM awa.deferred_jobs WHERE job_id = %(id)s
        UNION ALL SELECT state::text FROM awa.leases WHERE job_id = %(id)s
        UNION ALL SELECT 'available' FROM awa.awa_django_available_jobs WHERE job_id = %(id)s
        """.replace("%(id)s", str(int(job_id)))
    )
    return [row["state"] for row in rows]


def sound(world: World) -> bool:
    return violated(world.connection, quiesced=True) == []


OUTCOMES = pytest.mark.parametrize(
    ("outcome", "ends"),
    [(Completed(), "completed"), (Failed("again"), "retryable"), (Terminal("gone"), "failed")],
    ids=["success", "failure", "final failure"],
)
DEADLINES = pytest.mark.parametrize("deadline", [NO_DEADLINE, MINUTES], ids=["compact", "row"])


@OUTCOMES
@DEADLINES
@pytest.mark.parametrize("leased", [False, True], ids=["receipt", "lease"])
def test_a_cancel_that_is_first_makes_the_outcome_stale(
    world: World, rival: Rival, leased: bool, deadline: timedelta, outcome: Outcome, ends: str
) -> None:
    (attempt,) = world.running(job(), deadline=deadline)
    if leased:
        world.lease(attempt)
    with world.connection.transaction(), world.connection.cursor() as cursor:
        assert len(cancelling(world, attempt.job_id)(cursor)) == 1
        settled = rival.start(settling(world, attempt, outcome, leased=leased))
        rival.wait_until_blocked(settled)
    assert settled.result(LIMIT) is False
    assert states(world, attempt.job_id) == ["cancelled"]
    assert sound(world)


@OUTCOMES
@DEADLINES
@pytest.mark.parametrize("leased", [False, True], ids=["receipt", "lease"])
def test_a_cancel_that_comes_second_meets_the_job_where_the_outcome_left_it(
    world: World, rival: Rival, leased: bool, deadline: timedelta, outcome: Outcome, ends: str
) -> None:
    (attempt,) = world.running(job(), deadline=deadline)
    if leased:
        world.lease(attempt)
    with world.connection.transaction(), world.connection.cursor() as cursor:
        assert settling(world, attempt, outcome, leased=leased)(cursor)
        cancelled = rival.start(cancelling(world, attempt.job_id))
        rival.wait_until_blocked(cancelled)
    retried = ends == "retryable"
    assert len(cancelled.result(LIMIT)) == retried
    assert states(world, attempt.job_id) == (["cancelled"] if retried else [ends])
    assert sound(world)


@DEADLINES
def test_a_claim_passes_over_a_lane_in_which_a_job_is_being_cancelled(
    world: World, rival: Rival, deadline: timedelta
) -> None:
    world.enqueue(job(), job())
    first, second = sorted(row["job_id"] for row in world.rows("SELECT job_id FROM awa.ready_entries"))

    def claim(cursor: Cursor) -> list[Attempt]:
        return world.plane.claim(cursor, "q", 10, deadline=deadline, aging=NO_DEADLINE).attempts

    with world.connection.transaction(), world.connection.cursor() as cursor:
        assert len(cancelling(world, first)(cursor)) == 1
        assert rival.start(claim).result(LIMIT) == []
    attempts = rival.start(claim).result(LIMIT)
    assert [attempt.job_id for attempt in attempts] == [second]
    world.end(attempts)
    assert states(world, first) == ["cancelled"]
    assert sound(world)


def test_a_claim_lets_go_of_the_key_of_a_job_that_was_stored_while_the_claim_began(
    world: World, rival: Rival
) -> None:
    """What hands jobs out looks later than the statement around it, and finds jobs whose keys that one cannot see."""

    def claim(cursor: Cursor) -> list[Attempt]:
        return world.plane.claim(cursor, "q", 10, deadline=NO_DEADLINE, aging=NO_DEADLINE).attempts

    world.running(job())  # the lane is there
    with world.connection.transaction():
        world.run("LOCK TABLE awa.queue_meta")
        world.enqueue(job(unique_key=b"k" * 16, unique_states="11000000"))
        claimed = rival.start(claim)
        rival.wait_until_blocked(claimed)
    assert len(claimed.result(LIMIT)) == 1
    assert world.rows("SELECT * FROM awa.job_unique_claims") == []


@DEADLINES
def test_a_cancel_waits_for_a_claim_and_then_takes_the_attempt(
    world: World, rival: Rival, deadline: timedelta
) -> None:
    """H-10: the claim commits and its cursor has not moved when the cancel looks."""
    world.enqueue(job())
    with world.connection.transaction(), world.connection.cursor() as cursor:
        (attempt,) = world.plane.claim(cursor, "q", 1, deadline=deadline, aging=NO_DEADLINE).attempts
        cancelled = rival.start(cancelling(world, attempt.job_id))
        rival.wait_until_blocked(cancelled)
    (landed,) = cancelled.result(LIMIT)
    assert landed.landing.taken.state is JobState.RUNNING
    world.within(lambda cursor: world.plane.advance(cursor, [attempt]))
    assert world.end([attempt]).stale
    assert states(world, attempt.job_id) == ["cancelled"]
    assert world.rows("SELECT * FROM awa.ready_tombstones") == []
    assert sound(world)


@DEADLINES
def test_a_rescue_leaves_an_attempt_alone_that_is_being_cancelled(
    world: World, rival: Rival, deadline: timedelta
) -> None:
    (attempt,) = world.running(job(), deadline=deadline)
    world.age()
    with world.connection.transaction(), world.connection.cursor() as cursor:
        assert len(cancelling(world, attempt.job_id)(cursor)) == 1
        assert rival.start(rescuing(world, bool(deadline))).result(LIMIT) == []
    assert rival.start(rescuing(world, bool(deadline))).result(LIMIT) == []
    assert states(world, attempt.job_id) == ["cancelled"]
    assert sound(world)


@DEADLINES
def test_a_cancel_waits_for_a_rescue_and_then_cancels_what_was_rescued(
    world: World, rival: Rival, deadline: timedelta
) -> None:
    (attempt,) = world.running(job(), deadline=deadline)
    world.age()
    with world.connection.transaction(), world.connection.cursor() as cursor:
        assert len(rescuing(world, bool(deadline))(cursor)) == 1
        cancelled = rival.start(cancelling(world, attempt.job_id))
        rival.wait_until_blocked(cancelled)
    (landed,) = cancelled.result(LIMIT)
    assert landed.landing.taken.state is JobState.RETRYABLE
    assert states(world, attempt.job_id) == ["cancelled"]
    assert sound(world)


@pytest.mark.parametrize("where", ["available", "scheduled", "compact", "row", "lease"])
def test_of_two_cancels_one_has_the_job(world: World, rival: Rival, where: str) -> None:
    if where == "available":
        world.enqueue(job())
        job_id = int(world.one("SELECT job_id FROM awa.ready_entries"))
    elif where == "scheduled":
        world.enqueue(job(run_at=world.one("SELECT now() + interval '1 day'")))
        job_id = int(world.one("SELECT job_id FROM awa.deferred_jobs"))
    else:
        (attempt,) = world.running(job(), deadline=MINUTES if where == "row" else NO_DEADLINE)
        if where == "lease":
            world.lease(attempt, state="waiting_external")
        job_id = attempt.job_id
    with world.connection.transaction(), world.connection.cursor() as cursor:
        assert len(cancelling(world, job_id)(cursor)) == 1
        second = rival.start(cancelling(world, job_id))
        rival.wait_until_blocked(second)
    assert second.result(LIMIT) == []
    assert states(world, job_id) == ["cancelled"]
    assert sound(world)


def test_a_verb_that_falls_victim_to_a_deadlock_is_carried_out_all_the_same(
    world: World, rival: Rival
) -> None:
    attempts = world.running(job(), job())
    first, second = sorted(attempt.job_id for attempt in attempts)
    world.end(attempts, Terminal("gone"))
    hold = "SELECT FROM awa.done_entries WHERE job_id = %s FOR UPDATE"
    has_second, has_first = threading.Event(), threading.Event()

    def crossing(cursor: Cursor) -> None:
        cursor.execute("SET LOCAL deadlock_timeout = '1min'")
        cursor.execute(hold, [second])
        has_second.set()
        assert has_first.wait(LIMIT)
        cursor.execute(hold, [first])

    other = rival.start(crossing)
    assert has_second.wait(LIMIT)

    @contextmanager
    def savepoint() -> Iterator[None]:
        with world.connection.transaction():
            if not has_first.is_set():
                world.run(hold, first)
                has_first.set()
                rival.wait_until_blocked(other)
            yield

    world.run("SET deadlock_timeout = '1ms'")
    with world.connection.transaction(), world.connection.cursor() as cursor:
        at = Desk(cursor, [world.plane], savepoint)
        assert change_on(at, world.plane, RETRY, [first, second]).ids == [first, second]
    other.result(LIMIT)
    world.run("RESET deadlock_timeout")
    assert [states(world, job_id) for job_id in (first, second)] == [["available"], ["available"]]
    assert sound(world)


def test_a_cancel_that_is_undone_leaves_the_job_to_the_one_that_waited(world: World, rival: Rival) -> None:
    world.enqueue(job())
    job_id = int(world.one("SELECT job_id FROM awa.ready_entries"))
    with world.connection.transaction(force_rollback=True), world.connection.cursor() as cursor:
        assert len(cancelling(world, job_id)(cursor)) == 1
        second = rival.start(cancelling(world, job_id))
        rival.wait_until_blocked(second)
    assert len(second.result(LIMIT)) == 1
    assert states(world, job_id) == ["cancelled"]
    assert sound(world)
