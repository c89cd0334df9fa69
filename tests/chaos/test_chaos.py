"""Workers killed, sessions cut, the server restarted: afterwards every job is accounted for, and none was done twice.

``AWA_CHAOS_SECONDS`` is how long each storm lasts, ``AWA_CHAOS_SEED`` which one it is; a storm says its seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connections

from awa_django import operations
from tests import databases, invariants, moves, servers
from tests.chaos.storm import ANYBODYS, OURS, SLOTS, Storm, connected
from tests.settings import database as settings_of
from tests.worker.test_restart import Cluster
from tests.workers import count

SECONDS = float(os.environ.get("AWA_CHAOS_SECONDS", "5"))
SEED = int(os.environ.get("AWA_CHAOS_SEED", "0")) or random.randrange(1, 10**6)
ALIAS = "chaos"

pytestmark = [
    pytest.mark.worker,
    pytest.mark.server,
    # One after another: each storm keeps a machine busy.
    pytest.mark.xdist_group("chaos"),
    pytest.mark.timeout(240 + 2 * SECONDS),
]

QUEUES = {ANYBODYS: SLOTS, OURS: {"max_workers": SLOTS, "deadline": 30}}
FLEET: dict[str, Any] = {"QUEUES": QUEUES, "DRAIN_TIMEOUT": 10}
#: Rings that turn all the time, and a history that is forgotten at once.
FAST: dict[str, Any] = {"RING_ROTATE_INTERVAL": 0.1, "COMPLETED_RETENTION": 0.5, "ROLLUP_INTERVAL": 1}
LIVE = ("available", "running", "scheduled", "retryable", "waiting_external")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with servers.server(15) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            # What was committed has to survive an immediate shutdown.
            connection.execute("ALTER ROLE postgres SET synchronous_commit = on")
        yield Cluster(url)


@pytest.fixture
def url(cluster: Cluster, django_db_blocker: Any) -> Iterator[str]:
    """A fresh database, which Django knows as ``chaos``."""
    with databases.scratch(cluster.url, "chaos") as found:
        databases.migrate(found)
        connections.databases[ALIAS] = connections.configure_settings(
            {"default": {}, ALIAS: settings_of(found)}
        )[ALIAS]
        try:
            with django_db_blocker.unblock():
                yield found
        finally:
            connections[ALIAS].close()
            del connections[ALIAS]
            del connections.databases[ALIAS]


def is_done(connection: psycopg.Connection[Any]) -> bool:
    """Whether no job waits, runs or will come back."""
    connections[ALIAS].close()
    counts = operations.state_counts(using=ALIAS)
    return not any(getattr(counts, state) for state in LIVE)


def finished() -> int:
    """Jobs that have ended, also those that history has forgotten."""
    counts = operations.state_counts(using=ALIAS)
    ends = ("completed", "failed", "cancelled", "dead", "pruned_completed", "pruned_failed")
    return sum(getattr(counts, name) for name in ends)


def assert_all_ran(connection: psycopg.Connection[Any], storm: Storm) -> None:
    """Each job was handed out unless it was cancelled before, and no attempt of one that is not put off ran twice."""
    ran = {job_id for (job_id,) in connection.execute("SELECT DISTINCT job_id FROM probe")}
    assert set(storm.produced.sure) - storm.meddled <= ran, "jobs that never ran"
    twice = connection.execute(
        "SELECT job_id, attempt, count(*) FROM probe WHERE label IN ('noop', 'async_noop', 'start') "
        "GROUP BY job_id, attempt HAVING count(*) > 1"
    ).fetchall()
    assert twice == [], "attempts that ran twice"


def report(storm: Storm, connection: psycopg.Connection[Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Say what the storm was."""
    runs = count(connection, "SELECT count(*) FROM probe")
    with capsys.disabled():
        print(f"\n  {storm.summary()}, {runs} runs noted")


@pytest.mark.parametrize("rotation", ["slow", "fast"])
def test_no_job_is_lost_and_none_is_finished_twice(
    cluster: Cluster, url: str, rotation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = FLEET | (FAST if rotation == "fast" else {})
    with Storm(cluster, url, ALIAS, SEED, settings) as storm:
        storm.rage(SECONDS, restarts=max(1, int(SECONDS // 40)))
        storm.calm_down(is_done, "every job to have finished")
    sure, unsure = len(storm.produced.sure), len(storm.produced.unsure)
    assert sure > 50
    with connected(url) as connection:
        report(storm, connection, capsys)
        assert_all_ran(connection, storm)
        assert sure <= finished() <= sure + unsure
        assert count(connection, "SELECT count(*) FROM awa.job_unique_claims") == 0
        assert count(connection, "SELECT count(*) FROM awa.attempt_state") == 0
        if rotation == "slow":
            rows = connection.execute("SELECT id FROM awa.jobs WHERE state = 'cancelled'")
            assert storm.cancelled <= {job_id for (job_id,) in rows}, "a cancellation was undone"
    # With the rings turning, history is gone and figures are all there is of it.
    invariants.assert_all_hold(url, ids=storm.produced.sure if rotation == "slow" else ())


@pytest.mark.interop
@pytest.mark.parametrize("rotation", ["slow", "fast"])
def test_a_mixed_fleet_loses_no_job(
    cluster: Cluster, url: str, rotation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever leads forgets as its side does: awa-pg within seconds."""
    settings = FLEET | (FAST if rotation == "fast" else {})
    with Storm(cluster, url, ALIAS, SEED, settings, workers=1, awa_pg=1) as storm:
        storm.rage(SECONDS, restarts=max(1, int(SECONDS // 60)))
        storm.calm_down(is_done, "every job to have finished")
    with connected(url) as connection:
        report(storm, connection, capsys)
        assert_all_ran(connection, storm)
        assert count(connection, "SELECT count(*) FROM probe WHERE pid < 0") > 0, "awa-pg took part"
    invariants.assert_all_hold(url, mixed=True)


def test_canonical_workers_lose_no_job_either(
    cluster: Cluster, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with connected(url) as connection:
        moves.make_canonical(connection)
    with Storm(cluster, url, ALIAS, SEED, FLEET | {"TRANSITION_ROLE": "canonical_drain"}) as storm:
        storm.rage(SECONDS, restarts=max(1, int(SECONDS // 40)))
        storm.calm_down(is_done, "every job to have finished")
    with connected(url) as connection:
        report(storm, connection, capsys)
        assert_all_ran(connection, storm)
        rows = connection.execute("SELECT id, state::text FROM awa.jobs_hot").fetchall()
        ended = [job_id for job_id, state in rows if state in ("completed", "failed", "cancelled")]
        assert storm.cancelled <= {job_id for job_id, state in rows if state == "cancelled"}
        assert len(ended) == len(rows)
        assert len(ended) == len(set(ended))
        assert set(storm.produced.sure) <= set(ended) <= {*storm.produced.sure, *storm.produced.unsure}
        assert count(connection, "SELECT count(*) FROM awa.scheduled_jobs") == 0
        assert count(connection, "SELECT count(*) FROM awa.job_unique_claims") == 0
        assert count(connection, "SELECT count(*) FROM awa.ready_entries") == 0
