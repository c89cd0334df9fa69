"""Making jobs available whose time has come (contract: runtime/maintenance section 4)."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from awa_django import telemetry, transitions
from awa_django.conf import Settings
from awa_django.jobs import Taken
from awa_django.maintenance import Context, Duty
from awa_django.maintenance.sweep import Sweeper, name_on
from awa_django.planes.base import Cursor, Due, Plane
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
    sweeper: Sweeper
    _states: tuple[JobState, JobState] = (JobState.SCHEDULED, JobState.RETRYABLE)

    def when(self, seen: Look) -> float | None:
        """Worth running as soon as a job is due; a moment later, since the leader's clock is not the database's."""
        due_in = seen.canonical_due_in if self.sweeper.plane.name == "canonical" else seen.due_in
        return None if due_in is None else due_in + SLACK

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
            return self.sweeper.plane.take(cursor, Due(state, BATCH, passed_over))

        for _ in range(BATCHES):
            began = time.perf_counter()
            landed = self.sweeper.sweep(context, take, transitions.promote)
            telemetry.current().promoted(state.value, len(landed), time.perf_counter() - began)
            if len(landed) < BATCH:
                return False
            if context.stopping() or time.monotonic() >= until:
                return True
        return True


def duties(settings: Settings, plane: Plane) -> list[Duty]:
    """Promotion on one plane, as a line of the timetable."""
    name = name_on(plane, "promotion")
    promotion = Promotion(settings.promote_interval.total_seconds(), Sweeper(name, plane))
    return [Duty(name, settings.promote_interval, promotion.run, promotion.when)]
