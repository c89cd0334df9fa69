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

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from awa_django.planes.base import Cursor
from awa_django.sql import statement

__all__ = [
    "Gate",
    "Look",
    "Prune",
    "Ring",
    "Turn",
    "fold_counts",
    "horizon_is_clear",
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
    overdue, None when there is none; ``canonical_due_in`` the same for the canonical tables, paused or not.
    ``canonical`` says that those hold jobs, ``dirty`` that cached counters are out of date, ``operations`` that a bulk
    operation is unfinished.
    """

    now: datetime
    due_in: float | None
    queue: Ring
    claim: Ring
    lease: Ring
    operations: bool
    canonical_due_in: float | None = None
    canonical: bool = False
    dirty: bool = False


def look(cursor: Cursor) -> Look:
    """Look at everything the leader's timetable depends on; about 1 ms of server time, no scan."""
    cursor.execute(statement("queue_storage/look", "look"), {})
    row = cursor.fetchone()
    assert row is not None
    now, due_in, queue, queue_sizes, claim, claim_sizes, lease, lease_sizes, operations, *canonical = row
    return Look(
        now=now,
        due_in=due_in,
        queue=Ring(queue, tuple(queue_sizes)),
        claim=Ring(claim, tuple(claim_sizes)),
        lease=Ring(lease, tuple(lease_sizes)),
        operations=operations,
        canonical_due_in=canonical[0],
        canonical=canonical[1],
        dirty=canonical[2],
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


class Gate(str):
    """What keeps a slot from being emptied, in words; ``reason`` is what all clients call it."""

    reason: str

    def __new__(cls, text: str, reason: str) -> Gate:
        gate = super().__new__(cls, text)
        gate.reason = reason
        return gate


def _run(cursor: Cursor, name: str, *, child: int | None = None, **values: Any) -> Any:
    """Run one statement of this subject on one child; returns its first row, or None."""
    slots = {} if child is None else {"slot": child}
    cursor.execute(statement("queue_storage/rings", name, **slots), values)
    return cursor.fetchone() if cursor.description is not None else None


def _is_used(cursor: Cursor, ring: str, slot: int) -> bool:
    return bool(_run(cursor, f"{ring}_slot_is_used", child=slot)[0])


# The queue ring ---------------------------------------------------------------------------------


def rotate_queue_ring(cursor: Cursor) -> Turn:
    """Seal the current slot of the queue ring and open the next, if that is empty and nobody writes to it.

    An update that a guard in the schema drops counts as busy; the label stays untouched then (H-03).
    """
    generation, slot_count = _run(cursor, "hold_queue_ring")
    if not _is_used(cursor, "queue", generation % slot_count):
        return Turn.UNUSED
    slot = (generation + 1) % slot_count
    if _is_used(cursor, "queue", slot):
        return Turn.FULL
    if _run(cursor, "queue_slot_has_writers", slot=slot)[0]:
        return Turn.BUSY
    turned = _run(cursor, "turn_queue_ring", slot=slot, generation=generation + 1, expected=generation)
    if turned is None:
        return Turn.BUSY
    _run(cursor, "label_queue_slot", slot=slot, generation=generation + 1)
    return Turn.TURNED


def opened_at(cursor: Cursor, slot: int) -> datetime | None:
    """About when the first row came into a slot of the queue ring; None if it holds nothing that says so.

    The database keeps no such time; the segments and count deltas of the slot's first pages carry it, so it
    is the same whoever leads. Reads one page of each.
    """
    found: datetime | None = _run(cursor, "queue_slot_opened_at", child=slot)[0]
    return found


def newest_end(cursor: Cursor, slot: int) -> datetime | None:
    """When the last job of a slot finished; None if none did. Scans the slot's terminal rows."""
    found: datetime | None = _run(cursor, "queue_slot_newest_end", child=slot)[0]
    return found


def slot_rows(cursor: Cursor, slot: int) -> int:
    """About how many jobs a slot of the queue ring holds.

    Exact up to 128 pages, some thousands of jobs; beyond that sixteen pages are read, and the others taken to be alike.
    """
    return int(_run(cursor, "queue_slot_rows", child=slot, slot=slot)[0])


def queue_slot_gate(cursor: Cursor, slot: int) -> Gate | None:
    """What keeps a slot of the queue ring from being emptied, in words with an example, or None.

    Judged over the whole child, whatever generation its rows are of (H-03).
    """
    leased, pending, unbalanced = _run(cursor, "queue_slot_gates", child=slot, slot=slot)
    if leased is not None:
        return Gate(f"job {leased} runs or waits for a callback", "queue.active_leases")
    if pending is not None:
        return Gate(
            f"job {pending} has not been handed out, or its lane has not been looked at since",
            "queue.pending_ready",
        )
    if unbalanced:
        return Gate("receipts of its jobs are open", "queue.unclosed_claim_refs")
    return None


def prune_queue_slot(cursor: Cursor, slot: int, *, failed_retention: timedelta) -> tuple[Prune, Gate | None]:
    """Empty a sealed slot of the queue ring, if nothing in it is needed; the second value is what holds it.

    Failed jobs younger than ``failed_retention`` are written again into the current slot (none if it is zero);
    the others are added to the permanent counts, and unique keys of jobs that vanish are let go (H-07).
    Locks the ring's state and the slot's row, then the slot's children. A duplicate key while carrying failed
    jobs means that the slot was tampered with; it raises and nothing is lost.
    """
    generation, slot_count = _run(cursor, "hold_queue_ring")
    if slot == generation % slot_count:
        return Prune.CURRENT, None
    _run(cursor, "hold_queue_slot", slot=slot)
    if not _is_used(cursor, "queue", slot):
        _run(cursor, "forget_live_counts", slot=slot)
        return Prune.NOTHING, None
    if (gate := queue_slot_gate(cursor, slot)) is not None:
        return Prune.HELD, gate
    _run(cursor, "limit_lock_waits")
    _run(cursor, "freeze_queue_slot", child=slot)
    if (gate := queue_slot_gate(cursor, slot)) is not None:
        return Prune.HELD, gate
    kept_since = _run(cursor, "kept_since", retention=failed_retention)[0]
    _run(cursor, "carry_failed", child=slot, kept_since=kept_since)
    _run(cursor, "fold_queue_slot", child=slot, kept_since=kept_since)
    _run(cursor, "release_ended_claims", child=slot, kept_since=kept_since)
    _run(cursor, "forget_live_counts", slot=slot)
    _run(cursor, "lock_queue_slot", child=slot)
    _run(cursor, "empty_queue_slot", child=slot)
    return Prune.PRUNED, None


# Terminal counters ------------------------------------------------------------------------------


def slots_with_deltas(cursor: Cursor) -> list[int]:
    """Up to four sealed slots of the queue ring whose count increments are not folded yet, oldest first."""
    cursor.execute(statement("queue_storage/rings", "slots_with_deltas"), {})
    return [slot for (slot,) in cursor.fetchall()]


def horizon_is_clear(cursor: Cursor) -> bool:
    """Whether no other session holds an old snapshot, in which folded increments would be missing."""
    return not _run(cursor, "horizon_is_pinned")[0]


def fold_counts(cursor: Cursor, slot: int) -> bool:
    """Fold a sealed slot's count increments into its live counts; False if the slot is still at work.

    Counts stay exact either way; folding keeps reading them cheap. Locks as :func:`prune_queue_slot`,
    but one child.
    """
    generation, slot_count = _run(cursor, "hold_queue_ring")
    if slot == generation % slot_count:
        return False
    _run(cursor, "hold_queue_slot", slot=slot)
    if queue_slot_gate(cursor, slot) is not None:
        return False
    _run(cursor, "limit_lock_waits")
    _run(cursor, "lock_deltas", child=slot)
    if queue_slot_gate(cursor, slot) is not None:
        return False
    _run(cursor, "fold_deltas", child=slot, slot=slot)
    _run(cursor, "empty_deltas", child=slot)
    return True


# The claim ring ---------------------------------------------------------------------------------


def _turn(cursor: Cursor, ring: str, *, reach: int) -> Turn:
    """Make the first empty slot among the next ``reach`` current, counting every slot passed as a turn."""
    generation, slot_count = _run(cursor, f"hold_{ring}_ring")
    if not _is_used(cursor, ring, generation % slot_count):
        return Turn.UNUSED
    for step in range(1, min(reach, slot_count - 1) + 1):
        slot = (generation + step) % slot_count
        if not _is_used(cursor, ring, slot):
            turned = _run(
                cursor, f"turn_{ring}_ring", slot=slot, generation=generation + step, expected=generation
            )
            return Turn.BUSY if turned is None else Turn.TURNED
    return Turn.FULL


def rotate_claim_ring(cursor: Cursor) -> Turn:
    """Seal the current slot of the claim ring and open the next empty one, passing over slots still in use."""
    return _turn(cursor, "claim", reach=1_000)


def prune_claim_slot(cursor: Cursor, slot: int) -> tuple[Prune, Gate | None]:
    """Empty a sealed slot of the claim ring, if every receipt in it has its one closure."""
    generation, slot_count = _run(cursor, "hold_claim_ring")
    if slot == generation % slot_count:
        return Prune.CURRENT, None
    _run(cursor, "hold_claim_slot", slot=slot)
    if not _is_used(cursor, "claim", slot):
        return Prune.NOTHING, None
    if (gate := _claim_gate(cursor, slot)) is not None:
        return Prune.HELD, gate
    _run(cursor, "limit_lock_waits")
    _run(cursor, "lock_claim_slot", child=slot)
    if (gate := _claim_gate(cursor, slot)) is not None:
        return Prune.HELD, gate
    _run(cursor, "empty_claim_slot", child=slot)
    _run(cursor, "reset_claim_cursors", slot=slot)
    return Prune.PRUNED, None


def _claim_gate(cursor: Cursor, slot: int) -> Gate | None:
    open_receipts = _run(cursor, "claim_slot_balance", child=slot)[0]
    if open_receipts > 0:
        return Gate(f"{open_receipts} receipts are open", "claim.open")
    if open_receipts < 0:
        return Gate(f"{-open_receipts} receipts were closed twice (H-06)", "claim.open")
    return None


# The lease ring ---------------------------------------------------------------------------------


def rotate_lease_ring(cursor: Cursor) -> Turn:
    """Seal the current slot of the lease ring and open the next, if that is empty."""
    return _turn(cursor, "lease", reach=1)


def prune_lease_slot(cursor: Cursor, slot: int) -> tuple[Prune, Gate | None]:
    """Give back the space of a sealed slot of the lease ring whose leases have all ended."""
    generation, slot_count = _run(cursor, "hold_lease_ring")
    if slot == generation % slot_count:
        return Prune.CURRENT, None
    held = Prune.HELD, Gate("it has leases", "lease.active")
    if _is_used(cursor, "lease", slot):
        return held
    _run(cursor, "limit_lock_waits")
    _run(cursor, "lock_lease_slot", child=slot)
    if _is_used(cursor, "lease", slot):
        return held
    _run(cursor, "empty_lease_slot", child=slot)
    return Prune.PRUNED, None
