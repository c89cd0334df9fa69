"""What the leader measures: every state of every queue, against rows that the planes themselves wrote."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from opentelemetry.trace import StatusCode

from awa_django.conf import Settings
from awa_django.maintenance import Context, Duty, Timetable, metrics, promote
from awa_django.maintenance.metrics import (
    QueueMetrics,
    duties,
    forget,
    measure,
    queue_metrics,
    record_prune,
    record_turn,
)
from awa_django.maintenance.rings import ClaimRing
from awa_django.outcomes import Cancel, Completed, RetryAfter, Terminal
from awa_django.planes.base import Leases
from awa_django.planes.queue_storage.rings import (
    Gate,
    Prune,
    Ring,
    Turn,
    look,
    prune_queue_slot,
    rotate_queue_ring,
)
from awa_django.transitions import plan
from awa_django.worker.leader import Leadership
from tests.observed import Observed, Point
from tests.planes.world import World, job
from tests.workers import wait_until

FAR = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def observed() -> Iterator[Observed]:
    with Observed() as found:
        yield found


def measured(world: World, queue: str = "q") -> QueueMetrics:
    found = {item.queue: item for item in world.within(queue_metrics)}
    return found[queue]


def nothing(**others: object) -> dict[str, object]:
    return {
        "queue": "q",
        "available": 0,
        "running": 0,
        "failed": 0,
        "scheduled": 0,
        "retryable": 0,
        "waiting_external": 0,
        "dead_letters": 0,
        **others,
    }


def without_lag(found: QueueMetrics) -> dict[str, object]:
    return {name: value for name, value in found._asdict().items() if name != "lag"}


def test_every_state_is_counted_once(world: World) -> None:
    done, retried, dead, failed, cancelled, parked, running, leased = world.running(
        *(job() for _ in range(8))
    )
    world.end([done], Completed())
    world.end([retried], RetryAfter(1000))
    world.end([failed], Terminal("no"))
    world.end([cancelled], Cancel("no"))
    world.within(lambda cursor: world.plane.settle(cursor, [plan(dead, Terminal("no"), dead_letters=True)]))
    world.lease(parked, state="waiting_external", callback_in="1 hour")
    world.lease(leased)
    world.enqueue(job(run_at=FAR), job(run_at=FAR), job(), job(), job())
    assert without_lag(measured(world)) == nothing(
        available=3,
        running=2,
        failed=2,
        scheduled=2,
        retryable=1,
        waiting_external=1,
        dead_letters=1,
    )
    assert running.job_id not in {leased.job_id, parked.job_id}


def test_a_queue_that_ran_dry_is_still_there_with_nothing(world: World) -> None:
    world.end(world.running(job()), Completed())
    found = measured(world)
    assert without_lag(found) == nothing()
    assert found.lag == 0


def test_receipts_with_a_deadline_run_as_well(world: World) -> None:
    first, _ = world.running(job(), job(), deadline=timedelta(minutes=5))
    assert measured(world).running == 2
    world.end([first], Completed())
    assert measured(world).running == 1


def test_jobs_handed_out_above_the_cursor_are_not_available(world: World) -> None:
    """Between a claim and the move of its cursor the running jobs lie above the cursor (H-10)."""
    world.enqueue(job(), job(), job())
    attempts = world.within(
        lambda cursor: world.plane.claim(cursor, "q", 2, deadline=timedelta(0), aging=timedelta(0))
    ).attempts
    assert len(attempts) == 2
    found = measured(world)
    assert (found.available, found.running) == (1, 2)


def test_a_cancelled_job_that_was_available_is_gone(world: World) -> None:
    world.enqueue(job(), job())
    world.run(
        """
        INSERT INTO awa.ready_tombstones (
            ready_slot, ready_generation, job_id, queue, priority, enqueue_shard, lane_seq
        )
        SELECT ready_slot, ready_generation, job_id, queue, priority, enqueue_shard, lane_seq
        FROM awa.ready_entries ORDER BY lane_seq DESC LIMIT 1
        """
    )
    assert measured(world).available == 1


def test_a_long_lane_is_estimated_from_its_positions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answer, without reading the jobs: nothing was rolled back here."""
    monkeypatch.setattr(metrics, "COUNT_UP_TO", 3)
    world.enqueue(*(job() for _ in range(10)))
    world.claim(limit=4)
    found = measured(world)
    assert (found.available, found.running) == (6, 4)


def test_positions_of_a_producer_that_rolled_back_are_no_jobs_in_a_short_lane(world: World) -> None:
    world.enqueue(job())
    with world.connection.transaction(), world.connection.cursor() as cursor:
        world.plane.enqueue(cursor, [job(), job()])
        raise psycopg.Rollback
    assert measured(world).available == 1


def test_the_lag_is_the_age_of_the_oldest_job_that_could_be_claimed(world: World) -> None:
    world.enqueue(job(priority=1), job(priority=4))
    world.run("UPDATE awa.ready_entries SET run_at = now() - interval '90 seconds' WHERE priority = 4")
    assert 90 <= measured(world).lag < 120
    world.claim(limit=10)
    world.claim(limit=10)
    assert measured(world).lag == 0


def test_queues_are_kept_apart(world: World) -> None:
    world.enqueue(job(), job(queue="r"), job(queue="r", priority=3))
    found = {item.queue: item.available for item in world.within(queue_metrics)}
    assert found == {"q": 1, "r": 2}


def test_jobs_of_both_storages_are_added_up(world: World) -> None:
    world.enqueue(job(), job(run_at=FAR))
    world.run(
        """
        INSERT INTO awa.jobs_hot (kind, queue, args, state, run_at)
        VALUES ('k', 'q', '{}', 'available', now() - interval '90 seconds'), ('k', 'q', '{}', 'failed', now()),
            ('k', 'q', '{}', 'completed', now()), ('k', 'r', '{}', 'waiting_external', now())
        """
    )
    world.run(
        "INSERT INTO awa.scheduled_jobs (kind, queue, args, state, run_at) VALUES ('k', 'q', '{}', 'retryable', now())"
    )
    found = measured(world)
    assert without_lag(found) == nothing(available=2, failed=1, scheduled=1, retryable=1)
    assert found.lag >= 90
    assert measured(world, "r").waiting_external == 1


def test_the_leader_shows_what_it_measured_until_it_stops_leading(
    observed: Observed, world: World, context: Context
) -> None:
    attempts = world.running(job(), job())
    transitions = [plan(attempts[0], Terminal("no"), dead_letters=True)]
    world.within(lambda cursor: world.plane.settle(cursor, transitions))
    measure(context)
    depth = {
        dict(point)["awa.job.state"]: value for point, value in observed.values("awa.queue.depth").items()
    }
    assert depth == {
        "available": 0,
        "running": 1,
        "failed": 1,
        "scheduled": 0,
        "retryable": 0,
        "waiting_external": 0,
    }
    queue = frozenset({("awa.job.queue", "q")})
    assert observed.values("awa.job.dlq_depth") == {queue: 1}
    assert observed.values("awa.queue.lag") == {queue: 0}
    forget()
    assert observed.metrics() == {}


def test_the_duty_is_there_only_where_metrics_are_collected() -> None:
    assert duties(Settings()) == []
    with Observed():
        (duty,) = duties(Settings())
        assert (duty.name, duty.interval) == ("queue metrics", timedelta(seconds=30))


def test_a_ring_says_how_it_turned_and_what_kept_it(
    observed: Observed, world: World, context: Context
) -> None:
    keeper = ClaimRing("claim", 1.0)

    def turn() -> None:
        keeper.seen = world.within(look)
        keeper.run(context)

    world.running(job(), job())
    turn()
    attempts = observed.sums()["awa.maintenance.rotate.attempts"]
    assert attempts == {ring("claim", "rotated", blocker="none"): 1}
    assert observed.values("awa.ring.current_slot") == {frozenset({("awa.ring", "claim")}): 1}
    assert observed.values("awa.ring.generation") == {frozenset({("awa.ring", "claim")}): 1}
    turn()  # what was sealed is looked at from the next run on
    prunes = observed.metrics()["awa.maintenance.prune.attempts"].points
    skipped = observed.metrics()["awa.maintenance.prune.skipped_rows"].points
    held = ring("claim", "skipped_active", reason="claim.open")
    assert (prunes[held].value, skipped[held].sum) == (1, 2)


def test_what_is_in_the_way_of_a_full_ring_is_counted_by_sort(
    observed: Observed, world: World, context: Context
) -> None:
    world.end(world.running(job(), job()), Completed())
    for _ in range(16):
        world.enqueue(job())
        world.within(rotate_queue_ring)
    stands = world.within(look).queue
    assert stands.generation == 15
    record_turn(context, "queue", stands, world.within(rotate_queue_ring))
    rows = observed.metrics()["awa.maintenance.rotate.skipped_rows"].points
    found = {dict(point)["awa.ring.blocker"]: value.sum for point, value in rows.items()}
    assert found["queue.ready_rows"] == 3
    assert found["queue.receipt_completion_batch_rows"] == 1
    assert set(found) <= BLOCKERS
    assert set(observed.sums()["awa.maintenance.rotate.attempts"].values()) == {1}


BLOCKERS = {
    "queue.ready_rows",
    "queue.claim_attempt_batches",
    "queue.done_rows",
    "queue.tombstone_rows",
    "queue.ready_segments",
    "queue.receipt_completion_batch_rows",
    "queue.receipt_completion_tombstone_rows",
    "queue.terminal_delta_rows",
}


def test_a_slot_says_why_it_is_kept(observed: Observed, world: World, context: Context) -> None:
    waiting = world.running(job(), job(), job())
    world.lease(waiting[0])
    world.enqueue(job(), job())
    world.within(rotate_queue_ring)
    result, gate = world.within(lambda cursor: prune_queue_slot(cursor, 0, failed_retention=timedelta(0)))
    record_prune(context, "queue", 0, result, gate)
    world.run("DELETE FROM awa.leases")
    result, gate = world.within(lambda cursor: prune_queue_slot(cursor, 0, failed_retention=timedelta(0)))
    record_prune(context, "queue", 0, result, gate)
    record_prune(context, "lease", 3, Prune.CURRENT, None)
    record_prune(context, "claim", 3, Prune.HELD, None)
    record_prune(context, "claim", 3, Prune.NOTHING, None)
    assert observed.sums()["awa.maintenance.prune.attempts"] == {
        ring("queue", "skipped_active", reason="queue.active_leases"): 1,
        ring("queue", "skipped_active", reason="queue.pending_ready"): 1,
        ring("lease", "skipped_active", reason="lease.current"): 1,
        ring("claim", "blocked", reason="none"): 1,
        ring("claim", "noop", reason="none"): 1,
    }
    rows = observed.metrics()["awa.maintenance.prune.skipped_rows"].points
    assert {dict(point)["awa.ring.reason"]: value.sum for point, value in rows.items()} == {
        "queue.active_leases": 1,
        "queue.pending_ready": 2,
    }


def ring(name: str, outcome: str, **others: str) -> Point:
    named = {f"awa.ring.{key}": value for key, value in others.items()}
    return frozenset({"awa.ring": name, "awa.ring.outcome": outcome, **named}.items())


def test_nobody_asks_about_rings_where_nothing_is_collected(world: World, context: Context) -> None:
    world.connection.execute("BEGIN")
    world.connection.execute("SELECT 1 FROM awa.queue_ring_state")
    with pytest.raises(psycopg.errors.DivisionByZero):
        world.connection.execute("SELECT 1 / 0")
    record_turn(context, "queue", Ring(0, (1, 1)), Turn.FULL)
    record_prune(context, "queue", 0, Prune.HELD, Gate("x", "queue.pending_ready"))
    world.connection.execute("ROLLBACK")


def test_a_duty_is_timed_and_one_that_fails_says_so_in_its_span(
    observed: Observed, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(context: Context) -> None:
        raise ValueError("out of order")

    clock = Clock()
    table = Timetable([Duty("cleanup of runtimes", timedelta(seconds=1), fail)], clock=clock)
    table.begin()
    clock.now = 1.0
    table.step(context)
    (span,) = observed.spans()
    assert (span.name, span.status.status_code) == ("maintenance.cleanup_runtime_snapshots", StatusCode.ERROR)
    (branch,) = observed.metrics()["awa.maintenance.branch.duration"].points
    assert dict(branch) == {"awa.maintenance.branch": "cleanup"}


def test_a_duty_that_becomes_too_slow_is_one_episode(observed: Observed, context: Context) -> None:
    clock = Clock()

    def take_long(context: Context) -> None:
        clock.now += 10.0

    table = Timetable([Duty("promotion", timedelta(seconds=1), take_long)], clock=clock)
    table.begin()
    for _ in range(5):
        clock.now += 1000.0
        table.step(context)
    assert observed.sums()["awa.maintenance.branch.overrun"] == {
        frozenset({("awa.maintenance.branch", "promote_scheduled")}): 1
    }


def test_promotions_and_rescues_are_counted(observed: Observed, world: World, context: Context) -> None:
    world.enqueue(job(run_at=datetime(2020, 1, 1, tzinfo=UTC)), job(run_at=FAR))
    (promotion,) = promote.duties(context.settings, world.plane)
    promotion.run(context)
    sizes = observed.metrics()["awa.maintenance.promote_batch_size"].points
    assert {dict(point)["awa.job.state"]: value.sum for point, value in sizes.items()} == {
        "scheduled": 1,
        "retryable": 0,
    }
    assert set(observed.metrics()) >= {
        "awa.maintenance.promote_batches",
        "awa.maintenance.promote_duration",
    }


def test_a_leader_counts_what_it_rescues(observed: Observed, world: World, world_database: str) -> None:
    world.running(job(), job())
    world.age()
    leader = Leadership(
        Settings(rescue_interval=timedelta(milliseconds=20)),
        [world.plane],
        connection=lambda: psycopg.connect(world_database, autocommit=True),
    )
    leader.start()
    try:
        rescues = wait_until(lambda: observed.sums().get("awa.maintenance.rescues"), what="a rescue")
    finally:
        leader.stop()
        leader.join(10)
    assert rescues == {frozenset({("awa.rescue.kind", "heartbeat")}): 2}
    assert "awa.job.retried" not in observed.sums()
    names = {span.name for span in observed.spans()}
    assert {"maintenance.rescue_stale", "queue_storage.rescue"} <= names


class Clock:
    """Time that a test tells."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_measuring_waits_for_nobody(world: World, world_database: str) -> None:
    (attempt,) = world.running(job())
    with (
        psycopg.connect(world_database, autocommit=True) as other,
        world.connection.transaction(),
        world.connection.cursor() as cursor,
    ):
        world.plane.take(cursor, Leases([attempt], ["completed"]))
        world.plane.enqueue(cursor, [job()])
        other.execute("SET lock_timeout = '5s'")
        with other.cursor() as outside:
            (found,) = queue_metrics(outside)
    assert (found.running, found.available) == (1, 0)
