from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from awa_django.db import plain_cursor
from awa_django.enqueue import enqueue_many
from awa_django.errors import InvalidJob, UniqueConflict
from awa_django.jobs import JobInsert, Landing, Taken
from awa_django.planes.queue_storage.enqueue import copy_jobs, enqueue, insert_ready
from awa_django.states import JobState
from awa_django.uniqueness import AWA_DEFAULT_STATES, Unique
from tests import stored
from tests.databases import address
from tests.settings import SERVER_URL
from tests.test_enqueue import PATIENCE, REFUSED
from tests.testapp.jobs import ProcessPayment, note, pay
from tests.testapp.models import Customer
from tests.vectors import load


def orders(count: int) -> list[dict[str, Any]]:
    return [{"order_id": number} for number in range(count)]


# What is stored


@pytest.mark.django_db
def test_jobs_are_stored_in_order_with_one_segment() -> None:
    result = note.enqueue_many(orders(1200))
    rows = stored.ready()
    assert result.count == len(rows) == 1200
    assert list(result.ids) == [row["job_id"] for row in rows]
    assert [row["args"]["order_id"] for row in rows] == list(range(1200))
    assert [row["lane_seq"] for row in rows] == list(range(1, 1201))
    assert {(row["run_at"], row["created_at"], row["attempt"], row["run_lease"]) for row in rows} == {
        (rows[0]["run_at"], rows[0]["run_at"], 0, 0)
    }
    (segment,) = stored.segments()
    assert (segment["first_lane_seq"], segment["next_lane_seq"]) == (1, 1201)
    assert segment["first_run_at"] == rows[0]["run_at"]
    assert (segment["ready_slot"], segment["ready_generation"]) == (
        rows[0]["ready_slot"],
        rows[0]["ready_generation"],
    )


@pytest.mark.django_db
def test_nothing_is_no_statement() -> None:
    with CaptureQueriesContext(connection) as queries:
        for result in (note.enqueue_many([]), enqueue_many([])):
            assert (result.count, list(result.ids), list(result.duplicates)) == (0, [], [])
    assert len(queries) == 0


@pytest.mark.django_db
def test_lanes_are_filled_apart_and_ids_are_one_block_with_deferred_jobs_last() -> None:
    later = datetime(2030, 1, 1, tzinfo=UTC)
    requests = [
        note.using(queue="b", priority=1).request(order_id=0),
        note.using(queue="a", priority=2, run_at=later).request(order_id=1),
        note.using(queue="a", priority=2).request(order_id=2),
        note.using(queue="b", priority=1).request(order_id=3),
        note.using(queue="a", priority=1).request(order_id=4),
    ]
    result = enqueue_many(requests)
    first = min(job_id for job_id in result.ids if job_id is not None)
    assert [job_id - first for job_id in result.ids if job_id is not None] == [2, 4, 1, 3, 0]
    assert {
        (row["queue"], row["priority"], row["lane_seq"], row["args"]["order_id"]) for row in stored.ready()
    } == {("a", 1, 1, 4), ("a", 2, 1, 2), ("b", 1, 1, 0), ("b", 1, 2, 3)}
    (row,) = stored.deferred()
    assert (row["job_id"], row["run_at"], row["state"], row["attempt"]) == (
        result.ids[1],
        later,
        "scheduled",
        0,
    )
    assert row["finalized_at"] is None
    assert [(row["queue"], row["priority"], row["next_lane_seq"]) for row in stored.segments()] == [
        ("a", 1, 2),
        ("a", 2, 2),
        ("b", 1, 3),
    ]


ODD = 'tab\t line\n return\r back\\slash \\N "quote" {brace} é 🧾 \u2028 %s'


@pytest.mark.django_db
def test_any_text_survives_copy() -> None:
    request = replace(
        note.using(queue="a\\tb,{}\"' %é", tags=[ODD, ""], metadata={ODD: [ODD]}).request(
            order_id=1, note={ODD: ODD}
        ),
        kind=ODD,
    )
    enqueue_many([request, replace(request, run_at=datetime(2030, 1, 1, tzinfo=UTC))])
    for row in (*stored.ready(), *stored.deferred()):
        assert (row["kind"], row["queue"]) == (ODD, "a\\tb,{}\"' %é")
        assert row["args"] == {"order_id": 1, "note": {ODD: ODD}}
        assert row["payload"] == {"tags": [ODD, ""], "metadata": {ODD: [ODD]}}


@pytest.mark.django_db
@pytest.mark.parametrize(
    "case",
    [
        case
        for case in load("queue-storage/payload-encoding")["cases"]
        if case["path"].startswith("enqueue_many")
    ],
    ids=lambda case: str(case["input"]),
)
def test_recorded_payloads_are_reproduced(case: dict[str, Any]) -> None:
    note.using(**case["input"]).enqueue_many(orders(1))
    note.using(**case["input"], run_at=timedelta(hours=1)).enqueue_many(orders(1))
    assert stored.ready()[0]["payload"] == case["stored"]
    assert stored.deferred()[0]["payload"] == case["stored"]


@pytest.mark.django_db
@pytest.mark.parametrize("shards", [1, 2, 5, 64])
def test_recorded_shards_are_where_jobs_go(shards: int) -> None:
    stored.use_shards("default", shards)
    vectors = load("ordering_key_shards")["vectors"]
    result = enqueue_many(
        [note.using(ordering_key=bytes.fromhex(vector["key_hex"])).request(order_id=1) for vector in vectors]
    )
    assert {row["job_id"]: row["enqueue_shard"] for row in stored.ready()} == {
        job_id: vector["shard_by_count"][str(shards)]
        for job_id, vector in zip(result.ids, vectors, strict=True)
    }


@pytest.mark.django_db
def test_jobs_without_a_key_stay_together_and_use_every_shard_in_turn() -> None:
    stored.use_shards("default", 4)
    for _ in range(4):
        note.enqueue_many(orders(5))
    counts = Counter(row["enqueue_shard"] for row in stored.ready())
    assert counts == {0: 5, 1: 5, 2: 5, 3: 5}


@pytest.mark.django_db
def test_a_new_number_of_shards_counts_at_once() -> None:
    bound = note.using(ordering_key="customer-42")
    bound.enqueue_many(orders(1))
    stored.use_shards("default", 64)
    bound.enqueue_many(orders(1))
    vector = next(
        vector
        for vector in load("ordering_key_shards")["vectors"]
        if vector["key_hex"] == b"customer-42".hex()
    )
    assert [row["enqueue_shard"] for row in stored.ready()] == [0, vector["shard_by_count"]["64"]]


@pytest.mark.django_db
def test_items_may_be_dicts_instances_or_jobs_of_their_own() -> None:
    result = pay.enqueue_many(
        [{"order_id": 1}, ProcessPayment(2), note.using(queue="mail").request(order_id=3)]
    )
    assert result.count == 3
    assert {(row["kind"], row["queue"], row["args"]["order_id"]) for row in stored.ready()} == {
        ("process_payment", "default", 1),
        ("process_payment", "default", 2),
        ("note", "mail", 3),
    }


@pytest.mark.django_db(transaction=True)
def test_each_queue_is_woken_once_and_only_for_jobs_that_are_ready() -> None:
    url = address(SERVER_URL, str(connection.settings_dict["NAME"]))
    requests = [
        note.using(
            queue=f"q{n % 2}", priority=1 + n % 4, run_at=timedelta(hours=1) if n % 3 == 0 else None
        ).request(order_id=n)
        for n in range(1000)
    ]
    requests.append(note.using(queue="asleep", run_at=timedelta(hours=1)).request(order_id=0))
    with psycopg.connect(url, autocommit=True) as listener:
        for queue in ("q0", "q1", "asleep", "last"):
            listener.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(f"awa:{queue}")))
        enqueue_many(requests)
        note.using(queue="last").enqueue_many(orders(1))
        heard = list(listener.notifies(timeout=PATIENCE, stop_after=3))
    assert sorted(notify.channel for notify in heard) == ["awa:last", "awa:q0", "awa:q1"]


@pytest.mark.django_db
def test_ten_thousand_jobs_take_few_statements_and_little_time() -> None:
    with CaptureQueriesContext(connection) as queries:
        before = stored.rows("SELECT pg_current_wal_insert_lsn() AS at")  # the connection is warm
        started = time.perf_counter()
        result = note.enqueue_many(orders(10_000))
        took = [time.perf_counter() - started]
    assert before
    assert result.count == 10_000
    assert len(queries) < 50
    while min(took) >= 2 and len(took) < 5:  # something else took the processor
        started = time.perf_counter()
        note.enqueue_many(orders(10_000))
        took.append(time.perf_counter() - started)
    assert min(took) < 2


# Refusals


@pytest.mark.django_db
@pytest.mark.parametrize(("changes", "path"), REFUSED, ids=lambda value: str(value)[:40])
def test_one_bad_job_refuses_all_before_any_statement(changes: dict[str, Any], path: str) -> None:
    good = JobInsert(kind="note", args={})
    with transaction.atomic():
        with CaptureQueriesContext(connection) as queries, pytest.raises(InvalidJob) as refusal:
            enqueue_many([good, good, replace(good, **changes)])
        assert len(queries) == 0
        Customer.objects.create(name="after")
    assert refusal.value.path == f"jobs[2].{path}"
    assert stored.ready() == stored.deferred() == []


@pytest.mark.django_db
def test_of_ten_thousand_the_bad_one_is_named_by_index_and_path() -> None:
    items = orders(10_000)
    items[7777]["note"] = "x\0"
    with pytest.raises(InvalidJob) as refusal:
        note.enqueue_many(items)
    assert str(refusal.value) == "jobs[7777].args.note: U+0000 cannot be stored in PostgreSQL"
    assert stored.ready() == []


@pytest.mark.django_db
def test_bad_jobs_may_be_skipped_and_are_listed() -> None:
    items = [*orders(3), {"order_id": {1}}, {}, {"order_id": 5}]
    result = note.enqueue_many(items, on_invalid="skip")
    assert [fault.path for fault in result.invalid] == ["jobs[3].args.order_id", "jobs[4].args"]
    assert result.count == 4
    assert [index for index, job_id in enumerate(result.ids) if job_id is None] == [3, 4]
    assert [row["args"]["order_id"] for row in stored.ready()] == [0, 1, 2, 5]

    bad = replace(note.request(order_id=1), priority=9)
    again = enqueue_many([note.request(order_id=6), bad], on_invalid="skip")
    assert [str(fault) for fault in again.invalid] == [
        "jobs[1].priority: a whole number from 1 to 4 is needed, not 9"
    ]


@pytest.mark.django_db
def test_an_unknown_way_to_handle_conflicts_is_refused() -> None:
    with pytest.raises(InvalidJob, match="'holder', 'raise', 'skip'"):
        enqueue_many([note.request(order_id=1)], on_conflict="ignore")  # type: ignore[arg-type]


@pytest.mark.django_db
def test_a_batch_that_rolls_back_leaves_nothing() -> None:
    with stored.rolled_back():
        note.using(unique=True).enqueue_many(orders(100))
    assert (stored.ready(), stored.segments(), stored.claims()) == ([], [], {})


@pytest.mark.django_db
def test_an_error_of_the_database_undoes_the_batch_and_not_the_transaction() -> None:
    with transaction.atomic():
        Customer.objects.create(name="before")
        stored.run("ALTER TABLE awa.deferred_jobs ADD CONSTRAINT no_notes CHECK (kind <> 'note')")
        requests = [note.request(order_id=1), note.using(run_at=timedelta(hours=1)).request(order_id=2)]
        with pytest.raises(InvalidJob, match="no_notes") as refusal:
            enqueue_many(requests)
        assert isinstance(refusal.value.__cause__, DatabaseError)
        Customer.objects.create(name="after")
        assert stored.ready() == []
    assert Customer.objects.count() == 2


# Unique jobs


@pytest.mark.django_db
@pytest.mark.parametrize("canonical", [False, True], ids=["queue storage", "canonical"])
def test_duplicates_are_listed_by_index_and_the_others_are_stored(canonical: bool) -> None:
    if canonical:
        stored.use_canonical()
    bound = note.using(unique=Unique())
    held = bound.enqueue(order_id=2)
    items = [{"order_id": 1}, {"order_id": 2}, {"order_id": 3}, {"order_id": 3}, {"order_id": 4}]

    skipped = bound.using(on_conflict="skip").enqueue_many(items)
    one, _, three, _, four = skipped.ids
    assert skipped.count == 3
    assert skipped.duplicates == [(1, held.id), (3, three)]
    assert list(skipped.ids) == [one, None, three, None, four]

    held_now = bound.enqueue_many(items)
    assert held_now.count == 0
    assert list(held_now.ids) == [one, held.id, three, three, four]
    assert [index for index, _ in held_now.duplicates] == [0, 1, 2, 3, 4]
    assert sorted(stored.claims().values()) == sorted([held.id, one, three, four])


@pytest.mark.django_db
@pytest.mark.parametrize("canonical", [False, True], ids=["queue storage", "canonical"])
def test_a_conflict_that_is_raised_stores_nothing_and_spares_the_transaction(canonical: bool) -> None:
    if canonical:
        stored.use_canonical()
    bound = note.using(unique=Unique(), on_conflict="raise")
    with transaction.atomic():
        Customer.objects.create(name="before")
        held = bound.enqueue(order_id=2)
        for items in (orders(5), [{"order_id": 7}, {"order_id": 7}]):
            with pytest.raises(UniqueConflict) as conflict:
                bound.enqueue_many(items)
            if len(items) == 5:
                assert conflict.value.holder_id == held.id
        Customer.objects.create(name="after")
    assert stored.claims() == {held.unique_key: held.id}
    assert Customer.objects.count() == 2


@pytest.mark.django_db
def test_a_hundred_duplicates_among_thousands_are_found() -> None:
    bound = note.using(unique=Unique())
    bound.enqueue_many(orders(100))
    result = bound.enqueue_many([{"order_id": n} for n in reversed(range(3000))])
    assert result.count == 2900
    assert [index for index, _ in result.duplicates] == list(range(2900, 3000))
    rows = {row["args"]["order_id"]: row["job_id"] for row in stored.ready()}
    assert len(rows) == 3000
    assert all(result.ids[2999 - order_id] == job_id for order_id, job_id in rows.items())


@pytest.mark.django_db
def test_lanes_have_no_gap_for_jobs_that_were_duplicates() -> None:
    bound = note.using(unique=Unique())
    bound.enqueue_many([{"order_id": 1}])
    bound.enqueue_many(orders(4))
    assert [row["lane_seq"] for row in stored.ready()] == [1, 2, 3, 4]
    assert [(row["first_lane_seq"], row["next_lane_seq"]) for row in stored.segments()] == [(1, 2), (2, 5)]


@pytest.mark.django_db
def test_a_batch_of_nothing_but_duplicates_is_no_lane() -> None:
    bound = note.using(unique=Unique())
    bound.enqueue_many(orders(2))
    assert bound.using(queue="other").enqueue_many(orders(2)).count == 0
    assert {row["queue"] for row in stored.segments()} == {"default"}


@pytest.mark.django_db(transaction=True)
def test_batches_with_the_same_keys_in_other_orders_do_not_deadlock() -> None:
    bound = note.using(unique=Unique())
    barrier = threading.Barrier(3)
    results: list[Any] = []

    def work(step: int) -> None:
        try:
            for round_ in range(8):
                barrier.wait(PATIENCE)
                numbers = range(round_ * 100, round_ * 100 + 100)
                items = [{"order_id": n} for n in (reversed(numbers) if step else numbers)]
                results.append(bound.using(queue=f"q{step}").enqueue_many(items).count)
        except BaseException as error:
            results.append(error)
            barrier.abort()
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(step,), daemon=True) for step in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sum(results) == 800
    assert len({row["args"]["order_id"] for row in stored.ready()}) == len(stored.ready()) == 800


@dataclass
class Note:
    order_id: int


@pytest.mark.interop
@pytest.mark.django_db(transaction=True)
def test_rows_of_the_awa_clients_copy_are_the_same() -> None:
    import awa

    client = awa.Client(address(SERVER_URL, str(connection.settings_dict["NAME"])))
    bound = note.using(queue="mail", priority=3, tags=["a"], metadata={"m": [1]})
    try:
        client.enqueue_many_copy(
            [Note(1), Note(2)], queue="mail", priority=3, tags=["a"], metadata={"m": [1]}
        )
        bound.enqueue_many([{"order_id": 1}, {"order_id": 2}])
        note.using(unique=Unique(states=AWA_DEFAULT_STATES)).enqueue_many([{"order_id": 9}])
        with pytest.raises(awa.UniqueConflict):
            client.enqueue_many_copy([Note(9)], unique_opts={})
    finally:
        client.close()
    rows = [row for row in stored.ready() if row["queue"] == "mail"]
    differing = {"job_id", "lane_seq", "run_at", "created_at"}
    plain = [{name: value for name, value in row.items() if name not in differing} for row in rows]
    assert len(plain) == 4
    assert plain[:2] == plain[2:]
    assert [row["lane_seq"] for row in rows] == [1, 2, 3, 4]


# The plane by itself


@pytest.mark.django_db
def test_the_plane_stores_all_or_refuses() -> None:
    requests = [note.using(unique=True).request(order_id=n) for n in (1, 2)]
    with transaction.atomic(), plain_cursor("default") as cursor:
        assert enqueue(cursor, requests) == 2
        with pytest.raises(UniqueConflict):
            enqueue(cursor, requests[1:])
        assert copy_jobs(cursor, []).ids == {}


def taken(job_id: int, **changes: Any) -> Taken:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    values: dict[str, Any] = {
        "job_id": job_id,
        "run_lease": 4,
        "kind": "note",
        "queue": "default",
        "args": {"order_id": job_id},
        "state": JobState.RETRYABLE,
        "priority": 2,
        "attempt": 3,
        "max_attempts": 9,
        "run_at": at + timedelta(seconds=job_id),
        "attempted_at": at,
        "created_at": at - timedelta(days=1),
        "unique_key": None,
        "unique_states": None,
        "metadata": {"m": 1},
        "tags": ("t",),
        "errors": ({"error": "e", "attempt": 3, "at": "x"},),
        "progress": {"percent": 5},
        "taken_at": at + timedelta(hours=1),
    }
    return Taken(**(values | changes))


def landing(job: Taken) -> Landing:
    return Landing(
        taken=job,
        state=JobState.AVAILABLE,
        attempt=job.attempt,
        errors=job.errors,
        metadata=job.metadata,
        progress=job.progress,
    )


@pytest.mark.django_db
def test_jobs_that_come_back_keep_their_history_at_new_positions() -> None:
    note.enqueue(order_id=0)
    key = b"k" * 16
    jobs = [
        taken(900_003),
        taken(900_001, unique_key=key, unique_states="11101001"),
        taken(900_002, queue="mail", priority=1, metadata={}, tags=(), errors=(), progress=None),
    ]
    with transaction.atomic(), plain_cursor("default") as cursor:
        assert insert_ready(cursor, []) == {}
        due = insert_ready(cursor, [landing(job) for job in jobs])
    at = jobs[0].taken_at
    assert due == dict.fromkeys((900_001, 900_002, 900_003), at)
    rows = {row["job_id"]: row for row in stored.ready()}  # ids of others may be beyond these
    first, second, third = (rows[job_id] for job_id in (900_001, 900_002, 900_003))
    assert (first["job_id"], first["lane_seq"], third["job_id"], third["lane_seq"]) == (
        900_001,
        2,
        900_003,
        3,
    )
    for row, job in ((first, jobs[1]), (second, jobs[2]), (third, jobs[0])):
        assert (row["attempt"], row["run_lease"], row["max_attempts"], row["run_at"]) == (3, 4, 9, at)
        assert (row["attempted_at"], row["created_at"]) == (job.attempted_at, job.created_at)
        assert (row["unique_key"], row["unique_states"]) == (job.unique_key, job.unique_states)
    assert second["payload"] is None
    assert third["payload"] == {
        "metadata": {"m": 1},
        "tags": ["t"],
        "errors": [{"error": "e", "attempt": 3, "at": "x"}],
        "progress": {"percent": 5},
    }
    assert [
        (row["queue"], row["first_lane_seq"], row["next_lane_seq"], row["first_run_at"])
        for row in stored.segments()[1:]
    ] == [("default", 2, 4, at), ("mail", 1, 2, at)]
