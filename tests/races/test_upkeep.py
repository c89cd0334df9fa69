"""Sweeps, operators and claims that meet: no job is lost, and none moves twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from awa_django.jobs import Attempt, Landed
from awa_django.outcomes import OperatorCancel, OperatorRetry, Rescued, Snooze, Terminal
from awa_django.planes.base import Cursor, Due, Guard, Stale
from awa_django.planes.queue_storage import rings
from awa_django.planes.queue_storage.rings import Prune, Turn
from awa_django.states import JobState
from awa_django.transitions import land_one, plan, promote
from tests.planes.conformance.worlds import SILENCE, AnyWorld, opened
from tests.planes.world import NO_DEADLINE, job
from tests.races.sides import PATIENCE, Side, race

Sides = tuple[Side, Side]
KEEP_FAILED = timedelta(hours=72)


@pytest.fixture
def queue_storage(world_database: str) -> Iterator[AnyWorld]:
    with opened("queue_storage", world_database) as found:
        yield found


def claims(world: AnyWorld, limit: int = 100) -> Callable[[Cursor], list[Attempt]]:
    return lambda cursor: (
        world.plane.claim(cursor, "q", limit, deadline=world.deadline, aging=NO_DEADLINE).attempts
    )


def promotes(world: AnyWorld, limit: int = 4096) -> Callable[[Cursor], list[Landed]]:
    def work(cursor: Cursor) -> list[Landed]:
        taken = world.plane.take(cursor, Due(JobState.SCHEDULED, limit=limit))
        return world.plane.place(cursor, [promote(item) for item in taken])

    return work


def cancels(world: AnyWorld, job_id: int) -> Callable[[Cursor], bool]:
    def work(cursor: Cursor) -> bool:
        live = [state for state in JobState if not state.is_terminal]
        taken = world.plane.take(cursor, world.named(job_id, states=live))
        return bool(world.plane.place(cursor, [land_one(item, OperatorCancel()) for item in taken]))

    return work


def due(world: AnyWorld, count: int = 1) -> list[int]:
    """Jobs whose time has just come."""
    attempts = world.running(*[job() for _ in range(count)])
    world.end(attempts, Snooze(60))
    world.run(f"UPDATE awa.{world.deferred} SET run_at = now() - interval '1 second'")
    return [attempt.job_id for attempt in attempts]


# Promotion --------------------------------------------------------------------------------------------------------


def test_a_job_that_is_cancelled_while_it_is_promoted_is_cancelled(world: AnyWorld, sides: Sides) -> None:
    """It has left the place where the operator looked first."""
    (job_id,) = due(world)
    promoted, cancelled = race(*sides, promotes(world), cancels(world, job_id), commit=True)
    assert len(promoted) == 1
    assert cancelled
    assert world.state(job_id) == "cancelled"
    assert world.claim() == []
    world.check()


def test_a_job_that_is_promoted_while_it_is_cancelled_stays_cancelled(world: AnyWorld, sides: Sides) -> None:
    (job_id,) = due(world)
    cancelled, promoted = race(*sides, cancels(world, job_id), promotes(world), commit=True)
    assert cancelled
    assert promoted == []
    assert world.state(job_id) == "cancelled"
    assert world.claim() == []
    world.check()


def pauses(paused: bool) -> Callable[[Cursor], Any]:
    return lambda cursor: cursor.execute(
        "INSERT INTO awa.queue_meta (queue, paused) VALUES ('q', %s) "
        "ON CONFLICT (queue) DO UPDATE SET paused = excluded.paused",
        [paused],
    )


@pytest.mark.parametrize("pause_first", [True, False])
def test_a_queue_that_is_paused_during_a_promotion_hands_out_nothing_and_everything_later(
    world: AnyWorld, sides: Sides, pause_first: bool
) -> None:
    (job_id,) = due(world)
    steps = [pauses(True), promotes(world)]
    race(*sides, *(steps if pause_first else steps[::-1]), commit=True)
    assert world.claim() == []
    world.within(pauses(False))
    world.promote_all()
    assert [attempt.job_id for attempt in world.claim()] == [job_id]
    world.check()


# Claims ------------------------------------------------------------------------------------------------------------


def test_a_job_that_is_cancelled_while_it_is_claimed_is_taken_from_its_worker(
    world: AnyWorld, sides: Sides
) -> None:
    world.enqueue(job())
    (job_id,) = world.ids()
    attempts, cancelled = race(*sides, claims(world), cancels(world, job_id), commit=True)
    assert cancelled
    assert world.state(job_id) == "cancelled"
    assert world.end(attempts).stale
    world.check()


def test_a_job_that_is_claimed_while_it_is_cancelled_is_not_handed_out(world: AnyWorld, sides: Sides) -> None:
    world.enqueue(job(), job())
    cancelled_id, other_id = world.ids()
    cancelled, attempts = race(*sides, cancels(world, cancelled_id), claims(world), commit=True)
    assert cancelled
    # The claimer may have found the lane held, and comes again.
    found = {attempt.job_id for attempt in [*attempts, *world.claim()]}
    assert found == {other_id}
    world.check()


def test_a_slot_whose_jobs_are_just_being_claimed_is_not_emptied(
    queue_storage: AnyWorld, sides: Sides
) -> None:
    world = queue_storage
    world.enqueue(*[job() for _ in range(3)])
    assert world.within(rings.rotate_queue_ring) is Turn.TURNED
    (attempts, (pruned, _)) = race(*sides, claims(world), prunes(0), commit=True)
    assert len(attempts) == 3
    assert pruned is not Prune.PRUNED
    world.within(lambda cursor: world.plane.advance(cursor, attempts))
    assert world.within(prunes(0))[0] is Prune.HELD
    assert not world.end(attempts).stale
    assert world.within(prunes(0))[0] is Prune.PRUNED
    world.check()


def test_a_claim_waits_for_no_slot_that_is_being_emptied(queue_storage: AnyWorld, sides: Sides) -> None:
    """What is emptied has nothing to claim; what has is in another slot, and is handed out meanwhile or right after."""
    world = queue_storage
    world.end(world.running(job(), job()))
    assert world.within(rings.rotate_queue_ring) is Turn.TURNED
    world.enqueue(job(args={"n": 1}))
    (pruned, _), attempts = race(*sides, prunes(0), claims(world), commit=True)
    assert pruned is Prune.PRUNED
    assert [attempt.args for attempt in [*attempts, *world.claim()]] == [{"n": 1}]
    world.check()


def prunes(slot: int) -> Callable[[Cursor], tuple[Prune, Any]]:
    return past_autovacuum(lambda cursor: rings.prune_queue_slot(cursor, slot, failed_retention=KEEP_FAILED))


def past_autovacuum(work: Callable[[Cursor], tuple[Prune, Any]]) -> Callable[[Cursor], tuple[Prune, Any]]:
    """Have it come again, as a leader does, when it meets an autovacuum at a table that it wants for itself."""

    def prune(cursor: Cursor) -> tuple[Prune, Any]:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with cursor.connection.transaction():
                    return work(cursor)
            except psycopg.errors.LockNotAvailable:
                if time.monotonic() > until:
                    raise

    return prune


def prunes_claims(attempt: Attempt) -> Callable[[Cursor], tuple[Prune, Any]]:
    return past_autovacuum(lambda cursor: rings.prune_claim_slot(cursor, attempt.claim_slot))


def test_an_outcome_that_is_written_while_its_claim_slot_is_emptied_counts(
    queue_storage: AnyWorld, sides: Sides
) -> None:
    world = queue_storage
    (attempt,) = world.running(job())
    assert world.within(rings.rotate_claim_ring) is Turn.TURNED
    settlement, (pruned, _) = race(
        *sides,
        lambda cursor: world.plane.settle(cursor, [plan(attempt, Snooze(60))]),
        prunes_claims(attempt),
        commit=True,
    )
    assert not settlement.stale
    assert pruned is not Prune.PRUNED
    assert world.within(prunes_claims(attempt))[0] is Prune.PRUNED
    assert world.state(attempt.job_id) == "scheduled"
    world.check()


# Two that take themselves for the leader ----------------------------------------------------------------------------


def sweeps(world: AnyWorld, guards: Sequence[Guard]) -> Callable[[Cursor], list[int]]:
    def work(cursor: Cursor) -> list[int]:
        landed = []
        for guard in guards:
            taken = world.plane.take(cursor, guard)
            landed += world.plane.place(cursor, [land_one(item, Rescued("silent")) for item in taken])
        return [item.job.id for item in landed]

    return work


def test_two_leaders_rescue_each_attempt_once(world: AnyWorld, sides: Sides) -> None:
    attempts = world.running(*[job() for _ in range(6)])
    for attempt in attempts[::2]:
        world.register(attempt)
    world.age()
    some = [Stale(SILENCE, limit=2, receipts=receipts) for receipts in (True, False)]
    rest = [Stale(SILENCE, receipts=receipts) for receipts in (True, False)]
    one, other = race(*sides, sweeps(world, some), sweeps(world, rest), commit=True)
    assert not set(one) & set(other)
    found = [*one, *other, *world.within(sweeps(world, rest))]
    assert sorted(found) == sorted(attempt.job_id for attempt in attempts)
    assert all(len(world.job(job_id)["errors"]) == 1 for job_id in found)
    world.check()


def test_two_leaders_promote_each_job_once(world: AnyWorld, sides: Sides) -> None:
    job_ids = due(world, 6)
    one, other = race(*sides, promotes(world, 3), promotes(world), commit=True)
    found = [item.job.id for item in [*one, *other, *world.within(promotes(world))]]
    assert sorted(found) == job_ids
    assert sorted(attempt.job_id for attempt in world.claim()) == job_ids
    assert world.claim() == []
    world.check()


def test_two_leaders_turn_a_ring_once(queue_storage: AnyWorld, sides: Sides) -> None:
    world = queue_storage
    world.enqueue(job())
    one, other = race(*sides, rings.rotate_queue_ring, rings.rotate_queue_ring, commit=True)
    assert one is Turn.TURNED
    assert other is not Turn.TURNED
    assert world.one("SELECT generation FROM awa.queue_ring_state") == 1
    assert len(world.claim()) == 1
    world.check()


def test_two_leaders_empty_a_slot_once(queue_storage: AnyWorld, sides: Sides) -> None:
    world = queue_storage
    world.end(world.running(job(), job()))
    world.end(world.running(job()), Terminal("no"))
    assert world.within(rings.rotate_queue_ring) is Turn.TURNED
    (one, _), (other, _) = race(*sides, prunes(0), prunes(0), commit=True)
    assert one is Prune.PRUNED
    assert other is not Prune.PRUNED
    counted = world.rows("SELECT * FROM awa.queue_terminal_rollups")
    world.check()
    assert len(counted) == 1
    assert world.one("SELECT count(*) FROM awa.done_entries WHERE state = 'failed'") == 1


# Dead letters --------------------------------------------------------------------------------------------------------


def dead(world: AnyWorld) -> int:
    (attempt,) = world.running(job())
    transition = plan(attempt, Terminal("no"), dead_letters=True)
    world.within(lambda cursor: world.plane.settle(cursor, [transition]))
    return attempt.job_id


def retries_dead(world: AnyWorld, job_id: int) -> Callable[[Cursor], bool]:
    def work(cursor: Cursor) -> bool:
        taken = world.plane.take(cursor, world.named(job_id, states=[JobState.FAILED], dead=True))
        return bool(world.plane.place(cursor, [land_one(item, OperatorRetry()) for item in taken]))

    return work


def purges_dead(world: AnyWorld, job_id: int) -> Callable[[Cursor], bool]:
    def work(cursor: Cursor) -> bool:
        taken = world.plane.take(cursor, world.named(job_id, states=[JobState.FAILED], dead=True))
        world.plane.drop(cursor, taken)
        return bool(taken)

    return work


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("retry_first", [True, False])
def test_a_dead_letter_is_retried_or_purged_but_not_both(
    queue_storage: AnyWorld, sides: Sides, retry_first: bool, commit: bool
) -> None:
    world = queue_storage
    job_id = dead(world)
    steps = [retries_dead(world, job_id), purges_dead(world, job_id)]
    one, other = race(*sides, *(steps if retry_first else steps[::-1]), commit=commit)
    assert one
    assert other is not commit
    retried = retry_first is commit
    assert [attempt.job_id for attempt in world.claim()] == ([job_id] if retried else [])
    assert world.one("SELECT count(*) FROM awa.dlq_entries") == 0
    world.check()


def test_two_operators_retry_a_failed_job_once(world: AnyWorld, sides: Sides) -> None:
    (attempt,) = world.running(job())
    world.end([attempt], Terminal("no"))

    def retries(cursor: Cursor) -> bool:
        taken = world.plane.take(cursor, world.named(attempt.job_id, states=[JobState.FAILED]))
        return bool(world.plane.place(cursor, [land_one(item, OperatorRetry()) for item in taken]))

    assert race(*sides, retries, retries, commit=True) == (True, False)
    assert [again.job_id for again in world.claim()] == [attempt.job_id]
    assert world.claim() == []
    world.check()
