"""Who leads, and for how long."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from awa_django.conf import Settings
from awa_django.jobs import Landed
from awa_django.maintenance import Context, Duty
from awa_django.operations.leading import LEADER_KEY
from awa_django.outcomes import Rescued
from awa_django.planes.base import Stale
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.transitions import land_one
from awa_django.worker.leader import Leadership
from awa_django.worker.process import Worker
from awa_django.worker.scheduler import Scheduler
from awa_django.worker.storage import resolve_storage
from tests.planes.world import World, job, use_canonical_tables

Connecting = Callable[[str], Callable[[], psycopg.Connection[Any]]]

QUICK = replace(
    Settings(),
    leader_election_interval=timedelta(milliseconds=200),
    leader_check_interval=timedelta(milliseconds=200),
    rescue_interval=timedelta(milliseconds=200),
)
#: Seconds to wait for something that takes a fraction of one.
PATIENCE = 60.0


def wait_for(look: Callable[[], Any], *, every: float = 0.05) -> Any:
    """The first true answer; fails after PATIENCE seconds."""
    pause, until = threading.Event(), time.monotonic() + PATIENCE
    while not (answer := look()):
        assert time.monotonic() < until, f"not within {PATIENCE} s; last answer {answer!r}"
        pause.wait(every)
    return answer


def holders(world: World) -> list[int]:
    """The backends that hold the leader's lock."""
    return [
        row["pid"]
        for row in world.rows(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid::bigint = %s >> 32"
            " AND objid::bigint = %s & 4294967295"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            LEADER_KEY,
            LEADER_KEY,
        )
    ]


@pytest.fixture
def leadership(
    world: World, world_database: str, connecting: Connecting
) -> Iterator[Callable[..., Leadership]]:
    """A function that makes contenders; they are stopped with the test."""
    with contextlib.ExitStack() as running:

        def make(settings: Settings = QUICK, **options: Any) -> Leadership:
            planes = options.pop("planes", [world.plane])
            service = Leadership(settings, planes, connection=connecting(world_database), **options)
            service.start()
            running.callback(service.join, PATIENCE)
            running.callback(service.stop)
            return service

        yield make


def test_of_two_contenders_one_leads_and_the_other_follows_when_it_stops(
    leadership: Callable[..., Leadership], world: World
) -> None:
    first = leadership()
    assert first.wait_until_leader(PATIENCE)
    second = leadership()
    wait_for(lambda: second.alive)
    assert not second.wait_until_leader(0.6)
    assert len(holders(world)) == 1
    first.stop()
    assert first.join(PATIENCE)
    assert not first.is_leader
    assert second.wait_until_leader(PATIENCE)


def test_a_leader_that_stops_leaves_the_lock_free_at_once(
    leadership: Callable[..., Leadership], world: World
) -> None:
    leader = leadership(replace(QUICK, leader_election_interval=timedelta(hours=1)))
    assert leader.wait_until_leader(PATIENCE)
    leader.stop()
    assert leader.join(PATIENCE)
    wait_for(lambda: not holders(world))


def test_a_leader_whose_session_ends_is_elected_again(
    leadership: Callable[..., Leadership], world: World
) -> None:
    leader = leadership()
    assert leader.wait_until_leader(PATIENCE)
    (pid,) = holders(world)
    world.run("SELECT pg_terminate_backend(%s)", pid)
    wait_for(lambda: [other for other in holders(world) if other != pid])
    assert leader.wait_until_leader(PATIENCE)


def test_a_leader_that_lost_the_lock_stops_leading(
    leadership: Callable[..., Leadership], world: World, world_database: str
) -> None:
    """As behind a pooler that resets sessions: the connection lives on without the lock."""
    taken = threading.Event()

    def drop_lock(context: Context) -> bool:
        # Again and again: it may lead anew before the rival comes to it.
        if not taken.is_set():
            context.connection.execute("SELECT pg_advisory_unlock_all()")
        return False

    with psycopg.connect(world_database, autocommit=True) as rival:
        leader = leadership(duties=[Duty("reset", timedelta(milliseconds=50), drop_lock)])
        assert leader.wait_until_leader(PATIENCE)
        wait_for(lambda: rival.execute("SELECT pg_try_advisory_lock(%s)", [LEADER_KEY]).fetchone() == (True,))
        taken.set()
        wait_for(lambda: not leader.is_leader)
    assert leader.wait_until_leader(PATIENCE)


def test_a_leader_does_its_duties_and_tells_of_rescues(
    leadership: Callable[..., Leadership], world: World
) -> None:
    told: list[tuple[str, int]] = []

    def note(kind: str, landed: Any) -> None:
        # Here, for the leader promotes the job again after its backoff, whoever has looked by then.
        told.append((kind, world.one("SELECT count(*) FROM awa.deferred_jobs WHERE state = 'retryable'")))

    world.running(job())
    world.age()
    world.enqueue(job(run_at=world.one("SELECT now() - interval '1 minute'")))
    leadership(rescued=note)
    wait_for(lambda: told)
    assert told == [("heartbeat", 1)]
    wait_for(lambda: world.claim())


def test_a_listener_that_fails_does_not_end_the_leadership(
    leadership: Callable[..., Leadership], world: World
) -> None:
    called = threading.Event()
    deferred: list[int] = []

    def fail(kind: str, landed: Any) -> None:
        deferred.append(world.one("SELECT count(*) FROM awa.deferred_jobs"))
        called.set()
        raise RuntimeError("no")

    world.running(job())
    world.age()
    leader = leadership(rescued=fail)
    assert called.wait(PATIENCE)
    assert leader.is_leader
    assert deferred == [1]


def test_a_statement_in_progress_can_be_broken_off(
    leadership: Callable[..., Leadership], world: World
) -> None:
    def dawdle(context: Context) -> bool:
        context.connection.execute("SELECT pg_sleep(120)")
        return False

    leader = leadership(duties=[Duty("slow", timedelta(hours=1), dawdle, at_once=True)])
    asleep = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    wait_for(lambda: world.rows(asleep))
    leader.stop()
    assert not leader.join(0.3)
    leader.cancel()
    assert leader.join(PATIENCE)


def test_while_canonical_jobs_are_left_a_leader_promotes_them_too(
    leadership: Callable[..., Leadership], world: World
) -> None:
    world.run(
        "UPDATE awa.storage_transition_state SET state = 'mixed_transition', prepared_engine = 'queue_storage'"
    )
    world.run("INSERT INTO awa.scheduled_jobs (kind, queue, state) VALUES ('k', 'q', 'scheduled')")
    leader = leadership(planes=[QueueStoragePlane(), CanonicalPlane()])
    assert leader.wait_until_leader(PATIENCE)
    wait_for(lambda: world.rows("SELECT FROM awa.jobs_hot WHERE state = 'available'"))


def test_maintenance_is_alive_while_all_of_its_threads_are(world: World) -> None:
    """contract: runtime/shutdown-health section 3; whether it leads or stands by does not matter."""
    storage = resolve_storage(world.connection, "auto")
    process = Worker(Settings(), [])
    process._build(storage)
    assert process.leader is not None
    assert process.scheduler is not None
    assert process.bulk is not None
    parts = (process.leader, process.scheduler, process.bulk)
    answers = []
    for dead in (None, *parts):
        for part in parts:
            part.alive = part is not dead
        answers.append(process._numbers().maintenance_alive)
    assert answers == [True, False, False, False]
    assert not process._numbers().leader
    follower = Worker(Settings(), [], lead=False)
    follower._build(storage)
    assert follower._numbers().maintenance_alive


def test_attempts_of_this_process_are_told_to_stop_unless_they_waited_for_an_answer(world: World) -> None:
    """Only those of its own storage: ids mean other jobs in the other (contract: runtime/maintenance section 3)."""
    (attempt,) = world.running(job())
    world.age()
    (taken,) = world.within(
        lambda cursor: world.plane.take(cursor, Stale(timedelta(seconds=90), receipts=True))
    )
    landing = land_one(taken, Rescued("gone"))
    elsewhere = landing.replace(taken=replace(taken, canonical=True))
    process = Worker(Settings(), [])
    process._build(resolve_storage(world.connection, "auto"))
    told: list[tuple[int, int]] = []
    process.runtime.cancel = lambda job_id, run_lease: told.append((job_id, run_lease))  # type: ignore[method-assign]
    process._rescued("callback_timeout", [Landed(landing, taken.run_at)])
    process._rescued("heartbeat", [Landed(elsewhere, taken.run_at)])
    assert told == []
    process._rescued("heartbeat", [Landed(landing, taken.run_at)])
    assert told == [(attempt.job_id, attempt.run_lease)]


@pytest.mark.parametrize("storage", ["queue storage", "canonical"])
def test_a_job_that_nobody_can_promote_delays_no_other(
    leadership: Callable[..., Leadership], world: World, storage: str
) -> None:
    """Check 5 of runtime/maintenance: no worker can be woken for a name of 100 bytes (DEC-18)."""
    if storage == "canonical":
        use_canonical_tables(world.connection)
    leader = leadership(planes=[QueueStoragePlane(), CanonicalPlane()])
    assert leader.wait_until_leader(PATIENCE)
    began = time.monotonic()
    table = "scheduled_jobs" if storage == "canonical" else "deferred_jobs"
    name, source = ("id", "awa.jobs_id_seq") if storage == "canonical" else ("job_id", "awa.job_id_seq")
    world.run(
        f"INSERT INTO awa.{table} ({name}, kind, queue, state, priority, run_at)"
        f" SELECT nextval('{source}'), 'k', queue, 'scheduled', 2, now() - interval '1 second'"
        " FROM unnest(ARRAY[repeat('x', 100), 'q']) AS queue"
    )
    available = (
        "SELECT FROM awa.ready_entries WHERE queue = 'q' UNION ALL SELECT FROM awa.jobs_hot WHERE queue = 'q'"
    )
    wait_for(lambda: world.rows(available), every=0.02)
    # A second between two looks, and room for a busy machine.
    assert time.monotonic() - began < 10.0
    assert world.one(f"SELECT count(*) FROM awa.{table}") == 1


def test_a_duty_that_is_held_up_is_thinned_out_and_schedules_fire_meanwhile(
    leadership: Callable[..., Leadership],
    world: World,
    world_database: str,
    connecting: Connecting,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Check 10 of runtime/maintenance."""
    runs: list[float] = []
    interval, held_up = 0.1, threading.Event()
    held_up.set()

    def tidy(context: Context) -> bool:
        runs.append(time.monotonic())
        if held_up.is_set():
            context.connection.execute("SELECT pg_sleep(%s)", [10 * interval])
        return False

    world.run(
        "INSERT INTO awa.cron_jobs (name, cron_expr, kind, queue, args)"
        " VALUES ('tick', '* * * * * *', 'k', 'ticks', '{}')"
    )
    with caplog.at_level(logging.INFO, "awa_django.maintenance"):
        leader = leadership(duties=[Duty("tidy", timedelta(seconds=interval), tidy)])
        assert leader.wait_until_leader(PATIENCE)
        scheduler = Scheduler(
            QUICK, lambda: leader.is_leader, declarations=list, connection=connecting(world_database)
        )
        scheduler.start()
        try:
            wait_for(lambda: "tidy took" in caplog.text)
            late = len(runs)
            assert late >= 3
            # Most of these three seconds the leader was held up.
            wait_for(lambda: ticks(world) >= 2)
            wait_for(lambda: len(runs) > late)
            assert runs[late] - runs[late - 1] > 20 * interval
            held_up.clear()
            wait_for(lambda: "tidy keeps to its interval" in caplog.text)
            assert len(runs) >= late + 3
        finally:
            scheduler.stop()
            assert scheduler.join(PATIENCE)


def ticks(world: World) -> int:
    count: int = world.one("SELECT count(*) FROM awa.ready_entries WHERE queue = 'ticks'")
    return count


@pytest.mark.interop
def test_a_real_awa_worker_and_ours_take_turns_leading(
    leadership: Callable[..., Leadership],
    world: World,
    world_database: str,
    awa_pg_worker: Callable[[str], subprocess.Popen[str]],
) -> None:
    ours = leadership()
    assert ours.wait_until_leader(PATIENCE)
    (pid,) = holders(world)
    worker = awa_pg_worker(world_database)
    # Its first report may come before all of it runs.
    reported = "SELECT leader, maintenance_alive FROM awa.runtime_instances"
    wait_for(lambda: world.rows(reported) == [{"leader": False, "maintenance_alive": True}])
    assert holders(world) == [pid]
    ours.stop()
    assert ours.join(PATIENCE)
    (theirs,) = wait_for(lambda: holders(world))
    assert theirs != pid
    follower = leadership()
    wait_for(lambda: follower.alive)
    assert not follower.wait_until_leader(1.0)
    worker.kill()
    worker.wait()
    assert follower.wait_until_leader(PATIENCE)
