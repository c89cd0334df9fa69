"""Limits and claimer slots, with real worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests import invariants
from tests.interop.test_mixed_fleet import awa_pg_worker
from tests.workers import (
    Worker,
    backends,
    count,
    drain,
    insert,
    insert_many,
    runs,
    states,
    wait_until,
    worker,
)

pytestmark = pytest.mark.worker

#: Without a notification nothing is noticed by chance.
QUIET = {"LISTEN_POLL_INTERVAL": 60}
#: Queue A: two slots of its own and weight 3; queue B: none and weight 1; ten in all.
WEIGHTED: dict[str, Any] = {
    "GLOBAL_MAX_WORKERS": 10,
    "QUEUES": {"a": {"min_workers": 2, "weight": 3}, "b": {"weight": 1}},
    "SNAPSHOT_INTERVAL": 0.1,
    **QUIET,
}


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def wait_listening(connection: psycopg.Connection[Any], workers: int = 1) -> None:
    wait_until(lambda: backends(connection).count("awa_worker listen") == workers)


def running(connection: psycopg.Connection[Any], ids: list[int]) -> int:
    """Handlers of ``spell`` that run just now."""
    return count(
        connection,
        "SELECT coalesce(sum(CASE label WHEN 'start' THEN 1 ELSE -1 END), 0) FROM probe WHERE job_id = ANY(%s)",
        ids,
    )


def reported(connection: psycopg.Connection[Any]) -> dict[str, tuple[int, Any]]:
    """What the worker says of its queues: jobs in flight, and slots that are borrowed."""
    rows = connection.execute(
        "SELECT item->>'queue', (item->'in_flight')::int, item->'overflow_held' "
        "FROM awa.runtime_instances, jsonb_array_elements(queues) AS item"
    ).fetchall()
    return {name: (in_flight, held) for name, in_flight, held in rows}


def spells(
    connection: psycopg.Connection[Any], number: int, seconds: float, queue: str, **options: Any
) -> list[int]:
    """Enqueue so many jobs of such a length, in one transaction."""
    with connection.transaction():
        return [
            insert(connection, "spell", {"seconds": seconds}, queue=queue, **options) for _ in range(number)
        ]


def owners(connection: psycopg.Connection[Any]) -> list[tuple[int, int]]:
    """Slot and process of each claimer of the default queue."""
    return connection.execute(
        "SELECT claimer_slot, pid FROM awa.queue_claimer_leases "
        "JOIN awa.runtime_instances ON instance_id = owner_instance_id WHERE queue = 'default' ORDER BY 1"
    ).fetchall()


#: A slot is taken over because nobody has claimed by it for half a second, and for no other reason.
NEVER_EXPIRES = "UPDATE awa.queue_claimer_leases SET expires_at = clock_timestamp() + interval '1 hour'"


def ran_in(connection: psycopg.Connection[Any], job_id: int) -> int | None:
    """The process that ran a job."""
    row = connection.execute("SELECT pid FROM probe WHERE job_id = %s", [job_id]).fetchone()
    return None if row is None else int(row[0])


# Weights -----------------------------------------------------------------------------------------------------


def test_loaded_queues_share_the_slots_by_weight(awa_database: str) -> None:
    with connected(awa_database) as connection, worker(awa_database, **WEIGHTED) as process:
        process.wait_started()
        assert "a (2 to 10 of 10 at once), b (0 to 8 of 10 at once)" in process.output()
        wait_listening(connection)
        with connection.transaction():  # both are loaded from the start
            spells(connection, 40, 0.4, "b")
            spells(connection, 60, 0.4, "a")
        wait_until(lambda: reported(connection) == {"a": (8, 6), "b": (2, 2)})
        wait_until(lambda: states(connection).get("completed") == 100)
        wait_until(lambda: reported(connection) == {"a": (0, 0), "b": (0, 0)})
        most = count(
            connection,
            """
            SELECT max(running) FROM (
                SELECT sum(CASE label WHEN 'start' THEN 1 ELSE -1 END) OVER (ORDER BY at, label) AS running FROM probe
            ) AS course
            """,
        )
        assert most <= 10
        assert process.stop() == 0
    invariants.assert_all_hold(awa_database)


def test_a_queue_keeps_its_own_slots_while_another_one_borrows_all_others(awa_database: str) -> None:
    with connected(awa_database) as connection, worker(awa_database, **WEIGHTED) as process:
        process.wait_started()
        wait_listening(connection)
        b = spells(connection, 8, 5, "b") + spells(connection, 4, 0.2, "b")
        wait_until(lambda: running(connection, b) == 8)
        a = spells(connection, 5, 0.5, "a")
        # As soon as jobs of B end, A gets what it waits for before B does.
        wait_until(lambda: count(connection, "SELECT count(*) FROM probe WHERE label = 'end'") == 17)
        # By their notes, for nobody may have looked at the right moment.
        most = count(
            connection,
            """
            SELECT max(of_a) FILTER (WHERE of_b = 8)
            FROM (
                SELECT
                    sum(change) FILTER (WHERE job_id = ANY(%s)) OVER so_far AS of_a,
                    sum(change) FILTER (WHERE job_id = ANY(%s)) OVER so_far AS of_b
                FROM (
                    SELECT *, CASE label WHEN 'start' THEN 1 ELSE -1 END AS change FROM probe
                ) AS noted
                WINDOW so_far AS (ORDER BY at, label)
            ) AS course
            """,
            a,
            b,
        )
        assert most == 2


@pytest.mark.parametrize("option", ["--queue=a:3", "--threads=3"])
def test_numbers_on_the_command_line_that_would_mean_nothing_are_refused(
    awa_database: str, option: str
) -> None:
    with worker(awa_database, option, **WEIGHTED) as process:
        assert process.wait() == 2
        assert "GLOBAL_MAX_WORKERS" in process.output()


# Claimers of one process ------------------------------------------------------------------------------------


def test_claimers_of_a_queue_share_its_slots_and_its_rate(awa_database: str) -> None:
    queues = {
        "default": {"max_workers": 3, "claimers": 3},
        "slow": {"claimers": 2, "rate_limit": {"max_rate": 5, "burst": 5}, "deadline": 60},
    }
    with connected(awa_database) as connection:
        with worker(awa_database, QUEUES=queues, **QUIET) as process:
            process.wait_started()
            wait_listening(connection)
            wait_until(lambda: backends(connection).count("awa_worker claim default") == 3)
            jobs = [insert(connection, "spell", {"seconds": 0.1}, priority=1 + n % 4) for n in range(24)]
            began = connection.execute("SELECT clock_timestamp()").fetchone()
            assert began is not None
            insert_many(connection, "noop", 10, queue="slow")
            wait_until(lambda: states(connection).get("completed") == 34)
            assert process.stop() == 0
        most = count(
            connection,
            """
            SELECT max(running) FROM (
                SELECT sum(CASE label WHEN 'start' THEN 1 ELSE -1 END) OVER (ORDER BY at, label) AS running
                FROM probe
                WHERE job_id = ANY(%s)
            ) AS course
            """,
            jobs,
        )
        assert most == 3
        # When they were claimed: a handler may start later than that, and closer to the next one.
        times = [
            (at - began[0]).total_seconds()
            for (at,) in connection.execute(
                "SELECT attempted_at FROM awa.jobs WHERE queue = 'slow' ORDER BY attempted_at"
            )
        ]
        assert len(times) == 10
        assert 0.7 <= times[9] < 10, "five at once and five more at five a second"
    invariants.assert_all_hold(awa_database)


# Claimers of the fleet ---------------------------------------------------------------------------------------


def test_one_process_claims_for_all_and_another_one_takes_over_when_it_is_killed(awa_database: str) -> None:
    # Nobody takes jobs away from a worker that stands still for a while.
    with (
        connected(awa_database) as connection,
        worker(awa_database, STALE_AFTER=60, **QUIET) as one,
        worker(awa_database, STALE_AFTER=60, **QUIET) as two,
    ):
        for process in (one, two):
            process.wait_started()
        wait_listening(connection, 2)
        wait_until(lambda: count(connection, "SELECT count(*) FROM awa.runtime_instances") == 2)
        connection.execute(
            "SELECT awa.insert_job_compat('spell', p_args => '{\"seconds\": 30}') FROM generate_series(1, 2)"
        )
        wait_until(lambda: count(connection, "SELECT count(*) FROM probe") == 2)
        ((slot, holder),) = owners(connection)
        assert slot == 0
        assert {pid for (pid,) in connection.execute("SELECT pid FROM probe")} == {holder}
        victim, other = (one, two) if one.process.pid == holder else (two, one)
        # The slot is renewed just before the end, so that the other one has to wait for it.
        last = insert(connection, "noop")
        wait_until(lambda: ran_in(connection, last))
        victim.kill()
        connection.execute(NEVER_EXPIRES)
        jobs = [insert(connection, "noop") for _ in range(2)]
        wait_until(lambda: all(ran_in(connection, job_id) for job_id in jobs))
        assert {ran_in(connection, job_id) for job_id in jobs} == {other.process.pid}
        assert owners(connection) == [(0, other.process.pid)]


def test_a_process_without_a_free_slot_leaves_claiming_to_another_one(awa_database: str) -> None:
    with (
        connected(awa_database) as connection,
        worker(awa_database, QUEUES={"default": 1}, STALE_AFTER=60, **QUIET) as one,
        worker(awa_database, QUEUES={"default": 1}, STALE_AFTER=60, **QUIET) as two,
    ):
        for process in (one, two):
            process.wait_started()
        wait_listening(connection, 2)
        first = insert(connection, "spell", {"seconds": 60})
        wait_until(lambda: ran_in(connection, first))
        second = insert(connection, "spell", {"seconds": 0.1})
        # Long before the first one ends, or anybody polls.
        wait_until(lambda: ran_in(connection, second))
        assert ran_in(connection, first) != ran_in(connection, second)


def test_an_idle_worker_writes_nothing_for_its_claims(awa_database: str) -> None:
    with connected(awa_database) as connection, worker(awa_database, LISTEN_POLL_INTERVAL=0.1) as process:
        process.wait_started()
        wait_listening(connection)
        job_id = insert(connection, "noop")
        wait_until(lambda: ran_in(connection, job_id))
        looked = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND state_change > %s AND query LIKE '-- name: ask%%'"
        )
        found = []
        for _ in range(4):
            moment = connection.execute("SELECT clock_timestamp() + interval '0.6 seconds'").fetchone()
            assert moment is not None
            wait_until(lambda: count(connection, looked, moment[0]), what="a look at the idle queue")  # noqa: B023
            found.append(connection.execute("SELECT * FROM awa.queue_claimer_leases").fetchall())
        assert len(found[0]) == 1
        assert found == found[:1] * 4
        assert process.stop() == 0


def test_a_draining_worker_waits_for_jobs_that_another_one_is_to_claim(awa_database: str) -> None:
    with connected(awa_database) as connection:
        insert_many(connection, "noop", 3)
        connection.execute(
            """
            INSERT INTO awa.queue_claimer_leases (
                queue, claimer_slot, owner_instance_id, lease_epoch, leased_at, last_claimed_at, expires_at
            )
            SELECT 'default', 0, gen_random_uuid(), 7, now(), now() + interval '1 hour', now() + interval '4 seconds'
            """
        )
        drain(awa_database)
        assert states(connection) == {"completed": 3}
        epochs = connection.execute("SELECT lease_epoch FROM awa.queue_claimer_leases").fetchall()
        assert epochs == [(8,)]


def test_without_bounds_no_slot_is_asked_for(awa_database: str) -> None:
    with connected(awa_database) as connection:
        insert_many(connection, "noop", 100)
        drain(awa_database, MAX_CLAIMERS_PER_QUEUE=0)
        assert states(connection) == {"completed": 100}
        assert count(connection, "SELECT count(*) FROM awa.queue_claimer_leases") == 0


# A mixed fleet -----------------------------------------------------------------------------------------------


def lease(connection: psycopg.Connection[Any]) -> tuple[Any, int]:
    """Owner and epoch of the only slot."""
    ((slot, owner, epoch),) = wait_until(
        lambda: connection.execute(
            "SELECT claimer_slot, owner_instance_id, lease_epoch FROM awa.queue_claimer_leases"
        ).fetchall()
    )
    assert slot == 0
    return owner, epoch


def instance_of(connection: psycopg.Connection[Any], process: Worker) -> Any:
    rows = wait_until(
        lambda: connection.execute(
            "SELECT instance_id FROM awa.runtime_instances WHERE pid = %s", [process.process.pid]
        ).fetchall()
    )
    return rows[0][0]


def one_by_one(connection: psycopg.Connection[Any], number: int) -> set[bool]:
    """Run jobs one after the other; whether each ran in a process of ours."""
    here = set()
    for _ in range(number):
        job_id = insert(connection, "noop")
        here.add(wait_until(lambda: ran_in(connection, job_id)) > 0)  # type: ignore[operator]  # noqa: B023
    return here


@pytest.mark.interop
def test_we_leave_a_small_backlog_to_an_awa_pg_worker_that_claims_and_take_over_when_it_dies(
    awa_database: str,
) -> None:
    with connected(awa_database) as connection, awa_pg_worker(awa_database) as theirs:
        first = insert(connection, "noop")
        wait_until(lambda: ran_in(connection, first))
        holder = lease(connection)
        with worker(awa_database, **QUIET) as ours:
            ours.wait_started()
            wait_listening(connection)
            here = instance_of(connection, ours)
            ran_here = one_by_one(connection, 30)
            # Unless this machine stood still for half a second, the slot is still theirs and all jobs ran there.
            if lease(connection) == holder:
                assert ran_here == {False}
            insert(connection, "noop")
            theirs.kill()
            theirs.wait()
            connection.execute(NEVER_EXPIRES)
            job_id = insert(connection, "noop")
            wait_until(lambda: ran_in(connection, job_id))
            owner, epoch = lease(connection)
            assert owner == here
            assert epoch > holder[1]


@pytest.mark.interop
def test_an_awa_pg_worker_leaves_a_small_backlog_to_us_and_takes_over_when_we_die(awa_database: str) -> None:
    with connected(awa_database) as connection, worker(awa_database, **QUIET) as ours:
        ours.wait_started()
        wait_listening(connection)
        assert one_by_one(connection, 1) == {True}
        here = instance_of(connection, ours)
        with awa_pg_worker(awa_database):
            one_by_one(connection, 10)  # whoever; the slot was idle while theirs started
            before = lease(connection)
            ran_here = one_by_one(connection, 30)
            if lease(connection) == before:
                assert ran_here == {before[0] == here}
            ours.kill()
            job_id = insert(connection, "noop")
            wait_until(lambda: ran_in(connection, job_id))
            assert lease(connection)[0] != here


@pytest.mark.interop
def test_a_large_backlog_is_shared_with_an_awa_pg_worker_under_four_slots(awa_database: str) -> None:
    with (
        connected(awa_database) as connection,
        worker(awa_database, QUEUES={"default": 4}, STALE_AFTER=60, **QUIET) as ours,
        awa_pg_worker(awa_database, 4),
    ):
        ours.wait_started()
        wait_listening(connection)
        connection.execute(
            "SELECT awa.insert_job_compat('spell', p_args => '{\"seconds\": 0.1}') FROM generate_series(1, 160)"
        )
        wait_until(lambda: count(connection, "SELECT count(*) FROM probe WHERE label = 'end'") == 160)
        assert set(runs(connection).values()) == {2}, "a start and an end of each"
        shares = connection.execute("SELECT count(*) FROM probe WHERE label = 'end' GROUP BY pid").fetchall()
        assert len(shares) == 2
        # Either may stand still for a while.
        assert min(share for (share,) in shares) >= 20
        slots = count(connection, "SELECT count(DISTINCT owner_instance_id) FROM awa.queue_claimer_leases")
        assert slots == 2


# Pause and aging ---------------------------------------------------------------------------------------------


def test_a_pause_under_load_stops_claims_until_the_queue_is_resumed(awa_database: str) -> None:
    with connected(awa_database) as connection:
        options = {"QUEUES": {"default": 4}, "LISTEN_POLL_INTERVAL": 0.2, "STALE_AFTER": 60}
        with worker(awa_database, **options) as one, worker(awa_database, **options) as two:
            for process in (one, two):
                process.wait_started()
            insert_many(connection, "noop", 300)
            jobs = spells(connection, 60, 0.05, "default")
            wait_until(lambda: count(connection, "SELECT count(*) FROM probe") > 320)
            connection.execute("INSERT INTO awa.queue_meta (queue, paused) VALUES ('default', true)")
            _wait_for_looks(connection, "0 seconds")  # a claim that had begun before is over
            wait_until(lambda: states(connection).get("running") is None)
            ran = len(runs(connection))
            jobs += spells(connection, 20, 0.05, "default")
            _wait_for_looks(connection, "0.7 seconds")  # each has polled several times
            assert len(runs(connection)) == ran < 380
            connection.execute("UPDATE awa.queue_meta SET paused = false")
            wait_until(lambda: len(runs(connection)) == 380)
            wait_until(lambda: {runs(connection)[job_id] for job_id in jobs} == {2})
    invariants.assert_all_hold(awa_database)


def _wait_for_looks(connection: psycopg.Connection[Any], interval: str) -> None:
    """Wait until both claiming sessions have begun another statement so much later than now, and ended it."""
    later = connection.execute("SELECT clock_timestamp() + %s::interval", [interval]).fetchone()
    assert later is not None
    looked = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'awa_worker claim%%' AND query_start > %s AND state = 'idle'"
    )
    wait_until(lambda: count(connection, looked, later[0]) == 2, what="looks at the queue")


def test_waiting_raises_a_job_above_an_endless_stream_of_urgent_ones(awa_database: str) -> None:
    options = {"QUEUES": {"default": {"max_workers": 2, "priority_aging_interval": 1}}, "STALE_AFTER": 60}
    with connected(awa_database) as connection, worker(awa_database, **options) as process:
        process.wait_started()
        wait_listening(connection)
        connection.execute("INSERT INTO awa.queue_meta (queue, paused) VALUES ('default', true)")
        row = connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        patient = insert(connection, "noop", priority=4)
        # For two at a time they last ten seconds at least.
        connection.execute(
            "SELECT awa.insert_job_compat('spell', p_args => '{\"seconds\": 0.05}', p_priority => 1::smallint) "
            "FROM generate_series(1, 400)"
        )
        connection.execute("UPDATE awa.queue_meta SET paused = false")
        wait_until(lambda: ran_in(connection, patient), what="the patient job")
        waited = connection.execute(
            "SELECT extract(epoch FROM at - %s) FROM probe WHERE job_id = %s", [row[0], patient]
        ).fetchone()
        assert waited is not None
        assert waited[0] >= 3, "three levels of a second each"
        urgent = "SELECT count(*) FROM probe WHERE label = 'start' AND at < (SELECT at FROM probe WHERE job_id = %s)"
        assert count(connection, urgent, patient) < 400, "it went before others that waited"
