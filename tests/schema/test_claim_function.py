"""What claim_ready_runtime hands out, records and leaves alone (contract: queue-storage/claim).

Two of its answers differ from the recorded ones on purpose: a call goes on to the next lane while it has room,
and one batch row records a claim whatever the jobs' ages (H-01), so its indexes count through.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.schema import queue_storage
from tests.schema.queue_storage import Row, Store, vectors

SELECTION = [case for case in vectors("claim-selection")["cases"] if "jobs_in_enqueue_order" in case]


@pytest.fixture
def store(emptied_database: str) -> Iterator[Store]:
    with queue_storage.store(emptied_database) as opened:
        yield opened


def shape(row: Row) -> Row:
    """A claimed job as the vectors describe it."""
    return {
        "lane_priority": row["lane_priority"],
        "priority": row["priority"],
        "lane_seq": row["lane_seq"],
        "attempt": row["attempt"],
        "run_lease": row["run_lease"],
        "compact_receipt": row["claim_batch_id"] is not None,
        "deadline_set": row["deadline_at"] is not None,
        "attempted_at_set": row["attempted_at"] is not None,
        "heartbeat_at_set": row["heartbeat_at"] is not None,
    }


@pytest.mark.parametrize("case", SELECTION, ids=lambda case: case["case"])
def test_jobs_come_in_the_recorded_order(store: Store, case: dict[str, Any]) -> None:
    for job in case["jobs_in_enqueue_order"]:
        store.insert(priority=job["priority"], age=job["age"])
    expected = [
        {name: job[name] for name in job.keys() - {"batch_index"}}
        for claim in case["claims"]
        for job in claim
    ]
    found: list[Row] = []
    while claimed := store.claim(case["batch"], deadline=case["deadline_secs"], aging=case["aging_secs"]):
        assert len(claimed) <= case["batch"]
        for batch, members in groupby(claimed, key=lambda row: row["claim_batch_id"]):
            indexes = [row["claim_batch_index"] for row in members]
            assert indexes == (list(range(1, len(indexes) + 1)) if batch else [None] * len(indexes))
        store.advance(claimed)
        found += map(shape, claimed)
    assert found == expected
    assert store.violated() == []


def test_a_paused_queue_hands_out_nothing(store: Store) -> None:
    store.insert()
    store.rows("INSERT INTO awa.queue_meta (queue, paused) VALUES ('q', true)")
    assert store.claim(10) == []
    store.rows("UPDATE awa.queue_meta SET paused = false")
    assert len(store.claim(10)) == 1


@pytest.mark.parametrize("limit", [0, -1, None])
def test_a_claim_of_nothing_takes_nothing(store: Store, limit: int | None) -> None:
    store.insert()
    assert store.claim(limit) == []  # type: ignore[arg-type]
    assert store.rows("SELECT 1 FROM awa.ready_claim_attempt_batches") == []


def test_a_compact_claim_is_one_ledger_row_and_one_batch(store: Store) -> None:
    ids = store.insert(count=3, age=130)
    claimed = store.claim(10)
    [ledger] = store.rows("SELECT *, lane_ranges::text AS ranges FROM awa.ready_claim_attempt_batches")
    [batch] = store.rows("SELECT *, receipt_ranges::text AS ranges FROM awa.lease_claim_batches")
    assert (ledger["first_lane_seq"], ledger["next_lane_seq"], ledger["claimed_count"]) == (1, 4, 3)
    assert (ledger["ranges"], ledger["priority"], ledger["claim_slot"]) == ("{[1,4)}", 2, 0)
    assert batch["job_ids"] == ids
    assert (batch["run_leases"], batch["attempts"], batch["max_attempts"]) == ([1] * 3, [1] * 3, [25] * 3)
    assert (batch["lane_seqs"], batch["priority"], batch["claimed_count"]) == ([1, 2, 3], 2, 3)
    assert batch["receipt_ids"] == [row["receipt_id"] for row in claimed]
    assert batch["deadline_at"] is None
    assert store.rows("SELECT 1 FROM awa.lease_claims UNION ALL SELECT 1 FROM awa.leases") == []
    assert store.rows("SELECT 1 FROM awa.attempt_state") == []
    assert [row["priority"] for row in claimed] == [1, 1, 1]
    assert all(row["claim_batch_id"] == batch["batch_id"] for row in claimed)


def test_a_claim_with_a_deadline_is_a_receipt_per_job(store: Store) -> None:
    ids = store.insert(count=3)
    claimed = store.claim(10, deadline=300)
    receipts = store.rows("SELECT * FROM awa.lease_claims ORDER BY receipt_id")
    assert [row["job_id"] for row in receipts] == ids
    assert [row["receipt_id"] for row in receipts] == [row["receipt_id"] for row in claimed]
    assert {row["deadline_at"] for row in receipts} == {claimed[0]["deadline_at"]}
    assert {row["claimed_at"] for row in receipts} == {claimed[0]["attempted_at"]}
    assert {row["heartbeat_at"] for row in claimed} == {claimed[0]["attempted_at"]}
    assert (claimed[0]["deadline_at"] - claimed[0]["attempted_at"]).total_seconds() == 300
    assert {(row["closed_at"], row["materialized_at"]) for row in receipts} == {(None, None)}
    assert len(store.rows("SELECT 1 FROM awa.ready_claim_attempt_batches")) == 1
    assert store.rows("SELECT 1 FROM awa.lease_claim_batches") == []


def test_attempt_and_lease_count_on_from_the_ready_row(store: Store) -> None:
    store.insert()
    store.rows("UPDATE awa.ready_entries SET attempt = 3, run_lease = 7")
    [row] = store.claim()
    assert (row["attempt"], row["run_lease"]) == (4, 8)


def test_a_payload_is_never_null(store: Store) -> None:
    store.insert()
    store.rows("UPDATE awa.ready_entries SET payload = NULL")
    assert [row["payload"] for row in store.claim()] == [{}]


# --- Several lanes and slots -----------------------------------------------------------------------


def test_one_call_fills_its_room_from_the_next_best_lanes(store: Store) -> None:
    for priority in (3, 1, 4, 2):
        store.insert(priority=priority, count=2)
    claimed = store.claim(7)
    assert [(row["lane_priority"], row["lane_seq"]) for row in claimed] == [
        (1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1),
    ]  # fmt: skip
    assert len(store.rows("SELECT 1 FROM awa.lease_claim_batches")) == 4
    assert store.violated() == []


def test_one_call_goes_on_into_the_next_slot_of_a_lane(store: Store) -> None:
    store.insert(count=2)
    store.rotate(1, 1)
    store.insert(count=2)
    claimed = store.claim(3)
    assert [(row["ready_slot"], row["ready_generation"], row["lane_seq"]) for row in claimed] == [
        (0, 0, 1), (0, 0, 2), (1, 1, 3),
    ]  # fmt: skip
    ledger = store.rows(
        "SELECT ready_slot, lane_ranges::text AS r FROM awa.ready_claim_attempt_batches ORDER BY batch_id"
    )
    assert ledger == [{"ready_slot": 0, "r": "{[1,3)}"}, {"ready_slot": 1, "r": "{[3,4)}"}]
    store.advance(claimed)
    assert [row["lane_seq"] for row in store.claim(3)] == [4]
    assert store.violated() == []


def test_shards_are_lanes_of_their_own(store: Store) -> None:
    store.rows("INSERT INTO awa.queue_meta (queue, enqueue_shards) VALUES ('q', 4)")
    store.rows(
        "SELECT awa.insert_job_compat('k', 'q', p_ordering_key => int4send(n)) FROM generate_series(1, 40) AS n"
    )
    claimed = store.claim(100)
    assert Counter(row["enqueue_shard"] for row in claimed) == {0: 10, 1: 10, 2: 10, 3: 10}
    for _, lane in groupby(claimed, key=lambda row: row["enqueue_shard"]):
        assert [row["lane_seq"] for row in lane] == list(range(1, 11))
    assert store.violated() == []


def test_a_lane_that_another_claimer_holds_is_passed_over(store: Store) -> None:
    store.insert(priority=1)
    store.insert(priority=2)
    first, second = store.open(autocommit=False), store.open(autocommit=False)
    assert [row["lane_priority"] for row in store.claim(1, on=first)] == [1]
    assert [row["lane_priority"] for row in store.claim(10, on=second)] == [2]
    assert store.claim(10) == []


def test_more_lanes_than_one_call_visits_are_reached_by_the_next(store: Store) -> None:
    store.rows("INSERT INTO awa.queue_meta (queue, enqueue_shards) VALUES ('q', 16)")
    store.rows(
        "SELECT awa.insert_job_compat('k', 'q', p_ordering_key => int4send(n)) FROM generate_series(1, 16) AS n"
    )
    found = 0
    while claimed := store.claim(100):
        store.advance(claimed)
        found += len(claimed)
    assert found == 16


# --- Cursors ---------------------------------------------------------------------------------------


def test_the_cursor_never_moves_over_what_the_call_hands_out(store: Store) -> None:
    store.insert(count=5)
    session = store.open(autocommit=False)
    assert len(store.claim(3, on=session)) == 3
    session.rollback()
    assert store.cursor() == 1
    assert [row["lane_seq"] for row in store.claim(5)] == [1, 2, 3, 4, 5]
    assert store.cursor() == 1


def test_two_claims_of_one_transaction_leave_the_cursor_to_its_commit(store: Store) -> None:
    store.insert(count=4)
    session = store.open(autocommit=False)
    assert [row["lane_seq"] for row in store.claim(2, on=session)] == [1, 2]
    assert [row["lane_seq"] for row in store.claim(2, on=session)] == [3, 4]
    assert store.cursor() == 1
    session.rollback()
    assert [row["lane_seq"] for row in store.claim(2, on=session)] == [1, 2]
    session.commit()
    # A new transaction of the same session trusts what is committed.
    assert [row["lane_seq"] for row in store.claim(2, on=session)] == [3, 4]
    assert store.cursor() == 3


def test_a_deletion_is_passed_but_not_trusted_by_its_own_transaction(store: Store) -> None:
    first, _second = store.insert(count=2)
    session = store.open(autocommit=False)
    session.execute("SELECT awa.delete_job_compat(%s)", [first])
    assert [row["lane_seq"] for row in store.claim(2, on=session)] == [2]
    assert store.cursor() == 1
    session.rollback()
    assert [row["lane_seq"] for row in store.claim(2)] == [1, 2]


def test_a_lost_advance_costs_nothing_but_the_look(store: Store) -> None:
    store.insert(count=5)
    assert [row["lane_seq"] for row in store.claim(2)] == [1, 2]
    assert [row["lane_seq"] for row in store.claim(2)] == [3, 4]
    assert store.cursor() == 3
    assert [row["lane_seq"] for row in store.claim(2)] == [5]
    assert store.claim(2) == []
    assert store.cursor() == 6
    assert store.violated() == []


def test_an_uncommitted_job_is_not_a_gap(store: Store) -> None:
    store.insert()
    store.advance(store.claim())
    producer = store.open(autocommit=False)
    store.insert(on=producer)
    assert store.claim(10) == []
    assert store.cursor() == 2
    producer.commit()
    assert [row["lane_seq"] for row in store.claim(10)] == [2]


def test_a_rolled_back_job_is_a_gap_that_is_passed(store: Store) -> None:
    store.insert()
    store.advance(store.claim())
    producer = store.open(autocommit=False)
    store.insert(on=producer, count=3)
    producer.rollback()
    store.insert()
    claimed = store.claim(10)
    assert [row["lane_seq"] for row in claimed] == [5]
    store.advance(claimed)
    assert store.cursor() == 6
    assert store.violated() == []


def test_positions_taken_out_of_the_middle_are_left_out_of_the_ledger(store: Store) -> None:
    ids = store.insert(count=6)
    store.tombstone([ids[1], ids[2], ids[4]])
    claimed = store.claim(10)
    assert [row["lane_seq"] for row in claimed] == [1, 4, 6]
    [ledger] = store.rows(
        "SELECT lane_ranges::text AS r, claimed_count AS n, first_lane_seq AS first, next_lane_seq AS next "
        "FROM awa.ready_claim_attempt_batches"
    )
    assert ledger == {"r": "{[1,2),[4,5),[6,7)}", "n": 3, "first": 1, "next": 7}
    store.advance(claimed)
    assert store.violated() == []


def test_a_claim_over_trailing_tombstones_moves_the_cursor(store: Store) -> None:
    ids = store.insert(count=3)
    claimed = store.claim(2)
    store.advance(claimed)
    store.tombstone(ids[2:])
    assert store.claim(10) == []
    assert store.cursor() == 4


@pytest.mark.parametrize("cancelled", [999, 1000, 1001, 3500])
def test_a_long_run_of_cancelled_jobs_is_passed_in_one_call(store: Store, cancelled: int) -> None:
    ids = store.insert(count=cancelled + 3)
    store.tombstone(ids[1 : cancelled + 1])
    claimed = store.claim(2)
    assert [row["lane_seq"] for row in claimed] == [1, cancelled + 2]
    store.advance(claimed)
    assert [row["lane_seq"] for row in store.claim(2)] == [cancelled + 3]
    assert store.violated() == []


def test_spent_slots_are_passed_to_the_first_that_is_not(store: Store) -> None:
    for slot in range(4):
        store.rotate(slot, slot)
        ids = store.insert(count=3)
        if slot < 3:
            store.tombstone(ids)
    assert [(row["ready_slot"], row["lane_seq"]) for row in store.claim(10)] == [(3, 10), (3, 11), (3, 12)]
    assert store.cursor() == 10
    assert store.violated() == []


def test_a_cursor_behind_a_setval_of_another_kind_is_read_right(store: Store) -> None:
    store.insert(count=3)
    claimed = store.claim(2)
    # The uncalled form: its last value says nothing, and the reading function has to look at the row.
    store.rows(
        "SELECT setval(format('awa.%%I', seq_name)::regclass, 3, false) FROM awa.queue_claim_heads WHERE queue = %(q)s",
        q="q",
    )
    assert len(claimed) == 2
    assert [row["lane_seq"] for row in store.claim(10)] == [3]
    assert store.cursor() == 3


def test_a_role_that_may_not_read_a_cursor_is_told_so(store: Store) -> None:
    store.insert()
    role = f"awa_reader_{store.value('SELECT current_database()')}"
    store.rows(f'CREATE ROLE "{role}"')
    store.rows(f'GRANT USAGE ON SCHEMA awa TO "{role}"')
    store.rows(f'GRANT ALL ON ALL TABLES IN SCHEMA awa TO "{role}"')
    reader = store.open(role=f'"{role}"')
    try:
        with pytest.raises(errors.InsufficientPrivilege):
            store.claim(10, on=reader)
    finally:
        reader.close()
        store.rows(f'DROP OWNED BY "{role}"')
        store.rows(f'DROP ROLE "{role}"')


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_claiming_needs_fresh_snapshots(store: Store, level: str) -> None:
    store.insert()
    session = store.open(autocommit=False)
    session.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    with pytest.raises(errors.ActiveSqlTransaction, match="isolation level"):
        store.claim(10, on=session)


# --- Aging -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("age", [60 * 32_767, 60 * 32_768, 60 * 40_000_000])
def test_a_job_that_waited_for_years_has_the_best_priority(store: Store, age: int) -> None:
    store.insert(priority=4, age=age)
    store.insert(priority=1)
    assert [(row["lane_priority"], row["priority"]) for row in store.claim(2)] == [(4, 1), (1, 1)]


@pytest.mark.parametrize(("run_at", "priority"), [("-infinity", 1), ("infinity", 30_002)])
def test_endless_run_ats_are_ranked_too(store: Store, run_at: str, priority: int) -> None:
    store.rows("SELECT awa.insert_job_compat('k', 'q', p_run_at => %(at)s::timestamptz)", at=run_at)
    [row] = store.rows("SELECT priority FROM awa.claim_ready_runtime('q', 1, 0, 60)")
    assert row["priority"] == priority


def test_the_smallest_interval_ages_to_the_best_priority(store: Store) -> None:
    store.insert(priority=4, age=10)
    assert [row["priority"] for row in store.claim(1, aging=1e-300)] == [1]


def test_aged_evidence_carries_the_priority_of_the_lane(store: Store) -> None:
    store.insert(priority=4, age=200, count=2)
    store.insert(priority=4)
    compact = store.claim(2)
    store.advance(compact)
    [row] = store.claim(1, deadline=60)
    assert [job["priority"] for job in compact] == [1, 1]
    assert store.value("SELECT priority FROM awa.lease_claim_batches") == 4
    assert store.value("SELECT priority FROM awa.lease_claims") == 4
    assert store.rows("SELECT DISTINCT priority FROM awa.ready_claim_attempt_batches") == [{"priority": 4}]
    assert row["lane_priority"] == 4
    assert store.violated() == []


# --- Plans -----------------------------------------------------------------------------------------


def test_a_long_history_is_not_read_by_a_claim(store: Store) -> None:
    """Ready rows, ledger and receipts of finished jobs stay in their partitions; a claim must not visit them."""
    store.insert(count=4000)
    while claimed := store.claim(500):
        store.advance(claimed)
        store.complete(claimed)
    store.rows("ANALYZE")
    store.insert(count=3)
    session = store.open(autocommit=False)  # whose counters hold nothing but this claim
    assert len(store.claim(2, on=session)) == 2
    read = session.execute(
        """
        SELECT relname, seq_tup_read + idx_tup_fetch AS rows FROM pg_stat_xact_user_tables
        WHERE schemaname = 'awa' AND relname ~ '^(ready|lease_claim)' AND seq_tup_read + idx_tup_fetch > 0
        """
    ).fetchall()
    assert {table["relname"] for table in read} <= {"ready_entries_0", "ready_segments_0"}
    assert sum(table["rows"] for table in read) < 10


# --- Two at once -----------------------------------------------------------------------------------


def test_the_next_claimer_sees_what_the_last_one_committed_while_it_waited(store: Store) -> None:
    """The cursor stands still for both; only the ledger, read after the lock, tells the second one."""
    store.insert(count=3)
    first = store.open(autocommit=False)
    assert [row["lane_seq"] for row in store.claim(2, on=first)] == [1, 2]
    assert store.claim(2) == [], "a held lane is passed over"
    first.commit()
    assert [row["lane_seq"] for row in store.claim(2)] == [3]


@pytest.mark.parametrize("deadline", [0, 300])
def test_claimers_that_abort_and_forget_hand_out_every_job_once(store: Store, deadline: float) -> None:
    """Two claimers of one lane abort at random and lose cursor moves at random, while jobs are enqueued, rolled
    back and cancelled: no job is skipped, none is handed out twice, and the lane ends empty."""
    seeds = [store.insert(count=50) for _ in range(2)]
    enqueued = {job for ids in seeds for job in ids}
    cancelled: set[int] = set()
    handed: list[int] = []
    lock = threading.Lock()
    producing = threading.Event()
    producing.set()
    sessions = {name: store.open(autocommit=False) for name in ("producer", "canceller", "one", "two")}

    def produce(session: psycopg.Connection[Row], dice: random.Random) -> None:
        for _ in range(60):
            ids = store.insert(on=session, count=dice.randint(1, 5))
            if dice.random() < 0.3:
                session.rollback()
            else:
                session.commit()
                with lock:
                    enqueued.update(ids)
        producing.clear()

    def cancel(session: psycopg.Connection[Row], dice: random.Random) -> None:
        while producing.is_set():
            with lock:
                job = dice.choice(sorted(enqueued))
            # Deleted while available: it must never be handed out; while running: it was, once.
            row = session.execute(
                "SELECT awa.delete_job_compat(%s) AS deleted FROM awa.awa_django_available_jobs WHERE job_id = %s",
                (job, job),
            ).fetchone()
            if dice.random() < 0.2:
                session.rollback()
            else:
                session.commit()
                if row and row["deleted"]:
                    with lock:
                        cancelled.add(job)

    def work(session: psycopg.Connection[Row], dice: random.Random) -> None:
        idle = 0
        while producing.is_set() or idle < 3:
            claimed = store.claim(dice.randint(1, 7), on=session, deadline=deadline)
            if claimed and dice.random() < 0.3:
                session.rollback()
                continue
            session.commit()
            idle = 0 if claimed else idle + 1
            with lock:
                handed.extend(row["job_id"] for row in claimed)
            if claimed and dice.random() < 0.5:
                store.advance(claimed, on=session)
                session.commit()

    with ThreadPoolExecutor(4) as threads:
        running = [
            threads.submit(act, sessions[name], random.Random(seed))
            for seed, (act, name) in enumerate(
                [(produce, "producer"), (cancel, "canceller"), (work, "one"), (work, "two")]
            )
        ]
        for one in running:
            one.result(timeout=120)
    while claimed := store.claim(500, deadline=deadline):
        handed.extend(row["job_id"] for row in claimed)
        store.advance(claimed)

    assert [job for job, times in Counter(handed).items() if times > 1] == []
    assert enqueued - set(handed) - cancelled == set(), "a job was skipped"
    tombstoned = {row["job_id"] for row in store.rows("SELECT job_id FROM awa.ready_tombstones")}
    assert tombstoned & set(handed) == set()
    assert [problem for problem in store.violated(quiesced=True) if not problem.startswith("Q01")] == []
