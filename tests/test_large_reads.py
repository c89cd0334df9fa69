"""Reads where there is much: what they take when tables are long, and that what they say then is right.

Limits are lowered instead of tables filled: what is bounded, is bounded by them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from awa_django import operations
from awa_django.db import job_cursor
from awa_django.enqueue import enqueue_many
from awa_django.jobs import JobInsert
from awa_django.operations import JobFilter, Page
from awa_django.operations.activity import recent_failures
from awa_django.operations.orphans import orphan_kinds
from awa_django.sql import statement
from tests import stored
from tests.test_operations import added, claimed, in_state
from tests.test_operator_pages import counted_statements, finish, parked
from tests.test_operator_reads import canonical
from tests.test_runtimes import report

pytestmark = pytest.mark.django_db

READING = "awa_django.operations.reading"


def ids(page: Page) -> list[int]:
    return [record.job.id for record in page.jobs]


def explained(name: str, values: dict[str, Any], plane: str = "queue_storage") -> str:
    """The plan of a statement with what its parts went through."""
    with job_cursor("default") as cursor:
        query = statement(f"{plane}/{name.partition('.')[0]}", name.partition(".")[2])
        cursor.execute("EXPLAIN (ANALYZE, COSTS OFF) " + query, values, prepare=False)
        return "\n".join(row[0] for row in cursor.fetchall())


def read_through(plan: str, table: str) -> list[str]:
    """Scans of the whole of a table that took place."""
    return [
        line for line in plan.splitlines() if f"Seq Scan on {table}" in line and "never executed" not in line
    ]


def at_ages(hours: Sequence[float], **fields: Any) -> list[int]:
    """Completed jobs that were created so long ago, the oldest with the lowest id."""
    finish(len(hours), **fields)
    found = [row["job_id"] for row in stored.ready()][-len(hours) :]
    for job_id, age in zip(found, hours, strict=True):
        stored.run(
            "UPDATE awa.ready_entries SET created_at = now() - %s * interval '1 hour' WHERE job_id = %s",
            age,
            job_id,
        )
    return found


# Times of creation -------------------------------------------------------------------------------------------


def test_jobs_of_a_time_are_found_where_their_ids_are_however_many_are_newer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Less than a page of newer jobs may be walked over, and there are forty."""
    monkeypatch.setattr(f"{READING}._WALK", 20)
    monkeypatch.setattr(f"{READING}._WALKS", 1)
    made = at_ages([100 - number for number in range(60)])
    now = datetime.now(UTC)
    wanted = JobFilter(
        created_from=now - timedelta(hours=90.5),
        created_before=now - timedelta(hours=85.5),
        state="completed",
    )
    page = operations.list_jobs(wanted)
    assert (ids(page), page.next) == ([*reversed(made[10:15])], None)
    later = operations.list_jobs(JobFilter(created_from=now - timedelta(hours=45.5)))
    assert (ids(later), later.next) == ([*reversed(made[55:])], None)
    for nothing in (
        JobFilter(created_before=now - timedelta(hours=101)),
        JobFilter(created_from=now + timedelta(hours=1)),
    ):
        page = operations.list_jobs(nothing)
        assert (page.jobs, page.next) == ([], None)


def test_a_list_takes_no_more_statements_where_its_jobs_lie_in_many_slots_of_the_ring() -> None:
    taken = []
    states: dict[int, str] = {}
    for slot in range(6):
        stored.run("UPDATE awa.queue_ring_state SET current_slot = %s, generation = %s", slot, slot)
        for state in ("available", "completed", "running"):
            states[in_state(state)] = state
        with counted_statements() as sent:
            page = operations.list_jobs()
        assert {record.job.id: record.job.state.value for record in page.jobs} == states
        taken.append(sent.names)
    assert {row["ready_slot"] for row in stored.ready()} == set(range(6))
    assert taken == taken[:1] * 6


def test_one_job_with_an_odd_time_does_not_hide_the_others() -> None:
    made = at_ages([100 - number for number in range(60)])
    for place, odd in ((30, "'-infinity'"), (15, "'infinity'"), (45, "'1970-01-01'")):
        stored.run(f"UPDATE awa.ready_entries SET created_at = {odd} WHERE job_id = %s", made[place])
    now = datetime.now(UTC)
    for first in (5, 16, 31, 46):
        page = operations.list_jobs(
            JobFilter(
                created_from=now - timedelta(hours=100.5 - first),
                created_before=now - timedelta(hours=91.5 - first),
            )
        )
        assert ids(page) == [
            *reversed([job_id for job_id in made[first : first + 9] if job_id not in odd_ones(made)])
        ]


def odd_ones(made: Sequence[int]) -> set[int]:
    return {made[15], made[30], made[45]}


# Queues, and attempts that are in the way ------------------------------------------------------------------------


def test_jobs_of_a_small_queue_are_found_behind_any_number_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    finish(2, queue="small", kind="a")
    done = sorted((row["job_id"] for row in stored.ready()), reverse=True)
    failed = in_state("failed", queue="small", tags=("needle",))
    dead = in_state("dead", queue="small")
    waits = added(queue="small")
    enqueue_many([JobInsert("k", {}, "large") for _ in range(120)])
    monkeypatch.setattr(f"{READING}._WALK", 10)
    monkeypatch.setattr(f"{READING}._WALKS", 1)
    monkeypatch.setattr(f"{READING}._FEW", 100)
    for filter, wanted in (
        (JobFilter(queue="small"), [waits, dead, failed, *done]),
        (JobFilter(queue="small", state="completed"), done),
        (JobFilter(queue="small", kind="a"), done),
        (JobFilter(queue="small", tag="needle"), [failed]),
        (JobFilter(queue="small", states=["failed", "available"]), [waits, dead, failed]),
        (JobFilter(queue="nobody"), []),
    ):
        page = operations.list_jobs(filter)
        assert (ids(page), page.next) == (wanted, None), filter
    second = operations.list_jobs(JobFilter(queue="small"), limit=2)
    assert ids(second) == [waits, dead]
    assert ids(operations.list_jobs(JobFilter(queue="small"), after=second.next)) == [failed, *done]
    # A large one is looked for among the newest of all.
    assert len(operations.list_jobs(JobFilter(queue="large"), limit=5).jobs) == 5
    monkeypatch.setattr(f"{READING}._WALKS", 3)
    with counted_statements() as sent:
        operations.list_jobs(JobFilter(queue="large", kind="none of it"))
    assert (sent.names.count("newest_of_queue"), sent.names.count("newest")) == (1, 3)


def test_finished_jobs_are_found_behind_any_number_that_wait_for_an_answer() -> None:
    finish(3)
    done = sorted((row["job_id"] for row in stored.ready()), reverse=True)
    waiting = [parked(timedelta(hours=1)) for _ in range(12)]
    with counted_statements() as sent:
        page = operations.list_jobs(JobFilter(state="completed"), limit=2)
    assert ids(page) == done[:2]
    assert sent.names.count("newest") == 1, "one look has them"
    assert ids(operations.list_jobs(JobFilter(states=["completed", "waiting_external"]))) == [
        *reversed(waiting),
        *done,
    ]


def test_running_jobs_are_found_behind_any_number_that_wait_for_an_answer() -> None:
    added(kind="slow")
    (attempt,) = claimed()
    waiting = [parked(timedelta(hours=1), kind="asks") for _ in range(4)]
    for filter, wanted in (
        (JobFilter(state="running"), [attempt.job_id]),
        (JobFilter(state="running", kind="slow"), [attempt.job_id]),
        (JobFilter(state="running", kind="asks"), []),
        (JobFilter(state="running", queue="other"), []),
        (JobFilter(state="waiting_external"), [*reversed(waiting)]),
        (JobFilter(state="waiting_external", kind="slow"), []),
        (JobFilter(states=["running", "waiting_external"]), [*reversed(waiting), attempt.job_id]),
    ):
        page = operations.list_jobs(filter)
        assert (ids(page), page.next) == (wanted, None), filter


# Figures ---------------------------------------------------------------------------------------------------------


def test_what_runs_is_counted_apart_from_what_waits_for_an_answer() -> None:
    added()
    claimed()
    for _ in range(3):
        parked(timedelta(hours=1))
    for exact in (True, False):
        counts = operations.state_counts(exact=exact)
        assert (counts.running, counts.waiting_external, counts.completed) == (1, 3, 0), exact


def test_completed_jobs_of_a_long_history_are_estimated_by_what_lanes_have_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish(1, queue="rare")
    finish(30, queue="often")
    for state in ("failed", "cancelled", "waiting_external"):
        in_state(state, queue="often")
    stored.run("UPDATE awa.done_entries SET created_at = NULL")
    whole = operations.queue_counts(exact=False)
    monkeypatch.setattr("awa_django.operations.queues._PAGES", 0)
    part = operations.queue_counts(exact=False)
    assert (whole["often"].completed, whole["rare"].completed) == (31, 1), "with the one that was cancelled"
    assert part == whole


def test_jobs_that_were_moved_are_not_taken_for_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = [added(queue="from") for _ in range(20)]
    operations.move_queue(moved, "to")
    finish(20, queue="to")
    monkeypatch.setattr("awa_django.operations.queues._PAGES", 0)
    counts = operations.queue_counts(exact=False)
    assert "from" not in counts or counts["from"].completed == 0
    assert counts["to"].completed == 20


def test_jobs_completed_within_the_hour_are_counted_by_a_part_of_the_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each page holds as many batches as another, so the part says it nearly exactly."""
    stored.run(
        """
        INSERT INTO awa.receipt_completion_batches (
            ready_slot, ready_generation, claim_slot, queue, priority, enqueue_shard, completed_count, job_ids,
            run_leases, lane_seqs, attempts, attempted_ats, finalized_at
        )
        SELECT
            0, 0, 0, 'q' || n %% 2, 2, 0, 2, ARRAY[100000 + 2 * n, 100001 + 2 * n], '{1,1}',
            ARRAY[2 * n, 2 * n + 1], '{1,1}', ARRAY[now(), now()], now() - (9000 - n) * interval '1 second'
        FROM generate_series(1, 9000) AS n
        """
    )
    stored.run("ANALYZE awa.receipt_completion_batches")

    def in_the_hour() -> int:
        """Sixty minutes, of which the last is not over."""
        (row,) = stored.rows(
            """
            SELECT sum(completed_count)::bigint AS jobs
            FROM awa.receipt_completion_batches
            WHERE queue = 'q0' AND finalized_at >= date_trunc('minute', clock_timestamp()) - interval '59 minutes'
            """
        )
        return int(row["jobs"])

    before = in_the_hour()
    whole = {queue.queue: queue.completed_last_hour for queue in operations.queue_overview()}
    assert in_the_hour() <= whole["q0"] <= before, "the minute may be another by now"
    monkeypatch.setattr("awa_django.operations.queues.BUDGET", 10)
    part = {queue.queue: queue.completed_last_hour for queue in operations.queue_overview()}
    assert part["q0"] == pytest.approx(whole["q0"], rel=0.16)
    values = {"exact": False, "queue": None, "pages": 40}
    assert read_through(explained("overview.counts", values), "receipt_completion_batches") == []


def test_deferred_jobs_and_dead_letters_are_counted_without_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored.run(
        """
        INSERT INTO awa.deferred_jobs (job_id, kind, queue, state, priority, run_at)
        SELECT
            100000 + n, 'k', CASE WHEN n %% 4 = 0 THEN 'a' ELSE 'b' END,
            CASE WHEN n %% 4 = 0 THEN 'retryable' ELSE 'scheduled' END::awa.job_state, 2, now()
        FROM generate_series(1, 8000) AS n
        """
    )
    stored.run("UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE oid = 'awa.deferred_jobs'::regclass")
    monkeypatch.setattr("awa_django.operations.queues._PAGES", 50)
    counts = operations.queue_counts(exact=False)
    assert 1500 < counts["a"].retryable < 2500
    assert 5000 < counts["b"].scheduled < 7000
    assert (counts["a"].scheduled, counts["b"].retryable) == (0, 0), "a state is of its own queue"


def test_kinds_of_jobs_that_were_cancelled_or_claimed_are_no_orphans() -> None:
    cancelled = added(kind="cancelled", queue="held")
    added(kind="held", queue="held")
    added(kind="claimed", priority=1)
    claimed()
    operations.cancel(cancelled)
    # As cursors are until somebody moves them past what was lifted off or handed out.
    stored.run(
        "SELECT awa.set_sequence_next(seq_name, 1) FROM awa.queue_claim_heads WHERE queue IN ('held', 'q')"
    )
    assert orphan_kinds({"k"}) == {"held": 1}


def test_the_kinds_that_wait_are_asked_for_at_once_however_many_nobody_knows() -> None:
    enqueue_many([JobInsert(f"kind_{number}", {}, "q") for number in range(30)])
    with counted_statements() as sent:
        assert len(orphan_kinds(())) == 30
    assert len(sent.names) < 5


# Failures, callbacks, workers -----------------------------------------------------------------------------------


def test_where_very_many_failed_only_the_last_pages_are_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored.unseen("done_entries")
    for _ in range(4):
        latest = in_state("failed")
    monkeypatch.setattr(sys.modules["awa_django.operations.activity"], "MOST", 2)
    assert [record.job.id for record in recent_failures(1)] == [latest]
    plan = explained("activity.failures", {"most": 2, "last_pages": 4, "limit": 2})
    assert "Tid Range Scan on done_entries_0" in plan, plan


def test_a_search_among_callbacks_takes_few_statements_and_goes_on_where_it_was_broken_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("awa_django.operations.waiting._WALK", 5)
    for number in range(11):
        parked(timedelta(hours=1 + number), kind="other")
    needles = [parked(timedelta(hours=hours), kind="needle") for hours in (3.5, 20, 30)]
    found: list[int] = []
    after, pages = None, 0
    while True:
        with counted_statements() as sent:
            page = operations.waiting_callbacks(JobFilter(kind="needle"), after=after, limit=2)
        assert len(sent.names) <= 6
        found += [item.record.job.id for item in page.items]
        after, pages = page.next, pages + 1
        if after is None:
            break
    assert (found, pages) == (needles, 3)
    some = operations.waiting_callbacks(JobFilter(ids=[needles[0], needles[2]]))
    assert ([item.record.job.id for item in some.items], some.next) == ([needles[0], needles[2]], None)


def test_of_very_many_workers_that_are_gone_the_last_are_listed_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("awa_django.operations.runtimes.MOST_GONE", 2)
    live = report()
    gone = [report(silent=f"{hours} hours") for hours in (1, 2, 3, 4)]
    overview = operations.runtime_overview()
    assert (overview.total, overview.live, overview.stale) == (5, 1, 4)
    assert [each.instance_id for each in overview.instances] == [live, *gone[:2]]
    assert operations.runtime(gone[3]).stale


def test_figures_of_canonical_jobs_come_from_steps_in_their_indexes() -> None:
    """Also for pairs of kind or queue and state that no job has, though the planner expects many."""
    stored.run(
        """
        INSERT INTO awa.jobs_hot (id, kind, queue, state, priority, run_at, finalized_at)
        SELECT
            100000 + n, 'often', 'q', CASE WHEN n %% 2 = 0 THEN 'completed' ELSE 'failed' END::awa.job_state, 2, now(),
            now() - interval '2 hours'
        FROM generate_series(1, 20000) AS n
        """
    )
    canonical("available", kind="seldom", queue="other")
    stored.run("ANALYZE awa.jobs_hot")
    values = {"kinds": ["often", "seldom", "never"], "most": 500}
    for name in ("kinds.counts", "overview.lag"):
        assert read_through(explained(name, values, "canonical"), "jobs_hot") == [], name
    (lag,) = [queue.lag_seconds for queue in operations.queue_overview() if queue.queue == "other"]
    assert lag is not None
