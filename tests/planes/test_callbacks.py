"""Registering, parking and answering on both planes (contract: runtime/attempt section 5, followups-events 2)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from awa_django.jobs import Attempt
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
from awa_django.planes.base import Stale, Unanswered
from awa_django.states import JobState
from awa_django.transitions import land_one, plan
from tests.planes.calling import (
    EITHER,
    HOUR,
    JUDGES,
    answerable,
    attempt_pair,
    end,
    extend,
    is_canonical,
    lease_of,
    look,
    only,
    parked,
    pending,
    register,
    registers,
    resume,
    settled,
    state_of,
    withdraws,
    world,
)
from tests.planes.world import World, ids, job

__all__ = ["world"]

# Registering -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [timedelta(0), timedelta(minutes=5)], ids=["no deadline", "deadline"])
def test_a_registered_token_leads_to_its_attempt_and_keeps_the_deadline(
    world: World, deadline: timedelta
) -> None:
    (attempt,) = world.running(job(), deadline=deadline)
    token = register(world, attempt, judges=JUDGES)
    found = pending(world, token)
    assert found is not None
    assert (found.job_id, found.run_lease, found.state) == (*attempt_pair(attempt), JobState.RUNNING)
    assert found.callback.id == token
    assert found.callback[2:] == JUDGES[2:]
    row = lease_of(world, attempt)
    assert (row["deadline_at"] is None) == (not deadline)
    assert row["heartbeat_at"] is not None
    assert row["attempted_at"] is not None


def test_the_time_of_a_callback_counts_from_the_databases_now_with_its_fraction(world: World) -> None:
    (attempt,) = world.running(job())
    before = world.one("SELECT clock_timestamp()")
    register(world, attempt, timeout=timedelta(seconds=0.25))
    after = world.one("SELECT clock_timestamp()")
    due = lease_of(world, attempt)["callback_timeout_at"] - timedelta(seconds=0.25)
    assert before <= due <= after


def test_a_registration_replaces_the_one_before_with_its_expressions(world: World) -> None:
    (attempt,) = world.running(job())
    first = register(world, attempt, judges=JUDGES)
    second = register(world, attempt)
    assert pending(world, first) is None
    found = pending(world, second)
    assert found is not None
    assert found.callback[2:] == (None, None, None, None)


def test_registering_again_does_not_forget_a_heartbeat(world: World) -> None:
    (attempt,) = world.running(job())
    register(world, attempt)
    world.age("1 hour")
    world.beat(attempt)
    register(world, attempt)
    guard = Stale(timedelta(minutes=1))
    assert ids(world.within(lambda cursor: world.plane.take(cursor, guard))) == []


@pytest.mark.parametrize("ended_by", [Completed(), Failed("x"), Snooze(60), Cancel()])
def test_an_attempt_that_is_over_cannot_register(world: World, ended_by: Outcome) -> None:
    (attempt,) = world.running(job())
    world.end([attempt], ended_by)
    assert not registers(world, attempt, uuid4())


def test_a_parked_attempt_cannot_register(world: World) -> None:
    attempt, token = parked(world)
    assert not registers(world, attempt, uuid4())
    assert pending(world, token) is not None


def test_a_withdrawn_token_is_dead_and_there_is_one_to_withdraw_only_once(world: World) -> None:
    (attempt,) = world.running(job())
    assert not withdraws(world, attempt)
    token = register(world, attempt, judges=JUDGES)
    assert withdraws(world, attempt)
    assert not withdraws(world, attempt)
    assert pending(world, token) is None
    assert settled(world, attempt, Completed()).stale == []


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Completed(), JobState.COMPLETED),
        (Failed("x"), JobState.RETRYABLE),
        (Snooze(60), JobState.SCHEDULED),
        (Cancel(), JobState.CANCELLED),
    ],
)
def test_a_handler_that_ends_otherwise_ends_its_job_and_its_token(
    world: World, outcome: Outcome, state: JobState
) -> None:
    (attempt,) = world.running(job())
    token = register(world, attempt, judges=JUDGES)
    settlement = settled(world, attempt, outcome)
    assert not settlement.stale
    assert state_of(world, attempt) is state
    assert pending(world, token) is None
    assert world.rows("SELECT * FROM awa.attempt_state") == []


def test_of_a_batch_each_attempt_ends_its_own_way(world: World) -> None:
    waits, completes, fails, misses, plain = world.running(*[job() for _ in range(5)])
    tokens = {attempt.job_id: register(world, attempt) for attempt in (waits, completes, fails)}
    outcomes: list[tuple[Attempt, Outcome]] = [
        (waits, WaitForCallback(tokens[waits.job_id])),
        (completes, Completed()),
        (fails, Failed("x")),
        (misses, WaitForCallback("none")),
        (plain, Completed()),
    ]
    transitions = [
        plan(attempt, outcome)._replace(has_lease=attempt.job_id in tokens) for attempt, outcome in outcomes
    ]
    settlement = world.within(lambda cursor: world.plane.settle(cursor, transitions))
    assert not settlement.stale
    assert [state_of(world, attempt) for attempt, _ in outcomes] == [
        JobState.WAITING_EXTERNAL,
        JobState.COMPLETED,
        JobState.RETRYABLE,
        JobState.FAILED,
        JobState.COMPLETED,
    ]
    assert {item.landing.taken.pair for item in settlement.landed} == {
        item.pair for item in settlement.transitions
    }


# Parking ---------------------------------------------------------------------------------------------------


def test_a_parked_job_has_neither_heartbeat_nor_deadline_and_keeps_its_progress(world: World) -> None:
    (attempt,) = world.running(job(), deadline=timedelta(minutes=5))
    token = register(world, attempt)
    (landed,) = settled(world, attempt, WaitForCallback(token), progress={"percent": 33}).landed
    assert (landed.job.state, landed.job.callback_id) == (JobState.WAITING_EXTERNAL, token)
    assert landed.job.callback_timeout_at is not None
    assert landed.job.progress == {"percent": 33}
    row = lease_of(world, attempt)
    assert (row["state"], row["heartbeat_at"], row["deadline_at"]) == ("waiting_external", None, None)
    assert only(end(world, token, CallbackFailed("x"))).progress == {"percent": 33}


def test_progress_that_was_stored_before_survives_a_park_without_news(world: World) -> None:
    (attempt,) = world.running(job())
    world.beat(attempt, {"percent": 5})
    token = register(world, attempt)
    (landed,) = settled(world, attempt, WaitForCallback(token)).landed
    assert landed.job.progress == {"percent": 5}
    assert only(end(world, token, CallbackFailed("x"))).progress == {"percent": 5}


def test_a_job_parks_on_whichever_callback_it_registered_last(world: World) -> None:
    (attempt,) = world.running(job())
    first, second = register(world, attempt), register(world, attempt)
    (landed,) = settled(world, attempt, WaitForCallback(first)).landed
    assert landed.job.callback_id == second
    assert only(end(world, second, Completed())).state is JobState.COMPLETED


def test_a_job_parks_on_its_callback_though_its_handler_returns_a_foreign_token(world: World) -> None:
    mine, other = world.running(job(), job())
    token, foreign = register(world, mine), register(world, other)
    assert settled(world, mine, WaitForCallback(foreign)).landed
    assert state_of(world, mine) is JobState.WAITING_EXTERNAL
    assert state_of(world, other) is JobState.RUNNING
    assert pending(world, token) is not None


def test_waiting_without_a_callback_fails_for_good_with_its_progress(world: World) -> None:
    (attempt,) = world.running(job())
    (landed,) = settled(world, attempt, WaitForCallback("none"), progress={"percent": 5}).landed
    (entry,) = landed.job.errors
    assert landed.job.state is JobState.FAILED
    assert entry["error"] == "WaitForCallback returned without calling register_callback"
    assert entry["terminal"] is True
    assert landed.job.progress == {"percent": 5}


@pytest.mark.parametrize("payload", [None, {"ok": 1}, [1, 2], "text", 7])
def test_an_answer_that_came_before_the_park_is_left_for_the_next_run(world: World, payload: Any) -> None:
    (attempt,) = world.running(job(metadata={"own": 1}))
    token = register(world, attempt)
    assert resume(world, token, payload)
    (landed,) = settled(world, attempt, WaitForCallback(token)).landed
    assert (landed.job.state, landed.job.attempt) == (JobState.SCHEDULED, 0)
    assert landed.job.metadata == {"own": 1, "_awa_callback_result": payload}
    assert landed.job.errors == ()
    assert landed.job.run_at <= world.one("SELECT clock_timestamp()")


def test_an_answer_of_an_earlier_run_does_not_put_a_job_off_for_ever(world: World) -> None:
    (attempt,) = world.running(job(metadata={"_awa_callback_result": {"old": 1}}))
    transition = plan(attempt, WaitForCallback("none"))
    (landed,) = world.within(lambda cursor: world.plane.settle(cursor, [transition])).landed
    assert landed.job.state is JobState.FAILED


def test_a_park_that_comes_after_the_answer_changes_nothing(world: World) -> None:
    for outcome, state in (
        (Completed(), JobState.COMPLETED),
        (CallbackFailed("x"), JobState.FAILED),
    ):
        (attempt,) = world.running(job())
        token = register(world, attempt)
        only(end(world, token, outcome))
        settlement = settled(world, attempt, WaitForCallback(token))
        assert len(settlement.stale) == 1
        assert not settlement.landed
        assert state_of(world, attempt) is state


# Answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", EITHER)
def test_completing_finishes_the_job_and_drops_its_progress(world: World, state: JobState) -> None:
    attempt, token = answerable(world, state)
    world.beat(attempt, {"percent": 5})
    done = only(end(world, token, Completed()))
    assert (done.state, done.progress, done.errors, done.attempt) == (JobState.COMPLETED, None, (), 1)
    assert end(world, token, Completed()) == [], "the token is used"
    assert settled(world, attempt, Completed()).stale, "the handler has lost its attempt"


@pytest.mark.parametrize("state", EITHER)
def test_failing_is_final_whatever_attempts_remain(world: World, state: JobState) -> None:
    attempt, token = answerable(world, state)
    failed = only(end(world, token, CallbackFailed("declined", "payload.bad")))
    (entry,) = failed.errors
    assert failed.state is JobState.FAILED
    assert (entry["error"], entry["attempt"], entry["expression"]) == ("declined", 1, "payload.bad")
    assert entry.get("terminal") is (None if is_canonical(world) else True)
    assert world.rows("SELECT * FROM awa.dlq_entries") == []
    assert pending(world, token) is None
    assert settled(world, attempt, Failed("late")).stale


def test_a_retry_starts_over_with_progress_kept_and_the_lease_counting_on(world: World) -> None:
    attempt, token = parked(world, max_attempts=1)
    world.beat(attempt, {"percent": 5})
    again = only(end(world, token, CallbackRetried(), states=(JobState.WAITING_EXTERNAL,)))
    assert (again.state, again.attempt, again.progress) == (JobState.AVAILABLE, 0, {"percent": 5})
    (second,) = world.claim()
    assert (second.job_id, second.attempt, second.run_lease) == (attempt.job_id, 1, attempt.run_lease + 1)
    assert pending(world, token) is None


def test_a_running_job_cannot_be_retried_by_its_token(world: World) -> None:
    attempt, token = answerable(world, JobState.RUNNING)
    assert end(world, token, CallbackRetried(), states=(JobState.WAITING_EXTERNAL,)) == []
    assert state_of(world, attempt) is JobState.RUNNING
    assert pending(world, token) is not None


@pytest.mark.parametrize("state", EITHER)
@pytest.mark.parametrize("payload", [None, {"step": 1}, 0, "", False])
def test_a_resumed_attempt_runs_on_and_finds_the_payload_once(
    world: World, state: JobState, payload: Any
) -> None:
    attempt, token = answerable(world, state)
    assert resume(world, token, payload)
    assert not resume(world, token, payload), "the token is used"
    row = lease_of(world, attempt)
    assert (row["state"], row["callback_id"], row["callback_timeout_at"]) == ("running", None, None)
    assert row["heartbeat_at"] is not None
    found = look(world, attempt)
    assert found is not None
    assert (found.resumed, found.result) == (True, payload)
    again = look(world, attempt)
    assert again is not None
    assert not again.resumed
    assert settled(world, attempt, Completed()).stale == []
    assert world.rows("SELECT * FROM awa.attempt_state") == []


def test_a_resume_renews_a_heartbeat_from_before_the_wait(world: World) -> None:
    (attempt,) = world.running(job())
    world.beat(attempt)
    token = register(world, attempt)
    settled(world, attempt, WaitForCallback(token))
    world.age("1 hour")
    if is_canonical(world):  # its time was made older too
        extend(world, token, HOUR)
    assert resume(world, token, None)
    assert ids(world.within(lambda cursor: world.plane.take(cursor, Stale(timedelta(seconds=90))))) == []


def test_a_resumed_job_without_a_handler_is_rescued_when_it_stays_silent(world: World) -> None:
    attempt, token = parked(world)
    assert resume(world, token, None)
    world.age("1 hour")
    taken = world.within(lambda cursor: world.plane.take(cursor, Stale(timedelta(seconds=90))))
    assert ids(taken) == [attempt.job_id]
    world.within(lambda cursor: world.plane.place(cursor, [land_one(taken[0], Rescued("quiet"))]))


def test_more_time_counts_from_now_and_none_makes_the_job_due(world: World) -> None:
    attempt, token = parked(world)
    now = world.one("SELECT clock_timestamp()")
    assert extend(world, token, timedelta(days=1))
    assert lease_of(world, attempt)["callback_timeout_at"] >= now + timedelta(days=1)
    assert extend(world, token, timedelta(0))
    taken = world.within(lambda cursor: world.plane.take(cursor, Unanswered()))
    assert ids(taken) == [attempt.job_id]
    world.within(
        lambda cursor: world.plane.place(cursor, [land_one(taken[0], Rescued("callback timed out"))])
    )


def test_a_running_job_gets_no_more_time_and_its_time_has_no_effect(world: World) -> None:
    (attempt,) = world.running(job())
    token = register(world, attempt, timeout=timedelta(microseconds=1))
    assert not extend(world, token, HOUR)
    assert world.within(lambda cursor: world.plane.take(cursor, Unanswered())) == []
    assert end(world, token, Completed())


def test_a_wrong_lease_and_an_unknown_token_find_nothing(world: World) -> None:
    attempt, token = parked(world)
    for unknown, lease in ((token, attempt.run_lease + 1), (token, 0), (uuid4(), None)):
        assert pending(world, unknown, lease) is None
        assert end(world, unknown, Completed(), run_lease=lease) == []
    assert state_of(world, attempt) is JobState.WAITING_EXTERNAL
    assert end(world, token, Completed(), run_lease=attempt.run_lease)
