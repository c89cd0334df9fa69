"""What only the canonical tables need: ageing of priorities, cached counters (contract: runtime/maintenance section 2).

Everything here is watchful: a database whose canonical tables are empty, as most are, is never asked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from awa_django.conf import Settings
from awa_django.maintenance import Context, Duty
from awa_django.planes.canonical import upkeep
from awa_django.planes.queue_storage.rings import Look

__all__ = ["duties"]

#: Waiting this long raises a job by one priority level.
AGING_INTERVAL = timedelta(seconds=60)
#: Keys whose counters one call of the database's function brings up to date.
BATCH = 100
RECOUNT_INTERVAL = timedelta(seconds=2)
FULL_RECOUNT_INTERVAL = timedelta(seconds=60)
#: The part of the leader's time that counting everything may take: on a million rows it takes a second or more.
RECOUNT_SHARE = 0.01


def _when_any(seen: Look) -> float | None:
    return 0.0 if seen.canonical else None


def _when_dirty(seen: Look) -> float | None:
    return 0.0 if seen.dirty else None


def _age(context: Context) -> None:
    """Raise jobs that wait longer than the interval by one priority level."""
    with context.connection.transaction(), context.connection.cursor() as cursor:
        upkeep.age_priorities(cursor, AGING_INTERVAL)


def _recount(context: Context) -> bool:
    """Bring the counters of touched queues and kinds up to date; True while there may be more of them."""
    with context.connection.transaction(), context.connection.cursor() as cursor:
        return upkeep.recount_marked(cursor, BATCH) >= BATCH


@dataclass(slots=True)
class FullRecount:
    """Brings all counters up to date, whatever was touched.

    It reads every row and mends only what should not happen, marks that were lost, so it takes a small part of the
    time where there are many rows: promotion waits for it.
    """

    clock: Callable[[], float] = time.monotonic
    _not_before: float = -math.inf

    def when(self, seen: Look) -> float | None:
        """While there are rows, unless it took long a short while ago."""
        return max(self._not_before - self.clock(), 0.0) if seen.canonical else None

    def run(self, context: Context) -> None:
        """Count everything, in one transaction."""
        began = self.clock()
        with context.connection.transaction(), context.connection.cursor() as cursor:
            upkeep.recount_all(cursor)
        ended = self.clock()
        self._not_before = ended + (ended - began) / RECOUNT_SHARE


def duties(settings: Settings) -> list[Duty]:
    """Upkeep of the canonical tables, as lines of the timetable."""
    full = FullRecount()
    return [
        Duty("ageing of priorities", AGING_INTERVAL, _age, _when_any),
        Duty("recount of touched queues", RECOUNT_INTERVAL, _recount, _when_dirty),
        Duty("recount of all queues", FULL_RECOUNT_INTERVAL, full.run, full.when),
    ]
