"""One leader for a fleet of both kinds: real processes, killed with -9, and both storages looked after by either.

contract: runtime/maintenance section 1 and checks 1 and 6
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from awa_django.conf import Settings
from awa_django.operations.leading import LEADER_KEY
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.states import JobState
from awa_django.worker.exit_codes import Exit
from awa_django.worker.leader import Leadership
from tests import invariants, moves
from tests.moves import Moving
from tests.planes.conftest import world, world_database
from tests.planes.world import World, job
from tests.workers import PROBE_TABLE, ROOT, count, insert, labels, wait_until, worker

__all__ = ["world", "world_database"]

pytestmark = pytest.mark.worker

moving = pytest.fixture(moves.on_the_move)

#: Seconds between two tries of ours to lead; the real worker of these tests tries five times a second.
OURS, THEIRS = 0.5, 0.2
#: What is granted on top. The contract says a second; a machine with other things to do gets five, which still are
#: half of the interval that a worker has unless it is told another.
GRACE = 5.0


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
    """Whether a job has completed. Where the real worker leads it is forgotten within seconds, seen or not."""
    with connection.cursor() as cursor:
        found = QueueStoragePlane().standings(cursor, [job_id]).get(job_id)
    return found is None or found.state is JobState.COMPLETED


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
    invariants.wait_for_rest(connection)
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
    wait_until(lambda: not holders(connection), what="nobody leads")
    invariants.wait_for_rest(connection)
    assert invariants.violated(connection) == []


@pytest.mark.interop
def test_leaders_of_both_kinds_that_take_turns_lose_no_job_and_count_none_twice(
    world: World, world_database: str
) -> None:
    """Each turns the rings by its own policy, and promotes what the other has not (contract: invariants section 3)."""
    settings = replace(Settings(), leader_election_interval=timedelta(milliseconds=50))
    connection = world.connection

    def finished() -> int:
        with connection.transaction():
            world.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            pruned = "SELECT coalesce(sum(pruned_completed_count), 0) FROM awa.queue_terminal_rollups"
            return int(world.one(pruned) + world.one("SELECT count(*) FROM awa.terminal_jobs"))

    def enqueue(count: int) -> int:
        due = world.one("SELECT clock_timestamp() + interval '300 milliseconds'")
        world.enqueue(
            *[
                job(tags=("t",) if number % 5 == 0 else (), run_at=due if number % 3 == 0 else None)
                for number in range(count)
            ]
        )
        return count

    def all_finish() -> None:
        wait_until(lambda: finished() >= done, what=f"{done} jobs")

    done = 0
    with contextlib.ExitStack() as running:
        for _ in range(3):
            ours = Leadership(
                settings,
                [QueueStoragePlane(), CanonicalPlane()],
                connection=lambda: psycopg.connect(
                    world_database, autocommit=True, application_name="awa_worker lead"
                ),
            )
            ours.start()
            running.callback(ours.stop)
            assert ours.wait_until_leader(20)
            theirs = contextlib.ExitStack()
            running.push(theirs)
            theirs.enter_context(awa_pg_worker(world_database))
            done += enqueue(90)
            all_finish()
            assert ours_leads(connection)
            ours.stop()
            assert ours.join(20)
            wait_until(lambda: theirs_leads(connection), what="the real worker leads")
            done += enqueue(90)
            all_finish()
            theirs.close()
    invariants.wait_for_rest(connection)
    assert finished() == done
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
        # It waits for its next attempt, or is due for it already.
        wait_until(
            lambda: count(
                connection,
                "SELECT count(*) FROM awa.jobs WHERE id = %s AND state IN ('retryable', 'available')",
                held,
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
