"""What the leader does to canonical rows besides rescue and promotion (contract: runtime/maintenance sections 2 and 5).

Every function runs in the caller's transaction and does a bounded piece of work.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from awa_django.planes.base import Cursor
from awa_django.sql import statement

__all__ = ["age_priorities", "expire_finished", "recount_all", "recount_marked"]


def age_priorities(cursor: Cursor, interval: timedelta, limit: int = 1000) -> int:
    """Give jobs that have waited longer than ``interval`` one priority better; returns how many.

    Meant to run once an interval: a second run at once ages the same jobs again, though the first met its limit. Locks
    rows, passing over those another transaction holds.
    """
    cursor.execute(statement("canonical/upkeep", "age_priorities"), {"interval": interval, "limit": limit})
    return cursor.rowcount


def recount_marked(cursor: Cursor, limit: int = 100) -> int:
    """Bring the cached counters of up to ``limit`` marked queues and as many kinds up to date; returns how many.

    0 is also the answer while queue storage is in force, when nobody reads them. One process counts at a time.
    """
    cursor.execute(statement("canonical/upkeep", "recount_marked"), {"limit": limit})
    row = cursor.fetchone()
    return 0 if row is None else int(row[0])


def recount_all(cursor: Cursor) -> None:
    """Count every queue and kind, as a cure for marks that were lost; nothing while queue storage is in force."""
    cursor.execute(statement("canonical/upkeep", "recount_all"))


def expire_finished(
    cursor: Cursor,
    *,
    completed: timedelta,
    failed: timedelta,
    limit: int = 1000,
    only: Sequence[str] | None = None,
    other: Sequence[str] = (),
) -> int:
    """Delete finished jobs whose end is longer ago than this; returns how many, at most ``limit``.

    ``only`` restricts it to some queues, ``other`` leaves some out, so that queues may have times of their own.
    Cancelled jobs go with the failed ones. Locks rows, passing over those another transaction holds.
    """
    cursor.execute(
        statement("canonical/upkeep", "expire_finished"),
        {
            "completed": completed,
            "failed": failed,
            "limit": limit,
            "only": None if only is None else list(only),
            "other": list(other),
        },
    )
    return cursor.rowcount
