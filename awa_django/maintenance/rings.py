"""Keeping the three rings turning (contract: queue-storage/maintenance sections 3 to 9).

**Finished history is kept for people.** The queue ring holds the bodies of finished jobs, sixteen slots of them.
Other leaders turn it every second and forget within seconds; ours lets a slot fill for a fifteenth of
``COMPLETED_RETENTION`` or with a fifteenth of ``HISTORY_MAX_ROWS``, whichever comes first, so that the fifteen sealed
slots together span both. A sealed slot is emptied when the last job in it finished longer ago than the
retention, or when the current slot has reached its share of rows and the ring is full.

Nothing of this is remembered by the leader, who may be another one tomorrow: when a slot was opened is read off the
rows on its first page, how many rows it holds is estimated from a few pages, and when its last job finished is a
column. Whoever takes over decides alike.

A slot that is still needed is tried again after 2, 4 ... 32 intervals; the last of these says in the log what
holds it (H-12). One that merely could not be locked is tried again after 2.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import psycopg

from awa_django.conf import Settings
from awa_django.errors import said
from awa_django.maintenance import Context, Duty
from awa_django.maintenance.metrics import record_prune, record_turn
from awa_django.planes.base import Cursor
from awa_django.planes.queue_storage import rings
from awa_django.planes.queue_storage.rings import Gate, Look, Prune, Ring, Turn

__all__ = ["ClaimRing", "LeaseRing", "QueueRing", "RollUp", "duties"]

logger = logging.getLogger("awa_django.maintenance")

#: Doublings of the pause after a slot could not be emptied.
LAST_LEVEL = 5
#: Attempts in which a slot could not be locked, after which that is worth a line in the log.
MISSES_WORTH_MENTIONING = 30
#: Bytes of ended leases from which a slot of the lease ring is worth truncating.
LEASE_SLOT_BYTES = 512 * 1024


@dataclass(slots=True)
class _Patience:
    """How long to leave each slot of one ring alone."""

    ring: str
    interval: float
    clock: Callable[[], float]
    _levels: dict[int, int] = field(default_factory=dict)
    _until: dict[int, float] = field(default_factory=dict)
    _misses: dict[int, int] = field(default_factory=dict)

    def seconds(self, slot: int) -> float:
        """Until the slot may be tried again; 0 for now."""
        return max(self._until.get(slot, 0.0) - self.clock(), 0.0)

    def lose(self, slot: int, why: str) -> None:
        """Rows of the slot are needed: leave it alone for longer each time."""
        level = min(self._levels.get(slot, 0) + 1, LAST_LEVEL)
        if level == LAST_LEVEL and self._levels.get(slot) != LAST_LEVEL:
            logger.warning("slot %d of the %s ring cannot be emptied: %s", slot, self.ring, why)
        self._levels[slot] = level
        self._until[slot] = self.clock() + self.interval * 2**level

    def miss(self, slot: int) -> None:
        """A lock was not to be had within its 10 ms. That is a matter of luck, so the pause stays short."""
        self._until[slot] = self.clock() + self.interval * 2
        self._misses[slot] = self._misses.get(slot, 0) + 1
        if self._misses[slot] % MISSES_WORTH_MENTIONING == 0:
            logger.warning(
                "slot %d of the %s ring could not be locked in %d attempts; is there a long transaction?",
                slot, self.ring, self._misses[slot],
            )  # fmt: skip

    def forget(self, slot: int) -> None:
        """The slot was emptied."""
        for memory in (self._levels, self._until, self._misses):
            memory.pop(slot, None)


@dataclass(slots=True)
class _Keeper:
    """What the three rings have in common: the last look, and what came of it.

    Sizes tell whether anything was written, not whether it was committed or is there still; a slot that proved
    to hold nothing is left alone until its size changes.
    """

    name: str
    interval: float
    clock: Callable[[], float] = time.monotonic
    patience: _Patience = field(init=False)
    seen: Look | None = None
    _hollow: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.patience = _Patience(self.name, self.interval, self.clock)

    def holds(self, ring: Ring, slot: int) -> bool:
        """Whether a slot may hold rows."""
        return ring.sizes[slot] > 0 and self._hollow.get(slot) != ring.sizes[slot]

    def tried(self, ring: Ring, slot: int, result: Prune, gate: str | None) -> None:
        """Note what came of emptying a slot."""
        match result:
            case Prune.PRUNED:
                self._hollow.pop(slot, None)
                self.patience.forget(slot)
            case Prune.NOTHING:
                self._hollow[slot] = ring.sizes[slot]
            case Prune.HELD | Prune.CURRENT:
                self.patience.lose(slot, gate or "it became current")

    def turned(self, context: Context, ring: Ring, result: Turn) -> None:
        """Note what came of turning the ring."""
        record_turn(context, self.name, ring, result)
        if result is Turn.UNUSED:
            self._hollow[ring.current] = ring.sizes[ring.current]

    def empty(
        self, context: Context, ring: Ring, slot: int, prune: Callable[[Cursor], tuple[Prune, Gate | None]]
    ) -> Prune:
        """Try to empty one slot in a transaction of its own; a lock that cannot be had counts as held."""
        why: str | None
        try:
            with context.connection.transaction(), context.connection.cursor() as cursor:
                result, gate = prune(cursor)
            why = gate
            record_prune(context, self.name, slot, result, gate)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            record_prune(context, self.name, slot, Prune.HELD, None)
            self.patience.miss(slot)
            return Prune.HELD
        except psycopg.IntegrityError as error:
            record_prune(context, self.name, slot, Prune.HELD, None)
            logger.error(
                "slot %d of the %s ring cannot be emptied without losing history: %s",
                slot,
                self.name,
                said(error),
            )
            result, why = Prune.HELD, said(error)
        self.tried(ring, slot, result, why)
        return result


@dataclass(slots=True)
class QueueRing(_Keeper):
    """Turns and empties the queue ring by the history policy of this module."""

    retention: timedelta = timedelta(hours=24)
    max_rows: int = 5_000_000
    failed_retention: timedelta = timedelta(hours=72)
    _opened: dict[int, datetime] = field(default_factory=dict)
    _ends: dict[int, datetime] = field(default_factory=dict)
    _judged: Ring | None = None
    _again_at: float = 0.0

    def when(self, seen: Look) -> float | None:
        """As soon as anything was written since the last run, or when a slot comes of age."""
        self.seen = seen
        ring = seen.queue
        if not self.holds(ring, ring.current) and not any(
            self.holds(ring, slot) for slot in ring.sealed_in_use()
        ):
            return None
        if ring != self._judged:
            return 0.0
        return max(self._again_at - self.clock(), 0.0)

    def run(self, context: Context) -> None:
        """Turn the ring if the current slot has had its share, then empty at most one slot that is due.

        Younger history goes only from the one slot that an overflowing ring has to turn to.
        """
        assert self.seen is not None
        ring, now = self.seen.queue, self.seen.now
        self._judged = ring
        waits = [3600.0]
        sacrificed = self._turn(context, ring, now, waits) if self.holds(ring, ring.current) else None
        for slot in ring.sealed_in_use():
            if not self.holds(ring, slot):
                continue
            if pause := self.patience.seconds(slot):
                waits.append(pause)
                continue
            if slot != sacrificed and (left := self._seconds_left(context, slot, now)) > 0:
                waits.append(left)
                continue
            result = self.empty(
                context,
                ring,
                slot,
                lambda cursor, slot=slot: rings.prune_queue_slot(  # type: ignore[misc]
                    cursor, slot, failed_retention=self.failed_retention
                ),
            )
            if result is Prune.PRUNED:
                self._ends.pop(slot, None)
                waits.append(0.0)
                break
            waits.append(self.patience.seconds(slot))
        self._again_at = self.clock() + min(waits)

    def _turn(self, context: Context, ring: Ring, now: datetime, waits: list[float]) -> int | None:
        """Turn the ring if it is time; the slot in the way if the current one overflows and the ring is full."""
        slots = len(ring.sizes) - 1
        with context.connection.cursor() as cursor:
            if (
                ring.generation not in self._opened
                and (at := rings.opened_at(cursor, ring.current)) is not None
            ):
                self._opened = {ring.generation: at}
            rows = rings.slot_rows(cursor, ring.current)
        opened = self._opened.get(ring.generation)
        left = (opened + self.retention / slots - now).total_seconds() if opened is not None else 1.0
        overflows = rows * slots >= self.max_rows
        if left > 0 and not overflows:
            waits.append(left)
            return None
        with context.connection.transaction(), context.connection.cursor() as cursor:
            result = rings.rotate_queue_ring(cursor)
        self.turned(context, ring, result)
        # A ring that is full is looked at again when a slot was emptied; only overflow hurries that.
        waits.append(30.0 if result is Turn.FULL else self.interval)
        return (ring.generation + 1) % len(ring.sizes) if overflows and result is Turn.FULL else None

    def _seconds_left(self, context: Context, slot: int, now: datetime) -> float:
        """How long the history of a sealed slot is to be kept yet; 0 if there is none.

        The time the last job finished only moves on, so it is read again only when it has become too old.
        """
        end = self._ends.get(slot)
        if end is None or (end - now) + self.retention <= timedelta(0):
            with context.connection.cursor() as cursor:
                end = rings.newest_end(cursor, slot)
            if end is None:
                return 0.0
            self._ends[slot] = end
        return ((end - now) + self.retention).total_seconds()


@dataclass(slots=True)
class ClaimRing(_Keeper):
    """Turns and empties the claim ring, as fast as it is written to."""

    def when(self, seen: Look) -> float | None:
        """At once while receipts are written; later for slots that could not be emptied."""
        self.seen = seen
        ring = seen.claim
        waits = [self.patience.seconds(slot) for slot in ring.sealed_in_use() if self.holds(ring, slot)]
        if self.holds(ring, ring.current):
            waits.append(0.0)
        return min(waits, default=None)

    def run(self, context: Context) -> None:
        """Turn the ring, then empty every sealed slot whose receipts are all closed."""
        assert self.seen is not None
        ring = self.seen.claim
        if self.holds(ring, ring.current):
            with context.connection.transaction(), context.connection.cursor() as cursor:
                result = rings.rotate_claim_ring(cursor)
            self.turned(context, ring, result)
        for slot in ring.sealed_in_use():
            if self.holds(ring, slot) and not self.patience.seconds(slot):
                self.empty(
                    context,
                    ring,
                    slot,
                    lambda cursor, slot=slot: rings.prune_claim_slot(cursor, slot),  # type: ignore[misc]
                )


@dataclass(slots=True)
class LeaseRing(_Keeper):
    """Turns the lease ring, and gives back the space of ended leases where there is much of it."""

    def _worth_emptying(self, ring: Ring) -> list[int]:
        return [
            slot
            for slot in ring.sealed_in_use()
            if ring.sizes[slot] >= LEASE_SLOT_BYTES and self.holds(ring, slot)
        ]

    def when(self, seen: Look) -> float | None:
        """At once while leases are written; later for large slots that still have one."""
        self.seen = seen
        ring = seen.lease
        waits = [self.patience.seconds(slot) for slot in self._worth_emptying(ring)]
        if self.holds(ring, ring.current):
            waits.append(0.0)
        return min(waits, default=None)

    def run(self, context: Context) -> None:
        """Turn the ring, then truncate the large slots without a lease."""
        assert self.seen is not None
        ring = self.seen.lease
        if self.holds(ring, ring.current):
            with context.connection.transaction(), context.connection.cursor() as cursor:
                result = rings.rotate_lease_ring(cursor)
            self.turned(context, ring, result)
        for slot in self._worth_emptying(ring):
            if not self.patience.seconds(slot):
                self.empty(
                    context,
                    ring,
                    slot,
                    lambda cursor, slot=slot: rings.prune_lease_slot(cursor, slot),  # type: ignore[misc]
                )


class RollUp:
    """Folds the count increments of sealed slots, so that counting stays cheap while history is kept for long."""

    def run(self, context: Context) -> None:
        """Fold at most four slots, a transaction each; stops while another session holds an old snapshot."""
        with context.connection.cursor() as cursor:
            slots = rings.slots_with_deltas(cursor)
        for slot in slots:
            try:
                with context.connection.transaction(), context.connection.cursor() as cursor:
                    if not rings.horizon_is_clear(cursor):
                        return
                    rings.fold_counts(cursor, slot)
            except psycopg.errors.LockNotAvailable:
                return


def duties(settings: Settings) -> list[Duty]:
    """The rings and the roll-up, as lines of the timetable."""
    every = settings.ring_rotate_interval
    seconds = every.total_seconds()
    queue = QueueRing(
        "queue",
        seconds,
        retention=settings.completed_retention,
        max_rows=settings.history_max_rows,
        failed_retention=settings.failed_retention,
    )
    claim, lease = ClaimRing("claim", seconds), LeaseRing("lease", seconds)
    return [
        Duty("claim ring", every, claim.run, claim.when),
        Duty("lease ring", every, lease.run, lease.when),
        Duty("queue ring", every, queue.run, queue.when),
        Duty("counter roll-up", settings.rollup_interval, RollUp().run, skippable=False),
    ]
