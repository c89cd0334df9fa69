"""Changes of many waiting jobs: submitted through the public functions, made by the leader's duty."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from awa_django import operations
from awa_django.conf import Settings
from awa_django.db import connect
from awa_django.enqueue import enqueue, enqueue_many
from awa_django.errors import BatchOperationNotFound, InvalidJob, WrongState
from awa_django.jobs import JobInsert
from awa_django.maintenance import Context, batch, timetable
from awa_django.maintenance.batch import BatchRunner
from awa_django.operations import BatchState, JobFilter, MoveQueue, SetPriority
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.planes.queue_storage.rings import look
from awa_django.states import JobState
from tests import stored
from tests.test_operations import claimed, in_state

pytestmark = pytest.mark.django_db(transaction=True)

LATER = datetime(2999, 1, 1, tzinfo=UTC)


def job(**fields: Any) -> JobInsert:
    return JobInsert(**{"kind": "k", "args": {}, "queue": "q", **fields})


def many(total: int, **fields: Any) -> list[int]:
    return [
        job_id for job_id in enqueue_many([job(**fields) for _ in range(total)]).ids if job_id is not None
    ]


@pytest.fixture
def leader() -> Iterator[Context]:
    with connect("default", application_name="leader") as connection:
        yield Context(connection=connection, settings=Settings())


def runner() -> BatchRunner:
    return BatchRunner(timedelta(days=90))


def finish(leader: Context, who: BatchRunner | None = None) -> int:
    """Turns until nothing is left."""
    who = who or runner()
    turns = 0
    while who.run(leader):
        turns += 1
        assert turns < 200
    return turns


def priorities() -> dict[int, int]:
    page = operations.list_jobs(limit=1000)
    return {record.job.id: record.job.priority for record in page.jobs}


@pytest.mark.parametrize("state", ["mixed_transition", "active"])
def test_an_operation_that_began_before_new_jobs_went_elsewhere_leaves_those_alone(
    leader: Context, state: str
) -> None:
    """Ids of canonical jobs are soon those of other jobs in queue storage."""
    stored.use_canonical()
    old = many(3)
    operation = operations.submit_batch(SetPriority(4), JobFilter(queue="q"))
    who = runner()
    who.run(leader)
    assert operations.batch_operation(operation.id).total_matched == 3
    stored.run("SELECT setval('awa.job_id_seq', %s, false)", old[0])
    stored.run(
        "UPDATE awa.storage_transition_state SET state = %s, entered_at = clock_timestamp(),"
        " current_engine = %s, prepared_engine = %s",
        *((state, "canonical", "queue_storage") if state == "mixed_transition" else (state, "queue_storage", None)),
    )  # fmt: skip
    assert many(3) == old
    finish(leader, who)
    done = operations.batch_operation(operation.id)
    assert (done.state, done.processed, done.skipped) == (
        ("completed", 3, 0) if state == "mixed_transition" else ("completed", 0, 3)
    )
    for job_id in old:
        assert operations.load_job(job_id).job.priority == 2
        canonical = operations.load_job(job_id, plane="canonical").job
        assert canonical.priority == (4 if state == "mixed_transition" else 2)


def test_an_operation_changes_what_can_be_changed_and_says_what_it_left(leader: Context) -> None:
    available, scheduled = many(3), many(2, run_at=LATER)
    (there,) = many(1, priority=4)
    running = in_state("running", queue="other", priority=2)
    operation = operations.submit_batch(SetPriority(4), JobFilter(kind="k"), submitted_by="ann")
    assert (operation.state, operation.submitted_by, operation.progress) == ("pending", "ann", None)
    finish(leader)
    done = operations.batch_operation(operation.id)
    assert (done.state, done.total_matched) == (BatchState.COMPLETED, 6)
    assert (done.processed, done.skipped, done.errored, done.progress) == (5, 1, 0, 1.0)
    assert done.finalized_at is not None
    assert done.retention_until is not None
    assert (done.retention_until - done.finalized_at).days == 90
    assert priorities() == dict.fromkeys([*available, *scheduled, there], 4) | {running: 2}
    for job_id in (*available, *scheduled):
        assert operations.load_job(job_id).job.metadata == {"_awa_original_priority": 2}
    assert operations.load_job(there).job.metadata == {}


def test_a_second_operation_leaves_the_stamps_of_the_first(leader: Context) -> None:
    (job_id,) = many(1)
    operations.submit_batch(MoveQueue("two", 3), JobFilter(queue="q"))
    finish(leader)
    operations.submit_batch(MoveQueue("three", 1), JobFilter(queue="two"))
    finish(leader)
    after = operations.load_job(job_id).job
    assert (after.queue, after.priority) == ("three", 1)
    assert after.metadata == {"_awa_original_queue": "q", "_awa_original_priority": 2}
    assert [attempt.job_id for attempt in claimed("three")] == [job_id]


def test_what_is_stored_is_what_every_client_reads() -> None:
    since = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    operation = operations.submit_batch(
        MoveQueue("two"), JobFilter(ids=[3, 1], created_from=since, state="available")
    )
    assert operation.spec == {"op_kind": "move_queue", "queue": "two", "priority": None}
    assert operation.filter == {
        "kind": None, "queue": None, "ids": [1, 3], "tag": None, "state": "available",
        "created_at_gte": "2026-01-02T03:04:05+00:00", "created_at_lt": None,
    }  # fmt: skip
    assert operation.op_kind == "move_queue"


def test_a_preview_counts_and_shows_the_lowest_and_writes_nothing() -> None:
    ids = many(12, tags=("red",)) + many(3, run_at=LATER, tags=("red",))
    many(2)
    preview = operations.preview_batch(SetPriority(1), JobFilter(tag="red"))
    assert preview == (15, sorted(ids)[:10], True)
    assert (
        operations.preview_batch(SetPriority(1), JobFilter(tag="red", state="scheduled")).total_matched == 3
    )
    assert operations.preview_batch(SetPriority(1), JobFilter(kind="none")) == (0, [], True)
    assert operations.batch_operations() == []


@pytest.mark.parametrize(
    ("filter", "path"),
    [
        ({"queu": "q"}, "queu"),
        (JobFilter(ids=[]), "ids"),
        ({"ids": []}, "ids"),
        (JobFilter(state=JobState.RUNNING), "state"),
        (JobFilter(state="nonsense"), "state"),
        (JobFilter(states=["available", "wating"]), "states"),
        (JobFilter(states=["running", "failed"]), "states"),
        (JobFilter(ids=[True]), "ids"),
        (JobFilter(created_from=datetime(2026, 1, 1)), "created_from"),
    ],
)
def test_a_filter_that_would_not_mean_what_it_says_is_refused(filter: Any, path: str) -> None:
    with pytest.raises(InvalidJob, match=path):
        operations.submit_batch(SetPriority(1), filter)
    with pytest.raises(InvalidJob, match=path):
        operations.preview_batch(SetPriority(1), filter)
    assert operations.batch_operations() == []


def test_changes_are_checked_before_they_are_stored() -> None:
    with pytest.raises(InvalidJob, match="priority"):
        SetPriority(9)
    with pytest.raises(InvalidJob, match="queue"):
        MoveQueue("q" * 60)
    with pytest.raises(ValueError, match="allow_all"):
        operations.submit_batch(SetPriority(1), JobFilter())
    assert operations.submit_batch(SetPriority(1), JobFilter(), allow_all=True).state == "pending"
    assert operations.submit_batch(SetPriority(1), JobFilter(state="available")).state == "pending"


def test_an_operation_cancelled_after_its_first_chunk_accounts_for_every_job(leader: Context) -> None:
    ids = many(500)
    operation = operations.submit_batch(SetPriority(1), JobFilter(queue="q"))
    who = runner()
    assert who.run(leader)  # collects
    assert operations.batch_operation(operation.id).state == "running"
    assert who.run(leader)  # the first hundred
    assert operations.cancel_batch(operation.id).state == "cancelling"
    with pytest.raises(WrongState, match="cancelling"):
        operations.cancel_batch(operation.id)
    finish(leader, who)
    done = operations.batch_operation(operation.id)
    assert (done.state, done.processed, done.skipped) == (BatchState.CANCELLED, 100, 400)
    assert [job_id for job_id, priority in sorted(priorities().items()) if priority == 1] == sorted(ids)[:100]
    with pytest.raises(WrongState, match="cancelled"):
        operations.cancel_batch(operation.id)


def test_another_leader_goes_on_where_the_last_one_stopped(
    leader: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "PAGE", 60)
    ids = many(250)
    operation = operations.submit_batch(SetPriority(1), JobFilter(queue="q"))
    pages = 0

    def stopping() -> bool:
        nonlocal pages
        pages += 1
        return pages > 2

    first = Context(leader.connection, leader.settings, stopping=stopping)
    runner().run(first)
    half = operations.batch_operation(operation.id)
    assert half.state == "scanning"
    assert half.cursor is not None
    assert half.cursor["after_job_id"] == sorted(ids)[119]
    # Jobs that come after the beginning are not meant.
    late = many(3)
    second = runner()
    second.run(leader)
    second.run(leader)
    third = runner()
    finish(leader, third)
    done = operations.batch_operation(operation.id)
    assert (done.state, done.total_matched, done.processed) == (BatchState.COMPLETED, 250, 250)
    assert done.runner_instance == third.runner
    assert {priorities()[job_id] for job_id in late} == {2}


def test_a_job_that_is_no_longer_what_was_meant_is_skipped(leader: Context) -> None:
    first, second, third = many(3)
    operation = operations.submit_batch(SetPriority(1), JobFilter(queue="q"))
    who = runner()
    who.run(leader)
    operations.move_queue(first, "elsewhere")
    operations.cancel(second)
    finish(leader, who)
    done = operations.batch_operation(operation.id)
    assert (done.processed, done.skipped, done.errored) == (1, 2, 0)
    assert operations.load_job(first).job.priority == 2
    assert operations.load_job(third).job.priority == 1


def test_a_job_that_cannot_be_changed_does_not_fail_the_others(leader: Context) -> None:
    ids = many(3)
    operations.submit_batch(MoveQueue("other"), JobFilter(queue="q"))
    # Something about one job that the database refuses, whatever it is.
    stored.run(
        "ALTER TABLE awa.ready_entries ADD CONSTRAINT test_refused CHECK (job_id <> "
        f"{ids[1]} OR queue = 'q') NOT VALID"
    )
    try:
        finish(leader)
    finally:
        stored.run("ALTER TABLE awa.ready_entries DROP CONSTRAINT test_refused")
    (done,) = operations.batch_operations()
    assert (done.state, done.processed, done.skipped, done.errored) == (BatchState.COMPLETED, 2, 0, 1)
    assert done.last_error is not None
    assert done.last_error.startswith(f"job_id={ids[1]}: ")
    assert operations.load_job(ids[1]).job.queue == "q"


def test_an_operation_that_makes_no_sense_fails_and_lets_the_next_one_run(leader: Context) -> None:
    many(1)
    stored.run(
        """
        INSERT INTO awa.batch_operations (id, op_kind, filter, spec, state)
        VALUES (%s, 'set_priority', '{"colour": "red"}', '{"op_kind": "set_priority", "priority": 1}', 'pending')
        """,
        uuid.uuid4(),
    )
    good = operations.submit_batch(SetPriority(1), JobFilter(queue="q"))
    finish(leader)
    by_state = {operation.state: operation for operation in operations.batch_operations()}
    assert "colour" in (by_state[BatchState.FAILED].last_error or "")
    assert by_state[BatchState.COMPLETED].id == good.id


def test_one_runner_works_at_a_time(leader: Context) -> None:
    many(1)
    operation = operations.submit_batch(SetPriority(1), JobFilter(queue="q"))
    with connect("default", application_name="other") as other:
        other.execute("SELECT pg_advisory_lock(x'4157415f42415443'::bigint)")
        assert runner().run(leader) is False
        assert operations.batch_operation(operation.id).state == "pending"
        other.execute("SELECT pg_advisory_unlock(x'4157415f42415443'::bigint)")
    finish(leader)
    assert operations.batch_operation(operation.id).state == "completed"


def test_the_leader_has_the_duty_and_it_is_idle_while_nothing_is_to_be_done(leader: Context) -> None:
    (duty,) = [
        duty
        for duty in timetable(Settings(), [QueueStoragePlane()]).duties
        if duty.name == "batch operations"
    ]
    assert duty.when is not None
    with leader.connection.cursor() as cursor:
        assert duty.when(look(cursor)) is None
    many(1)
    operation = operations.submit_batch(SetPriority(1), JobFilter(queue="q"))
    with leader.connection.cursor() as cursor:
        assert duty.when(look(cursor)) == 0.0
    while duty.run(leader):
        pass
    assert operations.batch_operation(operation.id).state == "completed"


def test_operations_are_listed_newest_first_and_forgotten_when_asked(leader: Context) -> None:
    enqueue(job())
    first = operations.submit_batch(SetPriority(1), JobFilter(queue="q"))
    second = operations.submit_batch(SetPriority(3), JobFilter(queue="q"))
    assert [operation.id for operation in operations.batch_operations()] == [second.id, first.id]
    finish(leader)
    third = operations.submit_batch(SetPriority(4), JobFilter(queue="q"))
    assert [operation.id for operation in operations.batch_operations("pending")] == [third.id]
    assert operations.batch_operations("nonsense") == []
    assert len(operations.batch_operations(limit=0)) == 1
    assert operations.purge_batches(datetime(2020, 1, 1, tzinfo=UTC)) == 0
    assert operations.purge_batches(datetime(2999, 1, 1, tzinfo=UTC)) == 2
    assert [operation.id for operation in operations.batch_operations()] == [third.id]
    assert stored.rows("SELECT DISTINCT operation_id FROM awa.batch_operation_items") == []
    for unknown in (uuid.uuid4(), "nonsense"):
        with pytest.raises(BatchOperationNotFound):
            operations.batch_operation(unknown)
        with pytest.raises(BatchOperationNotFound):
            operations.cancel_batch(unknown)


def test_a_lost_connection_is_not_a_jobs_fault(leader: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    many(2)
    operation = operations.submit_batch(SetPriority(1), JobFilter(queue="q"))
    who = runner()
    who.run(leader)

    def lost(*args: Any) -> None:
        raise psycopg.OperationalError("the connection is gone")

    monkeypatch.setattr(batch, "change_on", lost)
    with pytest.raises(psycopg.OperationalError):
        who.run(leader)
    monkeypatch.undo()
    finish(leader)
    assert operations.batch_operation(operation.id).processed == 2
