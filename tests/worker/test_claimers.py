"""Claimer slots: how many loops of the fleet claim from a queue at once.

Time stands still in these tests, in the database and in the loops, until one lets some of it pass.
"""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest

from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.worker.claimers import FRESH_SECONDS, RENEW_SECONDS, Claimer
from tests.planes.world import World, job


def stop_the_clock(world: World) -> None:
    """Have the statements of this session that say ``clock_timestamp()`` read one that stands still."""
    world.run("CREATE SCHEMA IF NOT EXISTS stopped")
    world.run(
        """
        CREATE OR REPLACE FUNCTION stopped.clock_timestamp() RETURNS timestamptz LANGUAGE sql
        RETURN current_setting('stopped.at')::timestamptz
        """
    )
    world.run("SET stopped.at = '2030-01-01 00:00:00+00'")
    world.run("SET search_path = stopped, pg_catalog")


@pytest.fixture(autouse=True)
def _still(world: World) -> None:
    stop_the_clock(world)


def let_pass(world: World, milliseconds: int) -> None:
    """Let time pass in the database."""
    world.run(
        "SELECT set_config('stopped.at', (clock_timestamp() + %s * interval '1 millisecond')::text, false)",
        milliseconds,
    )


class Loop:
    """One loop of the fleet, with a clock of its own that stands still."""

    def __init__(self, world: World, *, most: int = 4, queue: str = "q") -> None:
        self.world = world
        self.now = 1000.0
        self.claimer = Claimer(queue, uuid.uuid4(), most=most, clock=lambda: self.now)

    def may_claim(self) -> bool:
        with self.world.connection.cursor() as cursor:
            return self.claimer.may_claim(cursor)

    def claimed(self) -> None:
        with self.world.connection.cursor() as cursor:
            self.claimer.claimed(cursor)

    def leave(self) -> None:
        with self.world.connection.cursor() as cursor:
            self.claimer.leave(cursor)

    def forget(self) -> None:
        """Let its slot be too old to be sure of."""
        self.now += FRESH_SECONDS


def leases(world: World) -> list[dict[str, Any]]:
    return world.rows("SELECT * FROM awa.queue_claimer_leases ORDER BY claimer_slot")


def target(world: World) -> int | None:
    rows = world.rows("SELECT target_claimers FROM awa.queue_claimer_state WHERE queue = 'q'")
    return rows[0]["target_claimers"] if rows else None


def set_target(world: World, number: int, *, milliseconds_ago: int = 500) -> None:
    world.run(
        """
        INSERT INTO awa.queue_claimer_state (queue, target_claimers, updated_at)
        VALUES ('q', %s, clock_timestamp() - %s * interval '1 millisecond')
        """,
        number,
        milliseconds_ago,
    )


def backlog(world: World, number: int) -> None:
    world.enqueue(*(job(priority=1 + n % 4) for n in range(number)))


# One slot ------------------------------------------------------------------------------------------------------


def test_while_little_waits_one_loop_claims_for_all(world: World) -> None:
    backlog(world, 3)
    one, two = Loop(world), Loop(world)
    assert one.may_claim()
    assert not two.may_claim()
    assert two.claimer.backlog == 3
    assert two.claimer.slot is None
    (lease,) = leases(world)
    assert (lease["queue"], lease["claimer_slot"], lease["lease_epoch"]) == ("q", 0, 0)
    assert lease["owner_instance_id"] == one.claimer.owner
    assert (lease["expires_at"] - lease["leased_at"]).total_seconds() == 3
    assert lease["leased_at"] == lease["last_claimed_at"]
    assert target(world) is None, "one claimer is what everybody takes for granted"


def test_nothing_is_written_while_nothing_waits(world: World) -> None:
    backlog(world, 40)
    world.claim(limit=100)
    loop = Loop(world)
    for _ in range(3):
        assert not loop.may_claim()
    assert loop.claimer.backlog == 0
    assert leases(world) == []
    assert target(world) is None


def test_nothing_waits_on_a_queue_that_was_never_used_or_is_paused(world: World) -> None:
    assert not Loop(world, queue="unheard-of").may_claim()
    backlog(world, 5)
    world.run("INSERT INTO awa.queue_meta (queue, paused) VALUES ('q', true)")
    loop = Loop(world)
    assert not loop.may_claim()
    assert loop.claimer.backlog == 0
    assert leases(world) == []


def test_behind_a_pooler_it_is_the_same(world: World) -> None:
    world.connection.prepare_threshold = None
    backlog(world, 2)
    one, two = Loop(world), Loop(world)
    assert one.may_claim()
    assert not two.may_claim()
    assert two.claimer.backlog == 2
    world.claim()
    one.forget()
    for loop in (one, two):
        assert not loop.may_claim()
        assert loop.claimer.backlog == 0


def test_a_fresh_slot_costs_no_statement(world: World) -> None:
    backlog(world, 1)
    loop = Loop(world)
    assert loop.may_claim()
    world.run("DELETE FROM awa.queue_claimer_leases")
    assert loop.may_claim(), "it does not ask"
    loop.now += FRESH_SECONDS * 0.99
    assert loop.may_claim()
    loop.claimed()
    assert len(leases(world)) == 1, "asked and opened again"


def test_a_slot_is_renewed_after_half_of_its_time_and_keeps_its_epoch(world: World) -> None:
    backlog(world, 1)
    loop = Loop(world)
    assert loop.may_claim()
    let_pass(world, 300)
    (before,) = leases(world)
    loop.now += RENEW_SECONDS * 0.9
    loop.claimed()
    assert leases(world) == [before]
    loop.now += RENEW_SECONDS * 0.2
    world.claim()  # nothing waits any more, and yet something was claimed
    loop.claimed()
    (after,) = leases(world)
    assert after["last_claimed_at"] > before["last_claimed_at"]
    assert after["expires_at"] > before["expires_at"]
    assert (after["leased_at"], after["lease_epoch"]) == (before["leased_at"], before["lease_epoch"])
    assert loop.claimer.slot == 0


def test_a_loop_that_comes_back_to_its_own_slot_keeps_the_epoch(world: World) -> None:
    backlog(world, 1)
    loop = Loop(world)
    for _ in range(3):
        assert loop.may_claim()
        loop.forget()
        let_pass(world, 60_000)
    (lease,) = leases(world)
    assert lease["lease_epoch"] == 0


def test_a_slot_without_a_claim_for_half_a_second_goes_to_another_loop(world: World) -> None:
    backlog(world, 1)
    one, two = Loop(world), Loop(world)
    assert one.may_claim()
    let_pass(world, 499)
    assert not two.may_claim()
    let_pass(world, 1)
    assert two.may_claim()
    (lease,) = leases(world)
    assert (lease["owner_instance_id"], lease["lease_epoch"]) == (two.claimer.owner, 1)
    one.forget()
    assert not one.may_claim()
    one.claimed()
    assert leases(world) == [lease]


def test_a_slot_that_expired_goes_to_another_loop_though_it_was_used(world: World) -> None:
    backlog(world, 1)
    one, two = Loop(world), Loop(world)
    assert one.may_claim()
    world.run("UPDATE awa.queue_claimer_leases SET last_claimed_at = clock_timestamp() + interval '1 hour'")
    let_pass(world, 2999)
    assert not two.may_claim()
    let_pass(world, 1)
    assert two.may_claim()


def test_a_slot_that_was_given_up_goes_to_another_loop_at_once(world: World) -> None:
    backlog(world, 1)
    one, two = Loop(world), Loop(world)
    assert one.may_claim()
    assert not two.may_claim()
    one.leave()
    assert one.claimer.slot is None
    assert two.may_claim()
    # Leaving twice, or leaving what is another loop's by now, changes nothing.
    before = leases(world)
    one.leave()
    assert leases(world) == before


def test_a_slot_that_somebody_took_is_not_given_up_in_their_name(world: World) -> None:
    backlog(world, 1)
    one, two = Loop(world), Loop(world)
    assert one.may_claim()
    let_pass(world, 1000)
    assert two.may_claim()
    before = leases(world)
    one.leave()  # its own clock says that the slot is fresh
    assert leases(world) == before


def test_a_slot_that_another_loop_just_takes_is_passed_over(world: World, world_database: str) -> None:
    backlog(world, 1)
    one, two = Loop(world), Loop(world)
    assert one.may_claim()
    let_pass(world, 1000)
    with psycopg.connect(world_database) as other:
        other.execute("SELECT FROM awa.queue_claimer_leases FOR UPDATE")
        assert not two.may_claim()
    assert two.may_claim()


# How many ------------------------------------------------------------------------------------------------------

TABLE = [
    *[(1, waiting, expected) for waiting, expected in [(1, 1), (3, 1), (4, 2), (31, 2), (32, 4), (99, 4)]],
    *[(2, waiting, expected) for waiting, expected in [(1, 1), (2, 2), (63, 2), (64, 4)]],
    *[(3, waiting, expected) for waiting, expected in [(1, 1), (2, 2), (64, 4)]],
    *[(4, waiting, expected) for waiting, expected in [(1, 1), (3, 1), (4, 2), (15, 2), (16, 4)]],
]


@pytest.mark.parametrize(("present", "waiting", "expected"), TABLE)
def test_the_number_of_slots_follows_the_backlog(
    world: World, present: int, waiting: int, expected: int
) -> None:
    backlog(world, waiting)
    set_target(world, present)
    loops = [Loop(world) for _ in range(6)]
    assert sum(loop.may_claim() for loop in loops) == expected
    assert target(world) == expected
    assert sorted(lease["claimer_slot"] for lease in leases(world)) == list(range(expected))


def test_the_number_of_slots_changes_every_half_second_at_most(world: World) -> None:
    backlog(world, 100)
    set_target(world, 1, milliseconds_ago=499)
    assert [Loop(world).may_claim(), Loop(world).may_claim()] == [True, False]
    assert target(world) == 1
    let_pass(world, 1)
    assert Loop(world).may_claim()
    assert target(world) == 4


@pytest.mark.parametrize(("most", "expected"), [(1, 1), (2, 2), (3, 3), (4, 4), (9, 4)])
def test_the_maximum_lowers_the_number_of_slots(world: World, most: int, expected: int) -> None:
    backlog(world, 100)
    assert sum(Loop(world, most=most).may_claim() for _ in range(10)) == expected


def test_a_loop_on_a_slot_that_is_no_longer_there_stops_claiming(world: World) -> None:
    backlog(world, 40)
    one, two = Loop(world), Loop(world)
    assert one.may_claim()
    assert two.may_claim()
    world.claim(limit=39)
    let_pass(world, 500)
    for loop in (one, two):
        loop.now += 0.3
        loop.claimed()
    assert target(world) == 1
    assert sorted([one.claimer.slot is None, two.claimer.slot is None]) == [False, True]


def test_each_queue_counts_for_itself(world: World) -> None:
    backlog(world, 1)
    world.enqueue(job(queue="other"))
    assert Loop(world).may_claim()
    assert Loop(world, queue="other").may_claim()
    assert {lease["queue"] for lease in leases(world)} == {"q", "other"}


def test_on_a_schema_that_the_awa_client_made_it_is_the_same(oracle_database: str) -> None:
    with psycopg.connect(oracle_database, autocommit=True) as connection:
        connection.execute("SELECT awa.storage_auto_finalize_if_fresh('awa')")
        world = World(connection, QueueStoragePlane())
        stop_the_clock(world)
        backlog(world, 5)
        assert [Loop(world).may_claim() for _ in range(3)] == [True, True, False]
        assert target(world) == 2
