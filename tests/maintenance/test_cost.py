"""What a pass of the leader costs where there is much: figures that grow with the work, not with its square."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from awa_django.sql import statement
from tests.planes.world import World, job

MANY = 300


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def executed(world: World, name: str, **values: Any) -> dict[str, Any]:
    """The plan of a statement with what it really did; its changes are undone."""
    subject, _, name = name.rpartition("/")
    text = "EXPLAIN (ANALYZE, FORMAT JSON) " + statement(subject, name)
    with world.connection.transaction(force_rollback=True):
        world.run("SET LOCAL plan_cache_mode = force_generic_plan")
        row = world.connection.execute(text, values, prepare=True).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def unnested(plan: dict[str, Any]) -> int:
    """How often batches of receipts were unnested."""
    found = [node for node in nodes(plan) if node.get("Alias") == "entry"]
    assert found, "the plan unnests nothing"
    return sum(int(node["Actual Loops"]) for node in found)


def test_closing_many_receipts_of_one_batch_unnests_it_once(world: World) -> None:
    attempts = world.running(*[job() for _ in range(MANY)])
    assert len({attempt.batch_id for attempt in attempts}) == 1
    plan = executed(
        world,
        "queue_storage/settle/take_receipts",
        claim_slots=[attempt.claim_slot for attempt in attempts],
        job_ids=[attempt.job_id for attempt in attempts],
        run_leases=[attempt.run_lease for attempt in attempts],
        receipt_ids=[attempt.receipt_id for attempt in attempts],
        batch_ids=[attempt.batch_id for attempt in attempts],
        labels=["rescued"] * MANY,
    )
    assert plan["Actual Rows"] == MANY
    assert unnested(plan) == 1


def test_finding_the_receipts_of_many_leases_unnests_each_batch_once(world: World) -> None:
    attempts = world.running(*[job() for _ in range(MANY)])
    for attempt in attempts:
        world.lease(attempt)
    plan = executed(
        world,
        "queue_storage/rescue/receipts_of_leases",
        job_ids=[attempt.job_id for attempt in attempts],
        run_leases=[attempt.run_lease for attempt in attempts],
    )
    assert plan["Actual Rows"] == MANY
    assert unnested(plan) == 1
