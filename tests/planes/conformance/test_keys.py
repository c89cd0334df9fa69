"""Unique keys on both planes: held exactly in the states of the job's mask, and the newer job wins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from awa_django.jobs import Attempt, Landed
from awa_django.outcomes import (
    Cancel,
    Completed,
    Failed,
    OperatorCancel,
    OperatorRetry,
    Outcome,
    Rescued,
    RetryAfter,
    Snooze,
    Terminal,
    WaitForCallback,
)
from awa_django.planes.base import Cursor, Due, Ids, Stale
from awa_django.states import JobState
from awa_django.transitions import plan
from tests.planes.conformance.worlds import KEY, SILENCE, AnyWorld
from tests.planes.world import job

#: Held while scheduled, available and retryable; the same and while cancelled; while running only.
WAITING, WAITING_OR_CANCELLED = "11001000", "11001010"
DUPLICATE = "unique claim held by a newer job"
EVERY_MASK = [f"{number:08b}" for number in range(256)]


def key_of(mask: str) -> bytes:
    return b"every mask  " + int(mask, 2).to_bytes(4)


def assert_held(world: AnyWorld, state: JobState, masks: Iterable[str] = EVERY_MASK) -> None:
    """Jobs in this state hold their keys exactly where their mask says so."""
    held = {key for key in world.holders() if key.startswith(b"every mask")}
    assert held == {key_of(mask) for mask in masks if mask[state.bit] == "1"}, state


def ended(world: AnyWorld, attempts: list[Attempt], outcome: Outcome) -> None:
    transitions = [plan(attempt, outcome)._replace(has_lease=True) for attempt in attempts]
    settlement = world.within(lambda cursor: world.plane.settle(cursor, transitions))
    assert not settlement.stale
    assert not any(landed.duplicate for landed in settlement.landed)


def test_every_mask_holds_its_key_in_its_states_through_a_whole_life(world: AnyWorld) -> None:
    world.enqueue(*[job(unique_key=key_of(mask), unique_states=mask) for mask in EVERY_MASK])
    assert_held(world, JobState.AVAILABLE)

    def run() -> list[Attempt]:
        attempts = world.claim(limit=300)
        assert len(attempts) == 256
        assert_held(world, JobState.RUNNING)
        return attempts

    def again(state: JobState) -> None:
        assert_held(world, state)
        assert world.promote_all() == 256
        assert_held(world, JobState.AVAILABLE)

    ended(world, run(), Snooze(0))
    again(JobState.SCHEDULED)
    ended(world, run(), RetryAfter(0))
    again(JobState.RETRYABLE)
    run()
    assert len(world.rescue()) == 256
    again(JobState.RETRYABLE)
    attempts = run()
    for attempt in attempts:
        world.register(attempt)
    ended(world, attempts, WaitForCallback(None))
    assert_held(world, JobState.WAITING_EXTERNAL)
    job_ids = [attempt.job_id for attempt in attempts]

    def renamed(outcome: Outcome, state: JobState) -> None:
        landed = world.change(Ids(job_ids, list(JobState)), outcome)
        assert len(landed) == 256
        assert not any(item.duplicate for item in landed)
        assert_held(world, state)

    renamed(OperatorRetry(), JobState.AVAILABLE)
    renamed(OperatorCancel(), JobState.CANCELLED)
    renamed(OperatorRetry(), JobState.AVAILABLE)
    ended(world, run(), Terminal("no"))
    assert_held(world, JobState.FAILED)
    renamed(OperatorRetry(), JobState.AVAILABLE)
    ended(world, run(), Completed())
    assert_held(world, JobState.COMPLETED)
    world.check()


def superseded(world: AnyWorld, mask: str = WAITING) -> tuple[Attempt, int]:
    """A running attempt whose key, free while it runs, a newer job has taken; and that job."""
    unique = {"unique_key": KEY, "unique_states": mask}
    (attempt,) = world.running(job(**unique))
    assert world.holders() == {}
    world.enqueue(job(**unique))
    return attempt, world.holders()[KEY]


def assert_superseded(world: AnyWorld, landed: Landed, holder: int, *, errors: int) -> None:
    """It ended as a cancelled duplicate, and whoever held the key has it still."""
    assert landed.duplicate
    row = world.job(landed.job.id)
    assert (row["state"], len(row["errors"])) == ("cancelled", errors)
    assert row["errors"][-1]["error"].endswith(DUPLICATE)
    assert row["finalized_at"] is not None
    assert world.holders() == {KEY: holder}
    assert world.state(holder) == "available"
    world.check()


@pytest.mark.parametrize("mask", [WAITING, WAITING_OR_CANCELLED])
@pytest.mark.parametrize(
    ("outcome", "errors"),
    [(Failed("boom"), 2), (Snooze(5), 1), (RetryAfter(5), 1)],
    ids=["failed", "snooze", "retry"],
)
def test_an_attempt_that_may_not_enter_its_state_ends_as_a_cancelled_duplicate(
    world: AnyWorld, outcome: Outcome, errors: int, mask: str
) -> None:
    attempt, holder = superseded(world, mask)
    settlement = world.end([attempt], outcome)
    (landed,) = settlement.landed
    assert_superseded(world, landed, holder, errors=errors)


@pytest.mark.parametrize("mask", [WAITING, WAITING_OR_CANCELLED])
def test_a_rescued_attempt_between_two_others_ends_as_a_duplicate_and_they_do_not(
    world: AnyWorld, mask: str
) -> None:
    (before,) = world.running(job())
    attempt, holder = superseded(world, mask)
    world.age()
    landed = [
        item
        for receipts in (True, False)
        for item in world.change(Stale(SILENCE, receipts=receipts), Rescued("silent"))
    ]
    by_id = {item.job.id: item for item in landed}
    assert by_id[before.job_id].job.state == "retryable"
    assert not by_id[before.job_id].duplicate
    assert_superseded(world, by_id[attempt.job_id], holder, errors=2)


def test_a_due_job_whose_key_a_newer_one_holds_ends_cancelled_and_the_others_are_promoted(
    world: AnyWorld,
) -> None:
    mask = "01000000"  # only while available: so two may wait for their time
    first, second, third = world.running(job(), job(unique_key=KEY, unique_states=mask), job())
    world.end([first, second, third], Snooze(0))
    world.enqueue(job(unique_key=KEY, unique_states=mask))
    holder = world.holders()[KEY]
    world.run(f"UPDATE awa.{world.deferred} SET run_at = now() - interval '1 second'")
    landed = {item.job.id: item for item in world.change(Due(JobState.SCHEDULED))}
    assert_superseded(world, landed[second.job_id], holder, errors=1)
    assert world.states([first.job_id, third.job_id]) == ["available", "available"]


def test_a_job_that_is_retried_against_a_newer_one_is_reported_as_its_duplicate(world: AnyWorld) -> None:
    (attempt,) = world.running(job(unique_key=KEY, unique_states=WAITING))
    world.end([attempt], Terminal("no"))
    world.enqueue(job(unique_key=KEY, unique_states=WAITING))
    with world.connection.transaction(force_rollback=True), world.connection.cursor() as cursor:
        landed = world.change(world.named(attempt.job_id), OperatorRetry(), connection=cursor.connection)
    assert [item.duplicate for item in landed] == [True]
    assert world.state(attempt.job_id) == "failed"


def test_of_two_attempts_with_one_key_in_one_batch_one_gets_it(world: AnyWorld) -> None:
    unique: dict[str, Any] = {"unique_key": KEY, "unique_states": "00001000"}  # while retryable only
    attempts = world.running(job(**unique), job(**unique), job())
    settlement = world.end(attempts, Failed("no"))
    assert sorted(item.duplicate for item in settlement.landed) == [False, False, True]
    (holder,) = world.holders().values()
    assert world.state(holder) == "retryable"
    assert holder in {attempt.job_id for attempt in attempts[:2]}


def test_a_key_that_one_job_of_a_batch_gives_up_is_free_for_another(world: AnyWorld) -> None:
    unique = {"unique_key": KEY}
    (first,) = world.running(job(**unique, unique_states="00100000"))
    (second,) = world.running(job(**unique, unique_states="00001000"))
    transitions = [plan(second, Failed("no")), plan(first, Cancel("no"))]
    settlement = world.within(lambda cursor: world.plane.settle(cursor, transitions))
    assert not any(item.duplicate for item in settlement.landed)
    assert world.holders() == {KEY: second.job_id}


def test_a_dropped_job_gives_its_key_up(world: AnyWorld) -> None:
    world.enqueue(job(unique_key=KEY, unique_states="11111111"))
    (job_id,) = world.ids()

    def drop(cursor: Cursor) -> None:
        world.plane.drop(cursor, world.plane.take(cursor, world.named(job_id)))

    world.within(drop)
    assert world.holders() == {}
