"""The rings: when they turn, what keeps a slot from being emptied, and what emptying it leaves behind."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from awa_django.jobs import Attempt
from awa_django.outcomes import Completed, Failed, Snooze, Terminal
from awa_django.planes.queue_storage import rings
from awa_django.planes.queue_storage.rings import Prune, Turn
from awa_django.planes.queue_storage.sweep import claims_page, forget_idle_states, release_orphans
from tests.planes.rows import normal
from tests.planes.world import World, job

VECTORS = Path(__file__).parent.parent / "contract" / "vectors" / "queue-storage"
ARITHMETIC = json.loads((VECTORS / "ring-oldest-slot.json").read_text())["cases"]

KEEP_FAILED = timedelta(hours=72)

QUEUE_CHILDREN = (
    "ready_entries",
    "ready_claim_attempt_batches",
    "done_entries",
    "ready_tombstones",
    "ready_segments",
    "receipt_completion_batches",
    "receipt_completion_tombstones",
    "queue_terminal_count_deltas",
)


def turn(world: World) -> Turn:
    return world.within(rings.rotate_queue_ring)


def turn_claims(world: World) -> Turn:
    return world.within(rings.rotate_claim_ring)


def prune(world: World, slot: int = 0, keep_failed: timedelta = KEEP_FAILED) -> tuple[Prune, str | None]:
    return world.within(lambda cursor: rings.prune_queue_slot(cursor, slot, failed_retention=keep_failed))


def prune_claims(world: World, slot: int) -> tuple[Prune, str | None]:
    return world.within(lambda cursor: rings.prune_claim_slot(cursor, slot))


def rows_in(world: World, slot: int) -> dict[str, int]:
    counts = {name: world.one(f"SELECT count(*) FROM awa.{name}_{slot}") for name in QUEUE_CHILDREN}
    return {name: count for name, count in counts.items() if count}


def rollups(world: World) -> list[dict[str, Any]]:
    return world.rows("SELECT * FROM awa.queue_terminal_rollups ORDER BY queue, priority")


def sealed_with(world: World, *outcomes: Any) -> list[Attempt]:
    """One ended job for each outcome, in slot 0 of the queue ring, which is sealed."""
    attempts = world.running(*[job() for _ in outcomes])
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        world.end([attempt], outcome)
    assert turn(world) is Turn.TURNED
    return attempts


@pytest.mark.parametrize("case", ARITHMETIC, ids=lambda case: f"{case['slot_count']}-{case['generation']}")
def test_ring_arithmetic_is_that_of_the_recorded_vectors(case: dict[str, Any]) -> None:
    count, generation = case["slot_count"], case["generation"]
    assert generation % count == case["current_slot"]
    assert (generation + 1) % count == case["next_slot"]
    oldest = case["oldest_initialised"]
    expected = None if oldest is None else (oldest["slot"], oldest["generation"])
    assert rings.oldest_initialised(count, generation) == expected


def test_a_ring_whose_current_slot_is_empty_does_not_turn(world: World) -> None:
    assert turn(world) is Turn.UNUSED
    assert turn_claims(world) is Turn.UNUSED
    assert world.within(rings.rotate_lease_ring) is Turn.UNUSED
    assert world.one("SELECT generation FROM awa.queue_ring_state") == 0


def test_turning_the_queue_ring_labels_the_new_slot(world: World) -> None:
    world.enqueue(job())
    assert turn(world) is Turn.TURNED
    assert world.rows("SELECT current_slot, generation FROM awa.queue_ring_state") == [
        {"current_slot": 1, "generation": 1}
    ]
    assert world.one("SELECT generation FROM awa.queue_ring_slots WHERE slot = 1") == 1


def test_a_full_ring_does_not_turn_and_jobs_stay_in_the_current_slot(world: World) -> None:
    for _ in range(15):
        world.enqueue(job())
        assert turn(world) is Turn.TURNED
    world.enqueue(job())
    assert turn(world) is Turn.FULL
    world.enqueue(job())
    assert rows_in(world, 15)["ready_entries"] == 2


def test_the_ring_does_not_turn_onto_a_slot_that_an_old_transaction_writes_to(
    world: World, world_database: str
) -> None:
    """H-03: the transaction read the ring a lap ago, and its rows are not visible yet."""
    world.enqueue(job())
    with psycopg.connect(world_database) as late:
        late.execute(
            """
            INSERT INTO awa.ready_segments (
                ready_slot, ready_generation, queue, priority, first_lane_seq, next_lane_seq, first_run_at
            ) VALUES (1, -15, 'late', 2, 1, 2, now())
            """
        )
        assert turn(world) is Turn.BUSY
        assert world.one("SELECT generation FROM awa.queue_ring_state") == 0
        late.rollback()
        assert turn(world) is Turn.TURNED


def test_a_slot_without_rows_is_left_as_it_is(world: World) -> None:
    world.enqueue(job())
    turn(world)
    world.run("INSERT INTO awa.queue_terminal_live_counts VALUES (5, 'gone', 2, 0, 0, 3)")
    assert prune(world, 5) == (Prune.NOTHING, None)
    assert world.one("SELECT count(*) FROM awa.queue_terminal_live_counts") == 0


def test_the_current_slot_is_never_emptied(world: World) -> None:
    sealed_with(world, Completed())
    assert prune(world, 1) == (Prune.CURRENT, None)
    assert prune_claims(world, 0) == (Prune.CURRENT, None)


def test_a_job_that_was_not_handed_out_holds_its_slot(world: World) -> None:
    world.enqueue(job())
    turn(world)
    result, gate = prune(world)
    assert result is Prune.HELD
    assert gate is not None
    assert f"job {world.one('SELECT job_id FROM awa.ready_entries')}" in gate


def test_a_job_in_a_lane_nobody_has_registered_holds_its_slot(world: World) -> None:
    sealed_with(world, Completed())
    world.run("DELETE FROM awa.queue_claim_heads")
    assert prune(world)[0] is Prune.HELD


def test_a_running_job_holds_its_slot(world: World) -> None:
    (attempt,) = world.running(job())
    turn(world)
    assert prune(world) == (Prune.HELD, "receipts of its jobs are open")
    world.end([attempt])
    assert prune(world) == (Prune.PRUNED, None)


def test_a_job_with_a_lease_holds_its_slot(world: World) -> None:
    (attempt,) = world.running(job())
    world.lease(attempt, state="waiting_external")
    turn(world)
    assert prune(world) == (Prune.HELD, f"job {attempt.job_id} runs or waits for a callback")


def test_rows_of_a_late_transaction_are_not_truncated_unseen(world: World) -> None:
    """H-03: the row is of a generation that the slot is no longer labelled with."""
    sealed_with(world, Completed())
    world.run("UPDATE awa.ready_entries SET ready_generation = -16, lane_seq = lane_seq + 10")
    assert prune(world)[0] is Prune.HELD
    assert world.one("SELECT count(*) FROM awa.ready_entries") == 1


def test_emptying_a_slot_leaves_only_counts_of_jobs_that_succeeded_or_were_cancelled(world: World) -> None:
    sealed_with(world, Completed(), Completed(), Completed(), Terminal("broken"), Snooze(3600))
    assert prune(world, keep_failed=timedelta(0)) == (Prune.PRUNED, None)
    assert rows_in(world, 0) == {}
    assert rows_in(world, 1) == {}
    assert rollups(world) == [
        {"queue": "q", "priority": 2, "pruned_completed_count": 3, "pruned_failed_count": 1}
    ]
    assert world.one("SELECT count(*) FROM awa.deferred_jobs") == 1


def test_deleted_successes_are_not_counted_when_their_slot_is_emptied(world: World) -> None:
    attempts = sealed_with(world, Completed(), Completed())
    world.run(
        """
        INSERT INTO awa.receipt_completion_tombstones (
            ready_slot, ready_generation, job_id, run_lease, queue, priority, lane_seq
        ) VALUES (0, 0, %s, 1, 'q', 2, 1)
        """,
        attempts[0].job_id,
    )
    prune(world)
    assert rollups(world)[0]["pruned_completed_count"] == 1


def test_roll_ups_of_several_slots_add_up(world: World) -> None:
    sealed_with(world, Completed())
    attempts = world.running(job())
    world.end(attempts)
    turn(world)
    assert prune(world, 0)[0] is Prune.PRUNED
    assert prune(world, 1)[0] is Prune.PRUNED
    assert rollups(world)[0]["pruned_completed_count"] == 2


def test_failed_jobs_are_carried_and_completed_ones_folded_as_the_reference_does_it(world: World) -> None:
    case = json.loads((VECTORS / "prune-carry.json").read_text())["cases"][0]
    effects = case["effects"]
    for ready in effects["ready_entries"]["removed"]:
        world.run(
            """
            SELECT awa.insert_job_compat(
                p_kind => 'k', p_queue => 'adm', p_args => %s::jsonb, p_metadata => %s::jsonb, p_tags => %s::text[]
            )
            """,
            json.dumps(ready["args"]),
            json.dumps(ready["payload"]["metadata"]),
            ready["payload"]["tags"],
        )
    failed, completed = world.claim("adm")
    world.end([completed])
    world.end([failed], Terminal("TerminalError: boom-terminal"))
    turn(world)
    turn_claims(world)

    assert prune(world) == (Prune.PRUNED, None)
    assert prune_claims(world, 0) == (Prune.PRUNED, None)

    ours = {"<current generation>": 1, "<current slot>": 1}
    own = {"job_id": failed.job_id, "counter_bucket": failed.job_id % 256}
    for table in ("done_entries", "queue_terminal_count_deltas", "queue_terminal_rollups"):
        (row,) = effects[table]["added"]
        expected = {
            key: own.get(key, ours.get(value, value) if isinstance(value, str) else value)
            for key, value in row.items()
        }
        (found,) = [normal(row) for row in world.rows(f"SELECT * FROM awa.{table}")]
        found.pop("recorded_at", None)
        assert found == expected, table
    for table, change in effects.items():
        if "added" not in change:
            assert world.one(f"SELECT count(*) FROM awa.{table}") == 0, table
    assert rings_agree(world)


def rings_agree(world: World) -> bool:
    """The live counts and deltas are the finished rows (I17)."""
    counted = world.one("SELECT coalesce(sum(terminal_delta), 0) FROM awa.queue_terminal_count_deltas")
    folded = world.one("SELECT coalesce(sum(live_terminal_count), 0) FROM awa.queue_terminal_live_counts")
    finished = world.one("SELECT count(*) FROM awa.done_entries")
    return bool(counted + folded == finished)


def test_a_failed_job_is_carried_from_slot_to_slot_until_it_is_too_old(world: World) -> None:
    (attempt,) = sealed_with(world, Terminal("broken"))
    prune(world, 0)
    turn(world)
    world.run("UPDATE awa.done_entries SET finalized_at = finalized_at - interval '71 hours'")
    assert prune(world, 1) == (Prune.PRUNED, None)
    assert world.rows("SELECT job_id, ready_slot FROM awa.done_entries") == [
        {"job_id": attempt.job_id, "ready_slot": 2}
    ]
    turn(world)
    world.run("UPDATE awa.done_entries SET finalized_at = finalized_at - interval '2 hours'")
    assert prune(world, 2) == (Prune.PRUNED, None)
    assert world.one("SELECT count(*) FROM awa.done_entries") == 0
    assert rollups(world)[0]["pruned_failed_count"] == 1


def test_emptying_a_slot_that_would_lose_a_failed_job_raises_and_changes_nothing(world: World) -> None:
    (attempt,) = sealed_with(world, Terminal("broken"))
    world.run(
        """
        INSERT INTO awa.done_entries (ready_slot, ready_generation, job_id, kind, queue, priority, lane_seq)
        VALUES (1, 1, 999, 'k', 'q', 2, %s)
        """,
        attempt.lane_seq,
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        prune(world)
    assert rows_in(world, 0)["done_entries"] == 1


@pytest.mark.parametrize(
    ("mask", "outcome", "kept"),
    [
        ("11111111", Completed(), False),
        ("11111111", Terminal("broken"), True),
        ("11101000", Completed(), False),
    ],
)
def test_a_unique_key_is_held_as_long_as_the_history_of_its_job(
    world: World, mask: str, outcome: Any, kept: bool
) -> None:
    """H-07: the reference leaves the key behind for ever."""
    attempts = world.running(job(unique_key=b"key", unique_states=mask))
    world.end(attempts, outcome)
    turn(world)
    assert world.one("SELECT count(*) FROM awa.job_unique_claims") == int(mask[3] == "1")
    prune(world)
    assert world.one("SELECT count(*) FROM awa.job_unique_claims") == int(kept)


def test_a_unique_key_that_a_later_job_holds_is_not_released(world: World) -> None:
    attempts = world.running(job(unique_key=b"key", unique_states="11101000"))
    world.end(attempts)
    turn(world)
    world.enqueue(job(unique_key=b"key", unique_states="11101000"))
    prune(world)
    assert world.one("SELECT count(*) FROM awa.job_unique_claims") == 1


def test_a_slot_that_somebody_reads_is_not_waited_for(world: World, world_database: str) -> None:
    sealed_with(world, Completed())
    with psycopg.connect(world_database) as reader:
        reader.execute("SELECT count(*) FROM awa.ready_entries_0")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            prune(world)
    assert prune(world) == (Prune.PRUNED, None)


def test_the_claim_ring_passes_over_a_slot_with_an_open_receipt(world: World) -> None:
    """H-12: one long attempt costs one slot, not, after a lap, the whole ring."""
    (long,) = world.running(job())
    turn_claims(world)
    for _ in range(10):
        world.end(world.running(job()))
        assert turn_claims(world) is Turn.TURNED
        for slot in range(1, 8):
            prune_claims(world, slot)
    generation, current = world.connection.execute(
        "SELECT generation, current_slot FROM awa.claim_ring_state"
    ).fetchone() or (0, 0)
    assert current != 0
    assert generation % 8 == current
    assert generation > 11
    assert prune_claims(world, 0) == (Prune.HELD, "1 receipts are open")
    world.end([long])
    assert prune_claims(world, 0) == (Prune.PRUNED, None)


def test_emptying_a_claim_slot_resets_its_cursors(world: World) -> None:
    world.end(world.running(job()))
    turn_claims(world)
    world.run("UPDATE awa.claim_ring_slots SET rescue_cursor_job_id = 7, rescue_cursor_claimed_at = now()")
    assert prune_claims(world, 0) == (Prune.PRUNED, None)
    assert world.rows(
        "SELECT rescue_cursor_job_id AS id, rescue_cursor_claimed_at = '-infinity' AS at"
        " FROM awa.claim_ring_slots WHERE slot = 0"
    ) == [{"id": 0, "at": True}]


def test_a_receipt_closed_twice_is_named(world: World) -> None:
    world.end(world.running(job()))
    turn_claims(world)
    world.run(
        """
        INSERT INTO awa.lease_claim_closure_batches (
            claim_slot, ready_slot, ready_generation, outcome, closed_count, receipt_ids, receipt_ranges
        )
        SELECT claim_slot, ready_slot, ready_generation, 'cancelled', closed_count, receipt_ids, receipt_ranges
        FROM awa.lease_claim_closure_batches
        """
    )
    assert prune_claims(world, 0) == (Prune.HELD, "1 receipts were closed twice (H-06)")


def test_a_slot_of_ended_leases_gives_its_space_back(world: World) -> None:
    (attempt,) = world.running(job())
    world.lease(attempt)
    assert world.within(rings.rotate_lease_ring) is Turn.TURNED
    result, gate = world.within(lambda cursor: rings.prune_lease_slot(cursor, 0))
    assert (result, gate) == (Prune.HELD, "it has leases")
    world.end([attempt], Failed("no"))
    assert world.one("SELECT count(*) FROM awa.leases") == 0
    assert world.one("SELECT pg_relation_size('awa.leases_0')") > 0
    assert world.within(lambda cursor: rings.prune_lease_slot(cursor, 0)) == (Prune.PRUNED, None)
    assert world.one("SELECT pg_relation_size('awa.leases_0')") == 0


def test_folding_counts_keeps_them_exact(world: World) -> None:
    sealed_with(world, Terminal("a"), Terminal("b"), Terminal("c"))
    assert world.within(rings.slots_with_deltas) == [0]
    assert world.within(lambda cursor: rings.fold_counts(cursor, 0))
    assert world.within(rings.slots_with_deltas) == []
    assert world.one("SELECT sum(live_terminal_count) FROM awa.queue_terminal_live_counts") == 3
    assert rings_agree(world)
    # A later deletion, such as a retry, is folded on top.
    world.run("DELETE FROM awa.done_entries WHERE job_id = (SELECT min(job_id) FROM awa.done_entries)")
    world.run(
        """
        INSERT INTO awa.queue_terminal_count_deltas (
            ready_slot, ready_generation, queue, priority, enqueue_shard, counter_bucket, terminal_delta
        )
        SELECT 0, 0, 'q', 2, 0, min(counter_bucket), -1 FROM awa.queue_terminal_live_counts
        """
    )
    assert world.within(lambda cursor: rings.fold_counts(cursor, 0))
    assert rings_agree(world)


def test_counts_of_a_slot_at_work_are_not_folded(world: World) -> None:
    first, _ = world.running(job(), job())
    world.end([first], Terminal("broken"))
    turn(world)
    assert not world.within(lambda cursor: rings.fold_counts(cursor, 0))
    assert world.one("SELECT count(*) FROM awa.queue_terminal_count_deltas") == 1


def test_an_old_snapshot_is_noticed(world: World, world_database: str) -> None:
    assert world.within(rings.horizon_is_clear)
    with psycopg.connect(world_database) as old:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT count(*) FROM awa.done_entries")
        assert not world.within(rings.horizon_is_clear)


def test_a_look_says_what_is_used_and_when_the_next_job_is_due(world: World) -> None:
    seen = world.within(rings.look)
    assert (seen.due_in, seen.queue.in_use, seen.claim.in_use, seen.lease.in_use) == (
        None,
        False,
        False,
        False,
    )
    assert (len(seen.queue.sizes), len(seen.claim.sizes), len(seen.lease.sizes)) == (16, 8, 8)
    now = world.one("SELECT now()")
    world.enqueue(
        job(run_at=now + timedelta(hours=1)), job(queue="paused", run_at=now - timedelta(hours=1)), job()
    )
    world.run("INSERT INTO awa.queue_meta (queue, paused) VALUES ('paused', true)")
    seen = world.within(rings.look)
    assert seen.due_in is not None
    assert 3500 < seen.due_in < 3601
    assert seen.queue.in_use
    assert seen.queue.sealed_in_use() == []
    turn(world)
    assert world.within(rings.look).queue.sealed_in_use() == [0]


@pytest.mark.parametrize("count", [1, 300, 5000, 50_000])
def test_the_rows_of_a_slot_are_estimated_within_a_tenth(world: World, count: int) -> None:
    world.enqueue(*[job(args={"n": number}) for number in range(count)])
    assert world.within(lambda cursor: rings.slot_rows(cursor, 0)) == pytest.approx(count, rel=0.1)


def test_a_slot_says_when_it_was_opened_and_when_its_last_job_finished(world: World) -> None:
    before = world.one("SELECT clock_timestamp()")
    attempts = world.running(job(), job())
    after = world.one("SELECT clock_timestamp()")
    opened = world.within(lambda cursor: rings.opened_at(cursor, 0))
    assert opened is not None
    assert before <= opened <= after
    assert world.within(lambda cursor: rings.newest_end(cursor, 0)) is None
    world.end(attempts[:1])
    world.end(attempts[1:], Terminal("later"))
    ended = world.within(lambda cursor: rings.newest_end(cursor, 0))
    assert ended is not None
    assert ended > after
    assert world.within(lambda cursor: rings.opened_at(cursor, 1)) is None


def test_an_orphaned_unique_key_is_found_and_released_and_others_are_not(world: World) -> None:
    now = world.one("SELECT now()")
    waits = {"unique_states": "11101000", "run_at": now + timedelta(hours=1)}
    world.enqueue(job(unique_key=b"a", **waits), job(unique_key=b"b", **waits))
    world.run("INSERT INTO awa.job_unique_claims (unique_key, job_id) VALUES ('gone', 4711)")
    page = world.within(lambda cursor: claims_page(cursor, b"", 10))
    assert page == ([(b"gone", 4711)], None)
    held = [(b"a", world.one("SELECT min(job_id) FROM awa.deferred_jobs"))]
    assert world.within(lambda cursor: release_orphans(cursor, [*page.orphans, *held])) == [4711]
    assert world.one("SELECT count(*) FROM awa.job_unique_claims") == 2


def test_only_heartbeat_rows_without_an_attempt_are_swept(world: World) -> None:
    compact, waiting = world.running(job(), job())
    (with_deadline,) = world.running(job(), deadline=timedelta(minutes=5))
    for attempt in (compact, waiting, with_deadline):
        world.beat(attempt)
    world.lease(waiting)
    world.run("INSERT INTO awa.attempt_state (job_id, run_lease, heartbeat_at) VALUES (4711, 1, now())")
    world.run(
        "UPDATE awa.attempt_state"
        " SET heartbeat_at = now() - interval '2 hours', updated_at = now() - interval '2 hours'"
    )
    assert world.within(lambda cursor: forget_idle_states(cursor, 10)) == 1
    assert world.one("SELECT count(*) FROM awa.attempt_state") == 3
