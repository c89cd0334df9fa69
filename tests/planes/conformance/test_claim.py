"""Handing out jobs, on both planes: what :meth:`Plane.claim` and its companions promise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from awa_django.jobs import Attempt
from awa_django.outcomes import Failed, Snooze
from awa_django.states import JobState
from tests.planes.conformance.worlds import KEY, AnyWorld
from tests.planes.world import NO_DEADLINE, job

FUTURE = datetime(2999, 1, 1, tzinfo=UTC)
#: Held while it waits but not while it runs, and the other way round.
WAITING_ONLY, RUNNING_ONLY = "11001000", "00100000"


def numbers(attempts: list[Attempt]) -> list[int]:
    """What the jobs of a test are numbered with, in the order they were handed out."""
    return [attempt.args["n"] for attempt in attempts]


def test_what_was_stored_is_what_is_handed_out(world: AnyWorld) -> None:
    (attempt,) = world.running(
        job(args={"x": [1, None]}, metadata={"m": 1}, tags=("a", "b"), priority=3, max_attempts=7)
    )
    seen = attempt.job
    assert (seen.kind, seen.queue, seen.args, seen.priority, seen.max_attempts) == (
        "k", "q", {"x": [1, None]}, 3, 7,
    )  # fmt: skip
    assert (seen.metadata, seen.tags, seen.errors, seen.progress) == ({"m": 1}, ("a", "b"), (), None)
    assert (seen.attempt, seen.run_lease, seen.state) == (1, 1, JobState.RUNNING)
    assert attempt.is_canonical is world.is_canonical
    assert world.state(seen.id) is JobState.RUNNING


def test_jobs_come_by_priority_and_in_the_order_they_were_stored(world: AnyWorld) -> None:
    priorities = [3, 1, 2, 1, 4, 1]
    world.enqueue(*[job(args={"n": n}, priority=priority) for n, priority in enumerate(priorities)])
    assert numbers(world.claim()) == [1, 3, 5, 2, 0, 4]


def test_no_more_than_asked_for_and_of_no_other_queue(world: AnyWorld) -> None:
    world.enqueue(*[job(args={"n": n}) for n in range(5)], job(queue="other"))
    assert numbers(world.claim(limit=2)) == [0, 1]
    assert numbers(world.claim(limit=50)) == [2, 3, 4]
    assert world.claim() == []
    assert len(world.claim("other")) == 1


def test_a_job_waits_for_its_time(world: AnyWorld) -> None:
    world.enqueue(job(run_at=FUTURE), job(args={"n": 1}))
    assert numbers(world.claim()) == [1]


def test_a_paused_queue_gives_nothing_until_it_goes_on(world: AnyWorld) -> None:
    world.enqueue(job())
    world.run("INSERT INTO awa.queue_meta (queue, paused) VALUES ('q', true), ('other', false)")
    assert world.claim() == []
    assert not world.within(lambda cursor: world.plane.has_backlog(cursor, "q"))
    world.run("UPDATE awa.queue_meta SET paused = false")
    assert len(world.claim()) == 1


def test_a_deadline_counts_from_the_claim_and_none_is_none(world: AnyWorld) -> None:
    world.enqueue(job(), job())
    (without,) = world.claim(limit=1, deadline=NO_DEADLINE)
    (limited,) = world.claim(limit=1, deadline=timedelta(seconds=90))
    assert without.deadline_at is None
    assert limited.deadline_at is not None
    assert limited.attempted_at is not None
    assert limited.deadline_at - limited.attempted_at == timedelta(seconds=90)


def test_each_claim_counts_the_attempt_and_the_lease_and_brings_what_the_last_one_left(
    world: AnyWorld,
) -> None:
    (attempt,) = world.running(job(metadata={"m": 1}))
    for number, lease, outcome in [(1, 1, Failed("first")), (2, 2, Snooze(0)), (2, 3, Failed("second"))]:
        assert (attempt.attempt, attempt.run_lease) == (number, lease)
        world.end([attempt], outcome, progress={"percent": lease})
        world.promote_all()
        (attempt,) = world.claim()
    assert (attempt.attempt, attempt.run_lease) == (3, 4)
    assert [(entry["error"], entry["attempt"]) for entry in attempt.job.errors] == [
        ("first", 1),
        ("second", 2),
    ]
    assert attempt.job.progress == {"percent": 3}
    assert attempt.job.metadata == {"m": 1}


def test_two_claimers_share_the_jobs_and_miss_none(world: AnyWorld, world_database: str) -> None:
    world.enqueue(*[job(args={"n": n}) for n in range(6)])
    with psycopg.connect(world_database) as other, other.cursor() as cursor:
        first = world.claimed(4, cursor=cursor).attempts
        second = world.claim()
        # One that got nothing because the other held it knows that there is more.
        assert second or world.within(lambda at: world.plane.has_backlog(at, "q"))
        other.commit()
    third = world.claim()
    assert len(first) == 4
    assert sorted(numbers([*first, *second, *third])) == list(range(6))
    world.check()


def test_a_claim_that_is_undone_hands_its_jobs_out_again(world: AnyWorld) -> None:
    world.enqueue(*[job(args={"n": n}) for n in range(3)])
    with world.connection.transaction(force_rollback=True), world.connection.cursor() as cursor:
        assert len(world.claimed(cursor=cursor).attempts) == 3
    attempts = world.claim()
    assert numbers(attempts) == [0, 1, 2]
    assert {(attempt.attempt, attempt.run_lease) for attempt in attempts} == {(1, 1)}


def test_cursors_may_be_moved_twice_or_never(world: AnyWorld) -> None:
    world.enqueue(*[job(args={"n": n}) for n in range(4)])
    first = world.claimed(2).attempts
    second = world.claim(limit=1)
    for _ in range(2):
        world.within(lambda cursor: world.plane.advance(cursor, first))
    assert numbers([*first, *second, *world.claim()]) == [0, 1, 2, 3]


def test_there_is_no_backlog_once_everything_was_handed_out(world: AnyWorld) -> None:
    def backlog() -> bool:
        return world.within(lambda cursor: world.plane.has_backlog(cursor, "q"))

    assert not backlog()
    world.enqueue(job(), job(run_at=FUTURE))
    world.claim()
    assert not backlog()


@pytest.mark.parametrize(
    ("mask", "before", "after"),
    [
        (WAITING_ONLY, True, False),
        (RUNNING_ONLY, False, True),
        ("11111000", True, True),
        ("0" * 8, False, False),
    ],
)
def test_a_unique_key_follows_its_job_into_the_running_state(
    world: AnyWorld, mask: str, before: bool, after: bool
) -> None:
    world.enqueue(job(unique_key=KEY, unique_states=mask))
    assert (KEY in world.holders()) is before
    (attempt,) = world.claim()
    assert world.holders() == ({KEY: attempt.job_id} if after else {})


def test_of_two_jobs_that_may_not_run_together_the_second_is_cancelled(world: AnyWorld) -> None:
    """DEC-18, DEC-19: it keeps nobody else from being claimed."""
    unique = {"unique_key": KEY, "unique_states": RUNNING_ONLY}
    world.enqueue(job(args={"n": 0}, **unique), job(args={"n": 1}, **unique), job(args={"n": 2}))
    got = world.claimed()
    assert numbers(got.attempts) == [0, 2]
    assert numbers(got.refused) == [1]
    world.within(lambda cursor: world.plane.advance(cursor, [*got.attempts, *got.refused]))
    world.within(lambda cursor: world.plane.refuse(cursor, got.refused))
    row = world.job(got.refused[0].job_id)
    # In queue storage its claim is a fact by then.
    begun = 0 if world.is_canonical else 1
    assert (row["state"], row["attempt"], row["run_lease"]) == ("cancelled", begun, begun)
    (entry,) = row["errors"]
    assert entry["error"] == "rescued as duplicate: unique claim held by a newer job"
    assert ("terminal" in entry) is not world.is_canonical
    assert world.holders() == {KEY: got.attempts[0].job_id}
    assert world.claim() == []
    assert len(world.end(got.attempts).stale) == 0
    world.check()


def test_a_key_that_one_job_of_a_claim_gives_up_is_free_for_another_of_it(world: AnyWorld) -> None:
    world.enqueue(
        job(unique_key=KEY, unique_states=WAITING_ONLY), job(unique_key=KEY, unique_states=RUNNING_ONLY)
    )
    got = world.claimed()
    assert (len(got.attempts), got.refused) == (2, [])
    assert world.holders() == {KEY: got.attempts[1].job_id}


def test_a_refused_job_that_would_hold_its_key_as_cancelled_ends_without_it(world: AnyWorld) -> None:
    unique = {"unique_key": KEY, "unique_states": "00100010"}
    world.enqueue(job(**unique), job(**unique))
    got = world.claimed()
    world.within(lambda cursor: world.plane.refuse(cursor, got.refused))
    assert world.job(got.refused[0].job_id)["state"] == "cancelled"
    assert world.holders() == {KEY: got.attempts[0].job_id}


def test_jobs_of_every_priority_are_handed_out_to_the_last(world: AnyWorld) -> None:
    world.enqueue(*[job(args={"n": n}, priority=1 + n % 4) for n in range(200)])
    got: list[int] = []
    while attempts := world.claim(limit=7):
        got += numbers(attempts)
    assert sorted(got) == list(range(200))
    world.check()
