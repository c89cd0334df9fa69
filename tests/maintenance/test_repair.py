"""Attempts that two clients ended at once (H-06): found by the counts, and given back one end each."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from awa_django.jobs import Attempt
from awa_django.maintenance import Context, retention
from awa_django.outcomes import Cancel, Snooze
from awa_django.planes.queue_storage.repair import overclosed_slots, repair_slot
from tests.invariants import violated
from tests.planes.world import World, job


def close_again(world: World, *attempts: Attempt, ends_again: bool = True) -> None:
    """A second closure and, with ``ends_again``, a cancelled row, as a reference admin writes them beside a success."""
    for attempt in attempts:
        world.run(
            """
            INSERT INTO awa.lease_claim_closure_batches (
                claim_slot, ready_slot, ready_generation, outcome, closed_count, receipt_ids, receipt_ranges
            )
            VALUES (%s, %s, %s, 'cancelled', 1, ARRAY[%s::bigint], int8multirange(int8range(%s, %s)))
            """,
            attempt.claim_slot, attempt.ready_slot, attempt.ready_generation, attempt.receipt_id,
            attempt.receipt_id, attempt.receipt_id + 1,
        )  # fmt: skip
        if ends_again:
            add_end(world, attempt)


def add_end(world: World, attempt: Attempt) -> None:
    world.run(
        """
        WITH counted AS (
            INSERT INTO awa.queue_terminal_count_deltas (
                ready_slot, ready_generation, queue, priority, enqueue_shard, counter_bucket, terminal_delta
            )
            VALUES (%s, %s, %s, %s, %s, %s, 1)
        )
        INSERT INTO awa.done_entries (
            ready_slot, ready_generation, job_id, kind, queue, state, priority, attempt, run_lease, lane_seq,
            enqueue_shard, finalized_at
        )
        VALUES (%s, %s, %s, %s, %s, 'cancelled', %s, %s, %s, %s, %s, now())
        """,
        attempt.ready_slot, attempt.ready_generation, attempt.queue, attempt.lane_priority,
        attempt.enqueue_shard, attempt.job_id & 255,
        attempt.ready_slot, attempt.ready_generation, attempt.job_id, attempt.kind, attempt.queue,
        attempt.lane_priority, attempt.attempt, attempt.run_lease, attempt.lane_seq, attempt.enqueue_shard,
    )  # fmt: skip


def run_repair(context: Context) -> None:
    (duty,) = [duty for duty in retention.duties(context.settings) if duty.name == "repair of double ends"]
    duty.run(context)


def test_a_success_that_was_cancelled_at_the_same_time_stays_a_success(
    world: World, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = world.running(*[job() for _ in range(5)])
    world.end(attempts)
    close_again(world, *attempts[1:3])
    slot = attempts[0].claim_slot
    assert world.within(overclosed_slots) == [slot]
    with caplog.at_level(logging.WARNING):
        run_repair(context)
    assert "2 attempts of claim slot" in caplog.text
    assert world.within(overclosed_slots) == []
    assert violated(world.connection) == []
    states = world.rows("SELECT job_id, state::text FROM awa.terminal_jobs ORDER BY job_id")
    assert [row["state"] for row in states] == ["completed"] * 5


@pytest.mark.parametrize("outcome", [Snooze(60), Cancel("enough")])
@pytest.mark.parametrize("deadline", [timedelta(0), timedelta(minutes=5)])
def test_a_receipt_keeps_one_closure_and_its_attempt_one_end(
    world: World, context: Context, outcome: Snooze | Cancel, deadline: timedelta
) -> None:
    attempts = world.running(job(), job(), deadline=deadline)
    world.end(attempts, outcome)
    close_again(world, attempts[0], ends_again=isinstance(outcome, Snooze))
    assert world.within(overclosed_slots) == [attempts[0].claim_slot]
    run_repair(context)
    assert world.within(overclosed_slots) == []
    assert violated(world.connection) == []


def test_sound_slots_are_left_alone(world: World, context: Context) -> None:
    attempts = world.running(*[job() for _ in range(3)])
    world.end(attempts[:2])
    before = world.rows("SELECT * FROM awa.lease_claim_closure_batches")
    repair = world.within(lambda cursor: repair_slot(cursor, attempts[0].claim_slot))
    assert repair == (0, [])
    run_repair(context)
    assert world.rows("SELECT * FROM awa.lease_claim_closure_batches") == before
