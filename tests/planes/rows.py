"""All rows that belong to one job, in the shape of the recorded vectors."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import psycopg
from psycopg.rows import dict_row

#: Ids, slots and times differ between runs; what the vectors compare does not.
TIMES = re.compile(r"_at$")

PLAIN = ("ready_entries", "deferred_jobs", "done_entries", "dlq_entries", "leases", "attempt_state")

ITEMS = {
    "lease_claim_batches (item)": """
        SELECT claim_slot, index, job_id, run_lease, lane_seq, attempt, item.max_attempts, priority, ready_slot,
               ready_generation
        FROM awa.lease_claim_batches,
             unnest(job_ids, run_leases, lane_seqs, attempts, max_attempts)
                 WITH ORDINALITY AS item (job_id, run_lease, lane_seq, attempt, max_attempts, index)""",
    "lease_claim_closure_batches (item)": """
        SELECT closure.claim_slot, closure.outcome, closure.ready_slot, closure.ready_generation, item.job_id
        FROM awa.lease_claim_closure_batches AS closure, unnest(closure.receipt_ids) AS closed (receipt_id)
        JOIN (
            SELECT receipt_id, job_id
            FROM awa.lease_claim_batches,
                 unnest(receipt_ids, job_ids) AS receipt (receipt_id, job_id)
            UNION ALL
            SELECT receipt_id, job_id
            FROM awa.lease_claims
        ) AS item USING (receipt_id)""",
    "receipt_completion_batches (item)": """
        SELECT ready_slot, ready_generation, claim_slot, priority, finalized_at,
               item.*
        FROM awa.receipt_completion_batches,
             unnest(job_ids, run_leases, lane_seqs, attempts, attempted_ats)
                 AS item (job_id, run_lease, lane_seq, attempt, attempted_at)""",
    "lease_claims": "SELECT * FROM awa.lease_claims",
    "lease_claim_closures": "SELECT * FROM awa.lease_claim_closures",
    "job_unique_claims": "SELECT unique_key, job_id FROM awa.job_unique_claims",
}


def normal(value: Any, key: str = "") -> Any:
    """A value as the vectors write it."""
    if isinstance(value, dict):
        return {name: normal(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [normal(item) for item in value]
    if value is not None and (TIMES.search(key) or key == "at"):
        return "<ts>"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if key == "error":
        return value.partition("\n")[0]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def rows_of_jobs(connection: psycopg.Connection[Any]) -> dict[int, dict[str, list[dict[str, Any]]]]:
    """For each job id, the rows of every table that names it."""
    found: dict[int, dict[str, list[dict[str, Any]]]] = defaultdict(dict)
    queries = {name: f"SELECT * FROM awa.{name}" for name in PLAIN} | ITEMS
    with connection.cursor(row_factory=dict_row) as cursor:
        for name, query in queries.items():
            for row in cursor.execute(query).fetchall():
                found[row["job_id"]].setdefault(name, []).append(normal(row))
    return found
