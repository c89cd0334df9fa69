"""The real awa client and ours on the same jobs: what one changes the other reads, and either runs batch operations."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

import awa
import pytest
from django.db import connection

from awa_django import operations
from awa_django.conf import Settings
from awa_django.db import connect
from awa_django.enqueue import enqueue_many
from awa_django.jobs import JobInsert
from awa_django.maintenance import Context
from awa_django.maintenance.batch import BatchRunner
from awa_django.operations import JobFilter, MoveQueue, SetPriority
from awa_django.states import JobState
from tests import databases
from tests.interop.test_mixed_fleet import awa_pg_worker
from tests.settings import SERVER_URL
from tests.test_operations import STATES, added, claimed, in_state
from tests.workers import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.interop]

RETRIES = {"failed", "cancelled", "waiting_external"}
CANCELS = {"scheduled", "available", "retryable", "running", "waiting_external"}


def url() -> str:
    return databases.address(SERVER_URL, str(connection.settings_dict["NAME"]))


def cli(*arguments: str) -> str:
    return databases.awa_cli(url(), *arguments).stdout


@pytest.fixture
def client() -> Any:
    found = awa.Client(url())
    yield found
    found.close()


def theirs(client: Any, job_id: int) -> str:
    """The state as the real client reads it."""
    return str(client.get_job(job_id).state).rpartition(".")[2].lower()


def ours(job_id: int) -> str:
    record = operations.load_job(job_id)
    return "dead" if record.dead_letter else record.job.state.value


def same(state: str) -> str:
    """Without underscores, and dead letters as failed: the real client's enum."""
    return {"dead": "failed"}.get(state, state).replace("_", "")


@pytest.mark.parametrize("state", STATES)
def test_both_clients_do_the_same_to_a_job_and_read_the_same_of_it_afterwards(
    client: Any, state: str
) -> None:
    for verb, from_states, their_verb in (
        (operations.retry, RETRIES, client.retry),
        (operations.cancel, CANCELS, client.cancel),
        (lambda job_id: operations.dead_letter(job_id, "manual"), {"failed"}, None),
    ):
        first, second = in_state(state), in_state(state)
        assert same(theirs(client, first)) == same(ours(first)) == same(state)
        assert verb(first).count == (state in from_states)
        assert same(theirs(client, first)) == same(ours(first))
        if their_verb is None:
            moved = client.move_failed_to_dlq(second, "manual")
            assert (moved is not None) == (state in from_states)
        elif state in from_states:
            their_verb(second)
        else:
            with pytest.raises(awa.AwaError):
                their_verb(second)
        assert same(theirs(client, second)) == same(ours(second)) == same(ours(first))
        assert ours(first) == ours(second)
        for job_id in (first, second):  # out of the way of the next claim
            operations.cancel(job_id)


def test_their_dead_letters_are_ours(client: Any) -> None:
    ids = [in_state("dead", tags=("red",)) for _ in range(4)]
    assert [record.job.id for record in operations.dead_letters()] == ids[::-1]
    assert sorted(entry.job.id for entry in client.list_dlq()) == ids
    operations.retry_dead(ids[0], run_at=timedelta(hours=1))
    assert same(theirs(client, ids[0])) == "scheduled"
    client.retry_from_dlq(ids[1])
    assert ours(ids[1]) == "available"
    assert operations.load_job(ids[1]).job.run_lease == operations.load_job(ids[0]).job.run_lease == 1
    assert client.purge_dlq(kind="k") == 2
    assert operations.dead_letters() == []


def test_pausing_and_resuming_hold_for_both(client: Any) -> None:
    operations.pause("q", "ann")
    (line,) = (line for line in cli("queue", "stats").splitlines() if line.startswith("q "))
    assert line.split()[-1] == "yes"
    client.resume_queue("q")
    assert operations.resume("q") is False
    client.pause_queue("q", "bob")
    (overview,) = operations.queue_overview()
    assert (overview.paused, overview.paused_by) == (True, "bob")
    in_state("available")
    assert claimed() == []


def test_their_list_and_ours_have_the_same_jobs(client: Any) -> None:
    ids = {in_state(state): state for state in STATES if state != "running"}
    rows = [line.split() for line in cli("job", "list", "--limit", "100").splitlines()]
    in_theirs = {int(row[0]) for row in rows if len(row) > 2 and row[0].isdigit() and "q" in row}
    in_ours = {record.job.id for record in operations.list_jobs().jobs}
    assert in_theirs == in_ours == set(ids)


# Batch operations


def finish() -> None:
    with connect("default", application_name="leader") as session:
        runner = BatchRunner(timedelta(days=90))
        context = Context(connection=session, settings=Settings())
        while runner.run(context):
            pass


def test_what_they_submit_our_leader_runs() -> None:
    ids = [job_id for job_id in enqueue_many([JobInsert("k", {}, "q") for _ in range(3)]).ids if job_id]
    since = datetime(2020, 1, 1, tzinfo=UTC).isoformat()
    cli(
        "batch-ops", "submit", "--op-kind", "move_queue", "--spec", '{"queue": "dest", "priority": 1}',
        "--filter", json.dumps({"kind": "k", "queue": "q", "created_at_gte": since}), "--submitted-by", "them",
    )  # fmt: skip
    cli(
        "batch-ops", "submit", "--op-kind", "set_priority", "--spec", '{"priority": 4}', "--filter",
        '{"queue": "dest"}',
    )  # fmt: skip
    finish()
    second, first = operations.batch_operations()
    assert (first.state, first.processed, first.submitted_by) == ("completed", 3, "them")
    assert (second.state, second.processed) == ("completed", 3)
    found = json.loads(cli("batch-ops", "get", str(first.id)))
    assert (found["state"], found["processed"], found["skipped"], found["errored"]) == ("completed", 3, 0, 0)
    for job_id in ids:
        job = operations.load_job(job_id).job
        assert (job.queue, job.priority) == ("dest", 4)
        assert job.metadata == {"_awa_original_queue": "q", "_awa_original_priority": 2}


@pytest.mark.worker
def test_what_we_submit_their_leader_runs() -> None:
    ids = [job_id for job_id in enqueue_many([JobInsert("k", {}, "q") for _ in range(4)]).ids if job_id]
    scheduled = added(run_at=datetime(2999, 1, 1, tzinfo=UTC))
    already = added(priority=1)
    created = operations.load_job(ids[0]).job.created_at
    first = operations.submit_batch(
        SetPriority(1), JobFilter(queue="q", created_from=created, created_before=created + timedelta(days=1)),
        submitted_by="us",
    )  # fmt: skip
    second = operations.submit_batch(MoveQueue("dest"), JobFilter(ids=[*ids, scheduled]))
    with awa_pg_worker(url(), 1):
        wait_until(
            lambda: all(operations.batch_operation(each.id).state == "completed" for each in (first, second))
        )
    done = operations.batch_operation(first.id)
    assert (done.state, done.processed, done.skipped, done.errored) == ("completed", 5, 1, 0)
    for job_id in (*ids, scheduled):
        job = operations.load_job(job_id).job
        assert (job.queue, job.priority) == ("dest", 1)
        assert job.metadata == {"_awa_original_priority": 2, "_awa_original_queue": "q"}
    assert operations.load_job(already).job.queue == "q"
    assert {record.job.state for record in operations.list_jobs(JobFilter(queue="dest")).jobs} == {
        JobState.AVAILABLE,
        JobState.SCHEDULED,
    }


def test_what_we_begin_they_can_stop_and_list() -> None:
    enqueue_many([JobInsert("k", {}, "q") for _ in range(150)])
    operation = operations.submit_batch(SetPriority(1), JobFilter(queue="q"), submitted_by="us")
    with connect("default", application_name="leader") as session:
        context = Context(connection=session, settings=Settings())
        runner = BatchRunner(timedelta(days=90))
        runner.run(context)
        runner.run(context)
        listed = cli("batch-ops", "list")
        assert str(operation.id) in listed
        cli("batch-ops", "cancel", str(operation.id))
        assert operations.batch_operation(operation.id).state == "cancelling"
        while runner.run(context):
            pass
    found = json.loads(cli("batch-ops", "get", str(operation.id)))
    assert (found["state"], found["processed"], found["skipped"]) == ("cancelled", 100, 50)
    with pytest.raises(subprocess.CalledProcessError):
        cli("batch-ops", "cancel", str(operation.id))
