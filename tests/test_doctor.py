"""What an examination finds: one thing broken at a time, and nothing where all is well."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import psycopg
import pytest
from django.db import connections

from awa_django import operations
from awa_django.operations import Finding, JobFilter, Level
from awa_django.operations.doctor import CHECKS
from awa_django.operations.leading import LEADER_KEY
from tests import databases, stored
from tests.console.test_verbs import runtime, scheduled_by_cron, waiting
from tests.settings import database
from tests.test_operations import added, claimed
from tests.test_operator_reads import canonical
from tests.workers import wait_until


def module(name: str) -> Any:
    """A module of the examination; the package has a function of its name."""
    return sys.modules[f"awa_django.operations.doctor.{name}"]


def examination(using: str) -> Any:
    """What one check is given."""
    return module("finding").Patient(using, timedelta(milliseconds=300))


def found(check: str, level: Level, *words: str, using: str | None = None) -> Finding:
    """The finding of a check that is this bad and says these words."""
    findings = [item for item in operations.doctor(using=using) if item.check == check]
    fitting = [
        item
        for item in findings
        if item.level is level and all(word in f"{item.sentence} {item.hint}" for word in words)
    ]
    assert fitting, findings
    assert level is Level.OK or fitting[0].hint or level is Level.SKIPPED, fitting
    return fitting[0]


@pytest.fixture
def well() -> None:
    """A worker that leads and serves queue ``q`` and kind ``k``."""
    stored.run("SELECT pg_advisory_xact_lock(%s)", LEADER_KEY)
    runtime(hostname="w1", leader=True, kinds=["k"], queues=[{"queue": "q", "config": {"max_workers": 5}}])


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_an_installation_that_works_has_nothing_wrong() -> None:
    added()
    findings = operations.doctor()
    assert [item.check for item in findings] == ["schema", *CHECKS]
    assert [item for item in findings if item.level is not Level.OK] == []


# The fleet


@pytest.mark.django_db
def test_nobody_leads() -> None:
    found("leader", Level.ERROR, "Nobody leads", "Start one without --no-maintenance")
    runtime(hostname="w1")
    found(
        "leader", Level.ERROR, "Nobody leads", "If no worker takes the lead within half a minute, start one"
    )


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_several_say_that_they_lead() -> None:
    runtime(hostname="w2", leader=True)
    found("leader", Level.WARNING, "w2:7", "w1:7", "only session")


@pytest.mark.django_db
def test_a_leader_that_does_not_report() -> None:
    stored.run("SELECT pg_advisory_xact_lock(%s)", LEADER_KEY)
    found("leader", Level.WARNING, "no live worker says that it leads", "pg_terminate_backend")


@pytest.mark.django_db
def test_a_leader_of_another_client_is_no_fault() -> None:
    stored.run("SELECT pg_advisory_xact_lock(%s)", LEADER_KEY)
    runtime(hostname="rust", leader=True, version="0.6.9")
    found("leader", Level.OK, "rust:7 leads (a worker of awa's own")


@pytest.mark.django_db
def test_no_worker_is_worse_where_jobs_wait() -> None:
    found("workers", Level.WARNING, "No worker is running.")
    found("kinds", Level.SKIPPED)
    added()
    found("workers", Level.ERROR, "No worker is running, and 1 job waits.")


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_workers_that_are_unwell_silent_or_unlike() -> None:
    runtime(hostname="w2", healthy=False)
    runtime(hostname="w3", silent="1 hour")
    runtime(hostname="w4", silent="1 hour", shutting_down=True)
    runtime(hostname="w5", queues=[{"queue": "q", "config": {"max_workers": 9}}])
    found("workers", Level.WARNING, "w2:7 does not look for jobs")
    found("workers", Level.WARNING, "w3:7 has been silent since")
    found("workers", Level.WARNING, "Workers of queue q are configured differently")
    assert not [item for item in operations.doctor() if "w4" in item.sentence]


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_queues_that_nobody_serves_or_that_are_paused_or_late() -> None:
    added(queue="lost")
    added(queue="still")
    operations.pause("still", "ann")
    runtime(hostname="w2", queues=[{"queue": "idle", "config": {"max_workers": 0}}])
    added(queue="idle")
    added()
    stored.run("UPDATE awa.ready_entries SET run_at = now() - interval '1 hour' WHERE queue = 'q'")
    found("queues", Level.ERROR, "Nobody serves queue lost, in which 1 job waits.", "--queue lost")
    found("queues", Level.ERROR, "Nobody serves queue idle", "max_workers is 0")
    found(
        "queues", Level.WARNING, "Queue still is paused by ann since", "1 waiting job", "queue resume still"
    )
    found("queues", Level.WARNING, "oldest job of queue q has been due for 1 h")
    operations.cancel(JobFilter(queue="lost"))
    assert not [item for item in operations.doctor() if "lost" in item.sentence]


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_kinds_that_no_worker_handles() -> None:
    for _ in range(3):
        added(kind="strange")
    gone = added(kind="gone")
    operations.cancel(gone)
    found("kinds", Level.ERROR, "No live worker handles 1 kind of waiting jobs: strange (3).")


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_a_move_that_does_not_go_on() -> None:
    canonical()
    found(
        "storage", Level.ERROR, "1 canonical job is not finished, and nobody drains them", "canonical_drain"
    )
    runtime(hostname="drain", capability="canonical_drain_only")
    found("storage", Level.OK, "workers drain them")
    stored.run("DELETE FROM awa.jobs_hot")
    stored.run(
        "UPDATE awa.storage_transition_state SET state = 'mixed_transition', prepared_engine = 'queue_storage'"
    )
    found("storage", Level.WARNING, "is not ended", "storage finalize")
    stored.use_canonical()
    stored.run("DELETE FROM awa.runtime_storage_backends")
    found("storage", Level.OK, "The canonical tables are in force.")


# Work that should have been done


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_due_jobs_that_stay_scheduled() -> None:
    added(run_at=datetime.now(UTC) - timedelta(minutes=5))
    found("promotion", Level.ERROR, "has been due for 5 min")
    operations.pause("q")
    found("promotion", Level.OK)


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_schedules_that_missed_a_fire_or_can_never_fire() -> None:
    scheduled_by_cron("late", "* * * * *")
    scheduled_by_cron("paused", "* * * * *")
    scheduled_by_cron("later")
    stored.run("UPDATE awa.cron_jobs SET created_at = now() - interval '10 minutes' WHERE name <> 'later'")
    stored.run("UPDATE awa.cron_jobs SET paused_at = now() WHERE name = 'paused'")
    found("cron", Level.ERROR, "1 schedule should have fired: late, the first at")
    scheduled_by_cron("never", "nonsense")
    scheduled_by_cron("list", "* * * * *")
    stored.run("UPDATE awa.cron_jobs SET metadata = '[]' WHERE name = 'list'")
    found("cron", Level.ERROR, "Schedule never never fires", "cron delete never")
    found("cron", Level.ERROR, "Schedule list never fires", "no JSON object")


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_callbacks_that_nobody_can_answer_or_whose_time_is_up(settings: Any) -> None:
    job_id, _ = waiting()
    found("callbacks", Level.WARNING, "CALLBACK_SECRETS", "openssl rand -hex 32")
    settings.AWA = {"CALLBACK_SECRETS": ["07" * 32]}
    found("callbacks", Level.OK)
    stored.run("UPDATE awa.leases SET callback_timeout_at = now() - interval '10 minutes'")
    found("callbacks", Level.ERROR, f"callback of job {job_id} timed out 10 min ago")


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_a_batch_operation_that_does_not_move() -> None:
    operation = operations.submit_batch(operations.SetPriority(1), JobFilter(queue="q"))
    found("batches", Level.OK, "1 batch operation under way")
    stored.run("UPDATE awa.batch_operations SET updated_at = now() - interval '10 minutes'")
    found("batches", Level.ERROR, f"{operation.id} is pending and has not moved for 10 min", "batch cancel")
    # One of ours that goes on says nothing about those that the leader runs.
    ours = operations.submit_batch(operations.Cancel(), JobFilter(queue="q"))
    found("batches", Level.ERROR, f"{operation.id} is pending", "the leader")
    operations.cancel_batch(operation.id)
    stored.run("UPDATE awa.batch_operations SET state = 'cancelled'")
    stored.run("UPDATE awa_django_batchoperation SET updated_at = now() - interval '10 minutes'")
    found("batches", Level.ERROR, f"{ours.id} is pending", "take part in maintenance")


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_a_slot_that_work_in_progress_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = added()
    opened = datetime.now(UTC) - timedelta(hours=5)
    monkeypatch.setattr(module("rings"), "opened_at", lambda cursor, slot: opened)
    found("rings", Level.OK, "0 of 15 slots hold history")
    stored.run("UPDATE awa.queue_ring_state SET current_slot = 1, generation = 1")
    found("rings", Level.WARNING, "Slot 0 of the queue ring, opened 5 h ago", f"job {job_id} has not been")
    claimed()
    found("rings", Level.WARNING, "receipts of its jobs are open")


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_rings_without_a_free_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    from awa_django.planes.queue_storage.rings import Gate, Look, Ring

    full = Ring(20, (8192,) * 8)
    monkeypatch.setattr(
        module("rings"),
        "look",
        lambda cursor: Look(datetime.now(UTC), None, Ring(40, (8192,) * 16), full, full, operations=False),
    )
    monkeypatch.setattr(module("rings"), "opened_at", lambda cursor, slot: datetime(2026, 1, 1, tzinfo=UTC))
    monkeypatch.setattr(module("rings"), "queue_slot_gate", lambda cursor, slot: Gate("job 7 runs", "r"))
    found("rings", Level.ERROR, "All 15 sealed slots of the queue ring are held")
    found("rings", Level.WARNING, "No slot of the claim ring is free: receipts")
    found("rings", Level.WARNING, "No slot of the lease ring is free: leases")


# The server


@contextmanager
def alias(url: str, **options: str) -> Iterator[str]:
    """An alias of Django's for a database, with options of libpq."""
    name = f"examined_{uuid.uuid4().hex[:8]}"
    entry = database(url)
    entry["OPTIONS"] = {**entry["OPTIONS"], **options}  # type: ignore[dict-item]
    connections.databases[name] = connections.configure_settings({"default": {}, name: entry})[name]
    try:
        yield name
    finally:
        connections[name].close()
        del connections[name]
        del connections.databases[name]


@pytest.fixture(scope="module")
def examined(server_url: str, awa_template: str) -> Iterator[str]:
    """A database that the tests of this module break, and put right again."""
    with databases.scratch(server_url, "examined", template=awa_template) as url:
        yield url


@pytest.fixture
def unblocked(django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


serverwise = pytest.mark.usefixtures("unblocked")


class Deaf:
    """A server behind a pooler that swallows notifications: everything else goes through."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = self._connect()
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._filter, args=(server, client), daemon=True).start()

    def _connect(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host, self._port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{self._host}/.s.PGSQL.{self._port}")
        return server

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket) -> None:
        with target:
            while data := _received(source, 65536, exactly=False):
                target.sendall(data)

    @staticmethod
    def _filter(source: socket.socket, target: socket.socket) -> None:
        with target:
            while head := _received(source, 5):
                body = _received(source, int.from_bytes(head[1:], "big") - 4)
                if head[:1] != b"A":  # NotificationResponse
                    target.sendall(head + body)


def _received(source: socket.socket, size: int, *, exactly: bool = True) -> bytes:
    data = b""
    try:
        while len(data) < size:
            piece = source.recv(size - len(data))
            data += piece
            if not piece or not exactly:
                return b"" if exactly else data
    except OSError:
        return b""
    return data


@serverwise
def test_a_pooler_that_swallows_notifications_is_found_out(examined: str, settings: Any) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(examined)
    with closing(
        Deaf(str(parts.get("host") or "/var/run/postgresql"), int(str(parts.get("port") or 5432)))
    ) as pooler:
        behind = databases.address(examined, host="127.0.0.1", port=str(pooler.port))
        with alias(behind, sslmode="disable", gssencmode="disable") as name:
            (heard,) = module("server").notify(examination(name))
            assert (heard.level, "did not come back within 300 ms" in heard.sentence) == (Level.WARNING, True)
            settings.AWA = {"LISTEN": False}
            (quiet,) = module("server").notify(examination(name))
            assert (quiet.level, "workers poll" in quiet.sentence) == (Level.OK, True)


@serverwise
@pytest.mark.parametrize(
    ("setting", "level", "said"),
    [
        ("statement_timeout=20000", Level.WARNING, "statement_timeout gives a statement 20 s"),
        ("lock_timeout=500", Level.WARNING, "lock_timeout gives a lock 500 ms"),
        ("idle_session_timeout=60000", Level.WARNING, "idle_session_timeout ends sessions"),
        ("default_transaction_read_only=on", Level.ERROR, "read-only"),
        ("default_transaction_isolation=serializable", Level.ERROR, "are serializable; claims"),
        ("session_replication_role=replica", Level.ERROR, "is replica in sessions of this role, so triggers"),
    ],
)
def test_settings_under_which_sessions_work_badly(
    examined: str, setting: str, level: Level, said: str
) -> None:
    with alias(examined, options=f"-c {setting}") as name:
        found("server", level, said, using=name)


@serverwise
def test_a_standby_is_told_from_a_primary(examined: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = module("finding").Patient
    original = patient.row

    def row(self: Any, name: str, **values: Any) -> Any:
        given = original(self, name, **values)
        return (True, *given[1:]) if name == "session" else given

    monkeypatch.setattr(patient, "row", row)
    with alias(examined) as name:
        found("server", Level.ERROR, "is a standby", using=name)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("offset", "level", "said"),
    [
        (timedelta(seconds=50), Level.WARNING, " s ahead of that of the database"),
        (-timedelta(minutes=5), Level.ERROR, "min behind that of the database"),
    ],
)
def test_a_clock_that_is_off(
    monkeypatch: pytest.MonkeyPatch, offset: timedelta, level: Level, said: str
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            # The round trip is given away, so what is found is less by as long as that takes.
            return datetime.now(tz) + offset

    monkeypatch.setattr(module("server"), "datetime", Clock)
    found("clock", level, said)


@serverwise
def test_a_role_that_lacks_rights(examined: str, server_url: str) -> None:
    role = databases.new_name("doctor")
    with psycopg.connect(examined, autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "{role}" LOGIN')
        try:
            connection.execute("SELECT awa.insert_job_compat('k', 'mine')")
            connection.execute(f'GRANT USAGE ON SCHEMA awa TO "{role}"')
            connection.execute(
                f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA awa TO "{role}"'
            )
            with alias(databases.address(examined, user=role)) as name:
                found(
                    "grants", Level.ERROR, "sequences of another role", "Their lanes are closed", using=name
                )
                found("grants", Level.ERROR, "may not empty", "GRANT TRUNCATE", using=name)
                found("snapshots", Level.SKIPPED, "of other roles cannot be seen", using=name)
                said = [item for item in operations.doctor(using=name) if item.check == "snapshots"]
                assert Level.OK not in {item.level for item in said}, said
                connection.execute(f'REVOKE INSERT ON awa.deferred_jobs FROM "{role}"')
                found("grants", Level.ERROR, "may not write to deferred_jobs", using=name)
        finally:
            connection.execute(f'DROP OWNED BY "{role}"')
            connection.execute(f'DROP ROLE "{role}"')


@serverwise
def test_an_old_transaction_is_named_with_the_way_to_end_it(
    examined: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module("server"), "IDLE_TRANSACTION", 0.05)
    with (
        psycopg.connect(examined, application_name="forgetful") as idle,
        psycopg.connect(examined, autocommit=True) as watching,
        alias(examined) as name,
    ):
        idle.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        idle.execute("SELECT count(*) FROM awa.queue_meta")
        wait_until(
            lambda: watching.execute(
                "SELECT 1 FROM pg_stat_activity WHERE application_name = 'forgetful'"
                " AND state_change < clock_timestamp() - interval '0.2 seconds'"
            ).fetchone()
        )
        found(
            "snapshots", Level.WARNING, "forgetful", "has been idle in a transaction for",
            f"pg_terminate_backend({idle.info.backend_pid})", using=name,
        )  # fmt: skip
        monkeypatch.setattr(module("server"), "IDLE_TRANSACTION", 0.1)
        monkeypatch.setattr(module("server"), "VERY_OLD_TRANSACTION", 0.1)
        found("snapshots", Level.ERROR, "forgetful", using=name)


@serverwise
def test_what_somebody_changed_about_the_schema_is_found(examined: str) -> None:
    with psycopg.connect(examined, autocommit=True) as connection, alias(examined) as name:
        connection.execute("SELECT awa.insert_job_compat('k', 'mine')")
        (sequence,) = connection.execute(
            "SELECT seq_name FROM awa.queue_claim_heads WHERE queue = 'mine'"
        ).fetchone()  # type: ignore[misc]
        triggers = connection.execute(
            "SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE NOT tgisinternal"
            " AND tgrelid = 'awa.queue_claim_heads'::regclass"
        ).fetchall()
        table, trigger = triggers[0]
        connection.execute(f"ALTER SEQUENCE awa.{sequence} CACHE 20")
        connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER {trigger}")
        connection.execute("ALTER TABLE awa.deferred_jobs SET (autovacuum_enabled = false)")
        connection.execute("ALTER TABLE awa.queue_meta SET UNLOGGED")
        dropped = ("idx_awa_deferred_due", "idx_awa_ready_3_job")
        definitions = [
            connection.execute("SELECT pg_get_indexdef(%s::regclass)", [f"awa.{index}"]).fetchone()
            for index in dropped
        ]
        connection.execute("DROP INDEX awa.idx_awa_deferred_due, awa.idx_awa_ready_3_job")
        try:
            found(
                "catalogue", Level.ERROR, "1 lane sequence hands numbers out in blocks", sequence, using=name
            )
            found("catalogue", Level.ERROR, "1 trigger is off", trigger, using=name)
            found("catalogue", Level.WARNING, "1 table is left out by autovacuum: deferred_jobs", using=name)
            found("catalogue", Level.ERROR, "1 table is unlogged", "queue_meta", "SET LOGGED", using=name)
            found(
                "catalogue", Level.ERROR, "2 indexes are missing", "idx_awa_deferred_due, one of ready_entries_3.",
                "awa_sql", using=name,
            )  # fmt: skip
        finally:
            connection.execute("ALTER TABLE awa.queue_meta SET LOGGED")
            for (definition,) in filter(None, definitions):
                connection.execute(definition)
            connection.execute(f"ALTER SEQUENCE awa.{sequence} CACHE 1")
            connection.execute(f"ALTER TABLE {table} ENABLE TRIGGER {trigger}")
            connection.execute("ALTER TABLE awa.deferred_jobs RESET (autovacuum_enabled)")
        found("catalogue", Level.OK, using=name)


@serverwise
def test_who_holds_a_lock_for_which_others_wait(examined: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module("server"), "LONG_WAIT", 0.05)

    def wait(waiter: psycopg.Connection[Any]) -> None:
        with contextlib.suppress(psycopg.errors.QueryCanceled):
            waiter.execute("LOCK TABLE awa.batch_operation_items")

    with (
        psycopg.connect(examined, application_name="holder") as holder,
        psycopg.connect(examined) as first,
        psycopg.connect(examined) as second,
        psycopg.connect(examined, autocommit=True) as watching,
        alias(examined) as name,
    ):
        holder.execute("LOCK TABLE awa.batch_operation_items IN SHARE MODE")
        waiters = [threading.Thread(target=wait, args=[each], daemon=True) for each in (first, second)]
        for waiter in waiters:
            waiter.start()
        try:
            wait_until(
                lambda: watching.execute(
                    "SELECT 1 FROM pg_locks WHERE NOT granted AND database ="
                    " (SELECT oid FROM pg_database WHERE datname = current_database())"
                    " AND waitstart < clock_timestamp() - interval '0.2 seconds' OFFSET 1"
                ).fetchone()
            )
            said = found(
                "locks", Level.WARNING, "(holder, idle in transaction)", "2 sessions wait",
                "on awa.batch_operation_items.",
                f"pg_terminate_backend({holder.info.backend_pid})", using=name,
            )  # fmt: skip
            assert [item for item in operations.doctor(using=name) if item.check == "locks"] == [
                replace(said, sentence=ANY)
            ]
            monkeypatch.setattr(module("server"), "VERY_LONG_WAIT", 0.1)
            found("locks", Level.ERROR, "holder", using=name)
        finally:
            for each in (first, second):
                each.cancel()
            for waiter in waiters:
                waiter.join(10)
        holder.rollback()
        found("locks", Level.OK, using=name)


@serverwise
def test_room_for_notifications_that_runs_out(examined: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with alias(examined) as name:
        monkeypatch.setattr(module("server"), "NOTIFICATIONS_WARNING", 0)
        found("notify", Level.WARNING, "room for notifications is 0% full", using=name)
        monkeypatch.setattr(module("server"), "NOTIFICATIONS_ERROR", 0)
        found("notify", Level.ERROR, "at 100% nobody can enqueue", using=name)


@serverwise
def test_helpers_that_another_clients_schema_lacks(oracle_database: str) -> None:
    with alias(oracle_database) as name:
        assert not [item for item in operations.doctor(using=name) if "index" in item.sentence]
        found("catalogue", Level.WARNING, "of this release are missing", "manage.py migrate", using=name)


@serverwise
def test_limits_on_connections(examined: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = module("finding").Patient
    original = patient.row

    def with_figures(*figures: int | None) -> None:
        def row(self: Any, name: str, **values: Any) -> Any:
            return figures if name == "connections" else original(self, name, **values)

        monkeypatch.setattr(patient, "row", row)

    with alias(examined) as name:
        with_figures(100, 20, -1, 5, -1, 9)
        found("connections", Level.OK, "20 of 100", using=name)
        with_figures(100, 85, -1, 5, -1, 9)
        found("connections", Level.WARNING, "85 of 100 connections of the server", using=name)
        with_figures(100, 20, 5, 5, -1, 9)
        found("connections", Level.ERROR, "5 of 5 connections of this role", using=name)
        with_figures(100, 20, -1, 5, -1, 9)
        monkeypatch.setattr(module("server"), "pool_size", lambda alias: 2)
        (said,) = module("server").connections(examination(name))
        assert (said.level, "has 2 connections" in said.sentence) == (Level.WARNING, True)


@serverwise
def test_dead_rows_that_pile_up(examined: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = module("finding").Patient
    original = patient.rows
    worst = [("deferred_jobs", 500_000, 10, None)]

    def rows(self: Any, name: str, **values: Any) -> Any:
        canned: dict[str, Any] = {
            "dead_rows": worst,
            "wraparound": [(1_600_000_000, 200_000_000)],
            "prepared": [("gid", "postgres", 400.0)],
            "horizons": [("replication slot", "old", False, 5_000_000)],
            "kept_wal": [("full", 5 << 30)],
        }
        return canned[name] if name in canned else original(self, name, **values)

    monkeypatch.setattr(patient, "rows", rows)
    with alias(examined) as name:
        found(
            "vacuum", Level.WARNING, "awa.deferred_jobs has 500,000 dead rows", "never vacuumed", using=name
        )
        found("vacuum", Level.ERROR, "1,600,000,000 transactions old", using=name)
        found("snapshots", Level.WARNING, "Prepared transaction 'gid' of postgres", using=name)
        found("snapshots", Level.WARNING, "'old', which nobody uses,", "Drop the slot", using=name)
        found("snapshots", Level.WARNING, "slot 'full'", "keeps 5.0 GiB", "drop_replication_slot", using=name)


@serverwise
def test_tables_that_nobody_analyzed_since_a_restore(examined: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module("server"), "UNANALYZED_BYTES", 0)
    with psycopg.connect(examined, autocommit=True) as connection, alias(examined) as name:
        # Whatever an autovacuum has seen to, or would now.
        connection.execute(
            "CREATE TABLE awa.restored WITH (autovacuum_enabled = false) AS SELECT generate_series(1, 100000)"
        )
        try:
            found("vacuum", Level.WARNING, "never analyzed", "awa.restored", "ANALYZE", using=name)
            connection.execute("ANALYZE")
            found("vacuum", Level.OK, using=name)
        finally:
            connection.execute("DROP TABLE awa.restored")


@serverwise
def test_times_are_read_without_time_zones_as_well(examined: str, settings: Any) -> None:
    with alias(examined) as name:
        with_zones = operations.doctor(using=name)
        settings.USE_TZ = False
        connections[name].close()  # a connection reads times as the setting was when it was made
        assert [(item.check, item.level) for item in operations.doctor(using=name)] == [
            (item.check, item.level) for item in with_zones
        ]


@pytest.mark.django_db
@pytest.mark.usefixtures("well")
def test_a_check_that_cannot_be_made_is_skipped_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def fail(patient: Any) -> Iterator[Any]:
        cursor = patient.at.cursor
        limits.append(cursor.execute("SELECT current_setting('statement_timeout')").fetchone())
        # The time of this one alone is up, however slow the server is just then.
        cursor.execute("SET LOCAL statement_timeout = '50ms'")
        cursor.execute("SELECT pg_sleep(60)")
        yield from ()

    monkeypatch.setitem(CHECKS, "vacuum", fail)  # type: ignore[arg-type]
    findings = operations.doctor(timeout=timedelta(seconds=30))
    assert limits == [("30s",)]
    levels = {item.check: item.level for item in findings}
    assert (levels["vacuum"], levels["leader"]) == (Level.SKIPPED, Level.OK)
    # The caller's transaction has its own time limit again.
    assert stored.rows("SELECT current_setting('statement_timeout') AS limit") == [{"limit": "0"}]
