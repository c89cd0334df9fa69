"""The view awa.jobs over queue storage, and the deletion of one job (contract: queue-storage/admin, 5 to 7).

The states are made by a real worker, the same way on our schema and on the one the awa client installs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import errors

from tests.schema import queue_storage
from tests.schema.queue_storage import Row, Store, awa_worker, vectors

pytestmark = [pytest.mark.interop, pytest.mark.worker]

DELETIONS = {
    case["case"]: case for case in vectors("admin-effects")["cases"] if case["case"].startswith("DELETE")
}
#: What the vectors record of the plane. Segments, lane registry and enqueue heads are left out there too.
TABLES = (
    "ready_entries", "ready_tombstones", "ready_claim_attempt_batches", "lease_claims", "lease_claim_batches",
    "lease_claim_closures", "lease_claim_closure_batches", "leases", "attempt_state", "deferred_jobs", "done_entries",
    "receipt_completion_batches", "receipt_completion_tombstones", "queue_terminal_count_deltas", "dlq_entries",
    "job_unique_claims",
)  # fmt: skip
COLUMNS = (
    "id, kind, queue, args, state, priority, attempt, max_attempts, errors, metadata, tags, unique_key, "
    "unique_states, run_lease, progress, callback_filter, callback_on_complete, callback_on_fail, "
    "callback_transform, run_at IS NOT NULL AS run_at, heartbeat_at IS NOT NULL AS heartbeat_at, "
    "deadline_at IS NOT NULL AS deadline_at, attempted_at IS NOT NULL AS attempted_at, "
    "finalized_at IS NOT NULL AS finalized_at, created_at IS NOT NULL AS created_at, "
    "callback_id IS NOT NULL AS callback_id, callback_timeout_at IS NOT NULL AS callback_timeout_at"
)


@pytest.fixture
def store(emptied_database: str) -> Iterator[Store]:
    with queue_storage.store(emptied_database) as opened:
        yield opened


@pytest.fixture
def fresh(awa_database: str) -> Iterator[Store]:
    """One in which job ids begin at 1."""
    with queue_storage.store(awa_database) as opened:
        yield opened


async def do(job: Any) -> Any:
    """A handler that ends its attempt as the job's arguments say."""
    import awa

    match job.args["do"]:
        case "fail":
            raise awa.TerminalError("boom-terminal")
        case "retry":
            job.set_progress(40, "nearly")
            await job.flush_progress()
            return awa.RetryAfter(3600)
        case "snooze":
            return awa.Snooze(3600)
        case "cancel":
            return awa.Cancel("no")
        case "wait":
            token = await job.register_callback(
                timeout_seconds=600, filter="payload.ok", on_complete="payload.x"
            )
            return awa.WaitForCallback(token)
        case "hang":
            while not job.is_cancelled():
                await asyncio.sleep(0.01)
    return None


def enqueue(store: Store, what: str, arguments: str = "", queue: str = "adm") -> int:
    return int(
        store.value(
            f"SELECT (awa.insert_job_compat('k', %(queue)s, %(args)s::jsonb{arguments})).id",
            queue=queue,
            args=json.dumps({"do": what}),
        )
    )


def state(store: Store, job: int) -> str | None:
    rows = store.rows("SELECT state::text FROM awa.jobs WHERE id = %(id)s", id=job)
    return rows[0]["state"] if rows else None


def reach(store: Store, wanted: dict[int, str], **worker: Any) -> None:
    """Run a real worker until the jobs are where they should be; it stays no longer than that."""

    async def scenario() -> None:
        async with awa_worker(
            store.url, "adm", {"k": do}, queue_options={"deadline_duration_ms": 0} | worker
        ):
            give_up = time.monotonic() + queue_storage.LIMIT
            while {job: await asyncio.to_thread(state, store, job) for job in wanted} != wanted:
                assert time.monotonic() < give_up, {job: state(store, job) for job in wanted}
                await asyncio.sleep(0.01)

    asyncio.run(scenario())


def everything(store: Store) -> dict[str, list[Row]]:
    return {table: store.rows(f"SELECT to_jsonb(t) AS row FROM awa.{table} AS t") for table in TABLES}


def effects(before: dict[str, list[Row]], after: dict[str, list[Row]]) -> dict[str, dict[str, list[Any]]]:
    """What changed between two dumps, in the form of the vectors."""
    found: dict[str, dict[str, list[Any]]] = {}
    for table in TABLES:
        was, now = [r["row"] for r in before[table]], [r["row"] for r in after[table]]
        changes = {
            "added": [mask(row) for row in now if row not in was],
            "removed": [mask(row) for row in was if row not in now],
        }
        if any(changes.values()):
            found[table] = {side: rows for side, rows in changes.items() if rows}
    return found


def mask(row: Row) -> Row:
    """A row with its times and tokens replaced, as the vectors have them."""

    def masked(name: str, value: Any) -> Any:
        if name == "payload" and value is not None:
            return payload(value)
        if value is None or isinstance(value, dict | list):
            return value
        if name.endswith("_at"):
            return "<ts>"
        return "<uuid>" if name == "callback_id" else value

    return {name: masked(name, value) for name, value in row.items() if name != "recorded_at"}


def payload(value: Row) -> Row:
    """A payload with the texts of its errors down to their first lines."""
    errors_ = [
        {key: "<ts>" if key == "at" else str(text).splitlines()[0] if key == "error" else text
         for key, text in entry.items()}
        for entry in value.get("errors", [])
    ]  # fmt: skip
    return value | ({"errors": errors_} if "errors" in value else {})


def delete(store: Store, job: int) -> tuple[int, dict[str, Any]]:
    """Delete a job through the view; how many rows that were, and what it did."""
    before = everything(store)
    rows = store.rows("DELETE FROM awa.jobs WHERE id = %(id)s RETURNING id", id=job)
    return len(rows), effects(before, everything(store))


def test_deletions_have_the_recorded_effects(fresh: Store) -> None:
    def recorded(case: str) -> dict[str, Any]:
        found: dict[str, Any] = DELETIONS[f"DELETE awa.jobs {case}"]["effects"]
        return found

    available = enqueue(fresh, "ok")
    assert delete(fresh, available) == (1, recorded("available"))
    scheduled = enqueue(fresh, "ok", ", p_state => 'scheduled', p_run_at => now() + interval '1 hour'")
    assert delete(fresh, scheduled) == (1, recorded("scheduled"))
    failed = enqueue(fresh, "fail")
    reach(fresh, {failed: "failed"})
    assert delete(fresh, failed) == (1, recorded("failed"))
    completed = enqueue(fresh, "ok")
    reach(fresh, {completed: "completed"})
    assert delete(fresh, completed) == (1, recorded("completed (compact)"))
    waiting = enqueue(fresh, "wait")
    reach(fresh, {waiting: "waiting_external"})
    count, done = delete(fresh, waiting)
    # Beyond the recorded effects: the receipt is closed, or a rescue would revive the job (H-09).
    [closure] = done.pop("lease_claim_closure_batches")["added"]
    assert (closure["outcome"], closure["closed_count"]) == ("cancelled", 1)
    [state_row] = done.pop("attempt_state")["removed"]
    assert (state_row["job_id"], state_row["callback_filter"]) == (waiting, "payload.ok")
    assert (count, done) == (1, recorded("waiting"))
    assert fresh.rows("SELECT 1 FROM awa.jobs") == []
    assert fresh.violated() == []


@pytest.mark.parametrize("what", ["ok", "wait", "fail", "cancel"])
@pytest.mark.parametrize("deadline_ms", [0, 60_000])
def test_a_deletion_releases_the_unique_claim_and_leaves_the_plane_consistent(
    store: Store, what: str, deadline_ms: int
) -> None:
    ends = {"ok": "completed", "wait": "waiting_external", "fail": "failed", "cancel": "cancelled"}
    job = enqueue(store, what, ", p_unique_key => '\\x07', p_unique_states => B'11111111'")
    reach(store, {job: ends[what]}, deadline_duration_ms=deadline_ms)
    assert store.value("SELECT job_id FROM awa.job_unique_claims") == job
    assert delete(store, job)[0] == 1
    assert store.rows("SELECT 1 FROM awa.job_unique_claims") == []
    assert store.rows("SELECT 1 FROM awa.jobs") == []
    assert delete(store, job)[0] == 0
    assert store.violated(quiesced=True) == []


def test_a_dead_letter_is_deleted_with_its_claim(store: Store) -> None:
    job = enqueue(store, "fail", ", p_unique_key => '\\x07', p_unique_states => B'11111111'")
    reach(store, {job: "failed"})
    asyncio.run(dead_letter(store.url, job))
    assert store.value("SELECT count(*) FROM awa.dlq_entries") == 1
    assert delete(store, job)[0] == 1
    assert store.rows("SELECT 1 FROM awa.dlq_entries UNION ALL SELECT 1 FROM awa.job_unique_claims") == []


async def dead_letter(url: str, job: int) -> None:
    import awa

    client = awa.AsyncClient(url)
    await client.move_failed_to_dlq(job, "by hand")
    await client.close()


@pytest.mark.parametrize("shape", ["compact", "row"])
def test_a_running_job_is_shown_and_deleted_on_its_receipt_alone(store: Store, shape: str) -> None:
    [job] = store.insert("adm", unique_key=b"\x07", unique_states="11111000")
    listener = store.open()
    listener.execute('LISTEN "awa:cancel"')
    store.advance(store.claim(queue="adm", deadline=60 if shape == "row" else 0))
    [shown] = store.rows("SELECT id, state::text, attempt, run_lease, attempted_at FROM awa.jobs")
    assert (shown["id"], shown["state"], shown["attempt"], shown["run_lease"]) == (job, "running", 1, 1)
    assert shown["attempted_at"] is not None
    assert delete(store, job)[0] == 1
    [note] = listener.notifies(timeout=30, stop_after=1)
    assert json.loads(note.payload) == {"job_id": job, "run_lease": 1}
    assert store.rows("SELECT 1 FROM awa.jobs UNION ALL SELECT 1 FROM awa.job_unique_claims") == []
    assert store.violated(quiesced=True) == []


def test_a_finished_row_whose_receipt_lost_its_closure_takes_the_receipt_with_it(store: Store) -> None:
    """Without the row nothing would say that the attempt has ended, and a rescue would revive the job."""
    job = enqueue(store, "fail")
    reach(store, {job: "failed"}, deadline_duration_ms=60_000)
    store.rows("DELETE FROM awa.lease_claim_closures")
    store.rows("UPDATE awa.lease_claims SET closed_at = NULL")
    store.rows("DELETE FROM awa.lease_claim_closure_batches")
    assert delete(store, job)[0] == 1
    assert store.value("SELECT outcome FROM awa.lease_claim_closures") == "terminal_removed"
    assert store.violated(quiesced=True) == []


def test_two_deletions_of_one_job_find_it_once(store: Store) -> None:
    [job] = store.insert("adm")
    first, second = store.open(autocommit=False), store.open()
    first.execute("SELECT awa.delete_job_compat(%s)", [job])
    waiting = store.blocked(second, "SELECT awa.delete_job_compat(%(id)s) AS deleted", id=job)
    first.commit()
    assert waiting.result() == [{"deleted": False}]
    assert len(store.rows("SELECT 1 FROM awa.ready_tombstones")) == 1


def test_deleting_needs_queue_storage_in_force(store: Store) -> None:
    store.rows("UPDATE awa.storage_transition_state SET current_engine = 'canonical', state = 'canonical', "
               "details = '{}'")  # fmt: skip
    with pytest.raises(errors.ObjectNotInPrerequisiteState):
        store.rows("SELECT awa.delete_job_compat(1)")


def test_the_view_shows_what_the_reference_shows_and_running_jobs_too(
    fresh: Store, oracle_database: str
) -> None:
    """One job per state, made by a real worker on both schemas."""
    with queue_storage.store(oracle_database) as oracle:
        oracle.rows("SELECT awa.storage_auto_finalize_if_fresh('awa')")
        ours, theirs = one_job_per_state(fresh), one_job_per_state(oracle)
    assert {row["state"] for row in theirs} == {
        "available", "scheduled", "retryable", "completed", "failed", "cancelled", "waiting_external",
    }  # fmt: skip
    assert [row for row in ours if row["state"] != "running"] == theirs
    assert [row["args"] for row in ours if row["state"] == "running"] == [{"do": "hang"}]


def one_job_per_state(store: Store) -> list[Row]:
    more = ", p_tags => ARRAY['t'], p_metadata => '{\"m\": 1}', p_max_attempts => 3::smallint"
    wanted = {
        enqueue(store, "ok", more): "completed",
        enqueue(store, "ok"): "completed",
        enqueue(store, "fail", more): "failed",
        enqueue(store, "retry", more): "retryable",
        enqueue(store, "snooze"): "scheduled",
        enqueue(store, "cancel"): "cancelled",
        enqueue(
            store, "wait", ", p_unique_key => '\\x07', p_unique_states => B'11111000'"
        ): "waiting_external",
    }
    dead = enqueue(store, "fail")
    reach(store, wanted | {dead: "failed"})
    asyncio.run(dead_letter(store.url, dead))
    running = enqueue(store, "hang")
    rows: list[Row] = []

    async def scenario() -> None:
        async with awa_worker(store.url, "adm", {"k": do}, queue_options={"deadline_duration_ms": 0}):
            await asyncio.to_thread(
                store.until,
                "EXISTS (SELECT 1 FROM awa.lease_claim_batches WHERE %(id)s = ANY(job_ids)) AND "
                "(SELECT bool_and(awa.sequence_next_value(seq_name) > 8) FROM awa.queue_claim_heads)",
                id=running,
            )
            enqueue(store, "ok", more, queue="idle")
            rows.extend(store.rows(f"SELECT {COLUMNS} FROM awa.jobs ORDER BY id"))
            await asyncio.to_thread(cancel_all, store)

    asyncio.run(scenario())
    for row in rows:
        row["errors"] = [entry["error"].splitlines()[0] for entry in row["errors"] or []]
    return rows


def cancel_all(store: Store) -> None:
    """Let the hanging handler go."""
    store.rows(
        """
        SELECT pg_notify('awa:cancel', format('{"job_id":%%s,"run_lease":1}', job_id)) FROM awa.ready_entries
        WHERE %(kind)s = kind
        """,
        kind="k",
    )
