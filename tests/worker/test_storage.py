"""Which storage a worker serves, and whole fleets on their way from the canonical tables to queue storage."""

from __future__ import annotations

import json
import logging
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from awa_django import storage
from awa_django.errors import ConfigurationError
from awa_django.worker.exit_codes import Exit
from awa_django.worker.storage import Storage, resolve_storage
from tests import databases, invariants, moves
from tests.moves import Moving, Producer
from tests.planes.world import World
from tests.workers import PROBE_TABLE, count, insert, labels, wait_until, worker

moving = pytest.fixture(moves.on_the_move)

ROLES = ["auto", "canonical_drain", "queue_storage_target"]


def resolved(world: World, role: str = "auto") -> Storage:
    return resolve_storage(world.connection, role)


def enqueue(world: World) -> None:
    world.run("SELECT awa.insert_job_compat('k', 'q')")


def prepare(world: World, schema: str = "awa") -> None:
    world.run("SELECT awa.storage_prepare('queue_storage', jsonb_build_object('schema', %s::text))", schema)


def state(world: World) -> Any:
    return world.one("SELECT state FROM awa.storage_transition_state")


@pytest.fixture
def canonical(world: World) -> World:
    """A database as the real client installs it, unused."""
    moves.make_canonical(world.connection)
    return world


# The table of the contract


def test_a_fresh_installation_is_promoted_and_the_second_worker_finds_it_so(canonical: World) -> None:
    for _ in range(2):
        found = resolved(canonical)
        assert (str(found), found.is_canonical) == ("queue storage", False)
        assert (found.status.state, found.status.auto_finalized) == ("active", True)


def test_a_worker_that_only_drains_leaves_a_fresh_installation_canonical(canonical: World) -> None:
    found = resolved(canonical, "canonical_drain")
    assert (str(found), found.is_canonical) == ("canonical storage", True)
    assert state(canonical) == "canonical"


def test_one_old_job_keeps_a_cluster_canonical(canonical: World) -> None:
    enqueue(canonical)
    found = resolved(canonical)
    assert (found.is_canonical, found.status.backlog) == (True, 1)
    assert state(canonical) == "canonical"


def test_a_worker_seen_within_a_minute_and_a_half_keeps_it_canonical_too(canonical: World) -> None:
    moves.add_runtime(canonical.connection, role="auto", silent="80 seconds")
    assert resolved(canonical).is_canonical
    canonical.run("UPDATE awa.runtime_instances SET last_seen_at = now() - interval '91 seconds'")
    assert not resolved(canonical).is_canonical


@pytest.mark.parametrize(
    ("role", "before", "after"),
    [
        ("auto", "canonical storage, prepared", "queue storage, mixed_transition"),
        ("canonical_drain", "canonical storage, prepared", "canonical storage, draining, mixed_transition"),
        ("queue_storage_target", "queue storage, prepared", "queue storage, mixed_transition"),
    ],
)
def test_each_role_on_the_way(canonical: World, role: str, before: str, after: str) -> None:
    enqueue(canonical)
    prepare(canonical)
    assert str(resolved(canonical, role)) == before
    moves.enter_mixed(canonical.connection)
    assert str(resolved(canonical, role)) == after


@pytest.mark.parametrize(
    ("role", "serves"),
    [
        ("auto", "queue storage"),
        ("canonical_drain", "canonical storage, draining, active"),
        ("queue_storage_target", "queue storage"),
    ],
)
def test_each_role_at_the_end(world: World, role: str, serves: str) -> None:
    assert str(resolved(world, role)) == serves


def test_a_target_has_nothing_to_serve_before_the_move_is_prepared(canonical: World) -> None:
    enqueue(canonical)
    with pytest.raises(
        ConfigurationError, match=r"no move to queue storage is prepared; run .awa storage prepare"
    ):
        resolved(canonical, "queue_storage_target")


@pytest.mark.parametrize("role", ROLES)
def test_a_schema_that_we_do_not_serve_is_refused_in_every_role(canonical: World, role: str) -> None:
    prepare(canonical, "other")
    with pytest.raises(ConfigurationError, match="in schema 'other'"):
        resolved(canonical, role)


@pytest.mark.parametrize("role", ROLES)
def test_an_engine_that_nobody_knows_is_refused_in_every_role(world: World, role: str) -> None:
    world.run("UPDATE awa.storage_transition_state SET current_engine = 'paper'")
    with pytest.raises(ConfigurationError, match="the storage in force is 'paper'"):
        resolved(world, role)


def test_queue_storage_that_is_not_complete_is_refused(awa_database: str) -> None:
    with psycopg.connect(awa_database, autocommit=True) as connection:
        connection.execute("DROP SEQUENCE awa.lease_claim_batch_id_seq CASCADE")
        with pytest.raises(ConfigurationError, match="lacks sequence lease_claim_batch_id_seq"):
            resolve_storage(connection)


def test_a_missing_transition_row_is_named(world: World) -> None:
    world.run("DELETE FROM awa.storage_transition_state")
    with pytest.raises(ConfigurationError, match="storage_transition_state has no row"):
        resolved(world)


def test_the_log_says_what_is_served_and_what_a_move_waits_for(
    canonical: World, caplog: pytest.LogCaptureFixture
) -> None:
    enqueue(canonical)
    prepare(canonical)
    with caplog.at_level(logging.INFO, logger="awa_django.worker"):
        resolved(canonical)
    served, waits = caplog.records
    assert served.levelno == logging.INFO
    assert served.getMessage() == (
        "role auto, state prepared (canonical in force, queue_storage prepared): this worker serves canonical "
        "storage, prepared; 1 canonical jobs are not finished"
    )
    assert waits.levelno == logging.WARNING
    assert "no live worker has the role queue_storage_target" in waits.getMessage()
    moves.enter_mixed(canonical.connection)
    caplog.clear()
    resolved(canonical)
    assert "not finished yet: 1 canonical job" in caplog.records[-1].getMessage()


# Whole workers


def runtimes(connection: psycopg.Connection[Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """The live rows by role and capability."""
    rows = connection.execute(
        "SELECT transition_role, storage_capability, healthy, shutting_down FROM awa.runtime_instances"
    ).fetchall()
    return {
        (role, capability): {"healthy": healthy, "down": down} for role, capability, healthy, down in rows
    }


def canonical_states(connection: psycopg.Connection[Any]) -> dict[str, int]:
    rows = connection.execute(
        "SELECT state::text, count(*) FROM awa.jobs_hot GROUP BY 1"
        " UNION ALL SELECT state::text, count(*) FROM awa.scheduled_jobs GROUP BY 1"
    ).fetchall()
    return dict(rows)


def heartbeat_at(connection: psycopg.Connection[Any], job_id: int) -> Any:
    row = connection.execute("SELECT heartbeat_at FROM awa.jobs_hot WHERE id = %s", [job_id]).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.worker
def test_a_worker_on_a_canonical_cluster_claims_runs_and_settles(moving: Moving) -> None:
    connection = moving.connection
    connection.execute(PROBE_TABLE)
    ids = {
        kind: insert(connection, kind, args)
        for kind, args in {
            "noop": {"n": 1},
            "hopeless": {},
            "flaky": {"failures": 1},
            "snoozing": {"times": 2},
            "cancelling": {},
            "later": {},
            "progressing": {},
        }.items()
    }
    with worker(moving.url, "--drain", "--drain-ahead", "10", STALE_AFTER=60) as process:
        assert process.wait(60) == Exit.OK
        assert "; canonical storage, schema 40" in process.output()
    assert canonical_states(connection) == {"completed": 5, "failed": 1, "cancelled": 1}
    assert labels(connection, ids["flaky"]) == ["flaky", "flaky"]
    assert labels(connection, ids["snoozing"]) == ["snoozing"] * 3
    assert labels(connection, ids["later"]) == ["later", "later"]
    assert json.loads(labels(connection, ids["progressing"])[1])["metadata"] == {"page": 7}
    assert moving.status().state == "canonical"
    (row,) = runtimes(connection).items()
    assert row == (("auto", "queue_storage"), {"healthy": False, "down": True})


@pytest.mark.worker
def test_a_canonical_worker_hears_of_new_jobs_and_hands_back_what_it_cannot_finish(moving: Moving) -> None:
    connection = moving.connection
    connection.execute(PROBE_TABLE)
    first = insert(connection, "noop")
    with worker(moving.url, "--no-maintenance", LISTEN_POLL_INTERVAL=60, DRAIN_TIMEOUT=0.5) as process:
        process.wait_started()
        wait_until(lambda: labels(connection, first))
        second = insert(connection, "noop")
        wait_until(lambda: labels(connection, second), what="a job that a notification announced")
        held = insert(connection, "sleeper", {"seconds": 60, "stubborn": True})
        wait_until(lambda: labels(connection, held))
        assert process.stop() in (Exit.OK, Exit.LEFT_BEHIND)
    row = connection.execute(
        "SELECT state::text, attempt FROM awa.scheduled_jobs WHERE id = %s", [held]
    ).fetchone()
    assert row == ("scheduled", 0)


@pytest.mark.worker
def test_a_cancellation_of_another_job_by_the_same_numbers_is_not_taken_for_its_own(moving: Moving) -> None:
    connection = moving.connection
    connection.execute(PROBE_TABLE)
    held = insert(connection, "slow_at_first", {"seconds": 60})
    with worker(moving.url, HEARTBEAT_INTERVAL=20, STALE_AFTER=60) as process:
        wait_until(lambda: labels(connection, held))
        told = json.dumps({"job_id": held, "run_lease": 1})
        before = heartbeat_at(connection, held)
        connection.execute("SELECT pg_notify('awa:cancel', %s)", [told])
        wait_until(lambda: heartbeat_at(connection, held) > before, what="the worker asks the row")
        assert labels(connection, held) == ["slow_at_first"]
        connection.execute("UPDATE awa.jobs_hot SET state = 'cancelled', finalized_at = now()")
        connection.execute("SELECT pg_notify('awa:cancel', %s)", [told])
        wait_until(lambda: labels(connection, held) == ["slow_at_first", "told to stop"])
        assert process.stop() == Exit.OK
    assert canonical_states(connection) == {"cancelled": 1}


@pytest.mark.worker
@pytest.mark.parametrize(
    ("breaks", "role", "words"),
    [
        (None, "queue_storage_target", "no move to queue storage is prepared"),
        (
            """SELECT awa.storage_prepare('queue_storage', '{"schema": "other"}')""",
            "auto",
            "in schema 'other'",
        ),
        pytest.param(
            "DROP TABLE awa.lease_claims CASCADE",
            "queue_storage_target",
            "lacks table lease_claims",
            marks=pytest.mark.changes_schema,
        ),
    ],
)
def test_a_worker_that_cannot_play_its_role_ends_with_code_2(
    moving: Moving, breaks: str | None, role: str, words: str
) -> None:
    moving.enqueue()
    if breaks is not None:
        moving.run(breaks)
    done = databases.manage(
        moving.url, "awa_worker", "--role", role, settings="tests.worker_settings", check=False
    )
    assert done.returncode == Exit.USAGE
    assert words in done.stderr


@pytest.mark.worker
def test_an_unknown_role_ends_with_code_2(moving: Moving) -> None:
    done = databases.manage(moving.url, "awa_worker", "--role", "leader", check=False)
    assert done.returncode == Exit.USAGE
    assert "queue_storage_target" in done.stderr


def enqueue_wanderer(connection: psycopg.Connection[Any], n: int) -> None:
    insert(connection, "wandering", {"n": n, "snoozes": n % 3, "retries": n % 2})


def done(connection: psycopg.Connection[Any]) -> Counter[int]:
    """How often each numbered job was done."""
    rows = connection.execute("SELECT label FROM probe WHERE label LIKE 'done %'").fetchall()
    return Counter(int(label.removeprefix("done ")) for (label,) in rows)


def reports(connection: psycopg.Connection[Any], role: str, capability: str) -> Callable[[], bool]:
    return lambda: runtimes(connection).get((role, capability), {}).get("healthy", False)


@pytest.mark.worker
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_fleet_moves_while_jobs_flow_and_none_is_lost(moving: Moving, killed: bool) -> None:
    connection = moving.connection
    connection.execute(PROBE_TABLE)
    insert(connection, "noop")
    producer = Producer(moving.url, enqueue_wanderer, every=0.03)
    # Only where one is killed are jobs to be taken away, and not where one stands still for a while.
    patience = 2 if killed else 60
    with worker(moving.url, STALE_AFTER=patience) as old, producer.working():
        old.wait_started()
        assert "; canonical storage, schema" in old.output()
        wait_until(reports(connection, "auto", "queue_storage"))
        producer.wait_for(20)
        moving.step(storage.prepare)
        with worker(moving.url, "--role", "queue_storage_target", STALE_AFTER=patience) as target:
            target.wait_started()
            assert "; queue storage, prepared, schema" in target.output()
            wait_until(reports(connection, "queue_storage_target", "queue_storage"))
            producer.wait_for(20)
            assert count(connection, "SELECT count(*) FROM awa.ready_entries") == 0

            # Long jobs, so that something runs on the canonical tables at the flip.
            held = [insert(connection, "spell", {"seconds": 2}) for _ in range(3)]
            wait_until(lambda: all(labels(connection, job_id) for job_id in held))
            moving.step(storage.enter_mixed)
            producer.wait_for(20)
            wait_until(reports(connection, "auto", "canonical_drain_only"), what="the old worker only drains")
            assert moving.status().runtimes["canonical_drain_only"] == 1
            wait_until(lambda: count(connection, "SELECT count(*) FROM awa.ready_entries") > 10)

            if killed:
                old.kill()
            else:
                assert old.stop() == Exit.OK
            with worker(moving.url, "--role", "canonical_drain", STALE_AFTER=patience) as drain:
                drain.wait_started()
                assert "; canonical storage, draining, mixed_transition, schema" in drain.output()
                wait_until(reports(connection, "canonical_drain", "canonical_drain_only"))
                wait_until(lambda: not moving.status().blockers, what="an empty backlog")
                producer.wait_for(10)
                assert moving.step(storage.finalize).state == "active"
                producer.wait_for(10)
                producer.stop()
                wait_until(
                    lambda: len(done(connection)) == producer.count, what=f"{producer.count} jobs done"
                )
                wait_until(lambda: invariants.is_quiet(connection), what="the last outcomes")
                assert drain.stop() == Exit.OK
            assert target.stop() == Exit.OK
    # What was killed may have run jobs whose end it had not stored yet.
    assert set(done(connection).values()) <= ({1, 2} if killed else {1})
    assert set(canonical_states(connection)) == {"completed"}
    assert count(connection, "SELECT count(*) FROM awa.job_unique_claims") == 0
    invariants.assert_all_hold(moving.url)


@pytest.mark.worker
def test_jobs_that_were_put_off_before_the_flip_are_promoted_and_drained(moving: Moving) -> None:
    connection = moving.connection
    connection.execute(PROBE_TABLE)
    due = "now() + interval '2 seconds'"
    row = connection.execute(
        f"SELECT id FROM awa.insert_job_compat('noop', p_args => '{{}}', p_state => 'scheduled', p_run_at => {due})"
    ).fetchone()
    assert row is not None
    moves.enter_mixed(connection)
    with worker(moving.url, "--role", "canonical_drain") as process:
        process.wait_started()
        wait_until(lambda: labels(connection, row[0]), what="a canonical job that fell due after the flip")
        wait_until(lambda: canonical_states(connection) == {"completed": 1})
        assert process.stop() == Exit.OK


@pytest.mark.worker
def test_a_queue_storage_worker_that_leads_rescues_what_a_canonical_one_left(moving: Moving) -> None:
    connection = moving.connection
    connection.execute(PROBE_TABLE)
    held = insert(connection, "slow_at_first", {"seconds": 60})
    with worker(moving.url, "--no-maintenance") as old:
        wait_until(lambda: labels(connection, held))
        old.kill()
    moves.enter_mixed(connection)
    with worker(moving.url) as leader:
        leader.wait_started()
        assert "; queue storage, mixed_transition" in leader.output()
        wait_until(
            lambda: canonical_states(connection) in ({"retryable": 1}, {"available": 1}),
            what="the canonical attempt is taken away",
        )
        with worker(moving.url, "--role", "canonical_drain", "--no-maintenance") as drain:
            wait_until(lambda: canonical_states(connection) == {"completed": 1})
            assert drain.stop() == Exit.OK
        assert leader.stop() == Exit.OK
    assert labels(connection, held) == ["slow_at_first"] * 2


@pytest.mark.worker
@pytest.mark.interop
def test_the_real_clients_read_the_rows_of_our_canonical_workers(
    moving: Moving, awa_pg_worker: Callable[[str], subprocess.Popen[str]]
) -> None:
    moving.enqueue()
    with worker(moving.url, "--role", "canonical_drain", "--queue", "elsewhere") as process:
        wait_until(reports(moving.connection, "canonical_drain", "queue_storage"))
        assert json.loads(moving.cli("status"))["live_runtime_capability_counts"] == {"queue_storage": 1}
        moves_on = json.loads(
            moving.cli("prepare", "--engine", "queue_storage", "--details", '{"schema": "awa"}')
        )
        assert moves_on["state"] == "prepared"
        moving.runtime()
        moving.step(storage.enter_mixed)
        wait_until(reports(moving.connection, "canonical_drain", "canonical_drain_only"))
        counted = json.loads(moving.cli("status"))["live_runtime_capability_counts"]
        assert counted == {"queue_storage": 1, "canonical_drain_only": 1}
        # It reads the list of runtimes whole, and would not start if it could not decode ours.
        awa_pg_worker(moving.url)
        assert process.stop() == Exit.OK
