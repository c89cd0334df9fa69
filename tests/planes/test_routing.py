"""Canonical attempts that end while new jobs go to queue storage (contract: runtime/outcomes section 5)."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from awa_django.jobs import Attempt, Callback, JobInsert, Landed
from awa_django.outcomes import (
    Cancel,
    Completed,
    Failed,
    Outcome,
    RetryAfter,
    Snooze,
    Terminal,
    WaitForCallback,
)
from awa_django.planes.base import Due, Ids, Settlement, Stale
from awa_django.planes.canonical import CanonicalPlane
from awa_django.planes.queue_storage import QueueStoragePlane
from awa_django.planes.routing import RoutedPlane
from awa_django.settle import settle
from awa_django.states import JobState
from awa_django.transitions import land_one, plan, promote
from tests import moves
from tests.planes.world import World, job
from tests.workers import wait_until

VECTORS = Path(__file__).parent.parent / "contract" / "vectors" / "outcomes.json"
CASES = {case["handler"]: case for case in json.loads(VECTORS.read_text())["mixed_transition"]}

DELAY = 5000.5
KEY, MASK = b"k" * 16, "11001000"  # held while scheduled, available and retryable, not while running
NO_EXPRESSIONS = Callback(None, None)

OUTCOMES: dict[str, Outcome] = {
    "Snooze(5000.5), attempt 1": Snooze(DELAY),
    "RetryAfter(5000.5)": RetryAfter(DELAY),
    "retryable error": Failed("ValueError: boom"),
    "Cancel": Cancel("because"),
    "terminal error": Terminal("TerminalError: boom"),
    "Completed": Completed(),
    "WaitForCallback, registered before the flip": WaitForCallback(None),
    "WaitForCallback, registered after the flip": WaitForCallback(None),
    "Snooze with a registered callback": Snooze(DELAY),
    "Snooze, unique mask {scheduled, available, retryable}, newer duplicate holds the claim": Snooze(DELAY),
}


class Leaving(World):
    """A queue that is canonical when a test begins, worked on by a worker that serves the canonical tables."""

    def flip(self) -> None:
        moves.enter_mixed(self.connection)

    def register(self, attempt: Attempt) -> uuid.UUID:
        token = uuid.uuid4()
        assert self.within(
            lambda cursor: self.plane.register_callback(
                cursor, attempt, token, timedelta(hours=1), NO_EXPRESSIONS
            )
        )
        return token

    def finish(self, attempt: Attempt, outcome: Outcome, *, progress: Any = None) -> Settlement:
        return settle(self.connection, self.plane, [plan(attempt, outcome, progress=progress)])

    def land(self, attempt: Attempt, outcome: Outcome, *, progress: Any = None) -> Landed:
        (landed,) = self.finish(attempt, outcome, progress=progress).landed
        return landed

    def canonical(self, job_id: int) -> dict[str, Any] | None:
        """The canonical row of a job, and the table it is in."""
        rows = self.rows(
            "SELECT 'jobs_hot' AS place, * FROM awa.jobs_hot WHERE id = %(id)s"
            " UNION ALL SELECT 'scheduled_jobs', * FROM awa.scheduled_jobs WHERE id = %(id)s".replace(
                "%(id)s", str(job_id)
            )
        )
        return rows[0] if rows else None

    def moved(self, table: str = "deferred_jobs") -> list[dict[str, Any]]:
        return self.rows(f"SELECT *, state::text AS state FROM awa.{table} ORDER BY job_id")

    def holder(self) -> int | None:
        rows = self.rows("SELECT job_id FROM awa.job_unique_claims WHERE unique_key = %s", KEY)
        return rows[0]["job_id"] if rows else None


@pytest.fixture
def leaving(world: World) -> Leaving:
    moves.make_canonical(world.connection)
    return Leaving(world.connection, RoutedPlane())  # type: ignore[arg-type]


@pytest.mark.parametrize("handler", CASES)
def test_the_rows_of_the_contract(leaving: Leaving, handler: str) -> None:
    case = CASES[handler]
    unique = {"unique_key": KEY, "unique_states": MASK} if "unique" in handler else {}
    (attempt,) = leaving.running(job(metadata={"m": 1}, tags=("t",), **unique))
    token = leaving.register(attempt) if "before the flip" in handler else None
    leaving.flip()
    if "after the flip" in handler or "with a registered callback" in handler:
        token = leaving.register(attempt)
    newer = None
    if unique:
        newer = leaving.one(
            "SELECT id FROM awa.insert_job_compat('k', 'q', p_unique_key => %s, p_unique_states => %s::bit(8))",
            KEY,
            MASK,
        )
    before = leaving.canonical(attempt.job_id)
    assert before is not None
    leaving.run("SELECT setval('awa.job_id_seq', greatest(1000000, nextval('awa.job_id_seq')))")
    settlement = leaving.finish(attempt, OUTCOMES[handler], progress={"percent": 50})
    assert len(settlement.landed) + len(settlement.completed) == 1
    assert not settlement.stale

    if not case["new_id"]:
        assert case["result"] == "in place"
        row = leaving.canonical(attempt.job_id)
        assert row is not None
        assert (row["place"], row["state"]) == (case["to"], case["state"])
        assert row["attempt"] == case.get("attempt", 1)
        assert row["callback_id"] == (token if case.get("callback") else None)
        assert leaving.moved() == leaving.moved("done_entries") == []
        return

    assert leaving.canonical(attempt.job_id) is None
    (row,) = leaving.moved(case["to"])
    (landed,) = settlement.landed
    assert row["job_id"] == landed.job.id != attempt.job_id
    assert landed.landing.taken.pair == (attempt.job_id, attempt.run_lease)
    assert (row["state"], row["attempt"]) == (case["state"], case["attempt"])
    assert row["run_lease"] == case.get("run_lease", 1)
    assert row["attempted_at"] == before["attempted_at"]
    if row["created_at"] is not None:
        assert row["created_at"] == before["created_at"]
    assert row["payload"]["metadata"] == {"m": 1}
    assert row["payload"]["tags"] == ["t"]
    assert row["payload"]["progress"] == {"percent": 50}
    errors = row["payload"].get("errors", [])
    if case["result"] == "cancelled duplicate":
        assert landed.duplicate
        for entry, wanted in zip(errors, case["errors"], strict=True):
            entry.pop("at")
            assert entry == wanted
        assert (row["lane_seq"], row["enqueue_shard"]) == (-row["job_id"], case["enqueue_shard"])
        assert bytes(row["unique_key"]) == KEY
        assert leaving.holder() == newer
        assert leaving.rows("SELECT queue, priority FROM awa.queue_lanes") == [{"queue": "q", "priority": 2}]
        return
    assert not landed.duplicate
    assert len(errors) == case.get("errors", 0)
    assert (row["finalized_at"] is not None) == (case["finalized_at"] == "set")
    assert landed.job.run_at == row["run_at"]
    wait = row["run_at"] - landed.landing.taken.taken_at
    if "delay_product" in case:
        assert wait == timedelta(seconds=case["delay_product"])
    else:
        assert timedelta(seconds=2) <= wait <= timedelta(seconds=2.5)


def test_every_row_of_the_contract_is_covered() -> None:
    assert OUTCOMES.keys() == CASES.keys()


@pytest.mark.parametrize("outcome", [Snooze(60), RetryAfter(60), Failed("boom")])
@pytest.mark.parametrize("prepared", [False, True])
def test_until_routing_flips_a_job_that_is_put_off_keeps_its_id(
    leaving: Leaving, outcome: Outcome, prepared: bool
) -> None:
    if prepared:
        leaving.run("""SELECT awa.storage_prepare('queue_storage', '{"schema": "awa"}')""")
    (attempt,) = leaving.running(job())
    landed = leaving.land(attempt, outcome)
    assert landed.job.id == attempt.job_id
    row = leaving.canonical(attempt.job_id)
    assert row is not None
    assert row["place"] == "scheduled_jobs"
    assert leaving.moved() == []


def test_without_a_transition_row_a_job_stays_canonical(leaving: Leaving) -> None:
    (attempt,) = leaving.running(job())
    leaving.run("DELETE FROM awa.storage_transition_state")
    assert leaving.land(attempt, Snooze(60)).job.id == attempt.job_id


def test_a_move_to_a_schema_that_we_do_not_serve_leaves_jobs_canonical(leaving: Leaving) -> None:
    (attempt,) = leaving.running(job())
    leaving.flip()
    leaving.run("""UPDATE awa.storage_transition_state SET details = '{"schema": "other"}'""")
    assert leaving.land(attempt, Snooze(60)).job.id == attempt.job_id


@pytest.mark.parametrize("outcome", [Snooze(60), RetryAfter(60), Failed("boom")])
def test_an_attempt_that_was_taken_away_moves_nothing(leaving: Leaving, outcome: Outcome) -> None:
    (attempt,) = leaving.running(job())
    leaving.run("UPDATE awa.jobs_hot SET run_lease = run_lease + 1")
    leaving.flip()
    settlement = leaving.finish(attempt, outcome)
    assert [item.attempt for item in settlement.stale] == [attempt]
    assert settlement.landed == []
    assert leaving.moved() == []
    row = leaving.canonical(attempt.job_id)
    assert row is not None
    assert row["state"] == "running"


def test_an_outcome_that_moved_is_stale_when_it_is_sent_again(leaving: Leaving) -> None:
    (attempt,) = leaving.running(job())
    leaving.flip()
    leaving.land(attempt, Snooze(60))
    assert leaving.finish(attempt, Snooze(60)).stale
    assert leaving.finish(attempt, Completed()).stale
    assert len(leaving.moved()) == 1


def test_a_batch_is_divided_and_every_transition_answered(leaving: Leaving) -> None:
    attempts = leaving.running(*[job(args={"n": n}) for n in range(6)])
    token = leaving.register(attempts[3])
    leaving.register(attempts[5])
    leaving.run("UPDATE awa.jobs_hot SET run_lease = 9 WHERE id = %s", attempts[4].job_id)
    leaving.flip()
    outcomes: list[Outcome] = [
        Completed(),
        Snooze(1),
        Cancel(),
        RetryAfter(1),
        Failed("gone"),
        WaitForCallback(None),
    ]
    transitions = [plan(attempt, outcome) for attempt, outcome in zip(attempts, outcomes, strict=True)]
    settlement = settle(leaving.connection, leaving.plane, transitions)
    assert [item.attempt for item in settlement.completed] == [attempts[0]]
    assert [item.attempt for item in settlement.stale] == [attempts[4]]
    ended = {
        item.attempt.job_id: landed.job.id
        for item, landed in zip(settlement.transitions, settlement.landed, strict=True)
    }
    assert ended.keys() == {attempts[index].job_id for index in (1, 2, 3, 5)}
    stayed = {old for old, new in ended.items() if old == new}
    assert stayed == {attempts[index].job_id for index in (2, 3, 5)}
    (moved,) = leaving.moved()
    assert moved["args"] == {"n": 1}
    kept = leaving.canonical(attempts[3].job_id)
    assert kept is not None
    assert (kept["place"], kept["callback_id"]) == ("scheduled_jobs", token)


def test_the_next_claim_in_queue_storage_continues_the_numbering(leaving: Leaving) -> None:
    (attempt,) = leaving.running(job(args={"n": 7}, priority=3))
    leaving.flip()
    landed = leaving.land(attempt, RetryAfter(0))
    target = World(leaving.connection, QueueStoragePlane())
    target.within(
        lambda cursor: target.plane.place(
            cursor, [promote(item) for item in target.plane.take(cursor, Due(JobState.RETRYABLE))]
        )
    )
    (again,) = target.claim()
    assert (again.job_id, again.run_lease, again.attempt) == (landed.job.id, 2, 2)
    assert (again.args, again.lane_priority) == ({"n": 7}, 3)
    assert len(target.end([again]).completed) == 1


def test_old_errors_come_along_and_the_new_one_is_last(leaving: Leaving) -> None:
    (attempt,) = leaving.running(job())
    leaving.run(
        """UPDATE awa.jobs_hot SET errors = ARRAY['{"error": "old", "attempt": 1, "at": "x"}'::jsonb]"""
    )
    leaving.flip()
    leaving.land(attempt, Failed("new"))
    (row,) = leaving.moved()
    assert [entry["error"] for entry in row["payload"]["errors"]] == ["old", "new"]
    assert "terminal" not in row["payload"]["errors"][1]


# Unique keys


@pytest.mark.parametrize("mask", ["11111001", "11001000", "00100000"])
def test_a_unique_job_takes_its_key_along_under_its_new_id(leaving: Leaving, mask: str) -> None:
    (attempt,) = leaving.running(job(unique_key=KEY, unique_states=mask))
    leaving.flip()
    landed = leaving.land(attempt, Snooze(60))
    assert landed.job.state == "scheduled"
    assert leaving.holder() == (landed.job.id if mask[0] == "1" else None)
    (row,) = leaving.moved()
    assert (bytes(row["unique_key"]), row["unique_states"]) == (KEY, mask)


def test_a_duplicate_whose_mask_covers_cancelled_claims_its_key_no_more(leaving: Leaving) -> None:
    mask = "11001010"
    (attempt,) = leaving.running(job(unique_key=KEY, unique_states=mask))
    leaving.flip()
    newer = leaving.one(
        "SELECT id FROM awa.insert_job_compat('k', 'q', p_unique_key => %s, p_unique_states => %s::bit(8))",
        KEY,
        mask,
    )
    landed = leaving.land(attempt, Failed("boom"))
    assert landed.duplicate
    (row,) = leaving.moved("done_entries")
    assert (bytes(row["unique_key"]), row["unique_states"]) == (KEY, "11001000")
    assert [entry["error"] for entry in row["payload"]["errors"]] == [
        "boom",
        "rescheduled as duplicate: unique claim held by a newer job",
    ]
    assert row["payload"]["errors"][1]["terminal"] is True
    assert leaving.holder() == newer


def test_of_two_attempts_with_one_key_the_first_gets_it(leaving: Leaving) -> None:
    first = leaving.running(job(unique_key=KEY, unique_states=MASK))
    second = leaving.running(job(unique_key=KEY, unique_states=MASK))
    leaving.flip()
    settlement = settle(
        leaving.connection, leaving.plane, [plan(attempt, Snooze(60)) for attempt in first + second]
    )
    assert sorted(item.duplicate for item in settlement.landed) == [False, True]
    (kept,) = leaving.moved()
    assert leaving.holder() == kept["job_id"]
    assert len(leaving.moved("done_entries")) == 1


def test_a_cancelled_duplicate_is_counted_where_it_lies(leaving: Leaving) -> None:
    (attempt,) = leaving.running(job(unique_key=KEY, unique_states=MASK, queue="lonely"))
    leaving.flip()
    leaving.run("INSERT INTO awa.job_unique_claims (unique_key, job_id) VALUES (%s, 4711)", KEY)
    leaving.land(attempt, Snooze(60))
    assert leaving.rows(
        "SELECT queue, priority, enqueue_shard, terminal_delta FROM awa.queue_terminal_count_deltas"
    ) == [{"queue": "lonely", "priority": 2, "enqueue_shard": 0, "terminal_delta": 1}]
    assert leaving.rows("SELECT queue, enqueue_shard FROM awa.queue_enqueue_heads") == [
        {"queue": "lonely", "enqueue_shard": 0}
    ]


# What stays


def test_rescues_promotion_and_verbs_of_canonical_jobs_stay_canonical(leaving: Leaving) -> None:
    stale, due = leaving.running(job(), job())
    leaving.run(
        "UPDATE awa.jobs_hot SET heartbeat_at = now() - interval '1 hour' WHERE id = %s", stale.job_id
    )
    leaving.land(due, RetryAfter(0))
    leaving.flip()
    plane = leaving.plane
    (rescued,) = leaving.within(
        lambda cursor: plane.place(
            cursor,
            [land_one(item, Failed("gone")) for item in plane.take(cursor, Stale(timedelta(seconds=90)))],
        )
    )
    (promoted,) = leaving.within(
        lambda cursor: plane.place(
            cursor, [promote(item) for item in plane.take(cursor, Ids([due.job_id], [JobState.RETRYABLE]))]
        )
    )
    assert (rescued.job.id, promoted.job.id) == (stale.job_id, due.job_id)
    assert leaving.moved() == []


def test_the_routed_plane_is_the_canonical_one_to_everybody_else() -> None:
    assert isinstance(RoutedPlane(), CanonicalPlane)
    assert RoutedPlane.name == "canonical"


# Against the steps of the move


@contextmanager
def second_session(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database) as connection:
        yield connection
        connection.rollback()


def waiting(world: World) -> bool:
    return bool(
        world.rows(
            "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(work())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, answers


def test_a_job_put_off_during_an_abort_waits_for_it_and_stays_canonical(
    leaving: Leaving, world_database: str
) -> None:
    (attempt,) = leaving.running(job())
    leaving.flip()
    with (
        psycopg.connect(world_database, autocommit=True) as worker,
        second_session(world_database) as operator,
    ):
        operator.execute("SELECT awa.storage_abort()")
        thread, answers = in_thread(lambda: settle(worker, leaving.plane, [plan(attempt, Snooze(60))]))
        wait_until(lambda: waiting(leaving), what="the worker waits for the abort")
        operator.commit()
        thread.join(60)
    (settlement,) = answers
    (landed,) = settlement.landed
    assert landed.job.id == attempt.job_id
    assert leaving.moved() == []
    row = leaving.canonical(attempt.job_id)
    assert row is not None
    assert row["place"] == "scheduled_jobs"


def test_a_job_put_off_while_the_fleet_enters_waits_and_goes_to_queue_storage(
    leaving: Leaving, world_database: str
) -> None:
    (attempt,) = leaving.running(job())
    with (
        psycopg.connect(world_database, autocommit=True) as worker,
        second_session(world_database) as operator,
    ):
        moves.enter_mixed(operator)
        thread, answers = in_thread(lambda: settle(worker, leaving.plane, [plan(attempt, Snooze(60))]))
        wait_until(lambda: waiting(leaving), what="the worker waits for the flip")
        operator.commit()
        thread.join(60)
    (settlement,) = answers
    (row,) = leaving.moved()
    assert settlement.landed[0].job.id == row["job_id"]
    assert leaving.canonical(attempt.job_id) is None


def test_a_flip_waits_for_a_job_that_is_being_put_off_canonically(
    leaving: Leaving, world_database: str
) -> None:
    (attempt,) = leaving.running(job())
    leaving.run("""SELECT awa.storage_prepare('queue_storage', '{"schema": "awa"}')""")
    moves.add_runtime(leaving.connection)
    with (
        second_session(world_database) as worker,
        psycopg.connect(world_database, autocommit=True) as operator,
    ):
        with worker.cursor() as cursor:
            leaving.plane.settle(cursor, [plan(attempt, Snooze(60))])
        thread, answers = in_thread(lambda: operator.execute("SELECT awa.storage_enter_mixed_transition()"))
        wait_until(lambda: waiting(leaving), what="the flip waits for the worker")
        assert not answers
        worker.commit()
        thread.join(60)
    assert leaving.one("SELECT state FROM awa.storage_transition_state") == "mixed_transition"
    assert leaving.one("SELECT awa.canonical_live_backlog()") == 1


def test_finalize_waits_for_the_last_job_that_is_leaving(leaving: Leaving, world_database: str) -> None:
    (attempt,) = leaving.running(job())
    leaving.flip()
    with (
        second_session(world_database) as worker,
        psycopg.connect(world_database, autocommit=True) as operator,
    ):
        with worker.cursor() as cursor:
            leaving.plane.settle(cursor, [plan(attempt, Snooze(60))])
        thread, answers = in_thread(lambda: operator.execute("SELECT awa.storage_finalize()"))
        wait_until(lambda: waiting(leaving), what="finalize waits for the worker")
        assert not answers
        worker.commit()
        thread.join(60)
    assert leaving.one("SELECT state FROM awa.storage_transition_state") == "active"
    assert len(leaving.moved()) == 1


def test_a_settlement_that_is_undone_leaves_the_attempt_where_it_was(
    leaving: Leaving, world_database: str
) -> None:
    (attempt,) = leaving.running(job(unique_key=KEY, unique_states="11111001"))
    leaving.flip()
    with second_session(world_database) as worker, worker.cursor() as cursor:
        leaving.plane.settle(cursor, [plan(attempt, Snooze(60))])
    row = leaving.canonical(attempt.job_id)
    assert row is not None
    assert row["state"] == "running"
    assert leaving.moved() == []
    assert leaving.holder() == attempt.job_id
    assert leaving.land(attempt, Snooze(60)).job.id != attempt.job_id


def test_jobs_of_one_id_on_both_planes_are_told_apart(leaving: Leaving) -> None:
    (attempt,) = leaving.running(job(args={"old": True}))
    leaving.flip()
    leaving.run("SELECT setval('awa.job_id_seq', %s, false)", attempt.job_id)
    target = World(leaving.connection, QueueStoragePlane())
    (twin,) = target.running(job(args={"new": True}))
    assert (twin.job_id, twin.run_lease) == (attempt.job_id, attempt.run_lease)
    landed = leaving.land(attempt, Snooze(60))
    assert landed.job.id != twin.job_id
    assert len(target.end([twin]).completed) == 1
    (row,) = leaving.moved()
    assert row["args"] == {"old": True}


def jobs(count: int) -> list[JobInsert]:
    return [job(args={"n": n}) for n in range(count)]


def test_many_jobs_leave_at_once_and_none_is_lost(leaving: Leaving) -> None:
    attempts = leaving.running(*jobs(200))
    leaving.flip()
    settle(leaving.connection, leaving.plane, [plan(attempt, Snooze(60)) for attempt in attempts])
    assert sorted(row["args"]["n"] for row in leaving.moved()) == list(range(200))
    assert leaving.one("SELECT awa.canonical_live_backlog()") == 0
