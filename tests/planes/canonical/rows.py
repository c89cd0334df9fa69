"""Canonical rows, from whichever table they are in."""

from __future__ import annotations

from typing import Any

from tests.planes.world import World

ROWS = """
    SELECT 'jobs_hot' AS "table", hot.* FROM awa.jobs_hot AS hot
    UNION ALL
    SELECT 'scheduled_jobs', waiting.* FROM awa.scheduled_jobs AS waiting
    ORDER BY id
"""


def all_rows(world: World) -> list[dict[str, Any]]:
    """Every canonical job, by id, with its table."""
    return world.rows(ROWS)


def row_of(world: World, job_id: int) -> dict[str, Any]:
    """One job, which must be in exactly one of the tables."""
    (row,) = [row for row in all_rows(world) if row["id"] == job_id]
    return row


def states(world: World) -> list[str]:
    """The states of all jobs, by id."""
    return [row["state"] for row in all_rows(world)]


def claims(world: World) -> dict[bytes, int]:
    """Who holds which unique key."""
    return {
        bytes(row["unique_key"]): row["job_id"] for row in world.rows("SELECT * FROM awa.job_unique_claims")
    }


def park(world: World, job_id: int) -> None:
    """An attempt that waits for a callback for an hour, as parking leaves it."""
    world.run(
        """
        UPDATE awa.jobs_hot
        SET state = 'waiting_external', callback_id = gen_random_uuid(), callback_filter = 'payload.ok',
            callback_timeout_at = now() + interval '1 hour', heartbeat_at = NULL, deadline_at = NULL
        WHERE id = %s
        """,
        job_id,
    )
