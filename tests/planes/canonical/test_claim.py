"""Handing out canonical jobs (contract: runtime/dispatcher section 4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from awa_django.db import read_json
from awa_django.jobs import NO_RECEIPT
from awa_django.outcomes import Failed
from awa_django.planes.base import Claimed
from awa_django.sql import statement
from awa_django.unreadable import Unreadable
from tests.planes.canonical.rows import all_rows, row_of, states
from tests.planes.world import NO_DEADLINE, World, job

#: The mask of a job that holds its key while it runs but not while it waits.
RUNNING_ONLY = "00100000"
KEY = b"0123456789abcdef"


def claimed(world: World, limit: int = 100) -> Claimed:
    return world.within(
        lambda cursor: world.plane.claim(cursor, "q", limit, deadline=NO_DEADLINE, aging=NO_DEADLINE)
    )


def refuse(world: World, refused: Any) -> None:
    world.within(lambda cursor: world.plane.refuse(cursor, refused))


def test_a_claim_counts_the_attempt_and_sets_its_clock(canonical: World) -> None:
    canonical.enqueue(job(args={"x": 1}, metadata={"m": 1}, tags=("a",), priority=3, max_attempts=7))
    (attempt,) = canonical.claim(deadline=timedelta(seconds=90))
    row = row_of(canonical, attempt.job_id)
    assert (row["state"], row["attempt"], row["run_lease"]) == ("running", 1, 1)
    assert row["heartbeat_at"] == row["attempted_at"] == attempt.attempted_at
    assert row["deadline_at"] == attempt.deadline_at == row["attempted_at"] + timedelta(seconds=90)
    assert attempt.is_canonical
    assert {attempt.ready_slot, attempt.claim_slot, attempt.lane_seq, attempt.ready_generation} == {
        NO_RECEIPT
    }
    assert (attempt.batch_id, attempt.batch_index) == (None, None)
    seen = attempt.job
    assert (seen.args, seen.metadata, seen.tags, seen.errors, seen.progress) == (
        {"x": 1},
        {"m": 1},
        ("a",),
        (),
        None,
    )
    assert (seen.kind, seen.queue, seen.priority, seen.attempt, seen.max_attempts) == ("k", "q", 3, 1, 7)
    assert (seen.run_at, seen.created_at) == (row["run_at"], row["created_at"])


def test_no_deadline_is_none(canonical: World) -> None:
    """DEC-14: other clients stamp one that has passed already."""
    (attempt,) = canonical.running(job())
    assert attempt.deadline_at is None
    assert row_of(canonical, attempt.job_id)["deadline_at"] is None


def test_jobs_come_by_priority_then_time_then_id(canonical: World) -> None:
    canonical.enqueue(*[job(priority=priority) for priority in (3, 1, 2, 1, 1)])
    ids = [row["id"] for row in all_rows(canonical)]
    canonical.run("UPDATE awa.jobs_hot SET run_at = run_at - interval '1 minute' WHERE id = %s", ids[4])
    assert [attempt.job_id for attempt in canonical.claim()] == [ids[4], ids[1], ids[3], ids[2], ids[0]]


def test_what_is_not_due_or_not_available_stays(canonical: World) -> None:
    canonical.enqueue(job(), job(run_at=datetime(2999, 1, 1, tzinfo=UTC)), job())
    first = all_rows(canonical)[0]["id"]
    canonical.run("UPDATE awa.jobs_hot SET run_at = now() + interval '1 hour' WHERE id = %s", first)
    assert len(canonical.claim()) == 1


def test_a_backlog_is_what_is_due_and_not_paused_also_while_somebody_holds_it(
    canonical: World, world_database: str
) -> None:
    def backlog() -> bool:
        return canonical.within(lambda cursor: canonical.plane.has_backlog(cursor, "q"))

    canonical.enqueue(job(queue="other"), job(run_at=datetime(2999, 1, 1, tzinfo=UTC)))
    assert not backlog()
    canonical.enqueue(job())
    with psycopg.connect(world_database) as other:
        other.execute("SELECT FROM awa.jobs_hot FOR UPDATE")
        assert canonical.claim() == []
        assert backlog()
    canonical.run("INSERT INTO awa.queue_meta (queue, paused) VALUES ('q', true)")
    assert not backlog()


def test_two_claimers_never_get_the_same_job_nor_wait(canonical: World, world_database: str) -> None:
    canonical.enqueue(*[job() for _ in range(6)])
    with psycopg.connect(world_database) as other, other.cursor() as cursor:
        first = canonical.plane.claim(cursor, "q", 4, deadline=NO_DEADLINE, aging=NO_DEADLINE).attempts
        second = canonical.claim()
        assert len(first) == 4
        assert {item.job_id for item in first} | {item.job_id for item in second} == {
            row["id"] for row in all_rows(canonical)
        }
        assert len(second) == 2


def test_a_refused_job_that_somebody_has_taken_up_meanwhile_goes_on(canonical: World) -> None:
    canonical.enqueue(
        job(unique_key=KEY, unique_states=RUNNING_ONLY), job(unique_key=KEY, unique_states=RUNNING_ONLY)
    )
    got = claimed(canonical)
    canonical.end(got.attempts)
    (again,) = canonical.claim()
    assert again.job_id == got.refused[0].job_id
    refuse(canonical, got.refused)
    assert states(canonical) == ["completed", "running"]


def test_a_payload_that_cannot_be_read_comes_as_such_beside_the_others(canonical: World) -> None:
    """DEC-18: whoever runs it ends it; the claim has to survive it."""
    canonical.enqueue(job(), job(), job(), job())
    ids = [row["id"] for row in all_rows(canonical)]
    canonical.run("UPDATE awa.jobs_hot SET metadata = '[1]' WHERE id = %s", ids[1])
    canonical.run(
        "UPDATE awa.jobs_hot SET metadata = jsonb_build_object('n', repeat('9', 5000)::numeric) WHERE id = %s",
        ids[2],
    )
    psycopg.types.json.set_json_loads(read_json, canonical.connection)
    attempts = canonical.claim()
    assert [attempt.job_id for attempt in attempts] == ids
    assert attempts[1].payload is not None
    assert attempts[1].payload["metadata"] == [1]
    assert isinstance(attempts[2].payload, Unreadable)
    assert attempts[3].payload is None


@pytest.mark.parametrize("when", ["-infinity", "0044-03-15 BC"])
def test_a_time_that_python_cannot_hold_keeps_no_job_from_running_and_ending(
    canonical: World, when: str
) -> None:
    canonical.enqueue(job(), job())
    odd, _ = [row["id"] for row in all_rows(canonical)]
    canonical.run("UPDATE awa.jobs_hot SET run_at = %s::text::timestamptz WHERE id = %s", when, odd)
    attempts = canonical.claim()
    assert attempts[0].job_id == odd
    canonical.end(attempts, Failed("no"))
    assert states(canonical) == ["retryable", "retryable"]


def test_a_claim_on_many_finished_and_waiting_rows_reads_the_index(canonical: World) -> None:
    canonical.run(
        """
        INSERT INTO awa.jobs_hot (kind, queue, state, priority, finalized_at)
        SELECT 'k', 'q', CASE WHEN n % 3 = 0 THEN 'available' ELSE 'completed' END::awa.job_state, 1 + n % 4, now()
        FROM generate_series(1, 20000) AS n
        """
    )
    canonical.run("ANALYZE awa.jobs_hot")
    canonical.run("SET plan_cache_mode = force_generic_plan")
    text = statement("canonical/claim", "claim")
    plan = canonical.within(
        lambda cursor: cursor.execute(
            "EXPLAIN " + text, {"queue": "q", "limit": 50, "deadline": NO_DEADLINE}
        ).fetchall()
    )
    shown = "\n".join(line for (line,) in plan)
    assert "idx_awa_jobs_hot_dequeue" in shown
    assert "jobs_hot_pkey" in shown
    assert "Seq Scan on jobs_hot" not in shown, shown
