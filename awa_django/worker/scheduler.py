"""The thread of a leader that fires schedules, on a session of its own.

It runs beside the timetable, so that a duty which takes long, or waits for a lock, delays no fire
(contract: runtime/maintenance section 2). While this process does not lead it asks so a few times a second and holds
no connection.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import psycopg

from awa_django import telemetry
from awa_django.conf import Settings
from awa_django.db import connect
from awa_django.errors import said
from awa_django.maintenance.cron import Pass, evaluate, sync
from awa_django.periodic import PeriodicJob, declared
from awa_django.worker.service import Service

__all__ = ["Scheduler"]

logger = logging.getLogger("awa_django.worker")

#: Seconds between two writes of the declarations.
SYNC_INTERVAL = 60.0
#: Seconds between two looks at the schedules, when none is known to fire earlier: how long one that another client
#: adds, changes or resumes may go unseen.
LOOK_INTERVAL = 2.5
#: The same where there are none.
EMPTY_INTERVAL = 5.0
#: Seconds after the instant of a fire; a look too early would cost another.
SLACK = 0.002
#: Seconds between two questions whether this process leads.
STANDBY_INTERVAL = 0.25


class Scheduler(Service):
    """Writes down what code declares and fires what is due, while ``leads`` says that this process leads.

    Sleeps until the next fire, and looks at the table every two and a half seconds, or five while it is empty: one
    read-only statement. ``connection`` opens the session; a transaction pooler may be in between.
    """

    def __init__(
        self,
        settings: Settings,
        leads: Callable[[], bool],
        *,
        declarations: Callable[[], Collection[PeriodicJob]] = declared.values,
        connection: Callable[[], psycopg.Connection[Any]] | None = None,
    ) -> None:
        super().__init__("scheduler")
        self._leads = leads
        self._declarations = declarations
        self._open = connection or (lambda: connect(settings.database, application_name="awa scheduler"))
        self._wake = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None

    def stop(self) -> None:
        """Ask the loop to end; the statement in progress is finished first."""
        super().stop()
        self._wake.set()

    def cancel(self) -> None:
        """Break off the statement in progress, for a shutdown that cannot wait."""
        if (connection := self._connection) is not None and not connection.closed:
            connection.cancel_safe(timeout=2.0)

    def run(self) -> None:
        while not self.stopping.is_set():
            if self._is_leading():
                with self._open() as connection:
                    self._connection = connection
                    try:
                        self.alive = True
                        self._serve(connection)
                    finally:
                        self._connection = None
            else:
                self.alive = True
                self._pause(STANDBY_INTERVAL)

    def _is_leading(self) -> bool:
        return self._leads() and not self.stopping.is_set()

    def _serve(self, connection: psycopg.Connection[Any]) -> None:
        sync_at = time.monotonic()
        while self._is_leading():
            if time.monotonic() >= sync_at:
                self._sync(connection)
                sync_at = time.monotonic() + SYNC_INTERVAL
            with telemetry.current().span("maintenance.cron_eval"):
                seen = evaluate(connection, leading=self._is_leading)
            self._pause(_seconds_until_next(seen))

    def _sync(self, connection: psycopg.Connection[Any]) -> None:
        try:
            with telemetry.current().duty("cron sync"):
                sync(connection, self._declarations())
        except psycopg.Error as error:
            if connection.closed or connection.broken:
                raise
            logger.error(
                "the schedules of this process could not be stored, again in %g s; those in the database fire: %s",
                SYNC_INTERVAL,
                said(error),
            )

    def _pause(self, seconds: float) -> None:
        self._wake.wait(seconds)
        if not self.stopping.is_set():
            self._wake.clear()


def _seconds_until_next(seen: Pass) -> float:
    """How long to sleep after a pass."""
    if not seen.schedules:
        return EMPTY_INTERVAL
    if seen.next_in is None:
        return LOOK_INTERVAL
    return min(LOOK_INTERVAL, seen.next_in + SLACK)
