"""The models are the tables: every column, its type and whether it can be NULL."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import pytest
from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.core.management import call_command
from django.db import connection, models
from psycopg.types.multirange import Multirange

from awa_django import models as awa_models
from awa_django.models import (
    BulkOperation,
    ClaimRingSlot,
    DlqEntry,
    Job,
    JobHot,
    LeaseClaimBatch,
    QueueLane,
    ScheduledJob,
    SchemaVersion,
    TerminalJob,
    UniqueClaim,
)
from awa_django.models.columns import ReadModel
from awa_django.states import JobState

EVERY_MODEL = [
    model for model in apps.get_app_config("awa_django").get_models() if issubclass(model, ReadModel)
]
#: Those of the shared schema; Django makes the tables of the others.
MODELS = [model for model in EVERY_MODEL if not model._meta.managed]
COMPOSITE = [model for model in MODELS if isinstance(model._meta.pk, models.CompositePrimaryKey)]

COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped
"""
#: Everything in the schema that rows can be read from, without partitions and our own helper views.
RELATIONS = """
    SELECT oid::regclass::text, relkind::text FROM pg_class
    WHERE relnamespace = 'awa'::regnamespace AND relkind IN ('r', 'p', 'v') AND NOT relispartition
        AND NOT starts_with(relname, 'awa_django_')
"""

pytestmark = pytest.mark.django_db


def fetched(statement: str, *values: object) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return cursor.fetchall()


def hot(**values: object) -> JobHot:
    """A canonical job, written behind the model's back."""
    columns = {"kind": "greet", "state": "available"} | values
    names, marks = ", ".join(columns), ", ".join("%s" for _ in columns)
    [(pk,)] = fetched(f"INSERT INTO awa.jobs_hot ({names}) VALUES ({marks}) RETURNING id", *columns.values())
    return JobHot.objects.get(pk=pk)


def test_every_relation_has_a_model_and_every_model_a_relation() -> None:
    relations = {name for name, _ in fetched(RELATIONS)}
    assert {model._meta.db_table.replace('"', "") for model in MODELS} == relations


def test_every_public_model_is_exported() -> None:
    assert {model.__name__ for model in EVERY_MODEL} == set(awa_models.__all__) - {"table"}


def test_only_what_other_clients_do_not_know_lies_outside_the_shared_schema() -> None:
    assert [model for model in EVERY_MODEL if model._meta.managed] == [awa_models.BulkOperation]
    assert fetched("SELECT 'awa_django_batchoperation'::regclass::oid::regclass::text") == [
        ("awa_django_batchoperation",)
    ]
    assert not BulkOperation._meta.db_table.startswith('"awa"')
    with pytest.raises(TypeError, match="read-only"):
        BulkOperation.objects.create(op_kind="cancel")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_model_has_the_columns_of_its_relation(model: type[models.Model]) -> None:
    [(_, kind)] = [row for row in fetched(RELATIONS) if row[0] == model._meta.db_table.replace('"', "")]
    expected = {name: (type_, nullable) for name, type_, nullable in fetched(COLUMNS, model._meta.db_table)}
    found = {
        field.column: (field.db_type(connection), field.null)
        for field in model._meta.concrete_fields
        if not isinstance(field, models.CompositePrimaryKey)
    }
    if kind == "v":  # the catalogue does not know which columns of a view can be NULL
        expected = {name: (type_, found.get(name, (None, None))[1]) for name, (type_, _) in expected.items()}
    assert found == expected


@pytest.mark.parametrize("model", COMPOSITE, ids=lambda model: model.__name__)
def test_a_composite_key_is_the_real_one(model: type[models.Model]) -> None:
    assert isinstance(model._meta.pk, models.CompositePrimaryKey)
    found = [model._meta.get_field(name).column for name in model._meta.pk.field_names]
    rows = fetched(
        "SELECT array_agg(attname::text ORDER BY place) FROM pg_constraint "
        "CROSS JOIN unnest(conkey) WITH ORDINALITY AS key (number, place) "
        "JOIN pg_attribute ON attrelid = conrelid AND attnum = number "
        "WHERE conrelid = %s::regclass AND contype = 'p' GROUP BY conrelid",
        model._meta.db_table,
    )
    if rows:
        assert found == rows[0][0]
    else:
        assert model is awa_models.QueueTerminalCountDelta


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_model_can_be_listed(model: type[models.Model]) -> None:
    for row in model._default_manager.order_by("pk")[:3]:
        assert str(row)


def test_the_migration_says_what_the_models_say() -> None:
    call_command("makemigrations", "awa_django", check=True, dry_run=True, verbosity=0)


def test_the_migration_knows_every_column() -> None:
    from django.db.migrations.loader import MigrationLoader

    state = MigrationLoader(connection).project_state().apps
    for model in MODELS:
        then = state.get_model("awa_django", model.__name__)
        for field in model._meta.concrete_fields:
            try:
                known = then._meta.get_field(field.name)
            except FieldDoesNotExist:
                pytest.fail(f"0001_initial does not know {model.__name__}.{field.name}")
            assert known.db_type(connection) == field.db_type(connection)
            assert known.null == field.null


# Values ---------------------------------------------------------------------------------------------------


def test_a_canonical_job_reads_as_python_values() -> None:
    callback = uuid.uuid4()
    job = hot(
        args='{"to": "Zoë"}',
        errors=["{}"],
        tags=["a", "b"],
        unique_key=b"\x00\xff",
        unique_states="01010101",
        callback_id=callback,
    )
    assert job.args == {"to": "Zoë"}
    assert job.errors == [{}]
    assert job.tags == ["a", "b"]
    assert bytes(job.unique_key) == b"\x00\xff"
    assert job.unique_states == "01010101"
    assert job.callback_id == callback
    assert job.state is JobState.AVAILABLE
    assert job.get_state_display() == "available"
    assert job.run_at.tzinfo is not None
    assert str(job) == f"greet {job.pk}"
    assert JobHot.objects.filter(unique_states="01010101", tags__contains=["a"]).get() == job


def test_a_job_enqueued_in_sql_is_seen_through_the_view() -> None:
    fetched("INSERT INTO awa.jobs (kind, queue, args) VALUES ('greet', 'mail', '{\"a\": 1}') RETURNING id")
    job = Job.objects.get(queue="mail")
    assert (job.kind, job.state, job.args) == ("greet", JobState.AVAILABLE, {"a": 1})
    assert QueueLane.objects.filter(pk=("mail", 2)).exists()
    assert not TerminalJob.objects.exists()


def test_ranges_and_arrays_read_as_values() -> None:
    fetched(
        "INSERT INTO awa.lease_claim_batches (claim_slot, ready_slot, ready_generation, queue, priority, "
        "claimed_count, job_ids, run_leases, receipt_ids, receipt_ranges, lane_seqs, attempts, max_attempts) "
        "VALUES (0, 0, 0, 'q', 2, 1, '{7}', '{1}', '{9}', '{[9,10)}', '{1}', '{1}', '{25}') RETURNING 1"
    )
    batch = LeaseClaimBatch.objects.get()
    assert batch.job_ids == [7]
    assert isinstance(batch.receipt_ranges, Multirange)
    assert [(span.lower, span.upper) for span in batch.receipt_ranges] == [(9, 10)]


def test_a_cursor_at_its_start_is_none() -> None:
    slot = ClaimRingSlot.objects.get(slot=3)
    assert slot.rescue_cursor_claimed_at is None
    fetched("UPDATE awa.claim_ring_slots SET rescue_cursor_claimed_at = '2026-01-02 03:04Z' RETURNING 1")
    slot.refresh_from_db()
    assert slot.rescue_cursor_claimed_at == datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)


# Filters from URLs ----------------------------------------------------------------------------------------


def test_a_state_that_does_not_exist_matches_nothing() -> None:
    job = hot(state="failed")
    assert list(JobHot.objects.filter(state="nope")) == []
    assert list(JobHot.objects.exclude(state="nope")) == [job]
    assert list(JobHot.objects.filter(state__in=["nope", "failed"])) == [job]
    assert list(JobHot.objects.filter(state__in=["nope"])) == []
    assert list(JobHot.objects.filter(models.Q(state="nope") | models.Q(kind="greet"))) == [job]
    assert list(JobHot.objects.filter(state__in=[JobState.FAILED])) == [job]
    assert list(JobHot.objects.filter(state=JobState.FAILED)) == [job]
    assert list(JobHot.objects.filter(state__in=JobHot.objects.values("state"))) == [job]
    assert JobHot.objects.values("state").annotate(n=models.Count("pk")).get() == {"state": "failed", "n": 1}
    assert list(JobHot.objects.filter(state__startswith="fai")) == [job]


# Reading only ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda job: job.save(),
        lambda job: job.delete(),
        lambda job: JobHot(kind="x").save(),
        lambda job: JobHot.objects.create(kind="x"),
        lambda job: JobHot.objects.bulk_create([JobHot(kind="x")]),
        lambda job: JobHot.objects.get_or_create(kind="x"),
        lambda job: JobHot.objects.update_or_create(kind="x"),
        lambda job: JobHot.objects.filter(pk=job.pk).update(kind="x"),
        lambda job: JobHot.objects.bulk_update([job], ["kind"]),
        lambda job: JobHot.objects.all().delete(),
        lambda job: JobHot.objects.all()._raw_delete("default"),
        lambda job: JobHot._base_manager.filter(pk=job.pk).delete(),
        lambda job: JobHot._base_manager.filter(pk=job.pk).update(kind="x"),
    ],
)
def test_writing_through_a_model_is_refused(write: Any) -> None:
    job = hot()
    with pytest.raises(TypeError, match="JobHot is read-only"):
        write(job)
    assert [row.kind for row in JobHot.objects.all()] == ["greet"]


@pytest.mark.parametrize("write", ["asave", "adelete"])
def test_writing_asynchronously_is_refused_too(write: str) -> None:
    from asgiref.sync import async_to_sync

    with pytest.raises(TypeError, match="read-only"):
        async_to_sync(getattr(JobHot(kind="x"), write))()


def test_rows_can_be_locked() -> None:
    job = hot()
    assert list(JobHot.objects.select_for_update(skip_locked=True)) == [job]
    assert "FOR UPDATE SKIP LOCKED" in str(
        JobHot.objects.select_for_update(skip_locked=True).query.get_compiler("default").as_sql()[0]
    )


# Permissions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "codenames"),
    [
        (SchemaVersion, {"view_schemaversion"}),
        (UniqueClaim, {"view_uniqueclaim"}),
        (ScheduledJob, {"view_scheduledjob"}),
        (
            Job,
            {
                "view_job",
                "view_job_payload",
                "retry_job",
                "run_job_now",
                "cancel_job",
                "change_job_priority",
                "move_job",
                "discard_job",
                "resolve_callback",
            },
        ),
        (DlqEntry, {"view_dlqentry", "retry_dlqentry", "move_dlqentry", "purge_dlqentry"}),
    ],
)
def test_migrate_makes_the_permissions(model: type[models.Model], codenames: set[str]) -> None:
    from django.contrib.auth.models import Permission
    from django.contrib.contenttypes.models import ContentType

    kind = ContentType.objects.get_for_model(model)
    assert set(Permission.objects.filter(content_type=kind).values_list("codename", flat=True)) == codenames
