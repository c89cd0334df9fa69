"""Roles of the database, made as docs/schema.md says: what each may do, and what a worker says it lacks.

On a schema of ours and on one that the real awa client made, whose lanes belong to whoever uses them first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import ProgrammingError, connection
from pytest_django import DjangoDbBlocker

from awa_django import JobContext, Unique, WaitForCallback, callbacks, job, operations, periodic, storage
from awa_django.conf import get_settings
from awa_django.enqueue import enqueue, enqueue_many
from awa_django.errors import ConfigurationError
from awa_django.jobs import JobInsert
from awa_django.operations import JobFilter
from awa_django.registry import registry
from awa_django.worker.process import Worker
from tests import databases
from tests.inprocess import working
from tests.otherdefault import default_database
from tests.schema import installing
from tests.workers import wait_until

LATER = timedelta(hours=1)


@dataclass
class Place:
    """A database whose schema somebody else installed, and roles in it."""

    server_url: str
    url: str
    is_ours: bool
    passwords: dict[str, str] = field(default_factory=dict)

    def role(self, *, member_of: str | None = None) -> str:
        """A new role that may log in, and nothing else. Of theirs a member has no rights before it assumes the role."""
        name, password = installing.role(self.server_url)
        self.passwords[name] = password
        if member_of is not None:
            self.run(
                f"ALTER ROLE {name} {'INHERIT' if self.is_ours else 'NOINHERIT'}",
                f"GRANT {member_of} TO {name}",
            )
        return name

    def run(self, *statements: str) -> None:
        installing.execute(self.url, *statements)

    def grant(self, *options: str) -> None:
        """What a DBA does with the grants that are printed."""
        script = StringIO()
        call_command("awa_sql", "--grants-only", *options, stdout=script)
        done = installing.run_script(self.url, script.getvalue())
        assert done.returncode == 0, done.stderr

    def works_as(self, role: str, **options: Any) -> AbstractContextManager[None]:
        """Have the project's connections log in with this role."""
        own = databases.address(self.url, user=role, password=self.passwords[role])
        return default_database(own, **options)

    def states(self, *queues: str) -> set[str]:
        """The states of the jobs of some queues, dead letters apart."""
        names = ", ".join(f"'{queue}'" for queue in queues)
        found = installing.rows(
            self.url, f"SELECT DISTINCT state::text FROM awa.jobs WHERE queue IN ({names})"
        )
        return {state for (state,) in found}


@pytest.fixture(scope="module")
def ours(server_url: str, awa_template: str) -> Iterator[Place]:
    with databases.scratch(server_url, "roles", template=awa_template) as url:
        yield Place(server_url, url, is_ours=True)


@pytest.fixture(scope="module")
def theirs(server_url: str, oracle_template: str, django_db_blocker: DjangoDbBlocker) -> Iterator[Place]:
    with databases.scratch(server_url, "roles_oracle", template=oracle_template) as url:
        with django_db_blocker.unblock(), default_database(url):
            call_command("migrate", "awa_django", verbosity=0)
        yield Place(server_url, url, is_ours=False)


@pytest.fixture(params=["ours", pytest.param("theirs", marks=pytest.mark.interop)])
def place(request: pytest.FixtureRequest, unblocked: None) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.fixture
def unblocked(django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


def wanted(queue: str, **options: Any) -> JobInsert:
    return JobInsert(kind="greet", args={}, queue=queue, **options)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was warned of, save that a duty of the leader was slow, which says something of the machine alone."""
    found = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("awa_django") and record.levelno >= logging.WARNING
    ]
    return [line for line in found if "skipping ticks until it is faster again" not in line]


@contextmanager
def refused(what: str) -> Iterator[None]:
    with pytest.raises(ProgrammingError, match=f"permission denied for .*{what}"):
        yield


# One role for all ------------------------------------------------------------------------------------------


def test_members_of_one_role_share_the_work(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Producers, worker, receiver and operator log in apart. As members they do; where lanes belong to whoever
    makes them, they assume the role."""
    group = place.role()
    place.run(f"ALTER ROLE {group} NOLOGIN")
    web, shop, worker, receiver, operator = (place.role(member_of=group) for _ in range(5))
    place.run("SELECT awa.insert_job_compat('greet', 'old')")
    place.grant("--grant-to", group)
    assumed = {} if place.is_ours else {"assume_role": group}
    tokens: list[Any] = []

    @job
    def greet(ctx: JobContext) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT session_user::text")
            assert cursor.fetchone() == (worker,)

    @job(queue="calls")
    def call(ctx: JobContext) -> WaitForCallback:
        tokens.append(ctx.register_callback(timeout=3600))
        return WaitForCallback(tokens[-1])

    @job(queue="old", max_attempts=1)
    def fail(ctx: JobContext) -> None:
        raise ValueError("always")

    with place.works_as(web, **assumed):
        for queue in ("old", "web"):
            enqueue(wanted(queue))
            enqueue(wanted(queue, run_at=datetime.now(UTC) + LATER))
            enqueue_many([wanted(queue)] * 20)
        call.enqueue()
        fail.enqueue()
    with place.works_as(shop, **assumed):
        enqueue(wanted("web"))
        enqueue(wanted("shop"))
    with place.works_as(web, **assumed):
        enqueue(wanted("shop"))
        enqueue_many([wanted("shop")] * 20)

    with (
        place.works_as(worker, **assumed),
        working({"old": 2, "web": 2, "shop": 2, "calls": 1}, lead=True, dlq_enabled=True),
    ):
        wait_until(
            lambda: (
                tokens
                and place.states("shop", "web", "old", "calls")
                == {"completed", "scheduled", "waiting_external", "failed"}
            ),
            what="the jobs to run",
        )
    with place.works_as(receiver, **assumed):
        callbacks.complete(tokens[0], {"paid": True})
    assert place.states("calls") == {"completed"}
    with place.works_as(operator, **assumed):
        operations.pause("shop")
        assert operations.retry_dead(JobFilter(kind="fail")).jobs
        assert operations.run_now(JobFilter(queue="web", state="scheduled")).jobs
        assert operations.cancel(JobFilter(queue="old", state="scheduled")).jobs
        operations.resume("shop")
        operations.submit_batch(operations.Cancel(), JobFilter(queue="web"))
        assert operations.batch_operations()
    assert [line for line in warnings(caplog) if "ValueError: always" not in line] == []


# Less than that --------------------------------------------------------------------------------------------


def test_a_role_that_only_stores_jobs_stores_them_and_reads_no_others(place: Place) -> None:
    producer, writer = place.role(), place.role()
    place.run("SELECT awa.insert_job_compat('greet', 'there')")
    place.grant("--grant-to", writer, "--grant-enqueue-to", producer)

    @job(queue="there")
    def greet() -> None:
        """Is not run here."""

    with place.works_as(producer):
        for queue in ("there", "new"):
            enqueue(wanted(queue))
            enqueue(wanted(queue, run_at=datetime.now(UTC) + LATER))
            assert enqueue_many([wanted(queue)] * 20).count == 20
            unique = greet.using(queue=queue, unique=Unique(by_queue=True))
            assert not unique.enqueue().duplicate
            assert unique.enqueue().duplicate
        with connection.cursor() as cursor:
            for table in (
                "done_entries",
                "dlq_entries",
                "leases",
                "lease_claims",
                "attempt_state",
                "jobs_hot",
            ):
                with refused(table):
                    cursor.execute(f"SELECT * FROM awa.{table}")
            with refused("jobs"):
                cursor.execute("SELECT args FROM awa.jobs")
            for change in ("UPDATE awa.ready_entries SET args = '{}'", "DELETE FROM awa.deferred_jobs"):
                with refused(r"(ready_entries|deferred_jobs)"):
                    cursor.execute(change)

    # Lanes that the one made are open to the other.
    with place.works_as(writer):
        enqueue(wanted("new"))
        enqueue(wanted("writers"))
        with working({"new": 4}):
            wait_until(lambda: place.states("new") == {"completed", "scheduled"}, what="the jobs to run")
    with place.works_as(producer):
        enqueue(wanted("writers"))


def test_a_role_that_only_looks_sees_every_page_and_changes_nothing(place: Place) -> None:
    reader, writer = place.role(), place.role()
    place.grant("--grant-to", writer, "--grant-read-to", reader)
    with place.works_as(writer):
        mine = enqueue(wanted("seen"))
        operations.submit_batch(operations.Cancel(), JobFilter(queue="nothing"))
    with place.works_as(reader):
        assert operations.load_job(mine.id).job.queue == "seen"
        assert [record.job.id for record in operations.list_jobs(JobFilter(queue="seen")).jobs] == [mine.id]
        assert operations.state_counts().available >= 1
        assert "seen" in {each.queue for each in operations.queue_overview(exact=True)}
        assert operations.queue_counts()["seen"].available == 1
        assert operations.why(mine.id).sentence
        assert operations.dump_job(mine.id)
        assert operations.batch_operations()
        for read in (
            operations.activity,
            operations.kind_overview,
            operations.recent_failures,
            operations.runtime_overview,
            operations.waiting_callbacks,
            operations.waiting_kinds,
            operations.dead_letters,
            operations.known_queues,
            operations.known_kinds,
            periodic.schedules,
            storage.status,
        ):
            read()
        for change in (
            lambda: enqueue(wanted("seen")),
            lambda: operations.cancel(mine.id),
            lambda: operations.pause("seen"),
        ):
            with pytest.raises(ProgrammingError, match="permission denied"):
                change()


# What a worker says when it starts -------------------------------------------------------------------------


#: What the documentation of awa grants to the role of its workers.
RUNTIME = (
    "USAGE ON SCHEMA awa",
    "SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA awa",
    "USAGE, SELECT ON ALL SEQUENCES IN SCHEMA awa",
    "EXECUTE ON ALL FUNCTIONS IN SCHEMA awa",
)


def prepared(place: Place, role: str, caplog: pytest.LogCaptureFixture, *, lead: bool = True) -> list[str]:
    """What a worker of this role warns of when it starts."""
    caplog.clear()
    with place.works_as(role):
        Worker(get_settings(), [get_settings().queue("default")], lead=lead).prepare()
    return warnings(caplog)


def test_a_worker_names_the_rights_that_it_lacks(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    role = place.role()
    place.run(
        "SELECT awa.insert_job_compat('greet', 'default')", *(f"GRANT {right} TO {role}" for right in RUNTIME)
    )
    said = prepared(place, role, caplog)
    if place.is_ours:
        # The schema's owner makes sequences of lanes, so nobody else needs CREATE.
        assert not any("create in schema" in line for line in said)
        with place.works_as(role):
            enqueue(wanted("made for it"))
    else:
        assert f'GRANT CREATE ON SCHEMA awa TO "{role}"' in said.pop(0)
        with place.works_as(role), refused("schema awa"):
            enqueue(wanted("default"))
    sequences, batches = said
    assert "sequences of another role: job_id_seq" in sequences
    assert f'GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA awa TO "{role}"' in sequences
    assert "awa_django_batchoperation" in batches

    place.grant("--grant-to", role)
    assert prepared(place, role, caplog) == []
    place.run(f"REVOKE TRUNCATE ON ALL TABLES IN SCHEMA awa FROM {role}")
    assert prepared(place, role, caplog, lead=False) == []
    assert "where it leads, history piles up" in prepared(place, role, caplog)[0]
    place.run(f"REVOKE INSERT ON awa.deferred_jobs FROM {role}")
    assert "may not write to deferred_jobs" in prepared(place, role, caplog, lead=False)[0]


@pytest.mark.interop
def test_a_worker_names_lanes_that_another_role_made_for_itself(
    theirs: Place, unblocked: None, caplog: pytest.LogCaptureFixture
) -> None:
    role = theirs.role()
    theirs.grant("--grant-to", role)
    theirs.run("SELECT awa.insert_job_compat('greet', 'of another')")
    [line] = prepared(theirs, role, caplog)
    assert "2 sequences of another role: queue_claim_seq_" in line
    assert "Their lanes are closed to it" in line
    with theirs.works_as(role), refused("sequence"):
        enqueue(wanted("of another"))


def test_a_worker_that_may_not_use_the_table_of_batches_works_on(
    ours: Place, unblocked: None, caplog: pytest.LogCaptureFixture
) -> None:
    role = ours.role()
    ours.grant("--grant-to", role)
    ours.run(f"REVOKE ALL ON awa_django_batchoperation FROM {role}")
    with ours.works_as(role):
        with working({"idle": 1}, lead=True, snapshot_interval=timedelta(seconds=0.1)):
            wait_until(lambda: any(each.live for each in operations.runtime_overview().instances))
        assert operations.batch_operations() == []
        with pytest.raises(ConfigurationError, match="awa_sql --grants-only"):
            operations.submit_batch(operations.Cancel(), JobFilter(queue="x"))
    [line] = warnings(caplog)
    assert "leaves batch operations alone" in line


def test_a_role_without_any_right_is_told_how_to_get_them(ours: Place, unblocked: None) -> None:
    with ours.works_as(ours.role()):
        with pytest.raises(ConfigurationError, match=r"permission denied for schema awa.*--grant-to ROLE"):
            Worker(get_settings(), []).prepare()
        with pytest.raises(ConfigurationError, match="--grant-to ROLE"):
            operations.doctor()
