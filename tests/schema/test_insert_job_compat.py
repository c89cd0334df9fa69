"""One job in: what insert_job_compat stores, returns and refuses (contract: queue-storage/enqueue, 2 and 5 to 9)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import errors

from tests.schema import queue_storage
from tests.schema.queue_storage import Store, vectors

SHARDS = vectors("ordering-key-shard")["cases"]
PAYLOADS = vectors("payload-encoding")


@pytest.fixture
def store(emptied_database: str) -> Iterator[Store]:
    with queue_storage.store(emptied_database) as opened:
        yield opened


def insert(store: Store, arguments: str = "'k'", **values: Any) -> queue_storage.Row:
    [row] = store.rows(f"SELECT * FROM awa.insert_job_compat({arguments})", **values)
    return row


def counts(store: Store) -> dict[str, int]:
    tables = (
        "ready_entries",
        "ready_segments",
        "deferred_jobs",
        "job_unique_claims",
        "jobs_hot",
        "scheduled_jobs",
    )
    return {table: store.value(f"SELECT count(*) FROM awa.{table}") for table in tables}


def test_an_available_job_is_a_ready_row_and_one_segment(store: Store) -> None:
    job = insert(store, "'k', 'q', '{\"a\": 1}', p_priority => 3::smallint, p_tags => ARRAY['t']")
    [ready] = store.rows("SELECT * FROM awa.ready_entries")
    assert {name: ready[name] for name in ready.keys() - {"created_at", "run_at"}} == {
        "ready_slot": 0, "ready_generation": 0, "job_id": job["id"], "kind": "k", "queue": "q", "args": {"a": 1},
        "priority": 3, "attempt": 0, "run_lease": 0, "max_attempts": 25, "lane_seq": 1, "enqueue_shard": 0,
        "attempted_at": None, "unique_key": None, "unique_states": None,
        "payload": {"metadata": {}, "tags": ["t"], "errors": [], "progress": None},
    }  # fmt: skip
    assert ready["created_at"] == ready["run_at"] == job["created_at"] == job["run_at"]
    [segment] = store.rows("SELECT * FROM awa.ready_segments")
    assert (segment["queue"], segment["priority"], segment["enqueue_shard"]) == ("q", 3, 0)
    assert (segment["first_lane_seq"], segment["next_lane_seq"]) == (1, 2)
    assert segment["first_run_at"] == ready["run_at"]
    assert store.violated() == []


def test_the_returned_row_is_what_the_view_shows(store: Store) -> None:
    job = insert(
        store,
        "'k', 'q', '{\"a\": 1}', 'scheduled', 1::smallint, 3::smallint, now() + interval '1 hour', '{\"m\": 2}', "
        "ARRAY['t'], '\\x01', B'11111000'",
    )
    [shown] = store.rows("SELECT * FROM awa.jobs")
    # A new job has no errors; the two ways to say so are both in use.
    assert (job.pop("errors"), shown.pop("errors")) == ([], None)
    assert job == shown
    assert job["unique_states"] == "11111000"


@pytest.mark.parametrize("state", ["scheduled", "retryable"])
def test_a_job_for_later_is_a_deferred_row_and_nothing_else(store: Store, state: str) -> None:
    job = insert(store, f"'k', 'q', p_state => '{state}', p_run_at => '2040-01-01T00:00:00Z'")
    [deferred] = store.rows("SELECT * FROM awa.deferred_jobs")
    assert (deferred["job_id"], deferred["state"], deferred["run_at"]) == (job["id"], state, job["run_at"])
    assert (deferred["attempt"], deferred["run_lease"], job["finalized_at"]) == (0, 0, None)
    assert counts(store) == {
        "ready_entries": 0, "ready_segments": 0, "deferred_jobs": 1, "job_unique_claims": 0, "jobs_hot": 0,
        "scheduled_jobs": 0,
    }  # fmt: skip
    assert store.violated() == []


def test_nulls_take_the_defaults(store: Store) -> None:
    job = insert(store, "'k', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL")
    assert (job["queue"], job["args"], job["state"], job["priority"], job["max_attempts"]) == (
        "default", {}, "available", 2, 25,
    )  # fmt: skip
    assert (job["metadata"], job["tags"], job["errors"], job["progress"]) == ({}, [], [], None)
    assert job["created_at"] is not None


REFUSED = {
    "repeat('k', 201)": "kind has 201 characters",
    "'k', repeat('ü', 201)": "queue name has 201 characters",
    "'k', p_priority => 0::smallint": "priority 0",
    "'k', p_priority => 5::smallint": "priority 5",
    "'k', p_max_attempts => 0::smallint": "max_attempts 0",
    "'k', p_max_attempts => 1001::smallint": "max_attempts 1001",
    "'k', p_tags => array_fill('x'::text, ARRAY[21])": "21 tags",
}


@pytest.mark.parametrize("plane", ["queue_storage", "canonical"])
def test_values_out_of_range_are_refused_on_both_planes(store: Store, plane: str) -> None:
    if plane == "canonical":
        go_canonical(store)
    for arguments, refusal in REFUSED.items():
        with pytest.raises(errors.CheckViolation, match=refusal):
            insert(store, arguments)
    assert set(counts(store).values()) == {0}


def test_values_at_the_edge_of_the_ranges_pass(store: Store) -> None:
    insert(store, "repeat('k', 200), '', p_priority => 4::smallint, p_max_attempts => 1000::smallint, "
                  "p_tags => array_fill('x'::text, ARRAY[20])")  # fmt: skip
    assert counts(store)["ready_entries"] == 1


def test_no_job_starts_in_a_state_of_work(store: Store) -> None:
    for state in ("running", "completed", "failed", "cancelled", "waiting_external"):
        with pytest.raises(errors.InvalidParameterValue, match=state):
            insert(store, f"'k', p_state => '{state}'")
    assert set(counts(store).values()) == {0}


def test_a_queue_name_beyond_the_channel_limit_is_refused_when_the_job_is_due(store: Store) -> None:
    with pytest.raises(errors.InvalidParameterValue):
        insert(store, "'k', repeat('q', 60)")
    insert(store, "'k', repeat('q', 60), p_state => 'scheduled'")
    insert(store, "'k', repeat('q', 59)")
    assert (counts(store)["ready_entries"], counts(store)["deferred_jobs"]) == (1, 1)


def test_a_due_job_wakes_its_queue_and_a_deferred_one_does_not(store: Store) -> None:
    listener = store.open()
    listener.execute('LISTEN "awa:q"')
    insert(store, "'k', 'q', p_state => 'scheduled'")
    with store.main.transaction():
        insert(store, "'k', 'q'")
        insert(store, "'k', 'q'")
    heard = [(note.channel, note.payload) for note in listener.notifies(timeout=30, stop_after=1)]
    heard += [(note.channel, note.payload) for note in listener.notifies(timeout=0)]
    assert heard == [("awa:q", "")]


def test_the_search_path_of_the_caller_survives_success_and_failure(store: Store) -> None:
    store.rows("SET search_path = pg_temp")
    insert(store, "'k'")
    assert store.value("SHOW search_path") == "pg_temp"
    with pytest.raises(errors.CheckViolation):
        insert(store, "'k', p_priority => 9::smallint")
    assert store.value("SHOW search_path") == "pg_temp"


def test_named_and_cast_arguments_resolve(store: Store) -> None:
    insert(
        store,
        "p_kind => %(kind)s, p_queue => %(queue)s, p_args => %(args)s::jsonb, p_state => %(state)s::awa.job_state, "
        "p_priority => %(number)s::smallint, p_max_attempts => %(number)s::smallint, p_run_at => NULL::timestamptz, "
        "p_metadata => %(args)s::jsonb, p_tags => %(tags)s::text[], p_unique_key => NULL::bytea, "
        "p_unique_states => NULL::bit(8), p_ordering_key => NULL::bytea",
        kind="k",
        queue="q",
        args=json.dumps({"a": 1}),
        state="available",
        number=3,
        tags=["t"],
    )
    assert counts(store)["ready_entries"] == 1


# --- Unique keys -----------------------------------------------------------------------------------


def test_a_key_is_claimed_if_the_mask_covers_the_first_state(store: Store) -> None:
    claiming = insert(store, "'k', p_unique_key => '\\x01', p_unique_states => B'01000000'")
    insert(store, "'k', p_unique_key => '\\x01', p_unique_states => B'10000000'")
    insert(store, "'k', p_state => 'scheduled', p_unique_key => '\\x01', p_unique_states => B'01111111'")
    insert(store, "'k', p_unique_key => '\\x02'")
    assert store.rows("SELECT * FROM awa.job_unique_claims") == [
        {"unique_key": b"\x01", "job_id": claiming["id"]}
    ]


@pytest.mark.parametrize("state", ["available", "scheduled", "retryable"])
def test_a_taken_key_is_reported_under_the_name_clients_know(store: Store, state: str) -> None:
    insert(store, "'k', p_unique_key => '\\x01', p_unique_states => B'11111000'")
    before = counts(store)
    with pytest.raises(errors.UniqueViolation) as refused:
        insert(store, f"'k', p_state => '{state}', p_unique_key => '\\x01', p_unique_states => B'11111000'")
    assert refused.value.diag.constraint_name == "idx_awa_jobs_unique"
    assert counts(store) == before


def test_a_key_claimed_by_an_open_transaction_is_waited_for(store: Store) -> None:
    first, second = store.open(autocommit=False), store.open()
    store.insert("a", on=first, unique_key=b"\x01", unique_states="11111000")
    waiting = store.blocked(
        second,
        "SELECT (awa.insert_job_compat('k', 'b', p_unique_key => '\\x01', p_unique_states => B'11111000')).id",
    )
    first.rollback()
    assert len(waiting.result()) == 1


# --- Shards ----------------------------------------------------------------------------------------


def test_ordering_keys_go_to_the_shards_of_the_vectors(store: Store) -> None:
    for case in SHARDS:
        shard = store.value(
            "SELECT awa.awa_django_ordering_shard(decode(%(key)s, 'hex'), %(shards)s)",
            key=case["key_hex"],
            shards=case["shards"],
        )
        assert shard == case["shard"], case


def test_a_job_with_an_ordering_key_is_stored_on_its_shard(store: Store) -> None:
    for case in SHARDS[::9]:
        store.rows(
            "INSERT INTO awa.queue_meta (queue, enqueue_shards) VALUES ('q', %(n)s) "
            "ON CONFLICT (queue) DO UPDATE SET enqueue_shards = excluded.enqueue_shards",
            n=case["shards"],
        )
        job = insert(store, "'k', 'q', p_ordering_key => decode(%(key)s, 'hex')", key=case["key_hex"])
        shard = store.value("SELECT enqueue_shard FROM awa.ready_entries WHERE job_id = %(id)s", id=job["id"])
        assert shard == case["shard"], case


def test_a_connection_without_ordering_keys_sticks_to_one_shard(store: Store) -> None:
    store.rows("INSERT INTO awa.queue_meta (queue, enqueue_shards) VALUES ('q', 64)")
    store.insert("q", count=3)
    rows = store.rows("SELECT DISTINCT enqueue_shard FROM awa.ready_entries")
    assert rows == [{"enqueue_shard": store.main.info.backend_pid % 64}]


# --- Payload ---------------------------------------------------------------------------------------


def test_payloads_are_stored_in_the_expanded_form(store: Store) -> None:
    cases = [case for case in PAYLOADS["cases"] if "insert_job_compat" in case["path"]]
    assert len(cases) == 4
    for case in cases:
        job = insert(
            store,
            "'k', p_tags => %(tags)s::text[], p_metadata => %(metadata)s::jsonb",
            tags=case["input"].get("tags", []),
            metadata=json.dumps(case["input"].get("metadata", {})),
        )
        payload = store.value("SELECT payload FROM awa.ready_entries WHERE job_id = %(id)s", id=job["id"])
        assert payload == case["stored"]


def test_readers_take_every_form_of_payload(store: Store) -> None:
    insert(store, "'k'")
    for case in PAYLOADS["readers"]:
        store.rows(
            "UPDATE awa.ready_entries SET payload = %(payload)s::jsonb",
            payload=None if case["payload"] is None else json.dumps(case["payload"]),
        )
        [job] = store.rows("SELECT metadata, tags, coalesce(errors, '{}') AS errors, progress FROM awa.jobs")
        assert job == {name: case[name] for name in ("metadata", "tags", "errors", "progress")}


# --- Engines and transactions ----------------------------------------------------------------------


def go_canonical(store: Store) -> None:
    store.rows(
        "UPDATE awa.storage_transition_state SET current_engine = 'canonical', prepared_engine = NULL, "
        "state = 'canonical', details = '{}'"
    )


@pytest.mark.parametrize(
    ("state", "table"),
    [("available", "jobs_hot"), ("completed", "jobs_hot"), ("scheduled", "scheduled_jobs"),
     ("retryable", "scheduled_jobs")],
)  # fmt: skip
def test_in_canonical_storage_the_state_chooses_the_table(store: Store, state: str, table: str) -> None:
    go_canonical(store)
    job = insert(
        store, f"'k', 'q', p_state => '{state}', p_unique_key => '\\x01', p_unique_states => B'11111111'"
    )
    [stored] = store.rows(f"SELECT * FROM awa.{table}")
    assert job == stored
    assert store.value("SELECT job_id FROM awa.job_unique_claims") == job["id"]


def test_a_canonical_job_wakes_its_queue_without_an_explicit_run_at(store: Store) -> None:
    go_canonical(store)
    listener = store.open()
    listener.execute('LISTEN "awa:q"')
    insert(store, "'k', 'q'")
    assert [note.channel for note in listener.notifies(timeout=30, stop_after=1)] == ["awa:q"]


def test_queue_storage_in_another_schema_is_refused_by_name(store: Store) -> None:
    store.rows("""UPDATE awa.storage_transition_state SET details = '{"schema": "elsewhere"}'""")
    with pytest.raises(errors.FeatureNotSupported, match="elsewhere"):
        insert(store, "'k'")


def test_during_a_mixed_transition_new_work_goes_to_queue_storage(store: Store) -> None:
    store.rows(
        "UPDATE awa.storage_transition_state SET current_engine = 'canonical', prepared_engine = 'queue_storage', "
        "state = 'mixed_transition', details = '{}'"
    )
    insert(store, "'k'")
    assert (counts(store)["ready_entries"], counts(store)["jobs_hot"]) == (1, 0)


def test_a_transaction_with_an_older_snapshot_may_enqueue_while_the_ring_stands_still(store: Store) -> None:
    session = store.open(autocommit=False)
    session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    session.execute("SELECT 1")
    store.insert()
    session.execute("SELECT awa.insert_job_compat('k', 'other')")
    session.commit()
    assert counts(store)["ready_entries"] == 2


def test_a_transaction_from_before_a_rotation_has_to_start_again(store: Store) -> None:
    store.insert(count=2)
    session = store.open(autocommit=False)
    session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    session.execute("SELECT 1")
    store.rotate(1, 1)
    store.insert()
    # Its job would get position 4 in slot 0, behind position 3 in slot 1, and never be claimed.
    with pytest.raises(errors.SerializationFailure):
        session.execute("SELECT awa.insert_job_compat('k', 'q')")
    session.rollback()
    assert [(row["ready_slot"], row["lane_seq"]) for row in store.claim(10)] == [(0, 1), (0, 2), (1, 3)]
