"""The part of a worker that goes on with batch operations: asleep, and without a session, until there is one."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from awa_django.conf import Settings
from awa_django.maintenance.bulk import BulkRunner, has_work
from awa_django.planes.base import Cursor
from awa_django.worker.service import Service

__all__ = ["Bulk"]

logger = logging.getLogger("awa_django.worker")

#: Seconds by which the leader is ahead of the others, if it is one of ours; theirs are spread over as many more.
HEAD_START = 0.3


class Bulk(Service):
    """Runs batch operations when it is told of one, if no other process does.

    It is told by a notification when one is submitted, and by :meth:`look` of one that nobody is at, such as that of a
    worker that died. ``leads`` says whether this process leads the fleet. Opens a session for as long as there is work.
    """

    def __init__(
        self,
        settings: Settings,
        leads: Callable[[], bool],
        *,
        connection: Callable[[], psycopg.Connection[Any]],
    ) -> None:
        super().__init__("bulk")
        self.settings = settings
        self._leads = leads
        self._open = connection
        self._told = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None

    def wake(self) -> None:
        """There may be something to do; from any thread."""
        self._told.set()

    def look(self, cursor: Cursor) -> None:
        """Ask, in somebody else's transaction, whether there is something to do that nobody does."""
        if has_work(cursor):
            self.wake()

    def stop(self) -> None:
        """Ask the loop to end after the chunk in progress."""
        super().stop()
        self._told.set()

    def cancel(self) -> None:
        """Break off the statement in progress, for a shutdown that cannot wait."""
        if (connection := self._connection) is not None and not connection.closed:
            connection.cancel_safe(timeout=2.0)

    def run(self) -> None:
        self.alive = True
        while not self.stopping.is_set():
            self._told.wait()
            self._told.clear()
            if not self._leads():
                self.stopping.wait(HEAD_START * (1 + random.random()))
            if not self.stopping.is_set():
                self._work()

    def _work(self) -> None:
        try:
            with self._open() as connection:
                self._connection = connection
                BulkRunner(
                    connection, self.settings, stopping=self.stopping.is_set, pause=self.stopping.wait
                ).run()
        except Exception:
            # The thread begins anew after a pause, and then looks again.
            self._told.set()
            raise
        finally:
            self._connection = None
