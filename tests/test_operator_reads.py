"""What operators see: one job, pages of many, counts, and the overview of queues."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from awa_django import operations
from awa_django.db import job_cursor
from awa_django.enqueue import enqueue_many
from awa_django.jobs import JobInsert
from awa_django.operations import JobFilter, Position
from awa_django.outcomes import Terminal
from awa_django.planes.canonical import CanonicalPlane
from awa_django.sql import statement
from awa_django.states import JobState
from tests import stored
from tests.maintenance.test_cost import nodes
from tests.test_operations import STATES, added, claimed, ended, in_state

pytestmark = pytest.mark.django_db


def canonical(state: str = "available", **fields: object) -> int:
    """A job of the canonical tables, whatever takes new ones."""
    table = "scheduled_jobs" if state in ("scheduled", "retryable") else "jobs_hot"
    values = {"kind": "k", "queue": "q", "state": state, **fields}
    names, places = ", ".join(values), ", ".join(["%s"] * len(values))
    (row,) = stored.rows(
        f"INSERT INTO awa.{table} ({names}) VALUES ({places}) RETURNING id", *values.values()
    )
    return int(row["id"])


def listed(filter: JobFilter | None = None, **options: object) -> list[tuple[int, str]]:
    page = operations.list_jobs(filter, **options)  # type: ignore[arg-type]
    return [(record.job.id, "dead" if record.dead_letter else record.job.state.value) for record in page.jobs]


def test_every_job_is_listed_once_in_the_state_it_is_in_newest_first() -> None:
    ids = {in_state(state): state for state in STATES}
    assert listed() == sorted(ids.items(), reverse=True)


@pytest.mark.parametrize("state", ["completed", "failed", "running", "retryable", "dead"])
def test_a_job_that_ran_says_when_it_started(state: str) -> None:
    record = operations.load_job(in_state(state))
    assert record.started_at is not None
    assert record.job.created_at <= record.started_at <= (record.job.finalized_at or record.started_at)
    assert operations.load_job(in_state("available")).started_at is None


@pytest.mark.parametrize("state", [state.value for state in JobState])
def test_a_list_of_one_state_has_those_jobs_and_no_others(state: str) -> None:
    ids = {in_state(each): each for each in STATES for _ in range(2)}
    wanted = [
        (job_id, found)
        for job_id, found in sorted(ids.items(), reverse=True)
        if found == state or (found, state) == ("dead", "failed")
    ]
    assert listed(JobFilter(state=state)) == wanted
    assert listed(JobFilter(state=state, queue="other")) == []
    assert listed(JobFilter(states=[state], kind="k", queue="q")) == wanted


def test_a_state_that_there_is_not_matches_nothing() -> None:
    in_state("available")
    assert listed(JobFilter(state="nonsense")) == []


def test_jobs_are_chosen_by_kind_queue_tag_id_and_time() -> None:
    red = in_state("completed", tags=("red", "round"))
    blue = in_state("available", tags=("blue",), kind="other")
    failed = in_state("failed", tags=("red",), queue="elsewhere")
    assert listed(JobFilter(tag="red")) == [(failed, "failed"), (red, "completed")]
    assert listed(JobFilter(kind="other")) == [(blue, "available")]
    assert listed(JobFilter(queue="elsewhere", tag="red")) == [(failed, "failed")]
    assert listed(JobFilter(ids=[red, 2**40])) == [(red, "completed")]
    created = operations.load_job(blue).job.created_at
    assert listed(JobFilter(created_from=created, kind="other")) == [(blue, "available")]
    assert listed(JobFilter(created_before=created, kind="other")) == []


def test_pages_follow_each_other_without_gap_or_repetition() -> None:
    ids = [in_state(STATES[number % len(STATES)]) for number in range(23)]
    seen: list[int] = []
    after: Position | None = None
    while True:
        page = operations.list_jobs(after=after, limit=5)
        seen += [record.job.id for record in page.jobs]
        if page.next is None:
            break
        after = page.next
    assert seen == sorted(ids, reverse=True)
    assert listed(limit=0) == []
    assert listed(after=ids[3]) == [(job_id, state) for job_id, state in listed() if job_id < ids[3]]


def test_a_search_in_which_little_is_found_is_broken_off_and_can_be_gone_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("awa_django.operations.reading._WALK", 300)
    monkeypatch.setattr("awa_django.operations.reading._WALKS", 1)
    needle = added(tags=("needle",))
    enqueue_many([JobInsert("k", {}, "q") for _ in range(900)])
    pages = 0
    after: Position | None = None
    found: list[int] = []
    while True:
        page = operations.list_jobs(JobFilter(states=["available", "completed"], tag="needle"), after=after)
        found += [record.job.id for record in page.jobs]
        pages += 1
        if page.next is None:
            break
        after = page.next
    assert found == [needle]
    assert 2 <= pages <= 5


def test_finished_jobs_are_found_behind_any_number_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    done = in_state("completed")
    failed = in_state("failed")
    enqueue_many([JobInsert("k", {}, "q") for _ in range(900)])
    page = operations.list_jobs(JobFilter(states=["completed", "failed"]))
    assert ([record.job.id for record in page.jobs], page.next) == ([failed, done], None)
    # The first look comes to none of them, the longer one after it does.
    monkeypatch.setattr("awa_django.operations.reading._FIRST_WALK", 10)
    page = operations.list_jobs(JobFilter(state="completed"))
    assert ([record.job.id for record in page.jobs], page.next) == ([done], None)
    monkeypatch.setattr("awa_django.operations.reading._FIRST_WALK", 300)
    monkeypatch.setattr("awa_django.operations.reading._LONG_WALK", 500)
    monkeypatch.setattr("awa_django.operations.reading._WALKS", 1)
    page = operations.list_jobs(JobFilter(state="completed"))
    assert (page.jobs, page.next is None) == ([], False)
    assert [
        record.job.id for record in operations.list_jobs(JobFilter(state="completed"), after=page.next).jobs
    ] == [done]


@pytest.mark.parametrize("queue", ["q", "few"])
def test_jobs_that_wait_are_found_in_small_lanes_and_in_large_ones(queue: str) -> None:
    many = enqueue_many([JobInsert("k", {"n": n}, "q") for n in range(12_000)])
    few = enqueue_many([JobInsert("k", {}, "few") for _ in range(3)])
    ids = sorted((job_id for job_id in (many if queue == "q" else few).ids if job_id), reverse=True)
    page = operations.list_jobs(JobFilter(state="available", queue=queue), limit=5)
    assert [record.job.id for record in page.jobs] == ids[:5]
    assert (page.next is not None) == (queue == "q")
    both = operations.list_jobs(JobFilter(state="available"), limit=5)
    assert [record.job.id for record in both.jobs][:3] == [
        record.job.id for record in operations.list_jobs(JobFilter(queue="few")).jobs
    ]


def test_ids_that_both_planes_have_are_two_jobs() -> None:
    ids = [in_state("available") for _ in range(3)]
    twins = [canonical(id=job_id, kind="twin") for job_id in ids]
    assert twins == ids
    seen = []
    after = None
    while True:
        page = operations.list_jobs(after=after, limit=1)
        seen += [(record.job.id, record.plane) for record in page.jobs]
        if page.next is None:
            break
        after = page.next
    assert seen == [
        (job_id, plane) for job_id in sorted(ids, reverse=True) for plane in ("queue_storage", "canonical")
    ]
    assert operations.load_job(ids[0]).job.kind == "k"
    assert operations.load_job(ids[0], plane="canonical").job.kind == "twin"
    assert operations.cancel(ids[0]).count == 1
    assert operations.load_job(ids[0], plane="canonical").job.state == "available"
    assert operations.cancel(ids[0], plane="canonical").job.kind == "twin"


@pytest.mark.parametrize("state", [state.value for state in JobState])
def test_a_canonical_job_reads_as_what_it_is(state: str) -> None:
    job_id = canonical(
        state,
        args='{"a": 1}',
        metadata='{"m": 1}',
        tags=["t"],
        errors=[json.dumps({"error": "boom", "attempt": 1})],
        progress='{"percent": 5}',
        unique_key=b"k" * 16,
        unique_states="00000001",
        max_attempts=3,
        attempt=1,
        run_lease=2,
    )
    record = operations.load_job(job_id)
    job = record.job
    assert (job.state, record.plane, record.unique_states) == (state, "canonical", "00000001")
    assert (job.args, job.metadata, job.tags, job.progress) == ({"a": 1}, {"m": 1}, ("t",), {"percent": 5})
    assert (job.attempt, job.run_lease, job.max_attempts, job.unique_key) == (1, 2, 3, b"k" * 16)
    assert [entry["error"] for entry in job.errors] == ["boom"]
    assert listed(JobFilter(state=state)) == [(job_id, state)]
    assert listed(JobFilter(tag="t", kind="k")) == [(job_id, state)]


@pytest.mark.parametrize("state", [state.value for state in JobState])
def test_verbs_work_on_canonical_jobs_too(state: str) -> None:
    job_id = canonical(state, attempt=1, run_lease=1)
    record = operations.load_job(job_id)
    assert operations.set_priority(job_id, 1).count == record.can_move
    assert operations.move_queue(job_id, "w", priority=3).count == record.can_move
    if record.can_move:
        moved = operations.load_job(job_id).job
        assert (moved.queue, moved.priority, moved.state) == ("w", 3, state)
        assert moved.metadata == {"_awa_original_priority": 2, "_awa_original_queue": "q"}
    (skipped,) = operations.dead_letter(job_id, "x").skipped
    assert skipped.reason == ("no_dead_letters" if state == "failed" else "wrong_state")
    assert operations.retry(job_id).count == record.can_retry
    if record.can_retry:
        again = operations.load_job(job_id).job
        assert (again.state, again.attempt, again.finalized_at) == ("available", 0, None)
    could_cancel = operations.load_job(job_id).can_cancel
    assert operations.cancel(job_id).count == could_cancel


def test_discarding_a_canonical_failure_frees_its_unique_key() -> None:
    job_id = canonical("failed", unique_key=b"k" * 16, unique_states="11111111")
    assert stored.claims() == {b"k" * 16: job_id}
    assert operations.discard(kind="k").ids == [job_id]
    assert stored.claims() == {}
    assert stored.rows("SELECT id FROM awa.jobs_hot") == []


def test_a_job_that_waits_for_an_answer_shows_its_callback() -> None:
    job_id = in_state("waiting_external")
    stored.run(
        "INSERT INTO awa.attempt_state (job_id, run_lease, progress, callback_filter, callback_result) "
        "VALUES (%s, 1, '{\"percent\": 9}', 'payload.ok', '{\"ok\": true}')",
        job_id,
    )
    record = operations.load_job(job_id)
    assert record.callback is not None
    assert isinstance(record.callback.id, uuid.UUID)
    assert record.callback.filter == "payload.ok"
    assert record.job.metadata["_awa_callback_result"] == {"ok": True}
    assert record.job.progress == {"percent": 9}
    assert (record.can_retry, record.can_cancel, record.can_move) == (True, True, False)


def test_a_job_that_was_moved_or_retried_is_read_from_its_newest_place() -> None:
    """H-17."""
    job_id = added()
    operations.move_queue(job_id, "dest")
    assert operations.load_job(job_id).job.queue == "dest"
    (attempt,) = claimed("dest")
    assert operations.load_job(job_id).job.state == "running"
    ended(attempt, Terminal("gone"))
    operations.retry(job_id)
    assert operations.load_job(job_id).job.state == "available"
    assert listed() == [(job_id, "available")]


def test_a_job_whose_arguments_cannot_be_read_is_listed_and_flagged() -> None:
    job_id = added()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE awa.ready_entries SET args = ('1' || repeat('0', 400) || '.5')::jsonb WHERE job_id = %s",
            [job_id],
        )
    (record,) = operations.list_jobs().jobs
    assert record.is_unreadable
    assert not operations.load_job(added()).is_unreadable


# Counts


def counted(exact: bool) -> dict[str, int]:
    counts = operations.state_counts(exact=exact)
    return {state.value: total for state, total in counts.by_state.items()}


def test_exact_counts_tell_every_state_on_both_planes() -> None:
    for number, state in enumerate(STATES):
        for _ in range(number + 1):
            in_state(state)
    wanted = {state: number + 1 for number, state in enumerate(STATES)}
    wanted["failed"] += wanted.pop("dead")
    assert counted(exact=True) == wanted
    for state in JobState:
        canonical(state.value)
    assert counted(exact=True) == {state: total + 1 for state, total in wanted.items()}
    assert counted(exact=True) == {
        state.value: len(listed(JobFilter(state=state), limit=1000)) for state in JobState
    }
    per_queue = operations.queue_counts()
    assert set(per_queue) == {"q"}
    assert operations.queue_counts(queue="none") == {}


def test_quick_counts_agree_where_nothing_is_many_and_put_the_cancelled_among_the_completed() -> None:
    for number, state in enumerate(STATES):
        for _ in range(number + 1):
            in_state(state)
    exact, quick = counted(exact=True), counted(exact=False)
    exact["completed"] += exact.pop("cancelled")
    assert quick.pop("cancelled") == 0
    assert quick == exact


def test_what_was_cancelled_in_its_lane_or_claimed_without_a_moved_cursor_is_not_available() -> None:
    ids = [job_id for job_id in enqueue_many([JobInsert("k", {}, "q") for _ in range(10)]).ids if job_id]
    with stored.rolled_back():
        enqueue_many([JobInsert("k", {}, "q") for _ in range(5)])
    operations.cancel(ids[4:6])
    with job_cursor("default") as cursor:
        from awa_django.planes.queue_storage import QueueStoragePlane

        zero = timedelta(0)
        claimed_now = QueueStoragePlane().claim(cursor, "q", 3, deadline=zero, aging=zero).attempts
    assert len(claimed_now) == 3
    enqueue_many([JobInsert("k", {}, "q", priority=1) for _ in range(4)])
    counts = operations.queue_counts()["q"]
    assert (counts.available, counts.running, counts.cancelled) == (9, 3, 2)
    assert operations.queue_counts(exact=False)["q"].available >= 9


def test_many_deferred_jobs_are_estimated_and_not_counted() -> None:
    stored.run(
        """
        INSERT INTO awa.deferred_jobs (job_id, kind, queue, state, priority, run_at)
        SELECT n, 'k', CASE WHEN n %% 4 = 0 THEN 'a' ELSE 'b' END,
            CASE WHEN n %% 10 = 0 THEN 'retryable' ELSE 'scheduled' END::awa.job_state, 2, now()
        FROM generate_series(1, 60000) AS n
        """
    )
    stored.run("ANALYZE awa.deferred_jobs")
    counts = operations.queue_counts(exact=False)
    total = sum(each.scheduled + each.retryable for each in counts.values())
    assert 55_000 < total < 65_000
    assert counts["b"].scheduled > 2 * counts["a"].scheduled > 0
    assert operations.queue_counts()["a"].scheduled + operations.queue_counts()["a"].retryable == 15_000


def test_kinds_that_wait_are_counted_on_both_planes() -> None:
    for state in ("available", "scheduled", "retryable", "completed", "failed"):
        in_state(state)
    in_state("available", kind="other")
    canonical("available", kind="other")
    canonical("scheduled", kind="third")
    canonical("failed", kind="fourth")
    assert list(operations.waiting_kinds().items()) == [("k", 3), ("other", 2), ("third", 1)]


def test_kinds_that_wait_are_found_without_reading_history() -> None:
    for _ in range(3):
        in_state("completed")
    added(queue="a")
    added(queue="b", kind="other")
    explain = "EXPLAIN (FORMAT JSON) " + statement("queue_storage/overview", "kinds")
    with job_cursor("default") as cursor:
        cursor.execute(explain, {})
        row = cursor.fetchone()
    assert row is not None
    scans = [node for node in nodes(row[0][0]["Plan"]) if node.get("Alias", "").startswith("ready")]
    # However large the tables look, each lane is asked from its cursor on.
    assert scans
    assert all("lane_seq >= lane.cursor" in json.dumps(node) for node in scans if "Relation Name" in node), (
        scans
    )


# Queues


def test_pausing_is_recorded_and_stops_claims_until_the_queue_resumes() -> None:
    in_state("available")
    operations.pause("q", "ann")
    assert claimed() == []
    (overview,) = operations.queue_overview()
    assert (overview.paused, overview.paused_by) == (True, "ann")
    for again, by in (({}, "django"), ({"by": None}, None)):
        operations.pause("q", **again)
        (overview,) = operations.queue_overview()
        assert (overview.paused, overview.paused_by) == (True, by)
    assert operations.resume("q") is True
    assert operations.resume("q") is False
    assert operations.resume("unknown") is False
    (overview,) = operations.queue_overview()
    assert (overview.paused, overview.paused_at is None) == (False, False)
    assert len(claimed()) == 1
    with pytest.raises(ValueError, match="queue"):
        operations.pause("")
    with pytest.raises(ValueError, match="queue"):
        operations.pause("q" * 60)


def test_draining_cancels_what_nobody_runs() -> None:
    kept = [in_state("running"), in_state("completed"), in_state("available", queue="other")]
    gone = [in_state(state) for state in ("available", "scheduled", "retryable", "waiting_external")]
    gone += [canonical("available"), canonical("scheduled")]
    assert operations.drain("q") == 6
    assert operations.drain("q") == 0
    states = dict(listed(limit=1000))
    assert {states[job_id] for job_id in gone} == {"cancelled"}
    assert [states[job_id] for job_id in kept] == ["running", "completed", "available"]


def test_lanes_can_be_multiplied() -> None:
    operations.set_enqueue_shards("q", 4)
    enqueue_many([JobInsert("k", {}, "q") for _ in range(8)])
    operations.set_enqueue_shards("q", 2)
    (overview,) = operations.queue_overview()
    assert (overview.enqueue_shards, overview.counts.available) == (2, 8)
    for wrong in (0, 65, True, "2"):
        with pytest.raises(ValueError, match="shards"):
            operations.set_enqueue_shards("q", wrong)  # type: ignore[arg-type]


def test_the_overview_shows_every_queue_that_somebody_may_ask_about() -> None:
    in_state("completed")
    in_state("available")
    stored.run("UPDATE awa.ready_entries SET run_at = run_at - interval '90 seconds'")
    in_state("dead", queue="letters")
    operations.pause("paused", "ann")
    stored.run(
        """
        INSERT INTO awa.queue_descriptors (queue, display_name, tags, extra, descriptor_hash, last_seen_at)
        VALUES ('described', 'Described', '{a,b}', '{"x": 1}', 'h', now() - interval '1 day')
        """
    )
    for hash_ in ("one", "two"):
        stored.run(
            """
            INSERT INTO awa.runtime_instances (
                instance_id, pid, version, started_at, last_seen_at, snapshot_interval_ms, healthy,
                postgres_connected, poll_loop_alive, heartbeat_alive, maintenance_alive, shutting_down, leader,
                queues, queue_descriptor_hashes, job_kind_descriptor_hashes
            ) VALUES (
                %s, 1, '0.6.9', now(), now(), 10000, true, true, true, true, true, false, false,
                '[{"queue": "served", "in_flight": 0}]', jsonb_build_object('described', %s::text), '{}'
            )
            """,
            uuid.uuid4(),
            hash_,
        )
    found = {overview.queue: overview for overview in operations.queue_overview(exact=True)}
    assert list(found) == ["described", "letters", "paused", "q", "served"]
    assert (found["q"].counts.available, found["q"].completed_last_hour) == (1, 1)
    assert 85 < (found["q"].lag_seconds or 0) < 120
    assert (found["letters"].counts.dead, found["letters"].lag_seconds) == (1, None)
    assert found["paused"].paused
    assert (found["served"].served, found["q"].served) == (True, False)
    descriptor = found["described"].descriptor
    assert descriptor is not None
    assert (descriptor.display_name, descriptor.tags, descriptor.extra) == ("Described", ("a", "b"), {"x": 1})
    assert (descriptor.stale, descriptor.mismatch) == (True, True)


def test_on_a_cluster_that_was_never_promoted_only_the_canonical_tables_are_asked() -> None:
    hidden = in_state("available")
    stored.use_canonical()
    job_id = canonical("failed")
    assert listed() == [(job_id, "failed")]
    assert operations.retry([job_id, hidden]).ids == [job_id]
    assert operations.load_job(hidden, plane="queue_storage").job.id == hidden
    with pytest.raises(ValueError, match="plane"):
        operations.load_job(hidden, plane="other")  # type: ignore[arg-type]
    assert CanonicalPlane.name == "canonical"
    assert datetime.now(UTC) - operations.load_job(job_id).job.run_at < timedelta(minutes=1)


def test_a_page_is_found_by_index_however_much_is_stored() -> None:
    added()
    stored.run(
        """
        INSERT INTO awa.ready_entries (
            ready_slot, ready_generation, job_id, kind, queue, priority, lane_seq, run_at
        )
        SELECT 0, 0, 100000 + n, 'k', 'q', 2, 10 + n, now()
        FROM generate_series(1, 30000) AS n
        """
    )
    stored.run("ANALYZE awa.ready_entries")
    newest = {
        "before": 120_000, "walk": 5000, "size": 51, "kind": None, "queue": None, "tag": None,
        "created_from": None, "created_before": None, "deferred": ["scheduled"], "ready": True, "available": True,
        "held": True, "narrow": False, "done": ["failed"], "dead": True,
    }  # fmt: skip
    for file, name, values in (
        ("newest", "newest", newest), ("listing", "facts", {"job_ids": "{110000,110001}"}),
    ):  # fmt: skip
        with job_cursor("default") as cursor:
            query = statement(f"queue_storage/{file}", name)
            cursor.execute("EXPLAIN (ANALYZE, COSTS OFF) " + query, values, prepare=False)
            plan = "\n".join(row[0] for row in cursor.fetchall())
        assert "idx_awa_ready_0_job" in plan, plan
        assert "Seq Scan on ready_entries_0" not in plan, plan
