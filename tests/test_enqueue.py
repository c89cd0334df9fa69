from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from awa_django.enqueue import aenqueue, enqueue, queue_alias, store
from awa_django.errors import InvalidJob, SchemaOutOfDate, UniqueConflict
from awa_django.jobs import JobInsert
from awa_django.states import JobState, state_mask
from awa_django.uniqueness import AWA_DEFAULT_STATES, Unique
from tests import stored
from tests.databases import address
from tests.settings import SERVER_URL, database
from tests.testapp.jobs import note
from tests.testapp.models import Customer
from tests.vectors import load

#: Seconds to wait for another thread or session.
PATIENCE = 20


def own_url() -> str:
    """The address of the database that Django's connection is in."""
    return address(SERVER_URL, str(connection.settings_dict["NAME"]))


@pytest.fixture
def alias() -> Iterator[Callable[..., str]]:
    """A function that gives another database an alias of its own while the test runs."""
    added: list[str] = []

    def add(name: str, url: str, **changes: Any) -> str:
        settings = database(url)
        settings["OPTIONS"] = {**settings["OPTIONS"], **changes.pop("OPTIONS", {})}  # type: ignore[dict-item]
        both = connections.configure_settings({"default": {}, name: {**settings, **changes}})
        connections.settings[name] = both[name]
        # Django's test case refuses to open aliases that were made after it was; one that is open may be used.
        connections[name].connect()
        added.append(name)
        return name

    yield add
    for name in added:
        connections[name].close()
        if hasattr(connections[name], "close_pool"):
            connections[name].close_pool()
        delattr(connections._connections, name)  # type: ignore[attr-defined]
        del connections.settings[name]


# What is stored


@pytest.mark.django_db
def test_a_job_is_one_statement_and_one_ready_row() -> None:
    with CaptureQueriesContext(connection) as queries:
        job = note.enqueue(order_id=7)
    assert len(queries) == 1
    assert "-- name: insert_job" in queries[0]["sql"]
    (row,) = stored.ready()
    assert row["job_id"] == job.id
    assert (row["kind"], row["queue"], row["args"]) == ("note", "default", {"order_id": 7})
    assert (row["priority"], row["max_attempts"], row["attempt"], row["run_lease"]) == (2, 25, 0, 0)
    assert (job.run_at, job.created_at) == (row["run_at"], row["created_at"])
    assert (job.state, job.duplicate) == (JobState.AVAILABLE, False)
    (segment,) = stored.segments()
    assert (segment["first_lane_seq"], segment["next_lane_seq"]) == (row["lane_seq"], row["lane_seq"] + 1)


@pytest.mark.django_db
def test_every_option_reaches_the_row() -> None:
    at = datetime(2025, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    unique = Unique(by_queue=True)
    job = note.using(
        queue="mail",
        priority=4,
        max_attempts=3,
        tags=["a\tb", "c\\"],
        metadata={"x": "\n"},
        run_at=at,
        unique=unique,
    ).enqueue(order_id=7)
    (row,) = stored.deferred()
    assert (row["job_id"], row["queue"], row["priority"], row["max_attempts"]) == (job.id, "mail", 4, 3)
    assert (row["run_at"], row["state"], job.state) == (at, "scheduled", "scheduled")
    assert row["payload"]["tags"] == ["a\tb", "c\\"]
    assert row["payload"]["metadata"] == {"x": "\n"}
    assert row["unique_key"] == unique.key("note", "mail", {"order_id": 7})
    assert row["unique_states"] == "11101001"
    assert stored.claims() == {row["unique_key"]: job.id}
    assert stored.ready() == []


@pytest.mark.django_db
def test_a_run_time_in_the_past_still_schedules() -> None:
    job = note.using(run_at=datetime.now(UTC) - timedelta(days=365)).enqueue(order_id=1)
    assert job.state is JobState.SCHEDULED
    assert [row["job_id"] for row in stored.deferred()] == [job.id]


@pytest.mark.django_db
@pytest.mark.parametrize("tags", [(), ("a", "b")])
@pytest.mark.parametrize("metadata", [{}, {"k": None}])
def test_a_job_of_the_awa_bridge_is_the_same_row(tags: tuple[str, ...], metadata: dict[str, Any]) -> None:
    from awa import bridge

    bridge.insert_job_sync(
        connection, {"order_id": 7}, kind="note", queue="mail", priority=3, tags=list(tags), metadata=metadata
    )
    note.using(queue="mail", priority=3, tags=tags, metadata=metadata).enqueue(order_id=7)
    theirs, ours = stored.ready()
    differing = {"job_id", "lane_seq", "run_at", "created_at"}
    assert {name: ours[name] for name in ours.keys() - differing} == {
        name: theirs[name] for name in theirs.keys() - differing
    }


@pytest.mark.django_db
@pytest.mark.parametrize(
    "case",
    [case for case in load("queue-storage/payload-encoding")["cases"] if case["path"].startswith("insert (")],
    ids=lambda case: str(case["input"]),
)
def test_recorded_payloads_are_reproduced(case: dict[str, Any]) -> None:
    note.using(**case["input"]).enqueue(order_id=1)
    assert stored.ready()[0]["payload"] == case["stored"]


@pytest.mark.django_db
@pytest.mark.parametrize("shards", [2, 7, 64])
def test_recorded_shards_are_where_jobs_go(shards: int) -> None:
    stored.use_shards("default", shards)
    wanted = {}
    for vector in load("ordering_key_shards")["vectors"]:
        job = note.using(ordering_key=bytes.fromhex(vector["key_hex"])).enqueue(order_id=1)
        wanted[job.id] = vector["shard_by_count"][str(shards)]
    assert {row["job_id"]: row["enqueue_shard"] for row in stored.ready()} == wanted


@pytest.mark.django_db
def test_a_scheduled_job_with_an_ordering_key_is_taken() -> None:
    job = note.using(ordering_key="customer-1", run_at=timedelta(hours=1)).enqueue(order_id=1)
    assert [row["job_id"] for row in stored.deferred()] == [job.id]


@pytest.mark.django_db
def test_large_arguments_are_stored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "awa_django.enqueue"):
        note.enqueue(order_id=1, note="x" * 1024 * 1024)
    assert len(stored.ready()[0]["args"]["note"]) == 1024 * 1024
    assert "pass a reference" in caplog.text


@pytest.mark.django_db
def test_canonical_tables_take_jobs_while_they_are_in_force() -> None:
    stored.use_canonical()
    now, later = note.enqueue(order_id=1), note.using(run_at=timedelta(hours=1)).enqueue(order_id=2)
    assert [row["id"] for row in stored.rows("SELECT id FROM awa.jobs_hot")] == [now.id]
    assert [row["id"] for row in stored.rows("SELECT id FROM awa.scheduled_jobs")] == [later.id]
    assert stored.ready() == []


# Transactions


@pytest.mark.django_db(transaction=True)
def test_a_commit_wakes_the_queue_and_a_rollback_leaves_nothing() -> None:
    with psycopg.connect(own_url(), autocommit=True) as listener:
        listener.execute('LISTEN "awa:mail"')
        bound = note.using(queue="mail", unique=Unique())
        with stored.rolled_back():
            bound.enqueue(order_id=1)
        assert (stored.ready(), stored.claims(), stored.segments()) == ([], {}, [])
        with transaction.atomic():
            job = bound.enqueue(order_id=1)
        heard = list(listener.notifies(timeout=PATIENCE, stop_after=1))
        assert [notify.channel for notify in heard] == ["awa:mail"]
        assert list(listener.notifies(timeout=0.2)) == []
    assert [row["job_id"] for row in stored.ready()] == [job.id]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"args": {"when": float("nan")}}, "args.when"),
    ({"args": {"id": 2**64}}, "args.id"),
    ({"args": {"ids": {1, 2}}}, "args.ids"),
    ({"args": {"a": {"k\0": 1}}}, "args.a"),
    ({"priority": 0}, "priority"),
    ({"priority": 5}, "priority"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"max_attempts": 1001}, "max_attempts"),
    ({"tags": ("t",) * 21}, "tags"),
    ({"kind": "k" * 201}, "kind"),
    ({"kind": ""}, "kind"),
    ({"kind": "a\0"}, "kind"),
    ({"queue": "q" * 60}, "queue"),
    ({"metadata": ["a"]}, "metadata"),
    ({"metadata": {"a": {"b\0": 1}}}, "metadata.a"),
    ({"run_at": "tomorrow"}, "run_at"),
    ({"unique_key": b"short", "unique_states": "1" * 8}, "unique_key"),
    ({"unique_key": b"x" * 16}, "unique_key"),
    ({"unique_key": b"x" * 16, "unique_states": "11"}, "unique_states"),
    ({"ordering_key": 5}, "ordering_key"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("changes", "path"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_refusal_sends_nothing_and_leaves_the_transaction_usable(
    changes: dict[str, Any], path: str
) -> None:
    job = replace(JobInsert(kind="note", args={}), **changes)
    with transaction.atomic():
        with CaptureQueriesContext(connection) as queries, pytest.raises(InvalidJob) as refusal:
            enqueue(job)
        assert len(queries) == 0
        Customer.objects.create(name="after")
    assert refusal.value.path == path
    assert stored.ready() == stored.deferred() == []
    assert Customer.objects.count() == 1


@pytest.mark.django_db
def test_what_the_database_refuses_is_an_invalid_job_too() -> None:
    unchecked = JobInsert(kind="k" * 201, args={})
    with transaction.atomic():
        with pytest.raises(InvalidJob, match="200") as refusal, transaction.atomic():
            store(unchecked)
        assert stored.ready() == []
    assert isinstance(refusal.value.__cause__, DatabaseError)


@pytest.mark.django_db
def test_other_errors_of_the_database_are_djangos_own() -> None:
    with transaction.atomic():
        stored.run("SET LOCAL transaction_read_only = on")
        with pytest.raises(DatabaseError) as caught, transaction.atomic():
            note.enqueue(order_id=1)
    assert caught.value.__class__.__module__ == "django.db.utils"


@pytest.mark.django_db(transaction=True)
def test_a_missing_schema_names_the_command(alias: Callable[..., str], empty_database: str) -> None:
    using = alias("bare", empty_database)
    for call in (
        lambda: note.using(using=using).enqueue(order_id=1),
        lambda: note.using(using=using, unique=True).enqueue(order_id=1),
        lambda: note.using(using=using).enqueue_many([{"order_id": 1}]),
    ):
        with pytest.raises(SchemaOutOfDate, match=r"manage\.py migrate --database bare"):
            call()


# Unique jobs


@pytest.mark.django_db
def test_a_duplicate_is_an_answer_and_rows_around_it_are_saved() -> None:
    bound = note.using(unique=Unique())
    with transaction.atomic():
        Customer.objects.create(name="before")
        first = bound.enqueue(order_id=7)
        second = bound.enqueue(order_id=7)
        Customer.objects.create(name="after")
    assert (first.duplicate, second.duplicate) == (False, True)
    assert second.id == first.id
    assert (second.kind, second.queue, second.args) == ("note", "default", {"order_id": 7})
    assert len(stored.ready()) == 1
    assert Customer.objects.count() == 2


@pytest.mark.django_db
def test_a_duplicate_may_be_raised_or_skipped() -> None:
    with transaction.atomic():
        first = note.using(unique=True).enqueue(order_id=7)
        with pytest.raises(UniqueConflict) as conflict:
            note.using(unique=True, on_conflict="raise").enqueue(order_id=7)
        assert note.using(unique=True, on_conflict="skip").enqueue(order_id=7) is None
        Customer.objects.create(name="after")
    assert conflict.value.holder_id == first.id
    assert conflict.value.unique_key == Unique().key("note", "default", {"order_id": 7})
    assert [row["job_id"] for row in stored.ready()] == [first.id]


@pytest.mark.django_db
def test_a_job_without_unique_uses_no_savepoint_and_one_with_it_does() -> None:
    with transaction.atomic():
        with CaptureQueriesContext(connection) as plain:
            note.enqueue(order_id=7)
        with CaptureQueriesContext(connection) as unique:
            note.using(unique=True).enqueue(order_id=7)
    assert len(plain) == 1
    assert [query["sql"].split()[0] for query in unique] == ["SAVEPOINT", "--", "RELEASE"]


@pytest.mark.django_db
def test_a_rolled_back_block_leaves_the_key_free() -> None:
    bound = note.using(unique=Unique())
    with transaction.atomic():
        with stored.rolled_back():
            bound.enqueue(order_id=7)
        job = bound.enqueue(order_id=7)
    assert not job.duplicate
    assert stored.claims() == {job.unique_key: job.id}


@pytest.mark.django_db
def test_a_mask_without_the_first_state_inserts_freely() -> None:
    available = Unique(states=state_mask(JobState.AVAILABLE))
    later = note.using(unique=available, run_at=timedelta(hours=1))
    first, scheduled, second = (
        note.using(unique=available).enqueue(order_id=1),
        [later.enqueue(order_id=1), later.enqueue(order_id=1)],
        note.using(unique=available).enqueue(order_id=1),
    )
    assert (first.duplicate, second.duplicate) == (False, True)
    assert len(stored.deferred()) == len(scheduled) == 2


@pytest.mark.django_db
def test_different_arguments_queues_and_periods_are_different_keys() -> None:
    unique = note.using(unique=Unique(by_queue=True, by_period=1))
    ids = {
        unique.enqueue(order_id=1).id,
        unique.enqueue(order_id=2).id,
        unique.using(queue="mail").enqueue(order_id=1).id,
        note.using(unique=Unique(by_queue=True, by_period=2)).enqueue(order_id=1).id,
    }
    assert len(ids) == 4
    assert unique.enqueue(order_id=1).id in ids


@pytest.mark.django_db
def test_on_canonical_tables_a_duplicate_is_an_answer_too() -> None:
    stored.use_canonical()
    bound = note.using(unique=Unique())
    with transaction.atomic():
        first, second = bound.enqueue(order_id=7), bound.enqueue(order_id=7)
    assert (second.id, second.duplicate) == (first.id, True)


class Session:
    """One transaction in a thread of its own, stepped from the test."""

    def __init__(self, work: Callable[[], Any], *, commit: bool = True) -> None:
        self.done, self.finish = threading.Event(), threading.Event()
        self.result: Any = None
        self.pid = 0
        self.started = threading.Event()
        self._work, self._commit = work, commit
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with transaction.atomic():
                self.pid = stored.rows("SELECT pg_backend_pid() AS pid")[0]["pid"]
                self.started.set()
                self.result = self._work()
                self.done.set()
                assert self.finish.wait(PATIENCE)
                transaction.set_rollback(not self._commit)
        except BaseException as error:
            self.result = error
        finally:
            self.started.set()
            self.done.set()
            connection.close()

    def end(self) -> Any:
        self.finish.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.result

    def wait_until_blocked(self) -> None:
        """Return once the session waits for a lock."""
        assert self.started.wait(PATIENCE)
        deadline = threading.Event()
        for _ in range(PATIENCE * 100):
            if stored.rows("SELECT cardinality(pg_blocking_pids(%s)) AS blockers", self.pid)[0]["blockers"]:
                return
            deadline.wait(0.01)
        raise AssertionError("the session never waited for a lock")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first_commits", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("on_conflict", ["holder", "raise"])
def test_of_two_transactions_the_second_waits_for_the_first(first_commits: bool, on_conflict: Any) -> None:
    bound = note.using(unique=Unique(), on_conflict=on_conflict)
    first = Session(lambda: bound.enqueue(order_id=7), commit=first_commits)
    assert first.done.wait(PATIENCE)

    def work() -> Any:
        Customer.objects.create(name="before")
        try:
            return bound.enqueue(order_id=7)
        except UniqueConflict as conflict:
            return conflict
        finally:
            Customer.objects.create(name="after")

    second = Session(work)
    second.wait_until_blocked()
    held = first.end()
    assert second.done.wait(PATIENCE)
    answer = second.end()
    assert Customer.objects.count() == 2
    assert len(stored.ready()) == 1
    if not first_commits:
        assert (answer.duplicate, answer.id) == (False, stored.ready()[0]["job_id"])
    elif on_conflict == "raise":
        assert isinstance(answer, UniqueConflict)
        assert answer.holder_id == held.id
    else:
        assert (answer.duplicate, answer.id) == (True, held.id)


@pytest.mark.django_db(transaction=True)
def test_many_transactions_that_want_one_key_neither_deadlock_nor_store_two() -> None:
    bound = note.using(unique=Unique())
    answers: list[list[Any]] = [[], [], [], []]
    barrier = threading.Barrier(len(answers))

    def work(mine: list[Any]) -> None:
        try:
            for number in range(25):
                barrier.wait(PATIENCE)
                with transaction.atomic():
                    mine.append(bound.enqueue(order_id=number))
        except BaseException as error:
            mine.append(error)
            barrier.abort()
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    for round_ in zip(*answers, strict=True):
        assert len({job.id for job in round_}) == 1
        assert [job.duplicate for job in round_].count(False) == 1
    assert len(stored.ready()) == 25


@dataclass
class Note:
    order_id: int
    note: str | None = None


@pytest.mark.interop
@pytest.mark.django_db(transaction=True)
def test_keys_conflict_with_those_of_the_awa_client_both_ways() -> None:
    import awa

    bound = note.using(unique=Unique(states=AWA_DEFAULT_STATES))
    client = awa.Client(own_url())
    try:
        ours = bound.enqueue(order_id=1, note=None)
        with pytest.raises(awa.UniqueConflict):
            client.insert(Note(1), unique_opts={})
        theirs = client.insert(Note(2), unique_opts={})
        answer = bound.enqueue(order_id=2, note=None)
        assert (answer.duplicate, answer.id) == (True, theirs.id)
        assert not ours.duplicate
    finally:
        client.close()


# Async, other databases


@pytest.mark.django_db(transaction=True)
def test_async_code_enqueues_on_djangos_connection() -> None:
    async def view() -> tuple[Any, Any, Any]:
        try:
            return (
                await note.aenqueue(order_id=1),
                await aenqueue(note.request(order_id=2)),
                await note.aenqueue_many([{"order_id": 3}, {"order_id": 4}]),
            )
        finally:
            await sync_to_async(connections.close_all)()

    one, two, many = asyncio.run(view())
    assert [row["job_id"] for row in stored.ready()] == [one.id, two.id, *many.ids]


@pytest.mark.django_db
def test_the_alias_is_given_or_set_or_routed(settings: Any) -> None:
    assert queue_alias() == "default"
    assert queue_alias("other") == "other"
    settings.AWA = {"DATABASE": "jobs"}
    assert queue_alias() == "jobs"
    settings.AWA = {}

    class Router:
        def db_for_write(self, model: Any, **hints: Any) -> str | None:
            return "routed" if model._meta.app_label == "awa_django" else None

    from django.db import router

    before = router.__dict__.pop("routers", None)
    settings.DATABASE_ROUTERS = [Router()]
    router.routers = [Router()]
    try:
        assert queue_alias() == "routed"
    finally:
        router.__dict__.pop("routers")
        if before is not None:
            router.routers = before


@pytest.fixture
def jobs_database(
    alias: Callable[..., str], make_database: Callable[[], str], settings: Any
) -> Iterator[str]:
    """The queue in a database of its own, as alias ``jobs``."""
    using = alias("jobs", make_database())
    settings.AWA = {"DATABASE": using}
    return using  # type: ignore[return-value]


@pytest.mark.django_db(transaction=True)
def test_a_queue_in_another_database_joins_its_own_transactions(jobs_database: str) -> None:
    with stored.rolled_back("jobs"):
        note.enqueue(order_id=1)
        assert len(stored.ready("jobs")) == 1
    assert stored.ready("jobs") == []
    with transaction.atomic(using="default"), transaction.atomic(using="jobs"):
        job = note.enqueue(order_id=1)
    assert [row["job_id"] for row in stored.ready("jobs")] == [job.id]
    assert stored.ready("default") == []


@pytest.mark.django_db(transaction=True)
def test_jobs_of_another_databases_transaction_are_stored_after_its_commit(jobs_database: str) -> None:
    with stored.rolled_back():
        note.enqueue(order_id=1)
        note.enqueue_many([{"order_id": 2}])
    assert stored.ready("jobs") == []

    with transaction.atomic():
        one = note.enqueue(order_id=1)
        later = note.using(run_at=timedelta(hours=1)).enqueue(order_id=2)
        many = note.enqueue_many([{"order_id": 3}, {"order_id": 4}])
        assert stored.ready("jobs") == []
    assert {row["job_id"]: row["args"]["order_id"] for row in stored.ready("jobs")} == {
        one.id: 1,
        many.ids[0]: 3,
        many.ids[1]: 4,
    }
    assert [row["job_id"] for row in stored.deferred("jobs")] == [later.id]


@pytest.mark.django_db(transaction=True)
def test_ids_handed_out_before_the_commit_hold_on_canonical_tables(jobs_database: str) -> None:
    stored.use_canonical("jobs")
    with transaction.atomic():
        one = note.enqueue(order_id=1)
        later = note.using(run_at=timedelta(hours=1), unique=True, tags=["a"]).enqueue(order_id=2)
    assert [row["id"] for row in stored.rows("SELECT id FROM awa.jobs_hot", using="jobs")] == [one.id]
    (row,) = stored.rows("SELECT id, tags FROM awa.scheduled_jobs", using="jobs")
    assert (row["id"], row["tags"]) == (later.id, ["a"])
    assert stored.claims("jobs") == {later.unique_key: later.id}


@pytest.mark.django_db(transaction=True)
def test_ids_of_one_storage_are_not_used_in_the_other(
    jobs_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    stored.use_canonical("jobs")
    with transaction.atomic():
        answer = note.enqueue(order_id=1)
        stored.run("DELETE FROM awa.runtime_instances", using="jobs")
        stored.run("SELECT awa.storage_auto_finalize_if_fresh('awa')", using="jobs")
        stored.run("SELECT setval('awa.job_id_seq', %s)", answer.id + 1000, using="jobs")
    (row,) = stored.ready("jobs")
    assert row["job_id"] == answer.id + 1001
    assert f"jobs {answer.id} were not stored under these ids" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_unique_jobs_of_another_databases_transaction(
    jobs_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    bound = note.using(unique=Unique())
    held = bound.enqueue(order_id=1)
    with transaction.atomic():
        answer = bound.enqueue(order_id=1)
        assert (answer.id, answer.duplicate) == (held.id, True)
        with pytest.raises(UniqueConflict):
            bound.using(on_conflict="raise").enqueue(order_id=1)
        # Nobody can know yet that the second of these is a duplicate.
        first, second = bound.enqueue(order_id=2), bound.enqueue(order_id=2)
    assert [row["job_id"] for row in stored.ready("jobs")] == [held.id, first.id]
    assert (
        f"job {second.id} of kind note was not stored: job {first.id} has taken its unique key" in caplog.text
    )


@pytest.mark.django_db(transaction=True)
def test_a_pooled_connection_enqueues_one_and_many(alias: Callable[..., str], awa_database: str) -> None:
    using = alias("pooled", awa_database, OPTIONS={"pool": {"min_size": 1, "max_size": 2}})
    bound = note.using(using=using, unique=True)
    with transaction.atomic(using=using):
        one = bound.enqueue(order_id=1)
        many = bound.enqueue_many([{"order_id": n} for n in range(1, 5)])
    assert many.duplicates == [(0, one.id)]
    assert len(stored.ready(using)) == 4


@pytest.mark.django_db(transaction=True)
def test_a_schema_of_the_awa_client_takes_jobs_on_every_path(
    alias: Callable[..., str], oracle_database: str
) -> None:
    using = alias("oracle", oracle_database)
    bound = note.using(using=using, unique=True)
    on_canonical = bound.enqueue_many([{"order_id": 1}])
    assert stored.rows("SELECT id FROM awa.jobs_hot", using=using) == [{"id": on_canonical.ids[0]}]
    stored.run("DELETE FROM awa.jobs_hot", using=using)
    stored.rows("SELECT awa.storage_auto_finalize_if_fresh('awa')", using=using)
    one = bound.enqueue(order_id=1)
    many = bound.using(queue="new lane").enqueue_many([{"order_id": n} for n in range(3)])
    assert not one.duplicate
    assert many.duplicates == [(1, one.id)]
    assert len(stored.ready(using)) == 3
    assert [
        (row["queue"], row["first_lane_seq"], row["next_lane_seq"]) for row in stored.segments(using)
    ] == [("default", 1, 2), ("new lane", 1, 3)]
