"""The rings of queue storage: whether old slots can be emptied."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from awa_django.operations.doctor.finding import Level, Patient, Said
from awa_django.operations.words import span
from awa_django.planes.queue_storage.rings import Gate, Look, look, opened_at, queue_slot_gate

__all__ = ["rings"]

#: What is kept for work in progress is no news before it is this old.
PINNED = timedelta(hours=1)


def rings(patient: Patient) -> Iterator[Said]:
    """Slots that hold more than history, and rings that cannot turn."""
    seen = look(patient.at.cursor)
    well = True
    held = list(_held(patient, seen))
    sealed = len(seen.queue.sizes) - 1
    for slot, age, gate in held[:3]:
        well = False
        yield Said(
            Level.WARNING,
            f"Slot {slot} of the queue ring, opened {span(age)} ago, cannot be emptied: {gate}.",
            "Serve or drain that job's queue, or cancel the job. Put long waits into run_at, which holds nothing.",
        )
    if len(held) >= sealed:
        yield Said(
            Level.ERROR,
            f"All {sealed} sealed slots of the queue ring are held by work in progress: no history can be forgotten, "
            "and the current slot grows.",
            "Serve the queues of the jobs named above.",
        )
    for name, ring in (("claim", seen.claim), ("lease", seen.lease)):
        in_use = len(ring.sealed_in_use())
        if in_use >= len(ring.sizes) - 1 and ring.in_use:
            well = False
            yield Said(
                Level.WARNING,
                f"No slot of the {name} ring is free: {'receipts' if name == 'claim' else 'leases'} are open in each, "
                "so closed ones pile up in the current slot.",
                "Look for attempts that run for hours, and that the leader can lock and empty slots.",
            )
    if well:
        yield Said(
            Level.OK,
            f"{len(seen.queue.sealed_in_use())} of {sealed} slots hold history; none is held by work older than "
            f"{span(PINNED)}.",
        )


def _held(patient: Patient, seen: Look) -> Iterator[tuple[int, timedelta, Gate]]:
    """Old sealed slots of the queue ring that may not be emptied, oldest first."""
    for slot in seen.queue.sealed_in_use():
        opened = opened_at(patient.at.cursor, slot)
        age = timedelta(0) if opened is None else seen.now - opened
        if age > PINNED and (gate := queue_slot_gate(patient.at.cursor, slot)) is not None:
            yield slot, age, gate
