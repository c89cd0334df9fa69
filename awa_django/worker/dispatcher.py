"""Claiming: one loop for each queue (contract: runtime/dispatcher)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from awa_django.conf import QueueConfig
from awa_django.jobs import Attempt
from awa_django.planes.base import Plane
from awa_django.settle import pipelined
from awa_django.worker.flights import Flight
from awa_django.worker.service import Service

__all__ = ["Dispatcher", "TokenBucket"]

logger = logging.getLogger("awa_django.worker")

#: After a slot became free the claim waits this long for more of them, so that short jobs are claimed in batches.
GATHER_SECONDS = 0.001
#: Between two looks at attempts that wait for a thread.
NUDGE_SECONDS = 0.005


class TokenBucket:
    """A rate limit: starts full, refills with monotonic time. Used by one thread."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()

    def take(self, most: int) -> int:
        """Up to ``most`` whole tokens."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        taken = min(most, int(self._tokens))
        self._tokens -= taken
        return taken

    def give_back(self, tokens: int) -> None:
        """Return tokens of jobs that were not found."""
        self._tokens = min(self._burst, self._tokens + tokens)

    def wait_seconds(self) -> float:
        """Until the next whole token."""
        return max(0.0, (1 - self._tokens) / self._rate)


class Dispatcher(Service):
    """Claims jobs of one queue, never more than there are free permits.

    A permit is taken before the claim and freed when the handler's outcome is known. A wake-up
    (notification, freed capacity, poll) is served by claiming until nothing is left to claim.
    """

    def __init__(
        self,
        config: QueueConfig,
        *,
        plane: Plane,
        connect: Callable[[], psycopg.Connection[Any]],
        start_flights: Callable[[Sequence[Flight]], None],
        poll_seconds: Callable[[], float],
        held_back: Callable[[], bool],
        nudge: Callable[[], None],
    ) -> None:
        super().__init__(f"queue {config.name}")
        self.config = config
        self._plane = plane
        self._connect = connect
        self._start_flights = start_flights
        self._poll_seconds = poll_seconds
        self._held_back = held_back
        self._nudge = nudge
        self._bucket = (
            TokenBucket(config.rate_limit.max_rate, config.rate_limit.capacity) if config.rate_limit else None
        )
        self._lock = threading.Lock()
        self._free = config.max_workers
        #: The loop wants to hear of freed permits.
        self._starved = False
        self._wake = threading.Event()
        self._claimed = 0
        self._started = 0
        #: Whether the last claim found less than it asked for.
        self.empty = threading.Event()

    @property
    def in_flight(self) -> int:
        """Attempts of this queue whose handler has not returned."""
        return self.config.max_workers - self._free

    def wake(self) -> None:
        """Look for jobs now."""
        self._wake.set()

    def release(self) -> None:
        """Free the permit of an attempt whose handler's outcome is known."""
        with self._lock:
            self._free += 1
        if self._starved:
            self._wake.set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    def run(self) -> None:
        connection = self._connect()
        try:
            self.alive = True
            while not self.stopping.is_set():
                wait = self._drain(connection)
                self._sleep(wait)
        finally:
            connection.close()

    def _sleep(self, seconds: float) -> None:
        """Until something may have changed. Attempts that wait for a thread meanwhile get one."""
        woken = False
        if self._free < self.config.max_workers:
            woken = self._wake.wait(min(NUDGE_SECONDS, seconds))
            if not woken:
                self._nudge()
        if not woken:
            self._wake.wait(seconds)
        self._wake.clear()

    def _drain(self, connection: psycopg.Connection[Any]) -> float:
        """Claim until nothing is left to claim; returns the seconds until the next look."""
        while not self.stopping.is_set():
            if self._held_back():
                # Outcomes pile up faster than they are stored; claiming more would only add to them.
                return 0.05
            self._starved = True
            wanted = min(self._free, self.config.claim_batch_size)
            if wanted <= 0:
                return self._poll_seconds()
            if wanted < min(self.config.max_workers, self.config.claim_batch_size) // 4:
                time.sleep(GATHER_SECONDS)
                wanted = min(self._free, self.config.claim_batch_size)
            self._starved = False
            granted = self._bucket.take(wanted) if self._bucket else wanted
            if granted == 0:
                assert self._bucket is not None
                return min(self._bucket.wait_seconds(), self._poll_seconds())
            with self._lock:
                self._free -= granted
            found = 0
            try:
                found = self._claim(connection, granted)
            finally:
                unused = granted - found
                if unused:
                    with self._lock:
                        self._free += unused
                    if self._bucket:
                        self._bucket.give_back(unused)
            if found == 0:
                self.empty.set()
                return self._poll_seconds()
            self.empty.clear()
        return 0.0

    def _claim(self, connection: psycopg.Connection[Any], limit: int) -> int:
        attempts = self._claimed_attempts(connection, limit)
        if not attempts:
            return 0
        self._start_flights([Flight(attempt, self) for attempt in attempts])
        try:
            with psycopg.Cursor(connection) as cursor:
                self._plane.advance(cursor, attempts)
        except psycopg.Error as error:
            # The jobs are ours either way; whoever claims next moves the cursor itself.
            logger.warning("queue %s: the claim cursor was not moved: %s", self.config.name, error)
            if connection.closed:
                raise
        return len(attempts)

    def _claimed_attempts(self, connection: psycopg.Connection[Any], limit: int) -> list[Attempt]:
        with pipelined(connection), connection.transaction(), psycopg.Cursor(connection) as cursor:
            return self._plane.claim(
                cursor,
                self.config.name,
                limit,
                deadline=self.config.deadline,
                aging=self.config.priority_aging_interval,
            )
