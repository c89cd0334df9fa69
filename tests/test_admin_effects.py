"""Every row that an operator's function adds or removes, against what the real awa client's leave (vectors
admin-effects.json)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from awa_django import operations
from awa_django.enqueue import enqueue
from awa_django.jobs import JobInsert
from awa_django.operations import JobFilter
from awa_django.outcomes import Terminal
from tests import stored, vectors
from tests.test_operations import claimed, ended

pytestmark = pytest.mark.django_db(transaction=True)

CASES = {case["case"]: case for case in vectors.load("queue-storage/admin-effects")["cases"]}
COMPACT, ROW = timedelta(0), timedelta(minutes=5)
SHAPES = pytest.mark.parametrize("shape", ["compact", "row"])

TABLES = [
    "ready_entries", "ready_tombstones", "deferred_jobs", "done_entries", "dlq_entries", "leases", "attempt_state",
    "lease_claims", "lease_claim_closures", "lease_claim_closure_batches", "queue_terminal_count_deltas",
    "job_unique_claims",
]  # fmt: skip
CURSORS = """
    SELECT queue, priority, enqueue_shard, awa.sequence_next_value(seq_name) AS nxt
    FROM awa.queue_claim_heads
"""
#: What depends on which jobs there were before, and what a test's lease has otherwise.
VOLATILE = {
    "job_id", "lane_seq", "counter_bucket", "receipt_id", "receipt_ids", "receipt_ranges", "batch_id", "nxt",
    "materialized_at", "recorded_at", "callback_id", "heartbeat_at", "callback_timeout_at",
}  # fmt: skip
DEFAULTS: dict[str, Any] = {"errors": [], "metadata": {}, "progress": None, "tags": []}

Rows = Counter[str]


def plain(value: Any, key: str = "") -> Any:
    """A value as the vectors write it, a payload without its defaults, an error's first line."""
    if key == "payload":
        return plain({name: item for name, item in (value or {}).items() if item != DEFAULTS.get(name, 0)})
    if isinstance(value, dict):
        return {name: plain(item, name) for name, item in value.items() if name not in VOLATILE}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if value is not None and (re.search(r"_at$", key) or key == "at"):
        return "<ts>"
    if key == "error":
        return str(value).partition("\n")[0]
    return value


def text(row: dict[str, Any]) -> str:
    return json.dumps(plain(row), sort_keys=True)


def snapshot() -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"SELECT to_jsonb(row) FROM awa.{table} AS row")
            found[table] = Counter(text(json.loads(row)) for (row,) in cursor.fetchall())
        cursor.execute(CURSORS)
        found["claim_cursor"] = Counter(str(row) for row in cursor.fetchall())
    return found


def effects(work: Callable[[], Any]) -> tuple[dict[str, dict[str, Rows]], list[tuple[str, str]]]:
    """Rows added and removed, and notifications sent, by something that commits."""
    settings = connection.get_connection_params()
    names = {key: settings[key] for key in ("host", "port", "user", "dbname") if settings.get(key)}
    with psycopg.connect(**names, autocommit=True) as listener:
        for channel in ("awa:cancel", "awa:adm", "awa:dest", "told"):
            listener.execute(f'LISTEN "{channel}"')
        before = snapshot()
        work()
        after = snapshot()
        # Notifications arrive in the order of the commits, however late, so nothing of the work comes after this one.
        stored.run("NOTIFY told")
        heard = [(item.channel, item.payload) for item in until_told(listener)]
    changed: dict[str, dict[str, Rows]] = {}
    for table, rows in after.items():
        added, removed = rows - before[table], before[table] - rows
        if added or removed:
            changed[table] = {"added": added, "removed": removed}
    return changed, heard


def until_told(listener: psycopg.Connection[Any]) -> list[psycopg.Notify]:
    heard: list[psycopg.Notify] = []
    while not (heard and heard[-1].channel == "told"):
        came = list(listener.notifies(timeout=30, stop_after=1))
        assert came, heard
        heard += came
    return heard[:-1]


def recorded(case: str) -> dict[str, dict[str, Rows]]:
    found: dict[str, dict[str, Rows]] = {}
    for table, change in CASES[case]["effects"].items():
        if table == "queue_claim_heads":  # the registry of a lane that is used for the first time
            continue
        rows = {way: Counter(text(row) for row in change.get(way, ())) for way in ("added", "removed")}
        found[table] = rows
    return found


def compare(case: str, work: Callable[[], Any]) -> None:
    """Do what a case is about; the rows and the notifications must be those recorded."""
    changed, heard = effects(work)
    wanted = recorded(case)
    # A cursor is compared as moved or not: where to depends on the lane.
    moved, expected = changed.pop("claim_cursor", None), wanted.pop("claim_cursor", None)
    fresh = CASES[case]["effects"].get("queue_claim_heads") is not None
    assert fresh or (moved is None) == (expected is None), f"{case}: claim cursor"
    assert changed == wanted, case
    notified = [channel for channel, _ in CASES[case]["notify"]]
    assert [channel for channel, _ in heard] == notified[: len(heard)], case
    assert bool(heard) == bool(notified), case


def added(do: str = "ok", **fields: Any) -> int:
    job = enqueue(JobInsert(**{"kind": "k", "args": {"do": do}, "queue": "adm", **fields}))
    assert job is not None
    return job.id


def running(shape: str, do: str = "ok") -> int:
    added(do)
    (attempt,) = claimed("adm", deadline=ROW if shape == "row" else COMPACT)
    return attempt.job_id


def failed(shape: str, do: str = "terminal", error: str = "TerminalError: boom-terminal") -> int:
    added(do)
    (attempt,) = claimed("adm", deadline=ROW if shape == "row" else COMPACT)
    ended(attempt, Terminal(error))
    return attempt.job_id


def waiting(shape: str) -> int:
    added("cb_wait")
    (attempt,) = claimed("adm", deadline=ROW if shape == "row" else COMPACT)
    stored.run(
        """
        INSERT INTO awa.leases (
            lease_slot, lease_generation, ready_slot, ready_generation, job_id, queue, state, priority, attempt,
            run_lease, max_attempts, lane_seq, enqueue_shard, attempted_at, callback_id
        )
        SELECT current_slot, generation, 0, 0, %s, 'adm', 'waiting_external', 2, 1, 1, 25, %s, 0, now(),
            gen_random_uuid()
        FROM awa.lease_ring_state
        """,
        attempt.job_id,
        attempt.lane_seq,
    )
    return attempt.job_id


def test_cancelling_what_waits_in_its_lane() -> None:
    first, _second, third = added(), added(), added()
    compare("cancel available (lane head)", lambda: operations.cancel(first))
    compare("cancel available (not head)", lambda: operations.cancel(third))


def test_cancelling_what_waits_for_its_time() -> None:
    running("compact")  # the lane was used before
    job_id = added(run_at=datetime(2999, 1, 1, tzinfo=UTC))
    compare("cancel scheduled", lambda: operations.cancel(job_id))


@SHAPES
def test_cancelling_and_retrying_what_runs(shape: str) -> None:
    job_id = running(shape)
    receipt = "row receipt" if shape == "row" else "compact receipt"
    compare(f"cancel running, {receipt}", lambda: operations.cancel(job_id))
    compare("cancel again (terminal)", lambda: operations.cancel(job_id))
    compare(f"retry cancelled (was running {shape})", lambda: operations.retry(job_id))


@SHAPES
def test_cancelling_what_waits_for_an_answer(shape: str) -> None:
    job_id = waiting(shape)
    compare(f"cancel waiting ({shape})", lambda: operations.cancel(job_id))


@SHAPES
def test_what_has_failed_is_retried_dead_lettered_retried_and_forgotten(shape: str) -> None:
    first, second = failed(shape), failed(shape)
    compare(f"retry failed ({shape})", lambda: operations.retry(first))
    operations.cancel(first)
    compare(f"move_failed_to_dlq ({shape})", lambda: operations.dead_letter(second, "manual"))
    compare(f"retry_from_dlq ({shape})", lambda: operations.retry_dead(second))
    operations.cancel(second)
    dead = failed(shape)
    failed(shape)
    failed(shape, "cb_wait", "ext failed")
    compare(
        f"bulk_move_failed_to_dlq ({shape})",
        lambda: operations.dead_letter(JobFilter(kind="k", state="failed"), "bulk"),
    )
    record = operations.load_job(dead)
    assert record.dead_letter is not None
    assert record.dead_letter.reason == CASES[f"get_dlq_job ({shape})"]["result"] == "bulk"
    compare(f"retry on dlq job id ({shape})", lambda: operations.retry(dead))
    compare(f"purge_dlq_job ({shape})", lambda: operations.purge_dead(dead))
    compare(f"discard_failed ({shape})", lambda: operations.discard(kind="k"))


def test_moving_what_nobody_has_started() -> None:
    added()
    claimed("adm")
    ids = [added(), added(), added(run_at=datetime(2999, 1, 1, tzinfo=UTC))]
    compare(
        "set_priority to 1, two available jobs and one scheduled", lambda: operations.set_priority(ids, 1)
    )
    # The first lane's cursor has moved over the tombstones by now.
    changed, heard = effects(lambda: operations.move_queue(ids, "dest"))
    wanted = recorded("move_queue of the same jobs to queue dest")
    for rows in (changed, wanted):
        rows.pop("claim_cursor", None)
    assert changed == wanted
    assert [channel for channel, _ in heard] == ["awa:dest"]
