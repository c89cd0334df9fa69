"""Fleets of two makes on their way from the canonical tables to queue storage, while jobs flow."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import psycopg
import pytest

from awa_django import storage
from tests import invariants, moves
from tests.interop.test_mixed_fleet import PATIENT, awa_pg_worker, stop
from tests.moves import Moving, Producer
from tests.workers import PROBE_TABLE, count, insert, labels, wait_until, worker

pytestmark = [pytest.mark.worker, pytest.mark.interop]

moving = pytest.fixture(moves.on_the_move)


def enqueue(connection: psycopg.Connection[Any], n: int) -> None:
    """Each fifth job fails once, so that it comes back."""
    if n % 5 == 4:
        insert(connection, "flaky", {"failures": 1})
    else:
        insert(connection, "echo", {"n": n})


def echoed(connection: psycopg.Connection[Any]) -> Counter[int]:
    rows = connection.execute("SELECT label FROM probe WHERE label LIKE '{%'").fetchall()
    return Counter(json.loads(label)["n"] for (label,) in rows)


def flaky_runs(connection: psycopg.Connection[Any]) -> int:
    return count(connection, "SELECT count(*) FROM probe WHERE label = 'flaky'")


def ran(connection: psycopg.Connection[Any], ours: bool) -> int:
    return count(connection, f"SELECT count(*) FROM probe WHERE pid {'>' if ours else '<'} 0")


def live(moving: Moving, role: str, capability: str) -> bool:
    return bool(
        count(
            moving.connection,
            "SELECT count(*) FROM awa.runtime_instances WHERE transition_role = %s AND storage_capability = %s"
            " AND NOT shutting_down",
            role,
            capability,
        )
    )


def assert_nothing_lost(moving: Moving, producer: Producer) -> None:
    connection = moving.connection
    producer.stop()
    failing = producer.count // 5
    others = producer.count - failing
    wait_until(
        lambda: len(echoed(connection)) == others and flaky_runs(connection) == 2 * failing,
        what=f"{others} jobs that ran, and {failing} that ran twice",
    )
    wait_until(lambda: invariants.is_quiet(connection), what="the last outcomes")
    assert set(echoed(connection).values()) == {1}
    assert flaky_runs(connection) == 2 * failing
    assert moving.status().backlog == 0


@pytest.mark.parametrize("moving", ["theirs", "ours"], indirect=True)
def test_we_move_a_fleet_of_awa_pg_and_are_its_target(moving: Moving) -> None:
    connection = moving.connection
    connection.execute(PROBE_TABLE)
    pin = insert(connection, "noop", {"n": 1})
    producer = Producer(moving.url, enqueue)
    with awa_pg_worker(moving.url, stale_after=PATIENT) as theirs, producer.working():
        wait_until(lambda: labels(connection, pin))
        assert moving.status().state == "canonical"
        moving.step(storage.prepare)
        with worker(moving.url, "--role", "queue_storage_target", STALE_AFTER=PATIENT) as target:
            target.wait_started()
            wait_until(lambda: live(moving, "queue_storage_target", "queue_storage"))
            producer.wait_for(30)
            assert ran(connection, ours=True) == 0
            moving.step(storage.enter_mixed)
            producer.wait_for(30)
            wait_until(
                lambda: not moving.status().blockers, seconds=60, what="awa-pg drained the canonical tables"
            )
            moving.step(storage.finalize)
            producer.wait_for(10)
            stop(theirs)
            assert_nothing_lost(moving, producer)
            assert ran(connection, ours=False) > 0
            assert ran(connection, ours=True) > 30
            assert target.stop() == 0
    # Not while anybody leads: a slot that is emptied meanwhile looks like jobs that are gone.
    invariants.assert_all_hold(moving.url, mixed=True)


@pytest.mark.parametrize("moving", ["theirs", "ours"], indirect=True)
def test_their_command_line_moves_a_fleet_of_ours_with_awa_pg_as_its_target(moving: Moving) -> None:
    connection = moving.connection
    connection.execute(PROBE_TABLE)
    pin = insert(connection, "noop", {"n": 1})
    producer = Producer(moving.url, enqueue)
    with worker(moving.url, STALE_AFTER=PATIENT) as ours, producer.working():
        ours.wait_started()
        assert "; canonical storage, schema" in ours.output()
        wait_until(lambda: labels(connection, pin))
        moving.cli("prepare", "--engine", "queue_storage", "--details", '{"schema": "awa"}')
        with awa_pg_worker(moving.url, 20, "queue_storage_target", stale_after=PATIENT) as theirs:
            wait_until(lambda: live(moving, "queue_storage_target", "queue_storage"))
            producer.wait_for(30)
            assert ran(connection, ours=False) == 0
            moving.cli("enter-mixed-transition")
            wait_until(lambda: live(moving, "auto", "canonical_drain_only"))
            producer.wait_for(30)
            wait_until(
                lambda: json.loads(moving.cli("status"))["can_finalize"],
                seconds=60,
                what="we drained the canonical tables",
            )
            moving.cli("finalize")
            producer.wait_for(10)
            assert ours.stop() == 0
            assert_nothing_lost(moving, producer)
            assert ran(connection, ours=False) > 30
            stop(theirs)
    invariants.assert_all_hold(moving.url, mixed=True)
