"""Every rescue that was recorded from a reference leader, done by ours (contract: queue-storage/rescue, hazards).

The whole duty runs, not its parts. Where the recording shows a defect of the reference, the case says what is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from awa_django.maintenance import Context, rescue
from awa_django.states import JobState
from tests.invariants import violated
from tests.planes.rows import rows_of_jobs
from tests.planes.world import World, job
from tests.vectors import load

RECORDED = {case["case"]: case["effects"] for case in load("queue-storage/rescue-effects")["cases"]}
HAZARDS = {
    case["case"]: case["effects"] for case in load("queue-storage/hazards")["cases"] if "effects" in case
}

#: Ids, places, and a mark that nobody reads.
UNCOMPARED = ("job_id", "lane_seq", "receipt_id", "batch_id", "counter_bucket", "materialized_at")


@dataclass(frozen=True)
class Case:
    """One recorded case: which job of the recording is meant, and what had happened to it before.

    ``lease`` is the state of the lease it held beside its receipt. ``once`` says that the recording ends the job a
    second time, which is not to be (H-02). ``mask`` gives it a unique key that a newer job holds by now.
    """

    name: str
    recorded_id: int
    row: bool = False
    lease: str | None = None
    resumed: bool = False
    deadline_passed: bool = False
    max_attempts: int = 25
    mask: str | None = None
    progress: Any = None
    once: bool = False
    hazard: bool = False

    @property
    def effects(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        found: dict[str, dict[str, list[dict[str, Any]]]] = (HAZARDS if self.hazard else RECORDED)[self.name]
        return found

    def added(self, table: str) -> list[dict[str, Any]]:
        rows = self.effects.get(table, {}).get("added", [])
        return [row for row in rows if row.get("job_id") == self.recorded_id]


CASES = [
    Case("rescue stale compact receipt", 1),
    Case("rescue stale row receipt", 2, row=True),
    Case("stale heartbeat with progress rescued", 4, progress={"percent": 5}),
    Case("rescue stale receipt at max_attempts", 5, max_attempts=1),
    Case("stale running lease after resume (shows H-02: the attempt is processed twice)", 8, lease="running",
         resumed=True, once=True),
    Case("stale receipt with unique conflict; two timed-out callbacks of earlier cases are rescued in the same run "
         "(attempts left: deferred; exhausted: failed)", 9, mask="01011000"),
    Case("stale receipt with unique conflict; two timed-out callbacks of earlier cases are rescued in the same run "
         "(attempts left: deferred; exhausted: failed)", 6, lease="waiting_external"),
    Case("stale receipt with unique conflict; two timed-out callbacks of earlier cases are rescued in the same run "
         "(attempts left: deferred; exhausted: failed)", 7, lease="waiting_external", max_attempts=1),
    Case("rescue with unique conflict, mask claims cancelled too", 11, mask="01011010"),
    Case("rescue expired deadline row receipt", 1, row=True, deadline_passed=True),
    Case("rescue callback timeout (attempts left)", 2, lease="waiting_external"),
    Case("rescue callback timeout (exhausted)", 3, lease="waiting_external", max_attempts=1),
    Case("rescue callback timeout (exhausted, row claim)", 4, row=True, lease="waiting_external", max_attempts=1),
    Case("rescue expired deadline on running lease (row claim)", 5, row=True, lease="running", resumed=True,
         deadline_passed=True),
    Case("rescue stale running lease (row claim)", 6, row=True, lease="running", resumed=True, once=True),
    Case("rescue stale running lease (compact claim)", 7, lease="running", resumed=True, once=True),
    Case("rescue stale running lease after resume", 8, lease="running", resumed=True, once=True, hazard=True),
]  # fmt: skip


def test_every_recorded_case_is_here() -> None:
    assert {case.name for case in CASES if not case.hazard} == RECORDED.keys()


def stored(world: World, job_id: int) -> dict[str, list[dict[str, Any]]]:
    found = rows_of_jobs(world.connection).get(job_id, {})
    return {table: comparable(rows) for table, rows in found.items()}


def comparable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in UNCOMPARED} for row in rows]


def run_all(context: Context, world: World) -> None:
    for duty in rescue.duties(context.settings, world.plane):
        duty.run(context)


def prepared(world: World, case: Case) -> int:
    """A job as the recorded one stood before the rescue; its id."""
    wanted = (case.added("deferred_jobs") or case.added("done_entries"))[0]
    unique: dict[str, Any] = {} if case.mask is None else {"unique_key": b"key", "unique_states": case.mask}
    (attempt,) = world.running(
        job(queue="adm", args=wanted["args"] or {}, max_attempts=case.max_attempts, **unique),
        deadline=timedelta(minutes=5) if case.row else timedelta(0),
    )
    if case.mask is not None:
        world.enqueue(job(queue="adm", **unique))
    if case.progress is not None:
        world.beat(attempt, case.progress)
    if case.lease is not None:
        callback_in = "-1 second" if case.lease == "waiting_external" else None
        deadline = "5 minutes" if case.deadline_passed else None
        world.lease(attempt, state=case.lease, deadline=deadline, callback_in=callback_in)
    if case.resumed:
        world.run(
            "INSERT INTO awa.attempt_state (job_id, run_lease, callback_result, updated_at)"
            """ VALUES (%s, %s, '{"z": 1}', now())""",
            attempt.job_id, attempt.run_lease,
        )  # fmt: skip
    world.age("6 minutes" if case.deadline_passed or not case.row else "3 minutes")
    if case.deadline_passed:
        world.beat(attempt)
    return attempt.job_id


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.name[:50]} {case.recorded_id}{case.hazard or ''}"
)
def test_a_rescue_leaves_the_rows_that_the_real_leader_leaves(
    world: World, context: Context, case: Case
) -> None:
    job_id = prepared(world, case)
    run_all(context, world)
    found = stored(world, job_id)
    deferred = comparable(case.added("deferred_jobs"))
    ended = [] if case.once else comparable(case.added("done_entries"))
    assert found.get("deferred_jobs", []) == deferred
    assert found.get("done_entries", []) == ended
    assert not {"leases", "attempt_state", "dlq_entries"} & found.keys()
    closed = "lease_claim_closures" if case.row else "lease_claim_closure_batches (item)"
    (closure,) = found[closed]
    if case.once:
        assert closure["outcome"] == "rescue"
    else:
        table = "lease_claim_closures" if case.row else "lease_claim_closure_batches"
        outcomes = {row["outcome"] for row in case.effects[table]["added"]}
        assert closure["outcome"] in outcomes
        assert closure["outcome"] == ("rescue" if case.lease else sorted(outcomes)[-1])
    if case.row:
        assert found["lease_claims"] == comparable(case.added("lease_claims"))
    assert violated(world.connection) == []


def test_a_deadline_that_passes_while_a_callback_is_registered_ends_the_attempt_once_and_keeps_its_key(
    world: World, context: Context
) -> None:
    """H-02: the reference writes a cancelled row beside the deferred one, and the key is free."""
    case = Case("deadline expires while a callback is registered, unique job", 6, row=True, hazard=True)
    assert case.added("done_entries"), "the recording shows the defect"
    unique: dict[str, Any] = {"unique_key": b"D" * 16, "unique_states": "11111000"}
    (attempt,) = world.running(
        job(queue="adm", args={"do": "cb_sleep"}, **unique), deadline=timedelta(minutes=5)
    )
    world.lease(attempt, deadline="5 minutes", callback_in="1 hour")
    world.age("6 minutes")
    world.beat(attempt)
    run_all(context, world)
    found = stored(world, attempt.job_id)
    assert found["deferred_jobs"] == comparable(case.added("deferred_jobs"))
    assert "done_entries" not in found
    assert world.rows("SELECT job_id FROM awa.job_unique_claims") == [{"job_id": attempt.job_id}]
    assert violated(world.connection) == []


def test_an_attempt_that_was_just_resumed_is_not_stale_whatever_it_beat_before_it_waited(
    world: World, context: Context
) -> None:
    """H-20: the heartbeat from before the wait outranks that of the lease, so resuming renews it."""
    case = Case("rescue right after a resume, attempt heartbeat older than the staleness", 2, hazard=True)
    assert case.added("deferred_jobs"), "the recording shows the defect"
    (attempt,) = world.running(job())
    world.beat(attempt, {"percent": 1})
    world.lease(attempt, state="waiting_external", callback_in="1 hour")
    world.run("UPDATE awa.leases SET callback_id = gen_random_uuid(), heartbeat_at = NULL")
    world.age()
    token = world.one("SELECT callback_id FROM awa.leases")

    def answer(cursor: Any) -> None:
        pending = world.plane.find_callback(cursor, token, None, list(JobState))
        assert pending is not None
        world.plane.resume(cursor, pending, {"z": 1})

    world.within(answer)
    run_all(context, world)
    assert world.one("SELECT state::text FROM awa.leases") == "running"
    assert world.one("SELECT count(*) FROM awa.deferred_jobs") == 0
