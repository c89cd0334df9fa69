"""Taking attempts away: which, when, and what is left of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from awa_django.jobs import Attempt, Landed, Taken
from awa_django.maintenance.rescue import LEASE_STALE, RECEIPT_STALE, UNANSWERED
from awa_django.outcomes import Completed, DeadlineExceeded, Outcome, Rescued
from awa_django.planes.base import Cursor, PastDeadline, Stale, Unanswered
from awa_django.planes.queue_storage.rescue import (
    take_past_deadline,
    take_quiet_leases,
    take_quiet_receipts,
    take_unanswered,
)
from awa_django.transitions import land_one
from tests.planes.rows import normal
from tests.planes.world import World, ids, job

VECTORS = Path(__file__).parent.parent / "contract" / "vectors" / "queue-storage"
CASES = {
    case["case"].partition(" (")[0].partition(";")[0]: case["effects"]
    for case in json.loads((VECTORS / "rescue-effects.json").read_text())["cases"]
}

STALE = Stale(timedelta(seconds=90))
DEADLINE = timedelta(minutes=5)


def quiet_leases(cursor: Cursor) -> list[Taken]:
    return take_quiet_leases(cursor, STALE)


def quiet_receipts(cursor: Cursor) -> list[Taken]:
    return take_quiet_receipts(cursor, STALE)


def past_deadline(cursor: Cursor) -> list[Taken]:
    return take_past_deadline(cursor, PastDeadline())


def unanswered(cursor: Cursor) -> list[Taken]:
    return take_unanswered(cursor, Unanswered())


def rescued(world: World, take: Callable[[Cursor], list[Taken]], outcome: Outcome) -> list[Landed]:
    return world.within(
        lambda cursor: world.plane.place(cursor, [land_one(item, outcome) for item in take(cursor)])
    )


def all_rescued(world: World) -> list[int]:
    landed = [
        *rescued(world, quiet_leases, Rescued(LEASE_STALE)),
        *rescued(world, quiet_receipts, Rescued(RECEIPT_STALE)),
        *rescued(world, past_deadline, DeadlineExceeded()),
        *rescued(world, unanswered, Rescued(UNANSWERED)),
    ]
    return [item.job.id for item in landed]


#: Ids and places differ from run to run.
PLACES = {"job_id", "lane_seq", "receipt_id", "batch_id", "receipt_ids", "receipt_ranges", "counter_bucket"}


def without_places(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in PLACES}


def found(world: World, table: str) -> list[dict[str, Any]]:
    rows = [without_places(normal(row)) for row in world.rows(f"SELECT * FROM awa.{table}")]
    for row in rows:
        row.pop("recorded_at", None)
    return rows


def added(effects: dict[str, Any], table: str) -> list[dict[str, Any]]:
    return [without_places(row) for row in effects[table]["added"]]


def test_a_stale_compact_receipt_becomes_a_retry_as_the_reference_does_it(world: World) -> None:
    world.running(job(queue="adm", args={"do": "ok"}))
    world.age()
    rescued(world, quiet_receipts, Rescued(RECEIPT_STALE))
    effects = CASES["rescue stale compact receipt"]
    for table in ("deferred_jobs", "lease_claim_closure_batches"):
        assert found(world, table) == added(effects, table)


def test_a_stale_row_receipt_becomes_a_retry_as_the_reference_does_it(world: World) -> None:
    world.running(job(queue="adm", args={"do": "ok"}), deadline=timedelta(hours=1))
    world.age()
    rescued(world, quiet_receipts, Rescued(RECEIPT_STALE))
    effects = CASES["rescue stale row receipt"]
    for table in ("deferred_jobs", "lease_claim_closures", "lease_claims"):
        assert found(world, table) == added(effects, table)


def test_progress_goes_into_the_retry_and_the_heartbeat_row_away(world: World) -> None:
    (attempt,) = world.running(job(queue="adm", args={"do": "ok"}))
    world.beat(attempt, {"percent": 5})
    world.age()
    rescued(world, quiet_receipts, Rescued(RECEIPT_STALE))
    effects = CASES["stale heartbeat with progress rescued"]
    for table in ("deferred_jobs", "lease_claim_closure_batches"):
        assert found(world, table) == added(effects, table)
    assert found(world, "attempt_state") == []


def test_a_rescue_in_the_last_attempt_is_a_retry_still(world: World) -> None:
    world.running(job(queue="adm", args={"do": "ok"}, max_attempts=1))
    world.age()
    rescued(world, quiet_receipts, Rescued(RECEIPT_STALE))
    assert found(world, "deferred_jobs") == added(
        CASES["rescue stale receipt at max_attempts"], "deferred_jobs"
    )


def test_a_stale_lease_is_rescued_once_and_its_receipt_closed(world: World) -> None:
    """H-02: the reference finds the attempt again through its receipt, and ends it twice."""
    (attempt,) = world.running(job(queue="adm", args={"do": "cb_wait"}))
    world.lease(attempt)
    world.age()
    assert all_rescued(world) == [attempt.job_id]
    effects = CASES["stale running lease after resume"]
    assert found(world, "deferred_jobs") == added(effects, "deferred_jobs")
    assert found(world, "leases") == []
    assert found(world, "done_entries") == []
    closures = found(world, "lease_claim_closure_batches")
    assert [(row["outcome"], row["closed_count"]) for row in closures] == [("rescue", 1)]


def test_leases_and_receipts_are_not_taken_twice_in_one_transaction(world: World) -> None:
    leased, plain, late = world.running(job(), job(), job(), deadline=DEADLINE)
    world.lease(leased, deadline="1 minute")
    world.lease(late, deadline="1 minute")
    world.age("1 hour")
    receipts = replace(STALE, receipts=True)
    taken = world.within(lambda cursor: world.plane.take(cursor, STALE) + world.plane.take(cursor, receipts))
    assert sorted(ids(taken)) == sorted([leased.job_id, plain.job_id, late.job_id])


def test_a_stale_job_whose_key_a_newer_one_holds_ends_as_the_reference_ends_it(world: World) -> None:
    mask: dict[str, Any] = {"unique_key": b"key", "unique_states": "01011000"}
    world.running(job(queue="adm", args={"do": "ok"}, **mask))
    world.enqueue(job(queue="adm", **mask))
    neighbours = world.running(job(queue="fine"), job(queue="fine"))
    world.age()
    landed = rescued(world, quiet_receipts, Rescued(RECEIPT_STALE))
    assert sorted(item.duplicate for item in landed) == [False, False, True]
    effects = CASES["stale receipt with unique conflict"]
    (expected,) = [row for row in added(effects, "done_entries") if row["state"] == "cancelled"]
    assert found(world, "done_entries") == [expected]
    assert {row["job_id"] for row in world.rows("SELECT job_id FROM awa.deferred_jobs")} == {
        attempt.job_id for attempt in neighbours
    }


def test_an_attempt_past_its_deadline_is_taken_although_it_beats(world: World) -> None:
    (attempt,) = world.running(job(), deadline=DEADLINE)
    world.age("6 minutes")
    world.beat(attempt)
    assert rescued(world, quiet_receipts, Rescued(RECEIPT_STALE)) == []
    (landed,) = rescued(world, past_deadline, DeadlineExceeded())
    assert [entry["error"] for entry in landed.job.errors] == ["hard deadline exceeded"]
    assert world.one("SELECT outcome FROM awa.lease_claim_closures") == "deadline_expired"
    assert world.one("SELECT count(*) FROM awa.lease_claims WHERE closed_at IS NULL") == 0


def test_a_lease_past_its_deadline_is_taken_once(world: World) -> None:
    (attempt,) = world.running(job(), deadline=DEADLINE)
    world.lease(attempt, deadline="5 minutes")
    world.age("6 minutes")
    world.beat(attempt)
    assert all_rescued(world) == [attempt.job_id]
    assert world.one("SELECT outcome FROM awa.lease_claim_closures") == "rescue"


@pytest.mark.parametrize("deadline", [timedelta(0), timedelta(hours=1)], ids=["compact", "row"])
@pytest.mark.parametrize("tags", [(), ("t",)], ids=["plain", "tagged"])
def test_an_attempt_that_ended_is_not_rescued(
    world: World, deadline: timedelta, tags: tuple[str, ...]
) -> None:
    ended, open_one = world.running(job(tags=tags), job(tags=tags), deadline=deadline)
    world.end([ended], Completed())
    world.age("30 minutes")
    assert all_rescued(world) == [open_one.job_id]


def test_an_attempt_that_somebody_is_just_ending_is_left_to_them(world: World, world_database: str) -> None:
    first, second = world.running(job(), job())
    world.age()
    with psycopg.connect(world_database) as settler:
        settler.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
            [f"awa.receipt.complete:{first.job_id}:{first.run_lease}"],
        )
        assert all_rescued(world) == [second.job_id]
    assert all_rescued(world) == [first.job_id]


@pytest.mark.parametrize(
    ("table", "deadline"), [("lease_claims", timedelta(hours=1)), ("lease_claim_batches", timedelta(0))]
)
def test_evidence_that_a_reference_admin_holds_is_passed_over(
    world: World, world_database: str, table: str, deadline: timedelta
) -> None:
    """H-06: they take no attempt key, but lock the row."""
    (attempt,) = world.running(job(), deadline=deadline)
    world.age()
    with psycopg.connect(world_database) as admin:
        admin.execute(f"SELECT FROM awa.{table} FOR UPDATE")
        assert all_rescued(world) == []
    assert all_rescued(world) == [attempt.job_id]


def test_a_lease_that_somebody_resolves_is_passed_over(world: World, world_database: str) -> None:
    (attempt,) = world.running(job())
    world.lease(attempt)
    world.age()
    with psycopg.connect(world_database) as resolver:
        resolver.execute("SELECT FROM awa.leases FOR UPDATE")
        assert all_rescued(world) == []
    assert all_rescued(world) == [attempt.job_id]


def test_a_lease_without_a_receipt_is_rescued_all_the_same(world: World) -> None:
    (attempt,) = world.running(job())
    world.lease(attempt)
    world.age()
    world.run("DELETE FROM awa.lease_claim_batches")
    assert all_rescued(world) == [attempt.job_id]


def test_a_pass_takes_as_many_as_it_may_and_the_next_goes_on(world: World) -> None:
    attempts = world.running(*[job() for _ in range(12)])
    world.age()
    taken: list[int] = []
    for expected in (5, 5, 2, 0):
        some = world.within(lambda cursor: take_quiet_receipts(cursor, Stale(STALE.silence, 5)))
        assert len(some) == expected
        taken += ids(some)
    assert sorted(taken) == [attempt.job_id for attempt in attempts]


def test_the_cursor_stops_before_what_could_not_be_had(world: World, world_database: str) -> None:
    attempts = world.running(*[job() for _ in range(4)])
    world.age()
    held = attempts[2]
    with psycopg.connect(world_database) as settler:
        settler.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
            [f"awa.receipt.complete:{held.job_id}:{held.run_lease}"],
        )
        assert len(all_rescued(world)) == 3
    assert (
        world.one("SELECT rescue_cursor_job_id FROM awa.claim_ring_slots WHERE slot = 0")
        == attempts[1].job_id
    )
    assert all_rescued(world) == [held.job_id]


def test_a_scan_wraps_round(world: World) -> None:
    (attempt,) = world.running(job())
    world.age()
    world.run(
        "UPDATE awa.claim_ring_slots SET rescue_cursor_claimed_at = now(), deadline_cursor_deadline_at = now()"
    )
    assert all_rescued(world) == [attempt.job_id]


def test_receipts_of_all_slots_are_looked_at(world: World) -> None:
    from awa_django.planes.queue_storage.rings import rotate_claim_ring

    attempts: list[Attempt] = []
    for _ in range(3):
        attempts += world.running(job())
        world.within(rotate_claim_ring)
    world.age()
    assert sorted(all_rescued(world)) == [attempt.job_id for attempt in attempts]


@pytest.mark.parametrize("deadline", [timedelta(0), timedelta(hours=1)], ids=["compact", "row"])
def test_an_attempt_whose_callback_never_came_is_taken(world: World, deadline: timedelta) -> None:
    late, early = world.running(job(), job(), deadline=deadline)
    world.lease(late, state="waiting_external", callback_in="-1 minute")
    world.lease(early, state="waiting_external", callback_in="1 minute")
    (landed,) = rescued(world, unanswered, Rescued(UNANSWERED))
    assert landed.job.id == late.job_id
    assert [entry["error"] for entry in landed.job.errors] == ["callback timed out"]
    closed = "lease_claim_closures" if deadline else "lease_claim_closure_batches"
    assert world.one(f"SELECT outcome FROM awa.{closed}") == "rescue"
    assert world.one("SELECT job_id FROM awa.leases") == early.job_id
    assert all_rescued(world) == []


def test_a_unique_key_follows_a_job_out_of_its_wait(world: World) -> None:
    """The mask claims waiting and retryable, not running: the key passes on without a gap."""
    (attempt,) = world.running(job(unique_key=b"key", unique_states="00001001"))
    world.lease(attempt, state="waiting_external", callback_in="-1 minute")
    world.run("INSERT INTO awa.job_unique_claims (unique_key, job_id) VALUES ('key', %s)", attempt.job_id)
    assert all_rescued(world) == [attempt.job_id]
    assert world.one("SELECT job_id FROM awa.job_unique_claims") == attempt.job_id
