"""Waits inside a handler, unique keys and aged priorities of jobs with callbacks, on both planes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from awa_django.errors import UniqueConflict
from awa_django.outcomes import (
    CallbackFailed,
    CallbackRetried,
    Cancel,
    Completed,
    Failed,
    Outcome,
    Rescued,
    Snooze,
    WaitForCallback,
)
from awa_django.planes.base import Beat, Stale, Unanswered
from awa_django.states import JobState
from awa_django.transitions import land_one, plan
from tests.planes.calling import (
    KEY,
    attempt_pair,
    begins,
    end,
    ends,
    extend,
    is_canonical,
    key_holder,
    lease_of,
    look,
    only,
    parked,
    pending,
    register,
    resume,
    settled,
    standing,
    state_of,
    world,
)
from tests.planes.world import World, job

__all__ = ["world"]

# Waits inside a handler ------------------------------------------------------------------------------------


def test_a_wait_in_the_handler_begins_and_ends_and_begins_again(world: World) -> None:
    (attempt,) = world.running(job(), deadline=timedelta(minutes=5))
    token = register(world, attempt)
    assert begins(world, attempt, token)
    assert not begins(world, attempt, token), "it waits already"
    row = lease_of(world, attempt)
    assert (row["state"], row["heartbeat_at"], row["deadline_at"]) == ("waiting_external", None, None)
    assert ends(world, attempt, token)
    assert not ends(world, attempt, token), "it runs already"
    row = lease_of(world, attempt)
    assert (row["state"], row["callback_id"], row["deadline_at"]) == ("running", token, None)
    assert row["heartbeat_at"] is not None
    assert begins(world, attempt, token)
    assert resume(world, token, {"a": 1})
    found = look(world, attempt)
    assert found is not None
    assert found.result == {"a": 1}


def test_a_wait_is_for_exactly_one_token(world: World) -> None:
    (attempt,) = world.running(job())
    first, second = register(world, attempt), register(world, attempt)
    assert not begins(world, attempt, first)
    assert begins(world, attempt, second)
    assert not ends(world, attempt, first)
    found = look(world, attempt)
    assert found is not None
    assert (found.state, found.callback_id, found.resumed) == (JobState.WAITING_EXTERNAL, second, False)


def test_an_abandoned_wait_has_a_fresh_heartbeat(world: World) -> None:
    (attempt,) = world.running(job())
    world.beat(attempt)
    token = register(world, attempt)
    assert begins(world, attempt, token)
    world.age("1 hour")
    assert ends(world, attempt, token)
    assert world.within(lambda cursor: world.plane.take(cursor, Stale(timedelta(seconds=90)))) == []


def test_signs_of_life_count_while_a_handler_waits_in_place(world: World) -> None:
    (attempt,) = world.running(job())
    token = register(world, attempt)
    assert begins(world, attempt, token)
    alive = world.within(lambda cursor: world.plane.heartbeat(cursor, [Beat(attempt, {"percent": 8})]))
    assert alive == {attempt_pair(attempt)}
    assert lease_of(world, attempt)["heartbeat_at"] is None
    assert only(end(world, token, CallbackFailed("x"))).progress == {"percent": 8}


@pytest.mark.parametrize("outcome", [Completed(), CallbackFailed("x"), CallbackRetried()])
def test_a_waiting_handler_sees_that_its_job_left_the_wait_another_way(
    world: World, outcome: Outcome
) -> None:
    (attempt,) = world.running(job())
    token = register(world, attempt)
    assert begins(world, attempt, token)
    ended = only(end(world, token, outcome))
    found = look(world, attempt)
    assert found is not None
    assert (found.state, found.resumed, found.callback_id) == (ended.state, False, None)
    assert not ends(world, attempt, token)


def test_the_payload_of_another_attempt_is_left_alone(world: World) -> None:
    (attempt,) = world.running(job())
    token = register(world, attempt)
    assert resume(world, token, {"a": 1})
    other = attempt._replace(run_lease=attempt.run_lease + 1)
    seen = look(world, other)
    assert seen is not None
    assert (seen.run_lease, seen.resumed) == (attempt.run_lease, False)
    found = look(world, attempt)
    assert found is not None
    assert found.result == {"a": 1}


# Where jobs are --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Completed(), JobState.COMPLETED),
        (Failed("x"), JobState.RETRYABLE),
        (Snooze(60), JobState.SCHEDULED),
        (Cancel(), JobState.CANCELLED),
    ],
)
def test_a_job_is_found_wherever_it_is(world: World, outcome: Outcome, state: JobState) -> None:
    world.enqueue(job())
    (row,) = world.rows(
        "SELECT id FROM awa.jobs_hot" if is_canonical(world) else "SELECT job_id AS id FROM awa.ready_entries"
    )
    found = standing(world, row["id"])
    assert found is not None
    assert (found.state, found.run_lease) == (JobState.AVAILABLE, 0)
    (attempt,) = world.claim()
    found = standing(world, attempt.job_id)
    assert found is not None
    assert (found.state, found.run_lease, found.callback_id) == (JobState.RUNNING, 1, None)
    world.end([attempt], outcome)
    found = standing(world, attempt.job_id)
    assert found is not None
    assert (found.state, found.run_lease) == (state, 1)


def test_a_dead_letter_is_failed_and_a_job_that_is_gone_is_nowhere(world: World) -> None:
    (attempt,) = world.running(job(max_attempts=1))
    transition = plan(attempt, Failed("x"), dead_letters=True)
    world.within(lambda cursor: world.plane.settle(cursor, [transition]))
    assert state_of(world, attempt) is JobState.FAILED
    assert standing(world, attempt.job_id + 1000) is None


# Unique keys -----------------------------------------------------------------------------------------------

WHILE_RUNNING = "11101000"  # held until it has finished, but not while it waits
WHILE_WAITING = "11001001"  # held while it waits, but not while it runs


def test_a_key_that_the_wait_does_not_claim_is_free_meanwhile(world: World) -> None:
    attempt, token = parked(world, unique_key=KEY, unique_states=WHILE_RUNNING)
    assert key_holder(world) is None
    assert resume(world, token, None)
    assert key_holder(world) == attempt.job_id
    assert settled(world, attempt, Completed()).stale == []
    assert key_holder(world) is None


def test_a_job_whose_key_a_newer_one_took_is_not_resumed_and_waits_on(world: World) -> None:
    attempt, token = parked(world, unique_key=KEY, unique_states=WHILE_RUNNING)
    world.enqueue(job(unique_key=KEY, unique_states=WHILE_RUNNING))
    newer = key_holder(world)
    with pytest.raises(UniqueConflict) as raised:
        resume(world, token, None)
    assert raised.value.holder_id == newer
    assert state_of(world, attempt) is JobState.WAITING_EXTERNAL
    assert key_holder(world) == newer
    assert only(end(world, token, Completed())).state is JobState.COMPLETED


def test_an_abandoned_wait_whose_key_is_taken_stays_a_wait(world: World) -> None:
    (attempt,) = world.running(job(unique_key=KEY, unique_states=WHILE_RUNNING))
    token = register(world, attempt)
    assert begins(world, attempt, token)
    world.enqueue(job(unique_key=KEY, unique_states=WHILE_RUNNING))
    assert not ends(world, attempt, token)
    assert state_of(world, attempt) is JobState.WAITING_EXTERNAL


def test_a_job_that_may_not_wait_because_of_a_newer_one_ends_as_a_duplicate(world: World) -> None:
    (attempt,) = world.running(job(unique_key=KEY, unique_states=WHILE_WAITING))
    token = register(world, attempt)
    world.enqueue(job(unique_key=KEY, unique_states=WHILE_WAITING))
    newer = key_holder(world)
    with pytest.raises(UniqueConflict):
        begins(world, attempt, token)
    (landed,) = settled(world, attempt, WaitForCallback(token)).landed
    assert landed.duplicate
    assert landed.job.state is JobState.CANCELLED
    assert key_holder(world) == newer
    assert state_of(world, attempt) is JobState.CANCELLED


# An aged priority ------------------------------------------------------------------------------------------


def test_an_aged_attempt_waits_under_the_priority_of_its_lane(world: World) -> None:
    world.enqueue(job(priority=4))
    world.run("UPDATE awa.ready_entries SET run_at = run_at - interval '1 hour'")
    aging = timedelta(minutes=10)
    (attempt,) = world.within(
        lambda cursor: world.plane.claim(cursor, "q", 1, deadline=timedelta(0), aging=aging).attempts
    )
    world.within(lambda cursor: world.plane.advance(cursor, [attempt]))
    if not is_canonical(world):  # there the leader ages the rows themselves
        assert (attempt.priority, attempt.lane_priority) == (1, 4)
    token = register(world, attempt)
    assert lease_of(world, attempt)["priority"] == attempt.lane_priority == 4
    assert settled(world, attempt, WaitForCallback(token)).landed
    assert world.rows("SELECT id FROM awa.jobs WHERE callback_id = %s", token) == [{"id": attempt.job_id}]
    assert resume(world, token, None)
    (snoozed,) = settled(world, attempt, Snooze(60)).landed
    assert snoozed.job.priority == 4


def test_an_aged_attempt_with_a_callback_completes_after_one_run(world: World) -> None:
    world.enqueue(job(priority=4))
    world.run("UPDATE awa.ready_entries SET run_at = run_at - interval '1 hour'")
    (attempt,) = world.within(
        lambda cursor: (
            world.plane.claim(cursor, "q", 1, deadline=timedelta(0), aging=timedelta(minutes=10)).attempts
        )
    )
    world.within(lambda cursor: world.plane.advance(cursor, [attempt]))
    register(world, attempt)
    assert not settled(world, attempt, Completed()).stale
    (row,) = world.rows("SELECT state::text, priority, attempt FROM awa.jobs WHERE id = %s", attempt.job_id)
    assert row == {"state": "completed", "priority": 4, "attempt": 1}


def test_a_callback_of_one_attempt_is_nobodys_after_a_rescue(world: World) -> None:
    attempt, token = parked(world)
    extend(world, token, timedelta(0))
    taken = world.within(lambda cursor: world.plane.take(cursor, Unanswered()))
    landing = replace(land_one(taken[0], Rescued("callback timed out")), run_at=taken[0].taken_at)
    world.within(lambda cursor: world.plane.place(cursor, [landing]))
    assert pending(world, token) is None
    assert end(world, token, Completed()) == []
    assert state_of(world, attempt) is JobState.RETRYABLE
