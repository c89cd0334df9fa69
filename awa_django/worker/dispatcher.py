"""Claiming: one loop for each queue (contract: runtime/dispatcher)."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from awa_django.conf import QueueConfig
from awa_django.jobs import Attempt
from awa_django.planes.base import Plane
from awa_django.worker.flights import Flight
from awa_django.worker.service import Service

__all__ = ["Dispatcher", "TokenBucket"]

logger = logging.getLogger("awa_django.worker")

#: Where permits come free this soon after a claim, the claim waits for more of them: jobs that short are claimed in
#: batches, while long ones are followed at once.
SHORT_SECONDS = 0.01
GATHER_SECONDS = 0.0005
GATHER_ROUNDS = 6
#: Between two looks while outcomes pile up.
HELD_BACK_SECONDS = 0.05
#: A claim passes over lanes that another claimer holds just then, and may find nothing although there is something.
#: Where the lanes say so the next look follows after this, doubling, up to the polling interval; give or take a half,
#: so that several claimers do not keep meeting.
LOOK_AGAIN_SECONDS = 0.001
#: A claim cursor is moved by the next claim, or by itself when none has come for this long.
ADVANCE_SECONDS = 0.005


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
        #: Permits that the claim in progress holds for jobs it may not find.
        self._claiming = 0
        #: The loop wants to hear of freed permits.
        self._starved = False
        self._wake = threading.Event()
        #: Looks that found nothing, although there was a backlog, since the last wake-up or job.
        self._looks = 0
        #: Attempts whose lanes' cursors have not been moved, and whether the next claim moves them.
        self._unpassed: list[Attempt] = []
        self._self_moving = False
        self._claimed_at = 0.0
        #: Whether the last claim found less than it asked for.
        self.empty = threading.Event()

    @property
    def in_flight(self) -> int:
        """Attempts of this queue whose handler has not returned."""
        return self.config.max_workers - self._free - self._claiming

    def wake(self) -> None:
        """Look for jobs now."""
        self._wake.set()

    def release(self) -> None:
        """Free the permit of an attempt whose handler's outcome is known."""
        with self._lock:
            self._free += 1
        if self._starved and not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        super().stop()
        self._wake.set()

    def run(self) -> None:
        with self._connect() as connection:
            with psycopg.Cursor(connection) as cursor:
                self._self_moving = self._plane.moves_cursors(cursor)
            self._unpassed = []
            self.alive = True
            while not self.stopping.is_set():
                pause = self._drain(connection)
                self._sleep(connection, pause)
            self._advance(connection)

    def _sleep(self, connection: psycopg.Connection[Any], seconds: float) -> None:
        """Until something may have changed, doing meanwhile what could wait."""
        woken = False
        if self._unpassed or self._free < self.config.max_workers:
            woken = self._wake.wait(min(ADVANCE_SECONDS, seconds))
            if not woken:
                self._nudge()
                self._advance(connection)
        if woken or self._wake.wait(seconds):
            self._looks = 0
        self._wake.clear()

    def _drain(self, connection: psycopg.Connection[Any]) -> float:
        """Claim until nothing is left to claim; returns the seconds until the next look."""
        most = min(self.config.max_workers, self.config.claim_batch_size)
        while not self.stopping.is_set():
            if self._held_back():
                # Outcomes pile up faster than they are stored; claiming more would only add to them.
                return HELD_BACK_SECONDS
            self._starved = True
            wanted = min(self._free, most)
            if wanted <= 0:
                if most == 0:
                    self.empty.set()
                return self._poll_seconds()
            if wanted < most and time.monotonic() - self._claimed_at < SHORT_SECONDS:
                wanted = self._gather(wanted, most)
            self._starved = False
            granted = self._bucket.take(wanted) if self._bucket else wanted
            if granted == 0:
                assert self._bucket is not None
                return min(self._bucket.wait_seconds(), self._poll_seconds())
            if self._claim(connection, granted) == 0:
                pause = self._pause_after_nothing(connection)
                self.empty.set()
                return pause
            self._looks = 0
            self.empty.clear()
        return 0.0

    def _gather(self, wanted: int, most: int) -> int:
        """Wait while permits keep coming free, so that short jobs are claimed in batches."""
        for _ in range(GATHER_ROUNDS):
            before = wanted
            time.sleep(GATHER_SECONDS)
            wanted = min(self._free, most)
            if wanted in (before, most):
                break
        return wanted

    def _claim(self, connection: psycopg.Connection[Any], granted: int) -> int:
        """Claim at most as many jobs as permits were granted, and start them; permits left over are freed."""
        with self._lock:
            self._free -= granted
            self._claiming = granted
        attempts: list[Attempt] = []
        try:
            attempts = self._claimed_attempts(connection, granted)
            self.crashes = 0
        finally:
            unused = granted - len(attempts)
            with self._lock:
                self._free += unused
                self._claiming = 0
            if self._bucket:
                self._bucket.give_back(unused)
        self._start_flights([Flight(attempt, self) for attempt in attempts])
        self._claimed_at = time.monotonic()
        self._unpassed = attempts
        if not self._self_moving:
            self._advance(connection)
        return len(attempts)

    def _advance(self, connection: psycopg.Connection[Any]) -> None:
        """Move the claim cursors past what was claimed last."""
        attempts, self._unpassed = self._unpassed, []
        if not attempts:
            return
        try:
            with psycopg.Cursor(connection) as cursor:
                self._plane.advance(cursor, attempts)
        except psycopg.Error as error:
            # The jobs are ours either way; whoever claims next moves the cursor itself.
            logger.warning(
                "queue %s: the claim cursor was not moved: %s", self.config.name, str(error).strip()
            )

    def _pause_after_nothing(self, connection: psycopg.Connection[Any]) -> float:
        """Seconds until the next look after a claim that found nothing."""
        poll = self._poll_seconds()
        pause: float = LOOK_AGAIN_SECONDS * 2**self._looks * random.uniform(0.5, 1.5)
        if pause >= poll:
            return poll
        with psycopg.Cursor(connection) as cursor:
            if not self._plane.has_backlog(cursor, self.config.name):
                return poll
        self._looks += 1
        return pause

    def _claimed_attempts(self, connection: psycopg.Connection[Any], limit: int) -> list[Attempt]:
        with psycopg.Cursor(connection) as cursor:
            attempts, refused = self._plane.claim(
                cursor,
                self.config.name,
                limit,
                deadline=self.config.deadline,
                aging=self.config.priority_aging_interval,
            )
        if refused:
            self._refuse(connection, refused)
        return attempts

    def _refuse(self, connection: psycopg.Connection[Any], attempts: Sequence[Attempt]) -> None:
        logger.warning(
            "queue %s: newer jobs hold the unique keys of jobs %s, which end as duplicates",
            self.config.name,
            ", ".join(str(attempt.job_id) for attempt in attempts),
        )
        try:
            with connection.transaction(), psycopg.Cursor(connection) as cursor:
                self._plane.refuse(cursor, attempts)
        except psycopg.Error as error:
            # The claim has committed and its other jobs must start; these will be rescued.
            logger.warning("queue %s: they were left to rescue: %s", self.config.name, str(error).strip())
