"""One leader for a fleet of both kinds: real processes, killed with -9, and both storages looked after by either.

contract: runtime/maintenance section 1 and checks 1 and 6
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from awa_django.worker.exit_codes import Exit
from awa_django.worker.leader import LEADER_KEY
from tests import invariants, moves
from tests.moves import Moving
from tests.workers import PROBE_TABLE, ROOT, count, insert, labels, wait_until, worker

pytestmark = pytest.mark.worker

moving = pytest.fixture(moves.on_the_move)

#: Seconds between two tries of ours to lead; the real worker of these tests tries five times a second.
OURS, THEIRS = 0.5, 0.2
#: What the contract grants on top.
GRACE = 1.0


@pytest.fixture
def connection(awa_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(awa_database, autocommit=True) as opened:
        opened.execute(PROBE_TABLE)
        yield opened


@contextlib.contextmanager
def awa_pg_worker(url: str) -> Iterator[subprocess.Popen[str]]:
    """A real awa-pg worker of queue ``q`` that tries to lead; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.worker.awa_pg_worker", url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert any(line.strip() == "started" for line in process.stdout)
            yield process
        finally:
            process.kill()


def holders(connection: psycopg.Connection[Any]) -> list[str]:
    """Who holds the leader's lock: the names of their sessions."""
    rows = connection.execute(
        """
        SELECT coalesce(application_name, '')
        FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE locktype = 'advisory' AND granted AND classid::bigint = %(key)s >> 32
            AND objid::bigint = %(key)s & 4294967295
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        """,
        {"key": LEADER_KEY},
    ).fetchall()
    return [name for (name,) in rows]


def ours_leads(connection: psycopg.Connection[Any]) -> bool:
    return holders(connection) == ["awa_worker lead"]


def theirs_leads(connection: psycopg.Connection[Any]) -> bool:
    found = holders(connection)
    return len(found) == 1 and found != ["awa_worker lead"]


def fall_due(connection: psycopg.Connection[Any], queue: str) -> int:
    """A job that somebody has to promote."""
    kind = "noop" if queue == "default" else "k"
    return insert(connection, kind, queue=queue, state="scheduled", run_at=datetime.now(UTC))


def is_done(connection: psycopg.Connection[Any], job_id: int) -> bool:
    return bool(count(connection, "SELECT count(*) FROM awa.terminal_jobs WHERE job_id = %s", job_id))


@pytest.mark.interop
def test_when_our_leader_is_killed_the_real_worker_leads_and_serves_both_kinds(
    awa_database: str, connection: psycopg.Connection[Any]
) -> None:
    with worker(awa_database, LEADER_ELECTION_INTERVAL=OURS) as ours:
        wait_until(lambda: ours_leads(connection), what="our worker leads")
        with awa_pg_worker(awa_database):
            wait_until(lambda: count(connection, "SELECT count(*) FROM awa.runtime_instances") == 2)
            assert ours_leads(connection)
            for queue in ("default", "q"):
                job_id = fall_due(connection, queue)
                wait_until(
                    lambda job_id=job_id: is_done(connection, job_id), what=f"{queue}, promoted by ours"
                )
            ours.kill()
            killed = time.monotonic()
            wait_until(lambda: theirs_leads(connection), what="the real worker leads")
            assert time.monotonic() - killed < THEIRS + GRACE
            job_id = fall_due(connection, "q")
            wait_until(lambda: is_done(connection, job_id), what="promoted by theirs")
    assert invariants.violated(connection) == []


@pytest.mark.interop
def test_when_the_real_leader_is_killed_ours_leads_and_serves_both_kinds(
    awa_database: str, connection: psycopg.Connection[Any]
) -> None:
    with awa_pg_worker(awa_database) as theirs:
        wait_until(lambda: theirs_leads(connection), what="the real worker leads")
        with worker(awa_database, LEADER_ELECTION_INTERVAL=OURS) as ours:
            wait_until(lambda: count(connection, "SELECT count(*) FROM awa.runtime_instances") == 2)
            assert theirs_leads(connection)
            job_id = fall_due(connection, "default")
            wait_until(lambda: is_done(connection, job_id), what="promoted by theirs")
            theirs.kill()
            killed = time.monotonic()
            wait_until(lambda: ours_leads(connection), what="our worker leads")
            assert time.monotonic() - killed < OURS + GRACE
            job_id = fall_due(connection, "default")
            wait_until(lambda: is_done(connection, job_id), what="promoted by ours")
            left = fall_due(connection, "q")
            with awa_pg_worker(awa_database):
                wait_until(lambda: is_done(connection, left), what="promoted for theirs by ours")
                assert ours_leads(connection)
            assert ours.stop() == Exit.OK
    assert holders(connection) == []
    assert invariants.violated(connection) == []


def test_the_instance_row_says_who_leads_and_that_a_standby_is_well(
    awa_database: str, connection: psycopg.Connection[Any]
) -> None:
    """Maintenance is alive in whoever runs its loops, leading or not; it includes the schedules' thread."""

    def rows() -> list[tuple[Any, ...]]:
        return connection.execute(
            "SELECT pid, leader, maintenance_alive, healthy, shutting_down FROM awa.runtime_instances"
            " ORDER BY started_at"
        ).fetchall()

    with worker(awa_database, SNAPSHOT_INTERVAL=0.3) as first:
        wait_until(
            lambda: [row[1:] for row in rows()] == [(True, True, True, False)], what="the leader's row"
        )
        with worker(awa_database, SNAPSHOT_INTERVAL=0.3) as second:
            wait_until(
                lambda: (
                    [row[1:] for row in rows()] == [(True, True, True, False), (False, True, True, False)]
                ),
                what="the row of the standby",
            )
            assert first.stop() == Exit.OK
            wait_until(
                lambda: (
                    [row[1:] for row in rows()] == [(False, True, False, True), (True, True, True, False)]
                    or [row[1:] for row in rows()] == [(False, False, False, True), (True, True, True, False)]
                ),
                what="the standby leads, the other has left",
            )
            assert second.stop() == Exit.OK
    assert [row[3:] for row in rows()] == [(False, True), (False, True)]


def canonical_leads(connection: psycopg.Connection[Any]) -> bool:
    return bool(
        count(
            connection,
            "SELECT count(*) FROM awa.runtime_instances WHERE leader AND storage_capability = 'canonical_drain_only'",
        )
    )


def test_a_canonical_worker_that_leads_promotes_and_rescues_jobs_of_queue_storage_after_the_flip(
    moving: Moving,
) -> None:
    connection = moving.connection
    connection.execute(PROBE_TABLE)
    with worker(moving.url, "--role", "canonical_drain", SNAPSHOT_INTERVAL=0.3) as leader:
        leader.wait_started()
        wait_until(lambda: count(connection, "SELECT count(*) FROM awa.runtime_instances WHERE leader"))
        moves.enter_mixed(connection)
        with worker(moving.url, "--role", "queue_storage_target", "--no-maintenance") as target:
            wait_until(lambda: canonical_leads(connection), what="a canonical leader after the flip")
            held = insert(connection, "slow_at_first", {"seconds": 60})
            wait_until(lambda: labels(connection, held), what="the attempt that is to die")
            target.kill()
        wait_until(
            lambda: (
                count(connection, "SELECT count(*) FROM awa.deferred_jobs WHERE job_id = %s", held)
                or len(labels(connection, held)) > 1
            ),
            what="the attempt is taken away",
        )
        with worker(moving.url, "--role", "queue_storage_target", "--no-maintenance") as target:
            due = fall_due(connection, "default")
            wait_until(lambda: is_done(connection, due), what="promoted")
            wait_until(lambda: is_done(connection, held), what="the rescued one")
            assert target.stop() == Exit.OK
        assert labels(connection, held) == ["slow_at_first"] * 2
        assert canonical_leads(connection)
        assert leader.stop() == Exit.OK
    assert invariants.violated(connection) == []
