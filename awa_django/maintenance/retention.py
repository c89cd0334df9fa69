"""Removing what nobody needs any more (contract: runtime/maintenance section 5, queue-storage/maintenance 10).

Finished jobs of queue storage go with their slot of the ring (:mod:`awa_django.maintenance.rings`); everything
else that ages is here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from awa_django.conf import Settings
from awa_django.maintenance import Context, Duty
from awa_django.planes.queue_storage.sweep import Claim, claims_page, forget_idle_states, release_orphans
from awa_django.sql import statement

__all__ = ["OrphanSweep", "duties"]

logger = logging.getLogger("awa_django.maintenance")

#: Rows that one statement removes at most.
BATCH = 1000


def _expire(name: str, **retention: timedelta) -> Callable[[Context], bool]:
    """A duty that runs one bounded statement in a transaction of its own; True while it comes back full."""

    def run(context: Context) -> bool:
        with context.connection.transaction(), context.connection.cursor() as cursor:
            cursor.execute(statement("control/retention", name), {**retention, "limit": BATCH})
            removed = cursor.rowcount
        if removed > 0:
            logger.info("%s: %d rows removed", name.replace("_", " "), removed)
        return removed >= BATCH

    return run


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


def duties(settings: Settings) -> list[Duty]:
    """Cleanup and sweeps, as lines of the timetable."""
    every = settings.cleanup_interval
    cleanup = [
        Duty(
            "cleanup of dead letters", every, _expire("expire_dead_letters", retention=settings.dlq_retention)
        ),
        Duty(
            "cleanup of runtimes", every, _expire("expire_instances", retention=settings.instance_retention)
        ),
        Duty("cleanup of bulk operations", every, _expire("expire_operations")),
        Duty(
            "cleanup of canonical jobs",
            every,
            _expire(
                "expire_canonical_jobs",
                completed_retention=settings.completed_retention,
                failed_retention=settings.failed_retention,
            ),
        ),
    ]
    if kept := settings.descriptor_retention:
        cleanup += [
            Duty("cleanup of queue labels", every, _expire("expire_queue_descriptors", retention=kept)),
            Duty("cleanup of kind labels", every, _expire("expire_kind_descriptors", retention=kept)),
        ]
    return [
        *cleanup,
        Duty("sweep of orphaned unique keys", settings.orphan_sweep_interval, OrphanSweep().run),
        Duty("sweep of orphaned heartbeats", settings.orphan_sweep_interval, _sweep_states),
    ]
