"""Removing what nobody needs any more (contract: runtime/maintenance section 5, queue-storage/maintenance 10).

Finished jobs of queue storage go with their slot of the ring (:mod:`awa_django.maintenance.rings`); everything
else that ages is here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from awa_django import telemetry
from awa_django.conf import QueueConfig, Settings
from awa_django.maintenance import Context, Duty
from awa_django.planes.base import Cursor
from awa_django.planes.canonical.upkeep import expire_finished
from awa_django.planes.queue_storage.repair import overclosed_slots, repair_slot
from awa_django.planes.queue_storage.sweep import Claim, claims_page, forget_idle_states, release_orphans
from awa_django.sql import statement

__all__ = ["OrphanSweep", "duties"]

logger = logging.getLogger("awa_django.maintenance")

#: Rows that one statement removes at most.
BATCH = 1000


def _removal(
    what: str, remove: Callable[[Cursor], int], count: Callable[[int], None] | None = None
) -> Callable[[Context], bool]:
    """A duty that removes a bounded number of rows in a transaction of its own; True while there may be more.

    ``count`` is told how many, after the commit.
    """

    def run(context: Context) -> bool:
        with context.connection.transaction(), context.connection.cursor() as cursor:
            removed = remove(cursor)
        if removed > 0:
            logger.info("%s: %d rows removed", what, removed)
            if count is not None:
                count(removed)
        return removed >= BATCH

    return run


def _cleanup(settings: Settings, what: str, name: str, **values: Any) -> Duty:
    """A duty that runs one statement of ``control/retention``."""

    def remove(cursor: Cursor) -> int:
        cursor.execute(statement("control/retention", name), {**values, "limit": BATCH})
        return cursor.rowcount

    count = partial(_purged, values["only"]) if name == "expire_dead_letters" else None
    return Duty(what, settings.cleanup_interval, _removal(what, remove, count))


def _purged(only: Sequence[str] | None, removed: int) -> None:
    telemetry.current().dlq_purged(removed, queue=only[0] if only else None)


def _cleanup_canonical(
    settings: Settings, what: str, *, only: Sequence[str] | None, other: Sequence[str], queue: QueueConfig
) -> Duty:
    def remove(cursor: Cursor) -> int:
        return expire_finished(
            cursor,
            completed=_own(queue.completed_retention, settings.completed_retention),
            failed=_own(queue.failed_retention, settings.failed_retention),
            limit=BATCH,
            only=only,
            other=other,
        )

    return Duty(what, settings.cleanup_interval, _removal(what, remove))


def _own(value: timedelta | None, default: timedelta) -> timedelta:
    return default if value is None else value


def _cleanup_by_queue(settings: Settings) -> list[Duty]:
    """What is kept for a time that a queue may decide: a pass for all others, and one for each that does."""
    queues = settings.queues.values()
    dead = [queue for queue in queues if queue.dlq_retention is not None]
    finished = [
        queue
        for queue in queues
        if queue.completed_retention is not None or queue.failed_retention is not None
    ]
    return [
        _cleanup(
            settings,
            "cleanup of dead letters",
            "expire_dead_letters",
            retention=settings.dlq_retention,
            only=None,
            other=[queue.name for queue in dead],
        ),
        *(
            _cleanup(
                settings,
                f"cleanup of dead letters of {queue.name}",
                "expire_dead_letters",
                retention=queue.dlq_retention,
                only=[queue.name],
                other=[],
            )
            for queue in dead
        ),
        _cleanup_canonical(
            settings,
            "cleanup of canonical jobs",
            only=None,
            other=[queue.name for queue in finished],
            queue=QueueConfig("any other"),
        ),
        *(
            _cleanup_canonical(
                settings,
                f"cleanup of canonical jobs of {queue.name}",
                only=[queue.name],
                other=[],
                queue=queue,
            )
            for queue in finished
        ),
    ]


@dataclass(slots=True)
class OrphanSweep:
    """Finds unique claims whose job is gone, and lets those go that were found so twice.

    Twice, because a job may be on its way between two places; between the two sightings lies at least the sweep's
    interval. A page of claims at a time, so that other duties come in between.
    """

    _after: bytes = b""
    _suspects: set[Claim] = field(default_factory=set)
    _found: set[Claim] = field(default_factory=set)

    def run(self, context: Context) -> bool:
        """Look at one page; True until all have been looked at."""
        with context.connection.transaction(), context.connection.cursor() as cursor:
            page = claims_page(cursor, self._after, BATCH)
            confirmed = [claim for claim in page.orphans if claim in self._suspects]
            released = release_orphans(cursor, confirmed) if confirmed else []
        if released:
            logger.warning(
                "%d unique keys were held by jobs that no longer exist: %s", len(released), released[:20]
            )
        self._found.update(claim for claim in page.orphans if claim not in self._suspects)
        if page.last_key is not None:
            self._after = page.last_key
            return True
        self._after, self._suspects, self._found = b"", self._found, set()
        return False


def _sweep_states(context: Context) -> bool:
    with context.connection.transaction(), context.connection.cursor() as cursor:
        removed = forget_idle_states(cursor, BATCH)
    if removed:
        logger.warning("%d heartbeat rows belonged to no attempt", removed)
    return removed >= BATCH


def _repair(context: Context) -> None:
    """Undo attempts that two clients ended at once, where the counts of a claim slot show it."""
    with context.connection.cursor() as cursor:
        slots = overclosed_slots(cursor)
    for slot in slots:
        with context.connection.transaction(), context.connection.cursor() as cursor:
            repair = repair_slot(cursor, slot)
        logger.warning(
            "%d attempts of claim slot %d had been ended twice by clients that did not see each other; "
            "removed the second ends %s",
            repair.receipts, slot, repair.ends[:20],
        )  # fmt: skip


def duties(settings: Settings) -> list[Duty]:
    """Cleanup and sweeps, as lines of the timetable."""
    cleanup = [
        *_cleanup_by_queue(settings),
        _cleanup(settings, "cleanup of runtimes", "expire_instances", retention=settings.instance_retention),
        _cleanup(settings, "cleanup of bulk operations", "expire_operations"),
    ]
    if kept := settings.descriptor_retention:
        cleanup += [
            _cleanup(settings, "cleanup of queue labels", "expire_queue_descriptors", retention=kept),
            _cleanup(settings, "cleanup of kind labels", "expire_kind_descriptors", retention=kept),
        ]
    return [
        *cleanup,
        Duty("sweep of orphaned unique keys", settings.orphan_sweep_interval, OrphanSweep().run),
        Duty("repair of double ends", settings.cleanup_interval, _repair),
        Duty("sweep of orphaned heartbeats", settings.orphan_sweep_interval, _sweep_states),
    ]
