"""Recorded defects of the reference that only our own code avoids: the same situation, and what becomes of it here.

Those that the schema keeps from everybody are in tests/schema/test_hazards; those of rescues in
tests/maintenance/test_rescue_vectors. (contract: queue-storage/hazards, scope *ours*)
"""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from awa_django.outcomes import OperatorCancel, Terminal
from awa_django.planes.base import Claimed, Cursor, Ids, Stale
from awa_django.states import JobState
from awa_django.transitions import land_one
from tests.invariants import violated
from tests.planes.world import NO_DEADLINE, World, job
from tests.vectors import load
from tests.workers import wait_until

RECORDED = {(case["hazard"], case["case"]): case for case in load("queue-storage/hazards")["cases"]}
HERE = Path(__file__)


def test_every_recorded_hazard_is_named_by_a_test() -> None:
    texts = [path.read_text().upper() for path in HERE.parent.parent.rglob("test_*.py")]
    named = {
        hazard
        for hazard, _ in RECORDED
        if any(hazard in text or f"TEST_{hazard.replace('-', '')}_" in text for text in texts)
    }
    assert named == {hazard for hazard, _ in RECORDED}


def cancel(world: World, *job_ids: int) -> list[int]:
    """What an operator's cancel does; the jobs that were."""

    def work(cursor: Cursor) -> list[int]:
        taken = world.plane.take(cursor, Ids(job_ids, [state for state in JobState if not state.is_terminal]))
        landed = world.plane.place(cursor, [land_one(item, OperatorCancel()) for item in taken])
        return [item.job.id for item in landed]

    return world.within(work)


def test_deleting_a_failed_job_frees_the_key_that_its_mask_kept(world: World) -> None:
    """H-07."""
    case = RECORDED["H-07", "DELETE of a failed unique job (mask claims failed)"]
    assert "job_unique_claims" not in case["effects"], "the recording shows the leak"
    (attempt,) = world.running(job(unique_key=b"k" * 16, unique_states="11111100"))
    world.end([attempt], Terminal("boom"))
    assert world.one("SELECT count(*) FROM awa.job_unique_claims") == 1
    world.run("DELETE FROM awa.jobs WHERE id = %s", attempt.job_id)
    assert world.one("SELECT count(*) FROM awa.job_unique_claims") == 0
    assert world.one("SELECT count(*) FROM awa.done_entries") == 0
    assert world.one("SELECT sum(terminal_delta) FROM awa.queue_terminal_count_deltas") == 0
    assert violated(world.connection) == []


def test_jobs_that_may_not_run_keep_no_job_behind_them_waiting(world: World) -> None:
    """H-08."""
    assert any(hazard == "H-08" for hazard, _ in RECORDED)
    mask: dict[str, Any] = {"unique_key": b"k" * 16, "unique_states": "00100000"}
    world.enqueue(job(**mask), job(**mask), job())
    world.run("INSERT INTO awa.job_unique_claims (unique_key, job_id) VALUES (%s, -1)", mask["unique_key"])
    first, second, third = (
        row["job_id"] for row in world.rows("SELECT job_id FROM awa.ready_entries ORDER BY 1")
    )

    def claim(cursor: Cursor) -> Claimed:
        return world.plane.claim(cursor, "q", 10, deadline=NO_DEADLINE, aging=NO_DEADLINE)

    claimed = world.within(claim)
    assert [attempt.job_id for attempt in claimed.attempts] == [third]
    assert sorted(attempt.job_id for attempt in claimed.refused) == [first, second]
    world.within(lambda cursor: world.plane.advance(cursor, [*claimed.attempts, *claimed.refused]))
    world.within(lambda cursor: world.plane.refuse(cursor, claimed.refused))
    ended = world.rows("SELECT job_id, state::text FROM awa.done_entries ORDER BY 1")
    assert ended == [{"job_id": first, "state": "cancelled"}, {"job_id": second, "state": "cancelled"}]


def test_a_claimed_job_whose_cursor_lags_is_cancelled_once_and_not_revived(world: World) -> None:
    """H-10, both recordings: the cancel takes it for available, and the rescue finds its receipt open."""
    case = RECORDED["H-10", "cancel of a claimed job whose lane cursor lags"]
    assert case["effects"]["ready_tombstones"]["added"], "the recording shows the defect"
    world.enqueue(job())
    (attempt,) = world.within(
        lambda cursor: world.plane.claim(cursor, "q", 1, deadline=NO_DEADLINE, aging=NO_DEADLINE).attempts
    )
    assert cancel(world, attempt.job_id) == [attempt.job_id]
    assert world.one("SELECT count(*) FROM awa.ready_tombstones") == 0
    world.age()
    stale = Stale(timedelta(seconds=90), receipts=True)
    assert world.within(lambda cursor: world.plane.take(cursor, stale)) == []
    assert world.rows("SELECT state::text FROM awa.done_entries") == [{"state": "cancelled"}]
    world.within(lambda cursor: world.plane.advance(cursor, [attempt]))
    assert violated(world.connection, quiesced=True, drained=True, ids=[attempt.job_id]) == []


def test_a_cancel_waits_for_whoever_holds_the_batch_of_its_receipt(world: World, world_database: str) -> None:
    """H-11: the reference passes the batch over and says that there is no such job."""
    case = RECORDED["H-11", "cancel running while another transaction holds the claim batch row"]
    assert "job not found" in case["result"]
    first, _ = world.running(job(), job())
    cancelled: list[int] = []
    with psycopg.connect(world_database) as sibling, psycopg.connect(world_database, autocommit=True) as own:
        sibling.execute("SELECT FROM awa.lease_claim_batches FOR UPDATE")
        waiter = threading.Thread(
            target=lambda: cancelled.extend(cancel(World(own, world.plane), first.job_id))
        )
        waiter.start()
        wait_until(
            lambda: world.rows("SELECT FROM pg_locks WHERE pid = %s AND NOT granted", own.info.backend_pid)
        )
        assert cancelled == []
        sibling.rollback()
        waiter.join(20)
    assert cancelled == [first.job_id]
    assert violated(world.connection) == []
