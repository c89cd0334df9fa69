"""The schema's own defences: each recorded defect of other clients, run against our functions and triggers.

contract: queue-storage/hazards, those of scope *schema*. Where it was a real worker that the defect bit, a real
worker is here too. H-16 is in test_lanes, for it needs no job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.schema import queue_storage
from tests.schema.queue_storage import Store, awa_worker, vectors, wait_for

RECORDED = {case["hazard"]: case for case in vectors("hazards")["cases"]}


@pytest.fixture
def store(emptied_database: str) -> Iterator[Store]:
    with queue_storage.store(emptied_database) as opened:
        yield opened


async def until(store: Store, true: str, **values: Any) -> None:
    """Wait for the database to say so, with the worker running meanwhile."""
    await asyncio.to_thread(store.until, true, **values)


# --- H-01: aged priority in claim evidence ---------------------------------------------------------


@pytest.mark.interop
@pytest.mark.worker
@pytest.mark.parametrize("deadline_ms", [0, 60_000])
def test_h01_an_aged_job_that_waits_for_a_callback_is_completed_once(store: Store, deadline_ms: int) -> None:
    [waiting] = store.insert(priority=4, age=200, kind="waits")
    [returning] = store.insert(priority=4, age=200, kind="returns")
    runs: list[int] = []

    async def waits(job: Any) -> Any:
        import awa

        runs.append(job.id)
        return awa.WaitForCallback(await job.register_callback(timeout_seconds=60))

    async def returns(job: Any) -> None:
        runs.append(job.id)
        await job.register_callback(timeout_seconds=60)

    async def scenario() -> None:
        async with awa_worker(
            store.url,
            "q",
            {"waits": waits, "returns": returns},
            queue_options={"deadline_duration_ms": deadline_ms},
        ) as client:
            await until(store, "EXISTS (SELECT 1 FROM awa.leases WHERE state = 'waiting_external')")
            callback = store.value(
                "SELECT callback_id::text FROM awa.leases WHERE state = 'waiting_external'"
            )
            assert store.value("SELECT priority FROM awa.leases WHERE state = 'waiting_external'") == 4
            await client.complete_external(callback, {"ok": True})
            await until(store, "(SELECT count(*) FROM awa.terminal_jobs) = 2")

    asyncio.run(scenario())
    assert sorted(runs) == sorted([waiting, returning])
    jobs = store.rows("SELECT id, state, priority, args FROM awa.jobs ORDER BY id")
    assert jobs == [
        {"id": job, "state": "completed", "priority": 4, "args": {"n": 1}} for job in (waiting, returning)
    ]
    assert store.violated(quiesced=True, ids=[waiting, returning]) == []


# --- H-03: a ring slot reused under a long enqueue transaction -------------------------------------


@pytest.mark.interop
@pytest.mark.worker
def test_h03_a_real_leader_does_not_turn_the_ring_onto_an_open_enqueue(store: Store) -> None:
    handled: list[int] = []
    producer = store.open(autocommit=False)
    [job] = store.insert(on=producer, kind="k")

    async def handle(job: Any) -> None:
        handled.append(job.id)

    async def scenario() -> None:
        async with awa_worker(
            store.url,
            "q",
            {"k": handle},
            queue_storage_queue_rotate_interval_ms=10,
            queue_storage_lease_rotate_interval_ms=10,
        ):
            await until(store, "(SELECT generation FROM awa.queue_ring_state) = 15")
            # The same leader goes on with its other ring, so it keeps coming back to this one too.
            turns = store.value("SELECT generation FROM awa.lease_ring_state")
            await until(store, "(SELECT generation FROM awa.lease_ring_state) >= %(turns)s", turns=turns + 10)
            assert store.value("SELECT generation FROM awa.queue_ring_state") == 15
            producer.commit()
            await until(store, "(SELECT generation FROM awa.queue_ring_state) > 15")
            await asyncio.to_thread(wait_for, lambda: bool(handled))

    asyncio.run(scenario())
    assert handled == [job]
    assert store.violated() == []


def test_h03_the_dropped_rotation_leaves_both_labels_alone(store: Store) -> None:
    producer = store.open(autocommit=False)
    store.insert(on=producer)
    for generation in range(1, 16):
        assert store.rotate(generation, generation) == generation
    assert store.rotate(0, 16) == 15
    assert store.value("SELECT generation FROM awa.queue_ring_slots WHERE slot = 0") == 0
    assert store.violated() == []
    producer.rollback()
    assert store.rotate(0, 16) == 0
    assert store.value("SELECT generation FROM awa.queue_ring_slots WHERE slot = 0") == 16


@pytest.mark.parametrize("table", ["ready_entries_3", "ready_segments_3", "done_entries_3"])
def test_h03_any_of_the_written_partitions_holds_the_slot(store: Store, table: str) -> None:
    writer = store.open(autocommit=False)
    store.rotate(1, 1)
    store.rotate(2, 2)
    writer.execute(f"LOCK TABLE awa.{table} IN ROW EXCLUSIVE MODE")
    assert store.rotate(3, 3) == 2
    writer.rollback()
    assert store.rotate(3, 3) == 3


def test_h03_a_commit_between_the_leaders_look_and_its_move_holds_the_slot(store: Store) -> None:
    """The leader found the slot empty while the rows were uncommitted; when it moves, their lock is gone."""
    producer = store.open(autocommit=False)
    store.insert(on=producer)
    for generation in range(1, 16):
        store.rotate(generation, generation)
    with store.main.transaction():
        store.rows("SELECT 1 FROM awa.queue_ring_state FOR UPDATE")
        assert store.rows("SELECT 1 FROM awa.ready_entries_0") == []
        producer.commit()
        assert store.rotate(0, 16) == 15
    assert store.violated() == []


def test_h03_readers_and_the_rotating_session_itself_hold_nothing_back(store: Store) -> None:
    reader = store.open(autocommit=False)
    reader.execute("SELECT 1 FROM awa.ready_entries_1")
    with store.main.transaction():
        store.rows("LOCK TABLE awa.ready_entries_1 IN ROW EXCLUSIVE MODE")
        assert store.rotate(1, 1) == 1


def test_h03_updates_that_leave_the_cursor_alone_pass(store: Store) -> None:
    writer = store.open(autocommit=False)
    store.insert(on=writer)
    store.rows("UPDATE awa.queue_ring_state SET terminal_counter_trusted_at = NULL")
    assert store.value("SELECT terminal_counter_trusted_at FROM awa.queue_ring_state") is None


def test_h03_a_ring_whose_cursor_lives_elsewhere_does_not_hold_its_labels(store: Store) -> None:
    """A later schema version keeps the cursor in a ledger of its own and leaves -1 here."""
    store.rows("UPDATE awa.queue_ring_state SET current_slot = -1, generation = -1")
    store.rows("UPDATE awa.queue_ring_slots SET generation = 7 WHERE slot = 7")
    assert store.value("SELECT generation FROM awa.queue_ring_slots WHERE slot = 7") == 7


def test_h03_our_triggers_fire_before_those_of_later_schema_versions(store: Store) -> None:
    for table, ours in (
        ("queue_ring_state", "awa_django_guard_ring_state"),
        ("queue_ring_slots", "awa_django_guard_ring_slot"),
    ):
        names = store.rows(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = %(table)s::regclass AND NOT tgisinternal",
            table=f"awa.{table}",
        )
        assert min(row["tgname"] for row in names) == ours < table < "trg_"


# --- H-04 and H-13: spent prefixes -----------------------------------------------------------------


def test_h04_a_gap_before_a_spent_position_does_not_stop_the_lane(store: Store) -> None:
    """Positions: 1 done and passed, 2 rolled back, 3 cancelled, 4 available; cursor 2."""
    assert RECORDED["H-04"]["ours"] == "cursor 4, then job 4 is returned in the same call"
    store.insert()
    claimed = store.claim()
    store.complete(claimed)
    store.advance(claimed)
    producer = store.open(autocommit=False)
    store.insert(on=producer)
    producer.rollback()
    [cancelled] = store.insert()
    store.tombstone([cancelled])
    [available] = store.insert()
    assert store.cursor() == 2

    claimed = store.claim(10)
    assert [(row["job_id"], row["lane_seq"]) for row in claimed] == [(available, 4)]
    assert store.cursor() == 4
    store.complete(claimed)
    store.advance(claimed)
    assert store.violated(quiesced=True) == []


def test_h04_a_gap_before_a_claim_whose_advance_was_lost_does_not_stop_the_lane(store: Store) -> None:
    store.insert()
    store.advance(store.claim())
    producer = store.open(autocommit=False)
    store.insert(on=producer)
    producer.rollback()
    store.insert()
    assert [row["lane_seq"] for row in store.claim()] == [3]
    store.insert()
    assert [row["lane_seq"] for row in store.claim()] == [4]
    assert store.cursor() == 4


def test_h13_thousands_of_cancelled_jobs_are_one_call(store: Store) -> None:
    ids = store.insert(count=2500)
    store.tombstone(ids[:-1])
    claimed = store.claim(1)
    assert [row["job_id"] for row in claimed] == ids[-1:]
    assert store.cursor() == 2500


@pytest.mark.interop
@pytest.mark.worker
def test_h04_h13_a_real_worker_gets_past_gaps_and_cancelled_jobs(store: Store) -> None:
    store.insert(kind="k")
    store.advance(store.claim())
    producer = store.open(autocommit=False)
    store.insert(on=producer)
    producer.rollback()
    store.tombstone(store.insert(count=1200, kind="k"))
    [job] = store.insert(kind="k")
    handled: list[int] = []

    async def handle(job: Any) -> None:
        handled.append(job.id)

    async def scenario() -> None:
        async with awa_worker(store.url, "q", {"k": handle}):
            await asyncio.to_thread(wait_for, lambda: bool(handled))

    asyncio.run(scenario())
    assert handled == [job]


# --- H-05: aging overflow --------------------------------------------------------------------------


@pytest.mark.interop
@pytest.mark.worker
def test_h05_a_real_worker_runs_a_job_that_waited_longer_than_a_smallint_counts(store: Store) -> None:
    assert RECORDED["H-05"]["ours"] == "effective priority 1"
    [job] = store.insert(priority=3, age=60.0 * 40_000, kind="k")
    handled: list[tuple[int, int]] = []

    async def handle(job: Any) -> None:
        handled.append((job.id, job.priority))

    async def scenario() -> None:
        async with awa_worker(store.url, "q", {"k": handle}):
            await asyncio.to_thread(wait_for, lambda: bool(handled))

    asyncio.run(scenario())
    assert handled == [(job, 1)]


# --- H-09 and H-10: deletion -----------------------------------------------------------------------


@pytest.mark.interop
@pytest.mark.worker
@pytest.mark.parametrize("deadline_ms", [0, 60_000])
def test_h09_a_deleted_waiting_job_is_not_revived_by_the_rescue(store: Store, deadline_ms: int) -> None:
    """The recorded sequence: a job parks, is deleted through the view, and a rescue passes over its receipt."""
    [job] = store.insert(kind="waits")

    async def waits(job: Any) -> Any:
        import awa

        return awa.WaitForCallback(await job.register_callback(timeout_seconds=60))

    async def scenario() -> None:
        async with awa_worker(
            store.url,
            "q",
            {"waits": waits},
            queue_options={"deadline_duration_ms": deadline_ms},
            heartbeat_rescue_interval_ms=50,
        ):
            await until(store, "EXISTS (SELECT 1 FROM awa.leases WHERE state = 'waiting_external')")
            assert store.rows("DELETE FROM awa.jobs WHERE id = %(id)s RETURNING id", id=job) == [{"id": job}]
            # An attempt that nobody runs, claimed later: when it is back, the rescue has passed the other one.
            [abandoned] = store.insert("elsewhere")
            store.claim(queue="elsewhere", deadline=deadline_ms / 1000)
            # Made stale by hand: a short staleness would find attempts of a handler that is merely slow.
            for table in ("lease_claims", "lease_claim_batches"):
                store.rows(f"UPDATE awa.{table} SET claimed_at = claimed_at - interval '1 hour'")
            await until(store, "EXISTS (SELECT 1 FROM awa.deferred_jobs WHERE job_id = %(id)s)", id=abandoned)

    asyncio.run(scenario())
    assert RECORDED["H-09"]["effects"]["deferred_jobs"]["added"], "the vector shows the revival"
    assert store.rows("SELECT 1 FROM awa.jobs WHERE id = %(id)s", id=job) == []
    assert store.violated() == []


def test_h10_a_job_whose_cursor_lags_is_deleted_as_running(store: Store) -> None:
    [job] = store.insert()
    [claimed] = store.claim()
    assert store.cursor() == 1, "the worker has not moved it yet"
    assert store.value("SELECT awa.delete_job_compat(%(id)s)", id=job) is True
    assert store.rows("SELECT 1 FROM awa.ready_tombstones") == []
    [closure] = store.rows("SELECT outcome, receipt_ids FROM awa.lease_claim_closure_batches")
    assert closure == {"outcome": "cancelled", "receipt_ids": [claimed["receipt_id"]]}
    assert store.violated() == []


def test_h10_a_deletion_waits_for_the_claim_and_then_finds_the_job_running(store: Store) -> None:
    [job] = store.insert()
    claimer, deleter = store.open(autocommit=False), store.open()
    assert len(store.claim(on=claimer)) == 1
    waiting = store.blocked(deleter, "SELECT awa.delete_job_compat(%(id)s) AS deleted", id=job)
    claimer.commit()
    assert waiting.result() == [{"deleted": True}]
    assert store.rows("SELECT 1 FROM awa.ready_tombstones") == []
    assert store.value("SELECT outcome FROM awa.lease_claim_closure_batches") == "cancelled"
    assert store.violated() == []


def test_h10_a_deletion_waits_for_a_claim_that_aborts_and_takes_the_job(store: Store) -> None:
    [job] = store.insert()
    claimer, deleter = store.open(autocommit=False), store.open()
    assert len(store.claim(on=claimer)) == 1
    waiting = store.blocked(deleter, "SELECT awa.delete_job_compat(%(id)s) AS deleted", id=job)
    claimer.rollback()
    assert waiting.result() == [{"deleted": True}]
    assert store.value("SELECT job_id FROM awa.ready_tombstones") == job
    assert store.claim() == []
    assert store.violated() == []


@pytest.mark.interop
@pytest.mark.worker
def test_h10_the_worker_of_a_deleted_running_job_is_told_and_its_result_is_stale(store: Store) -> None:
    [job] = store.insert(kind="k")
    cancelled: list[bool] = []

    async def handle(job: Any) -> None:
        while not job.is_cancelled():
            await asyncio.sleep(0.01)
        cancelled.append(True)

    async def scenario() -> None:
        async with awa_worker(store.url, "q", {"k": handle}, queue_options={"deadline_duration_ms": 0}):
            await until(store, "EXISTS (SELECT 1 FROM awa.jobs WHERE state = 'running')")
            assert store.rows("DELETE FROM awa.jobs WHERE id = %(id)s RETURNING id", id=job) == [{"id": job}]
            await asyncio.to_thread(wait_for, lambda: bool(cancelled))

    asyncio.run(scenario())
    assert store.rows("SELECT 1 FROM awa.jobs") == []
    assert store.violated(quiesced=True) == []
