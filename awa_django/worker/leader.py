"""Leadership: one process of the fleet keeps the database in order.

The leader is whoever holds one session advisory lock, be it a worker of this project or a reference one; so at
most one leads a database at any time, and its duties are all of :mod:`awa_django.maintenance`. Lock and duties
share one connection: when it is lost, both are over at once and nothing goes on unprotected.

Whoever leads does everything, for jobs of either storage, whichever its own process serves.
(contract: queue-storage/maintenance section 1, runtime/maintenance section 1)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from awa_django import telemetry
from awa_django.conf import Settings
from awa_django.db import connect
from awa_django.errors import without_details
from awa_django.followups import leave_connections
from awa_django.jobs import Landed
from awa_django.maintenance import Context, Duty, Timetable, metrics, timetable
from awa_django.operations.leading import LEADER_KEY
from awa_django.planes.base import Plane
from awa_django.settle import announce, follow_rescues, rescue_notices
from awa_django.sql import statement
from awa_django.worker.service import Service

__all__ = ["Leadership", "LeadershipLost"]

logger = logging.getLogger("awa_django.worker")


class LeadershipLost(psycopg.OperationalError):
    """The session no longer holds the leader's lock; another process may lead already."""


def _ignore(kind: str, landed: Sequence[Landed]) -> None:
    """Nobody asked to be told."""


class Leadership(Service):
    """Tries to lead every ``LEADER_ELECTION_INTERVAL``, and runs the timetable while it does.

    ``rescued`` is told of attempts that were taken away, from this thread and after the commit. ``duties``
    are further lines of the timetable. ``connection`` opens the session; it must be one that no
    transaction pooler hands to others.
    """

    def __init__(
        self,
        settings: Settings,
        planes: Sequence[Plane],
        *,
        rescued: Callable[[str, Sequence[Landed]], None] = _ignore,
        duties: Sequence[Duty] = (),
        connection: Callable[[], psycopg.Connection[Any]] | None = None,
    ) -> None:
        super().__init__("leader")
        self.settings = settings
        self.planes = planes
        self.rescued = rescued
        self.extra = duties
        self._open = connection or (lambda: connect(settings.database, application_name="awa leader"))
        self._leading = threading.Event()
        self._wake = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
        self._timetable: Timetable | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this process leads."""
        return self._leading.is_set()

    def wait_until_leader(self, timeout: float) -> bool:
        """Wait for the leadership; whether it came."""
        return self._leading.wait(timeout)

    def expect(self, seconds: float) -> None:
        """Tell the leader, if that is us, that this process put off a job for so many seconds."""
        if (current := self._timetable) is not None:
            current.expect(seconds)

    def stop(self) -> None:
        """Ask the loop to end; the statement in progress is finished first."""
        super().stop()
        self._wake.set()

    def cancel(self) -> None:
        """Break off the statement in progress, for a shutdown that cannot wait."""
        if (connection := self._connection) is not None and not connection.closed:
            connection.cancel_safe(timeout=2.0)

    def run(self) -> None:
        with self._open() as connection:
            # Statements over many small partitions look dear to the planner and are cheap.
            connection.execute("SET jit = off")
            self._connection = connection
            try:
                self.alive = True
                while not self.stopping.is_set():
                    if self._elected(connection):
                        self._lead(connection)
                    else:
                        self._wake.wait(self.settings.leader_election_interval.total_seconds())
            finally:
                self._connection = None

    def _elected(self, connection: psycopg.Connection[Any]) -> bool:
        row = connection.execute(statement("control/leader", "try_to_lead"), {"key": LEADER_KEY}).fetchone()
        return row is not None and bool(row[0])

    def _lead(self, connection: psycopg.Connection[Any]) -> None:
        context = Context(
            connection=connection,
            settings=self.settings,
            rescued=self._tell,
            stopping=self.stopping.is_set,
        )
        check = Duty("leadership check", self.settings.leader_check_interval, _check, skippable=False)
        duties = timetable(self.settings, self.planes, extra=(check, *self.extra))
        duties.wake = self._wake
        self._timetable = duties
        self._leading.set()
        logger.info("leading: this process now rescues, promotes and cleans up for the whole fleet")
        try:
            duties.run(context, self.stopping)
        finally:
            self._leading.clear()
            self._timetable = None
            metrics.forget()
            logger.info("no longer leading")
            if not (connection.closed or connection.broken):
                connection.execute(statement("control/leader", "stop_leading"), {"key": LEADER_KEY})

    def _tell(self, kind: str, landed: Sequence[Landed]) -> None:
        logger.warning(
            "%d attempts taken away from workers (%s): jobs %s",
            len(landed), kind, [item.landing.taken.job_id for item in landed[:20]],
        )  # fmt: skip
        telemetry.current().rescued(kind, landed)
        try:
            self.rescued(kind, landed)
            told = rescue_notices(kind, landed)
            if self._connection is not None:
                follow_rescues(self._connection, told)
            announce(told)
        except Exception as error:
            without_details(error)
            logger.exception("what follows a rescue failed; the jobs themselves are back in their queues")
        finally:
            leave_connections()


def _check(context: Context) -> None:
    """Make sure that the session still holds the lock; a pooler or a stray unlock may have taken it."""
    row = context.connection.execute(
        statement("control/leader", "is_leading"), {"key": LEADER_KEY}
    ).fetchone()
    if row is None or not row[0]:
        context.connection.close()
        raise LeadershipLost(
            "the leader's lock is no longer held by this session; is there a pooler in between?"
        )
