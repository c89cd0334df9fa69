"""Repairing what other clients leave behind (contract: queue-storage/maintenance section 10).

Prune, purge and cancel of reference clients forget unique claims (H-07) and heartbeat rows (H-19). Every
function runs in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor
from awa_django.sql import statement

__all__ = ["Claim", "ClaimPage", "claims_page", "forget_idle_states", "release_orphans"]

Claim = tuple[bytes, int]


class ClaimPage(NamedTuple):
    """Some unique claims in key order: those whose job is nowhere, and the key to go on after; None at the end."""

    orphans: list[Claim]
    last_key: bytes | None


def claims_page(cursor: Cursor, after: bytes, limit: int) -> ClaimPage:
    """Look at the next ``limit`` unique claims; takes no lock."""
    cursor.execute(statement("queue_storage/sweep", "claims_page"), {"after": after, "limit": limit})
    rows = cursor.fetchall()
    orphans = [(bytes(key), job_id) for key, job_id, orphaned in rows if orphaned]
    return ClaimPage(orphans, bytes(rows[-1][0]) if len(rows) == limit else None)


def release_orphans(cursor: Cursor, claims: Collection[Claim]) -> list[int]:
    """Delete these claims as far as their job is nowhere still; returns the jobs.

    The claim rows are locked first and the question is asked in a later statement, so that whoever was just
    taking the key over has been seen.
    """
    cursor.execute(statement("queue_storage/sweep", "hold_claims"), _parameters(claims))
    held = [(bytes(key), job_id) for key, job_id in cursor.fetchall()]
    if not held:
        return []
    cursor.execute(statement("queue_storage/sweep", "release_orphans"), _parameters(held))
    return [job_id for (job_id,) in cursor.fetchall()]


def _parameters(claims: Collection[Claim]) -> dict[str, object]:
    return {"unique_keys": [key for key, _ in claims], "job_ids": ints(job_id for _, job_id in claims)}


def forget_idle_states(cursor: Cursor, limit: int) -> int:
    """Remove heartbeat rows without an attempt that are an hour old; returns how many."""
    cursor.execute(statement("queue_storage/sweep", "idle_states"), {"limit": limit})
    if not (idle := _pairs(cursor.fetchall())):
        return 0
    cursor.execute(statement("queue_storage/rescue", "try_attempts"), idle)
    if not (free := _pairs(cursor.fetchall())):
        return 0
    cursor.execute(statement("queue_storage/sweep", "forget_idle_states"), free)
    return cursor.rowcount


def _pairs(rows: Collection[tuple[int, int]]) -> dict[str, str] | None:
    """Attempts as parameters; None for none."""
    if not rows:
        return None
    return {"job_ids": ints(job_id for job_id, _ in rows), "run_leases": ints(lease for _, lease in rows)}
