"""Signs of life of this worker's attempts (contract: runtime/completion-heartbeat section 2)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from awa_django import telemetry
from awa_django.planes.base import Beat, Plane, send
from awa_django.settle import pipelined
from awa_django.sql import statement
from awa_django.worker.flights import Flight, Flights
from awa_django.worker.service import Service

__all__ = ["Heartbeat"]

logger = logging.getLogger("awa_django.worker")

#: Attempts in one statement.
BATCH = 500


class Heartbeat(Service):
    """Beats for every attempt held, executing or finalizing, once an interval; nothing is sent when none is held.

    Progress goes along when it changed. An attempt that the database no longer knows as current
    gets its cancel flag raised and no further beats.
    """

    def __init__(
        self,
        flights: Flights,
        *,
        plane: Plane,
        connect: Callable[[], psycopg.Connection[Any]],
        interval: float,
    ) -> None:
        super().__init__("heartbeat")
        self._flights = flights
        self._plane = plane
        self._connect = connect
        self._interval = interval
        self._telemetry = telemetry.current()
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        self.alive = True
        try:
            while not self.stopping.wait(self._interval):
                self.beat()
            self.beat()
        finally:
            with self._lock:
                self._disconnect()

    def beat(self) -> None:
        """One round for everything held."""
        flights = sorted(
            (flight for flight in self._flights.all() if not flight.lost), key=lambda item: item.pair
        )
        with self._telemetry.span("heartbeat.tick", debug=True, interval=self._interval):
            for start in range(0, len(flights), BATCH):
                self._beat_all(flights[start : start + BATCH])

    def flush(self, flight: Flight) -> None:
        """Store the progress of one attempt now; for handlers, from their thread.

        Waits for whoever holds the attempt, and lets the others' beats through meanwhile.
        """
        while not flight.done:
            try:
                self._send([flight])
                return
            except psycopg.errors.LockNotAvailable:
                continue

    def _beat_all(self, flights: Sequence[Flight]) -> None:
        """Beat for these. One that a transaction holds for long is left out, so that it silences nobody else."""
        try:
            self._send(flights)
        except psycopg.errors.LockNotAvailable:
            if len(flights) == 1:
                logger.info(
                    "job %s (%s) is held by another transaction; no heartbeat of it this time",
                    flights[0].attempt.job_id,
                    flights[0].attempt.kind,
                )
                return
            half = len(flights) // 2
            self._beat_all(flights[:half])
            self._beat_all(flights[half:])

    def _send(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            # First, so that an outcome which is written meanwhile knows that there may be a row.
            flight.left_state = True
        flights = [flight for flight in flights if not flight.settling]
        if not flights:
            return
        generations = [flight.generation for flight in flights]
        beats = [
            Beat(flight.attempt, flight.progress if flight.has_news and not flight.done else None)
            for flight in flights
        ]
        with self._lock:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._connect()
                with (
                    pipelined(self._connection),
                    self._connection.transaction(),
                    psycopg.Cursor(self._connection) as cursor,
                ):
                    send(cursor, statement("control/heartbeat", "limit_wait"), {})
                    current = self._plane.heartbeat(cursor, beats)
            except psycopg.errors.LockNotAvailable:
                raise
            except (psycopg.Error, OSError):
                self._disconnect()
                raise
        self._telemetry.beat_sent()
        for flight, generation in zip(flights, generations, strict=True):
            if flight.pair in current:
                flight.flushed = max(flight.flushed, generation)
            elif not flight.done:
                flight.lost = flight.cancelled = True
                logger.warning(
                    "job %s (%s): this attempt was taken away", flight.attempt.job_id, flight.attempt.kind
                )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
