"""Claiming: one loop for each queue and claimer (contract: runtime/dispatcher)."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from awa_django import telemetry
from awa_django.conf import QueueConfig, RateLimit
from awa_django.errors import said
from awa_django.jobs import Attempt
from awa_django.planes.base import Plane
from awa_django.worker.claimers import Claimer
from awa_django.worker.flights import Flight
from awa_django.worker.permits import Permits
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
#: After so many looks, a quarter of a second, a queue counts as empty all the same: its last positions may never have
#: been committed.
LOOKS_AT_NOTHING = 8
#: A claim cursor is moved by the next claim, or by itself when none has come for this long.
ADVANCE_SECONDS = 0.005
#: Other loops hold the claimer slots although something waits: the next look follows after this, doubling up to the
#: second; give or take a half.
REFUSED_SECONDS = 0.004
REFUSED_LONGEST_SECONDS = 0.1
#: A loop that left jobs behind and found no permit for this long gives its claimer slot to another one.
YIELD_SECONDS = 0.1


class TokenBucket:
    """A rate limit, shared by the claimers of a queue: starts full, refills with monotonic time."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, limit: RateLimit | None) -> TokenBucket | None:
        """The bucket of a queue's limit, if it has one."""
        return None if limit is None else cls(limit.max_rate, limit.capacity)

    def take(self, most: int) -> int:
        """Up to ``most`` whole tokens."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
            taken = min(most, int(self._tokens))
            self._tokens -= taken
            return taken

    def give_back(self, tokens: int) -> None:
        """Return tokens of jobs that were not found."""
        with self._lock:
            self._tokens = min(self._burst, self._tokens + tokens)

    def wait_seconds(self) -> float:
        """Until the next whole token."""
        return max(0.0, (1 - self._tokens) / self._rate)


class Dispatcher(Service):
    """Claims jobs of one queue, never more than there are free permits.

    A permit is taken before the claim and freed when the handler's outcome is known. A wake-up
    (notification, freed capacity, poll) is served by claiming until nothing is left to claim. The claimers of
    a queue share ``permits`` and ``bucket``; with ``claimer`` the loop claims only while it holds a slot. ``number``
    tells the claimers of a queue apart.
    """

    def __init__(
        self,
        config: QueueConfig,
        *,
        permits: Permits,
        bucket: TokenBucket | None = None,
        claimer: Claimer | None = None,
        number: int = 1,
        plane: Plane,
        connect: Callable[[], psycopg.Connection[Any]],
        start_flights: Callable[[Sequence[Flight]], None],
        poll_seconds: Callable[[], float],
        held_back: Callable[[], bool],
        nudge: Callable[[], None],
    ) -> None:
        super().__init__(f"queue {config.name}" + (f" claimer {number}" if number > 1 else ""))
        self.config = config
        self._permits = permits
        self._bucket = bucket
        self._claimer = claimer
        self._plane = plane
        self._connect = connect
        self._start_flights = start_flights
        self._poll_seconds = poll_seconds
        self._held_back = held_back
        self._nudge = nudge
        self._telemetry = telemetry.current()
        self._wake = threading.Event()
        #: Who set the event, for the metrics.
        self._reason = "poll"
        #: When the loop woke up, until the first claim after it; None from then on.
        self._woken_at: float | None = None
        #: Looks that found nothing, although there was a backlog, since the last wake-up or job.
        self._looks = 0
        #: Attempts whose lanes' cursors have not been moved, and whether the next claim moves them.
        self._unpassed: list[Attempt] = []
        self._self_moving = False
        self._claimed_at = 0.0
        #: Whether the last claim found as much as it asked for, so that there may be more.
        self._full = False
        #: Whether the last look found nothing to claim.
        self.empty = threading.Event()
        #: How often somebody asked whether the queue is empty, and what the look in progress began with: one that
        #: began before the question is no answer to it.
        self._asked = 0
        self._looking_for = 0
        self._asking = threading.Lock()

    def wake(self) -> None:
        """Look for jobs now: some were announced."""
        self._reason = "notify"
        self._wake.set()

    def _wake_for_capacity(self) -> None:
        self._reason = "capacity"
        self._wake.set()

    def release(self) -> None:
        """Free the permit of an attempt whose handler's outcome is known."""
        self._permits.release()

    def ask_whether_empty(self) -> None:
        """Have :attr:`empty` answered anew, by a look that begins after this."""
        with self._asking:
            self._asked += 1
            self.empty.clear()
        self.wake()

    def _found_empty(self) -> None:
        with self._asking:
            if self._looking_for == self._asked:
                self.empty.set()

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
                self._woken_at = time.monotonic()
                self._telemetry.woken(self.config.name, self._reason)
                with self._telemetry.poll(self.config.name):
                    pause = self._drain(connection)
                self._sleep(connection, pause)
            self._advance(connection)
            self._leave(connection)

    def _sleep(self, connection: psycopg.Connection[Any], seconds: float) -> None:
        """Until something may have changed, doing meanwhile what could wait."""
        woken = False
        if self._unpassed or self._permits.in_flight > 0:
            woken = self._wake.wait(min(ADVANCE_SECONDS, seconds))
            if not woken:
                self._nudge()
                self._advance(connection)
        if not woken and seconds > YIELD_SECONDS and self._keeps_others_away:
            woken = self._wake.wait(YIELD_SECONDS)
            if not woken:
                self._leave(connection)
        if woken or self._wake.wait(seconds):
            self._looks = 0
        else:
            self._reason = "poll"
        self._wake.clear()

    def _drain(self, connection: psycopg.Connection[Any]) -> float:
        """Claim until nothing is left to claim; returns the seconds until the next look."""
        while not self.stopping.is_set():
            self._looking_for = self._asked
            if self._held_back():
                # Outcomes pile up faster than they are stored; claiming more would only add to them.
                return HELD_BACK_SECONDS
            most = min(self._permits.most, self.config.claim_batch_size)
            if most == 0:
                self._found_empty()
                return self._poll_seconds()
            if self._bucket is not None and (most := self._bucket.take(most)) == 0:
                self._permits.rest()
                if self._woken_at is not None:
                    self._telemetry.rate_limited(self.config.name, self._reason)
                return min(self._bucket.wait_seconds(), self._poll_seconds())
            granted = self._acquire(most)
            if self._bucket is not None:
                self._bucket.give_back(most - granted)
            if granted == 0:
                return self._poll_seconds()
            first, self._woken_at = self._woken_at, None
            if first is not None:
                self._telemetry.first_round(
                    self.config.name, self._reason, permits=granted, seconds=time.monotonic() - first
                )
            found = self._claim(connection, granted)
            if not found:
                if first is not None:
                    self._telemetry.found_nothing(self.config.name, self._reason)
                self._permits.rest()
                return self._pause_without_slot() if found is None else self._pause_after_nothing(connection)
            self._looks = 0
            self.empty.clear()
        return 0.0

    def _acquire(self, most: int) -> int:
        """Take up to ``most`` permits.

        While permits keep coming free the claim waits for more of them, so that short jobs are claimed in batches.
        """
        free = self._permits.available(most)
        if 0 < free < most and time.monotonic() - self._claimed_at < SHORT_SECONDS:
            for _ in range(GATHER_ROUNDS):
                before = free
                time.sleep(GATHER_SECONDS)
                free = self._permits.available(most)
                if free in (before, most):
                    break
        return self._permits.acquire(most, self._wake_for_capacity)

    def _claim(self, connection: psycopg.Connection[Any], granted: int) -> int | None:
        """Claim at most as many jobs as permits were granted, and start them; permits left over are freed.

        None without a claimer slot: nobody looked.
        """
        attempts: list[Attempt] = []
        try:
            admitted = self._may_claim(connection)
            if admitted:
                attempts = self._claimed_attempts(connection, granted)
            self.crashes = 0
        finally:
            self._permits.use(len(attempts))
            if unused := granted - len(attempts):
                self._permits.give_back(unused)
                self._telemetry.permits_unused(self.config.name, unused)
                if self._bucket is not None:
                    self._bucket.give_back(unused)
        self._full = not unused
        if not admitted:
            return None
        self._start_flights([Flight(attempt, self) for attempt in attempts])
        self._claimed_at = time.monotonic()
        self._unpassed = attempts
        if not self._self_moving:
            self._advance(connection)
        if attempts and self._claimer is not None:
            with psycopg.Cursor(connection) as cursor:
                self._claimer.claimed(cursor)
        return len(attempts)

    @property
    def _keeps_others_away(self) -> bool:
        """Whether jobs may be left that this loop did not take, and others do not because of it."""
        return self._full and self._claimer is not None and self._claimer.slot is not None

    def _may_claim(self, connection: psycopg.Connection[Any]) -> bool:
        if self._claimer is None:
            return True
        with psycopg.Cursor(connection) as cursor:
            return self._claimer.may_claim(cursor)

    def _leave(self, connection: psycopg.Connection[Any]) -> None:
        if self._claimer is not None:
            with psycopg.Cursor(connection) as cursor:
                self._claimer.leave(cursor)

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
            logger.warning("queue %s: the claim cursor was not moved: %s", self.config.name, said(error))

    def _pause_after_nothing(self, connection: psycopg.Connection[Any]) -> float:
        """Seconds until the next look after a claim that found nothing."""
        poll = self._poll_seconds()
        pause: float = LOOK_AGAIN_SECONDS * 2**self._looks * random.uniform(0.5, 1.5)
        backlog = False
        if self._plane.claims_may_miss and pause < poll:
            with psycopg.Cursor(connection) as cursor:
                backlog = self._plane.has_backlog(cursor, self.config.name)
            self._looks += backlog
        if not backlog or self._looks > LOOKS_AT_NOTHING:
            self._found_empty()
        return pause if backlog else poll

    def _pause_without_slot(self) -> float:
        """Seconds until the next look where no claimer slot was to be had, or nothing waits that would need one."""
        poll = self._poll_seconds()
        if self._claimer is None or self._claimer.backlog == 0:
            self._found_empty()
            return poll
        self.empty.clear()
        pause: float = min(REFUSED_SECONDS * 2 ** min(self._looks, 16), REFUSED_LONGEST_SECONDS)
        self._looks += 1
        return min(pause * random.uniform(0.5, 1.5), poll)

    def _claimed_attempts(self, connection: psycopg.Connection[Any], limit: int) -> list[Attempt]:
        while True:
            began = time.perf_counter()
            with (
                self._telemetry.claim_span(self._plane.name, self.config.name),
                psycopg.Cursor(connection) as cursor,
            ):
                attempts, refused = self._plane.claim(
                    cursor,
                    self.config.name,
                    limit,
                    deadline=self.config.deadline,
                    aging=self.config.priority_aging_interval,
                )
            self._telemetry.claimed(self.config.name, attempts, time.perf_counter() - began)
            if refused:
                self._refuse(connection, refused)
            if attempts or not refused:
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
            logger.warning("queue %s: they were left to rescue: %s", self.config.name, said(error))
