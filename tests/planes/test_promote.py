"""Lifting due jobs and making them available."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg

from awa_django.jobs import Landed
from awa_django.outcomes import Failed
from awa_django.planes.base import Due
from awa_django.states import JobState
from awa_django.transitions import promote
from tests.planes.world import World, ids, job

SCHEDULED = Due(JobState.SCHEDULED)


def promoted(world: World, guard: Due = SCHEDULED) -> list[Landed]:
    return world.within(
        lambda cursor: world.plane.place(cursor, [promote(item) for item in world.plane.take(cursor, guard)])
    )


def deferred(world: World) -> list[int]:
    """The waiting jobs, oldest id first."""
    return [row["job_id"] for row in world.rows("SELECT job_id FROM awa.deferred_jobs ORDER BY job_id")]


def minutes_ago(world: World, count: float) -> datetime:
    at: datetime = world.one("SELECT now()") - timedelta(minutes=count)
    return at


def test_due_jobs_come_by_time_then_priority_then_id(world: World) -> None:
    early, late = minutes_ago(world, 2), minutes_ago(world, 1)
    world.enqueue(
        job(run_at=late, priority=3),
        job(run_at=late, priority=1),
        job(run_at=early, priority=4),
        job(run_at=late, priority=1),
        job(run_at=minutes_ago(world, -60)),
    )
    first, second, third, fourth, _ = [
        row["job_id"] for row in world.rows("SELECT job_id FROM awa.deferred_jobs ORDER BY 1")
    ]
    taken = world.within(lambda cursor: world.plane.take(cursor, SCHEDULED))
    assert ids(taken) == [third, second, fourth, first]
    assert len({item.taken_at for item in taken}) == 1
    assert world.one("SELECT count(*) FROM awa.deferred_jobs") == 1


def test_jobs_of_a_paused_queue_wait_until_it_goes_on(world: World) -> None:
    world.enqueue(job(run_at=minutes_ago(world, 1)), job(queue="other", run_at=minutes_ago(world, 1)))
    world.run("INSERT INTO awa.queue_meta (queue, paused) VALUES ('q', true)")
    assert [item.job.queue for item in promoted(world)] == ["other"]
    world.run("UPDATE awa.queue_meta SET paused = false")
    assert [item.job.queue for item in promoted(world)] == ["q"]


def test_a_batch_is_one_segment_in_each_lane_and_can_be_claimed(world: World) -> None:
    """H-15: the reference writes a segment for each job."""
    world.enqueue(*[job(run_at=minutes_ago(world, number), args={"n": number}) for number in range(1, 6)])
    landed = promoted(world)
    assert {item.job.state for item in landed} == {JobState.AVAILABLE}
    assert world.one("SELECT count(*) FROM awa.ready_segments") == 1
    assert world.one("SELECT count(DISTINCT run_at) FROM awa.ready_entries") == 1
    assert [attempt.args["n"] for attempt in world.claim()] == [5, 4, 3, 2, 1]  # type: ignore[call-overload, index]


def test_a_retried_job_keeps_all_it_had(world: World) -> None:
    (attempt,) = world.running(job(args={"x": 1}, metadata={"m": 1}, tags=("a",), priority=3))
    world.beat(attempt, {"percent": 5})
    world.end([attempt], Failed("ValueError: no"))
    assert promoted(world, Due(JobState.RETRYABLE)) == []
    world.run("UPDATE awa.deferred_jobs SET run_at = now()")
    promoted(world, Due(JobState.RETRYABLE))
    (again,) = world.claim()
    assert (again.job_id, again.run_lease, again.attempt) == (attempt.job_id, 2, 2)
    assert again.job.progress == {"percent": 5}
    assert (again.job.metadata, again.job.tags, again.args) == ({"m": 1}, ("a",), {"x": 1})
    assert [entry["error"] for entry in again.job.errors] == ["ValueError: no"]


def test_waiting_workers_hear_of_promoted_jobs(world: World, world_database: str) -> None:
    world.enqueue(*[job(run_at=minutes_ago(world, 1)) for _ in range(3)])
    with psycopg.connect(world_database, autocommit=True) as listener:
        listener.execute('LISTEN "awa:q"')
        promoted(world)
        heard = list(listener.notifies(timeout=30, stop_after=1))
    assert [notification.channel for notification in heard] == ["awa:q"]


def test_a_due_job_whose_key_a_newer_job_holds_ends_cancelled(world: World) -> None:
    """Its mask claims the key while available, not while scheduled, so another job could take it."""
    mask: dict[str, Any] = {"unique_key": b"key", "unique_states": "01100000"}
    world.enqueue(job(run_at=minutes_ago(world, 1), **mask), job(run_at=minutes_ago(world, 1)))
    world.enqueue(job(**mask))
    landed = promoted(world)
    assert [(item.duplicate, item.landing.state) for item in landed] == [
        (True, JobState.CANCELLED),
        (False, JobState.AVAILABLE),
    ]
    (done,) = world.rows("SELECT state::text, args, lane_seq, job_id FROM awa.done_entries")
    assert (done["state"], done["args"], done["lane_seq"]) == ("cancelled", {}, -done["job_id"])
    assert world.one("SELECT count(*) FROM awa.job_unique_claims") == 1
