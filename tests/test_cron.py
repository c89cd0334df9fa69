"""Declaring schedules, and what operators do with those in the database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from awa_django import periodic
from awa_django.errors import AwaError, ConfigurationError, InvalidJob, ScheduleNotFound, SchemaOutOfDate
from awa_django.jobs import JobInsert
from awa_django.periodic import ScheduleStatus, cron, declared
from awa_django.registry import job, registry
from awa_django.schedule import InvalidSchedule, Schedule
from awa_django.uniqueness import Unique
from tests import stored
from tests.testapp.jobs import ProcessPayment, note, pay
from tests.vectors import load

VECTORS = load("cron")


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with registry.isolated(), declared.isolated():
        yield


def store(name: str = "nightly", **columns: Any) -> None:
    """A schedule's row, as any client writes it."""
    columns = {"name": name, "cron_expr": "0 3 * * *", "kind": "note", "args": '{"order_id": 1}', **columns}
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO awa.cron_jobs ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})",
            list(columns.values()),
        )


def status(name: str = "nightly") -> ScheduleStatus:
    (found,) = [item for item in periodic.schedules() if item.name == name]
    return found


# Declaring


def test_a_schedule_takes_the_options_of_its_kind_and_the_defaults_of_the_contract() -> None:
    @job(queue="mail", priority=1, max_attempts=5, tags=["t"], metadata={"team": "shop"})
    def digest(hours: int = 24) -> None: ...

    declared_ = cron("digest", "0 7 * * *", digest)
    assert declared["digest"] is declared_
    assert declared_.job == JobInsert(
        kind="digest",
        args={},
        queue="mail",
        priority=1,
        max_attempts=5,
        tags=("t",),
        metadata={"team": "shop"},
    )
    assert (declared_.schedule.timezone, declared_.missed) == ("UTC", "coalesce")
    assert declared_.place.startswith("tests.test_cron:")


def test_options_of_the_schedule_go_before_those_of_the_job() -> None:
    declared_ = cron(
        "nightly",
        "0 3 * * *",
        note.using(queue="bulk", priority=4),
        args={"order_id": 7},
        timezone="Pacific/Auckland",
        missed="catch_up",
        priority=3,
        max_attempts=2,
        tags=["nightly"],
        metadata={"k": 1},
    )
    assert declared_.job == JobInsert(
        kind="note",
        args={"order_id": 7},
        queue="bulk",
        priority=3,
        max_attempts=2,
        tags=("nightly",),
        metadata={"k": 1},
    )
    assert (declared_.schedule, declared_.missed) == (
        Schedule.parse("0 3 * * *", "Pacific/Auckland"),
        "catch_up",
    )


def test_arguments_are_an_instance_of_the_kinds_class_or_a_dict() -> None:
    by_instance = cron("a", "@daily", pay, args=ProcessPayment(1, datetime(2026, 1, 1, tzinfo=UTC)))
    by_dict = cron("b", "@daily", pay, args={"order_id": 1})
    assert by_instance.job.args == {"order_id": 1, "due": "2026-01-01T00:00:00Z", "currency": "NZD"}
    assert by_dict.job.args == {"order_id": 1, "due": None, "currency": "NZD"}


def test_a_kind_whose_handler_lives_elsewhere_is_given_by_name() -> None:
    declared_ = cron(
        "rust", "*/10 * * * * *", "rebuild_search", args={"deep": True}, queue="rust", tags=["r"]
    )
    assert declared_.job == JobInsert(kind="rebuild_search", args={"deep": True}, queue="rust", tags=("r",))
    assert cron("plain", "@hourly", "other").job.args == {}


@pytest.mark.parametrize("expression", VECTORS["accept"])
def test_every_expression_of_the_contract_can_be_declared(expression: str) -> None:
    assert cron("x", expression, "k").schedule.expression == expression


@pytest.mark.parametrize("expression", VECTORS["reject"])
def test_no_other_expression_can(expression: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cron\('x'\) at tests\.test_cron:"):
        cron("x", expression, "k")
    assert "x" not in declared


@pytest.mark.parametrize(
    ("option", "accepted", "refused"),
    [
        ("priority", VECTORS["priority"]["accept"], VECTORS["priority"]["reject"]),
        ("max_attempts", VECTORS["max_attempts"]["accept"], VECTORS["max_attempts"]["reject"]),
        (
            "missed",
            VECTORS["missed_fire_policy"]["accept"],
            [*VECTORS["missed_fire_policy"]["reject"], None, []],
        ),
        ("timezone", VECTORS["timezone"]["accept"], [*VECTORS["timezone"]["reject"], None]),
        ("queue", ["q" * 59, "\u00e9" * 29], ["q" * 60, "\u00e9" * 30, "cancel", "a\nb"]),
        ("tags", [["t"] * 20], [["t"] * 21, ["a\0"], "text", [1]]),
        ("metadata", [{"a": 1}], [{"_awa_x": 1}, {"a": "\0"}, []]),
        ("args", [{"order_id": 1}], [{"order_id": "\0"}, {"order_id": float("nan")}, {}, {"wrong": 1}, 5]),
    ],
)
def test_each_limit_is_checked_when_the_schedule_is_declared(
    option: str, accepted: list[Any], refused: list[Any]
) -> None:
    for number, value in enumerate(accepted):
        cron(f"n{number}", "@daily", note, **{"args": {"order_id": 1}, option: value})
    for value in refused:
        with pytest.raises(ConfigurationError, match="cron\\('x'\\)"):
            cron("x", "@daily", note, **{"args": {"order_id": 1}, option: value})


@pytest.mark.parametrize("name", ["", "n" * 201, "a\0b", None, 7])
def test_a_name_of_1_to_200_characters_is_needed(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        cron(name, "@daily", "k")
    cron("n" * 200, "@daily", "k")


@pytest.mark.parametrize("job_", [None, print, lambda: None, JobInsert("k", {})])
def test_a_job_is_a_kind_or_its_name(job_: Any) -> None:
    with pytest.raises(ConfigurationError, match="a kind of job, declared with @job"):
        cron("x", "@daily", job_)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"unique": Unique(by_args=True)},
            "unique cannot be used by a schedule: .* KIND.using\\(unique=None\\)",
        ),
        ({"run_at": timedelta(hours=1)}, "run_at cannot be used"),
        ({"ordering_key": "k"}, "ordering_key cannot be used"),
        ({"using": "replica"}, "AWA\\['DATABASE'\\], which is 'default'"),
    ],
)
def test_options_that_a_schedule_cannot_keep_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        cron("x", "@daily", note.using(**options), args={"order_id": 1})


def test_a_name_means_one_schedule() -> None:
    cron("nightly", "0 3 * * *", "k")
    cron("nightly", "0 3 * * *", "k")  # as from a module that is imported twice
    for changed in (
        {"expression": "0 4 * * *"},
        {"timezone": "Europe/London"},
        {"job": "other"},
        {"args": {"a": 1}},
        {"missed": "catch_up"},
    ):
        arguments: dict[str, Any] = {"expression": "0 3 * * *", "job": "k", **changed}
        with pytest.raises(
            ConfigurationError, match=r"two schedules are named 'nightly', at tests\.test_cron:"
        ):
            cron("nightly", **arguments)
    assert len(declared) == 1


def test_declarations_in_an_isolated_block_are_forgotten() -> None:
    cron("kept", "@daily", "k")
    with declared.isolated():
        cron("forgotten", "@daily", "k")
        assert set(declared) == {"kept", "forgotten"}
    assert set(declared) == {"kept"}


def test_declaring_asks_no_database() -> None:
    # pytest-django refuses every query of a test without the mark.
    cron("nightly", "0 3 * * *", note, args={"order_id": 1})


# Operating


@pytest.mark.django_db
def test_schedules_are_listed_whole_and_by_name() -> None:
    store("zulu", cron_expr="0 0 1 1 *")
    store(
        "alpha",
        cron_expr="0 3 1 1 *",
        timezone="Pacific/Auckland",
        kind="pay",
        queue="mail",
        args='{"a": [1]}',
        priority=1,
        max_attempts=3,
        tags=["t"],
        metadata='{"m": 1}',
        missed_fire_policy="catch_up",
        last_enqueued_at="2026-01-01 00:00+00",
    )
    first, second = periodic.schedules()
    assert (first.name, second.name) == ("alpha", "zulu")
    assert (first.cron_expr, first.timezone, first.kind, first.queue) == (
        "0 3 1 1 *",
        "Pacific/Auckland",
        "pay",
        "mail",
    )
    assert (first.args, first.priority, first.max_attempts, first.tags) == ({"a": [1]}, 1, 3, ("t",))
    assert (first.metadata, first.missed_fire_policy) == ({"m": 1}, "catch_up")
    assert first.last_enqueued_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert not first.is_paused
    assert (first.created_at, second.last_enqueued_at) == (first.updated_at, None)
    # Once a year, so that it does not fire between the two looks at the clock.
    assert first.next_fire_at == Schedule.parse("0 3 1 1 *", "Pacific/Auckland").next_after(datetime.now(UTC))


@pytest.mark.django_db
def test_a_row_that_nobody_can_evaluate_is_listed_with_its_fault() -> None:
    store("broken", cron_expr="nonsense")
    store("never", cron_expr="0 0 31 2 *")
    store("endless", last_enqueued_at="infinity")
    broken, endless, never = periodic.schedules()
    assert broken.next_fire_at is None
    assert broken.fault is not None
    assert "has 1 field" in broken.fault
    assert (never.next_fire_at, never.fault) == (None, None)
    assert endless.last_enqueued_at is None
    with pytest.raises(InvalidSchedule):
        periodic.next_fires("broken")
    assert periodic.next_fires("never") == []


@pytest.mark.django_db
def test_the_next_fires_are_told_also_while_paused() -> None:
    store(cron_expr="0 3 1 1 *", timezone="Pacific/Auckland")  # rarely between two looks at the clock
    periodic.pause("nightly")
    ten = periodic.next_fires("nightly")
    assert len(ten) == 10
    assert periodic.next_fires("nightly", 3) == ten[:3]
    assert ten[0] == status().next_fire_at
    assert ten == Schedule.parse("0 3 1 1 *", "Pacific/Auckland").next_fires(datetime.now(UTC), 10)


@pytest.mark.django_db
def test_schedules_are_read_where_a_project_has_no_time_zones(settings: Any) -> None:
    settings.USE_TZ = False
    store(cron_expr="0 3 * * *", last_enqueued_at="2026-01-01 00:00+00")
    assert status().next_fire_at is not None
    assert status().last_enqueued_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert len(periodic.next_fires("nightly", 3)) == 3


@pytest.mark.django_db
def test_pausing_records_who_and_when_and_resuming_clears_both() -> None:
    store(last_enqueued_at="2026-01-01 00:00+00")
    before = status()
    periodic.pause("nightly")
    assert status().paused_by == "django"
    first = status().paused_at
    periodic.pause("nightly", "ops")
    again = status()
    assert again.is_paused
    assert again.paused_by == "ops"
    assert first is not None
    assert again.paused_at is not None
    assert again.paused_at > first
    periodic.resume("nightly")
    after = status()
    assert (after.paused_at, after.paused_by) == (None, None)
    assert (after.last_enqueued_at, after.created_at) == (before.last_enqueued_at, before.created_at)


@pytest.mark.django_db
@pytest.mark.parametrize("by", ["", "x" * 201, "a\0", None])
def test_who_pauses_has_a_name(by: Any) -> None:
    store()
    with pytest.raises(ValueError, match="by names who pauses"):
        periodic.pause("nightly", by)


@pytest.mark.django_db
def test_a_trigger_enqueues_one_job_even_while_paused_and_leaves_the_last_fire() -> None:
    store(
        queue="mail",
        priority=1,
        max_attempts=3,
        tags=["t"],
        metadata='{"m": 1, "cron_name": "other"}',
        last_enqueued_at="2026-01-01 00:00+00",
    )
    periodic.pause("nightly")
    job_id = periodic.trigger("nightly")
    (row,) = stored.ready()
    assert (row["job_id"], row["kind"], row["queue"], row["args"]) == (
        job_id,
        "note",
        "mail",
        {"order_id": 1},
    )
    assert (row["priority"], row["max_attempts"], row["payload"]["tags"]) == (1, 3, ["t"])
    assert row["payload"]["metadata"] == {"m": 1, "cron_name": "nightly", "triggered_manually": True}
    assert status().last_enqueued_at == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.django_db
def test_a_trigger_of_a_row_that_holds_no_job_is_refused() -> None:
    store(priority=9)
    with pytest.raises(InvalidJob, match="priority 9"), transaction.atomic():
        periodic.trigger("nightly")
    store("odd", metadata="[1]")
    periodic.trigger("odd")
    (row,) = stored.ready()
    assert row["payload"]["metadata"] == {"cron_name": "odd", "triggered_manually": True}


@pytest.mark.django_db
def test_deleting_says_whether_there_was_one() -> None:
    store()
    assert periodic.delete("nightly")
    assert not periodic.delete("nightly")
    assert periodic.schedules() == []


@pytest.mark.django_db
def test_a_schedule_that_is_not_there_raises() -> None:
    for call in (periodic.pause, periodic.resume, periodic.trigger, periodic.next_fires):
        with pytest.raises(ScheduleNotFound, match="no schedule is named 'nope'"):
            call("nope")
    assert issubclass(ScheduleNotFound, AwaError)
    assert issubclass(ScheduleNotFound, LookupError)


@pytest.mark.django_db
def test_changes_belong_to_the_callers_transaction() -> None:
    store()
    with transaction.atomic():
        periodic.pause("nightly", "ops")
        periodic.trigger("nightly")
        periodic.delete("nightly")
        transaction.set_rollback(True)
    assert not status().is_paused
    assert stored.ready() == []


@pytest.mark.django_db
def test_without_the_schema_the_way_out_is_named() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("ALTER SCHEMA awa RENAME TO awa_gone")
        try:
            with pytest.raises(SchemaOutOfDate, match=r"manage\.py migrate"), transaction.atomic():
                periodic.schedules()
        finally:
            cursor.execute("ALTER SCHEMA awa_gone RENAME TO awa")
