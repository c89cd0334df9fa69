"""The rows of callbacks on queue storage, against what the real awa client leaves (vector callback-effects.json)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from awa_django.jobs import Attempt, Callback, Landed
from awa_django.outcomes import CallbackFailed, CallbackRetried, Completed, Outcome, WaitForCallback
from awa_django.planes.base import Answered, Cursor
from awa_django.states import JobState
from awa_django.transitions import RULES, land_one
from tests.planes.rows import normal
from tests.planes.world import World, job

VECTORS = Path(__file__).parent.parent / "contract" / "vectors" / "queue-storage"
CASES = {case["case"]: case for case in json.loads((VECTORS / "callback-effects.json").read_text())["cases"]}
TABLES = (
    "attempt_state",
    "done_entries",
    "lease_claim_closure_batches",
    "lease_claim_closures",
    "lease_claims",
    "leases",
    "queue_terminal_count_deltas",
    "ready_entries",
)
#: Ids and places differ from run to run; segments and their like are not in the vectors.
PLACES = {
    "job_id", "lane_seq", "receipt_id", "batch_id", "receipt_ids", "receipt_ranges", "counter_bucket", "enqueued_at",
    "inserted_at", "recorded_at",
}  # fmt: skip
NONE = Callback(None, None)

Change = Callable[[World, UUID], None]


def parked(world: World, *, row: bool) -> UUID:
    """A job that waits, and its token."""
    (attempt,) = world.running(
        job(queue="adm", args={"do": "cb_wait"}), deadline=timedelta(minutes=5) if row else timedelta(0)
    )
    token = uuid4()
    assert registered(world, attempt, token)
    assert not world.end([attempt], WaitForCallback(token)).stale
    return token


def registered(world: World, attempt: Attempt, token: UUID, expressions: Callback = NONE) -> bool:
    return world.within(
        lambda cursor: world.plane.register_callback(cursor, attempt, token, timedelta(hours=1), expressions)
    )


def resolve(world: World, token: UUID, outcome: Outcome, *states: JobState) -> list[Landed]:
    """What the client does with an outcome."""
    guard = Answered(token, closes=RULES[type(outcome)].closes)
    if states:
        guard = Answered(token, states=states, closes=RULES[type(outcome)].closes)

    def work(cursor: Cursor) -> list[Landed]:
        taken = world.plane.take(cursor, guard)
        return world.plane.place(cursor, [land_one(item, outcome) for item in taken])

    return world.within(work)


def found_and(world: World, token: UUID, act: Callable[[Cursor, Any], None]) -> None:
    def work(cursor: Cursor) -> None:
        pending = world.plane.find_callback(cursor, token, None, list(JobState))
        assert pending is not None
        act(cursor, pending)

    world.within(work)


def extend(world: World, token: UUID) -> None:
    found_and(
        world, token, lambda cursor, found: world.plane.extend_callback(cursor, found, timedelta(hours=1))
    )


def resume(world: World, token: UUID) -> None:
    found_and(world, token, lambda cursor, found: world.plane.resume(cursor, found, {"r": 2}))


CHANGES: dict[str, Change] = {
    "heartbeat_callback waiting": extend,
    "complete_external waiting": lambda world, token: applied(resolve(world, token, Completed())),
    "complete_external unknown": lambda world, token: missed(resolve(world, uuid4(), Completed())),
    "fail_external waiting": lambda world, token: applied(
        resolve(world, token, CallbackFailed("ext failed"))
    ),
    "retry_external waiting": lambda world, token: applied(resolve(world, token, CallbackRetried())),
    "resume_external waiting": resume,
}


def applied(landed: list[Landed]) -> None:
    assert len(landed) == 1


def missed(landed: list[Landed]) -> None:
    assert landed == []


def snapshot(world: World) -> dict[str, list[dict[str, Any]]]:
    return {table: world.rows(f"SELECT * FROM awa.{table}") for table in TABLES}


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in shown(row).items() if key not in PLACES} for row in rows]


def shown(row: dict[str, Any]) -> dict[str, Any]:
    row = normal(row)
    if row.get("callback_id"):
        row["callback_id"] = "<uuid>"
    return row


@pytest.mark.parametrize("shape", ["compact", "row"])
@pytest.mark.parametrize("name", CHANGES)
def test_each_resolution_leaves_the_rows_that_the_real_client_leaves(
    world: World, name: str, shape: str
) -> None:
    case = CASES[f"{name} ({shape})"]
    token = parked(world, row=shape == "row")
    world.run('LISTEN "awa:adm"')
    before = snapshot(world)
    CHANGES[name](world, token)
    after = snapshot(world)
    # A session hears its own notifications with the end of the transaction that sent them.
    heard = [[item.channel, item.payload] for item in world.connection.notifies(timeout=0)]
    assert heard == case["notify"]
    for table in TABLES:
        effects = case["effects"].get(table, {})
        for side, these, those in (("added", after, before), ("removed", before, after)):
            changed = [row for row in these[table] if row not in those[table]]
            wanted = [
                {key: value for key, value in row.items() if key not in PLACES}
                for row in effects.get(side, [])
            ]
            assert comparable(changed) == wanted, (table, side)


def test_a_key_that_a_reference_client_left_with_a_waiting_job_is_let_go_at_its_end(world: World) -> None:
    key = b"0123456789abcdef"
    (attempt,) = world.running(job(unique_key=key, unique_states="11101000"))
    token = uuid4()
    assert registered(world, attempt, token)
    assert world.end([attempt], WaitForCallback(token)).landed
    assert world.rows("SELECT * FROM awa.job_unique_claims") == [], "ours follows the job into its wait"
    # A reference client does not, though this mask does not claim the key there.
    world.run("INSERT INTO awa.job_unique_claims (unique_key, job_id) VALUES (%s, %s)", key, attempt.job_id)
    applied(resolve(world, token, Completed()))
    assert world.rows("SELECT * FROM awa.job_unique_claims") == []


def test_the_row_of_an_attempt_goes_with_the_last_thing_that_was_in_it(world: World) -> None:
    judged = NONE._replace(filter="payload.a")
    (attempt,) = world.running(job())
    registered(world, attempt, uuid4(), judged)
    assert len(world.rows("SELECT * FROM awa.attempt_state")) == 1
    registered(world, attempt, uuid4())
    assert world.rows("SELECT * FROM awa.attempt_state") == []
    token = uuid4()
    registered(world, attempt, token, judged)
    resume(world, token)
    (row,) = world.rows("SELECT callback_filter, callback_result FROM awa.attempt_state")
    assert row == {"callback_filter": None, "callback_result": {"r": 2}}
    world.within(lambda cursor: world.plane.consume_result(cursor, attempt))
    assert world.rows("SELECT * FROM awa.attempt_state") == []
    world.beat(attempt)
    registered(world, attempt, uuid4(), judged)
    registered(world, attempt, uuid4())
    (row,) = world.rows("SELECT callback_filter, heartbeat_at FROM awa.attempt_state")
    assert row["callback_filter"] is None
    assert row["heartbeat_at"] is not None
