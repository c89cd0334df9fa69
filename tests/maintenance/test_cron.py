"""What the leader makes of schedules: written down, fired once each, caught up with, and never stuck.

Fires are judged by the database's clock. Tests whose schedule goes on firing read the expected fires off the row's
last one, so none depends on the moment it runs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from awa_django.conf import Settings
from awa_django.maintenance import Duty
from awa_django.maintenance.cron import CATCH_UP_LIMIT, evaluate, sync
from awa_django.periodic import PeriodicJob, cron, declared
from awa_django.schedule import Schedule
from awa_django.sql import statement
from awa_django.worker import scheduler as scheduling
from awa_django.worker.leader import Leadership
from awa_django.worker.scheduler import Scheduler
from tests.planes.world import World
from tests.vectors import load
from tests.workers import wait_until

VECTORS = load("cron")["fires"]


@pytest.fixture(autouse=True)
def _isolated() -> Iterator[None]:
    with declared.isolated():
        yield


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fire that has to wait does so for as long as the test takes to notice."""

    def unlimited(subject: str, name: str) -> str:
        return "SET LOCAL lock_timeout = 0" if name == "limit_wait" else statement(subject, name)

    monkeypatch.setattr("awa_django.maintenance.cron.statement", unlimited)


@pytest.fixture
def rival(world: World, world_database: str) -> Iterator[psycopg.Connection[Any]]:
    """Another session of the same database."""
    with psycopg.connect(world_database, autocommit=True) as connection:
        yield connection


def store(world: World, name: str = "s", last: str | datetime | None = None, **columns: Any) -> None:
    """A schedule's row, as any client writes it; ``last`` is SQL or an instant."""
    columns = {"name": name, "cron_expr": "@daily", "kind": "k", "queue": "q", **columns}
    world.run(
        f"INSERT INTO awa.cron_jobs ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})",
        *columns.values(),
    )
    if isinstance(last, str):
        world.run(f"UPDATE awa.cron_jobs SET last_enqueued_at = {last} WHERE name = %s", name)
    elif last is not None:
        world.run("UPDATE awa.cron_jobs SET last_enqueued_at = %s WHERE name = %s", last, name)


def row(world: World, name: str = "s") -> dict[str, Any]:
    (found,) = world.rows("SELECT * FROM awa.cron_jobs WHERE name = %s", name)
    return found


def jobs(world: World, name: str = "s") -> list[dict[str, Any]]:
    """The jobs that one schedule enqueued, in the order of their ids."""
    return world.rows(
        "SELECT *, payload->'metadata' AS metadata FROM awa.ready_entries"
        " WHERE payload->'metadata'->>'cron_name' = %s ORDER BY job_id",
        name,
    )


def fired(world: World, name: str = "s") -> list[datetime]:
    """The fire times that the jobs of one schedule carry."""
    return [datetime.fromisoformat(job["metadata"]["cron_fire_time"]) for job in jobs(world, name)]


def all_rounds(world: World, limit: int = 50) -> None:
    """Evaluate until nothing is due any more."""
    for _ in range(limit):
        if not evaluate(world.connection).fired:
            return
    raise AssertionError(f"still firing after {limit} passes")


def during_the_pass(action: Callable[[], object]) -> Callable[[], bool]:
    """For ``leading``: does something once the rows have been read, before the first is acted on."""
    left = [action]

    def leading() -> bool:
        while left:
            left.pop()()
        return True

    return leading


def waiting(connection: psycopg.Connection[Any]) -> int:
    """Sessions of this database that wait for a lock."""
    (number,) = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchone() or (0,)
    return int(number)


# Fires


def test_the_recorded_fire_lists_come_out_of_catch_up_evaluation(world: World) -> None:
    for number, vector in enumerate(VECTORS):
        store(
            world,
            f"v{number:03}",
            datetime.fromisoformat(vector["after"]),
            cron_expr=vector["expr"],
            timezone=vector["timezone"],
            missed_fire_policy="catch_up",
        )
    all_rounds(world)
    for number, vector in enumerate(VECTORS):
        until = datetime.fromisoformat(vector["until"])
        assert [fire for fire in fired(world, f"v{number:03}") if fire <= until] == [
            datetime.fromisoformat(fire) for fire in vector["fires"]
        ], vector


def test_a_fire_becomes_a_job_with_the_rows_columns(world: World) -> None:
    world.run("SET TimeZone = 'Asia/Kathmandu'")
    store(
        world,
        # A day on which no test is likely to run into the next fire.
        last="date_trunc('year', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '1 year'",
        cron_expr="@yearly",
        kind="kind",
        args=json.dumps({"a": [1]}),
        priority=1,
        max_attempts=7,
        tags=["t"],
        metadata=json.dumps({"m": 1, "cron_name": "other", "cron_fire_time": "never"}),
    )
    seen = evaluate(world.connection)
    assert (seen.schedules, seen.fired) == (1, 1)
    (job,) = jobs(world)
    assert (job["kind"], job["queue"], job["args"], job["priority"], job["max_attempts"]) == (
        "kind",
        "q",
        {"a": [1]},
        1,
        7,
    )
    assert job["payload"]["tags"] == ["t"]
    fire = datetime.now(UTC).replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    # As PostgreSQL prints it in zone UTC, though this session is in another.
    assert job["metadata"] == {"m": 1, "cron_name": "s", "cron_fire_time": f"{fire:%Y-%m-%d} 00:00:00+00"}
    assert (job["unique_key"], job["attempt"], job["run_lease"]) == (None, 0, 0)
    assert abs(job["run_at"] - datetime.now(UTC)) < timedelta(minutes=1)
    after = row(world)
    assert after["last_enqueued_at"] == fire
    assert after["updated_at"] > after["created_at"]
    assert evaluate(world.connection).fired == 0


def test_of_missed_fires_the_latest_counts_or_each_in_order(world: World) -> None:
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=3)
    store(world, "once", start)
    store(world, "each", start, missed_fire_policy="catch_up")
    evaluate(world.connection)  # once, as a midnight may pass before the next
    last = row(world, "each")["last_enqueued_at"]
    expected = Schedule.parse("@daily").fires_between(start, last, 10)
    assert len(expected) >= 3
    assert fired(world, "each") == expected
    assert fired(world, "once") == expected[-1:]
    assert row(world, "once")["last_enqueued_at"] == last


@pytest.mark.parametrize("policy", ["coalesce", "catch_up"])
def test_a_new_schedule_fires_at_its_next_time_and_not_for_the_past(world: World, policy: str) -> None:
    store(world, "daily", missed_fire_policy=policy)
    world.run("UPDATE awa.cron_jobs SET created_at = date_trunc('day', now(), 'UTC') + interval '61 seconds'")
    store(world, "minutely", cron_expr="* * * * *", missed_fire_policy=policy)
    world.run("UPDATE awa.cron_jobs SET created_at = now() - interval '10 minutes' WHERE name = 'minutely'")
    evaluate(world.connection)
    assert fired(world, "daily") == []
    # Only the latest of those that came since, whatever the policy: there was none to catch up from.
    assert fired(world, "minutely") == [row(world, "minutely")["last_enqueued_at"]]


def test_at_most_a_thousand_fires_are_caught_up_with_in_one_pass(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    store(world, last="now() - interval '1 hour'", cron_expr="* * * * * *", missed_fire_policy="catch_up")
    start = row(world)["last_enqueued_at"]
    with caplog.at_level(logging.WARNING, "awa_django.maintenance"):
        assert evaluate(world.connection).fired == CATCH_UP_LIMIT == 1000
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "'s' missed more than 1000 fires" in record.getMessage()
    first = start.replace(microsecond=0) + timedelta(seconds=1)
    assert fired(world) == [first + timedelta(seconds=number) for number in range(1000)]
    assert row(world)["last_enqueued_at"] == first + timedelta(seconds=999)
    evaluate(world.connection)
    assert fired(world)[-1] == first + timedelta(seconds=1999)


def test_a_long_outage_of_a_schedule_of_seconds_costs_one_job(world: World) -> None:
    store(world, last="'2001-01-01'", cron_expr="* * * * * *", timezone="US/Eastern")
    assert evaluate(world.connection).fired == 1
    assert fired(world) == [row(world)["last_enqueued_at"]]


def test_what_never_fires_and_what_fires_later_stays_silent(world: World) -> None:
    store(world, "never", last="'2001-01-01'", cron_expr="0 0 31 2 *", missed_fire_policy="catch_up")
    store(world, "ahead", last="now() + interval '2 days'")
    seen = evaluate(world.connection)
    assert (seen.schedules, seen.fired) == (2, 0)
    assert seen.next_in is not None
    assert 86400 < seen.next_in < 4 * 86400


def test_jobs_pile_up_in_a_paused_queue(world: World) -> None:
    world.run("INSERT INTO awa.queue_meta (queue, paused) VALUES ('q', true)")
    store(world, last="now() - interval '1 day'")
    assert evaluate(world.connection).fired == 1
    assert world.claim() == []


def test_jobs_go_where_the_transition_state_sends_them(world: World) -> None:
    world.run(
        "UPDATE awa.storage_transition_state SET current_engine = 'canonical', prepared_engine = NULL, "
        "state = 'canonical', details = '{}', finalized_at = NULL"
    )
    store(world, last="now() - interval '1 day'")
    evaluate(world.connection)
    assert world.one("SELECT metadata->>'cron_name' FROM awa.jobs_hot WHERE state = 'available'") == "s"


# More than one leader, crashes, pauses


def test_two_leaders_at_once_enqueue_one_job_for_each_fire(
    world: World, world_database: str, patient: None
) -> None:
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=3)
    store(world, "once", start)
    store(world, "each", start, missed_fire_policy="catch_up")
    passes: list[int] = []
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(psycopg.connect(world_database))
        leaders = [stack.enter_context(psycopg.connect(world_database, autocommit=True)) for _ in range(2)]
        # Both have read the rows and are at the update when the first may go on.
        holder.execute("SELECT FROM awa.cron_jobs ORDER BY name FOR UPDATE")
        threads = [
            threading.Thread(target=lambda leader=leader: passes.append(evaluate(leader).fired))
            for leader in leaders
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: waiting(world.connection) == 2, what="both leaders at the row")
        holder.rollback()
        for thread in threads:
            thread.join(20)
    expected = Schedule.parse("@daily").fires_between(start, row(world, "each")["last_enqueued_at"], 10)
    assert fired(world, "each") == expected
    assert fired(world, "once") == expected[-1:]
    assert sum(passes) == len(expected) + 1


@contextlib.contextmanager
def held_lane(world_database: str) -> Iterator[psycopg.Connection[Any]]:
    """A producer whose open transaction keeps the lane of the schedules' jobs."""
    with psycopg.connect(world_database) as producer:
        producer.execute("SELECT awa.insert_job_compat('k', 'q')")
        yield producer
        producer.rollback()


def test_a_crash_between_the_update_and_the_insert_leaves_no_trace(
    world: World, world_database: str, rival: psycopg.Connection[Any], patient: None
) -> None:
    store(world, last="'2020-01-01 00:00+00'")
    errors: list[BaseException] = []

    def lead() -> None:
        try:
            evaluate(rival)
        except psycopg.OperationalError as error:
            errors.append(error)

    with held_lane(world_database):
        thread = threading.Thread(target=lead)
        thread.start()
        # Its row is updated, its job waits for the lane.
        wait_until(lambda: waiting(world.connection) == 1, what="the insert")
        world.run("SELECT pg_terminate_backend(%s)", rival.info.backend_pid)
        thread.join(20)
    assert len(errors) == 1
    assert row(world)["last_enqueued_at"] == datetime(2020, 1, 1, tzinfo=UTC)
    assert jobs(world) == []
    assert evaluate(world.connection).fired == 1
    assert len(jobs(world)) == 1


def test_a_fire_that_waits_too_long_gives_way_to_the_other_schedules(
    world: World, world_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    store(world, "a", last="'2020-01-01'")
    store(world, "b", last="'2020-01-01'", queue="other")
    with held_lane(world_database), caplog.at_level(logging.ERROR, "awa_django.maintenance"):
        assert evaluate(world.connection).fired == 1
    assert "schedule 'a': its job for" in caplog.text
    assert "lock timeout" in caplog.text
    assert (len(jobs(world, "a")), len(jobs(world, "b"))) == (0, 1)
    assert evaluate(world.connection).fired == 1


def test_a_pause_that_commits_before_the_fire_is_taken_holds_it_back(
    world: World, rival: psycopg.Connection[Any]
) -> None:
    store(world, last="'2020-01-01 00:00+00'")
    pause = during_the_pass(lambda: rival.execute("UPDATE awa.cron_jobs SET paused_at = now()"))
    assert evaluate(world.connection, leading=pause).fired == 0
    assert jobs(world) == []
    assert row(world)["last_enqueued_at"] == datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("policy", ["coalesce", "catch_up"])
def test_after_a_resume_the_policy_decides_what_is_made_up(world: World, policy: str) -> None:
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=3)
    store(world, last=start, missed_fire_policy=policy)
    world.run("UPDATE awa.cron_jobs SET paused_at = now(), paused_by = 'ops'")
    seen = evaluate(world.connection)
    assert (seen.schedules, seen.fired, seen.next_in) == (1, 0, None)
    world.run("UPDATE awa.cron_jobs SET paused_at = NULL, paused_by = NULL")
    evaluate(world.connection)
    expected = Schedule.parse("@daily").fires_between(start, row(world)["last_enqueued_at"], 10)
    assert fired(world) == (expected if policy == "catch_up" else expected[-1:])


def test_the_job_is_that_of_the_row_at_the_moment_it_is_taken(
    world: World, rival: psycopg.Connection[Any]
) -> None:
    store(world, last="'2020-01-01'")
    change = during_the_pass(lambda: rival.execute("UPDATE awa.cron_jobs SET kind = 'changed', priority = 4"))
    assert evaluate(world.connection, leading=change).fired == 1
    (job,) = jobs(world)
    assert (job["kind"], job["priority"]) == ("changed", 4)


def test_a_leader_that_lost_its_office_stops_in_the_middle(world: World) -> None:
    store(world, "a", last="'2020-01-01'", missed_fire_policy="catch_up")
    store(world, "b", last="'2020-01-01'")
    answers = iter([True, True, False, False])
    assert evaluate(world.connection, leading=lambda: next(answers)).fired == 100
    assert jobs(world, "b") == []


# Rows that cannot be evaluated


def test_broken_rows_are_reported_in_each_pass_and_stop_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    last = "'2020-01-01'"
    broken: dict[str, dict[str, Any]] = {
        "a expression": {"cron_expr": "nonsense"},
        "b zone": {"timezone": "utc"},
        "c metadata": {"metadata": "[1]"},
        "d priority": {"priority": 9},
        "e attempts": {"max_attempts": 0},
        "f tags": {"tags": ["t"] * 21},
        "g kind": {"kind": "k" * 201},
        "h queue": {"queue": "q" * 100},
    }
    for name, columns in broken.items():
        store(world, name, last, **columns)
    store(world, "i endless", "'infinity'")
    store(world, "j before", "'4000-01-01 BC'")
    store(world, "k beyond", "'20000-01-01'")
    store(world, "l first", created_at="0001-01-01 00:00:30+00")
    world.run("ALTER TABLE awa.cron_jobs DROP CONSTRAINT cron_jobs_missed_fire_policy_check")
    try:
        store(world, "m policy", last, missed_fire_policy="x")
        store(world, "z good", last, cron_expr="@yearly")
        for number in range(2):
            caplog.clear()
            with caplog.at_level(logging.ERROR, "awa_django.maintenance"):
                seen = evaluate(world.connection)
            assert (seen.schedules, seen.fired) == (14, 1 - number)
            assert len(caplog.records) == 13
            for name in (*broken, "i endless", "j before", "k beyond", "l first", "m policy"):
                assert f"schedule {name!r}" in caplog.text
        assert "has 1 field" in caplog.text
        assert "did you mean 'UTC'?" in caplog.text
        assert "priority 9" in caplog.text
        assert len(jobs(world, "z good")) == 1
        untouched = world.rows("SELECT DISTINCT last_enqueued_at::text FROM awa.cron_jobs WHERE name < 'i'")
        assert len(untouched) == 1
    finally:
        world.run("DELETE FROM awa.cron_jobs")
        world.run(
            "ALTER TABLE awa.cron_jobs ADD CONSTRAINT cron_jobs_missed_fire_policy_check"
            " CHECK (missed_fire_policy IN ('coalesce', 'catch_up'))"
        )


def test_a_row_whose_fires_cannot_be_computed_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store(world, "a", last="'2020-01-01'", cron_expr="@hourly")
    store(world, "b", last="'2020-01-01'")
    compute = Schedule.last_until

    def fail(self: Schedule, instant: datetime) -> datetime | None:
        if self.expression == "@hourly":
            raise ZeroDivisionError
        return compute(self, instant)

    monkeypatch.setattr(Schedule, "last_until", fail)
    with caplog.at_level(logging.ERROR, "awa_django.maintenance"):
        assert evaluate(world.connection).fired == 1
    assert "schedule 'a' is skipped" in caplog.text
    assert len(jobs(world, "b")) == 1


# Declarations


def declare(name: str = "s", expression: str = "0 3 * * *", **options: Any) -> PeriodicJob:
    return cron(name, expression, options.pop("job", "k"), **options)


def test_declarations_are_written_whole(world: World) -> None:
    declare(
        job="pay",
        args={"a": "\u00e9", "b": [1, None]},
        timezone="Pacific/Auckland",
        missed="catch_up",
        queue="mail",
        priority=1,
        max_attempts=3,
        tags=["t", "u"],
        metadata={"m": {"n": 1}},
    )
    declare("plain")
    sync(world.connection, declared.values())
    found = row(world)
    assert {name: found[name] for name in list(found)[:11]} == {
        "name": "s",
        "cron_expr": "0 3 * * *",
        "timezone": "Pacific/Auckland",
        "kind": "pay",
        "queue": "mail",
        "args": {"a": "\u00e9", "b": [1, None]},
        "priority": 1,
        "max_attempts": 3,
        "tags": ["t", "u"],
        "metadata": {"m": {"n": 1}},
        "missed_fire_policy": "catch_up",
    }
    assert (found["last_enqueued_at"], found["paused_at"], found["paused_by"]) == (None, None, None)
    plain = row(world, "plain")
    assert {name: plain[name] for name in ("timezone", "queue", "priority", "max_attempts", "tags")} == {
        "timezone": "UTC",
        "queue": "default",
        "priority": 2,
        "max_attempts": 25,
        "tags": [],
    }
    assert (plain["args"], plain["metadata"], plain["missed_fire_policy"]) == ({}, {}, "coalesce")


def test_a_changed_declaration_keeps_the_last_fire_and_the_pause(world: World) -> None:
    with declared.isolated():
        declare()
        sync(world.connection, declared.values())
    store(world, "of another client")
    world.run(
        "UPDATE awa.cron_jobs SET last_enqueued_at = '2020-01-01 00:00+00', paused_at = now(), paused_by = 'ops'"
    )
    before = row(world)
    declare(expression="0 4 * * *", job="other", missed="catch_up")
    sync(world.connection, declared.values())
    after = row(world)
    assert (after["cron_expr"], after["kind"], after["missed_fire_policy"]) == (
        "0 4 * * *",
        "other",
        "catch_up",
    )
    kept = ("created_at", "last_enqueued_at", "paused_at", "paused_by")
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert after["updated_at"] > before["updated_at"]
    assert len(world.rows("SELECT FROM awa.cron_jobs")) == 2


def test_without_declarations_nothing_is_written_and_nothing_deleted(world: World) -> None:
    store(world)
    sync(world.connection, [])
    assert row(world)["updated_at"] == row(world)["created_at"]


# The thread


@pytest.fixture
def scheduler(world: World, world_database: str) -> Iterator[Callable[..., Scheduler]]:
    """A function that starts schedulers; they are stopped with the test."""
    # Of those of another test the server may have a session yet.
    wait_until(lambda: not sessions(world), what="the end of earlier sessions")
    with contextlib.ExitStack() as running:

        def make(leads: Callable[[], bool] = lambda: True, **options: Any) -> Scheduler:
            def connection() -> psycopg.Connection[Any]:
                return psycopg.connect(world_database, autocommit=True, application_name="awa test scheduler")

            service = Scheduler(Settings(), leads, connection=connection, **options)
            service.start()
            running.callback(service.join, 30)
            running.callback(service.stop)
            return service

        yield make


def sessions(world: World) -> Sequence[int]:
    return [
        found["pid"]
        for found in world.rows(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'awa test scheduler'"
        )
    ]


def test_on_election_declarations_are_stored_and_fire(
    world: World, scheduler: Callable[..., Scheduler]
) -> None:
    declare(expression="* * * * * *", missed="catch_up")
    elected = threading.Event()
    service = scheduler(elected.is_set)
    wait_until(lambda: service.alive)
    assert sessions(world) == []
    assert world.rows("SELECT FROM awa.cron_jobs") == []
    elected.set()
    wait_until(lambda: len(jobs(world)) >= 3, what="three fires")
    elected.clear()
    wait_until(lambda: not sessions(world), what="the end of its session")
    found = fired(world)
    assert found == [found[0] + timedelta(seconds=number) for number in range(len(found))]
    for job, fire in zip(jobs(world), found, strict=True):
        assert job["run_at"] >= fire


def test_what_was_stored_again_stays_what_code_declares(
    world: World, scheduler: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "SYNC_INTERVAL", 0.2)
    declare()
    scheduler()
    wait_until(lambda: world.rows("SELECT FROM awa.cron_jobs"))
    world.run("DELETE FROM awa.cron_jobs")
    wait_until(lambda: world.rows("SELECT FROM awa.cron_jobs"), what="the schedule, declared again")


def test_declarations_that_cannot_be_stored_do_not_keep_the_others_from_firing(
    world: World, scheduler: Callable[..., Scheduler], caplog: pytest.LogCaptureFixture
) -> None:
    store(world, last="'2020-01-01'")
    good = declare("good")
    bad = replace(good, job=replace(good.job, priority=99_999))
    with caplog.at_level(logging.ERROR, "awa_django.worker"):
        scheduler(declarations=lambda: [bad])
        wait_until(lambda: jobs(world))
    assert "could not be stored" in caplog.text


def test_a_schedule_that_another_client_adds_is_found(
    world: World, scheduler: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "EMPTY_INTERVAL", 0.1)
    scheduler()
    wait_until(lambda: sessions(world))
    store(world, last="'2020-01-01'")
    wait_until(lambda: jobs(world))


def test_an_idle_scheduler_looks_seldom_and_more_seldom_where_there_is_nothing(
    world: World, scheduler: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    slept = threading.Event()
    wait = Scheduler._pause

    def pause(self: Scheduler, seconds: float) -> None:
        pauses.append(seconds)
        slept.set()
        wait(self, seconds)

    monkeypatch.setattr(Scheduler, "_pause", pause)
    first = scheduler()
    assert slept.wait(30)
    assert pauses[0] == 5
    first.stop()
    assert first.join(30)
    store(world, cron_expr="0 0 1 1 *")
    slept.clear()
    scheduler()
    assert slept.wait(30)
    assert pauses[-1] == 2.5


def test_it_sleeps_until_the_next_fire_and_looks_now_and_then() -> None:
    sleep = scheduling._seconds_until_next
    assert sleep(scheduling.Pass(0)) == 5
    assert sleep(scheduling.Pass(3)) == 2.5
    assert sleep(scheduling.Pass(3, next_in=3600)) == 2.5
    assert 0.3 < sleep(scheduling.Pass(3, next_in=0.3)) < 0.31


def test_it_survives_the_loss_of_its_session(world: World, scheduler: Callable[..., Scheduler]) -> None:
    store(world, cron_expr="* * * * * *")
    service = scheduler()
    (pid,) = wait_until(lambda: sessions(world))
    wait_until(lambda: jobs(world))
    world.run("SELECT pg_terminate_backend(%s)", pid)
    wait_until(lambda: sessions(world) not in ([], [pid]), what="another session")
    count = len(jobs(world))
    wait_until(lambda: len(jobs(world)) > count)
    assert service.crashes == 0


def test_a_statement_that_waits_can_be_broken_off(
    world: World, world_database: str, scheduler: Callable[..., Scheduler], patient: None
) -> None:
    store(world, last="'2020-01-01'")
    with held_lane(world_database):
        service = scheduler()
        wait_until(lambda: waiting(world.connection) == 1)
        service.stop()
        assert not service.join(0.2)
        service.cancel()
        assert service.join(30)
    assert jobs(world) == []


def test_schedules_fire_while_another_duty_of_the_leader_is_slow(
    world: World, world_database: str, scheduler: Callable[..., Scheduler]
) -> None:
    slow = threading.Event()

    def dawdle(context: Any) -> bool:
        slow.set()
        context.connection.execute("SELECT pg_sleep(60)")
        return False

    leader = Leadership(
        Settings(),
        [world.plane],
        duties=[Duty("slow", timedelta(hours=1), dawdle, at_once=True)],
        connection=lambda: psycopg.connect(world_database, autocommit=True),
    )
    leader.start()
    try:
        assert leader.wait_until_leader(30)
        assert slow.wait(30)
        store(world, cron_expr="* * * * * *")
        scheduler(lambda: leader.is_leader)
        wait_until(lambda: len(jobs(world)) >= 2, what="fires while the timetable stands still")
    finally:
        leader.stop()
        leader.cancel()
        assert leader.join(30)
