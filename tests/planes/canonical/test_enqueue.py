"""Many canonical jobs at once, and what wakes workers for them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from django.db import connection as django_connection

from awa_django.enqueue import enqueue, enqueue_many
from awa_django.errors import UniqueConflict
from awa_django.jobs import JobInsert
from tests import stored
from tests.planes.canonical.rows import all_rows, claims
from tests.planes.world import World, job

KEY = b"0123456789abcdef"
LATER = datetime(2999, 1, 1, 12, 30, tzinfo=UTC)


def test_every_column_arrives(canonical: World) -> None:
    odd = {"text": 'tab\t, newline\n, back\\slash, "quote", \\N, Zürich', "n": 1.5, "deep": [{"a": None}]}
    canonical.enqueue(
        job(args=odd, metadata={"m": odd}, tags=("a b", 'c"d', "e,{f}"), priority=1, max_attempts=3,
            unique_key=KEY, unique_states="11111000"),
        job(run_at=LATER, queue="later"),
    )  # fmt: skip
    now, later = all_rows(canonical)
    assert (now["table"], now["state"], now["args"], now["metadata"]) == (
        "jobs_hot",
        "available",
        odd,
        {"m": odd},
    )
    assert now["tags"] == ["a b", 'c"d', "e,{f}"]
    assert (now["priority"], now["max_attempts"], now["attempt"], now["run_lease"]) == (1, 3, 0, 0)
    assert (bytes(now["unique_key"]), now["unique_states"]) == (KEY, "11111000")
    assert now["run_at"] == now["created_at"]
    assert (later["table"], later["state"], later["run_at"], later["queue"]) == (
        "scheduled_jobs", "scheduled", LATER, "later",
    )  # fmt: skip
    assert claims(canonical) == {KEY: now["id"]}


def test_workers_hear_of_jobs_that_are_due(canonical: World, world_database: str) -> None:
    with psycopg.connect(world_database, autocommit=True) as listener:
        listener.execute('LISTEN "awa:q"')
        listener.execute('LISTEN "awa:later"')
        canonical.enqueue(*[job() for _ in range(3)], job(queue="later", run_at=LATER))
        canonical.run("NOTIFY \"awa:q\", 'end'")
        heard = []
        for notification in listener.notifies(timeout=10):
            heard.append((notification.channel, notification.payload))
            if notification.payload == "end":
                break
    assert heard == [("awa:q", ""), ("awa:q", "end")]


@pytest.mark.parametrize("where", ["in the table", "in the batch"])
def test_one_key_that_is_held_refuses_the_batch_and_spares_the_transaction(
    canonical: World, where: str
) -> None:
    mask: dict[str, Any] = {"unique_key": KEY, "unique_states": "11111000"}
    holder = None
    if where == "in the table":
        canonical.enqueue(job(**mask))
        holder = all_rows(canonical)[0]["id"]
    before = all_rows(canonical)

    def work(cursor: Any) -> None:
        with pytest.raises(UniqueConflict) as caught:
            canonical.plane.enqueue(cursor, [job(), job(**mask), job(**{**mask, "kind": "k2"})])
        assert caught.value.holder_id == holder
        cursor.execute("SELECT 1")

    canonical.within(work)
    assert all_rows(canonical) == before


def test_no_jobs_are_no_work(canonical: World) -> None:
    canonical.enqueue()
    assert all_rows(canonical) == []


@pytest.mark.django_db(transaction=True)
class TestProducers:
    """The way in for applications, on a cluster that was never promoted."""

    @pytest.fixture(autouse=True)
    def _canonical(self, transactional_db: None) -> None:
        stored.use_canonical()

    def test_a_batch_goes_into_the_tables_and_can_be_undone(self) -> None:
        jobs = [
            JobInsert(kind="k", args={"n": n}, queue="q", run_at=LATER if n % 3 == 0 else None)
            for n in range(10)
        ]
        with stored.rolled_back():
            enqueue_many(jobs)
        done = enqueue_many(jobs)
        rows = stored.rows(
            "SELECT id, (args ->> 'n')::int AS n FROM awa.jobs_hot "
            "UNION ALL SELECT id, (args ->> 'n')::int FROM awa.scheduled_jobs"
        )
        assert done.count == 10
        assert {row["id"]: row["n"] for row in rows} == {job_id: n for n, job_id in enumerate(done.ids)}

    def test_duplicates_of_a_batch_are_named(self) -> None:
        def unique(n: int, key: int) -> JobInsert:
            return JobInsert(kind="k", args={"n": n}, unique_key=bytes([key]) * 16, unique_states="11101001")

        first = enqueue_many([unique(0, 1)])
        done = enqueue_many([unique(1, 2), unique(2, 1), unique(3, 2), unique(4, 3)])
        assert done.count == 2
        assert done.duplicates == [(1, first.ids[0]), (2, done.ids[0])]

    @pytest.mark.parametrize("unique", [False, True])
    def test_workers_hear_of_a_single_job_whatever_the_insert_function_does(self, unique: bool) -> None:
        """The function of other clients' schemas stores a time that its own trigger takes for the future."""
        keyed: dict[str, Any] = {"unique_key": KEY, "unique_states": "11111000"} if unique else {}
        django_connection.ensure_connection()
        assert django_connection.connection is not None
        dsn = django_connection.connection.info.dsn
        with psycopg.connect(dsn, autocommit=True) as listener:
            listener.execute('LISTEN "awa:q"')
            with django_connection.cursor() as cursor:
                cursor.execute("ALTER TABLE awa.jobs_hot DISABLE TRIGGER trg_awa_notify")
            try:
                enqueue(JobInsert(kind="k", args={}, queue="q", **keyed))
                assert len(list(listener.notifies(timeout=10, stop_after=1))) == 1
            finally:
                with django_connection.cursor() as cursor:
                    cursor.execute("ALTER TABLE awa.jobs_hot ENABLE TRIGGER trg_awa_notify")
