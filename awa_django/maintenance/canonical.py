"""What only the canonical tables need: ageing of priorities, cached counters (contract: runtime/maintenance section 2).

Everything here is watchful: a database whose canonical tables are empty, as most are, is never asked.
"""

from __future__ import annotations

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


def _recount_all(context: Context) -> None:
    """Bring all counters up to date, whatever was touched."""
    with context.connection.transaction(), context.connection.cursor() as cursor:
        upkeep.recount_all(cursor)


def duties(settings: Settings) -> list[Duty]:
    """Upkeep of the canonical tables, as lines of the timetable."""
    return [
        Duty("ageing of priorities", AGING_INTERVAL, _age, _when_any),
        Duty("recount of touched queues", RECOUNT_INTERVAL, _recount, _when_dirty),
        Duty("recount of all queues", FULL_RECOUNT_INTERVAL, _recount_all, _when_any),
    ]
