"""Taking jobs by every guard, on both planes: which, in which order, and what is left alone."""

from __future__ import annotations

from datetime import datetime, timedelta

import psycopg
import pytest

from awa_django.jobs import Attempt, Taken
from awa_django.outcomes import (
    Cancel,
    Completed,
    DeadlineExceeded,
    Failed,
    OperatorRetry,
    Outcome,
    RetryAfter,
    Snooze,
    Terminal,
    WaitForCallback,
)
from awa_django.planes.base import Beat, Cursor, Due, Guard, Ids, Leases, PastDeadline, Stale, Unanswered
from awa_django.states import JobState
from awa_django.transitions import plan
from tests.planes.conformance.worlds import LONG, SILENCE, AnyWorld
from tests.planes.world import ids, job

#: How jobs get into each state but running, from which an operator may take them.
WAYS: dict[JobState, Outcome | None] = {
    JobState.SCHEDULED: Snooze(900),
    JobState.AVAILABLE: None,
    JobState.RETRYABLE: Failed("no"),
    JobState.FAILED: Terminal("no"),
    JobState.CANCELLED: Cancel("no"),
    JobState.WAITING_EXTERNAL: WaitForCallback(None),
}


def taken(world: AnyWorld, guard: Guard) -> list[Taken]:
    """What a guard takes, in a transaction that is undone."""
    with world.connection.transaction(force_rollback=True), world.connection.cursor() as cursor:
        return world.plane.take(cursor, guard)


def stale(world: AnyWorld, **options: object) -> list[int]:
    """The running attempts that have been silent for long, of either sort."""
    return [
        job_id
        for receipts in (True, False)
        for job_id in ids(taken(world, Stale(SILENCE, receipts=receipts, **options)))  # type: ignore[arg-type]
    ]


def park(world: AnyWorld, attempt: Attempt, timeout: timedelta = LONG) -> None:
    world.register(attempt, timeout)
    transition = plan(attempt, WaitForCallback(None))._replace(has_lease=True)
    assert world.within(lambda cursor: world.plane.settle(cursor, [transition])).landed


# Attempts that their workers lost -------------------------------------------------------------------------------


def test_only_running_attempts_that_were_silent_for_long_are_stale(world: AnyWorld) -> None:
    quiet, leased, beating, ended, parked = world.running(*[job() for _ in range(5)])
    world.register(leased)
    world.end([ended])
    park(world, parked)
    world.enqueue(job())
    assert stale(world) == []
    world.age()
    world.beat(beating)
    assert sorted(stale(world)) == [quiet.job_id, leased.job_id]


def test_stale_attempts_are_taken_whole(world: AnyWorld) -> None:
    (attempt,) = world.running(job(args={"x": 1}, metadata={"m": 1}, tags=("t",), priority=3, max_attempts=7))
    world.beat(attempt, {"percent": 5})
    (landed,) = world.rescue()
    source = landed.landing.taken
    assert (source.pair, source.kind, source.queue, source.args) == ((attempt.job_id, 1), "k", "q", {"x": 1})
    assert (source.state, source.priority, source.attempt, source.max_attempts) == ("running", 3, 1, 7)
    assert (source.metadata, source.tags, source.errors, source.progress) == (
        {"m": 1}, ("t",), (), {"percent": 5},
    )  # fmt: skip
    assert source.canonical is world.is_canonical
    assert (source.created_at, source.run_at) == (attempt.created_at, attempt.run_at)


def test_a_pass_takes_no_more_than_it_may_and_passes_over_what_it_is_told_to(world: AnyWorld) -> None:
    attempts = world.running(*[job() for _ in range(5)])
    world.age()
    assert len(stale(world, limit=3)) == 3
    spared = attempts[2].job_id
    assert sorted(stale(world, passed_over=[spared])) == sorted(
        attempt.job_id for attempt in attempts if attempt.job_id != spared
    )


def test_only_running_attempts_have_a_deadline_and_signs_of_life_do_not_move_it(world: AnyWorld) -> None:
    limited, leased, ended, parked = world.running(*[job() for _ in range(4)], deadline=LONG)
    (unlimited,) = world.running(job(), deadline=timedelta(0))
    world.register(leased)
    world.end([ended])
    park(world, parked)
    assert taken(world, PastDeadline()) == []
    world.age("2 hours")
    for attempt in (limited, leased, unlimited):
        world.beat(attempt)
    assert sorted(ids(taken(world, PastDeadline()))) == [limited.job_id, leased.job_id]
    assert ids(taken(world, PastDeadline(passed_over=[limited.job_id]))) == [leased.job_id]
    assert len(taken(world, PastDeadline(limit=1))) == 1
    assert len(world.change(PastDeadline(), DeadlineExceeded())) == 2
    assert world.states([limited.job_id, leased.job_id]) == ["retryable", "retryable"]
    world.check()


def test_only_parked_attempts_run_out_of_time_for_their_callback(world: AnyWorld) -> None:
    late, later, patient, running = world.running(*[job() for _ in range(4)])
    park(world, late, timedelta(minutes=2))
    park(world, later, timedelta(minutes=3))
    park(world, patient)
    world.register(running, timedelta(minutes=1))
    assert taken(world, Unanswered()) == []
    for table in ("leases", "jobs_hot"):
        world.run(f"UPDATE awa.{table} SET callback_timeout_at = callback_timeout_at - interval '5 minutes'")
    assert ids(taken(world, Unanswered())) == [late.job_id, later.job_id]
    assert ids(taken(world, Unanswered(limit=1))) == [late.job_id]
    assert ids(taken(world, Unanswered(passed_over=[late.job_id]))) == [later.job_id]


@pytest.mark.parametrize("guard", [Stale(SILENCE), Stale(SILENCE, receipts=True), PastDeadline()])
def test_a_sweep_does_not_wait_for_an_attempt_that_is_being_ended(
    world: AnyWorld, world_database: str, guard: Guard
) -> None:
    held, free = world.running(job(), job(), deadline=LONG)
    world.age("2 hours")
    with psycopg.connect(world_database) as other, other.cursor() as cursor:
        assert world.plane.take(cursor, Leases([held], ["failed"]))
        world.run("SET lock_timeout = '5 s'")
        assert ids(taken(world, guard)) in ([free.job_id], [])
        other.rollback()
    both = {*stale(world), *ids(taken(world, PastDeadline()))}
    assert both == {held.job_id, free.job_id}


# Deferred jobs ---------------------------------------------------------------------------------------------------


def minutes_ago(world: AnyWorld, number: float) -> datetime:
    found: datetime = world.one("SELECT now() - make_interval(secs => 60 * %s)", number)
    return found


def numbers(jobs: list[Taken]) -> list[int]:
    found = []
    for each in jobs:
        assert isinstance(each.args, dict)
        found.append(each.args["n"])
    return found


def test_jobs_fall_due_by_time_and_those_of_the_future_stay(world: AnyWorld) -> None:
    for n, ago in enumerate([1, 3, -60, 2]):
        world.enqueue(job(args={"n": n}, run_at=minutes_ago(world, ago)))
    assert numbers(taken(world, Due(JobState.SCHEDULED))) == [1, 3, 0]
    assert numbers(taken(world, Due(JobState.SCHEDULED, limit=2))) == [1, 3]
    first = taken(world, Due(JobState.SCHEDULED))[0].job_id
    assert numbers(taken(world, Due(JobState.SCHEDULED, passed_over=[first]))) == [3, 0]
    assert taken(world, Due(JobState.RETRYABLE)) == []


def test_a_promoted_job_keeps_all_it_had_and_can_be_claimed(world: AnyWorld) -> None:
    (attempt,) = world.running(job(args={"n": 1}, metadata={"m": 1}, tags=("t",), priority=3))
    world.end([attempt], RetryAfter(0), progress={"percent": 5})
    assert world.promote_all() == 1
    assert world.state(attempt.job_id) == "available"
    row = world.job(attempt.job_id)
    assert row["run_at"] >= row["created_at"]
    (again,) = world.claim()
    assert (again.job_id, again.attempt, again.run_lease, again.priority) == (attempt.job_id, 2, 2, 3)
    assert (again.job.metadata, again.job.tags, again.job.progress) == ({"m": 1}, ("t",), {"percent": 5})
    world.check()


def test_a_due_job_that_somebody_holds_is_passed_over(world: AnyWorld, world_database: str) -> None:
    world.enqueue(*[job(args={"n": n}, run_at=minutes_ago(world, 5 - n)) for n in range(2)])
    with psycopg.connect(world_database) as other, other.cursor() as cursor:
        assert numbers(world.plane.take(cursor, Due(JobState.SCHEDULED, limit=1))) == [0]
        assert numbers(taken(world, Due(JobState.SCHEDULED))) == [1]


# Jobs that an operator names -------------------------------------------------------------------------------------


def one_in(world: AnyWorld, state: JobState) -> int:
    """A job in this state, with all its life before it written down."""
    world.enqueue(job(args={"n": 1}, metadata={"m": 1}, tags=("t",), priority=3))
    if state is JobState.AVAILABLE:
        return world.ids()[-1]
    (attempt,) = world.claim()
    if state is JobState.WAITING_EXTERNAL:
        park(world, attempt)
    elif state is not JobState.RUNNING:
        world.end([attempt], WAYS[state], progress={"percent": 5})
    return attempt.job_id


@pytest.mark.parametrize("state", [*WAYS, JobState.RUNNING])
def test_a_named_job_is_taken_whole_if_it_is_in_a_state_that_was_asked_for(
    world: AnyWorld, state: JobState
) -> None:
    job_id = one_in(world, state)
    others = [each for each in JobState if each is not state]
    assert taken(world, Ids([job_id], others)) == []
    assert taken(world, Ids([job_id], list(JobState), dead=True)) == []
    (source,) = taken(world, Ids([job_id, job_id + 1000], [state]))
    assert (source.job_id, source.state, source.args, source.priority) == (job_id, state, {"n": 1}, 3)
    assert (source.metadata, source.tags) == ({"m": 1}, ("t",))
    wrote = state not in (JobState.AVAILABLE, JobState.RUNNING, JobState.WAITING_EXTERNAL)
    assert source.progress == ({"percent": 5} if wrote else None)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.WAITING_EXTERNAL])
def test_a_job_that_is_retried_runs_again_with_all_its_attempts(world: AnyWorld, state: JobState) -> None:
    job_id = one_in(world, state)
    (landed,) = world.change(world.named(job_id), OperatorRetry())
    assert (landed.job.state, landed.job.attempt) == ("available", 0)
    (again,) = world.claim()
    assert (again.job_id, again.attempt, again.run_lease) == (job_id, 1, 2)
    world.check()


def test_a_completed_job_cannot_be_named_for_another_life(world: AnyWorld) -> None:
    (attempt,) = world.running(job())
    world.end([attempt], Completed())
    open_states = [state for state in JobState if state is not JobState.COMPLETED]
    assert taken(world, Ids([attempt.job_id], open_states)) == []


@pytest.mark.parametrize("state", [JobState.AVAILABLE, JobState.SCHEDULED, JobState.FAILED])
def test_a_dropped_job_leaves_nothing(world: AnyWorld, state: JobState) -> None:
    job_id = one_in(world, state)

    def drop(cursor: Cursor) -> None:
        world.plane.drop(cursor, world.plane.take(cursor, Ids([job_id], [state])))

    world.within(drop)
    assert world.jobs() == {}
    assert world.claim() == []
    world.check()


def test_a_take_that_is_undone_leaves_the_job_where_it_was(world: AnyWorld) -> None:
    found = {
        state: one_in(world, state) for state in [*WAYS, JobState.RUNNING] if state is not JobState.AVAILABLE
    }
    assert len(taken(world, Ids(found.values(), list(JobState)))) == len(found)
    assert world.states(list(found.values())) == list(found)


# Signs of life ---------------------------------------------------------------------------------------------------


def test_a_heartbeat_answers_with_the_attempts_that_go_on(world: AnyWorld) -> None:
    going, leased, parked, ended, rescued = world.running(*[job() for _ in range(5)])
    world.register(leased)
    park(world, parked)
    world.end([ended])
    beats = [Beat(attempt) for attempt in (going, leased, ended)]
    found = world.within(lambda cursor: world.plane.heartbeat(cursor, beats))
    assert found == {(going.job_id, 1), (leased.job_id, 1)}
    assert world.rescue()
    assert world.within(lambda cursor: world.plane.heartbeat(cursor, [Beat(rescued)])) == set()


def test_progress_is_stored_with_a_heartbeat_and_stays_without_news(world: AnyWorld) -> None:
    (attempt,) = world.running(job())
    world.beat(attempt, {"percent": 5})
    world.beat(attempt)
    world.end([attempt], Failed("no"))
    assert world.job(attempt.job_id)["progress"] == {"percent": 5}


@pytest.mark.parametrize(
    "outcome",
    [Completed(), Failed("no"), Snooze(1), Terminal("no"), Cancel()],
    ids=lambda each: type(each).__name__,
)
def test_a_heartbeat_after_the_end_is_not_heard(world: AnyWorld, outcome: Outcome) -> None:
    (attempt,) = world.running(job())
    world.end([attempt], outcome)
    before = world.job(attempt.job_id)
    assert (
        world.within(lambda cursor: world.plane.heartbeat(cursor, [Beat(attempt, {"percent": 9})])) == set()
    )
    assert world.job(attempt.job_id) == before
