"""How long finished jobs stay readable while our worker leads."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from awa_django.maintenance import Context
from awa_django.maintenance.rings import ClaimRing, LeaseRing, QueueRing, RollUp
from awa_django.outcomes import Completed, Failed, Terminal
from awa_django.planes.queue_storage import rings
from tests.planes.world import World, job

DAY = timedelta(hours=24)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def ring(**options: Any) -> QueueRing:
    """What a leader that has just been elected knows: nothing."""
    return QueueRing("queue", 1.0, Clock(), **options)


def tend(context: Context, keeper: Any) -> float | None:
    """One look and, if the keeper wants it, one run; returns what it wanted."""
    with context.connection.cursor() as cursor:
        seen = rings.look(cursor)
    wanted: float | None = keeper.when(seen)
    if wanted == 0:
        keeper.run(context)
    return wanted


def generation(world: World) -> int:
    found: int = world.one("SELECT generation FROM awa.queue_ring_state")
    return found


def slots_in_use(world: World) -> list[int]:
    return [
        row["ready_slot"]
        for row in world.rows("SELECT DISTINCT ready_slot FROM awa.ready_entries ORDER BY 1")
    ]


def finished_job(world: World, outcome: Any = None) -> None:
    world.end(world.running(job()), outcome or Completed())


def let_pass(world: World, span: str) -> None:
    """Everything in the queue ring happened this much earlier."""
    world.run("UPDATE awa.ready_segments SET created_at = created_at - %s::text::interval", span)
    world.run(
        "UPDATE awa.queue_terminal_count_deltas SET recorded_at = recorded_at - %s::text::interval", span
    )
    for table in ("done_entries", "receipt_completion_batches"):
        world.run(f"UPDATE awa.{table} SET finalized_at = finalized_at - %s::text::interval", span)


def test_an_empty_queue_asks_for_nothing(world: World, context: Context) -> None:
    assert tend(context, ring()) is None


def test_a_slot_fills_for_a_fifteenth_of_the_retention(world: World, context: Context) -> None:
    finished_job(world)
    let_pass(world, "95 minutes")
    tend(context, ring(retention=DAY))
    assert generation(world) == 0
    let_pass(world, "2 minutes")
    tend(context, ring(retention=DAY))
    assert generation(world) == 1


def test_a_slot_is_not_looked_at_again_before_something_can_have_changed(
    world: World, context: Context
) -> None:
    finished_job(world)
    keeper = ring(retention=DAY)
    assert tend(context, keeper) == 0
    wanted = tend(context, keeper)
    assert wanted is not None
    assert wanted > 3000


def test_a_slot_that_holds_its_share_of_rows_is_sealed_at_once(world: World, context: Context) -> None:
    world.enqueue(*[job() for _ in range(20)])
    tend(context, ring(max_rows=15 * 21))
    assert generation(world) == 0
    tend(context, ring(max_rows=15 * 20))
    assert generation(world) == 1


def test_history_goes_when_its_last_job_finished_longer_ago_than_the_retention(
    world: World, context: Context
) -> None:
    finished_job(world)
    world.within(rings.rotate_queue_ring)
    let_pass(world, "23 hours 59 minutes")
    tend(context, ring(retention=DAY))
    assert slots_in_use(world) == [0]
    let_pass(world, "2 minutes")
    tend(context, ring(retention=DAY))
    assert slots_in_use(world) == []
    assert world.one("SELECT pruned_completed_count FROM awa.queue_terminal_rollups") == 1


def test_a_job_that_finishes_late_keeps_its_slot_for_the_whole_retention(
    world: World, context: Context
) -> None:
    early, late = world.running(job(), job())
    world.end([early])
    world.within(rings.rotate_queue_ring)
    let_pass(world, "30 hours")
    world.end([late])
    tend(context, ring(retention=DAY))
    assert slots_in_use(world) == [0]
    let_pass(world, "25 hours")
    tend(context, ring(retention=DAY))
    assert slots_in_use(world) == []


def test_a_new_leader_decides_as_the_old_one_would(world: World, context: Context) -> None:
    """Nothing that decides is in a leader's memory: fifteen slots, each tended by another leader."""
    for _ in range(16):
        finished_job(world)
        tend(context, ring(retention=DAY))
        let_pass(world, "97 minutes")
        tend(context, ring(retention=DAY))
    # The first slot is 25 hours old by now and was emptied, as was the second; the rest is readable.
    assert generation(world) in (15, 16)
    assert world.one("SELECT count(*) FROM awa.terminal_jobs") == 14


def test_history_is_kept_when_the_ring_is_full_and_rows_are_few(world: World, context: Context) -> None:
    for _ in range(15):
        finished_job(world)
        world.within(rings.rotate_queue_ring)
    finished_job(world)
    let_pass(world, "3 hours")
    keeper = ring(retention=DAY)
    tend(context, keeper)
    assert generation(world) == 15
    assert world.one("SELECT count(*) FROM awa.terminal_jobs") == 16


def test_the_oldest_history_goes_when_the_ring_is_full_of_rows(world: World, context: Context) -> None:
    for _ in range(15):
        finished_job(world)
        world.within(rings.rotate_queue_ring)
    finished_job(world)
    keeper = ring(retention=DAY, max_rows=15)
    tend(context, keeper)
    assert slots_in_use(world) == list(range(1, 16))
    tend(context, keeper)
    assert generation(world) == 16
    assert world.one("SELECT count(*) FROM awa.terminal_jobs") == 15


def test_an_overflow_that_cannot_be_helped_costs_no_history(world: World, context: Context) -> None:
    """The slot in the way is held by a job that runs on; emptying others would not let the ring turn."""
    (long,) = world.running(job())
    for _ in range(15):
        finished_job(world)
        world.within(rings.rotate_queue_ring)
    finished_job(world)
    keeper = ring(retention=DAY, max_rows=15)
    for _ in range(3):
        tend(context, keeper)
        keeper.clock.now += 60  # type: ignore[attr-defined]
    assert slots_in_use(world) == list(range(16))
    world.end([long])
    tend(context, keeper)
    assert slots_in_use(world) == list(range(1, 16))


def test_history_of_slots_behind_a_blocked_one_goes_all_the_same(world: World, context: Context) -> None:
    (long,) = world.running(job())
    world.within(rings.rotate_queue_ring)
    finished_job(world)
    world.within(rings.rotate_queue_ring)
    let_pass(world, "25 hours")
    keeper = ring(retention=DAY)
    tend(context, keeper)
    assert slots_in_use(world) == [0]
    world.end([long])


def test_a_blocked_slot_is_tried_less_and_less_often_and_then_named(
    world: World, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    world.enqueue(job())
    world.within(rings.rotate_queue_ring)
    keeper = ring(retention=DAY)
    clock = keeper.clock
    assert isinstance(clock, Clock)
    pauses = []
    with caplog.at_level(logging.WARNING, "awa_django.maintenance"):
        for _ in range(6):
            assert tend(context, keeper) == 0
            pause = tend(context, keeper)
            assert pause is not None
            pauses.append(pause)
            clock.now += pause
    assert pauses == [2, 4, 8, 16, 32, 32]
    (record,) = caplog.records
    job_id = world.one("SELECT job_id FROM awa.ready_entries")
    assert (
        f"slot 0 of the queue ring cannot be emptied: job {job_id} has not been handed out" in record.message
    )


def test_a_slot_whose_writers_rolled_back_is_not_tried_for_ever(world: World, context: Context) -> None:
    with world.connection.transaction(force_rollback=True), world.connection.cursor() as cursor:
        world.plane.enqueue(cursor, [job()])
    keeper = ring(max_rows=1, retention=timedelta(microseconds=15))
    tend(context, keeper)
    assert generation(world) == 0
    wanted = tend(context, keeper)
    assert wanted is None or wanted > 0


def test_a_slot_that_is_being_read_is_left_for_later(
    world: World, context: Context, world_database: str
) -> None:
    finished_job(world)
    world.within(rings.rotate_queue_ring)
    let_pass(world, "25 hours")
    keeper = ring(retention=DAY)
    with psycopg.connect(world_database) as reader:
        reader.execute("SELECT count(*) FROM awa.done_entries_0")
        tend(context, keeper)
        assert slots_in_use(world) == [0]
        assert tend(context, keeper) == 2
    keeper.clock.now += 2  # type: ignore[attr-defined]
    tend(context, keeper)
    assert slots_in_use(world) == []


def test_the_claim_ring_turns_while_it_is_written_to_and_then_rests(world: World, context: Context) -> None:
    keeper = ClaimRing("claim", 1.0, Clock())
    finished_job(world)
    assert tend(context, keeper) == 0
    assert world.one("SELECT generation FROM awa.claim_ring_state") == 1
    assert tend(context, keeper) == 0
    assert world.one("SELECT count(*) FROM awa.lease_claim_batches") == 0
    assert tend(context, keeper) is None
    assert world.one("SELECT generation FROM awa.claim_ring_state") == 1


def test_an_attempt_that_runs_long_costs_the_claim_ring_a_look_now_and_then(
    world: World, context: Context
) -> None:
    keeper = ClaimRing("claim", 1.0, Clock())
    world.running(job())
    tend(context, keeper)
    tend(context, keeper)
    assert tend(context, keeper) == 2


def test_the_lease_ring_turns_and_gives_back_large_slots(
    world: World, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("awa_django.maintenance.rings.LEASE_SLOT_BYTES", 1)
    keeper = LeaseRing("lease", 1.0, Clock())
    (attempt,) = world.running(job())
    world.lease(attempt)
    tend(context, keeper)
    assert world.one("SELECT generation FROM awa.lease_ring_state") == 1
    assert tend(context, keeper) == 0
    assert tend(context, keeper) == 2
    world.end([attempt], Failed("no"))
    keeper.clock.now += 2  # type: ignore[attr-defined]
    tend(context, keeper)
    assert world.one("SELECT pg_relation_size('awa.leases_0')") == 0
    assert tend(context, keeper) is None


def test_the_roll_up_folds_sealed_slots(world: World, context: Context, world_database: str) -> None:
    for _ in range(3):
        finished_job(world, Terminal("broken"))
        world.within(rings.rotate_queue_ring)
    with psycopg.connect(world_database) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM awa.done_entries")
        RollUp().run(context)
        assert world.one("SELECT count(*) FROM awa.queue_terminal_count_deltas") == 3
    RollUp().run(context)
    assert world.one("SELECT count(*) FROM awa.queue_terminal_count_deltas") == 0
    assert world.one("SELECT sum(live_terminal_count) FROM awa.queue_terminal_live_counts") == 3


def test_the_policy_comes_from_the_settings(context: Context) -> None:
    from awa_django.maintenance.rings import duties

    settings = replace(context.settings, completed_retention=timedelta(hours=1), history_max_rows=300)
    (queue,) = [duty for duty in duties(settings) if duty.name == "queue ring"]
    keeper = queue.run.__self__  # type: ignore[attr-defined]
    assert (keeper.retention, keeper.max_rows, keeper.failed_retention) == (
        timedelta(hours=1), 300, timedelta(hours=72)
    )  # fmt: skip
