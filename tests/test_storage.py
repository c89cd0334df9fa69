"""The steps from canonical storage to queue storage, beside the real command line on the same database."""

from __future__ import annotations

import json
import pickle
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction

from awa_django import storage
from awa_django.enqueue import enqueue as enqueue_one
from awa_django.enqueue import enqueue_many
from awa_django.errors import ConfigurationError, SchemaOutOfDate, StorageTransitionRefused
from awa_django.jobs import JobInsert
from awa_django.storage import Step
from tests.moves import Moving, enter_mixed, on_the_move
from tests.workers import wait_until

moving = pytest.fixture(on_the_move)

both_schemas = pytest.mark.parametrize("moving", ["ours", "theirs"], indirect=True)


@both_schemas
def test_the_whole_way(moving: Moving) -> None:
    start = moving.status()
    assert (start.state, start.active_engine, start.next_step) == ("canonical", "canonical", Step.PREPARE)
    assert (start.schema, start.is_ready, start.blockers, start.epoch) == (None, False, (), 0)

    prepared = moving.step(storage.prepare)
    assert (prepared.state, prepared.prepared_engine, prepared.next_step) == (
        "prepared",
        "queue_storage",
        Step.ENTER_MIXED,
    )
    assert (prepared.active_engine, prepared.schema, prepared.is_ready) == ("canonical", "awa", True)
    (nobody,) = prepared.blockers
    assert "queue_storage_target" in nobody
    again = moving.step(storage.prepare)
    assert (again.epoch, again.entered_at) == (prepared.epoch, prepared.entered_at)

    moving.runtime()
    moving.enqueue()
    assert moving.status().blockers == ()
    mixed = moving.step(storage.enter_mixed)
    assert (mixed.state, mixed.active_engine, mixed.backlog) == ("mixed_transition", "queue_storage", 1)
    assert mixed.blockers == (
        "not finished yet: 1 canonical job, and nobody is at it: start `manage.py awa_worker --role canonical_drain`",
    )
    moving.runtime("canonical_drain_only", "auto")
    assert moving.status().blockers == ("not finished yet: 1 canonical job, 1 worker at it",)

    moving.run("UPDATE awa.jobs_hot SET state = 'completed', finalized_at = now()")
    active = moving.step(storage.finalize)
    assert (active.state, active.current_engine, active.prepared_engine) == ("active", "queue_storage", None)
    assert (active.next_step, active.blockers, active.backlog) == (None, (), 0)
    assert active.finalized_at is not None
    assert active.epoch == 3
    assert moving.singleton() == ("queue_storage", None, "active", 3, {"schema": "awa"}, "awa")


@both_schemas
def test_a_live_worker_that_knows_the_canonical_tables_only_blocks_entering_and_finalizing(
    moving: Moving,
) -> None:
    moving.step(storage.prepare)
    moving.runtime()
    moving.runtime("canonical", "auto")
    with pytest.raises(StorageTransitionRefused, match="canonical tables only") as refused:
        moving.step(storage.enter_mixed)
    assert refused.value.step == "enter_mixed"
    moving.forget_runtimes()
    moving.runtime()
    moving.step(storage.enter_mixed)
    moving.runtime("canonical", "auto")
    with pytest.raises(StorageTransitionRefused, match="canonical tables only"):
        moving.step(storage.finalize)
    assert moving.status().state == "mixed_transition"


@both_schemas
@pytest.mark.parametrize(
    ("step", "words"),
    [
        (storage.enter_mixed, "the state is 'canonical', and enter_mixed leads on from 'prepared'"),
        (storage.finalize, "the state is 'canonical', and finalize leads on from 'mixed_transition'"),
    ],
)
def test_a_step_out_of_turn_is_refused_and_changes_nothing(moving: Moving, step: Any, words: str) -> None:
    before = moving.singleton()
    with pytest.raises(StorageTransitionRefused, match=words):
        moving.step(step)
    assert moving.singleton() == before


@both_schemas
def test_a_target_that_has_fallen_silent_does_not_count(moving: Moving) -> None:
    moving.step(storage.prepare)
    moving.runtime(silent="31 seconds")
    assert moving.status().targets == 0
    moving.runtime(silent="31 seconds", interval_ms=20_000)
    assert moving.status().targets == 1
    moving.step(storage.enter_mixed)


@both_schemas
def test_giving_up_goes_back_and_a_second_try_begins_anew(moving: Moving) -> None:
    moving.step(storage.prepare)
    back = moving.step(storage.abort)
    assert (back.state, back.prepared_engine, back.schema, back.epoch) == ("canonical", None, None, 2)
    moving.step(storage.prepare)
    moving.runtime()
    moving.step(storage.enter_mixed)
    moving.forget_runtimes()
    assert moving.status().blockers_of(Step.ABORT) == ()
    assert moving.step(storage.abort).state == "canonical"
    assert moving.singleton() == ("canonical", None, "canonical", 5, {}, None)


@both_schemas
def test_a_move_that_is_being_used_is_not_given_up(moving: Moving) -> None:
    moving.step(storage.prepare)
    moving.runtime()
    moving.step(storage.enter_mixed)
    moving.enqueue()
    with pytest.raises(StorageTransitionRefused) as refused:
        moving.step(storage.abort)
    worker, rows = refused.value.blockers
    assert "1 live worker may run queue storage" in worker
    assert "ready_entries" in rows
    moving.forget_runtimes()
    with pytest.raises(StorageTransitionRefused, match="queue storage has taken jobs"):
        moving.step(storage.abort)
    assert moving.singleton()[2] == "mixed_transition"


@both_schemas
@pytest.mark.parametrize("later", ["NULL", "now() + interval '1 hour'"])
def test_a_move_is_not_given_up_while_a_job_is_being_stored(moving: Moving, later: str) -> None:
    moving.step(storage.prepare)
    enter_mixed(moving.connection)
    with psycopg.connect(moving.url) as producer:
        state = "available" if later == "NULL" else "scheduled"
        producer.execute(f"SELECT awa.insert_job_compat('k', 'q', p_state => '{state}', p_run_at => {later})")
        assert (moving.status().used, moving.status().writers) == ((), 1)
        with pytest.raises(StorageTransitionRefused, match="1 open transaction may be storing jobs"):
            moving.step(storage.abort)
        producer.rollback()
        assert moving.step(storage.abort).state == "canonical"


@both_schemas
def test_a_move_whose_schema_nobody_named_is_not_given_up_while_it_is_used(moving: Moving) -> None:
    moving.run("SELECT awa.storage_prepare('queue_storage', '{}')")
    moving.runtime()
    moving.step(storage.enter_mixed)
    moving.forget_runtimes()
    moving.enqueue()
    with pytest.raises(StorageTransitionRefused, match="queue storage has taken jobs"):
        moving.step(storage.abort)


@both_schemas
def test_there_is_no_way_back_from_active_and_the_marker_stays(moving: Moving) -> None:
    moving.run("SELECT awa.storage_auto_finalize_if_fresh('awa')")
    found = moving.status()
    assert (found.state, found.auto_finalized) == ("active", True)
    for step, words in ((storage.abort, "no way back"), (storage.prepare, "in force already")):
        with pytest.raises(StorageTransitionRefused, match=words):
            moving.step(step)
    assert moving.singleton()[-1] == "awa"


@both_schemas
def test_another_engine_and_another_schema_are_refused_with_the_way_out(moving: Moving) -> None:
    moving.run("SELECT awa.storage_prepare('paper', '{}')")
    with pytest.raises(StorageTransitionRefused, match="'paper', which nobody serves"):
        moving.step(storage.enter_mixed)
    moving.run("""SELECT awa.storage_prepare('queue_storage', '{"schema": "other"}')""")
    moving.runtime()
    with pytest.raises(StorageTransitionRefused, match="the move is to schema 'other'"):
        moving.step(storage.enter_mixed)
    moving.step(storage.prepare)
    assert moving.step(storage.enter_mixed).schema == "awa"


@pytest.mark.changes_schema
def test_a_schema_without_its_substrate_is_not_prepared(moving: Moving) -> None:
    moving.run("DROP TABLE awa.lease_claim_closure_batches CASCADE")
    assert moving.status().missing == (
        "table lease_claim_closure_batches",
        "column lease_claim_closure_batches.receipt_ranges",
    )
    with pytest.raises(StorageTransitionRefused, match="lacks table lease_claim_closure_batches"):
        moving.step(storage.prepare)


def test_a_refused_step_leaves_the_transaction_usable_and_the_row_free(moving: Moving) -> None:
    with transaction.atomic(using=moving.alias):
        with pytest.raises(StorageTransitionRefused):
            moving.step(storage.enter_mixed)
        moving.run("SELECT FROM awa.storage_transition_state FOR UPDATE NOWAIT")
        assert moving.step(storage.prepare).state == "prepared"
        with pytest.raises(psycopg.errors.LockNotAvailable):
            moving.run("SELECT FROM awa.storage_transition_state FOR SHARE NOWAIT")


def test_a_step_rolls_back_with_the_callers_transaction(moving: Moving) -> None:
    with transaction.atomic(using=moving.alias):
        assert moving.step(storage.prepare).state == "prepared"
        transaction.set_rollback(True, using=moving.alias)
    assert moving.status().state == "canonical"


def test_a_step_waits_for_one_that_is_under_way_and_then_decides(moving: Moving) -> None:
    answers: list[object] = []

    def prepare() -> None:
        try:
            answers.append(moving.step(storage.prepare))
        except StorageTransitionRefused as error:
            answers.append(error)
        finally:
            connections["moving"].close()

    other = threading.Thread(target=prepare)
    with psycopg.connect(moving.url) as session:
        enter_mixed(session)
        other.start()
        wait_until(
            lambda: (
                moving.connection.execute(
                    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                ).fetchone()
                is not None
            ),
            what="a step that waits",
        )
        session.commit()
    other.join(60)
    (refused,) = answers
    assert isinstance(refused, StorageTransitionRefused)
    assert "the state is 'mixed_transition'" in str(refused)


@pytest.mark.changes_schema
def test_a_refusal_by_the_database_itself_is_translated(moving: Moving) -> None:
    moving.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'not on a Monday' USING ERRCODE = '55000'; END $$"
    )
    moving.run(
        "CREATE TRIGGER refuse BEFORE UPDATE ON awa.storage_transition_state EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(StorageTransitionRefused, match="cannot prepare: not on a Monday"):
        moving.step(storage.prepare)


def test_a_missing_transition_row_is_named(moving: Moving) -> None:
    moving.run("DELETE FROM awa.storage_transition_state")
    for call in (storage.status, storage.prepare, storage.abort):
        with pytest.raises(ConfigurationError, match="storage_transition_state has no row"):
            call(using=moving.alias)


@pytest.mark.changes_schema
def test_a_schema_that_is_not_there_or_too_old_is_named(moving: Moving) -> None:
    moving.run("DELETE FROM awa.schema_version WHERE version = 40")
    with pytest.raises(SchemaOutOfDate, match="at version 39"):
        moving.status()
    moving.run("DROP SCHEMA awa CASCADE")
    for call in (storage.status, storage.prepare):
        with pytest.raises(SchemaOutOfDate, match=r"does not exist: run .manage\.py migrate"):
            call(using=moving.alias)


def test_a_refusal_survives_pickling() -> None:
    refused = pickle.loads(pickle.dumps(StorageTransitionRefused("finalize", ["a", "b"])))
    assert (refused.step, refused.blockers) == ("finalize", ("a", "b"))
    assert str(refused) == "storage: cannot finalize: a; b"


@both_schemas
def test_producers_follow_each_step(moving: Moving) -> None:
    def enqueue() -> tuple[int, int]:
        """One job, and a batch with one for later; what came to the canonical tables and to queue storage."""
        before = places()
        later = datetime.now(UTC) + timedelta(hours=1)
        assert enqueue_one(JobInsert("k", {}), using=moving.alias).id > 0
        batch = [JobInsert("k", {"n": 1}), JobInsert("k", {"n": 2}, run_at=later)]
        assert enqueue_many(batch, using=moving.alias).count == 2
        after = places()
        return after[0] - before[0], after[1] - before[1]

    def places() -> tuple[int, int]:
        row = moving.connection.execute(
            "SELECT (SELECT count(*) FROM awa.jobs_hot) + (SELECT count(*) FROM awa.scheduled_jobs),"
            " (SELECT count(*) FROM awa.ready_entries) + (SELECT count(*) FROM awa.deferred_jobs)"
        ).fetchone()
        assert row is not None
        return row

    assert enqueue() == (3, 0)
    moving.step(storage.prepare)
    assert enqueue() == (3, 0)
    moving.runtime()
    moving.step(storage.enter_mixed)
    assert enqueue() == (0, 3)
    moving.run("DELETE FROM awa.jobs_hot")
    moving.run("DELETE FROM awa.scheduled_jobs")
    moving.step(storage.finalize)
    assert enqueue() == (0, 3)


@pytest.mark.interop
@both_schemas
def test_the_real_command_line_and_we_see_the_same_at_each_step(moving: Moving) -> None:
    def compare() -> None:
        theirs, ours = json.loads(moving.cli("status")), moving.status()
        assert theirs["state"] == ours.state
        assert theirs["current_engine"] == ours.current_engine
        assert theirs["active_engine"] == ours.active_engine
        assert theirs["prepared_engine"] == ours.prepared_engine
        assert theirs["transition_epoch"] == ours.epoch
        assert theirs["canonical_live_backlog"] == ours.backlog
        assert theirs["prepared_queue_storage_schema"] == ours.schema
        assert theirs["prepared_schema_ready"] == ours.is_ready
        counted = {name: number for name, number in ours.runtimes.items() if number}
        assert theirs["live_runtime_capability_counts"] == counted
        assert theirs["can_enter_mixed_transition"] == (not ours.blockers_of(Step.ENTER_MIXED))
        assert theirs["can_finalize"] == (not ours.blockers_of(Step.FINALIZE))

    compare()
    moving.step(storage.prepare)
    compare()
    moving.runtime()
    moving.runtime("canonical", "auto")
    compare()
    moving.forget_runtimes()
    moving.runtime()
    moving.enqueue()
    compare()
    moving.step(storage.enter_mixed)
    compare()
    moving.run("DELETE FROM awa.jobs_hot")
    compare()
    moving.step(storage.finalize)
    compare()


@pytest.mark.interop
@both_schemas
def test_either_side_takes_the_next_step_after_the_other(moving: Moving) -> None:
    moving.cli("prepare", "--engine", "queue_storage", "--details", '{"schema": "awa"}')
    assert moving.status().state == "prepared"
    moving.runtime()
    moving.step(storage.enter_mixed)
    assert moving.cli_refuses("prepare", "--engine", "queue_storage")
    moving.cli("finalize")
    assert moving.status().state == "active"


@pytest.mark.interop
@both_schemas
def test_the_real_command_line_gives_up_what_we_began(moving: Moving) -> None:
    moving.step(storage.prepare)
    moving.cli("abort")
    assert moving.status().state == "canonical"
