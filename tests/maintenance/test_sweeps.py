"""The leader's duties over jobs: promotion, rescue, retention; and one bad row among good ones."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from awa_django.conf import QueueConfig
from awa_django.jobs import Landed
from awa_django.maintenance import Context, Duty, promote, rescue, retention
from awa_django.maintenance.promote import Promotion
from awa_django.maintenance.retention import OrphanSweep
from awa_django.maintenance.sweep import Sweeper
from awa_django.outcomes import Terminal
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.settle import rescue_notices
from awa_django.transitions import plan
from tests.planes.world import World, job

PLANE = QueueStoragePlane()
HOUR = timedelta(hours=1)


def run(context: Context, duties: Sequence[Duty], name: str) -> bool | None:
    (duty,) = [duty for duty in duties if duty.name == name]
    return duty.run(context)


def rescue_stale(context: Context) -> None:
    duties = rescue.duties(context.settings, PLANE)
    run(context, duties, "rescue of stale leases")
    run(context, duties, "rescue of stale receipts")


def test_both_kinds_of_waiting_jobs_are_promoted(world: World, context: Context) -> None:
    now = world.one("SELECT now()")
    attempts = world.running(job())
    world.end(attempts, Terminal("x"))
    world.enqueue(job(run_at=now - HOUR), job(run_at=now - HOUR), job(run_at=now + HOUR))
    oldest = world.one("SELECT min(job_id) FROM awa.deferred_jobs")
    world.run("UPDATE awa.deferred_jobs SET state = 'retryable' WHERE job_id = %s", oldest)
    assert run(context, promote.duties(context.settings, PLANE), "promotion") is False
    assert len(world.claim()) == 2
    assert world.one("SELECT count(*) FROM awa.deferred_jobs") == 1


def test_a_backlog_is_promoted_in_batches_that_leave_time_for_others(
    world: World, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promote, "BATCH", 10)
    world.enqueue(*[job(run_at=world.one("SELECT now()") - HOUR) for _ in range(25)])
    promotion = Promotion(0.0, Sweeper("promotion", PLANE))
    assert promotion.run(context) is True
    assert world.one("SELECT count(*) FROM awa.deferred_jobs") == 15
    while promotion.run(context):
        pass
    assert world.one("SELECT count(*) FROM awa.ready_entries") == 25


def test_one_job_that_cannot_be_promoted_does_not_keep_the_others(
    world: World, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    """DEC-18: no client can be woken for a queue name of 100 bytes, so PostgreSQL refuses the notification."""
    world.run(
        """
        INSERT INTO awa.deferred_jobs (job_id, kind, queue, state, priority, run_at)
        SELECT nextval('awa.job_id_seq'), 'k', CASE n WHEN 3 THEN repeat('q', 100) ELSE 'q' END, 'scheduled', 2,
            now() - interval '1 hour'
        FROM generate_series(1, 7) AS n
        """
    )
    promotion = Promotion(1.0, Sweeper("promotion", PLANE))
    promotion.run(context)
    assert len(world.claim()) == 6
    (left,) = world.rows("SELECT job_id, queue FROM awa.deferred_jobs")
    assert len(left["queue"]) == 100
    assert f"promotion passes over job {left['job_id']} for 60 s" in caplog.text
    assert caplog.text.count("passes over") == 1
    promotion.run(context)
    assert caplog.text.count("passes over") == 1


def test_a_bad_job_is_tried_again_after_a_minute(world: World, context: Context) -> None:
    now = [0.0]
    promotion = Promotion(1.0, Sweeper("promotion", PLANE))
    promotion.sweeper.clock = lambda: now[0]
    world.enqueue(job(run_at=world.one("SELECT now()") - HOUR))
    world.run("ALTER TABLE awa.ready_entries ADD CONSTRAINT none CHECK (kind <> 'k') NOT VALID")
    try:
        promotion.run(context)
    finally:
        world.run("ALTER TABLE awa.ready_entries DROP CONSTRAINT none")
    promotion.run(context)
    assert world.one("SELECT count(*) FROM awa.deferred_jobs") == 1
    now[0] = 61.0
    promotion.run(context)
    assert world.one("SELECT count(*) FROM awa.deferred_jobs") == 0


def test_a_lock_that_cannot_be_had_is_no_jobs_fault(
    world: World, context: Context, world_database: str
) -> None:
    world.enqueue(job(run_at=world.one("SELECT now()") - HOUR))
    promotion = Promotion(1.0, Sweeper("promotion", PLANE))
    with psycopg.connect(world_database) as other:
        other.execute("LOCK TABLE awa.ready_segments IN ACCESS EXCLUSIVE MODE")
        world.run("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            promotion.run(context)
        world.run("RESET lock_timeout")
    promotion.run(context)
    assert len(world.claim()) == 1


def test_rescued_jobs_say_what_they_were_rescued_from(world: World, context: Context) -> None:
    told: list[tuple[str, list[int]]] = []

    def tell(kind: str, landed: Sequence[Landed]) -> None:
        told.append((kind, [item.job.id for item in landed]))

    leased, plain = world.running(job(), job())
    world.lease(leased)
    (late,) = world.running(job(), deadline=timedelta(hours=2))
    world.age("3 hours")
    world.beat(late)
    context = replace(context, rescued=tell)
    rescue_stale(context)
    run(context, rescue.duties(context.settings, PLANE), "rescue past deadline")
    texts = {
        row["job_id"]: row["error"]
        for row in world.rows("SELECT job_id, payload->'errors'->0->>'error' AS error FROM awa.deferred_jobs")
    }
    assert texts == {
        leased.job_id: "heartbeat stale: worker presumed dead",
        plain.job_id: "receipt claim stale: worker presumed dead",
        late.job_id: "hard deadline exceeded",
    }
    assert told == [
        ("heartbeat", [leased.job_id]),
        ("heartbeat", [plain.job_id]),
        ("deadline", [late.job_id]),
    ]


def test_600_stale_jobs_are_two_passes(world: World, context: Context) -> None:
    world.running(*[job() for _ in range(600)])
    world.age()
    duties = rescue.duties(context.settings, PLANE)
    assert run(context, duties, "rescue of stale receipts") is True
    assert world.one("SELECT count(*) FROM awa.deferred_jobs") == 500
    assert run(context, duties, "rescue of stale receipts") is False
    assert world.one("SELECT count(*) FROM awa.deferred_jobs") == 600


@pytest.mark.parametrize("dead_letters", [False, True])
def test_rescues_exhaust_attempts_where_the_settings_say_so(
    world: World, context: Context, dead_letters: bool
) -> None:
    """DEC-16."""
    settings = replace(context.settings, rescue_exhausts=True, dlq_enabled=dead_letters)
    last, not_last = world.running(job(max_attempts=1), job())
    world.age()
    rescue_stale(replace(context, settings=settings))
    assert [row["job_id"] for row in world.rows("SELECT job_id FROM awa.deferred_jobs")] == [not_last.job_id]
    table = "dlq_entries" if dead_letters else "done_entries"
    (ended,) = world.rows(
        f"SELECT job_id, state::text, payload->'errors'->0->'terminal' AS final FROM awa.{table}"
    )
    assert ended == {"job_id": last.job_id, "state": "failed", "final": True}
    if dead_letters:
        assert world.one("SELECT dlq_reason FROM awa.dlq_entries") == "max_attempts_exhausted"


@pytest.mark.parametrize("dead_letters", [False, True])
def test_a_callback_that_never_came_fails_the_job_in_its_last_attempt(
    world: World, context: Context, dead_letters: bool
) -> None:
    settings = replace(context.settings, dlq_enabled=dead_letters)
    last, not_last = world.running(job(max_attempts=1), job())
    for attempt in (last, not_last):
        world.lease(attempt, state="waiting_external", callback_in="-1 s")
    duties = rescue.duties(settings, PLANE)
    run(replace(context, settings=settings), duties, "rescue of unanswered callbacks")
    assert [row["job_id"] for row in world.rows("SELECT job_id FROM awa.deferred_jobs")] == [not_last.job_id]
    table = "dlq_entries" if dead_letters else "done_entries"
    (ended,) = world.rows(f"SELECT job_id, state::text, payload->'errors'->0 AS error FROM awa.{table}")
    assert (ended["job_id"], ended["state"]) == (last.job_id, "failed")
    assert (ended["error"]["error"], ended["error"]["terminal"]) == ("callback timed out", True)
    if dead_letters:
        assert world.one("SELECT dlq_reason FROM awa.dlq_entries") == "callback_timeout"


def test_old_dead_letters_go_and_free_their_key(world: World, context: Context) -> None:
    for number, age in enumerate(("29 days", "31 days")):
        world.run(
            """
            WITH claim AS (
                INSERT INTO awa.job_unique_claims (unique_key, job_id) VALUES (%s, %s)
            )
            INSERT INTO awa.dlq_entries (
                job_id, kind, queue, priority, unique_key, unique_states, dlq_reason, dlq_at, original_run_lease
            ) VALUES (%s, 'k', 'q', 2, %s, '11111111', 'terminal_error', now() - %s::text::interval, 1)
            """,
            bytes([number]), number, number, bytes([number]), age,
        )  # fmt: skip
    run(context, retention.duties(context.settings), "cleanup of dead letters")
    assert world.rows("SELECT job_id FROM awa.dlq_entries") == [{"job_id": 0}]
    assert world.rows("SELECT job_id FROM awa.job_unique_claims") == [{"job_id": 0}]


def test_a_full_batch_of_dead_letters_asks_for_another_round(
    world: World, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 3)
    world.run(
        """
        INSERT INTO awa.dlq_entries (job_id, kind, queue, priority, dlq_reason, dlq_at, original_run_lease)
        SELECT n, 'k', 'q', 2, 'terminal_error', now() - interval '31 days', 1 FROM generate_series(1, 4) AS n
        """
    )
    duties = retention.duties(context.settings)
    assert run(context, duties, "cleanup of dead letters") is True
    assert run(context, duties, "cleanup of dead letters") is False
    assert world.one("SELECT count(*) FROM awa.dlq_entries") == 0


def test_old_runtimes_labels_and_operations_go_and_young_ones_stay(world: World, context: Context) -> None:
    for age in ("23 hours", "25 hours"):
        world.run(
            """
            INSERT INTO awa.runtime_instances (
                instance_id, pid, version, started_at, last_seen_at, snapshot_interval_ms, healthy,
                postgres_connected, poll_loop_alive, heartbeat_alive, shutting_down, leader
            )
            VALUES (%s, 1, '0.6.9', now(), now() - %s::text::interval, 10000, true, true, true, true, false, false)
            """,
            uuid.uuid4(), age,
        )  # fmt: skip
    for name, age in (("young", "29 days"), ("old", "31 days")):
        for table, column in (("queue_descriptors", "queue"), ("job_kind_descriptors", "kind")):
            world.run(
                f"INSERT INTO awa.{table} ({column}, descriptor_hash, last_seen_at)"
                " VALUES (%s, 'x', now() - %s::text::interval)",
                name, age,
            )  # fmt: skip
    for state, until in (("completed", "-1 s"), ("completed", "1 h"), ("running", "-1 s")):
        world.run(
            """
            INSERT INTO awa.batch_operations (id, op_kind, filter, spec, state, retention_until)
            VALUES (%s, 'set_priority', '{}', '{}', %s, now() + %s::text::interval)
            """,
            uuid.uuid4(), state, until,
        )  # fmt: skip
    duties = retention.duties(context.settings)
    for duty in duties:
        if duty.name.startswith("cleanup"):
            duty.run(context)
    assert world.one("SELECT count(*) FROM awa.runtime_instances") == 1
    assert world.rows("SELECT queue FROM awa.queue_descriptors") == [{"queue": "young"}]
    assert world.rows("SELECT kind FROM awa.job_kind_descriptors") == [{"kind": "young"}]
    assert world.one("SELECT count(*) FROM awa.batch_operations") == 2


def test_labels_are_kept_for_ever_when_the_retention_is_zero(world: World, context: Context) -> None:
    settings = replace(context.settings, descriptor_retention=timedelta(0))
    assert not [duty for duty in retention.duties(settings) if "labels" in duty.name]


def test_finished_canonical_jobs_go_after_their_time_and_free_their_key(
    world: World, context: Context
) -> None:
    ages = {
        "completed": ("23 hours", "25 hours"),
        "failed": ("71 hours", "73 hours"),
        "running": ("100 hours",),
    }
    key = 0
    for state, spans in ages.items():
        for span in spans:
            key += 1
            world.run(
                """
                INSERT INTO awa.jobs_hot (kind, queue, args, state, finalized_at, unique_key, unique_states)
                VALUES ('k', %s, '{}', %s, now() - %s::text::interval, %s, '11111111')
                """,
                f"{state} {span}", state, span, bytes([key]),
            )  # fmt: skip
    run(context, retention.duties(context.settings), "cleanup of canonical jobs")
    assert [row["queue"] for row in world.rows("SELECT queue FROM awa.jobs_hot ORDER BY id")] == [
        "completed 23 hours", "failed 71 hours", "running 100 hours",
    ]  # fmt: skip
    assert world.one("SELECT count(*) FROM awa.job_unique_claims") == 3


def test_an_orphaned_key_is_released_at_the_second_sighting(
    world: World, context: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    world.enqueue(job(unique_key=b"live", unique_states="11101000"))
    for number in range(3):
        world.run(
            "INSERT INTO awa.job_unique_claims (unique_key, job_id) VALUES (%s, %s)", bytes([number]), -number
        )
    sweep = OrphanSweep()

    def sweep_all() -> int:
        while sweep.run(context):
            pass
        count: int = world.one("SELECT count(*) FROM awa.job_unique_claims")
        return count

    assert sweep_all() == 4
    world.run("INSERT INTO awa.job_unique_claims (unique_key, job_id) VALUES ('new', -9)")
    with caplog.at_level(logging.WARNING):
        assert sweep_all() == 2
    assert "unique keys were held by jobs that no longer exist" in caplog.text
    assert sweep_all() == 1


def test_a_rescue_adds_one_error_with_the_attempts_number(world: World, context: Context) -> None:
    (attempt,) = world.running(job())
    world.age()
    rescue_stale(context)
    payload: Any = world.one("SELECT payload::text FROM awa.deferred_jobs")
    (entry,) = json.loads(payload)["errors"]
    assert set(entry) == {"error", "attempt", "at"}
    assert entry["attempt"] == attempt.attempt


def test_a_queue_may_keep_its_dead_letters_for_a_time_of_its_own(world: World, context: Context) -> None:
    queues = {
        "q": QueueConfig("q", dlq_retention=timedelta(hours=2)),
        "brief": QueueConfig("brief", dlq_retention=timedelta(minutes=1)),
    }
    settings = replace(context.settings, queues=queues, dlq_retention=timedelta(minutes=30))
    for queue in ("q", "brief", "other"):
        (attempt,) = world.running(job(queue=queue))
        world.within(
            lambda cursor, attempt=attempt: world.plane.settle(
                cursor, [plan(attempt, Terminal("x"), dead_letters=True)]
            )
        )
    world.run("UPDATE awa.dlq_entries SET dlq_at = dlq_at - interval '1 hour'")
    for duty in retention.duties(settings):
        if duty.name.startswith("cleanup of dead letters"):
            duty.run(context)
    assert world.rows("SELECT queue FROM awa.dlq_entries") == [{"queue": "q"}]


def test_rows_go_a_second_after_their_time_and_a_queue_may_say_another(
    world: World, context: Context
) -> None:
    """Check 9 of runtime/maintenance. Each row is named for what is to become of it."""
    hour, own = timedelta(hours=1), timedelta(minutes=5)
    settings = replace(
        context.settings,
        completed_retention=hour,
        failed_retention=hour,
        dlq_retention=hour,
        queues={"own": QueueConfig("own", completed_retention=own, failed_retention=own, dlq_retention=own)},
    )
    for queue, limit in (("q", hour), ("own", own)):
        for kind, age in (("goes", limit + timedelta(seconds=1)), ("stays", limit - timedelta(seconds=20))):
            for state in ("completed", "failed", "cancelled"):
                world.run(
                    "INSERT INTO awa.jobs_hot (kind, queue, state, finalized_at) VALUES (%s, %s, %s, now() - %s)",
                    kind, queue, state, age,
                )  # fmt: skip
            world.run(
                "INSERT INTO awa.dlq_entries (job_id, kind, queue, priority, dlq_reason, dlq_at, original_run_lease)"
                " VALUES (nextval('awa.job_id_seq'), %s, %s, 2, 'terminal_error', now() - %s, 1)",
                kind, queue, age,
            )  # fmt: skip
    for duty in retention.duties(settings):
        if duty.name.startswith("cleanup of"):
            duty.run(replace(context, settings=settings))
    for table, left in (("jobs_hot", 3), ("dlq_entries", 1)):
        assert world.rows(f"SELECT kind, queue, count(*) FROM awa.{table} GROUP BY 1, 2 ORDER BY 2") == [
            {"kind": "stays", "queue": "own", "count": left},
            {"kind": "stays", "queue": "q", "count": left},
        ]


def test_an_exhausted_callback_is_told_of_as_failed_when_its_dead_letter_is_there(
    world: World, context: Context
) -> None:
    """Check 8 of runtime/maintenance. One transaction ends the job and makes the dead letter, so none can be lost."""
    told: list[tuple[str, str, str, int]] = []

    def tell(kind: str, landed: Sequence[Landed]) -> None:
        for notice in rescue_notices(kind, landed):
            letters = world.one("SELECT count(*) FROM awa.dlq_entries WHERE dlq_reason = 'callback_timeout'")
            told.append((notice.event, notice.reason, notice.job.state, letters))

    settings = replace(context.settings, dlq_enabled=True)
    (attempt,) = world.running(job(max_attempts=1))
    world.lease(attempt, state="waiting_external", callback_in="-1 s")
    duties = rescue.duties(settings, PLANE)
    run(replace(context, settings=settings, rescued=tell), duties, "rescue of unanswered callbacks")
    assert told == [("rescued", "expired_callback", "failed", 1)]
