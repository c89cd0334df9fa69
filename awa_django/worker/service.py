"""Threads that keep running: what every service of a worker has in common."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

import psycopg
from django.db import Error as DatabaseError

from awa_django.errors import said, without_details

logger = logging.getLogger("awa_django.worker")

#: Seconds until a service that died is started again, doubling.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


class Service(ABC):
    """A named thread whose loop is started again with a growing pause when it dies.

    Losing the database is not fatal to anything: the loop raises, pauses and begins anew with a new
    connection. ``alive`` is false meanwhile. ``stop`` asks the loop to end and returns at once; ``join`` waits.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = False
        #: Deaths in a row that a lost database does not explain.
        self.crashes = 0
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_running, name=f"awa-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the loop to end."""
        self.stopping.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread; whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @abstractmethod
    def run(self) -> None:
        """Serve until ``stopping`` is set. Sets ``alive`` once it can work."""

    def ended(self) -> None:  # noqa: B027 - most services have nothing left to do
        """Called by the thread as its last act."""

    def _keep_running(self) -> None:
        pause = FIRST_PAUSE
        while not self.stopping.is_set():
            try:
                self.run()
            except (psycopg.Error, DatabaseError, OSError) as error:
                was_alive, self.alive = self.alive, False
                if self.stopping.is_set():
                    break
                pause = FIRST_PAUSE if was_alive else min(pause * 2, LONGEST_PAUSE)
                logger.warning("%s lost the database, again in %.0f s: %s", self.name, pause, said(error))
                self.stopping.wait(pause)
            except Exception as error:
                self.crashes += 1
                was_alive, self.alive = self.alive, False
                pause = FIRST_PAUSE if was_alive else min(pause * 2, LONGEST_PAUSE)
                without_details(error)
                logger.exception("%s died, again in %.0f s", self.name, pause)
                self.stopping.wait(pause)
        self.alive = False
        self.ended()
