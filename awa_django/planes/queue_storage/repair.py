"""Undoing attempts that ended twice (H-06).

An operator's cancel by one client and a completion by another may each close the same receipt: neither looks at what
the other locks. The claim slot then has more closures than claims for ever, and the slots behind it are never emptied.
Ours cannot do that to each other; in a fleet with other clients somebody has to clean up.
"""

from __future__ import annotations

from typing import NamedTuple

from awa_django.planes.arrays import ints
from awa_django.planes.base import Cursor
from awa_django.planes.queue_storage.take import lock_attempts
from awa_django.sql import statement

__all__ = ["Repair", "overclosed_slots", "repair_slot"]


class Repair(NamedTuple):
    """What was undone in one claim slot: receipts that had been closed twice, and ends that were removed."""

    receipts: int
    ends: list[tuple[int, str]]


def overclosed_slots(cursor: Cursor) -> list[int]:
    """Claim slots with more closures than claims; cheap, since it adds up counts."""
    cursor.execute(statement("queue_storage/repair", "overclosed_slots"))
    return [slot for (slot,) in cursor.fetchall()]


def repair_slot(cursor: Cursor, slot: int) -> Repair:
    """Leave each receipt of a claim slot one closure and each of its attempts one end, in the caller's transaction.

    Takes the keys of the attempts concerned, so that nobody of ours ends them meanwhile, and looks again under them.
    """
    found = _doubles(cursor, slot)
    if not found:
        return Repair(0, [])
    lock_attempts(cursor, [(job_id, run_lease) for _, job_id, run_lease in found])
    found = _doubles(cursor, slot)
    parameters = {
        "slot": slot,
        "receipt_ids": ints(receipt_id for receipt_id, _, _ in found),
        "job_ids": ints(job_id for _, job_id, _ in found),
        "run_leases": ints(run_lease for _, _, run_lease in found),
    }
    cursor.execute(statement("queue_storage/repair", "drop_explicit_closures"), parameters)
    cursor.execute(statement("queue_storage/repair", "drop_smaller_closures"), parameters)
    cursor.execute(statement("queue_storage/repair", "drop_second_ends"), parameters)
    return Repair(len(found), [(job_id, state) for job_id, state in cursor.fetchall()])


def _doubles(cursor: Cursor, slot: int) -> list[tuple[int, int, int]]:
    cursor.execute(statement("queue_storage/repair", "double_closures"), {"slot": slot})
    return cursor.fetchall()
