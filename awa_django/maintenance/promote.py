"""Making jobs available whose time has come (contract: runtime/maintenance section 4)."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from awa_django import transitions
from awa_django.conf import Settings
from awa_django.jobs import Taken
from awa_django.maintenance import Context, Duty
from awa_django.maintenance.sweep import Sweeper
from awa_django.planes.base import Cursor, Due
from awa_django.planes.queue_storage.promote import take_due
from awa_django.planes.queue_storage.rings import Look
from awa_django.states import JobState

__all__ = ["Promotion", "duties"]

BATCH = 4096
BATCHES = 32
#: Seconds after the instant a job is due; a look too early would cost another interval.
SLACK = 0.002


@dataclass(slots=True)
class Promotion:
    """Promotes due jobs, ``scheduled`` and ``retryable`` taking turns in going first.

    ``budget`` in seconds ends a run early, so that a backlog of a million jobs does not keep the rings waiting.
    """

    budget: float
    sweeper: Sweeper = field(default_factory=lambda: Sweeper("promotion"))
    _states: tuple[JobState, JobState] = (JobState.SCHEDULED, JobState.RETRYABLE)

    def when(self, seen: Look) -> float | None:
        """Worth running as soon as a job is due; a moment later, since the leader's clock is not the database's."""
        return None if seen.due_in is None else seen.due_in + SLACK

    def run(self, context: Context) -> bool:
        """Promote what is due, a transaction for each batch; True if the time was up before the work was done.

        Waiting workers are notified by the insert, once a queue and batch. A job that may not become available,
        because a newer one holds its unique key, ends as a cancelled duplicate.
        """
        until = time.monotonic() + self.budget
        first, second = self._states
        self._states = second, first
        return self._promote(context, first, until) or self._promote(context, second, until)

    def _promote(self, context: Context, state: JobState, until: float) -> bool:
        def take(cursor: Cursor, passed_over: Collection[int]) -> list[Taken]:
            return take_due(cursor, Due(state, BATCH), passed_over=passed_over)

        for _ in range(BATCHES):
            if len(self.sweeper.sweep(context, take, transitions.promote)) < BATCH:
                return False
            if context.stopping() or time.monotonic() >= until:
                return True
        return True


def duties(settings: Settings) -> list[Duty]:
    """Promotion, as a line of the timetable."""
    promotion = Promotion(budget=settings.promote_interval.total_seconds())
    return [Duty("promotion", settings.promote_interval, promotion.run, promotion.when)]
