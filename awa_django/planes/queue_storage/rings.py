"""The three rings: turning them, emptying their slots, folding their counters.

Rows of the hot tables are never deleted one by one; a slot whose rows nobody needs any more is
truncated whole. Every function here runs in the caller's transaction, takes its locks in the
order ring state, ring slot, children, and never commits. Locks on children are waited for
10 ms at most: a ``psycopg.errors.LockNotAvailable`` then leaves the transaction to be rolled
back. (contract: queue-storage/maintenance sections 3 to 9)

Three things are done otherwise than by reference leaders, none of which another client can tell
from the rows:

* any sealed slot may be emptied once its gates are open, not only the oldest;
* the claim ring passes over slots that cannot be emptied yet, so that one attempt that runs for
  hours holds one slot and not, after seven turns, the whole ring (H-12). The generation moves by as
  many steps, and stays the slot modulo the number of slots;
* history is folded under a lock that lets readers pass, claims among them; only the truncation
  itself locks them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from awa_django.planes.base import Cursor
from awa_django.sql import statement

__all__ = [
    "Look",
    "Prune",
    "Ring",
    "Turn",
    "fold_counts",
    "look",
    "newest_end",
    "oldest_initialised",
    "opened_at",
    "prune_claim_slot",
    "prune_lease_slot",
    "prune_queue_slot",
    "queue_slot_gate",
    "rotate_claim_ring",
    "rotate_lease_ring",
    "rotate_queue_ring",
    "sealed_slots",
    "slot_rows",
    "slots_with_deltas",
    "unfolded_horizon_is_clear",
]


def oldest_initialised(slot_count: int, generation: int) -> tuple[int, int] | None:
    """The slot and generation that a ring of this many slots will come round to last used; None if there is none."""
    sealed = sealed_slots(slot_count, generation)
    return sealed[0] if sealed else None


def sealed_slots(slot_count: int, generation: int) -> list[tuple[int, int]]:
    """Every slot that was current before, as (slot, generation), oldest first."""
    depth = min(generation + 1, slot_count) - 1
    return [((generation - age) % slot_count, generation - age) for age in range(depth, 0, -1)]


@dataclass(frozen=True, slots=True)
class Ring:
    """How one ring stood when it was looked at: its generation, and the bytes in the children of each slot."""

    generation: int
    sizes: tuple[int, ...]

    @property
    def current(self) -> int:
        """The slot that new rows go to."""
        return self.generation % len(self.sizes)

    @property
    def in_use(self) -> bool:
        """Whether the current slot was written to."""
        return self.sizes[self.current] > 0

    @property
    def full(self) -> bool:
        """Whether the next slot still holds something."""
        return self.sizes[(self.generation + 1) % len(self.sizes)] > 0

    def sealed_in_use(self) -> list[int]:
        """Slots that hold something and are not current, oldest first. A slot that was never current holds nothing."""
        return [slot for slot, _ in sealed_slots(len(self.sizes), self.generation) if self.sizes[slot]]


@dataclass(frozen=True, slots=True)
class Look:
    """What one cheap statement tells the leader.

    ``due_in`` is in seconds until the next deferred job of a queue that is not paused, negative when it is
    overdue, None when there is none. ``canonical_rows`` says that the canonical tables are not empty,
    ``operations`` that a bulk operation is unfinished.
    """

    now: datetime
    due_in: float | None
    queue: Ring
    claim: Ring
    lease: Ring
    canonical_rows: bool
    operations: bool


def look(cursor: Cursor) -> Look:
    """Look at everything the leader's timetable depends on; about 1 ms of server time, no scan."""
    cursor.execute(statement("queue_storage/look", "look"))
    row = cursor.fetchone()
    assert row is not None
    now, due_in, queue, queue_sizes, claim, claim_sizes, lease, lease_sizes, canonical, operations = row
    return Look(
        now=now,
        due_in=due_in,
        queue=Ring(queue, tuple(queue_sizes)),
        claim=Ring(claim, tuple(claim_sizes)),
        lease=Ring(lease, tuple(lease_sizes)),
        canonical_rows=canonical,
        operations=operations,
    )


class Turn(StrEnum):
    """What came of an attempt to turn a ring."""

    TURNED = "turned"
    #: The current slot holds nothing, so there is nothing to seal.
    UNUSED = "unused"
    #: The next slot still holds rows.
    FULL = "full"
    #: A transaction that began a lap ago is writing to the next slot (H-03), or a guard in the schema said so.
    BUSY = "busy"


class Prune(StrEnum):
    """What came of an attempt to empty a slot."""

    PRUNED = "pruned"
    NOTHING = "nothing"
    #: Rows of the slot are still needed.
    HELD = "held"
    #: The slot is current, or became so.
    CURRENT = "current"


def _run(cursor: Cursor, name: str, slot: int | None = None, **values: Any) -> Any:
    """Run one statement of this subject; returns its first row or None."""
    cursor.execute(statement("queue_storage/rings", name, slot=slot), values or None)
    return cursor.fetchone() if cursor.description is not None else None


def _is_used(cursor: Cursor, ring: str, slot: int) -> bool:
    return bool(_run(cursor, f"{ring}_slot_is_used", slot)[0])


# The queue ring ---------------------------------------------------------------------------------


def rotate_queue_ring(cursor: Cursor) -> Turn:
    """Seal the current slot of the queue ring and open the next, if that is empty and nobody writes to it."""
    generation, slot_count = _run(cursor, "hold_queue_ring")
    if not _is_used(cursor, "queue", generation % slot_count):
        return Turn.UNUSED
    following = (generation + 1) % slot_count
    if _is_used(cursor, "queue", following):
        return Turn.FULL
    if _run(cursor, "queue_slot_has_writers", slot=None, **{"slot": following})[0]:
        return Turn.BUSY
    return Turn.TURNED
