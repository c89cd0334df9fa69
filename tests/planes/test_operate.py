"""Lifting jobs that an operator names, from wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from awa_django.jobs import Taken
from awa_django.outcomes import Completed, Failed, OperatorCancel, OperatorRetry, Snooze, Terminal
from awa_django.planes.base import Cursor, Ids
from awa_django.planes.queue_storage.rings import Prune
from awa_django.states import JobState
from awa_django.transitions import land_one, plan, promote
from tests.invariants import violated
from tests.planes.test_rings import prune, turn, turn_claims
from tests.planes.world import World, job

LIVE = [state for state in JobState if not state.is_terminal]
KEY = b"k" * 16
EVERY = "11111111"

Arrange = Callable[[World], int]


def available(world: World) -> int:
    world.enqueue(job(unique_key=KEY, unique_states=EVERY, tags=("t",), metadata={"m": 1}))
    return int(world.one("SELECT max(job_id) FROM awa.ready_entries"))


def scheduled(world: World) -> int:
    world.enqueue(
        job(
            unique_key=KEY,
            unique_states=EVERY,
            tags=("t",),
            metadata={"m": 1},
            run_at=datetime(2999, 1, 1, tzinfo=UTC),
        )
    )
    return int(world.one("SELECT max(job_id) FROM awa.deferred_jobs"))


def _running(world: World, deadline: timedelta) -> int:
    (attempt,) = world.running(
        job(unique_key=KEY, unique_states=EVERY, tags=("t",), metadata={"m": 1}), deadline=deadline
    )
    world.beat(attempt, {"percent": 40})
    return attempt.job_id


def running(world: World) -> int:
    return _running(world, timedelta(0))


def running_with_deadline(world: World) -> int:
    return _running(world, timedelta(minutes=5))


def _leased(world: World, state: str, deadline: timedelta) -> int:
    (attempt,) = world.running(
        job(unique_key=KEY, unique_states=EVERY, tags=("t",), metadata={"m": 1}), deadline=deadline
    )
    world.beat(attempt, {"percent": 40})
    world.lease(attempt, state=state)
    return attempt.job_id


def running_on_a_lease(world: World) -> int:
    return _leased(world, "running", timedelta(0))


def waiting(world: World) -> int:
    return _leased(world, "waiting_external", timedelta(0))


def waiting_with_deadline(world: World) -> int:
    return _leased(world, "waiting_external", timedelta(minutes=5))


def running_after_a_move(world: World) -> int:
    """From the same position of another lane: both ready rows differ by nothing but the lane."""
    world.enqueue(job(priority=3, unique_key=KEY, unique_states=EVERY, tags=("t",), metadata={"m": 1}))
    job_id = int(world.one("SELECT max(job_id) FROM awa.ready_entries"))

    def move(cursor: Cursor) -> None:
        (taken,) = world.plane.take(cursor, Ids([job_id], LIVE))
        world.plane.place(cursor, [promote(replace(taken, priority=2))])

    world.within(move)
    (attempt,) = world.claim()
    world.beat(attempt, {"percent": 40})
    return job_id


def retryable(world: World) -> int:
    (attempt,) = world.running(job(unique_key=KEY, unique_states=EVERY, tags=("t",), metadata={"m": 1}))
    world.beat(attempt, {"percent": 40})
    world.end([attempt], Failed("boom"))
    return attempt.job_id


def failed(world: World) -> int:
    (attempt,) = world.running(job(unique_key=KEY, unique_states=EVERY, tags=("t",), metadata={"m": 1}))
    world.beat(attempt, {"percent": 40})
    world.end([attempt], Terminal("gone"))
    return attempt.job_id


def cancelled_before_it_ran(world: World) -> int:
    job_id = available(world)
    cancel(world, job_id)
    return job_id


def completed(world: World) -> int:
    (attempt,) = world.running(job(unique_key=KEY, unique_states=EVERY))
    world.end([attempt], Completed())
    return attempt.job_id


def dead(world: World) -> int:
    (attempt,) = world.running(job(unique_key=KEY, unique_states=EVERY, tags=("t",), metadata={"m": 1}))
    world.beat(attempt, {"percent": 40})
    transition = plan(attempt, Terminal("gone"), dead_letters=True)
    world.within(lambda cursor: world.plane.settle(cursor, [transition]))
    return attempt.job_id


PLACES: dict[str, tuple[Arrange, JobState]] = {
    "available": (available, JobState.AVAILABLE),
    "scheduled": (scheduled, JobState.SCHEDULED),
    "running on a compact receipt": (running, JobState.RUNNING),
    "running after a move": (running_after_a_move, JobState.RUNNING),
    "running on a row receipt": (running_with_deadline, JobState.RUNNING),
    "running on a lease": (running_on_a_lease, JobState.RUNNING),
    "waiting, compact": (waiting, JobState.WAITING_EXTERNAL),
    "waiting, row": (waiting_with_deadline, JobState.WAITING_EXTERNAL),
    "retryable": (retryable, JobState.RETRYABLE),
    "failed": (failed, JobState.FAILED),
    "cancelled before it ran": (cancelled_before_it_ran, JobState.CANCELLED),
}


def take(
    world: World, *job_ids: int, states: Collection[JobState] = tuple(JobState), dead: bool = False
) -> list[Taken]:
    return world.within(lambda cursor: world.plane.take(cursor, Ids(job_ids, states, dead)))


def cancel(world: World, *job_ids: int) -> list[Taken]:
    def work(cursor: Cursor) -> list[Taken]:
        taken = world.plane.take(cursor, Ids(job_ids, LIVE))
        world.plane.place(cursor, [land_one(item, OperatorCancel()) for item in taken])
        return taken

    return world.within(work)


def claims(world: World) -> list[int]:
    return [row["job_id"] for row in world.rows("SELECT job_id FROM awa.job_unique_claims")]


@pytest.mark.parametrize("place", PLACES)
def test_a_job_is_lifted_whole_from_wherever_it_is(world: World, place: str) -> None:
    arrange, state = PLACES[place]
    job_id = arrange(world)
    (taken,) = take(world, job_id)
    assert (taken.job_id, taken.state, taken.kind, taken.queue, taken.priority) == (
        job_id,
        state,
        "k",
        "q",
        2,
    )
    assert (taken.unique_key, taken.unique_states) == (KEY, EVERY)
    assert (taken.tags, taken.metadata, taken.max_attempts) == (("t",), {"m": 1}, 25)
    ran = state not in (JobState.AVAILABLE, JobState.SCHEDULED) and "before it ran" not in place
    assert (taken.run_lease, taken.attempt) == ((1, 1) if ran else (0, 0))
    assert taken.progress == ({"percent": 40} if ran else None)
    assert world.rows("SELECT * FROM awa.attempt_state") == []
    assert take(world, job_id) == []
    world.within(lambda cursor: world.plane.drop(cursor, [taken]))
    assert claims(world) == []
    assert violated(world.connection, quiesced=True, drained=True) == []


@pytest.mark.parametrize("place", PLACES)
def test_a_job_in_another_state_stays_where_it_is(world: World, place: str) -> None:
    arrange, state = PLACES[place]
    job_id = arrange(world)
    assert take(world, job_id, states=[other for other in JobState if other is not state]) == []
    assert take(world, job_id, dead=True) == []
    (taken,) = take(world, job_id, states=[state])
    assert taken.state is state


def test_a_completed_job_is_never_lifted(world: World) -> None:
    assert take(world, completed(world)) == []


def test_a_dead_letter_is_lifted_only_as_one(world: World) -> None:
    job_id = dead(world)
    assert take(world, job_id) == []
    (taken,) = take(world, job_id, dead=True)
    assert (taken.state, taken.progress, taken.errors[0]["error"]) == (
        JobState.FAILED,
        {"percent": 40},
        "gone",
    )
    assert world.rows("SELECT * FROM awa.dlq_entries") == []


@pytest.mark.parametrize("place", [place for place, (_, state) in PLACES.items() if not state.is_terminal])
def test_a_cancelled_job_can_be_retried_and_runs_again(world: World, place: str) -> None:
    arrange, _ = PLACES[place]
    job_id = arrange(world)
    (cancelled,) = cancel(world, job_id)
    assert claims(world) == [job_id]
    assert violated(world.connection, quiesced=True, drained=True, ids=[job_id]) == []
    (again,) = take(world, job_id, states=[JobState.CANCELLED])
    assert (again.run_lease, again.tags, again.metadata) == (cancelled.run_lease, ("t",), {"m": 1})
    assert again.progress == cancelled.progress
    world.within(lambda cursor: world.plane.place(cursor, [land_one(again, OperatorRetry())]))
    (attempt,) = world.claim()
    assert (attempt.job_id, attempt.run_lease, attempt.attempt) == (job_id, cancelled.run_lease + 1, 1)
    world.end([attempt])
    assert violated(world.connection, quiesced=True, drained=True, ids=[job_id]) == []


def test_a_cancelled_job_is_not_handed_out(world: World) -> None:
    world.enqueue(job(), job(), job())
    first, second, third = (
        row["job_id"] for row in world.rows("SELECT job_id FROM awa.ready_entries ORDER BY 1")
    )
    cancel(world, first, third)
    assert [attempt.job_id for attempt in world.claim()] == [second]


def test_a_running_job_above_the_cursor_is_taken_from_its_worker_and_not_from_its_lane(world: World) -> None:
    """H-10: the claim has committed, the cursor has not moved."""
    world.enqueue(job())
    (attempt,) = world.within(
        lambda cursor: world.plane.claim(cursor, "q", 1, deadline=timedelta(0), aging=timedelta(0)).attempts
    )
    (taken,) = cancel(world, attempt.job_id)
    assert taken.state is JobState.RUNNING
    assert world.rows("SELECT * FROM awa.ready_tombstones") == []
    assert world.end([attempt]).stale
    world.within(lambda cursor: world.plane.advance(cursor, [attempt]))
    assert violated(world.connection, quiesced=True, drained=True, ids=[attempt.job_id]) == []


def test_taking_a_finished_row_closes_a_receipt_that_lost_its_closure(world: World) -> None:
    (attempt,) = world.running(job(), deadline=timedelta(minutes=5))
    world.end([attempt], Terminal("gone"))
    world.run("DELETE FROM awa.lease_claim_closures")
    world.run("UPDATE awa.lease_claims SET closed_at = NULL")
    take(world, attempt.job_id)
    assert world.rows("SELECT outcome FROM awa.lease_claim_closures") == [{"outcome": "terminal_removed"}]
    assert violated(world.connection, quiesced=True, drained=True) == []


def test_of_two_ends_of_a_job_the_last_is_taken_and_a_job_that_lives_on_has_none(world: World) -> None:
    """H-02: a rescue by a reference client leaves a cancelled row beside the deferred one."""
    (attempt,) = world.running(job())
    world.end([attempt], Snooze(3600))
    world.run(
        """
        INSERT INTO awa.done_entries (
            ready_slot, ready_generation, job_id, kind, queue, state, priority, attempt, run_lease, lane_seq,
            enqueue_shard, finalized_at
        ) VALUES (0, 0, %s, 'k', 'q', 'cancelled', 2, 1, 1, %s, 0, now())
        """,
        attempt.job_id,
        attempt.lane_seq,
    )
    assert take(world, attempt.job_id, states=[JobState.CANCELLED]) == []
    (taken,) = take(world, attempt.job_id, states=[JobState.SCHEDULED])
    assert taken.run_lease == 1


def moved(world: World) -> int:
    """A job that waits at the same position of the lane it was moved to."""
    world.enqueue(job(priority=3, metadata={"m": 1}))
    job_id = int(world.one("SELECT max(job_id) FROM awa.ready_entries"))

    def move(cursor: Cursor) -> None:
        (taken,) = world.plane.take(cursor, Ids([job_id], LIVE))
        world.plane.place(cursor, [promote(replace(taken, priority=2))])

    world.within(move)
    return job_id


def test_every_client_sees_a_moved_job_once(world: World) -> None:
    seen = "SELECT id, state::text, priority, metadata FROM awa.jobs"
    job_id = moved(world)
    row = {"id": job_id, "state": "available", "priority": 2, "metadata": {"m": 1}}
    assert world.rows(seen) == [row]
    (attempt,) = world.claim()
    assert world.rows(seen) == [row | {"state": "running"}]
    world.lease(attempt, state="waiting_external")
    assert world.rows(seen) == [row | {"state": "waiting_external"}]
    world.run("UPDATE awa.leases SET state = 'running'")
    world.end([attempt], Terminal("gone"))
    assert world.rows(seen) == [row | {"state": "failed"}]


def test_a_moved_job_that_failed_is_carried_when_its_slot_is_emptied(world: World) -> None:
    job_id = moved(world)
    (attempt,) = world.claim()
    world.end([attempt], Terminal("gone"))
    turn(world)
    turn_claims(world)
    assert prune(world) == (Prune.PRUNED, None)
    (kept,) = world.rows(
        "SELECT job_id, state::text, priority, payload -> 'metadata' AS m FROM awa.done_entries"
    )
    assert kept == {"job_id": job_id, "state": "failed", "priority": 2, "m": {"m": 1}}
    (taken,) = take(world, job_id)
    assert (taken.run_lease, taken.metadata, taken.lane_seq) == (1, {"m": 1}, None)
