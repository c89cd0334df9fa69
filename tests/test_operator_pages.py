"""What pages of many figures are made of: kinds, what happened lately, failures, names, waiting callbacks."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from awa_django import operations
from awa_django.db import job_cursor
from awa_django.enqueue import enqueue_many
from awa_django.errors import CallbackNotFound
from awa_django.jobs import JobInsert
from awa_django.operations import JobFilter, KindOverview, Minute, WaitingPosition
from awa_django.outcomes import Completed, Failed, Terminal
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.transitions import plan
from tests import stored
from tests.test_operations import STATES, added, claimed, ended, in_state
from tests.test_operator_reads import canonical
from tests.test_runtimes import queue, report

pytestmark = pytest.mark.django_db


def finish(number: int, *, kind: str = "k", queue: str = "q", deadline: int = 0, **fields: Any) -> None:
    """That many new jobs, completed at once: as one compact batch, or as rows if they have a deadline or metadata."""
    enqueue_many([JobInsert(kind, {}, queue, **fields) for _ in range(number)])
    attempts = claimed(queue, number, deadline=timedelta(seconds=deadline))
    with job_cursor("default") as cursor:
        QueueStoragePlane().settle(cursor, [plan(attempt, Completed()) for attempt in attempts])


class Sent:
    """The statements that were sent, by name, with what they were sent with."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._sent: dict[str, tuple[Any, Any]] = {}

    def note(self, query: Any, values: Any = None) -> None:
        name = str(query).partition("\n")[0]
        if name.startswith("-- name: ") and not name.endswith("_desk"):
            self.names.append(name.removeprefix("-- name: "))
            self._sent[self.names[-1]] = query, values

    def plan(self, name: str) -> str:
        query, values = self._sent[name]
        with job_cursor("default") as cursor:
            cursor.execute(f"EXPLAIN (COSTS OFF) {query}", values, prepare=False)
            return "\n".join(row[0] for row in cursor.fetchall())


@contextmanager
def counted_statements() -> Iterator[Sent]:
    """What is sent meanwhile."""
    seen = Sent()
    execute = psycopg.Cursor.execute

    def noting(self: Any, query: Any, values: Any = None, **options: Any) -> Any:
        seen.note(query, values)
        return execute(self, query, values, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", noting)
        yield seen


# Kinds


def kinds() -> dict[str, KindOverview]:
    return {each.kind: each for each in operations.kind_overview()}


@pytest.mark.parametrize("plane", ["queue_storage", "canonical"])
def test_a_kind_shows_what_waits_what_finished_and_what_failed(plane: str) -> None:
    for state in STATES:
        if plane == "queue_storage":
            in_state(state)
        elif state != "dead":
            canonical(state, finalized_at=datetime.now(UTC))
    (only,) = operations.kind_overview()
    dead = int(plane == "queue_storage")
    assert only == KindOverview(
        "k",
        waiting=3,  # available, scheduled, retryable
        finished=3 + dead,  # completed, failed, cancelled, and a dead letter
        failed=1 + dead,
        queues=("q",),
        completed_last_hour=1,
    )


def test_kinds_of_both_planes_add_up_and_name_the_queues_that_their_jobs_wait_on() -> None:
    added(kind="a", queue="one")
    added(kind="a", queue="two")
    in_state("scheduled", kind="a", queue="three")
    canonical("available", kind="a", queue="four")
    in_state("completed", kind="a", queue="five")
    canonical("completed", kind="b", finalized_at=datetime.now(UTC) - timedelta(hours=2))
    found = kinds()
    assert (found["a"].waiting, found["a"].queues) == (4, ("four", "one", "three", "two"))
    assert (found["a"].finished, found["a"].completed_last_hour) == (1, 1)
    assert (found["b"].finished, found["b"].completed_last_hour, found["b"].queues) == (1, 0, ())


def test_a_retried_job_is_one_job_and_compact_completions_are_counted_by_kind() -> None:
    finish(5, kind="a")
    finish(3, kind="b")
    finish(2, kind="b", deadline=60)
    job_id = in_state("failed", kind="c")
    operations.retry(job_id)
    (attempt,) = claimed()
    ended(attempt, Completed())
    assert (
        stored.rows("SELECT sum(completed_count) AS jobs FROM awa.receipt_completion_batches")[0]["jobs"] >= 8
    )
    found = kinds()
    assert {kind: each.finished for kind, each in found.items()} == {"a": 5, "b": 5, "c": 1}
    assert {kind: each.completed_last_hour for kind, each in found.items()} == {"a": 5, "b": 5, "c": 1}
    assert all(each.exact for each in found.values())


def test_a_kind_that_workers_declare_is_shown_with_its_description_and_their_number() -> None:
    stored.run(
        "INSERT INTO awa.job_kind_descriptors (kind, display_name, owner, tags, extra, descriptor_hash,"
        " sync_interval_ms, created_at, updated_at, last_seen_at)"
        " VALUES ('send', 'Send mail', 'ann', '{a,b}', '[1]', 'h1', 10000, now(), now(), now()),"
        " ('old', NULL, NULL, '{}', '{}', 'h', 10000, now(), now(), now() - interval '1 hour')"
    )
    report(kinds={"send": "h1", "bare": "h"})
    report(kinds={"send": "h2"})
    report(kinds={"send": "h3", "gone": "h"}, silent="1 hour")
    report(kinds=["odd"])
    found = kinds()
    assert list(found) == ["bare", "old", "send"]
    send = found["send"]
    assert (send.handled_by, found["bare"].handled_by, found["old"].handled_by) == (2, 1, 0)
    assert send.descriptor is not None
    assert (send.descriptor.display_name, send.descriptor.owner, send.descriptor.tags) == (
        "Send mail", "ann", ("a", "b"),
    )  # fmt: skip
    assert (send.descriptor.mismatch, send.descriptor.stale, dict(send.descriptor.extra)) == (True, False, {})
    assert found["old"].descriptor is not None
    assert found["old"].descriptor.stale
    assert (found["bare"].descriptor, found["bare"].waiting, found["bare"].finished) == (None, 0, 0)


def test_kinds_of_long_lanes_and_long_histories_are_estimated_and_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored.unseen("ready_entries", "done_entries", "receipt_completion_batches", "dlq_entries")
    for name, value in {"SHORT_LANE": 20, "BUDGET": 3, "SAMPLES": 50}.items():
        monkeypatch.setattr(f"awa_django.operations.kinds.{name}", value)
    for _ in range(20):
        finish(75, kind="often")
        finish(25, kind="seldom")
    enqueue_many([JobInsert("often" if n % 4 else "seldom", {"n": n}, "q") for n in range(1200)])
    added(kind="rare", queue="other")
    found = kinds()
    assert not found["often"].exact
    often, seldom, rare = found["often"], found["seldom"], found["rare"]
    assert often.waiting + seldom.waiting == pytest.approx(1200, abs=2)
    assert often.waiting == pytest.approx(900, rel=0.2)
    assert (often.finished or 0) + (seldom.finished or 0) == pytest.approx(2000, rel=0.25)
    assert often.finished == pytest.approx(1500, rel=0.3)
    assert often.completed_last_hour == pytest.approx(1500, rel=0.3)
    assert (rare.waiting, rare.finished, rare.queues) == (1, None, ("other",))


def test_many_failures_and_deferred_jobs_of_a_kind_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("awa_django.operations.kinds.MOST", 5000)
    stored.run(
        "INSERT INTO awa.deferred_jobs (job_id, kind, queue, state, priority, run_at)"
        " SELECT n, 'k', 'q', 'scheduled', 2, now() FROM generate_series(1, 20000) AS n"
    )
    stored.run("ANALYZE awa.deferred_jobs")
    (only,) = operations.kind_overview()
    assert only.waiting == pytest.approx(20_000, rel=0.5)
    assert not only.exact


def test_very_many_failures_are_estimated_by_kind_and_the_latest_of_them_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored.unseen("ready_entries", "done_entries", "receipt_completion_batches", "dlq_entries")
    columns = "job_id, kind, queue, priority, run_at, attempted_at, finalized_at, created_at"
    values = (
        "1000000 + n, CASE n %% 4 WHEN 0 THEN 'seldom' ELSE 'often' END, 'q', 2, now(), now(), now(), now()"
    )
    stored.run(
        f"INSERT INTO awa.done_entries (ready_slot, ready_generation, lane_seq, state, {columns})"
        f" SELECT 0, 0, -n, 'failed', {values} FROM generate_series(1, 3000) AS n"
    )
    stored.run(
        f"INSERT INTO awa.dlq_entries (dlq_reason, dlq_at, original_run_lease, {columns})"
        f" SELECT 'x', now(), 1, {values} FROM generate_series(3001, 6000) AS n"
    )
    stored.run("ANALYZE awa.dlq_entries")
    for name in ("kinds", "activity"):
        monkeypatch.setattr(sys.modules[f"awa_django.operations.{name}"], "MOST", 1000)
    found = kinds()
    assert not found["often"].exact
    assert found["often"].failed == pytest.approx(2 * 2250, rel=0.3)
    assert found["seldom"].failed == pytest.approx(2 * 750, rel=0.3)
    assert found["often"].finished == found["often"].failed
    latest = [in_state(state) for state in ("failed", "dead", "retryable")]
    assert [record.job.id for record in operations.recent_failures(3)] == latest[::-1]


# What happened lately


def total(minutes: tuple[Minute, ...], name: str) -> int:
    return sum(getattr(minute, name) for minute in minutes)


@pytest.mark.parametrize("plane", ["queue_storage", "canonical"])
def test_what_happened_lately_is_told_minute_by_minute(plane: str) -> None:
    now = datetime.now(UTC)
    for state in STATES:
        if plane == "queue_storage":
            in_state(state)
        elif state != "dead":
            canonical(
                state,
                finalized_at=now,
                attempted_at=now - timedelta(seconds=3),
                run_at=now - timedelta(seconds=5),
            )
    found = operations.activity()
    assert found.exact
    assert len(found.minutes) == 60
    assert found.minutes[-1].at <= datetime.now(UTC) < found.minutes[-1].at + timedelta(minutes=2)
    times = [minute.at for minute in found.minutes]
    assert times == [times[0] + number * timedelta(minutes=1) for number in range(60)]
    dead = int(plane == "queue_storage")
    assert [total(found.minutes, name) for name in ("enqueued", "completed", "failed", "cancelled")] == [
        8 + dead, 1, 1 + dead, 1,
    ]  # fmt: skip
    assert total(found.minutes[:-2], "enqueued") == 0
    busy = next(minute for minute in found.minutes if minute.completed)
    assert busy.run_p50 is not None
    assert busy.pickup_p50 is not None
    if plane == "canonical":
        assert (busy.pickup_p50, busy.run_p50) == (pytest.approx(2), pytest.approx(3))
    else:
        assert 0 <= busy.run_p50 < 60


def test_what_happened_belongs_to_its_minute() -> None:
    for hours in (3, 1, 0):
        finish(4)
        in_state("dead")
        finish(1, deadline=60)
        for table in ("ready_entries", "done_entries", "receipt_completion_batches", "dlq_entries"):
            moved = "created_at" if table == "ready_entries" else "finalized_at"
            stored.run(
                f"UPDATE awa.{table} SET {moved} = {moved} - %s::interval WHERE {moved} > now() - interval '1 hour'",
                f"{hours} hours 5 minutes",
            )
    found = operations.activity(240).minutes
    by_hour = [found[number : number + 60] for number in (0, 60, 120, 180)]
    assert [[total(part, name) for name in ("enqueued", "completed", "failed")] for part in by_hour] == [
        [6, 5, 1], [0, 0, 0], [6, 5, 1], [6, 5, 1],
    ]  # fmt: skip
    assert total(operations.activity(3).minutes, "completed") == 0
    with pytest.raises(ValueError, match="from 1 to 1440"):
        operations.activity(0)


def test_times_of_attempts_without_a_deadline_come_from_the_ledger_of_claims() -> None:
    finish(3)
    stored.run("UPDATE awa.ready_entries SET run_at = run_at - interval '47 s'")
    stored.run("UPDATE awa.ready_claim_attempt_batches SET claimed_at = claimed_at - interval '7 s'")
    busy = next(minute for minute in operations.activity(2).minutes if minute.run_p50 is not None)
    assert busy.pickup_p50 == pytest.approx(40, abs=5)
    assert busy.run_p50 == pytest.approx(7, abs=5)


def test_the_activity_of_one_queue_leaves_the_others_out() -> None:
    for name in ("q", "other"):
        for state in ("completed", "failed", "dead", "cancelled", "scheduled", "available"):
            in_state(state, queue=name)
    finish(4, queue="other")
    canonical("completed", queue="third", finalized_at=datetime.now(UTC))
    found = operations.activity(5, queue="q").minutes
    assert [total(found, name) for name in ("enqueued", "completed", "failed", "cancelled")] == [6, 1, 2, 1]
    found = operations.activity(5, queue="third").minutes
    assert [total(found, name) for name in ("enqueued", "completed")] == [1, 1]


def test_of_a_long_history_a_part_is_read_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    stored.unseen("ready_entries", "done_entries", "receipt_completion_batches", "dlq_entries")
    # The function of the same name hides the module.
    monkeypatch.setattr(sys.modules["awa_django.operations.activity"], "BUDGET", 4)
    for _ in range(3):
        for table, moved in (("ready_entries", "created_at"), ("done_entries", "finalized_at")):
            stored.run(f"UPDATE awa.{table} SET {moved} = {moved} - interval '2 hours'")
        stored.run("UPDATE awa.ready_entries SET run_at = run_at - interval '2 hours'")
        finish(600, metadata={"wide": 1})
    (rows,) = stored.rows("SELECT count(*) AS done FROM awa.done_entries")
    assert rows["done"] == 1800
    with counted_statements() as seen:
        found = operations.activity()
    assert not found.exact
    assert "Tid Range Scan on done_entries_0" in seen.plan("ended")
    assert "Seq Scan on done_entries_0" not in seen.plan("ended") + seen.plan("tails")
    assert total(found.minutes, "completed") == pytest.approx(600, rel=0.3)
    assert total(found.minutes, "enqueued") == pytest.approx(600, rel=0.3)


def test_a_job_that_was_moved_was_enqueued_once() -> None:
    ids = [added() for _ in range(3)]
    operations.move_queue(ids[:2], "other")
    operations.set_priority(ids[2], 4)
    in_state("retryable")
    assert total(operations.activity(5).minutes, "enqueued") == 4


def test_infinite_times_are_left_out_of_what_happened() -> None:
    canonical("completed", finalized_at="infinity", run_at="-infinity")
    canonical("completed", finalized_at=datetime.now(UTC), attempted_at=datetime.now(UTC), run_at="-infinity")
    in_state("completed")
    finish(2)
    stored.run("UPDATE awa.ready_entries SET run_at = '-infinity'")
    found = operations.activity(5)
    assert total(found.minutes, "completed") == 4
    stored.run("UPDATE awa.done_entries SET finalized_at = 'infinity'")
    assert operations.activity(5).exact


def test_reads_of_many_figures_take_few_statements() -> None:
    for state in STATES:
        in_state(state)
    for read, most in (
        (operations.activity, 3),
        (operations.kind_overview, 7),
        (operations.recent_failures, 2),
        (operations.runtime_overview, 1),
        (operations.known_kinds, 2),
        (operations.known_queues, 2),
        (operations.waiting_callbacks, 3),
    ):
        with counted_statements() as seen:
            read()  # type: ignore[operator]
        assert len(seen.names) <= most, (read, seen.names)


# Failures


def test_the_latest_failures_are_listed_with_their_errors_the_latest_first() -> None:
    expected = []
    for state in ("failed", "dead", "retryable"):
        expected.append((in_state(state), "queue_storage"))
    entry = {"error": "boom", "attempt": 1, "at": (datetime.now(UTC) + timedelta(seconds=5)).isoformat()}
    for state in ("failed", "retryable"):
        expected.append(
            (canonical(state, errors=[json.dumps(entry)], finalized_at=datetime.now(UTC)), "canonical")
        )
    in_state("cancelled")
    canonical("failed")
    in_state("completed")
    found = operations.recent_failures()
    assert [(record.job.id, record.plane) for record in found] == expected[::-1]
    assert all(record.job.errors for record in found)
    assert len(operations.recent_failures(2)) == 2
    assert operations.recent_failures(0) == []


def test_a_job_that_was_retried_since_is_no_failure() -> None:
    job_id = in_state("failed")
    operations.retry(job_id)
    assert operations.recent_failures() == []
    (attempt,) = claimed()
    assert operations.recent_failures() == []
    ended(attempt, Failed("again"))
    assert [record.job.id for record in operations.recent_failures()] == [job_id]


# Queues


@pytest.mark.parametrize("exact", [True, False])
def test_the_last_hour_of_a_queue_has_jobs_that_completed_together_and_one_by_one(exact: bool) -> None:
    finish(20, queue="a")
    finish(5, queue="a", deadline=60)
    finish(3, queue="b", deadline=60)
    for state in ("failed", "cancelled"):
        in_state(state, queue="b")
    hour = {each.queue: each.completed_last_hour for each in operations.queue_overview(exact=exact)}
    assert hour == {"a": 25, "b": 3}


# Names


def test_names_are_known_from_wherever_they_are_on_record() -> None:
    added(kind="k1", queue="lane")
    in_state("scheduled", kind="k2", queue="deferred")
    in_state("dead", kind="k3", queue="dead")
    canonical("available", kind="k4", queue="hot")
    canonical("retryable", kind="k5", queue="later")
    operations.pause("paused")
    report(queues=[queue("served")], kinds={"k6": "h"})
    stored.run(
        "INSERT INTO awa.cron_jobs (name, cron_expr, timezone, kind, queue)"
        " VALUES ('n', '* * * * *', 'UTC', 'k7', 'cron')"
    )
    assert operations.known_queues() == [
        "cron",
        "dead",
        "deferred",
        "hot",
        "lane",
        "later",
        "paused",
        "served",
    ]
    assert operations.known_kinds() == [f"k{number}" for number in range(1, 8)]


def test_names_of_many_canonical_jobs_are_found_without_reading_them_all() -> None:
    stored.run(
        "INSERT INTO awa.jobs_hot (kind, queue, state)"
        " SELECT 'k' || n % 5, 'q' || n % 3, 'completed' FROM generate_series(1, 3000) AS n".replace(
            "%", "%%"
        )
    )
    stored.run("ANALYZE awa.jobs_hot")
    assert operations.known_queues() == ["q0", "q1", "q2"]
    assert operations.known_kinds() == ["k0", "k1", "k2", "k3", "k4"]


# Jobs that wait for a callback


def parked(timeout: timedelta | None, **fields: Any) -> int:
    """A job of queue storage that waits for a callback for so long."""
    job_id = in_state("waiting_external", **fields)
    stored.run(
        "UPDATE awa.leases SET callback_timeout_at = now() + %s::interval WHERE job_id = %s",
        None if timeout is None else f"{timeout.total_seconds()} s",
        job_id,
    )
    return job_id


def canonical_parked(timeout: str | None, **fields: object) -> int:
    at = None if timeout is None else stored.rows("SELECT now() + %s::interval AS at", timeout)[0]["at"]
    return canonical("waiting_external", callback_id=uuid.uuid4(), callback_timeout_at=at, **fields)


def waiting(filter: JobFilter | None = None, **options: Any) -> list[int]:
    return [item.record.job.id for item in operations.waiting_callbacks(filter, **options).items]


def test_jobs_that_wait_are_listed_by_when_their_time_is_up_on_both_planes() -> None:
    endless = parked(None)
    late = parked(timedelta(hours=2), tags=("red",))
    canonical_soon = canonical_parked("1 minute", id=2**40)
    over = parked(timedelta(minutes=-5), kind="other")
    canonical_endless = canonical_parked(None, id=2**40 + 1)
    in_state("running")
    page = operations.waiting_callbacks()
    assert [item.record.job.id for item in page.items] == [
        over,
        canonical_soon,
        late,
        endless,
        canonical_endless,
    ]
    assert [item.overdue for item in page.items] == [True, False, False, False, False]
    assert page.next is None
    assert waiting(JobFilter(kind="other")) == [over]
    assert waiting(JobFilter(tag="red")) == [late]
    assert waiting(JobFilter(queue="nowhere")) == []
    assert waiting(JobFilter(state="running")) == []
    assert waiting(plane="canonical") == [canonical_soon, canonical_endless]
    assert waiting(limit=0) == []


def test_pages_of_waiting_jobs_follow_each_other_also_where_times_are_equal_or_missing() -> None:
    ids = [parked(timedelta(hours=number // 4)) for number in range(9)]
    ids += [canonical_parked("1 hour", id=2**40 + number) for number in range(3)]
    ids += [parked(None), parked(None), canonical_parked(None, id=2**41)]
    stored.run("UPDATE awa.leases SET callback_timeout_at = 'infinity' WHERE job_id = ANY(%s)", ids[7:9])
    for size in (1, 2, 4, 15, 50):
        seen: list[int] = []
        after: WaitingPosition | None = None
        while True:
            page = operations.waiting_callbacks(after=after, limit=size)
            seen += [item.record.job.id for item in page.items]
            if page.next is None:
                break
            after = page.next
        assert len(seen) == len(ids)
        assert set(seen) == set(ids)


def test_a_search_among_many_waiting_jobs_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("awa_django.operations.waiting._WALK", 4)
    for _ in range(6):
        parked(timedelta(hours=1))
    needle = parked(timedelta(hours=2), tags=("needle",))
    page = operations.waiting_callbacks(JobFilter(tag="needle"), limit=2)
    assert (list(page.items), page.next is None) == ([], False)
    page = operations.waiting_callbacks(JobFilter(tag="needle"), limit=2, after=page.next)
    assert [item.record.job.id for item in page.items] == [needle]


def test_the_job_of_a_callback_is_found_on_either_plane_while_it_may_be_answered() -> None:
    job_id = in_state("waiting_external")
    token = operations.load_job(job_id).job.callback_id
    assert token is not None
    assert operations.find_callback(token).job.id == job_id
    assert operations.find_callback(str(token)).job.state == "waiting_external"
    other = canonical_parked("1 hour")
    found = operations.load_job(other, plane="canonical").job.callback_id
    assert found is not None
    assert operations.find_callback(found).plane == "canonical"
    operations.cancel(job_id)
    for missing in (token, uuid.uuid4(), "no uuid", "", None):
        with pytest.raises(CallbackNotFound, match="no job waits for callback"):
            operations.find_callback(missing)  # type: ignore[arg-type]


# Rows of other clients


def test_jobs_that_cannot_be_read_or_are_of_another_shape_break_no_page() -> None:
    in_state("failed", kind="odd")
    in_state("dead", kind="odd")
    in_state("retryable", kind="odd")
    (attempt,) = [attempt for attempt in (added(kind="odd"),) for attempt in claimed()]
    ended(attempt, Terminal("x"))
    parked(timedelta(hours=1), kind="odd")
    number = "('1' || repeat('0', 400) || '.5')::jsonb"
    for table in ("ready_entries", "deferred_jobs", "dlq_entries"):
        stored.run(f"UPDATE awa.{table} SET args = {number}")
    for table in ("done_entries", "deferred_jobs", "dlq_entries"):
        stored.run(f'UPDATE awa.{table} SET payload = payload || \'{{"metadata": [1], "tags": 7}}\'')
    stored.run("UPDATE awa.ready_entries SET payload = '[1]'")
    assert len(operations.recent_failures()) == 4
    assert {record.is_unreadable for record in operations.recent_failures()} == {True}
    assert kinds()["odd"].failed == 3
    assert total(operations.activity(5).minutes, "failed") == 3
    assert len(waiting()) == 1
    assert operations.known_kinds() == ["odd"]


def test_a_description_that_is_written_almost_never_is_not_stale() -> None:
    for table, key in (("job_kind_descriptors", "kind"), ("queue_descriptors", "queue")):
        stored.run(
            f"""
            INSERT INTO awa.{table} ({key}, descriptor_hash, sync_interval_ms, last_seen_at)
            VALUES ('rare', 'h', 9000000000000000000, now() - interval '1 year')
            """
        )
    (kind,) = [found for found in operations.kind_overview() if found.kind == "rare"]
    (queue_,) = [found for found in operations.queue_overview() if found.queue == "rare"]
    assert kind.descriptor is not None
    assert queue_.descriptor is not None
    assert (kind.descriptor.stale, queue_.descriptor.stale) == (False, False)
