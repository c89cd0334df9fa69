"""What the worker does in the database on behalf of a running handler (contract: runtime/attempt sections 4 and 5).

A handler's callbacks and progress must be stored before it goes on, whatever transaction the handler has open on
Django's connection. So they go through a few sessions of the worker's own, each for one short transaction at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from awa_django.jobs import Callback
from awa_django.planes.base import Cursor, Plane
from awa_django.transitions import Standing
from awa_django.worker.flights import Flight

__all__ = ["SESSIONS", "Attendant"]

#: Handlers that register or look at the same moment wait for each other beyond this many.
SESSIONS = 4

Answer = TypeVar("Answer")


class Attendant:
    """Short transactions for handlers, from whatever thread. ``flush`` stores the progress of one attempt.

    Sessions are opened as they are needed and kept; one that failed is closed. What has to do with an attempt whose
    end is being written is refused.
    """

    def __init__(
        self,
        *,
        plane: Plane,
        connect: Callable[[], psycopg.Connection[Any]],
        flush: Callable[[Flight], None],
        sessions: int = SESSIONS,
    ) -> None:
        self.flush = flush
        self._plane = plane
        self._connect = connect
        self._idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(sessions)
        self._closed = False

    def register(self, flight: Flight, callback_id: UUID, timeout: timedelta, expressions: Callback) -> bool:
        """Store a token for the attempt; False if it is over. It is durable on return."""
        # First, so that an outcome which is written meanwhile knows that there may be a lease.
        flight.has_lease = flight.left_state = True
        if flight.settling or flight.done:
            return False
        return self._do(
            lambda cursor: self._plane.register_callback(
                cursor, flight.attempt, callback_id, timeout, expressions
            )
        )

    def withdraw(self, flight: Flight) -> bool:
        """Forget the attempt's token; False if there was none."""
        return self._do(lambda cursor: self._plane.withdraw_callback(cursor, flight.attempt))

    def begin_wait(self, flight: Flight, callback_id: UUID) -> bool:
        """Have the attempt wait for this token; False if it does not hold it, or does not run."""
        if flight.settling or flight.done:
            return False
        return self._do(lambda cursor: self._plane.begin_wait(cursor, flight.attempt, callback_id))

    def end_wait(self, flight: Flight, callback_id: UUID) -> bool:
        """Have it run again without an answer; False if it was not waiting for this token."""
        return self._do(lambda cursor: self._plane.end_wait(cursor, flight.attempt, callback_id))

    def look(self, flight: Flight) -> Standing | None:
        """Where the attempt's job is; an answer that lies ready is taken."""
        return self._do(lambda cursor: self._plane.consume_result(cursor, flight.attempt))

    def close(self) -> None:
        """Close the idle sessions, and those in use as they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _do(self, work: Callable[[Cursor], Answer]) -> Answer:
        with self._free:
            connection, is_fresh = self._session()
            try:
                answer = self._within(connection, work)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if is_fresh or not connection.closed:
                    self._put_back(connection)
                    raise
                # It died while nobody used it. The guards make it harmless to ask again.
                connection = self._connect()
                try:
                    answer = self._within(connection, work)
                except BaseException:
                    connection.close()
                    raise
            except BaseException:
                connection.close()
                raise
            self._put_back(connection)
            return answer

    def _session(self) -> tuple[psycopg.Connection[Any], bool]:
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        return self._connect(), True

    def _put_back(self, connection: psycopg.Connection[Any]) -> None:
        with self._lock:
            if not self._closed and not connection.closed:
                self._idle.append(connection)
                return
        connection.close()

    @staticmethod
    def _within(connection: psycopg.Connection[Any], work: Callable[[Cursor], Answer]) -> Answer:
        with connection.transaction(), psycopg.Cursor(connection) as cursor:
            return work(cursor)
