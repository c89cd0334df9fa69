"""Moving a batch of jobs: take, decide, place, in one transaction; and what to do with the one that will not go."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import psycopg

from awa_django.errors import said
from awa_django.jobs import Landed, Landing, Taken
from awa_django.maintenance import Context
from awa_django.planes.base import Cursor, Plane

__all__ = ["Sweeper", "name_on"]

logger = logging.getLogger("awa_django.maintenance")

#: Seconds after which a job that could not be moved is tried again.
RETRY_BAD_AFTER = 60.0
#: Jobs remembered at most, so that a flood of bad rows cannot fill the memory or the statement.
REMEMBERED = 10_000


class _Refused(Exception):
    """Rolls a batch back so that it can be repeated without these jobs."""

    def __init__(self, faults: dict[int, Exception]) -> None:
        self.faults = faults


def name_on(plane: Plane, name: str) -> str:
    """What a duty is called that is done on each plane."""
    return f"{name} (canonical)" if plane.name == "canonical" else name


@dataclass(slots=True)
class Sweeper:
    """Moves batches, passing over the jobs that could not be moved a short while ago (DEC-18).

    A batch that fails is repeated in halves to find out which job is to blame; then it is done again
    without that one, which stays where it is and is named in the log.
    """

    name: str
    plane: Plane
    clock: Callable[[], float] = time.monotonic
    _bad: dict[int, float] = field(default_factory=dict)

    def sweep(
        self,
        context: Context,
        take: Callable[[Cursor, Collection[int]], list[Taken]],
        land: Callable[[Taken], Landing],
    ) -> list[Landed]:
        """One batch, in one transaction of its own; returns what was written.

        Raises what is no single job's fault: a deadlock, a lost connection, a lock that was not to be had.
        """
        while True:
            try:
                with context.connection.transaction(), context.connection.cursor() as cursor:
                    return self._move(context, cursor, take(cursor, self.passed_over()), land)
            except _Refused as refused:
                for job_id, error in refused.faults.items():
                    logger.error(
                        "%s passes over job %d for %g s, since it cannot be written: %s",
                        self.name, job_id, RETRY_BAD_AFTER, said(error),
                    )  # fmt: skip
                    self._bad[job_id] = self.clock() + RETRY_BAD_AFTER

    def passed_over(self) -> list[int]:
        """Jobs that are not to be taken for now."""
        now = self.clock()
        self._bad = {job_id: until for job_id, until in self._bad.items() if until > now}
        return list(self._bad)[-REMEMBERED:]

    def _move(
        self,
        context: Context,
        cursor: Cursor,
        taken: Sequence[Taken],
        land: Callable[[Taken], Landing],
    ) -> list[Landed]:
        faults: dict[int, Exception] = {}
        landings = []
        for job in taken:
            try:
                landings.append(land(job))
            except Exception as error:
                faults[job.job_id] = error
        landed = self._place(context, cursor, landings, faults)
        if faults:
            raise _Refused(faults)
        return landed

    def _place(
        self, context: Context, cursor: Cursor, landings: Sequence[Landing], faults: dict[int, Exception]
    ) -> list[Landed]:
        if not landings:
            return []
        try:
            with context.connection.transaction():
                return self.plane.place(cursor, landings)
        except psycopg.OperationalError:
            # A deadlock, a timeout, a lost connection: nothing that leaving out a job would mend.
            raise
        except Exception as error:
            if len(landings) == 1:
                faults[landings[0].taken.job_id] = error
                return []
            middle = len(landings) // 2
            return self._place(context, cursor, landings[:middle], faults) + self._place(
                context, cursor, landings[middle:], faults
            )
