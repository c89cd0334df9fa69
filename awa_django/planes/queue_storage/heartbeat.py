"""Signs of life (contract: queue-storage/attempts section 3)."""

from __future__ import annotations

from collections.abc import Sequence

from awa_django.planes.arrays import jsons
from awa_django.planes.base import Beat, Cursor
from awa_django.planes.queue_storage.take import coordinates, lock_attempts
from awa_django.sql import statement

__all__ = ["heartbeat"]


def heartbeat(cursor: Cursor, beats: Sequence[Beat]) -> set[tuple[int, int]]:
    """Upsert heartbeats, and progress where it is given; returns the pairs that are still open.

    The attempt key is enough of a lock, since whoever closes a receipt takes it too; the claim evidence
    stays free for settling siblings.
    """
    attempts = [beat.attempt for beat in beats]
    lock_attempts(cursor, [(attempt.job_id, attempt.run_lease) for attempt in attempts])
    parameters = {**coordinates(attempts), "progress": jsons(beat.progress for beat in beats)}
    cursor.execute(statement("queue_storage/settle", "beat"), parameters)
    return {(job_id, run_lease) for job_id, run_lease in cursor.fetchall()}
