"""Our workers and real awa-pg ones on the same queue of the same database, at the same moment."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import awa
import psycopg
import pytest

from tests import databases, invariants
from tests.workers import (
    PROBE_TABLE,
    ROOT,
    count,
    drain,
    insert,
    insert_many,
    labels,
    runs,
    states,
    wait_until,
    worker,
)

pytestmark = [pytest.mark.worker, pytest.mark.interop]

JOBS = 5000
#: Where each job has to run once: seconds for which no process is held up, or its attempts would be taken away rightly.
PATIENT = 60
ARGS: dict[str, Any] = {
    "text": 'P\u0101keh\u0101 "quotes" \\ \U0001f95d \u2028',
    "number": 2**53,
    "large": 2**63 - 1,
    "fraction": 0.1,
    "flag": True,
    "nothing": None,
    "items": [1, [2, [3]], {}],
    "nested": {"a": {"b": {"c": "d"}}},
}


@contextmanager
def awa_pg_worker(
    url: str, slots: int = 20, role: str = "auto", *, stale_after: float = 2
) -> Iterator[subprocess.Popen[str]]:
    """A real awa-pg worker in a role of the storage transition; killed at the end if it still runs.

    ``stale_after`` counts when it leads, as ``STALE_AFTER`` does for ours.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(PROBE_TABLE)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.interop.awa_pg_worker", url, str(slots), role, str(stale_after)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            if line.strip() == "started":
                break
            said.append(line)
        else:
            raise AssertionError(f"the awa-pg worker did not start:\n{''.join(said)}")
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def stop(process: subprocess.Popen[str]) -> None:
    """TERM, and wait."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(PROBE_TABLE)
        yield connection


def distinct(connection: psycopg.Connection[Any]) -> int:
    """Jobs that ran at least once."""
    return count(connection, "SELECT count(DISTINCT job_id) FROM probe")


def ran_by(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Runs by our workers, and by awa-pg's."""
    return (
        count(connection, "SELECT count(*) FROM probe WHERE pid > 0"),
        count(connection, "SELECT count(*) FROM probe WHERE pid < 0"),
    )


def unfinished(connection: psycopg.Connection[Any]) -> set[int]:
    """Jobs that somebody has claimed, and whose outcome is not stored."""
    return {job_id for (job_id,) in connection.execute("SELECT id FROM awa.jobs WHERE state = 'running'")}


def test_what_awa_pg_enqueues_runs_here_with_equal_arguments(awa_database: str) -> None:
    client = awa.Client(awa_database)
    plain = client.insert(ARGS, kind="echo", tags=["a"], metadata={"from": "awa-pg"}, priority=1)
    unique = client.insert({"n": 1}, kind="noop", unique_opts={"by_args": True})
    with pytest.raises(awa.UniqueConflict):
        client.insert({"n": 1}, kind="noop", unique_opts={"by_args": True})
    client.close()
    drain(awa_database, STALE_AFTER=PATIENT)
    with connected(awa_database) as connection:
        (label,) = labels(connection, plain.id)
        assert json.loads(label) == ARGS
        assert runs(connection)[unique.id] == 1
        assert states(connection) == {"completed": 2}
    client = awa.Client(awa_database)
    found = client.get_job(plain.id)
    client.close()
    assert str(found.state) == "completed"
    assert (found.tags, found.metadata, found.attempt) == (["a"], {"from": "awa-pg"}, 1)
    invariants.assert_all_hold(awa_database, ids=[plain.id, unique.id])


def test_what_we_enqueue_runs_there_with_equal_arguments(awa_database: str) -> None:
    enqueue = f"""
from tests.workerapp.jobs import echo, flaky, noop
print(echo.enqueue(**{ARGS!r}).id)
print(echo.using(priority=4, tags=["t"], metadata={{"k": 1}}).enqueue(**{ARGS!r}).id)
print(flaky.enqueue(failures=1).id)
noop.enqueue_many([{{"n": n}} for n in range(500)])
"""
    done = databases.manage(
        awa_database, "shell", "--verbosity", "0", "-c", enqueue, settings="tests.worker_settings"
    )
    first, second, failing = [int(line) for line in done.stdout.split()]
    with connected(awa_database) as connection:
        by_sql = insert(connection, "echo", ARGS)
        with awa_pg_worker(awa_database, stale_after=PATIENT) as process:
            wait_until(lambda: distinct(connection) == 504, what="504 jobs that ran")
            wait_until(lambda: runs(connection)[failing] == 2, what="the retry")
            stop(process)
        for job_id in (first, second, by_sql):
            (label,) = labels(connection, job_id)
            assert json.loads(label) == ARGS
        assert {number for job_id, number in runs(connection).items() if job_id != failing} == {1}
    invariants.assert_all_hold(awa_database, mixed=True)


def test_both_at_once_run_every_job_once(awa_database: str) -> None:
    with connected(awa_database) as connection:
        with (
            worker(awa_database, STALE_AFTER=PATIENT) as ours,
            awa_pg_worker(awa_database, 50, stale_after=PATIENT) as theirs,
        ):
            ours.wait_started()
            jobs = 0
            # Once, unless one of them was held up meanwhile and the other did it all.
            while min(ran_by(connection)) <= JOBS // 20:
                assert jobs < 10 * JOBS, f"runs here and there: {ran_by(connection)}"
                for _ in range(10):
                    insert_many(connection, "noop", JOBS // 10)
                jobs += JOBS
                wait_until(
                    lambda jobs=jobs: distinct(connection) == jobs, seconds=60, what=f"{jobs} jobs that ran"
                )
            wait_until(lambda: invariants.is_quiet(connection), what="the last outcomes")
            stop(theirs)
            assert ours.stop() == 0
        assert set(runs(connection).values()) == {1}
    invariants.assert_all_hold(awa_database, mixed=True)


@pytest.mark.parametrize("victim", ["ours", "theirs"])
def test_nothing_is_lost_when_one_side_is_killed(awa_database: str, victim: str) -> None:
    slots, stored = 20, 0
    stale_after = 5  # a survivor that is held up for less loses nothing
    with connected(awa_database) as connection, connected(awa_database) as holding:
        with (
            worker(awa_database, QUEUES={"default": slots}, STALE_AFTER=stale_after) as ours,
            awa_pg_worker(awa_database, slots, stale_after=stale_after) as theirs,
        ):
            ours.wait_started()
            # Once, unless one of them was held up meanwhile and the other did it all.
            while min(ran_by(connection)) <= 50:
                assert stored < 30_000, f"runs here and there: {ran_by(connection)}"
                insert_many(connection, "noop", 3000)
                stored += 3000
                wait_until(
                    lambda stored=stored: min(ran_by(connection)) > 50 or distinct(connection) == stored,
                    what="runs on both sides",
                )
            # In the middle: until the kill no handler can note its run, so these come to no end.
            with holding.transaction():
                holding.execute("LOCK TABLE probe IN SHARE MODE")
                insert_many(connection, "noop", 1000)
                stored += 1000
                if victim == "ours":
                    ours.kill()
                else:
                    theirs.kill()
                held = unfinished(connection)
            wait_until(lambda: distinct(connection) == stored, seconds=60, what=f"{stored} jobs that ran")
            wait_until(lambda: invariants.is_quiet(connection), seconds=60, what="the last outcomes")
            stop(theirs)
            if victim != "ours":
                assert ours.stop() == 0
        often = runs(connection)
        assert set(often.values()) <= {1, 2}
        # What the victim held: its running handlers, and outcomes that it had not stored yet.
        assert {job_id for job_id, number in often.items() if number == 2} <= held
    invariants.assert_all_hold(awa_database, mixed=True)


def test_our_worker_serves_a_schema_that_the_awa_client_made(oracle_database: str) -> None:
    with connected(oracle_database) as connection:
        kinds: dict[str, dict[str, Any]] = {
            "noop": {"n": 1},
            "hopeless": {},
            "flaky": {"failures": 1},
            "snoozing": {"times": 2},
            "cancelling": {},
            "answering": {"n": 1},
        }
        # Our worker promotes a fresh installation before anything is stored in the tables of old.
        with worker(oracle_database, STALE_AFTER=PATIENT) as process:
            process.wait_started()
            ids = {kind: insert(connection, kind, args) for kind, args in kinds.items()}
            insert_many(connection, "noop", 500)
            insert_many(connection, "noop", 500, queue="timed")
            wait_until(
                lambda: (
                    states(connection).get("completed") == 504 and states(connection).get("retryable") is None
                )
            )
            assert process.stop() == 0
        drain(oracle_database, QUEUES={"timed": {"deadline": 60}})
        assert states(connection) == {"completed": 1004, "failed": 1, "cancelled": 1}
        assert len(runs(connection)) == 1005  # answering leaves no note
        assert runs(connection)[ids["flaky"]] == 2
    invariants.assert_all_hold(oracle_database)


def test_either_leader_promotes_and_rescues_for_the_other(awa_database: str) -> None:
    """Each side leads in turn while only the other one works."""
    with connected(awa_database) as connection:
        with worker(awa_database, "--no-maintenance", QUEUES={"ours": 4}) as ours:
            ours.wait_started()
            with awa_pg_worker(awa_database, 1) as theirs:
                later = insert(connection, "noop", queue="ours", state="scheduled", run_at="2020-01-01")
                wait_until(lambda: runs(connection).get(later), what="a job promoted by their leader")
                ours.kill()
                stop(theirs)
        with worker(awa_database, "--maintenance-only"), awa_pg_worker(awa_database, 10) as theirs:
            held = [insert(connection, "spell", {"seconds": 60}) for _ in range(3)]
            wait_until(lambda: all(runs(connection).get(job_id) for job_id in held))
            theirs.kill()
            # They wait for their next attempt, or are due for it already.
            wait_until(
                lambda: (
                    connection.execute(
                        "SELECT count(*) FROM awa.jobs"
                        " WHERE id = ANY (%s) AND state IN ('retryable', 'available') AND attempt > 0",
                        [held],
                    ).fetchone()
                    == (3,)
                ),
                what="three jobs of theirs rescued by whoever leads",
            )
