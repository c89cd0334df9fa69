"""Lanes and their sequences: names, cursors, reservations, registration (contract: queue-storage/enqueue, 2 to 4)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from tests.schema import queue_storage
from tests.schema.queue_storage import Store, vectors

NAMES = vectors("lane-names-and-advisory-keys")


@pytest.fixture
def store(emptied_database: str) -> Iterator[Store]:
    with queue_storage.store(emptied_database) as opened:
        yield opened


def register(store: Store, queue: str = "q", priority: int = 2, shard: int = 0) -> None:
    """Make a lane the way other clients do: three inserts that do nothing where the row exists."""
    store.rows("INSERT INTO awa.queue_lanes (queue, priority) VALUES (%(q)s, %(p)s) ON CONFLICT DO NOTHING",
               q=queue, p=priority)  # fmt: skip
    for table in ("queue_enqueue_heads", "queue_claim_heads"):
        store.rows(
            f"INSERT INTO awa.{table} (queue, priority, enqueue_shard) VALUES (%(q)s, %(p)s, %(s)s) "
            "ON CONFLICT DO NOTHING",
            q=queue,
            p=priority,
            s=shard,
        )


def names(store: Store) -> tuple[str, str]:
    [row] = store.rows(
        "SELECT e.seq_name AS enqueue, c.seq_name AS claim "
        "FROM awa.queue_enqueue_heads e JOIN awa.queue_claim_heads c USING (queue, priority, enqueue_shard)"
    )
    return row["enqueue"], row["claim"]


def next_value(store: Store, name: str) -> int:
    return int(store.value("SELECT awa.sequence_next_value(%(name)s)", name=name))


def reserve(store: Store, count: int, queue: str = "q") -> int:
    return int(
        store.value(
            "SELECT awa.reserve_enqueue_seq(%(q)s, 2::smallint, 0::smallint, %(n)s)", q=queue, n=count
        )
    )


def test_sequence_names_and_lock_keys_are_those_of_other_clients(store: Store) -> None:
    for lane in NAMES["lanes"]:
        [row] = store.rows(
            """
            SELECT awa.queue_lane_sequence_name('queue_enqueue_seq', %(q)s, %(p)s::smallint, %(s)s::smallint) AS enq,
                   awa.queue_lane_sequence_name('queue_claim_seq', %(q)s, %(p)s::smallint, %(s)s::smallint) AS claim
            """,
            q=lane["queue"],
            p=lane["priority"],
            s=lane["shard"],
        )
        assert (row["enq"], row["claim"]) == (lane["enqueue_sequence"], lane["claim_sequence"])


def test_a_reservation_holds_the_key_that_other_clients_wait_for(store: Store) -> None:
    [lane] = [
        lane
        for lane in NAMES["lanes"]
        if (lane["queue"], lane["priority"], lane["shard"]) == ("email", 4, 63)
    ]
    with store.main.transaction():
        store.rows("SELECT awa.awa_django_register_lane('email', 4::smallint, 63::smallint)")
        registration = held_keys(store)
        store.rows("SELECT awa.reserve_enqueue_seq('email', 4::smallint, 63::smallint, 2)")
        held = held_keys(store)
    assert registration == {lane["registration_key"]}
    assert held == {lane["registration_key"], lane["enqueue_sequence_key"]}
    assert held_keys(store) == set()


def held_keys(store: Store) -> set[int]:
    """The advisory keys that the main session holds, as the 64-bit numbers clients pass."""
    rows = store.rows(
        """
        SELECT (classid::bigint << 32) | objid::bigint AS key FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND pid = %(pid)s AND granted
        """,
        pid=store.main.info.backend_pid,
    )
    return {row["key"] for row in rows}


def test_the_three_inserts_of_a_client_make_the_lane(store: Store) -> None:
    register(store)
    enqueue, claim = names(store)
    assert (next_value(store, enqueue), next_value(store, claim)) == (1, 1)
    assert (
        store.value(
            "SELECT count(*) FROM pg_sequences WHERE schemaname = 'awa' AND sequencename = ANY(%(names)s) "
            "AND data_type = 'bigint'::regtype AND start_value = 1 AND min_value = 1 AND cache_size = 1",
            names=[enqueue, claim],
        )
        == 2
    )


def test_repeating_the_inserts_moves_nothing_and_locks_nothing(store: Store) -> None:
    register(store)
    enqueue, claim = names(store)
    reserve(store, 7)
    store.rows("SELECT awa.set_sequence_next(%(name)s, 5)", name=claim)
    with store.main.transaction():
        register(store)
        assert held_keys(store) == set()
    assert (next_value(store, enqueue), next_value(store, claim)) == (8, 5)


def test_raising_the_next_seq_of_a_head_allocates_the_difference(store: Store) -> None:
    register(store)
    enqueue, _ = names(store)
    reserve(store, 4)
    # Stored next_seq is 1, the sequence stands at 5: three more are positions 5, 6 and 7.
    assert store.value("UPDATE awa.queue_enqueue_heads SET next_seq = next_seq + 3 RETURNING next_seq") == 8
    assert next_value(store, enqueue) == 8
    assert store.value("UPDATE awa.queue_enqueue_heads SET next_seq = 2 RETURNING next_seq") == 2
    assert next_value(store, enqueue) == 8


def test_a_smaller_next_seq_still_raises_a_sequence_that_is_behind_it(store: Store) -> None:
    register(store)
    enqueue, _ = names(store)
    store.rows("ALTER TABLE awa.queue_enqueue_heads DISABLE TRIGGER USER")
    store.rows("UPDATE awa.queue_enqueue_heads SET next_seq = 50")
    store.rows("ALTER TABLE awa.queue_enqueue_heads ENABLE TRIGGER USER")
    store.rows("UPDATE awa.queue_enqueue_heads SET next_seq = 40")
    assert next_value(store, enqueue) == 40


def test_inserted_cursors_raise_their_sequences(store: Store) -> None:
    store.rows("INSERT INTO awa.queue_enqueue_heads (queue, priority, next_seq) VALUES ('q', 2, 11)")
    store.rows("INSERT INTO awa.queue_claim_heads (queue, priority, claim_seq) VALUES ('q', 2, 9)")
    enqueue, claim = names(store)
    assert (next_value(store, enqueue), next_value(store, claim)) == (11, 9)


def test_updating_claim_seq_leaves_the_cursor_alone(store: Store) -> None:
    register(store)
    _, claim = names(store)
    store.rows("UPDATE awa.queue_claim_heads SET claim_seq = 99, seq_name = NULL")
    assert names(store)[1] == claim
    assert next_value(store, claim) == 1


def test_the_next_value_is_read_without_being_used(store: Store) -> None:
    register(store)
    enqueue, _ = names(store)
    assert [next_value(store, enqueue) for _ in range(3)] == [1, 1, 1]
    assert store.value("SELECT nextval(%(name)s)", name=f"awa.{enqueue}") == 1
    assert next_value(store, enqueue) == 2
    store.rows("SELECT setval(%(name)s, 7, false)", name=f"awa.{enqueue}")
    assert next_value(store, enqueue) == 7


def test_a_cursor_is_raised_and_never_lowered(store: Store) -> None:
    register(store)
    _, claim = names(store)
    for wanted, found in ((3, 3), (2, 3), (3, 3), (0, 3), (-5, 3), (10, 10)):
        store.rows("SELECT awa.set_sequence_next(%(name)s, %(n)s)", name=claim, n=wanted)
        assert next_value(store, claim) == found


@pytest.mark.parametrize(
    "call",
    [
        "awa.sequence_next_value(NULL)",
        "awa.set_sequence_next(NULL, 5)",
        "awa.reserve_enqueue_seq('unregistered', 2::smallint, 0::smallint, 1)",
        "awa.reserve_enqueue_seq('unregistered', 2::smallint, 0::smallint, 0)",
    ],
)
def test_a_lane_without_a_sequence_name_is_an_error(store: Store, call: str) -> None:
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        store.rows(f"SELECT {call}")
    assert store.value("SELECT count(*) FROM pg_sequences WHERE sequencename LIKE 'queue_enqueue_seq%%'") == 0


def test_reserving_none_tells_the_next_position(store: Store) -> None:
    register(store)
    assert [reserve(store, 0), reserve(store, -3), reserve(store, 5), reserve(store, 1), reserve(store, 0)] == [
        1, 1, 1, 6, 7,
    ]  # fmt: skip


def test_the_reference_form_of_a_reservation_works_per_row_of_the_heads(store: Store) -> None:
    register(store, "a")
    register(store, "b")
    rows = store.rows(
        "SELECT queue, awa.reserve_enqueue_seq(queue, priority, enqueue_shard, 3) AS first "
        "FROM awa.queue_enqueue_heads ORDER BY queue"
    )
    assert rows == [{"queue": "a", "first": 1}, {"queue": "b", "first": 1}]


def test_ensure_names_the_heads_and_is_content_without_them(store: Store) -> None:
    store.rows("SELECT awa.ensure_lane_sequences('ghost', 1::smallint, 3::smallint)")
    assert (
        store.value("SELECT count(*) FROM pg_sequences WHERE sequencename ~ 'queue_(enqueue|claim)_seq_'")
        == 2
    )
    register(store)
    before = names(store)
    store.rows("UPDATE awa.queue_enqueue_heads SET seq_name = NULL")
    store.rows("UPDATE awa.queue_claim_heads SET seq_name = 'other'")
    store.rows("SELECT awa.ensure_lane_sequences('q', 2::smallint, 0::smallint)")
    assert names(store) == before


def test_a_second_producer_of_a_lane_waits_for_the_first(store: Store) -> None:
    register(store)
    first, second = store.open(autocommit=False), store.open()
    first.execute("SELECT awa.reserve_enqueue_seq('q', 2::smallint, 0::smallint, 10)")
    waiting = store.blocked(
        second, "SELECT awa.reserve_enqueue_seq('q', 2::smallint, 0::smallint, 1) AS first"
    )
    first.rollback()
    # The ten are a gap now; nothing takes them again.
    assert waiting.result() == [{"first": 11}]


def test_two_sessions_may_use_a_new_lane_for_the_first_time_at_once(store: Store) -> None:
    first, second = store.open(autocommit=False), store.open()
    store.insert("fresh", on=first)
    waiting = store.blocked(second, "SELECT (awa.insert_job_compat('k', 'fresh')).id")
    first.commit()
    assert len(waiting.result()) == 1
    assert [row["lane_seq"] for row in store.claim(10, "fresh")] == [1, 2]
    assert store.violated() == []


def test_a_rolled_back_first_use_leaves_the_lane_to_the_next(store: Store) -> None:
    first, second = store.open(autocommit=False), store.open()
    store.insert("fresh", on=first)
    waiting = store.blocked(second, "SELECT (awa.insert_job_compat('k', 'fresh')).id")
    first.rollback()
    assert len(waiting.result()) == 1
    assert [row["lane_seq"] for row in store.claim(10, "fresh")] == [1]


# --- Rights ----------------------------------------------------------------------------------------


@pytest.fixture
def producer(store: Store) -> Iterator[psycopg.Connection[queue_storage.Row]]:
    """A session of a role with the grants a producer needs, and no CREATE on the schema."""
    role = f"awa_producer_{store.value('SELECT current_database()')}"
    store.rows(f'CREATE ROLE "{role}"')
    for grant in (
        "USAGE ON SCHEMA awa",
        "SELECT, INSERT ON ALL TABLES IN SCHEMA awa",
        "USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA awa",
    ):
        store.rows(f'GRANT {grant} TO "{role}"')
    connection = store.open(role=f'"{role}"')
    yield connection
    connection.close()
    store.rows(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_a_producer_needs_no_create_to_use_a_lane_first(
    store: Store, producer: psycopg.Connection[queue_storage.Row]
) -> None:
    store.insert("fresh", on=producer, count=2)
    producer.execute(
        "SELECT * FROM awa.awa_django_reserve_lanes(ARRAY['bulk'], ARRAY[2::smallint], ARRAY[0::smallint], ARRAY[5])"
    )
    assert [row["lane_seq"] for row in store.claim(10, "fresh")] == [1, 2]
    owners = store.rows(
        "SELECT DISTINCT sequenceowner = (SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'awa') AS "
        "ours FROM pg_sequences WHERE sequencename ~ '^queue_(enqueue|claim)_seq_'"
    )
    assert owners == [{"ours": True}]


def test_the_sequences_of_a_lane_serve_every_role_that_may_use_job_ids(
    store: Store, producer: psycopg.Connection[queue_storage.Row]
) -> None:
    store.insert("fresh")
    store.insert("fresh", on=producer)
    assert store.cursor("fresh") == 1
    row = producer.execute(queue_storage.CURSOR, {"queue": "fresh", "priority": 2, "shard": 0}).fetchone()
    assert row == {"cursor": 1}


def test_sequences_cannot_be_made_for_lanes_that_nobody_registered(
    store: Store, producer: psycopg.Connection[queue_storage.Row]
) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        producer.execute("SELECT awa.ensure_lane_sequences('ghost', 2::smallint, 0::smallint)")
    store.insert("known")
    with pytest.raises(errors.InsufficientPrivilege):
        producer.execute("SELECT awa.ensure_lane_sequences('known', 2::smallint, 64::smallint)")


# --- Places for a batch ----------------------------------------------------------------------------


def test_a_batch_gets_its_places_in_one_call(store: Store) -> None:
    store.insert("b", count=3)
    rows = store.rows(
        """
        SELECT * FROM awa.awa_django_reserve_lanes(
            ARRAY['b', 'a', 'b'], ARRAY[2, 1, 1]::smallint[], ARRAY[0, 5, 0]::smallint[], ARRAY[10, 20, 30]
        )
        """
    )
    assert [(r["queue"], r["priority"], r["enqueue_shard"], r["first_lane_seq"]) for r in rows] == [
        ("a", 1, 5, 1),
        ("b", 1, 0, 1),
        ("b", 2, 0, 4),
    ]
    assert {(r["ready_slot"], r["ready_generation"]) for r in rows} == {(0, 0)}


def test_the_slot_of_a_batch_stays_out_of_reuse_from_the_moment_it_is_known(store: Store) -> None:
    producer = store.open(autocommit=False)
    producer.execute(
        "SELECT * FROM awa.awa_django_reserve_lanes(ARRAY['a'], ARRAY[2::smallint], ARRAY[0::smallint], ARRAY[1])"
    )
    for generation in range(1, 16):
        assert store.rotate(generation, generation) == generation
    assert store.rotate(0, 16) == 15, "the ring came round to a slot that a producer is about to fill"
    producer.rollback()
    assert store.rotate(0, 16) == 0


@pytest.mark.parametrize("count", ["0", "-1", "NULL"])
def test_a_batch_of_nothing_is_refused(store: Store, count: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="cannot reserve"):
        store.rows(
            "SELECT * FROM awa.awa_django_reserve_lanes("
            f"ARRAY['a'], ARRAY[2::smallint], ARRAY[0::smallint], ARRAY[{count}::bigint])"
        )


# --- H-16 ------------------------------------------------------------------------------------------


def test_a_cancelled_cursor_move_leaves_no_lock_with_its_session(store: Store) -> None:
    register(store)
    _, claim = names(store)
    holder, mover = store.open(autocommit=False), store.open()
    holder.execute("SELECT awa.set_sequence_next(%s, 5)", [claim])
    waiting = store.blocked(mover, "SELECT awa.set_sequence_next(%(name)s, 8)", name=claim)
    mover.cancel()
    with pytest.raises(errors.QueryCanceled):
        waiting.result()
    holder.rollback()
    held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = "
    assert store.rows(f"{held} (SELECT oid FROM pg_database WHERE datname = current_database())") == []
    store.rows("SELECT awa.set_sequence_next(%(name)s, 8)", name=claim)
    assert next_value(store, claim) == 8


def test_a_cursor_that_is_there_already_is_moved_without_waiting(store: Store) -> None:
    register(store)
    _, claim = names(store)
    holder = store.open(autocommit=False)
    holder.execute("SELECT awa.set_sequence_next(%s, 5)", [claim])
    store.rows("SET lock_timeout = '2s'")
    store.rows("SELECT awa.set_sequence_next(%(name)s, 5)", name=claim)
    holder.rollback()
