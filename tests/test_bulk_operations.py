"""Changes of many jobs that only we know: submitted through the public functions, made by a runner of any worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import connection
from psycopg.pq import TransactionStatus

from awa_django import operations, telemetry
from awa_django.conf import Settings
from awa_django.db import connect
from awa_django.enqueue import enqueue_many
from awa_django.errors import ConfigurationError, InvalidJob, WrongState
from awa_django.jobs import Attempt, JobInsert
from awa_django.maintenance import bulk
from awa_django.maintenance.bulk import RUNNER_KEY, BulkRunner, has_work
from awa_django.models import BulkOperation
from awa_django.operations import (
    BatchOperation,
    BatchState,
    Cancel,
    DeadLetterBatch,
    Discard,
    JobFilter,
    Purge,
    Redrive,
    Retry,
    RunNow,
    SetPriority,
)
from awa_django.operations.batch import BULK_CHANNEL, Walk, has_bulk_table, walk
from awa_django.operations.desk import desk
from awa_django.operations.leading import LEADER_KEY
from awa_django.outcomes import Failed, Terminal
from awa_django.sql import statement
from awa_django.states import JobState
from awa_django.worker.bulk import Bulk
from awa_django.worker.instance import Instance, Numbers, Reporter
from tests import databases, stored
from tests.maintenance.test_cost import nodes
from tests.settings import SERVER_URL
from tests.test_operations import added, claimed, ended, in_state, state_of
from tests.test_operator_reads import canonical
from tests.workers import wait_until, worker

pytestmark = pytest.mark.django_db(transaction=True)

LATER = datetime(2999, 1, 1, tzinfo=UTC)
TABLES = {"lane": "ready_", "deferred": "deferred", "done": "done_", "dead": "dlq_"}
#: A unique key is held in all states but the last ones.
ALIVE = "11101001"


def many(total: int, **fields: Any) -> list[int]:
    made = enqueue_many(
        [JobInsert(**{"kind": "k", "args": {}, "queue": "q", **fields}) for _ in range(total)]
    )
    return sorted(job_id for job_id in made.ids if job_id is not None)


def spread(total: int, state: str) -> list[int]:
    """Cancelled jobs or dead letters, as many as wanted, by copying one."""
    first = in_state(state)
    table = "dlq_entries" if state == "dead" else "done_entries"
    (row,) = stored.rows(f"SELECT to_jsonb(job) AS body FROM awa.{table} AS job WHERE job_id = %s", first)
    stored.run(
        f"""
        INSERT INTO awa.{table}
        SELECT (jsonb_populate_record(NULL::awa.{table}, %s::jsonb || new.body)).*
        FROM (SELECT nextval('awa.job_id_seq') AS id FROM generate_series(2, %s)) AS more,
            jsonb_build_object('job_id', id, 'lane_seq', -id) AS new (body)
        """,
        row["body"] if isinstance(row["body"], str) else json.dumps(row["body"]),
        total,
    )
    return [row["job_id"] for row in stored.rows(f"SELECT job_id FROM awa.{table} ORDER BY job_id")]


@pytest.fixture(scope="module")
def session(django_db_setup: None, django_db_blocker: Any) -> Iterator[psycopg.Connection[Any]]:
    """One for all tests here, since its statements take longer to plan than to run."""
    with django_db_blocker.unblock(), connect("default", application_name="runner") as opened:
        yield opened


def in_chunks_of(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they take."""
    for name in ("FIRST_CHUNK", "LARGEST_CHUNK"):
        monkeypatch.setattr(bulk, name, size)
    monkeypatch.setattr(bulk, "CHUNK_SECONDS", 1000)


def runner(session: psycopg.Connection[Any], **options: Any) -> BulkRunner:
    return BulkRunner(session, Settings(), pause=lambda seconds: None, **options)


def finish(session: psycopg.Connection[Any], operation: BatchOperation) -> BatchOperation:
    assert runner(session).run() is True
    return operations.batch_operation(operation.id)


def counts(operation: BatchOperation) -> tuple[str, int | None, int, int, int]:
    return (
        operation.state.value,
        operation.total_matched,
        operation.processed,
        operation.skipped,
        operation.errored,
    )


def states(job_ids: list[int]) -> set[str]:
    found = operations.list_jobs(JobFilter(ids=job_ids), limit=1000).jobs
    assert len(found) == len(job_ids)
    return {"dead" if record.dead_letter else record.job.state.value for record in found}


# What is done to which jobs


@pytest.mark.parametrize(
    ("change", "from_states", "result"),
    [
        (Retry(), {"failed", "cancelled", "waiting_external"}, "available"),
        (Cancel(), {"scheduled", "available", "retryable", "running", "waiting_external"}, "cancelled"),
        (RunNow(), {"scheduled", "retryable"}, "available"),
        (Discard(), {"failed", "dead"}, "gone"),
        (DeadLetterBatch("by hand"), {"failed"}, "dead"),
        (Redrive(), {"dead"}, "available"),
        (Redrive(run_at=LATER), {"dead"}, "scheduled"),
        (Purge(), {"dead"}, "gone"),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "__slots__") else None,
)
def test_a_change_is_made_to_jobs_in_its_states_and_no_others(
    session: psycopg.Connection[Any], change: Any, from_states: set[str], result: str
) -> None:
    ids = {state: in_state(state) for state in [*(state.value for state in JobState), "dead"]}
    elsewhere = [in_state(state, queue="other") for state in sorted(from_states)]
    before = {job_id: state_of(job_id) for job_id in elsewhere}
    preview = operations.preview_batch(change, JobFilter(queue="q"))
    assert preview == (len(from_states), sorted(ids[state] for state in from_states), True)
    done = finish(session, operations.submit_batch(change, JobFilter(queue="q"), submitted_by="ann"))
    assert counts(done) == ("completed", len(from_states), len(from_states), 0, 0)
    for state, job_id in ids.items():
        if state in from_states and result == "gone":
            with pytest.raises(LookupError):
                operations.load_job(job_id)
        else:
            assert state_of(job_id) == (result if state in from_states else state)
    assert {job_id: state_of(job_id) for job_id in elsewhere} == before


@pytest.mark.parametrize(
    ("change", "from_states", "result"),
    [
        (Retry(), {"failed", "cancelled", "waiting_external"}, "available"),
        (Cancel(), {"scheduled", "available", "retryable", "running", "waiting_external"}, "cancelled"),
        (RunNow(), {"scheduled", "retryable"}, "available"),
        (Discard(), {"failed"}, "gone"),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "__slots__") else None,
)
@pytest.mark.parametrize("moving", [False, True], ids=["canonical", "on the move"])
def test_jobs_of_the_canonical_tables_are_changed_too(
    session: psycopg.Connection[Any], change: Any, from_states: set[str], result: str, moving: bool
) -> None:
    ids = {state.value: canonical(state.value) for state in JobState}
    ours = in_state("cancelled") if moving else None
    if not moving:
        stored.use_canonical()
    try:
        done = finish(session, operations.submit_batch(change, JobFilter(kind="k"), submitted_by="ann"))
        also = 1 if moving and isinstance(change, Retry) else 0
        assert counts(done) == ("completed", len(from_states) + also, len(from_states) + also, 0, 0)
        for state, job_id in ids.items():
            rows = stored.rows(
                "SELECT state::text FROM awa.jobs_hot WHERE id = %s"
                " UNION ALL SELECT state::text FROM awa.scheduled_jobs WHERE id = %s", job_id, job_id,
            )  # fmt: skip
            after = [row["state"] for row in rows]
            assert after == ([] if result == "gone" and state in from_states else
                             [result if state in from_states else state])  # fmt: skip
        if ours is not None:
            assert state_of(ours) == ("available" if also else "cancelled")
    finally:
        stored.use_canonical()


def test_dead_letters_are_no_business_of_the_canonical_tables(session: psycopg.Connection[Any]) -> None:
    job_id = canonical("failed")
    for change in (DeadLetterBatch("x"), Redrive(), Purge()):
        assert operations.preview_batch(change, JobFilter(kind="k")).total_matched == 0
        done = finish(session, operations.submit_batch(change, JobFilter(kind="k")))
        assert counts(done) == ("completed", 0, 0, 0, 0)
    assert operations.load_job(job_id).job.state == "failed"


@pytest.mark.parametrize("state", ["scheduled", "available", "running", "waiting_external", "failed", "dead"])
def test_every_member_of_a_filter_counts_in_every_place(session: psycopg.Connection[Any], state: str) -> None:
    change = Discard() if state in ("failed", "dead") else Cancel()
    meant = in_state(state, tags=("red", "round"))
    now = operations.load_job(meant).job.created_at
    match: dict[str, Any] = {
        "queue": "q",
        "kind": "k",
        "tag": "red",
        "created_from": now - timedelta(minutes=1),
        "created_before": now + timedelta(minutes=1),
    }
    for mismatch in (
        {"queue": "other"},
        {"kind": "other"},
        {"tag": "blue"},
        {"created_from": LATER},
        {"created_before": datetime(2000, 1, 1, tzinfo=UTC)},
    ):
        wrong = JobFilter(**{**match, **mismatch})
        assert operations.preview_batch(change, wrong) == (0, [], True)
        assert counts(finish(session, operations.submit_batch(change, wrong))) == ("completed", 0, 0, 0, 0)
    assert state_of(meant) == state
    assert operations.preview_batch(change, JobFilter(**match)) == (1, [meant], True)
    done = finish(session, operations.submit_batch(change, JobFilter(**match)))
    assert counts(done) == ("completed", 1, 1, 0, 0)


def test_states_and_ids_narrow_a_filter(session: psycopg.Connection[Any]) -> None:
    failed, cancelled, other = in_state("failed"), in_state("cancelled"), in_state("cancelled")
    dead = in_state("dead")
    done = finish(
        session,
        operations.submit_batch(Retry(), JobFilter(states=["cancelled", "running"], ids=[failed, cancelled])),
    )
    assert (counts(done)[1:], state_of(failed), state_of(cancelled)) == ((1, 1, 0, 0), "failed", "available")
    assert state_of(other) == "cancelled"
    assert done.description == "retry jobs, state=cancelled or running, 2 ids"
    done = finish(session, operations.submit_batch(Discard(), JobFilter(ids=[failed, dead, other, 10**18])))
    assert counts(done)[1:] == (2, 2, 0, 0)


def test_jobs_that_come_after_the_beginning_are_not_meant(session: psycopg.Connection[Any]) -> None:
    early, late = many(30), []

    def pause(seconds: float) -> None:
        if not late:
            late.extend(many(5))

    operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    assert BulkRunner(session, Settings(), pause=pause).run()
    assert counts(operations.batch_operation(operation.id)) == ("completed", 30, 30, 0, 0)
    assert (states(early), states(late)) == ({"cancelled"}, {"available"})


@pytest.mark.parametrize("state", ["failed", "waiting_external"])
def test_a_job_that_fails_again_meanwhile_is_not_retried_twice(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    in_chunks_of(1, monkeypatch)
    ids = sorted(in_state(state) for _ in range(4))

    def fail_again(seconds: float) -> None:
        for attempt in claimed():
            ended(attempt, Terminal("again"))

    operation = operations.submit_batch(Retry(), JobFilter(queue="q"))
    assert BulkRunner(session, Settings(), pause=fail_again).run()
    assert counts(operations.batch_operation(operation.id)) == ("completed", 4, 4, 0, 0)
    assert {operations.load_job(job_id).job.run_lease for job_id in ids} == {2}


@pytest.mark.parametrize("change", [Discard(), Retry()], ids=["discard", "retry"])
def test_jobs_that_end_after_the_beginning_are_not_meant(
    session: psycopg.Connection[Any], change: Any
) -> None:
    """Whoever submitted it has not seen them."""
    early = [in_state("failed"), canonical("failed")]
    early.append(in_state("dead" if isinstance(change, Discard) else "cancelled"))
    late, also = many(3), canonical("running")
    running = claimed(limit=3)
    operation = operations.submit_batch(change, JobFilter(kind="k"))

    def end(taken: list[Attempt]) -> bool:
        if taken and operations.batch_operation(operation.id).state == "scanning":
            ended(taken.pop(), Terminal("late"))
            ended(taken.pop(), Terminal("late"), dead_letters=True)
            operations.cancel(taken.pop().job_id)
            stored.run(
                "UPDATE awa.jobs_hot SET state = 'failed', finalized_at = clock_timestamp() WHERE id = %s",
                also,
            )
        return False

    assert runner(session, stopping=lambda: end(running)).run()
    assert not running
    assert counts(operations.batch_operation(operation.id)) == ("completed", len(early), len(early), 0, 0)
    assert sorted(state_of(job_id) for job_id in late) == ["cancelled", "dead", "failed"]
    assert operations.load_job(also, plane="canonical").job.state == "failed"


def test_a_job_that_gets_away_in_the_first_round_is_met_in_the_second(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From running back to waiting for its time, which was looked through already."""
    (job_id,) = many(1)
    (attempt,) = claimed()
    operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    whole = Walk.look

    def look(self: Walk, at: Any) -> Any:
        if self.place == "open" and operations.batch_operation(operation.id).state == "running":
            monkeypatch.setattr(Walk, "look", whole)
            ended(attempt, Failed("again"))
        return whole(self, at)

    monkeypatch.setattr(Walk, "look", look)
    assert counts(finish(session, operation)) == ("completed", 1, 1, 0, 0)
    assert state_of(job_id) == "cancelled"


def test_all_lanes_of_a_queue_are_looked_through(session: psycopg.Connection[Any]) -> None:
    stored.use_shards("q", 3)
    ids = [job_id for priority in (1, 2, 4) for job_id in many(20, priority=priority)]
    others = many(5, queue="p") + many(5, queue="r")
    done = finish(session, operations.submit_batch(Cancel(), JobFilter(queue="q")))
    assert counts(done) == ("completed", 60, 60, 0, 0)
    assert (states(ids), states(others)) == ({"cancelled"}, {"available"})


@pytest.mark.parametrize("state", ["scheduled", "available", "failed", "cancelled", "dead"])
def test_places_are_looked_through_in_stretches(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    for name, value in (("SCAN", 7), ("LOAD", 3), ("FEW_FAILURES", 5)):
        monkeypatch.setattr(walk, name, value)
    ids = [in_state(state, tags=("red",)) for _ in range(16)]
    change = Cancel() if state in ("scheduled", "available") else Retry() if state != "dead" else Redrive()
    others = [in_state(state) for _ in range(5)]
    chosen = JobFilter(queue="q", tag="red")
    assert operations.preview_batch(change, chosen) == (16, sorted(ids)[:10], True)
    done = finish(session, operations.submit_batch(change, chosen))
    assert counts(done) == ("completed", 16, 16, 0, 0)
    assert states(others) == {state}


def test_a_running_job_that_is_cancelled_is_told(session: psycopg.Connection[Any]) -> None:
    job_id = in_state("running")
    with connect("default", application_name="worker") as worker:
        worker.execute('LISTEN "awa:cancel"')
        finish(session, operations.submit_batch(Cancel(), JobFilter(queue="q")))
        (notice,) = worker.notifies(timeout=10, stop_after=1)
    assert notice.payload == f'{{"job_id":{job_id},"run_lease":1}}'


def test_nothing_is_left_in_the_lane_of_jobs_that_were_cancelled_from_its_end(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody claims from it, so nobody else moves the cursor, by which the figures of pages go."""
    in_chunks_of(7, monkeypatch)
    many(20)
    finish(session, operations.submit_batch(Cancel(), JobFilter(queue="q")))
    assert operations.state_counts(exact=False).available == 0
    kept = many(1)
    assert operations.state_counts(exact=False).available == 1
    finish(session, operations.submit_batch(Cancel(), JobFilter(queue="other")))
    assert [attempt.job_id for attempt in claimed(limit=5)] == kept


@pytest.mark.parametrize("place", ["lane", "deferred", "done", "dead"])
def test_a_look_reads_no_more_than_its_stretch(session: psycopg.Connection[Any], place: str) -> None:
    """However much there is; a place that had to be sorted would be read whole for every stretch."""
    state = {"lane": "available", "deferred": "scheduled", "done": "cancelled", "dead": "dead"}[place]
    if place == "lane":
        ids = many(400)
    elif place == "deferred":
        ids = many(400, run_at=LATER)
    else:
        ids = spread(400, state)
    values = dict.fromkeys(("kind", "queue", "tag", "created_from", "created_before", "ended_by"))
    values |= {"states": ["scheduled", "cancelled"], "scan": 50, "until": ids[-1]}
    values |= {"lane_queue": "q", "priority": 2, "shard": 0, "below": 300 if place == "lane" else ids[300]}
    explain = "EXPLAIN (ANALYZE, FORMAT JSON) " + statement("queue_storage/walk", place)
    with session.transaction(force_rollback=True):
        # So few rows would not be worth an index that gives their order, the less if an autovacuum has met fewer.
        for way in ("seqscan", "bitmapscan", "sort"):
            session.execute(f"SET LOCAL enable_{way} = off")
        row = session.execute(explain, values, prepare=True).fetchone()
    assert row is not None
    scans = [node for node in nodes(row[0][0]["Plan"]) if node.get("Alias", "").startswith(TABLES[place])]
    read = sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans)
    assert read == 50, [(node["Node Type"], node["Actual Rows"]) for node in scans]


# What does not go through


def test_conflicts_are_skipped_counted_and_named(session: psycopg.Connection[Any]) -> None:
    keys = [bytes([n]) * 16 for n in range(3)]
    failed = [in_state("failed", unique_key=key, unique_states=ALIVE) for key in keys]
    holder = added(unique_key=keys[1], unique_states=ALIVE)
    operation = operations.submit_batch(Retry(), JobFilter(queue="q"))
    done = finish(session, operation)
    assert counts(done) == ("completed", 3, 2, 1, 0)
    assert done.skip_reasons == {"unique_conflict": 1}
    problems = operations.batch_problems(operation.id)
    assert problems.sentences == ["1 job: another job holds their unique key"]
    assert problems.jobs == [(failed[1], "unique_conflict", f"job {holder} holds its unique key")]
    assert [state_of(job_id) for job_id in failed] == ["available", "failed", "available"]


def test_a_job_that_cannot_be_changed_does_not_fail_the_others(session: psycopg.Connection[Any]) -> None:
    ids = [in_state("failed") for _ in range(5)]
    operation = operations.submit_batch(Retry(), JobFilter(queue="q"))
    # Something about one job that the database refuses, whatever it is.
    stored.run(
        "ALTER TABLE awa.ready_entries ADD CONSTRAINT test_refused CHECK (job_id <> "
        f"{ids[1]} OR run_lease = 0) NOT VALID"
    )
    try:
        done = finish(session, operation)
    finally:
        stored.run("ALTER TABLE awa.ready_entries DROP CONSTRAINT test_refused")
    assert counts(done) == ("completed", 5, 4, 0, 1)
    assert done.last_error is not None
    assert done.last_error.startswith(f"job_id={ids[1]}: ")
    assert "test_refused" in done.last_error
    assert "DETAIL" not in done.last_error
    (problem,) = operations.batch_problems(operation.id).jobs
    assert (problem.job_id, problem.reason) == (ids[1], "error")
    assert operations.batch_problems(operation.id, limit=0).jobs == []
    assert [state_of(job_id) for job_id in ids] == ["available", "failed", *["available"] * 3]


def test_a_job_that_somebody_else_keeps_locked_is_left_alone(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "LOCK_TIMEOUT", 30)
    ids = [canonical("available") for _ in range(4)]
    operation = operations.submit_batch(Cancel(), JobFilter(kind="k"))
    with connect("default", application_name="slow") as slow, slow.transaction():
        slow.execute("SELECT FROM awa.jobs_hot WHERE id = %s FOR UPDATE", [ids[2]])
        done = finish(session, operation)
    assert counts(done) == ("completed", 4, 3, 0, 1)
    (problem,) = operations.batch_problems(operation.id).jobs
    assert problem.job_id == ids[2]
    assert "somebody else holds it" in problem.text


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("change_chosen", psycopg.errors.DeadlockDetected),
        ("change_chosen", psycopg.errors.QueryCanceled),
        ("pass_all_tombstones", psycopg.errors.LockNotAvailable),
    ],
)
def test_being_in_somebodys_way_for_a_moment_costs_nothing(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, part: str, error: type[Exception]
) -> None:
    whole = getattr(bulk, part)
    hindered = 0

    def once(*values: Any) -> Any:
        nonlocal hindered
        hindered += 1
        if hindered == 1:
            raise error("in the way")
        return whole(*values)

    monkeypatch.setattr(bulk, part, once)
    ids = many(12)
    done = finish(session, operations.submit_batch(Cancel(), JobFilter(queue="q")))
    assert hindered
    assert counts(done) == ("completed", 12, 12, 0, 0)
    assert states(ids) == {"cancelled"}


def test_what_moved_on_before_its_turn_counts_as_skipped(session: psycopg.Connection[Any]) -> None:
    ids = [in_state("failed") for _ in range(6)]
    operation = operations.submit_batch(Discard(), JobFilter(queue="q"))
    taken = False

    def stopping() -> bool:
        nonlocal taken
        if not taken and operations.batch_operation(operation.id).state == "running":
            taken = True
            operations.retry(ids[:2])
        return False

    assert runner(session, stopping=stopping).run()
    done = operations.batch_operation(operation.id)
    assert counts(done) == ("completed", 6, 4, 2, 0)
    assert done.skip_reasons == {"moved_on": 2}


def test_a_job_that_is_met_where_it_moved_on_to_is_counted_once(session: psycopg.Connection[Any]) -> None:
    many(4)
    operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    begun = 0

    def stopping() -> bool:
        nonlocal begun
        if operations.batch_operation(operation.id).state == "running":
            begun += 1
            if begun == 3:  # found in its lane, and not taken yet
                claimed(limit=1)
        return False

    assert runner(session, stopping=stopping).run()
    done = operations.batch_operation(operation.id)
    assert begun > 3
    assert (counts(done), done.skip_reasons) == (("completed", 4, 4, 0, 0), {})


def test_an_operation_that_breaks_again_and_again_does_not_keep_the_others_waiting(
    session: psycopg.Connection[Any],
) -> None:
    ids = many(3)
    broken = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    mark = {
        "max_job_ids": {"queue_storage": ids[-1]}, "plane": "queue_storage", "place": "lanes", "lane": ["q", 2, 0],
        "below": 10**30, "round": 1,
    }  # fmt: skip
    stored.run(
        "UPDATE awa_django_batchoperation SET state = 'running', cursor = %s::jsonb, total_matched = 3",
        json.dumps(mark),
    )
    other = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    assert counts(finish(session, other)) == ("completed", 3, 3, 0, 0)
    failed = operations.batch_operation(broken.id)
    assert counts(failed) == ("failed", 3, 0, 3, 0)
    assert "out of range" in str(failed.last_error)


# Beginning, stopping, going on


def test_an_operation_stopped_in_the_middle_accounts_for_every_job(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_chunks_of(20, monkeypatch)
    ids = many(100)
    operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    chunks = 0

    def pause(seconds: float) -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 2:
            assert operations.batch_operation(operation.id).progress == 0.4
            assert operations.cancel_batch(operation.id).state == "cancelling"
            with pytest.raises(WrongState, match="cancelling"):
                operations.cancel_batch(operation.id)

    assert BulkRunner(session, Settings(), pause=pause).run()
    done = operations.batch_operation(operation.id)
    assert counts(done) == ("cancelled", 100, 40, 60, 0)
    assert done.skip_reasons == {"stopped": 60}
    assert (states(ids[:60]), states(ids[60:])) == ({"available"}, {"cancelled"})
    assert done.retention_until is not None
    assert done.finalized_at is not None
    assert (done.retention_until - done.finalized_at).days == 90
    with pytest.raises(WrongState, match="cancelled"):
        operations.cancel_batch(operation.id)


def test_one_that_has_not_begun_is_over_as_soon_as_it_is_stopped() -> None:
    operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    over = operations.cancel_batch(operation.id)
    assert counts(over) == ("cancelled", 0, 0, 0, 0)
    assert over.finalized_at is not None


@pytest.mark.parametrize("after", [1, 2, 3, 5, 8])
def test_another_runner_goes_on_where_the_last_one_stopped(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    in_chunks_of(7, monkeypatch)
    monkeypatch.setattr(walk, "SCAN", 16)
    ids = [*many(20), *many(20, priority=1), *many(20, run_at=LATER)]
    operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    asked = 0

    def stopping() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    assert runner(session, stopping=stopping).run() is False
    half = operations.batch_operation(operation.id)
    assert not half.state.is_over
    late = many(3)
    second = runner(session)
    assert second.run()
    done = operations.batch_operation(operation.id)
    assert counts(done) == ("completed", 60, 60, 0, 0)
    assert done.runner_instance == second.runner
    assert (states(ids), states(late)) == ({"cancelled"}, {"available"})


@pytest.mark.parametrize("after", [1, 2, 4, 6])
def test_another_runner_goes_through_what_is_left_of_both_planes(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    in_chunks_of(2, monkeypatch)
    ids = many(6)
    older = [canonical("available") for _ in range(4)]
    operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    asked = 0

    def stopping() -> bool:
        nonlocal asked
        if operations.batch_operation(operation.id).state == "running":
            asked += 1
        return asked > after

    assert runner(session, stopping=stopping).run() is False
    assert counts(finish(session, operation)) == ("completed", 10, 10, 0, 0)
    for plane, wanted in (("queue_storage", ids), ("canonical", older)):
        for job_id in wanted:
            assert operations.load_job(job_id, plane=plane).job.state == "cancelled"  # type: ignore[arg-type]


def test_a_runner_whose_connection_breaks_loses_no_job_and_counts_none_twice(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_chunks_of(10, monkeypatch)
    ids = many(50)
    operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    chunks = 0

    def breaks(seconds: float) -> None:
        nonlocal chunks
        chunks += 1
        if chunks == 3:
            # Waits until it is gone: it says so before it lets go of the runners' lock.
            stored.run("SELECT pg_terminate_backend(%s, 30000)", broken.info.backend_pid)

    with connect("default", application_name="broken") as broken, pytest.raises(psycopg.OperationalError):
        BulkRunner(broken, Settings(), pause=breaks).run()
    assert operations.batch_operation(operation.id).processed == 30
    assert counts(finish(session, operation)) == ("completed", 50, 50, 0, 0)
    assert states(ids) == {"cancelled"}


def test_of_two_runners_one_works_and_the_other_leaves_it_alone(session: psycopg.Connection[Any]) -> None:
    many(5)
    operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    with connect("default", application_name="other") as other:
        other.execute("SELECT pg_advisory_lock(%s)", [RUNNER_KEY])
        assert runner(session).run() is False
        assert operations.batch_operation(operation.id).state == "pending"
        other.execute("SELECT pg_advisory_unlock(%s)", [RUNNER_KEY])
    assert counts(finish(session, operation)) == ("completed", 5, 5, 0, 0)


def test_runners_that_race_change_every_job_once(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_chunks_of(10, monkeypatch)
    ids = many(300)
    operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    ran: list[bool] = []

    def compete() -> None:
        with connect("default", application_name="rival") as rival:
            # One that stops and comes again, so that the lock changes hands.
            asked = iter(range(1000))
            while not BulkRunner(
                rival, Settings(), pause=lambda s: None, stopping=lambda: next(asked) % 12 == 11
            ).run():
                if operations.batch_operation(operation.id).state.is_over:
                    break
            ran.append(True)
        connection.close()

    rivals = [threading.Thread(target=compete) for _ in range(3)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join(60)
    assert len(ran) == 3
    done = operations.batch_operation(operation.id)
    assert counts(done) == ("completed", 300, 300, 0, 0)
    assert states(ids[::29]) == {"cancelled"}
    assert stored.rows("SELECT count(*) AS n FROM awa.done_entries")[0]["n"] == 300


def test_an_operation_that_makes_no_sense_fails_and_lets_the_next_one_run(
    session: psycopg.Connection[Any],
) -> None:
    many(2)
    bad = [
        operations.submit_batch(Cancel(), JobFilter(queue="q")),
        operations.submit_batch(Cancel(), JobFilter(queue="q")),
        operations.submit_batch(Cancel(), JobFilter(queue="q")),
    ]
    good = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    table = BulkOperation._meta.db_table
    stored.run(f'UPDATE {table} SET filter = \'{{"colour": "red"}}\' WHERE id = %s', bad[0].id)
    stored.run(f"UPDATE {table} SET op_kind = 'paint' WHERE id = %s", bad[1].id)
    stored.run(f'UPDATE {table} SET cursor = \'{{"place": "moon"}}\' WHERE id = %s', bad[2].id)
    assert counts(finish(session, good)) == ("completed", 2, 2, 0, 0)
    failed = [operations.batch_operation(operation.id) for operation in bad]
    assert [operation.state for operation in failed] == [BatchState.FAILED] * 3
    for operation, word in zip(failed, ("colour", "paint", "cursor"), strict=True):
        assert word in (operation.last_error or "")
    assert failed[1].description == "paint"


# The list


def test_both_tables_are_one_list_newest_first(session: psycopg.Connection[Any]) -> None:
    many(1)
    changes = [Cancel(), SetPriority(4), Retry(), SetPriority(1)]
    submitted = [operations.submit_batch(change, JobFilter(queue="q")) for change in changes]
    assert [operation.id for operation in operations.batch_operations()] == [
        operation.id for operation in reversed(submitted)
    ]
    assert [operation.is_wire for operation in submitted] == [False, True, False, True]
    assert [operation.description for operation in submitted[:2]] == [
        "cancel jobs, queue=q",
        "give jobs priority 4, queue=q",
    ]
    assert [operation.id for operation in operations.batch_operations(limit=2)] == [
        submitted[3].id,
        submitted[2].id,
    ]
    assert len(operations.batch_operations("pending")) == 4
    assert BulkOperation.objects.count() == 2
    finish(session, submitted[0])
    assert operations.purge_batches(LATER) == 2
    assert {operation.op_kind for operation in operations.batch_operations()} == {"set_priority"}
    assert operations.batch_problems(submitted[1].id) == operations.BatchProblems({}, [])


def test_operations_past_their_time_are_forgotten(session: psycopg.Connection[Any]) -> None:
    operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
    finish(session, operation)
    with session.cursor() as cursor:
        assert not has_work(cursor)
        stored.run(f"UPDATE {BulkOperation._meta.db_table} SET retention_until = now() - interval '1 s'")
        assert has_work(cursor)
        assert runner(session).run()
        assert not has_work(cursor)
    assert operations.batch_operations() == []


def test_work_is_seen_when_nobody_is_at_it(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "SILENCE_SECONDS", 60)
    operations.submit_batch(Cancel(), JobFilter(queue="q"))
    with session.cursor() as cursor:
        assert not has_work(cursor)  # whoever was told of it has a moment
        stored.run(f"UPDATE {BulkOperation._meta.db_table} SET updated_at = now() - interval '61 s'")
        assert has_work(cursor)


@pytest.mark.parametrize(
    ("change", "filter", "words"),
    [
        (Cancel(), JobFilter(state="completed"), "filter.state.*scheduled"),
        (Retry(), JobFilter(states=["available", "scheduled"]), "filter.states.*failed"),
        (Purge(), JobFilter(state="cancelled"), "dead letters are failed"),
        (Cancel(), JobFilter(states=["available", "wating"]), "wating"),
        (Cancel(), JobFilter(ids=[]), "empty list"),
        (Cancel(), JobFilter(ids=range(10_001)), "10001 ids are too many"),
        (Cancel(), {"queue": "q", "colour": "red"}, "colour"),
        (Cancel(), JobFilter(queue=7), "text is needed"),  # type: ignore[arg-type]
    ],
)
def test_a_filter_that_would_not_mean_what_it_says_is_refused(change: Any, filter: Any, words: str) -> None:
    for function in (operations.submit_batch, operations.preview_batch):
        with pytest.raises(InvalidJob, match=words):
            function(change, filter)
    assert operations.batch_operations() == []


def test_all_jobs_are_meant_only_if_that_is_said() -> None:
    with pytest.raises(ValueError, match="allow_all"):
        operations.submit_batch(Purge(), JobFilter())
    with pytest.raises(ValueError, match="allow_all"):
        operations.preview_batch(Purge(), {})
    operation = operations.submit_batch(Purge(), JobFilter(), allow_all=True)
    assert operation.description == "purge dead letters, all"


def test_a_change_is_stored_and_read_back() -> None:
    change = Redrive(run_at=LATER, priority=1, queue="slow")
    operation = operations.submit_batch(change, JobFilter(kind="k"))
    assert operation.change == change
    assert operation.description == (
        "redrive dead letters to queue slow with priority 1 at 2999-01-01 00:00:00 UTC, kind=k"
    )
    for refused in (lambda: Redrive(priority=9), lambda: Redrive(queue="q" * 60)):
        with pytest.raises(InvalidJob):
            refused()
    with pytest.raises(ValueError, match="reason"):
        DeadLetterBatch("")
    with pytest.raises(TypeError, match="SetPriority"):
        operations.submit_batch("cancel", JobFilter(queue="q"))  # type: ignore[arg-type]


def test_a_preview_of_too_many_says_that_it_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from awa_django.operations.batch import requests

    many(30)
    monkeypatch.setattr(walk, "SCAN", 10)
    monkeypatch.setattr(requests, "PREVIEW_SECONDS", 0)
    monkeypatch.setattr(requests, "PREVIEW_LOOKS", 4)
    preview = operations.preview_batch(Cancel(), JobFilter(queue="q"))
    assert not preview.is_exact
    assert 0 < preview.total_matched < 30


@contextmanager
def _unmigrated() -> Iterator[None]:
    stored.run("ALTER TABLE awa_django_batchoperation RENAME TO elsewhere")
    try:
        yield
    finally:
        stored.run("ALTER TABLE elsewhere RENAME TO awa_django_batchoperation")


def test_before_the_migration_everything_else_works(session: psycopg.Connection[Any]) -> None:
    wire = operations.submit_batch(SetPriority(1), JobFilter(queue="q"))
    with _unmigrated():
        with desk() as at:
            assert not has_bulk_table(at.cursor)
        assert [operation.id for operation in operations.batch_operations()] == [wire.id]
        assert operations.cancel_batch(wire.id).state == "cancelling"
        with pytest.raises(ConfigurationError, match="migrate"):
            operations.submit_batch(Cancel(), JobFilter(queue="q"))
        with session.cursor() as cursor:
            assert has_work(cursor) is False
        assert runner(session).run() is True


def test_dead_letters_are_counted_as_by_the_verbs_themselves(
    session: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Any, ...]] = []

    def teller(name: str) -> Callable[..., None]:
        return lambda *values, **labels: told.append((name, *values, labels["queue"]))

    measuring = SimpleNamespace(
        metering=True,
        duty=nullcontext,
        **{name: teller(name) for name in ("dlq_moved", "dlq_retried", "dlq_purged")},
    )
    for state, change in (("failed", DeadLetterBatch("why")), ("dead", Redrive()), ("dead", Purge())):
        operation = operations.submit_batch(change, JobFilter(ids=[in_state(state)]))
        with monkeypatch.context() as patch:
            patch.setattr(telemetry, "current", lambda: measuring)
            assert runner(session).run()
        assert operations.batch_operation(operation.id).processed == 1
    assert told == [("dlq_moved", 1, "why", "q"), ("dlq_retried", 1, "q"), ("dlq_purged", 1, "q")]


# A worker


def test_a_worker_asks_within_its_own_report_whether_somebody_left_an_operation(
    session: psycopg.Connection[Any],
) -> None:
    """So that an idle worker commits no more than it did."""
    sleeper = Bulk(Settings(), lambda: False, connection=lambda: session)
    seen = []

    def beside(cursor: Any) -> None:
        seen.append(cursor.connection.info.transaction_status)
        sleeper.look(cursor)

    reporter = Reporter(Instance(Settings(), []), Numbers, beside=beside)
    reporter._report(session, Numbers())
    assert not sleeper._told.is_set()
    operations.submit_batch(Cancel(), JobFilter(queue="q"))
    stored.run(f"UPDATE {BulkOperation._meta.db_table} SET updated_at = now() - interval '6 s'")
    reporter._report(session, Numbers())
    assert sleeper._told.is_set()
    assert seen == [TransactionStatus.INTRANS] * 2


def test_a_runner_that_is_to_stop_tells_the_others(session: psycopg.Connection[Any]) -> None:
    many(3)
    with connect("default", application_name="other") as other:
        other.execute(f"LISTEN {BULK_CHANNEL}")
        operation = operations.submit_batch(Cancel(), JobFilter(queue="q"))
        assert len(list(other.notifies(timeout=10, stop_after=1))) == 1
        answers = iter([False, False, False, False])
        assert runner(session, stopping=lambda: next(answers, True)).run() is False
        assert not operations.batch_operation(operation.id).state.is_over
        assert len(list(other.notifies(timeout=10, stop_after=1))) == 1


@pytest.mark.worker
def test_a_worker_that_does_not_lead_begins_when_it_is_told_and_another_goes_on_when_it_is_killed() -> None:
    """The leader may be of another kind. The second half of the jobs waits for one that a transaction keeps locked."""
    url = databases.address(SERVER_URL, str(connection.settings_dict["NAME"]))
    ids = many(200)
    slow = [canonical("available") for _ in range(20)]
    # Only a notification can be what they begin at.
    quiet: dict[str, Any] = {"SNAPSHOT_INTERVAL": 60}
    with connect("default", application_name="rust leader") as leader:
        leader.execute("SELECT pg_advisory_lock(%s)", [LEADER_KEY])
        with worker(url, "--maintenance-only", **quiet) as first, leader.transaction():
            first.wait_started()
            leader.execute("SELECT FROM awa.jobs_hot WHERE id = %s FOR UPDATE", [slow[9]])
            wait_until(lambda: stored.rows(
                "SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%%'"
            ))  # fmt: skip
            operation = operations.submit_batch(Cancel(), JobFilter(kind="k"), submitted_by="ann")
            wait_until(lambda: operations.batch_operation(operation.id).processed >= 200, seconds=60)
            first.kill()  # before it gives up waiting for the lock
            half = operations.batch_operation(operation.id)
            assert half.started_at is not None
            assert half.started_at - half.submitted_at < timedelta(seconds=20)
            assert not half.state.is_over
        # The server may take a moment to notice; the next one looks when it starts, and then not for a minute.
        wait_until(lambda: not stored.rows(
            "SELECT FROM pg_locks WHERE locktype = 'advisory' AND (classid::bigint << 32) + objid::bigint = %s"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())", RUNNER_KEY,
        ))  # fmt: skip
        with worker(url, "--maintenance-only", **quiet):
            wait_until(lambda: operations.batch_operation(operation.id).state.is_over, seconds=60)
    done = operations.batch_operation(operation.id)
    assert counts(done) == ("completed", 220, 220, 0, 0)
    assert done.runner_instance != half.runner_instance
    assert states(ids) == {"cancelled"}
    assert stored.rows("SELECT count(*) AS n FROM awa.jobs_hot WHERE state = 'cancelled'")[0]["n"] == 20
