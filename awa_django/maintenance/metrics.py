"""What the leader measures: queues by state, their lag and dead letters, and what is in the way of a ring.

Only the leader measures, so that a fleet counts each job once, and only where somebody collects: without a meter
provider the duty does not exist, and nobody asks what holds a slot. (contract: runtime/observability section 1)
"""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from awa_django import telemetry
from awa_django.conf import Settings
from awa_django.maintenance import Context, Duty
from awa_django.planes.base import Cursor
from awa_django.planes.queue_storage.rings import Gate, Prune, Ring, Turn
from awa_django.sql import statement
from awa_django.states import JobState

__all__ = [
    "QueueMetrics",
    "duties",
    "forget",
    "measure",
    "queue_metrics",
    "record_prune",
    "record_turn",
]

INTERVAL = timedelta(seconds=30)
#: Jobs waiting in one lane that are counted one by one; more are estimated from the lane's positions.
COUNT_UP_TO = 10_000
#: Rows in the way of a ring that are counted; as many or more are shown as this many.
ROWS_UP_TO = 10_000

_GAUGES = ("awa.queue.depth", "awa.queue.lag", "awa.job.dlq_depth")


class QueueMetrics(NamedTuple):
    """One queue as it was measured. ``failed`` includes the dead letters; ``lag`` is in seconds."""

    queue: str
    available: int
    running: int
    failed: int
    scheduled: int
    retryable: int
    waiting_external: int
    dead_letters: int
    lag: float

    def plus(self, other: QueueMetrics) -> QueueMetrics:
        """The same queue over two storages."""
        counts = (mine + theirs for mine, theirs in zip(self[1:-1], other[1:-1], strict=True))
        return QueueMetrics._make((self.queue, *counts, max(self.lag, other.lag)))


_STATES: tuple[JobState, ...] = (
    JobState.AVAILABLE,
    JobState.RUNNING,
    JobState.FAILED,
    JobState.SCHEDULED,
    JobState.RETRYABLE,
    JobState.WAITING_EXTERNAL,
)


def queue_metrics(cursor: Cursor) -> list[QueueMetrics]:
    """Measure every queue, over both storages since one leader looks after both; two statements, without locks."""
    cursor.execute(statement("queue_storage/metrics", "queue_metrics"), {"count_up_to": COUNT_UP_TO})
    found = {row[0]: QueueMetrics(*row) for row in cursor.fetchall()}
    cursor.execute(statement("canonical/metrics", "queue_metrics"), {})
    for row in cursor.fetchall():
        item = QueueMetrics(*row)
        found[item.queue] = found[item.queue].plus(item) if item.queue in found else item
    return list(found.values())


def measure(context: Context) -> None:
    """Measure and show, until the next time or until this process stops leading (:func:`forget`)."""
    with context.connection.cursor() as cursor:
        found = queue_metrics(cursor)
    live = telemetry.current()
    live.show(
        "awa.queue.depth",
        [
            ({telemetry.QUEUE: item.queue, telemetry.STATE: state.value}, getattr(item, state.value))
            for item in found
            for state in _STATES
        ],
    )
    live.show("awa.queue.lag", [({telemetry.QUEUE: item.queue}, item.lag) for item in found])
    live.show("awa.job.dlq_depth", [({telemetry.QUEUE: item.queue}, item.dead_letters) for item in found])


def forget() -> None:
    """Show nothing any more; for a process that stops leading."""
    live = telemetry.current()
    for name in _GAUGES:
        live.show(name, [])


def record_turn(context: Context, name: str, ring: Ring, result: Turn) -> None:
    """Count an attempt to turn a ring, and show where it stands or what is in the way. After its transaction."""
    live = telemetry.current()
    if not live.metering or result is Turn.UNUSED:
        return
    with context.connection.cursor() as cursor:
        if result is Turn.TURNED:
            cursor.execute(statement("queue_storage/metrics", f"{name}_ring"), {})
            slot, generation = cursor.fetchone() or (0, 0)
            live.rotated(name, slot=slot, generation=generation)
            return
        blockers: dict[str, int] = {}
        if result is Turn.FULL:
            following = (ring.generation + 1) % len(ring.sizes)
            blockers = _rows(cursor, f"{name}_slot_rows", following)
        live.rotation_skipped(name, blockers)


_PRUNED = {
    Prune.PRUNED: "pruned",
    Prune.NOTHING: "noop",
    Prune.CURRENT: "skipped_active",
    Prune.HELD: "skipped_active",
}


def record_prune(context: Context, name: str, slot: int, result: Prune, gate: Gate | None) -> None:
    """Count an attempt to empty a slot, with how many rows are in the way. After its transaction.

    ``gate`` None with a slot that is held means that a lock was not to be had, or another refusal of the database.
    """
    live = telemetry.current()
    if not live.metering:
        return
    if result is Prune.HELD and gate is None:
        live.pruned(name, "blocked")
        return
    reason, rows = "none", None
    if result is Prune.CURRENT and name != "queue":
        reason = f"{name}.current"
    elif gate is not None:
        reason = gate.reason
        with context.connection.cursor() as cursor:
            rows = _rows(cursor, f"{name}_slot_holders", slot).get(reason)
    live.pruned(name, _PRUNED[result], reason, rows)


def _rows(cursor: Cursor, name: str, slot: int) -> dict[str, int]:
    """The rows of a slot, by what they are called; those that there are."""
    cursor.execute(
        statement("queue_storage/metrics", name, slot=slot), {"slot": slot, "rows_up_to": ROWS_UP_TO}
    )
    return {what: rows for what, rows in cursor.fetchall() if rows}


def duties(settings: Settings) -> list[Duty]:
    """The measurement, as a line of the timetable where metrics are collected; else nothing."""
    return [Duty("queue metrics", INTERVAL, measure)] if telemetry.current().metering else []
