"""What a leader does to canonical rows besides rescue and promotion."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from awa_django.outcomes import Failed, Terminal
from awa_django.planes.canonical import upkeep
from tests.planes.canonical.rows import all_rows, claims, states
from tests.planes.outcome_cases import cancel
from tests.planes.world import World, job

MINUTE = timedelta(minutes=1)


def counts(world: World) -> dict[str, Any]:
    rows = world.rows("SELECT * FROM awa.queue_state_counts ORDER BY queue")
    return {row.pop("queue"): {state: number for state, number in row.items() if number} for row in rows}


def test_jobs_that_have_waited_long_get_better_one_priority_at_a_time(canonical: World) -> None:
    canonical.enqueue(
        *[job(priority=priority) for priority in (4, 2, 1, 4)], job(priority=3, metadata={"m": 1})
    )
    ids = [row["id"] for row in all_rows(canonical)]
    canonical.run("UPDATE awa.jobs_hot SET run_at = now() - interval '90 seconds' WHERE id <> %s", ids[3])
    assert canonical.within(lambda cursor: upkeep.age_priorities(cursor, MINUTE)) == 3
    rows = all_rows(canonical)
    assert [row["priority"] for row in rows] == [3, 1, 1, 4, 2]
    original = "_awa_original_priority"
    assert [row["metadata"] for row in rows] == [{original: 4}, {original: 2}, {}, {}, {"m": 1, original: 3}]
    assert canonical.within(lambda cursor: upkeep.age_priorities(cursor, MINUTE)) == 2
    assert [row["priority"] for row in all_rows(canonical)] == [2, 1, 1, 4, 1]
    assert all_rows(canonical)[0]["metadata"] == {original: 4}, "it notes where the job began"


def test_aging_is_bounded_and_leaves_held_rows_and_odd_metadata_alone(
    canonical: World, world_database: str
) -> None:
    canonical.enqueue(*[job() for _ in range(4)])
    ids = [row["id"] for row in all_rows(canonical)]
    for age, job_id in enumerate(ids):
        canonical.run(
            "UPDATE awa.jobs_hot SET run_at = now() - %s * interval '1 hour' WHERE id = %s", 9 - age, job_id
        )
    canonical.run("UPDATE awa.jobs_hot SET metadata = '[1]' WHERE id = %s", ids[1])
    with psycopg.connect(world_database) as other:
        other.execute("SELECT FROM awa.jobs_hot WHERE id = %s FOR UPDATE", [ids[0]])
        assert canonical.within(lambda cursor: upkeep.age_priorities(cursor, MINUTE, limit=2)) == 2
    rows = all_rows(canonical)
    assert [row["priority"] for row in rows] == [2, 1, 1, 2]
    assert rows[1]["metadata"] == [1]


def test_marked_counters_are_brought_up_to_date_in_pieces(canonical: World) -> None:
    canonical.enqueue(
        job(), job(), job(queue="other"), job(queue="third", run_at=datetime(2999, 1, 1, tzinfo=UTC))
    )
    canonical.claim("other")
    steps = []
    while not steps or steps[-1]:
        steps.append(canonical.within(lambda cursor: upkeep.recount_marked(cursor, 2)))
    assert steps == [3, 1, 0], "two queues and one kind, then the third queue"
    assert counts(canonical) == {"q": {"available": 2}, "other": {"running": 1}, "third": {"scheduled": 1}}


def test_a_full_count_mends_what_marks_have_missed(canonical: World) -> None:
    canonical.enqueue(job())
    canonical.run("DELETE FROM awa.admin_dirty_queue_marks")
    canonical.run("INSERT INTO awa.queue_state_counts (queue, available) VALUES ('gone', 7)")
    assert counts(canonical) == {"gone": {"available": 7}}
    canonical.within(upkeep.recount_all)
    assert counts(canonical) == {"q": {"available": 1}}


def test_nobody_counts_while_queue_storage_is_in_force(canonical: World) -> None:
    canonical.enqueue(job())
    canonical.run(
        "INSERT INTO awa.runtime_storage_backends (backend, schema_name) VALUES ('queue_storage', 'awa')"
    )
    assert canonical.within(upkeep.recount_marked) == 0
    canonical.within(upkeep.recount_all)
    assert counts(canonical) == {}
    assert canonical.one("SELECT count(*) FROM awa.admin_dirty_queue_marks") == 1


def finished(world: World, queue: str = "q") -> None:
    """A completed, a failed and a cancelled job, an hour ago, and one of each state that has not finished."""
    completed, failed, cancelled, retried, _ = world.running(*[job(queue=queue) for _ in range(5)])
    world.end([completed])
    world.end([failed], Terminal("no"))
    cancel(world, cancelled.job_id)
    world.end([retried], Failed("no"))
    for table in ("jobs_hot", "scheduled_jobs"):
        world.run(f"UPDATE awa.{table} SET finalized_at = now() - interval '1 hour'")


def expire(world: World, **options: Any) -> int:
    given = {"completed": 2 * 60 * MINUTE, "failed": 2 * 60 * MINUTE, **options}
    return world.within(lambda cursor: upkeep.expire_finished(cursor, **given))


def test_finished_jobs_go_when_their_time_is_up_and_no_sooner(canonical: World) -> None:
    finished(canonical)
    assert expire(canonical) == 0
    assert expire(canonical, completed=59 * MINUTE) == 1
    assert sorted(states(canonical)) == ["cancelled", "failed", "retryable", "running"]
    assert expire(canonical, failed=59 * MINUTE) == 2
    assert sorted(states(canonical)) == ["retryable", "running"]


def test_queues_may_have_times_of_their_own(canonical: World) -> None:
    finished(canonical)
    finished(canonical, "kept")
    short = {"completed": MINUTE, "failed": MINUTE}
    assert expire(canonical, **short, other=["kept"]) == 3
    assert {row["queue"] for row in all_rows(canonical) if row["state"] == "completed"} == {"kept"}
    assert expire(canonical, **short, only=["kept"], limit=2) == 2
    assert expire(canonical, **short, only=["kept"]) == 1


def test_the_key_of_a_finished_job_is_free_when_the_job_is_gone(canonical: World) -> None:
    (attempt,) = canonical.running(job(unique_key=b"k" * 16, unique_states="11111111"))
    canonical.end([attempt])
    assert len(claims(canonical)) == 1
    canonical.run("UPDATE awa.jobs_hot SET finalized_at = now() - interval '1 hour'")
    assert expire(canonical, completed=MINUTE) == 1
    assert claims(canonical) == {}
