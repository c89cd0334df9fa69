"""How a worker starts, stops, is killed, and what it leaves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import psycopg
import pytest

from tests import databases, invariants
from tests.workers import (
    Worker,
    backends,
    count,
    drain,
    insert,
    insert_many,
    job,
    labels,
    open_attempts,
    runs,
    states,
    wait_until,
    worker,
)

pytestmark = pytest.mark.worker

TERM, INT = signal.SIGTERM, signal.SIGINT


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def _four_running(connection: psycopg.Connection[Any], process: Worker) -> tuple[list[int], list[int]]:
    """Two short and two long jobs, all of them running."""
    short = [insert(connection, "spell", {"seconds": 1}) for _ in range(2)]
    long = [insert(connection, "sleeper", {"seconds": 60, "stubborn": True}) for _ in range(2)]
    wait_until(lambda: len(runs(connection)) == 4, what="four running jobs")
    return short, long


@pytest.mark.parametrize("number", [TERM, INT])
def test_a_stop_signal_lets_short_jobs_end_and_hands_long_ones_back(
    awa_database: str, number: signal.Signals
) -> None:
    with (
        connected(awa_database) as connection,
        worker(awa_database, "--no-maintenance", DRAIN_TIMEOUT=4) as process,
    ):
        short, long = _four_running(connection, process)
        began = time.monotonic()
        process.signal(number)
        # A signal takes its time to arrive, and a notification may overtake it.
        stopping = "SELECT count(*) FROM awa.runtime_instances WHERE shutting_down"
        wait_until(lambda: count(connection, stopping) == 1, what="the worker to say that it stops")
        wait_until(
            lambda: "awa_worker claim default" not in backends(connection), what="the end of the last claim"
        )
        late = insert(connection, "noop")
        assert process.wait() == 0
        assert 3.5 < time.monotonic() - began < 30, "the grace time, and not what the long ones take"
        assert [job(connection, job_id)["state"] for job_id in short] == ["completed"] * 2
        for job_id in long:
            found = job(connection, job_id)
            assert found["attempt"] == 0, "the attempt is not charged"
            assert not found["errors"]
        due = "SELECT count(*) FROM awa.deferred_jobs WHERE run_at <= clock_timestamp()"
        assert count(connection, due) == 2, "due at once"
        assert labels(connection, late) == [], "nothing was claimed after the signal"
        assert open_attempts(connection) == 0
        wait_until(lambda: backends(connection) == [])
        assert "handing back 2 running attempts" in process.output()
        # The next worker runs them as their first attempt.
        with worker(awa_database, STALE_AFTER=60) as successor:
            wait_until(lambda: all(runs(connection)[job_id] == 2 for job_id in long))
            wait_until(lambda: runs(connection).get(late) == 1)
            assert {
                row[0] for row in connection.execute("SELECT attempt FROM probe WHERE label = 'sleeper'")
            } == {1}
            successor.kill()


def test_handlers_are_told_to_stop_and_what_they_answer_is_kept(awa_database: str) -> None:
    with (
        connected(awa_database) as connection,
        worker(awa_database, DRAIN_TIMEOUT=20, STALE_AFTER=60) as process,
    ):
        for _ in range(40):
            insert(connection, "quitter", {"seconds": 30})
        wait_until(lambda: len(runs(connection)) == 40)
        began = time.monotonic()
        assert process.stop() == 0
        assert time.monotonic() - began < 15
        assert states(connection) == {"failed": 40}
        assert open_attempts(connection) == 0
    invariants.assert_all_hold(awa_database)


def test_a_second_signal_ends_the_grace_time(awa_database: str) -> None:
    with (
        connected(awa_database) as connection,
        worker(awa_database, DRAIN_TIMEOUT=60, STALE_AFTER=60) as process,
    ):
        _, long = _four_running(connection, process)
        process.signal(TERM)
        wait_until(lambda: _is_shutting_down(connection))
        began = time.monotonic()
        process.signal(TERM)
        assert process.wait() == 3
        assert time.monotonic() - began < 20
        for job_id in long:
            assert job(connection, job_id)["attempt"] == 0
        assert open_attempts(connection) == 0
        wait_until(lambda: backends(connection) == [])
    invariants.assert_all_hold(awa_database, drained=False)


def _is_shutting_down(connection: psycopg.Connection[Any]) -> int:
    return count(connection, "SELECT count(*) FROM awa.runtime_instances WHERE shutting_down")


@pytest.mark.parametrize("after", ["at once", "when it says hello"])
def test_a_signal_at_start_up_ends_it_as_well(awa_database: str, after: str) -> None:
    with connected(awa_database) as connection, worker(awa_database) as process:
        if after == "when it says hello":
            process.wait_started()
            expected = [0]
        else:
            expected = [0, -TERM]  # Python itself may not have come far enough to listen to signals
        process.signal(TERM)
        assert process.wait() in expected
        wait_until(lambda: backends(connection) == [])


def test_an_instance_row_says_that_it_has_stopped(awa_database: str) -> None:
    with connected(awa_database) as connection, worker(awa_database) as process:
        process.wait_started()
        wait_until(lambda: count(connection, "SELECT count(*) FROM awa.runtime_instances WHERE healthy"))
        assert process.stop() == 0
        rows = connection.execute(
            "SELECT shutting_down, healthy, leader FROM awa.runtime_instances"
        ).fetchall()
        assert rows == [(True, False, False)]


def test_under_exec_of_a_shell_it_is_stopped_like_any_process(awa_database: str) -> None:
    with connected(awa_database) as connection, worker(awa_database, shell=True) as process:
        process.wait_started()
        wait_until(lambda: "awa_worker listen" in backends(connection))
        assert process.stop() == 0


def test_jobs_of_a_worker_that_was_killed_are_run_by_the_next_one(awa_database: str) -> None:
    with connected(awa_database) as connection:
        held = [insert(connection, "slow_at_first", {"seconds": 60}) for _ in range(3)]
        insert_many(connection, "noop", 1000)
        insert_many(connection, "async_noop", 1000)
        ids = [job_id for (job_id,) in connection.execute("SELECT job_id FROM awa.ready_entries")]
        with worker(awa_database, STALE_AFTER=60) as victim:
            wait_until(
                lambda: (
                    all(labels(connection, job_id) for job_id in held)
                    and count(connection, "SELECT count(*) FROM probe") > 300
                ),
                what="jobs that ran",
            )
            victim.kill()
        lost = states(connection)["running"]
        assert lost >= 3, "it was killed in the middle"
        with worker(awa_database) as process:
            wait_until(lambda: states(connection).get("completed") == 2003, seconds=60, what="2003 completed")
            assert process.stop() == 0
        often = runs(connection)
        assert len(often) == 2003
        assert set(often.values()) <= {1, 2}
        assert {often[job_id] for job_id in held} == {2}
        assert sum(often.values()) <= 2003 + lost, "only what the dead worker held ran again"
    invariants.assert_all_hold(awa_database, ids=ids)


# Several processes ----------------------------------------------------------------------------------------


def test_a_child_that_is_killed_is_replaced_and_all_of_them_stop_together(awa_database: str) -> None:
    with connected(awa_database) as connection, worker(awa_database, "--processes", "2") as process:
        first = wait_until(lambda: len(process.children()) == 2 and process.children())
        wait_until(
            lambda: backends(connection).count("awa_worker listen") == 2, what="two listening children"
        )
        first[0].kill()
        wait_until(lambda: "worker process" in process.output())
        second = wait_until(lambda: len(process.children()) == 2 and process.children())
        wait_until(lambda: backends(connection).count("awa_worker listen") == 2, what="the new child")
        assert {child.pid for child in first} != {child.pid for child in second}
        insert_many(connection, "spell", 0)
        for _ in range(60):
            insert(connection, "spell", {"seconds": 0.2})
        wait_until(lambda: states(connection).get("completed") == 60)
        assert process.stop() == 0
        assert not any(child.is_running() for child in second)
        wait_until(lambda: backends(connection) == [])


def test_children_end_when_their_supervisor_is_killed(awa_database: str) -> None:
    with connected(awa_database) as connection, worker(awa_database, "--processes", "2") as process:
        children = wait_until(lambda: len(process.children()) == 2 and process.children())
        wait_until(lambda: backends(connection).count("awa_worker listen") == 2)
        process.process.kill()
        _, alive = psutil.wait_procs(children, timeout=30)
        for child in alive:
            child.kill()
        assert alive == []
        wait_until(lambda: backends(connection) == [])


def test_several_processes_drain_together(awa_database: str) -> None:
    with connected(awa_database) as connection:
        insert_many(connection, "noop", 300)
        drain(awa_database, "--processes", "2", STALE_AFTER=60)
        assert states(connection) == {"completed": 300}
        assert set(runs(connection).values()) == {1}


def test_a_signal_at_start_up_ends_all_processes(awa_database: str) -> None:
    with worker(awa_database, "--processes", "2") as process:
        children = wait_until(process.children)
        process.signal(TERM)
        assert process.wait() == 0
        assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


# The command line -----------------------------------------------------------------------------------------


def test_draining_ends_with_an_empty_queue_and_may_wait_for_retries(awa_database: str) -> None:
    with connected(awa_database) as connection:
        now = insert(connection, "noop")
        retried = insert(connection, "flaky", {"failures": 1})
        tomorrow = insert(connection, "noop", run_at="tomorrow", state="scheduled")
        # However long it takes, the retry is not promoted meanwhile.
        with worker(awa_database, "--drain", PROMOTE_INTERVAL=3600) as process:
            assert process.wait() == 0
        assert job(connection, now)["state"] == "completed"
        assert job(connection, retried)["state"] == "retryable"
        with worker(awa_database, "--drain", "--drain-ahead", "5") as process:
            assert process.wait() == 0
        assert job(connection, retried)["state"] == "completed"
        assert job(connection, tomorrow)["state"] == "scheduled"


def test_draining_goes_on_with_what_the_last_jobs_left_to_do(awa_database: str) -> None:
    """A follow-up of a follow-up, and a retry, are there only once their job has ended."""
    with connected(awa_database) as connection:
        insert(connection, "stepping", {"left": 6})
        failing = insert(connection, "slowly_failing", max_attempts=3)
        with worker(awa_database, "--drain", "--drain-ahead", "10", STALE_AFTER=60) as process:
            assert process.wait(60) == 0
        assert (job(connection, failing)["state"], job(connection, failing)["attempt"]) == ("failed", 3)
        assert states(connection) == {"completed": 7, "failed": 1}


def test_a_drain_can_be_stopped(awa_database: str) -> None:
    with connected(awa_database) as connection:
        job_id = insert(connection, "sleeper", {"seconds": 60})
        with worker(awa_database, "--drain") as process:
            wait_until(lambda: runs(connection).get(job_id))
            assert process.stop() == 0


def test_only_the_queues_that_are_named_are_served_each_with_its_own_limit(awa_database: str) -> None:
    with connected(awa_database) as connection:
        for queue in ("a", "b", "c"):
            for _ in range(5):
                insert(connection, "spell", {"seconds": 0.1}, queue=queue)
        output = drain(awa_database, "--queue", "a:1", "--queue", "b", "--threads", "2")
        assert "queues: a (1 at once), b (2 at once)" in output
        left = connection.execute(
            "SELECT queue, state::text, count(*) FROM awa.jobs GROUP BY 1, 2 ORDER BY 1"
        ).fetchall()
        assert left == [("a", "completed", 5), ("b", "completed", 5), ("c", "available", 5)]


@pytest.mark.parametrize(
    ("options", "settings", "fault"),
    [
        (["--queue", "x" * 60], {}, "60 bytes in UTF-8, at most 59"),
        (["--queue", "a", "--queue", "a:2"], {}, "--queue a is given twice"),
        (["--processes", "0"], {}, "a whole number of at least 1 is needed, not '0'"),
        (["--drain", "--maintenance-only"], {}, "--maintenance-only runs none"),
        (["--nonsense"], {}, "unrecognized arguments: --nonsense"),
        ([], {"HEARTBEAT": 3}, "did you mean 'HEARTBEAT_INTERVAL'?"),
        ([], {"QUEUES": {"default": {"claimer": 2}}}, "AWA['QUEUES']['default']['claimer']"),
    ],
)
def test_wrong_options_and_settings_end_with_code_2_and_say_what_is_wrong(
    awa_database: str, options: list[str], settings: dict[str, Any], fault: str
) -> None:
    with connected(awa_database) as connection, worker(awa_database, *options, **settings) as process:
        assert process.wait(20) == 2
        assert fault in process.output()
        assert "Traceback" not in process.output()
        assert count(connection, "SELECT count(*) FROM awa.runtime_instances") == 0


def test_a_database_without_the_schema_ends_with_code_2(empty_database: str) -> None:
    with worker(empty_database) as process:
        assert process.wait(20) == 2
        assert "manage.py migrate" in process.output()


def test_a_server_that_cannot_be_reached_ends_with_code_4() -> None:
    process = Worker("postgresql://nobody@127.0.0.1:1/nothing")
    assert process.wait(20) == 4
    assert "cannot reach the database" in process.output()
    assert "Traceback" not in process.output()


def test_children_that_cannot_reach_the_server_are_not_started_again(awa_database: str) -> None:
    process = Worker(databases.address(awa_database, "no_such_database"), "--processes", "2")
    assert process.wait(20) == 4
    assert "again in" not in process.output()


def test_a_worker_for_maintenance_only_claims_nothing_but_leads(awa_database: str) -> None:
    with connected(awa_database) as connection, worker(awa_database, "--maintenance-only") as process:
        process.wait_started()
        job_id = insert(connection, "noop", run_at="2020-01-01", state="scheduled")
        wait_until(
            lambda: (
                connection.execute("SELECT state::text FROM awa.jobs WHERE id = %s", [job_id]).fetchone()
                == ("available",)
            ),
            what="promotion",
        )
        assert process.stop() == 0
        assert runs(connection) == {}


def test_a_worker_leaves_no_thread_of_its_own_behind_when_it_ends_a_job(awa_database: str) -> None:
    """Threads and sessions of a worker stay as many as its slots ask for."""
    with connected(awa_database) as connection, worker(awa_database, "--queue", "default:4") as process:
        process.wait_started()
        insert_many(connection, "noop", 200)
        insert_many(connection, "async_noop", 200)
        wait_until(lambda: states(connection).get("completed") == 400)
        me = psutil.Process(process.process.pid)
        threads, sessions = me.num_threads(), len(backends(connection))
        insert_many(connection, "noop", 400)
        insert_many(connection, "async_noop", 400)
        wait_until(lambda: states(connection).get("completed") == 1200)
        # Each slot may have one thread for plain functions and one below coroutines, if not at the first look.
        assert me.num_threads() <= threads + 8
        assert len(backends(connection)) <= sessions + 10
        assert len(os.listdir(f"/proc/{me.pid}/fd")) < 80
        assert process.stop() == 0


CLAIMING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name ~ '^awa_worker'
"""
STOPPING = "SELECT count(*) FROM awa.runtime_instances WHERE shutting_down"


def test_jobs_of_a_claim_that_was_under_way_at_the_signal_run_and_are_stored(emptied_database: str) -> None:
    with (
        psycopg.connect(emptied_database, autocommit=True) as connection,
        psycopg.connect(emptied_database) as holder,
        worker(emptied_database, "--no-maintenance", DRAIN_TIMEOUT=20) as process,
    ):
        process.wait_started()
        holder.execute("LOCK TABLE awa.lease_claim_batches IN ACCESS EXCLUSIVE MODE")
        ids = [insert(connection, "noop", {"n": n}) for n in range(3)]
        wait_until(lambda: count(connection, CLAIMING), what="a claim that waits")
        process.signal(signal.SIGTERM)
        wait_until(lambda: count(connection, STOPPING), what="the worker to say that it stops")
        assert runs(connection) == {}
        assert process.process.poll() is None, "it waits for its claim"
        holder.rollback()
        assert process.wait(20) == 0
        claimed = runs(connection)
        assert claimed
        for job_id in ids:
            found = job(connection, job_id)
            assert (found["state"], found["attempt"]) == (
                ("completed", 1) if job_id in claimed else ("available", 0)
            )
    invariants.assert_all_hold(emptied_database, drained=False)
