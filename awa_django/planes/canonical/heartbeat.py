"""Signs of life of canonical attempts (contract: runtime/completion-heartbeat section 2)."""

from __future__ import annotations

from collections.abc import Sequence

from awa_django.planes.arrays import jsons
from awa_django.planes.base import Beat, Cursor
from awa_django.planes.canonical.take import pairs
from awa_django.sql import statement

__all__ = ["heartbeat"]


def heartbeat(cursor: Cursor, beats: Sequence[Beat]) -> set[tuple[int, int]]:
    """Write heartbeats, and progress where it is given; returns the pairs that are still running.

    Locks rows in id order, as ending attempts does, so that the two cannot deadlock.
    """
    parameters = {
        **pairs(beat.attempt for beat in beats),
        "progress": jsons(beat.progress for beat in beats),
    }
    cursor.execute(statement("canonical/settle", "beat"), parameters)
    return {(job_id, run_lease) for job_id, run_lease in cursor.fetchall()}
