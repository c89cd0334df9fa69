"""Jobs that somebody names: cancelled, retried, moved, put in another order, deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from awa_django.jobs import Landed, Landing, Taken
from awa_django.outcomes import (
    CallbackFailed,
    CallbackRetried,
    Failed,
    OperatorRetry,
    Terminal,
)
from awa_django.planes.base import Cursor, Ids
from awa_django.states import JobState
from awa_django.transitions import land_one
from tests.planes.canonical.rows import all_rows, claims, park, row_of, states
from tests.planes.outcome_cases import cancel
from tests.planes.world import World, ids, job
from tests.workers import wait_until

KEY = b"0123456789abcdef"
LATER = datetime(2999, 1, 1, tzinfo=UTC)
UNFINISHED = [state for state in JobState if not state.is_terminal]


def act(world: World, job_ids: Collection[int], decide: Callable[[Taken], Landing]) -> list[Landed]:
    def work(cursor: Cursor) -> list[Landed]:
        taken = world.plane.take(cursor, Ids(job_ids, list(JobState)))
        return world.plane.place(cursor, [decide(item) for item in taken])

    return world.within(work)


def one_in_each_state(world: World) -> dict[str, int]:
    """A job in every state, by state."""
    attempts = world.running(*[job(unique_key=bytes([n]) * 16, unique_states="11111111") for n in range(6)])
    completed, failed, cancelled, retried, parked, _ = attempts
    world.end([completed])
    world.end([failed], Terminal("TerminalError: no"))
    cancel(world, cancelled.job_id)
    world.end([retried], Failed("ValueError: no"))
    park(world, parked.job_id)
    world.enqueue(job(run_at=LATER), job(queue="other"))
    found = {row["state"]: row["id"] for row in all_rows(world)}
    assert found.keys() == {state.value for state in JobState}
    return found


@pytest.mark.parametrize("state", UNFINISHED)
def test_an_operator_can_cancel_what_has_not_finished(canonical: World, state: JobState) -> None:
    job_id = one_in_each_state(canonical)[state.value]
    before = row_of(canonical, job_id)
    cancel(canonical, job_id)
    after = row_of(canonical, job_id)
    assert (after["table"], after["state"]) == ("jobs_hot", "cancelled")
    assert after["finalized_at"] is not None
    for kept in ("errors", "run_at", "attempt", "run_lease", "metadata", "progress"):
        assert after[kept] == before[kept], kept
    assert after["callback_id"] is None


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED, JobState.WAITING_EXTERNAL])
def test_an_operator_can_have_a_job_run_again_from_the_start(
    canonical: World, world_database: str, state: JobState
) -> None:
    job_id = one_in_each_state(canonical)[state.value]
    canonical.run(
        "UPDATE awa.jobs_hot SET run_at = run_at - interval '1 hour', progress = '{}' WHERE id = %s", job_id
    )
    before = row_of(canonical, job_id)
    with psycopg.connect(world_database, autocommit=True) as listener:
        listener.execute('LISTEN "awa:q"')
        (landed,) = act(
            canonical, [job_id], lambda taken: land_one(replace(taken, attempted_at=None), OperatorRetry())
        )
        assert len(list(listener.notifies(timeout=10, stop_after=1))) == 1
    after = row_of(canonical, job_id)
    assert (after["state"], after["attempt"], after["finalized_at"], after["attempted_at"]) == (
        "available",
        0,
        None,
        None,
    )
    assert after["run_at"] == landed.run_at > before["run_at"]
    assert (after["heartbeat_at"], after["deadline_at"], after["callback_id"]) == (None, None, None)
    for kept in ("errors", "run_lease", "metadata", "progress", "unique_key"):
        assert after[kept] == before[kept], kept
    (again,) = [attempt for attempt in canonical.claim() if attempt.job_id == job_id]
    assert (again.attempt, again.run_lease) == (1, before["run_lease"] + 1)


def test_another_queue_and_priority_keep_the_place_of_a_waiting_job(
    canonical: World, world_database: str
) -> None:
    canonical.enqueue(job(metadata={"m": 1}), job(run_at=LATER, unique_key=KEY, unique_states="11111000"))
    before = all_rows(canonical)

    def move(taken: Taken) -> Landing:
        moved = replace(taken, queue="moved", priority=4)
        metadata = {**taken.metadata, "_awa_original_queue": taken.queue}
        return Landing(
            moved, taken.state, taken.attempt, taken.errors, metadata, taken.progress, run_at=taken.run_at
        )

    with psycopg.connect(world_database, autocommit=True) as listener:
        listener.execute('LISTEN "awa:moved"')
        act(canonical, [row["id"] for row in before], move)
        assert len(list(listener.notifies(timeout=10, stop_after=1))) == 1
    for old, new in zip(before, all_rows(canonical), strict=True):
        changed = {key for key in new if new[key] != old[key]}
        assert changed == {"queue", "priority", "metadata"}
        assert new["metadata"] == {**old["metadata"], "_awa_original_queue": "q"}
    assert claims(canonical) == {KEY: before[1]["id"]}


def test_a_deferred_job_can_be_given_another_time(canonical: World) -> None:
    canonical.enqueue(job(run_at=LATER), job(run_at=LATER))
    first, second = [row["id"] for row in all_rows(canonical)]

    def later(taken: Taken) -> Landing:
        landing = Landing(taken, taken.state, taken.attempt, taken.errors, taken.metadata)
        return landing.replace(delay=1.5) if taken.job_id == first else landing

    landed = act(canonical, [first, second], later)
    assert [item.run_at for item in landed] == [row["run_at"] for row in all_rows(canonical)]
    assert landed[0].run_at == landed[0].landing.taken.taken_at + timedelta(seconds=1.5)
    assert landed[1].run_at == LATER


def test_a_job_that_is_never_due_can_be_cancelled(canonical: World) -> None:
    canonical.enqueue(job(run_at=LATER))
    canonical.run("UPDATE awa.scheduled_jobs SET run_at = 'infinity'")
    ((job_id,),) = canonical.connection.execute("SELECT id FROM awa.scheduled_jobs").fetchall()
    cancel(canonical, job_id)
    assert row_of(canonical, job_id)["state"] == "cancelled"


def test_a_job_that_changes_tables_meanwhile_is_found_all_the_same(
    canonical: World, world_database: str
) -> None:
    """It may be in neither table at the two instants of looking."""
    canonical.enqueue(job(run_at=LATER))
    (row,) = all_rows(canonical)
    taken: list[Taken] = []
    with psycopg.connect(world_database) as promoting, psycopg.connect(world_database) as looking:
        promoting.execute("UPDATE awa.jobs SET state = 'available' WHERE id = %s", [row["id"]])

        def look() -> None:
            with looking.cursor() as cursor:
                taken.extend(canonical.plane.take(cursor, Ids([row["id"]], list(JobState))))

        looker = threading.Thread(target=look)
        looker.start()
        waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        wait_until(
            lambda: canonical.rows(waiting, looking.info.backend_pid), what="the look to wait for the row"
        )
        promoting.commit()
        looker.join(60)
    assert [(item.job_id, item.state) for item in taken] == [(row["id"], JobState.AVAILABLE)]


def test_a_duplicate_whose_mask_covers_cancelled_asks_for_its_key_when_it_is_retried(
    canonical: World,
) -> None:
    mask: dict[str, Any] = {"unique_key": KEY, "unique_states": "01001010"}
    (attempt,) = canonical.running(job(**mask))
    canonical.enqueue(job(**mask))
    newer = all_rows(canonical)[1]["id"]
    (lost,) = canonical.end([attempt], Failed("again")).landed
    assert lost.duplicate
    row = row_of(canonical, attempt.job_id)
    assert (row["state"], bytes(row["unique_key"]), row["unique_states"]) == ("cancelled", KEY, "01001000")
    (still,) = act(canonical, [attempt.job_id], lambda taken: land_one(taken, OperatorRetry()))
    assert still.duplicate
    assert claims(canonical) == {KEY: newer}
    canonical.run("DELETE FROM awa.jobs_hot WHERE id = %s", newer)
    (again,) = act(canonical, [attempt.job_id], lambda taken: land_one(taken, OperatorRetry()))
    assert (again.duplicate, claims(canonical)) == (False, {KEY: attempt.job_id})


def test_what_an_outside_system_ends_has_neither_clock_nor_callback(canonical: World) -> None:
    """An attempt that ended by itself keeps its heartbeat and deadline on record."""
    failed, retried = canonical.running(job(), job(), deadline=timedelta(minutes=5))
    canonical.run("UPDATE awa.jobs_hot SET callback_id = gen_random_uuid()")
    act(canonical, [failed.job_id], lambda taken: land_one(taken, CallbackFailed("ext err")))
    act(canonical, [retried.job_id], lambda taken: land_one(taken, CallbackRetried()))
    rows = [row_of(canonical, attempt.job_id) for attempt in (failed, retried)]
    assert [(row["state"], row["attempt"]) for row in rows] == [("failed", 1), ("available", 0)]
    assert [entry["error"] for entry in rows[0]["errors"]] == ["ext err"]
    assert "terminal" not in rows[0]["errors"][0]
    for row in rows:
        assert (row["callback_id"], row["heartbeat_at"], row["deadline_at"]) == (None, None, None)


def test_what_has_no_row_here_or_runs_cannot_be_placed(canonical: World) -> None:
    canonical.enqueue(job())
    with pytest.raises(ValueError, match="was not taken from the canonical tables"):
        act(
            canonical,
            [all_rows(canonical)[0]["id"]],
            lambda taken: land_one(replace(taken, canonical=False), Failed("x")),
        )
    with pytest.raises(ValueError, match="nothing places a job as running"):
        act(
            canonical,
            [all_rows(canonical)[0]["id"]],
            lambda taken: land_one(taken, Failed("x")).replace(state=JobState.RUNNING),
        )
    assert states(canonical) == ["available"]


def test_an_operator_waits_for_a_job_that_is_being_settled(canonical: World, world_database: str) -> None:
    (attempt,) = canonical.running(job())
    found: list[list[int]] = []
    with psycopg.connect(world_database) as settling, psycopg.connect(world_database) as operator:
        settling.execute("UPDATE awa.jobs_hot SET state = 'completed' WHERE id = %s", [attempt.job_id])

        def look() -> None:
            with operator.cursor() as cursor:
                found.append(ids(canonical.plane.take(cursor, Ids([attempt.job_id], [JobState.RUNNING]))))

        looker = threading.Thread(target=look)
        looker.start()
        waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        wait_until(lambda: canonical.rows(waiting, operator.info.backend_pid), what="the operator to wait")
        settling.commit()
        looker.join(60)
    assert found == [[]]
