"""What a project's tests get: a queue that is empty again."""

from __future__ import annotations

import psycopg
import pytest
from django.db import OperationalError, connection

from awa_django import testing
from awa_django.testing import reset_queue
from tests import databases
from tests.contract import catalog
from tests.settings import SERVER_URL

#: Rows by table, partitions apart; without times, which differ between two installations.
SEEDS = {
    "schema_version": "version",
    "storage_transition_state": "current_engine, prepared_engine, state, transition_epoch, details::text",
    "runtime_storage_backends": "backend, schema_name",
    "queue_ring_state": "current_slot, generation, slot_count, terminal_counter_trusted_at IS NOT NULL",
    "queue_ring_slots": "slot, generation",
    "lease_ring_state": "current_slot, generation, slot_count",
    "lease_ring_slots": "slot, generation",
    "claim_ring_state": "current_slot, generation, slot_count",
    "claim_ring_slots": "slot, generation, rescue_cursor_claimed_at::text, deadline_cursor_deadline_at::text",
}

USE = """
    INSERT INTO awa.jobs (kind, args) VALUES ('greet', '{}');
    INSERT INTO awa.jobs (kind, args, state, run_at) VALUES ('greet', '{}', 'scheduled', now() + interval '1 day');
    SELECT * FROM awa.claim_ready_runtime('default', 10, 0, 0);
    INSERT INTO awa.jobs_hot (kind, unique_key, unique_states) VALUES ('greet', 'k', '11111111');
    INSERT INTO awa.queue_meta (queue, paused) VALUES ('default', true);
    INSERT INTO awa.batch_operations (id, op_kind, filter, spec, state)
    VALUES ('5f0c3b52-0000-4000-8000-000000000001', 'set_priority', '{}', '{}', 'pending');
    UPDATE awa.queue_ring_state SET current_slot = 1, generation = 1;
    UPDATE awa.queue_ring_slots SET generation = 1 WHERE slot = 1;
    UPDATE awa.claim_ring_slots SET rescue_cursor_claimed_at = now();
    UPDATE awa.storage_transition_state SET state = 'canonical', current_engine = 'canonical';
    DELETE FROM awa.runtime_storage_backends;
"""


def contents() -> dict[str, list[tuple[object, ...]]]:
    """Every row of the schema."""
    found: dict[str, list[tuple[object, ...]]] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'awa'::regnamespace AND relkind IN ('r', 'p') "
            "AND NOT relispartition"
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f"SELECT {SEEDS.get(name, name + '::text')} FROM awa.{name} ORDER BY 1")
            found[name] = cursor.fetchall()
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'awa'::regnamespace AND relkind = 'S' ORDER BY 1"
        )
        found["sequences"] = cursor.fetchall()
    return found


@pytest.mark.django_db(transaction=True)
def test_a_reset_queue_is_as_it_was_after_migrate() -> None:
    fresh = contents()
    assert {name for name, rows in fresh.items() if rows} == {*SEEDS, "sequences"}
    before = catalog.dump(psycopg_url())
    for _ in range(2):
        with connection.cursor() as cursor:
            cursor.execute(USE)
        assert contents() != fresh
        reset_queue()
        assert contents() == fresh
    assert catalog.dump(psycopg_url()) == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("turn", ["first", "second"])
def test_jobs_of_a_transactional_test_are_gone_in_the_next(turn: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM awa.jobs")
        assert cursor.fetchone() == (0,), turn
        cursor.execute("INSERT INTO awa.jobs (kind, args) VALUES ('greet', '{}')")


@pytest.mark.django_db(transaction=True)
def test_a_session_in_the_way_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = {"limit_wait": "SET LOCAL lock_timeout = '100ms'"}
    statement = testing.statement
    with psycopg.connect(psycopg_url()) as other, monkeypatch.context() as impatient:
        impatient.setattr(
            testing, "statement", lambda subject, name: waits.get(name) or statement(subject, name)
        )
        other.execute("INSERT INTO awa.jobs (kind, args) VALUES ('greet', '{}')")
        with pytest.raises(
            OperationalError, match="a worker or an open transaction of the test still uses it"
        ):
            reset_queue()
    reset_queue()


def psycopg_url() -> str:
    """The test database, for the driver."""
    return databases.address(SERVER_URL, str(connection.settings_dict["NAME"]))
