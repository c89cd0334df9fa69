"""Lifting jobs whose time has come (contract: queue-storage/maintenance section 2)."""

from __future__ import annotations

from awa_django.jobs import Taken
from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor, Due
from awa_django.planes.queue_storage.take import taken_row
from awa_django.sql import statement

__all__ = ["take_due"]


def take_due(cursor: Cursor, guard: Due) -> list[Taken]:
    """Lift deferred jobs of one state that are due, in the order run_at, priority, id.

    Jobs of paused queues stay.
    All share one ``taken_at``, so that a batch becomes one segment per lane (H-15). Locks the deferred
    rows, passing over those another transaction holds.
    """
    cursor.execute(
        statement("queue_storage/promote", "take_due"),
        {"state": guard.state.value, "limit": guard.limit, "passed_over": ints(guard.passed_over)},
    )
    return [taken_row(row) for row in cursor.fetchall()]
